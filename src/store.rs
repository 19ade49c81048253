//! Object stores behind one blocking face: a directory, an S3 bucket, memory.
//!
//! Owns [`Store`], [`StoreUrl`], what can go wrong and what to do about it ([`StoreError`]), and
//! running many operations at once with bounded memory ([`for_each`], [`in_order`]). Refuses to
//! know what the objects mean.
//! Invariant: a key is a [`TreePath`], so that nothing is read, written or deleted outside the
//! store; an object is either its old or its new self, whole, whatever is killed when.

mod at_once;
mod dir;
mod error;
mod memory;
mod s3;
mod url;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Deref, DerefMut};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use memmap2::MmapMut;

pub use self::at_once::{Slots, for_each, in_order};
pub use self::dir::Directory;
pub use self::error::{Action, Answer, Reason, StoreError};
pub use self::memory::Memory;
pub use self::s3::{Access, AccessKeys, S3, S3Settings, SecretError};
pub use self::url::{StoreUrl, StoreUrlError};
use crate::digest::{Digest, Hasher};
use crate::path::TreePath;

/// How many operations are worth having under way at once.
pub const AT_ONCE: usize = 16;

/// What a store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Reading: a directory must be there.
    Read,
    /// Writing: a directory is made when none is there. Buckets never are.
    Write,
}

/// The store at `url`; `settings` say how to reach it when it is in a bucket. Nothing is sent to
/// a server yet.
///
/// # Errors
/// When settings or directory can't be used.
pub fn open(
    url: &StoreUrl,
    settings: &S3Settings,
    purpose: Purpose,
) -> Result<Box<dyn Store>, StoreError> {
    Ok(match (url, purpose) {
        (StoreUrl::Directory(path), Purpose::Read) => Box::new(Directory::open(path)?),
        (StoreUrl::Directory(path), Purpose::Write) => Box::new(Directory::create(path)?),
        (StoreUrl::S3 { bucket, prefix }, _) => {
            Box::new(S3::open(bucket, prefix.as_ref(), settings)?)
        }
    })
}

/// Objects by key. Every call blocks until it is done, and may come from any thread but one of an
/// async runtime.
pub trait Store: Send + Sync + fmt::Debug {
    /// An object (or a prefix) as it is to be named to people, with all that is needed to find it.
    fn show(&self, key: &str) -> String;

    /// The whole object, if it has at most `limit` bytes.
    ///
    /// # Errors
    /// [`Reason::NotFound`], [`Reason::TooLarge`] and whatever keeps the store from answering.
    fn get(&self, key: &TreePath, limit: u64) -> Result<Object, StoreError>;

    /// Exactly `size` bytes from `start` on.
    ///
    /// # Errors
    /// [`Reason::NotFound`], [`Reason::Short`] when the object ends earlier, and whatever keeps
    /// the store from answering.
    fn get_range(&self, key: &TreePath, start: u64, size: usize) -> Result<Bytes, StoreError>;

    /// Makes or replaces an object. The bytes that arrive must have `digest`.
    ///
    /// # Errors
    /// [`Reason::Damaged`] when they don't, and whatever keeps the store from taking them.
    fn put(&self, key: &TreePath, body: Body<'_>, digest: &Digest) -> Result<Etag, StoreError>;

    /// Makes or replaces a small object if it is what the caller believes it to be. Two callers
    /// who believe the same can't both be [`Swap::Done`], unless they write the same bytes or the
    /// store ignores conditions: ask [`Store::probe_conditions`].
    ///
    /// # Errors
    /// [`Reason::NoConditions`] when the store refuses conditions, and whatever keeps it from
    /// taking the bytes.
    fn put_if(
        &self,
        key: &TreePath,
        bytes: &[u8],
        expected: Expected<'_>,
    ) -> Result<Swap, StoreError>;

    /// Gives every object whose key starts with `prefix`, a text and not necessarily a directory,
    /// to `each`, sorted by the bytes of the keys.
    ///
    /// # Errors
    /// Whatever keeps the store from answering; no objects are no error.
    fn list(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(Listed) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// Removes an object; none there is no error.
    ///
    /// # Errors
    /// Whatever keeps the store from doing so.
    fn delete(&self, key: &TreePath) -> Result<(), StoreError>;

    /// Whether the store honours conditions, asked by writing the object at `key`, which exists
    /// and holds `bytes`, as if it did not exist (bundle-format, "Publish" 3).
    ///
    /// # Errors
    /// Whatever keeps the store from answering.
    fn probe_conditions(&self, key: &TreePath, bytes: &[u8]) -> Result<Conditions, StoreError>;

    /// What was done so far.
    fn traffic(&self) -> Traffic;

    /// How many objects [`Store::list`] gives for one request; `None`: all there are.
    fn page(&self) -> Option<usize> {
        None
    }

    /// The S3 server that the objects are on, for others who are to find it.
    fn server(&self) -> Option<Server> {
        None
    }
}

/// An S3 server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// URL of its S3 API.
    pub endpoint: String,
    /// The region of the bucket, as far as it is known.
    pub region: String,
}

impl dyn Store + '_ {
    /// All usable entries below `prefix`, at most `limit`.
    ///
    /// # Errors
    /// Those of [`Store::list`], and [`Reason::TooMany`].
    pub fn entries(&self, prefix: &str, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        let mut more = false;
        self.list(prefix, &mut |listed| {
            if let Listed::Entry(entry) = listed {
                if entries.len() == limit {
                    more = true;
                    return ControlFlow::Break(());
                }
                entries.push(entry);
            }
            ControlFlow::Continue(())
        })?;
        if more {
            let reason = Reason::TooMany { limit };
            return Err(StoreError::new(Action::List, self.show(prefix), reason));
        }
        Ok(entries)
    }
}

/// What an object holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Names this state of it.
    pub etag: Etag,
}

/// Names one state of one object; opaque, and no digest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Etag(String);

impl Etag {
    /// The store's own text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The bytes of an object that is to be written.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// In memory.
    Bytes(&'a [u8]),
    /// On disk; read in pieces.
    File {
        /// The open file, whose own position is neither used nor moved.
        file: &'a File,
        /// Where the bytes start.
        offset: u64,
        /// How many there are.
        size: u64,
    },
}

impl Body<'_> {
    /// Its bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { size, .. } => *size,
        }
    }

    /// `size` of its bytes from `start` on, which it must have.
    fn slice(self, start: u64, size: u64) -> Self {
        match self {
            Self::Bytes(bytes) => {
                let at = |at: u64| usize::try_from(at).unwrap_or(bytes.len());
                let piece = bytes.get(at(start)..at(start.saturating_add(size)));
                Self::Bytes(piece.unwrap_or_default())
            }
            Self::File { file, offset, .. } => Self::File {
                file,
                offset: offset + start,
                size,
            },
        }
    }

    /// All its bytes.
    fn to_bytes(self) -> Result<Bytes, Reason> {
        let too_large = |_| Reason::Source(io::ErrorKind::OutOfMemory.into());
        let size = usize::try_from(self.size()).map_err(too_large)?;
        let mut room = Room::new(size).map_err(Reason::Source)?;
        match self {
            Self::Bytes(bytes) => room.copy_from_slice(bytes),
            Self::File { file, offset, .. } => {
                let read = file.read_exact_at(&mut room, offset);
                read.map_err(Reason::Source)?;
            }
        }
        Ok(room.freeze())
    }

    /// Gives all bytes to `each`, in order, in pieces of at most `most` bytes.
    fn pieces(
        &self,
        most: usize,
        mut each: impl FnMut(&[u8]) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        match *self {
            Self::Bytes(bytes) => bytes.chunks(most).try_for_each(each),
            Self::File { file, offset, size } => {
                let mut buffer = vec![0; most.min(usize::try_from(size).unwrap_or(most))];
                let mut done = 0;
                while done < size {
                    let left = usize::try_from(size - done).unwrap_or(most);
                    let take = most.min(left);
                    let piece = &mut buffer[..take];
                    file.read_exact_at(piece, offset + done)
                        .map_err(Reason::Source)?;
                    each(piece)?;
                    done += take as u64;
                }
                Ok(())
            }
        }
    }
}

/// Memory for bytes on their way. From 256 KiB on it has pages of its own, which go back to the
/// system at once: the allocator keeps for each thread what its large buffers had, which added up to
/// 282 MiB where 32 MiB were in hand.
enum Room {
    Heap(Vec<u8>),
    Pages(MmapMut),
}

impl Room {
    /// Room for `size` bytes, all 0.
    fn new(size: usize) -> io::Result<Self> {
        const LARGE: usize = 256 * 1024;
        Ok(if size < LARGE {
            Self::Heap(vec![0; size])
        } else {
            Self::Pages(MmapMut::map_anon(size)?)
        })
    }

    fn freeze(self) -> Bytes {
        match self {
            Self::Heap(bytes) => bytes.into(),
            Self::Pages(pages) => Bytes::from_owner(pages),
        }
    }
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages) => pages,
        }
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages) => pages,
        }
    }
}

/// What a caller believes of an object before writing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected<'a> {
    /// There is none.
    Absent,
    /// It is in this state.
    At(&'a Etag),
}

/// What became of a conditional write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap {
    /// The object holds the bytes, in this state.
    Done(Etag),
    /// It was not what was expected, and nothing was written.
    Lost {
        /// What it is; `None`: it is gone.
        now: Option<Object>,
    },
}

/// What a store makes of conditional writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conditions {
    /// It honours them.
    Honoured,
    /// It writes all the same, or refuses every conditional write: the last writer wins.
    Unsupported,
}

/// One thing in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// An object.
    Entry(Entry),
    /// What casepack did not write and can't ask for.
    Unusable {
        /// Its key below the store's root; raw.
        key: String,
        /// Why it is no key.
        why: String,
    },
    /// A directory with nothing in it, where the store has some.
    EmptyDir(TreePath),
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: TreePath,
    /// Its bytes.
    pub size: u64,
    /// Names this state of it, as [`Store::get`] does; some servers don't say it in listings.
    pub etag: Option<Etag>,
    /// When it was written, seconds since 1970, by the store's clock.
    pub modified: i64,
}

/// What a store was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests sent (for S3: HTTP requests, those that were tried again too).
    pub requests: u64,
    /// Of these, the ones that were sent because an earlier one failed.
    pub retries: u64,
    /// Objects written.
    pub objects_written: u64,
    /// Bytes of objects written.
    pub bytes_written: u64,
    /// Objects read, whole or in part.
    pub objects_read: u64,
    /// Bytes of objects read.
    pub bytes_read: u64,
}

/// Counts what a store is asked for.
#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    retries: AtomicU64,
    objects_written: AtomicU64,
    bytes_written: AtomicU64,
    objects_read: AtomicU64,
    bytes_read: AtomicU64,
}

impl Counters {
    fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    fn wrote(&self, bytes: u64) {
        self.objects_written.fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self, bytes: usize) {
        self.objects_read.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn traffic(&self) -> Traffic {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            requests: get(&self.requests),
            retries: get(&self.retries),
            objects_written: get(&self.objects_written),
            bytes_written: get(&self.bytes_written),
            objects_read: get(&self.objects_read),
            bytes_read: get(&self.bytes_read),
        }
    }
}

/// Hashes what passes by, and says whether it is what it should be.
fn verify(hasher: Hasher, wanted: &Digest) -> Result<(), Reason> {
    match hasher.finish() {
        found if found == *wanted => Ok(()),
        found => Err(Reason::Damaged {
            found,
            wanted: *wanted,
        }),
    }
}
