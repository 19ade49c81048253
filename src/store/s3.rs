//! A store in a bucket of an S3 server.
//!
//! One operation is one or more HTTP requests, each tried again when that may help ([`retry`]).
//! The SDK's own retries are off, since they don't know of bodies that break off, nor of what was
//! reached before. Everything asynchronous is in here, behind blocking calls.

mod asked;
mod body;
mod connect;
mod fault;
mod retry;
mod settings;
mod upload;

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::ChecksumMode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};

use self::body::{Progress, observed};
use self::connect::Connection;
use self::fault::{Again, Fault};
use self::retry::Tries;
pub use self::settings::{Access, AccessKeys, S3Settings, SecretError};
use super::error::MAX_KEY;
use super::{
    Action, Body, Conditions, Counters, Entry, Etag, Expected, Listed, Object, Reason, Room,
    Server, Store, StoreError, Swap, Traffic,
};
use crate::digest::Digest;
use crate::path::TreePath;

/// From here on objects are sent in parts (bundle-format, "Publish" 2).
const MULTIPART: u64 = 16 * 1024 * 1024;
/// Bytes of bodies that are held in memory for sending, over all operations.
const BUDGET: u32 = 32 * 1024 * 1024;
/// The largest object that is compared with what a conditional write would put in its place.
const MAX_COMPARED: u64 = 64 * 1024 * 1024;
/// How long whoever is to stop waits for what he tidies up.
const LAST: Duration = Duration::from_secs(3);
/// Keys of one page of a listing (S3, `ListObjectsV2`).
const PAGE: usize = 1000;
/// Pages without a single key that a listing may have in a row.
const MAX_EMPTY_PAGES: usize = 1000;

/// Objects in a bucket, below a prefix.
#[derive(Debug)]
pub struct S3 {
    runtime: Runtime,
    connection: Connection,
    bucket: String,
    /// Empty, or ends with a slash.
    prefix: String,
    tries: Tries,
    timeout: Duration,
    budget: Semaphore,
    counters: Counters,
}

/// A runtime that does not wait, when it goes, for whoever still resolves names.
#[derive(Debug)]
struct Runtime(Option<tokio::runtime::Runtime>);

impl Runtime {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        match &self.0 {
            Some(runtime) => runtime.block_on(future),
            None => unreachable!("it is taken only when it is dropped"),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl S3 {
    /// The store below `prefix` in `bucket`. Nothing is sent to the server.
    ///
    /// # Errors
    /// [`Reason::Settings`].
    pub fn open(
        bucket: &str,
        prefix: Option<&TreePath>,
        settings: &S3Settings,
    ) -> Result<Self, StoreError> {
        let prefix = prefix.map_or_else(String::new, |prefix| format!("{prefix}/"));
        let failed =
            |reason| StoreError::new(Action::Open, format!("s3://{bucket}/{prefix}"), reason);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("casepack-s3")
            .enable_all()
            .build()
            .map_err(|error| failed(error.into()))?;
        let runtime = Runtime(Some(runtime));
        let connection = runtime
            .block_on(Connection::new(settings))
            .map_err(failed)?;
        Ok(Self {
            runtime,
            connection,
            bucket: bucket.to_owned(),
            prefix,
            tries: Tries::new(settings.patience, Arc::clone(&settings.stop)),
            timeout: settings.timeout,
            budget: Semaphore::new(BUDGET as usize),
            counters: Counters::default(),
        })
    }

    /// The key in the bucket.
    fn full(&self, action: Action, key: &TreePath) -> Result<String, StoreError> {
        let full = format!("{}{key}", self.prefix);
        if full.len() > MAX_KEY {
            return Err(self.error(action, key.as_str(), Reason::LongKey(full.len())));
        }
        Ok(full)
    }

    fn error(&self, action: Action, key: &str, reason: Reason) -> StoreError {
        StoreError::new(action, self.show(key), reason)
    }

    /// Sends what `attempt` sends until it succeeds or no longer may.
    fn run<T>(
        &self,
        action: Action,
        key: &str,
        attempt: impl AsyncFnMut() -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        self.fallible(attempt)
            .map_err(|fault| self.error(action, key, fault.reason))
    }

    fn fallible<T>(&self, attempt: impl AsyncFnMut() -> Result<T, Fault>) -> Result<T, Fault> {
        let run = async {
            let result = self.tries.run(&self.counters, attempt).await;
            match result {
                Err(mut fault) if fault.again == Again::AskCredentials => {
                    if let Some(reason) = self.connection.why_no_credentials().await {
                        fault.reason = reason;
                    }
                    Err(fault)
                }
                result => result,
            }
        };
        self.runtime.block_on(run)
    }

    /// Sends a last request, of somebody who does not wait for long.
    fn once<T>(&self, attempt: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        self.counters.request();
        let last = async { tokio::time::timeout(LAST, attempt).await };
        let silent = |_| Err(Fault::silent(LAST));
        self.runtime.block_on(last).unwrap_or_else(silent)
    }

    /// A request without a body, ended when the server keeps silent.
    fn asking<T, E: ProvideErrorMetadata + Error + 'static>(
        &self,
        request: impl Future<Output = Result<T, SdkError<E>>>,
    ) -> impl Future<Output = Result<T, Fault>> {
        // The SDK's futures have tens of kilobytes.
        let request = Box::pin(request);
        async move {
            match tokio::time::timeout(self.timeout, request).await {
                Ok(done) => done.map_err(|error| Fault::of(error, &self.connection.region)),
                Err(_) => Err(Fault::silent(self.timeout)),
            }
        }
    }

    /// A request that sends the body that has `progress`, ended when nothing moves.
    fn sending<T, E: ProvideErrorMetadata + Error + 'static>(
        &self,
        progress: Progress,
        request: impl Future<Output = Result<T, SdkError<E>>>,
    ) -> impl Future<Output = Result<T, Fault>> {
        let request = Box::pin(request);
        async move {
            let done = progress.watch(self.timeout, request).await?;
            done.map_err(|error| Fault::of(error, &self.connection.region))
        }
    }

    /// The body of an answer, if it has at most `limit` bytes; an error when it keeps silent.
    async fn body(&self, body: ByteStream, limit: u64) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        self.pieces(body, limit, |piece| bytes.extend_from_slice(piece))
            .await?;
        Ok(bytes)
    }

    /// Gives the body of an answer to `each`, as long as it has at most `limit` bytes.
    async fn pieces(
        &self,
        mut body: ByteStream,
        limit: u64,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Fault> {
        let mut came = 0;
        loop {
            let next = tokio::time::timeout(self.timeout, body.try_next()).await;
            let piece = match next {
                Err(_) => return Err(Fault::silent(self.timeout)),
                Ok(piece) => piece.map_err(|error| Fault::broken(&error))?,
            };
            let Some(piece) = piece else {
                return Ok(());
            };
            came += piece.len() as u64;
            if came > limit {
                return Err(Fault::new(Reason::TooLarge { limit }, Again::Never));
            }
            each(&piece);
        }
    }

    /// Room for `size` bytes in memory, or for all there is.
    fn room(&self, size: u64) -> SemaphorePermit<'_> {
        let size = u32::try_from(size).unwrap_or(BUDGET).min(BUDGET);
        match self.runtime.block_on(self.budget.acquire_many(size)) {
            Ok(permit) => permit,
            Err(_) => unreachable!("it is never closed"),
        }
    }

    fn put_small(
        &self,
        action: Action,
        key: &TreePath,
        bytes: &Bytes,
        digest: &Digest,
        expected: Option<Expected<'_>>,
    ) -> Result<Result<Etag, Fault>, StoreError> {
        let full = self.full(action, key)?;
        let size = bytes.len() as u64;
        let checksum = BASE64.encode(digest.as_bytes());
        let put = self.fallible(async || {
            let request = self.connection.client.put_object();
            let request = match expected {
                None => request,
                Some(Expected::Absent) => request.if_none_match("*"),
                Some(Expected::At(etag)) => request.if_match(etag.as_str()),
            };
            let (body, progress) = observed(bytes, self.connection.is_plain());
            let send = request
                .bucket(&self.bucket)
                .key(&full)
                .body(body)
                .checksum_sha256(&checksum)
                .send();
            self.sending(progress, send).await
        });
        Ok(put.map(|put| {
            self.counters.wrote(size);
            Etag(put.e_tag.unwrap_or_default())
        }))
    }
}

impl Store for S3 {
    fn show(&self, key: &str) -> String {
        let url = format!("s3://{}/{}{key}", self.bucket, self.prefix);
        match &self.connection.endpoint {
            Some(endpoint) => format!("{url} (at {endpoint})"),
            None => url,
        }
    }

    fn get(&self, key: &TreePath, limit: u64) -> Result<Object, StoreError> {
        let full = self.full(Action::Read, key)?;
        let object = self.run(Action::Read, key.as_str(), async || {
            let request = self.connection.client.get_object();
            let send = request
                .bucket(&self.bucket)
                .key(&full)
                .checksum_mode(ChecksumMode::Enabled)
                .send();
            let got = self.asking(send).await?;
            let size = got.content_length.and_then(|size| u64::try_from(size).ok());
            if size.is_some_and(|size| size > limit) {
                return Err(Fault::new(Reason::TooLarge { limit }, Again::Never));
            }
            let bytes = self.body(got.body, limit).await?;
            let etag = Etag(got.e_tag.unwrap_or_default());
            Ok(Object { bytes, etag })
        })?;
        self.counters.read(object.bytes.len());
        Ok(object)
    }

    fn get_range(&self, key: &TreePath, start: u64, size: usize) -> Result<Bytes, StoreError> {
        let full = self.full(Action::Read, key)?;
        let short = || Reason::Short { start, size };
        let Some(last) = start
            .checked_add(size as u64)
            .and_then(|end| end.checked_sub(1))
        else {
            return match size {
                0 => Ok(Bytes::new()),
                _ => Err(self.error(Action::Read, key.as_str(), short())),
            };
        };
        if size == 0 {
            return Ok(Bytes::new());
        }
        let bytes = self.run(Action::Read, key.as_str(), async || {
            let request = self.connection.client.get_object();
            let send = request
                .bucket(&self.bucket)
                .key(&full)
                .range(format!("bytes={start}-{last}"))
                .send();
            let got = self.asking(send).await;
            let got = got.map_err(|fault| match fault.status() {
                Some(416) => Fault::new(short(), Again::Never),
                _ => fault,
            })?;
            // `bytes START-LAST/SIZE`.
            let range = got.content_range.unwrap_or_default();
            let (sent, whole) = range.split_once('/').unwrap_or((&range, "*"));
            if sent != format!("bytes {start}-{last}") {
                let ends = whole.parse::<u64>().is_ok_and(|whole| whole <= last);
                let reason = if ends {
                    short()
                } else {
                    Reason::NotS3(format!(
                        "asked for the bytes {start} to {last} it sent '{range}'"
                    ))
                };
                return Err(Fault::new(reason, Again::Never));
            }
            let mut bytes =
                Room::new(size).map_err(|error| Fault::new(error.into(), Again::Never))?;
            let mut came = 0;
            self.pieces(got.body, size as u64, |piece| {
                if let Some(place) = bytes.get_mut(came..came + piece.len()) {
                    place.copy_from_slice(piece);
                }
                came += piece.len();
            })
            .await?;
            if came != size {
                let sent = format!("{came} of {size} bytes came");
                return Err(Fault::new(Reason::Broken(sent), Again::Later));
            }
            Ok(bytes.freeze())
        })?;
        self.counters.read(size);
        Ok(bytes)
    }

    fn put(&self, key: &TreePath, body: Body<'_>, digest: &Digest) -> Result<Etag, StoreError> {
        let size = body.size();
        if size >= MULTIPART {
            return self.upload(key, body, digest);
        }
        let _room = self.room(size);
        let failed = |reason| self.error(Action::Write, key.as_str(), reason);
        let bytes = body.to_bytes().map_err(failed)?;
        self.put_small(Action::Write, key, &bytes, digest, None)?
            .map_err(|fault| failed(fault.reason))
    }

    fn put_if(
        &self,
        key: &TreePath,
        bytes: &[u8],
        expected: Expected<'_>,
    ) -> Result<Swap, StoreError> {
        let _room = self.room(bytes.len() as u64);
        let put = self.put_small(
            Action::Write,
            key,
            &Bytes::copy_from_slice(bytes),
            &Digest::of(bytes),
            Some(expected),
        )?;
        let fault = match put {
            Ok(etag) => return Ok(Swap::Done(etag)),
            Err(fault) => fault,
        };
        match (fault.status(), &fault.reason) {
            (Some(412), _) => {}
            // What some servers say of an object that should be in some state and is not there.
            (_, Reason::NotFound) => return Ok(Swap::Lost { now: None }),
            (Some(501), _) => {
                return Err(self.error(Action::Write, key.as_str(), Reason::NoConditions));
            }
            _ => return Err(self.error(Action::Write, key.as_str(), fault.reason)),
        }
        match self.get(key, MAX_COMPARED) {
            // Ours: an earlier try arrived, and its answer got lost.
            Ok(now) if now.bytes == bytes => Ok(Swap::Done(now.etag)),
            Ok(now) => Ok(Swap::Lost { now: Some(now) }),
            Err(error) if error.is_not_found() => Ok(Swap::Lost { now: None }),
            Err(error) => Err(error),
        }
    }

    fn list(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(Listed) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let full = format!("{}{prefix}", self.prefix);
        let failed = |reason| self.error(Action::List, prefix, reason);
        if full.len() > MAX_KEY {
            return Ok(());
        }
        let (mut after, mut empty) = (None, 0);
        loop {
            let page = self.run(Action::List, prefix, async || {
                let request = self.connection.client.list_objects_v2();
                let send = request
                    .bucket(&self.bucket)
                    .prefix(&full)
                    .set_continuation_token(after.clone())
                    .send();
                self.asking(send).await
            })?;
            empty = if page.contents().is_empty() {
                empty + 1
            } else {
                0
            };
            for object in page.contents() {
                let Some(key) = object.key().and_then(|key| key.strip_prefix(&self.prefix)) else {
                    continue;
                };
                if !key.starts_with(prefix) {
                    continue;
                }
                let listed = match TreePath::new(key) {
                    Ok(path) => Listed::Entry(Entry {
                        key: path,
                        size: object
                            .size()
                            .and_then(|size| u64::try_from(size).ok())
                            .unwrap_or(0),
                        etag: object.e_tag().map(|etag| Etag(etag.to_owned())),
                        modified: object
                            .last_modified()
                            .map_or(0, aws_sdk_s3::primitives::DateTime::secs),
                    }),
                    Err(why) => Listed::Unusable {
                        key: key.to_owned(),
                        why: why.to_string(),
                    },
                };
                if each(listed).is_break() {
                    return Ok(());
                }
            }
            if page.is_truncated() != Some(true) {
                return Ok(());
            }
            let next = page.next_continuation_token;
            if next.is_none() || next == after || empty > MAX_EMPTY_PAGES {
                let why = "its listing does not come to an end";
                return Err(failed(Reason::NotS3(why.to_owned())));
            }
            after = next;
        }
    }

    fn delete(&self, key: &TreePath) -> Result<(), StoreError> {
        let full = self.full(Action::Delete, key)?;
        let delete = async || {
            let request = self.connection.client.delete_object();
            let send = request.bucket(&self.bucket).key(&full).send();
            self.asking(send).await
        };
        let deleted = if self.tries.is_stopped() {
            // What is removed by then was made for the time of the work.
            self.once(delete())
        } else {
            self.fallible(delete)
        };
        let failed = |fault: Fault| self.error(Action::Delete, key.as_str(), fault.reason);
        match deleted.map_err(failed) {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    fn probe_conditions(&self, key: &TreePath, bytes: &[u8]) -> Result<Conditions, StoreError> {
        let put = self.put_small(
            Action::Write,
            key,
            &Bytes::copy_from_slice(bytes),
            &Digest::of(bytes),
            Some(Expected::Absent),
        )?;
        match put.map_err(|fault| (fault.status(), fault.reason)) {
            Ok(_) | Err((Some(501), _)) => Ok(Conditions::Unsupported),
            Err((Some(412), _)) => Ok(Conditions::Honoured),
            Err((_, reason)) => Err(self.error(Action::Write, key.as_str(), reason)),
        }
    }

    fn traffic(&self) -> Traffic {
        self.counters.traffic()
    }

    fn page(&self) -> Option<usize> {
        Some(PAGE)
    }

    fn server(&self) -> Option<Server> {
        let region = self.connection.region.clone();
        let endpoint = self.connection.endpoint.clone().unwrap_or_else(|| {
            let country = if region.starts_with("cn-") { ".cn" } else { "" };
            format!("https://s3.{region}.amazonaws.com{country}")
        });
        Some(Server { endpoint, region })
    }
}
