//! Catalog shards, written.
//!
//! Owns where shards are cut and what the cases of one have in common.
//! Invariant: a shard is a function of its own cases. Where it is cut is decided case by case, by
//! the id and by what the case adds to the shard, so that a changed case changes its own shard and
//! the cuts find each other again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::catalog::{Mount, Placement};
use super::{cuts, json, limits};
use crate::digest::Digest;
use crate::path::CaseId;
use crate::tree::push_text;

/// Bytes past which a shard may end.
const SHARD_MIN: u64 = 64 << 10;
/// Bytes of a shard on average.
const SHARD_MEAN: u64 = 256 << 10;
/// Bytes of a shard at most, as long as it has more than one case.
const SHARD_MAX: u64 = 1 << 20;

/// One case, as its shard has it: entries by number, sorted by path.
pub(super) struct Line<'a> {
    pub(super) id: &'a CaseId,
    pub(super) entries: &'a [u32],
    pub(super) placement: Option<&'a Placement>,
}

/// The runs of `cases` that make a shard each. `len_of` is the length of an entry's text.
pub(super) fn cut(cases: &[Line<'_>], len_of: &dyn Fn(u32) -> u64) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut seen: BTreeSet<u32> = BTreeSet::new();
    let (mut start, mut raw) = (0, 0);
    for (at, case) in cases.iter().enumerate() {
        let fixed = json::text_len(case.id.as_str()) as u64 + 30 + placement_len(case);
        let added = |seen: &mut BTreeSet<u32>| {
            let new = case.entries.iter().filter(|entry| seen.insert(**entry));
            fixed + new.map(|entry| len_of(*entry) + 1).sum::<u64>()
        };
        let mut length = added(&mut seen);
        if at > start && raw + length > SHARD_MAX {
            runs.push(start..at);
            (start, raw) = (at, 0);
            seen.clear();
            length = added(&mut seen);
        }
        raw += length;
        let digest = Digest::of(case.id.as_str().as_bytes());
        if raw > SHARD_MIN && cuts(&digest, length, SHARD_MEAN) {
            runs.push(start..at + 1);
            (start, raw) = (at + 1, 0);
            seen.clear();
        }
    }
    if start < cases.len() {
        runs.push(start..cases.len());
    }
    runs
}

fn placement_len(case: &Line<'_>) -> u64 {
    let mut text = Vec::new();
    if let Some(placement) = case.placement {
        push_placement(&mut text, placement);
    }
    text.len() as u64
}

/// A listing that is too long for a shard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the listing of '{case}' is longer than a bundle allows (100,000 files, 8 MiB)")]
pub(super) struct TooLong {
    pub(super) case: CaseId,
}

/// The text of a shard with these cases. `push` appends an entry's text.
pub(super) fn text(
    cases: &[Line<'_>],
    push: &dyn Fn(&mut Vec<u8>, u32),
) -> Result<Vec<u8>, TooLong> {
    let mut users: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (at, case) in cases.iter().enumerate() {
        for entry in case.entries {
            let at = u32::try_from(at).unwrap_or(u32::MAX);
            users.entry(*entry).or_default().push(at);
        }
    }
    // Entries that the same cases use are one group; groups are numbered as cases meet them.
    let mut by_users: BTreeMap<&[u32], usize> = BTreeMap::new();
    let mut groups: Vec<Vec<u32>> = Vec::new();
    let mut group_of: BTreeMap<u32, usize> = BTreeMap::new();
    for case in cases {
        for entry in case.entries {
            let Some(users) = users.get(entry).filter(|users| users.len() > 1) else {
                continue;
            };
            if group_of.contains_key(entry) {
                continue;
            }
            let number = *by_users.entry(users).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            group_of.insert(*entry, number);
            if let Some(group) = groups.get_mut(number) {
                group.push(*entry);
            }
        }
    }
    let mut out = b"{\"groups\":[".to_vec();
    for (at, group) in groups.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_list(&mut out, group, push);
    }
    out.extend_from_slice(b"]}\n");
    if out.len() > limits::LINE_BYTES
        && let Some(case) = cases.first()
    {
        return Err(TooLong {
            case: case.id.clone(),
        });
    }
    for case in cases {
        let start = out.len();
        let mut own = Vec::new();
        let mut used = BTreeSet::new();
        for entry in case.entries {
            match group_of.get(entry) {
                Some(group) => {
                    used.insert(*group);
                }
                None => own.push(*entry),
            }
        }
        out.extend_from_slice(b"{\"entries\":");
        push_list(&mut out, &own, push);
        let used: Vec<String> = used.iter().map(ToString::to_string).collect();
        out.extend_from_slice(b",\"groups\":[");
        out.extend_from_slice(used.join(",").as_bytes());
        out.extend_from_slice(b"],\"id\":");
        push_text(&mut out, case.id.as_str());
        if let Some(placement) = case.placement {
            push_placement(&mut out, placement);
        }
        out.extend_from_slice(b"}\n");
        if out.len() - start > limits::LINE_BYTES || case.entries.len() > limits::FILES {
            return Err(TooLong {
                case: case.id.clone(),
            });
        }
    }
    Ok(out)
}

fn push_list(out: &mut Vec<u8>, entries: &[u32], push: &dyn Fn(&mut Vec<u8>, u32)) {
    out.push(b'[');
    for (at, entry) in entries.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push(out, *entry);
    }
    out.push(b']');
}

/// `,"package":{…}`
fn push_placement(out: &mut Vec<u8>, placement: &Placement) {
    out.extend_from_slice(b",\"package\":{");
    if let Some(mount) = &placement.evaluation {
        out.extend_from_slice(b"\"evaluation\":");
        push_mount(out, mount);
        out.push(b',');
    }
    out.extend_from_slice(format!("\"harbor\":\"{}\"", placement.harbor.hex()).as_bytes());
    if let Some(path) = &placement.listing {
        out.extend_from_slice(b",\"listing\":");
        push_text(out, path.as_str());
    }
    out.extend_from_slice(b",\"name\":");
    push_text(out, placement.name.as_str());
    out.extend_from_slice(b",\"task\":");
    push_text(out, &placement.task);
    if let Some(mount) = &placement.workspace {
        out.extend_from_slice(b",\"workspace\":");
        push_mount(out, mount);
    }
    out.push(b'}');
}

fn push_mount(out: &mut Vec<u8>, mount: &Mount) {
    out.extend_from_slice(b"{\"at\":");
    push_text(out, mount.at.as_str());
    if !mount.without.is_empty() {
        out.extend_from_slice(b",\"without\":[");
        for (at, path) in mount.without.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            push_text(out, path.as_str());
        }
        out.push(b']');
    }
    out.push(b'}');
}
