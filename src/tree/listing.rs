//! What a tree has, without the bytes: its digest, and a text that a package can carry.

use std::io::Write as _;

use super::{Entry, Mode};
use crate::digest::{Digest, Hasher, TreeId};
use crate::path::TreePath;

/// One file of a listing.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Its place.
    pub path: &'a TreePath,
    /// Its mode.
    pub mode: Mode,
    /// Its content.
    pub digest: Digest,
    /// The content's bytes.
    pub size: u64,
}

impl<'a> From<(&'a TreePath, &'a Entry)> for Row<'a> {
    fn from((path, entry): (&'a TreePath, &'a Entry)) -> Self {
        Self {
            path,
            mode: entry.mode,
            digest: entry.content.digest,
            size: entry.content.size,
        }
    }
}

/// The canonical digest of files in the order of their paths: for each `path NUL mode NUL hex LF`
/// (bundle-format, "Digests").
pub fn id_of<'a, R: Into<Row<'a>>>(rows: impl IntoIterator<Item = R>) -> TreeId {
    let mut hasher = Hasher::new();
    for row in rows {
        let row = row.into();
        hasher.update(row.path.as_str().as_bytes());
        hasher.update(b"\0");
        hasher.update(row.mode.letter().as_bytes());
        hasher.update(b"\0");
        hasher.update(&row.digest.hex_digits());
        hasher.update(b"\n");
    }
    TreeId(hasher.finish())
}

/// The bytes of a file that lists a tree: `{"files":[["path","mode","hex",size],…]}`. A package
/// has one of its workspace, so that what judges see can tell what an agent did; a bundle makes it
/// again instead of storing it.
pub fn listing_file<'a, R: Into<Row<'a>>>(rows: impl IntoIterator<Item = R>) -> Vec<u8> {
    let mut out = b"{\"files\":[".to_vec();
    for (at, row) in rows.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_row(&mut out, row.into());
    }
    out.extend_from_slice(b"]}\n");
    out
}

/// `["path","mode","hex",size]`
pub fn push_row(out: &mut Vec<u8>, row: Row<'_>) {
    out.push(b'[');
    push_text(out, row.path.as_str());
    out.extend_from_slice(b",\"");
    out.extend_from_slice(row.mode.letter().as_bytes());
    out.extend_from_slice(b"\",\"");
    out.extend_from_slice(&row.digest.hex_digits());
    out.extend_from_slice(b"\",");
    // Proof: writing a number to memory does not fail.
    write!(out, "{}]", row.size).unwrap_or_default();
}

/// Appends `text` as a JSON string.
pub fn push_text(out: &mut Vec<u8>, text: &str) {
    let plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        // As most are; the library looks at each byte by itself.
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Proof: writing text to memory does not fail.
        serde_json::to_writer(out, text).unwrap_or_default();
    }
}
