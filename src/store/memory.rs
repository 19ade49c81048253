//! A store in memory, for tests of what is built on stores.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{
    Action, Body, Conditions, Counters, Entry, Etag, Expected, Listed, Object, Reason, Store,
    StoreError, Swap, Traffic, verify,
};
use crate::digest::{Digest, Hasher};
use crate::path::TreePath;

/// Objects in memory.
#[derive(Debug, Default)]
pub struct Memory {
    state: Mutex<State>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<TreePath, Held>,
    /// Writes so far: what etags are made of.
    writes: u64,
    /// Seconds since 1970.
    now: i64,
}

#[derive(Debug, Clone)]
struct Held {
    bytes: Vec<u8>,
    etag: Etag,
    modified: i64,
}

impl Memory {
    /// An empty store whose clock stands at 1970.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets its clock, seconds since 1970: what is written from now on is of that time.
    pub fn set_clock(&self, now: i64) {
        self.state().now = now;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, action: Action, key: &TreePath, reason: Reason) -> StoreError {
        StoreError::new(action, self.show(key.as_str()), reason)
    }
}

impl State {
    fn write(&mut self, key: &TreePath, bytes: Vec<u8>) -> Etag {
        self.writes += 1;
        let etag = Etag(self.writes.to_string());
        let held = Held {
            bytes,
            etag: etag.clone(),
            modified: self.now,
        };
        self.objects.insert(key.clone(), held);
        etag
    }
}

impl Store for Memory {
    fn show(&self, key: &str) -> String {
        format!("memory:{key}")
    }

    fn get(&self, key: &TreePath, limit: u64) -> Result<Object, StoreError> {
        self.counters.request();
        let failed = |reason| self.error(Action::Read, key, reason);
        let state = self.state();
        let held = state
            .objects
            .get(key)
            .ok_or_else(|| failed(Reason::NotFound))?;
        if held.bytes.len() as u64 > limit {
            return Err(failed(Reason::TooLarge { limit }));
        }
        self.counters.read(held.bytes.len());
        Ok(Object {
            bytes: held.bytes.clone(),
            etag: held.etag.clone(),
        })
    }

    fn get_range(&self, key: &TreePath, start: u64, size: usize) -> Result<Bytes, StoreError> {
        self.counters.request();
        let failed = |reason| self.error(Action::Read, key, reason);
        let state = self.state();
        let held = state
            .objects
            .get(key)
            .ok_or_else(|| failed(Reason::NotFound))?;
        let range = usize::try_from(start)
            .ok()
            .and_then(|start| held.bytes.get(start..start.checked_add(size)?));
        let bytes = range.ok_or_else(|| failed(Reason::Short { start, size }))?;
        self.counters.read(size);
        Ok(Bytes::copy_from_slice(bytes))
    }

    fn put(&self, key: &TreePath, body: Body<'_>, digest: &Digest) -> Result<Etag, StoreError> {
        self.counters.request();
        let failed = |reason| self.error(Action::Write, key, reason);
        let mut hasher = Hasher::new();
        let mut bytes = Vec::new();
        body.pieces(128 * 1024, |piece| {
            hasher.update(piece);
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .and_then(|()| verify(hasher, digest))
        .map_err(failed)?;
        self.counters.wrote(bytes.len() as u64);
        Ok(self.state().write(key, bytes))
    }

    fn put_if(
        &self,
        key: &TreePath,
        bytes: &[u8],
        expected: Expected<'_>,
    ) -> Result<Swap, StoreError> {
        self.counters.request();
        let mut state = self.state();
        let now = state.objects.get(key);
        let as_expected = match expected {
            Expected::Absent => now.is_none(),
            Expected::At(etag) => now.is_some_and(|now| now.etag == *etag),
        };
        if as_expected {
            self.counters.wrote(bytes.len() as u64);
            return Ok(Swap::Done(state.write(key, bytes.to_vec())));
        }
        Ok(match now {
            Some(now) if now.bytes == bytes => Swap::Done(now.etag.clone()),
            now => Swap::Lost {
                now: now.map(|now| Object {
                    bytes: now.bytes.clone(),
                    etag: now.etag.clone(),
                }),
            },
        })
    }

    fn list(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(Listed) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.counters.request();
        // A copy, since whoever is told may well use the store.
        let entries: Vec<_> = self
            .state()
            .objects
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(key, _)| key.as_str().starts_with(prefix))
            .map(|(key, held)| Entry {
                key: key.clone(),
                size: held.bytes.len() as u64,
                etag: Some(held.etag.clone()),
                modified: held.modified,
            })
            .collect();
        for entry in entries {
            if each(Listed::Entry(entry)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn delete(&self, key: &TreePath) -> Result<(), StoreError> {
        self.counters.request();
        self.state().objects.remove(key);
        Ok(())
    }

    fn probe_conditions(&self, _: &TreePath, _: &[u8]) -> Result<Conditions, StoreError> {
        Ok(Conditions::Honoured)
    }

    fn traffic(&self) -> Traffic {
        self.counters.traffic()
    }
}
