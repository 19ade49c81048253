//! Packs: contents in tar archives of separately compressed frames, and where each content lies.
//!
//! Owns which content goes into which pack and frame, the bytes of tars and frames, and the way
//! back. Refuses to know where bytes come from.
//! Invariant: what a pack and its frames hold is a function of the digests and sizes of its
//! contents, in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::ops::Range;

use flate2::GzBuilder;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use super::{Bad, Compression, catalog, cuts, limits};
use crate::digest::{Digest, Hasher};

/// Raw bytes past which contents may end a pack.
const PACK_MIN: u64 = 1 << 20;
/// Raw bytes of a pack on average.
const PACK_MEAN: u64 = 8 << 20;
/// Raw bytes at which a pack ends.
const PACK_MAX: u64 = 32 << 20;
/// Raw bytes past which a frame ends.
const FRAME_MIN: u64 = 768 << 10;
/// Contents from this size fill frames of this size.
pub(super) const LARGE: u64 = 1 << 20;
/// A tar block.
const BLOCK: u64 = 512;
/// The two zero blocks that end an archive.
const END: u64 = 2 * BLOCK;
/// What the entry with the index is called in the archive.
const INDEX_NAME: &str = "index.jsonl";
/// Sizes from this one on need a pax record.
const USTAR_MAX: u64 = 1 << 33;

/// A content, as packing sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) digest: Digest,
    pub(super) size: u64,
    /// Whether it is called by its whole digest, see [`Name`].
    pub(super) full: bool,
}

impl Piece {
    /// Bytes of what precedes its data in the archive.
    fn header_len(self) -> u64 {
        if self.size < USTAR_MAX {
            BLOCK
        } else {
            3 * BLOCK
        }
    }

    /// Bytes of its entry: header, data, padding.
    fn entry_len(self) -> u64 {
        self.header_len() + self.size.next_multiple_of(BLOCK)
    }

    fn name(self) -> Name {
        if self.full {
            Name::Full(self.digest)
        } else {
            Name::short(self.digest)
        }
    }

    /// What precedes its data.
    pub(super) fn header(self) -> Vec<u8> {
        let name = format!("sha256/{}", self.name());
        if self.size < USTAR_MAX {
            return ustar(&name, self.size, b'0').to_vec();
        }
        let digits = self.size.to_string();
        // "NN size=…\n": the length counts itself, and has two digits.
        let record = format!("{} size={digits}\n", digits.len() + 9);
        let mut header = ustar(&name, record.len() as u64, b'x').to_vec();
        header.extend(record.as_bytes());
        header.resize(1024, 0);
        // Readers of pax take the size from the record.
        header.extend(ustar(&name, 0, b'0'));
        header
    }
}

/// A ustar header: mode 0644, no owner, no time.
fn ustar(name: &str, size: u64, kind: u8) -> [u8; 512] {
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = block.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    if let Some(place) = block.get_mut(148..156) {
        place.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    block
}

/// The runs of `pieces` that make a pack each.
pub(super) fn packs(pieces: &[Piece]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let (mut start, mut raw) = (0, 0);
    for (at, piece) in pieces.iter().enumerate() {
        raw += piece.entry_len();
        let ends = raw > PACK_MIN && cuts(&piece.digest, piece.entry_len(), PACK_MEAN);
        if ends || raw >= PACK_MAX || at + 1 == pieces.len() {
            runs.push(start..at + 1);
            (start, raw) = (at + 1, 0);
        }
    }
    runs
}

/// What a frame holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holds {
    /// These contents of the pack, each whole.
    Whole(Range<usize>),
    /// These bytes of a content of the pack; its header before the first, padding after the last.
    Stretch(usize, Range<u64>),
}

/// The frames of a pack with these contents.
pub(super) fn frames(pieces: &[Piece]) -> Vec<Holds> {
    let mut frames: Vec<Holds> = Vec::new();
    let (mut start, mut raw) = (0, 0);
    for (at, piece) in pieces.iter().enumerate() {
        if piece.size < LARGE {
            raw += piece.entry_len();
            if raw > FRAME_MIN {
                frames.push(Holds::Whole(start..at + 1));
                (start, raw) = (at + 1, 0);
            }
            continue;
        }
        if start < at {
            frames.push(Holds::Whole(start..at));
        }
        let mut from = 0;
        while from < piece.size {
            let header = if from == 0 { piece.header_len() } else { 0 };
            let to = piece.size.min(from + LARGE - header);
            frames.push(Holds::Stretch(at, from..to));
            from = to;
        }
        (start, raw) = (at + 1, 0);
    }
    if start < pieces.len() {
        frames.push(Holds::Whole(start..pieces.len()));
    }
    frames
}

/// Adds the padding after `size` bytes of data.
pub(super) fn pad(raw: &mut Vec<u8>, size: u64) {
    let padding = size.next_multiple_of(BLOCK) - size;
    raw.resize(raw.len() + usize::try_from(padding).unwrap_or(0), 0);
}

/// Compresses frames; one for each thread.
pub(super) struct Squeezer {
    compression: Compression,
    normal: Option<Compressor<'static>>,
    fast: Option<Compressor<'static>>,
}

impl Squeezer {
    pub(super) fn new(compression: Compression) -> Self {
        Self {
            compression,
            normal: None,
            fast: None,
        }
    }

    /// `raw` as one frame; `fast`: for what does not shrink.
    pub(super) fn frame(&mut self, raw: &[u8], fast: bool) -> std::io::Result<Vec<u8>> {
        match self.compression {
            Compression::Zstd => {
                let (slot, level) = if fast {
                    (&mut self.fast, -1)
                } else {
                    (&mut self.normal, 3)
                };
                let compressor = match slot {
                    Some(compressor) => compressor,
                    None => slot.insert(zstd(level)?),
                };
                compressor.compress(raw)
            }
            Compression::Gzip => {
                let level = flate2::Compression::new(if fast { 0 } else { 3 });
                let mut member = GzBuilder::new()
                    .mtime(0)
                    .operating_system(255)
                    .write(Vec::new(), level);
                member.write_all(raw)?;
                member.finish()
            }
        }
    }
}

fn zstd(level: i32) -> std::io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(level)?;
    compressor.set_parameter(CParameter::ContentSizeFlag(true))?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    compressor.set_parameter(CParameter::DictIdFlag(false))?;
    Ok(compressor)
}

/// `bytes` as one zstd frame: catalog shards and pack indexes.
pub(super) fn deflate_whole(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    zstd(3)?.compress(bytes)
}

/// The content of zstd frames of at most `limit` inflated bytes.
pub(super) fn inflate_whole(bytes: &[u8], limit: u64, object: &str) -> Result<Vec<u8>, Bad> {
    let capacity = usize::try_from(limit).unwrap_or(usize::MAX);
    let size = zstd::zstd_safe::get_frame_content_size(bytes)
        .ok()
        .flatten();
    if size.is_some_and(|size| size > limit) {
        return Err(Bad::new(
            object,
            format!("inflates to more than {limit} bytes"),
        ));
    }
    let size = size.and_then(|size| usize::try_from(size).ok());
    Decompressor::new()
        .and_then(|mut it| it.decompress(bytes, size.unwrap_or(capacity)))
        .map_err(|error| Bad::new(object, format!("can't be inflated: {error}")))
}

/// The content of one frame or member of at most `limit` inflated bytes. The compression is seen
/// from the bytes.
pub(super) fn inflate(bytes: &[u8], limit: u64, object: &str) -> Result<Vec<u8>, Bad> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return inflate_whole(bytes, limit, object);
    }
    let mut raw = Vec::new();
    flate2::bufread::GzDecoder::new(bytes)
        .take(limit + 1)
        .read_to_end(&mut raw)
        .map_err(|error| Bad::new(object, format!("can't be inflated: {error}")))?;
    if raw.len() as u64 > limit {
        return Err(Bad::new(
            object,
            format!("inflates to more than {limit} bytes"),
        ));
    }
    Ok(raw)
}

/// The text of an index in its inflated frame: header, text, padding, end.
pub(super) fn index_text(raw: &[u8]) -> Option<&[u8]> {
    let block = usize::try_from(BLOCK).ok()?;
    let digits = raw.get(124..135)?;
    let size = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()?;
    if raw.get(..block)? != ustar(INDEX_NAME, size, b'0') {
        return None;
    }
    let end = BLOCK + size.next_multiple_of(BLOCK) + END;
    (raw.len() as u64 == end).then_some(())?;
    raw.get(block..block + usize::try_from(size).ok()?)
}

/// Where a frame lies in its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// Its inflated bytes.
    pub raw: u64,
    /// The digest of its bytes.
    pub digest: Digest,
}

impl Frame {
    /// Inflates the frame from its bytes, which are compared with its digest first.
    ///
    /// # Errors
    /// When they are others, or inflate to another size.
    pub fn inflate(&self, bytes: &[u8]) -> Result<Vec<u8>, Bad> {
        let object = || format!("the frame {}", self.digest);
        if bytes.len() as u64 != self.length || Digest::of(bytes) != self.digest {
            return Err(Bad::new(object(), "has other bytes than its digest says"));
        }
        let raw = inflate(bytes, self.raw, &object())?;
        if raw.len() as u64 != self.raw {
            return Err(Bad::new(object(), "inflates to another size than it says"));
        }
        Ok(raw)
    }
}

/// Where a content lies in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The frame that it starts in.
    pub frame: usize,
    /// The first byte of its data in the inflated frame.
    pub offset: u64,
    /// The bytes of its data; a large content goes on in the frames that follow.
    pub size: u64,
}

/// What a pack and its index call a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// The first 8 bytes of its digest, which no other content of the release has.
    Short([u8; 8]),
    /// Its digest, when another content of the release has the same 8 bytes.
    Full(Digest),
}

impl Name {
    fn short(digest: Digest) -> Self {
        let mut head = [0; 8];
        for (to, from) in head.iter_mut().zip(digest.as_bytes()) {
            *to = *from;
        }
        Self::Short(head)
    }

    fn parse(text: &str) -> Option<Self> {
        match text.len() {
            64 => Digest::from_hex(text).ok().map(Self::Full),
            16 => padded(text).map(Self::short),
            _ => None,
        }
    }

    /// A digest that a content of this name can have.
    pub fn example(self) -> Option<Digest> {
        match self {
            Self::Full(digest) => Some(digest),
            Self::Short(_) => padded(&self.to_string()),
        }
    }

    /// Both that a content can have.
    pub fn of(digest: Digest) -> [Self; 2] {
        [Self::Full(digest), Self::short(digest)]
    }
}

/// The digest that starts with these 16 digits and goes on with zeros.
fn padded(head: &str) -> Option<Digest> {
    Digest::from_hex(&format!("{head}{}", "0".repeat(48))).ok()
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Short(head) => head.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Self::Full(digest) => f.write_str(&digest.hex()),
        }
    }
}

/// Those of `digests`, which are all different, that no [`Name::Short`] tells from another one.
pub(super) fn alike(digests: impl Iterator<Item = Digest>) -> BTreeSet<Digest> {
    let mut digests: Vec<Digest> = digests.collect();
    digests.sort_unstable();
    let pairs = digests.windows(2).filter_map(|pair| match pair {
        [a, b] if Name::short(*a) == Name::short(*b) => Some([*a, *b]),
        _ => None,
    });
    pairs.flatten().collect()
}

/// Where everything in a pack lies. In a pack it is the last entry of the archive, in a frame of
/// its own, which goes on to the end.
#[derive(Debug, Clone, Default)]
pub struct PackIndex {
    /// What the list of its contents is known by: two packs with the same are the same.
    pub list: Option<Digest>,
    /// Its frames, in order, without gaps; not that of the index.
    pub frames: Vec<Frame>,
    /// Its contents, in order.
    pub contents: Vec<(Name, Place)>,
    /// Inflated bytes of its own frame.
    pub raw: u64,
    by_name: BTreeMap<Name, usize>,
}

/// What a list of contents is known by.
pub(super) fn list_key(pieces: &[Piece]) -> Digest {
    let mut hasher = Hasher::new();
    for Piece { digest, size, full } in pieces {
        hasher.update(digest.as_bytes());
        hasher.update(&size.to_le_bytes());
        hasher.update(&[u8::from(*full)]);
    }
    hasher.finish()
}

/// The last frame of a pack with these contents, not yet compressed: its index, and the end of the
/// archive.
pub(super) fn index_frame(pieces: &[Piece], plans: &[Holds], frames: &[Frame]) -> Vec<u8> {
    entry_of_index(&index_lines(pieces, plans, frames))
}

/// The text of an index as the last entry of an archive.
pub(super) fn entry_of_index(text: &[u8]) -> Vec<u8> {
    let mut raw = ustar(INDEX_NAME, text.len() as u64, b'0').to_vec();
    raw.extend_from_slice(text);
    pad(&mut raw, text.len() as u64);
    let end = raw.len() + usize::try_from(END).unwrap_or(0);
    raw.resize(end, 0);
    raw
}

/// The text of an index.
fn index_lines(pieces: &[Piece], plans: &[Holds], frames: &[Frame]) -> Vec<u8> {
    let mut out = format!("[\"{}\"]\n", list_key(pieces).hex()).into_bytes();
    for (frame, plan) in frames.iter().zip(plans) {
        let line = format!(
            "[{},{},\"{}\"]\n",
            frame.length,
            frame.raw,
            frame.digest.hex()
        );
        out.extend_from_slice(line.as_bytes());
        let starting = match plan {
            Holds::Whole(range) => range.clone(),
            Holds::Stretch(at, bytes) if bytes.start == 0 => *at..at + 1,
            Holds::Stretch(..) => continue,
        };
        for piece in pieces.get(starting).unwrap_or_default() {
            let line = format!("[\"{}\",{}]\n", piece.name(), piece.size);
            out.extend_from_slice(line.as_bytes());
        }
    }
    out
}

impl PackIndex {
    /// Reads the index with the digest `digest` of a pack, which has `data` bytes before it, from
    /// its frame, which the caller has compared with the digest.
    ///
    /// # Errors
    /// When frames don't follow each other to the index, or contents don't fill them.
    pub fn parse(digest: Digest, compressed: &[u8], data: u64) -> Result<Self, Bad> {
        let object = format!("the pack index {digest}");
        let bad = |why: &str| Bad::new(&object, why);
        let raw = inflate(compressed, limits::SHARD_BYTES, &object)?;
        let text = index_text(&raw).ok_or_else(|| bad("is no entry of an archive"))?;
        let mut index = Self {
            raw: raw.len() as u64,
            ..Self::default()
        };
        let mut end = 0_u64;
        // Of the frame: bytes that no entry has claimed; of the last entry: bytes that are in the
        // frames that follow.
        let (mut room, mut left) = (0_u64, 0_u64);
        for line in catalog::lines(text, &object)? {
            let unreadable = |error: serde_json::Error| bad(&format!("has a bad line: {error}"));
            if index.list.is_none() {
                let [hex]: [&str; 1] = serde_json::from_slice(line).map_err(unreadable)?;
                let list = Digest::from_hex(hex).map_err(|_| bad("has a bad digest"))?;
                index.list = Some(list);
            } else if line.starts_with(b"[\"") {
                let (name, size): (&str, u64) = serde_json::from_slice(line).map_err(unreadable)?;
                let name = Name::parse(name).ok_or_else(|| bad("has a bad digest"))?;
                let piece = Piece {
                    digest,
                    size,
                    full: false,
                };
                if left > 0 || size > i64::MAX as u64 || room < piece.header_len() {
                    return Err(bad("has a content outside its frames"));
                }
                let last = index.frames.last().map_or(0, |frame| frame.raw);
                let place = Place {
                    frame: index.frames.len().saturating_sub(1),
                    offset: last - room + piece.header_len(),
                    size,
                };
                let here = room.min(piece.entry_len());
                room -= here;
                left = piece.entry_len() - here;
                if index.by_name.insert(name, index.contents.len()).is_some() {
                    return Err(bad("has a content twice"));
                }
                index.contents.push((name, place));
            } else {
                let (length, raw, hex): (u64, u64, &str) =
                    serde_json::from_slice(line).map_err(unreadable)?;
                if room > 0 {
                    return Err(bad("has a frame that its contents don't fill"));
                }
                if length == 0 || raw > limits::FRAME_BYTES || length > 2 * limits::FRAME_BYTES {
                    return Err(bad("has an empty frame, or one of more than 2 MiB"));
                }
                index.frames.push(Frame {
                    offset: end,
                    length,
                    raw,
                    digest: Digest::from_hex(hex).map_err(|_| bad("has a bad digest"))?,
                });
                end += length;
                let here = raw.min(left);
                left -= here;
                room = raw - here;
            }
        }
        if room > 0 || left > 0 {
            return Err(bad("has frames that its contents don't fill"));
        }
        if end != data {
            return Err(bad("has frames that end elsewhere than where it begins"));
        }
        Ok(index)
    }

    /// Where the content is, when the pack has it.
    pub fn find(&self, digest: Digest) -> Option<Place> {
        let mut names = Name::of(digest).into_iter();
        let at = names.find_map(|name| self.by_name.get(&name))?;
        Some(self.contents.get(*at)?.1)
    }

    /// The frames that hold the content at `place`.
    pub fn frames_of(&self, place: Place) -> Range<usize> {
        let mut left = place.offset.saturating_add(place.size);
        let mut to = place.frame;
        while let Some(frame) = self.frames.get(to) {
            to += 1;
            if left <= frame.raw {
                break;
            }
            left -= frame.raw;
        }
        place.frame..to
    }

    /// Whether the archive's header before the data at `place` is that of the content: a file, and
    /// nothing else. `raw` is the inflated frame that the content starts in.
    pub fn is_file(digest: Digest, place: Place, raw: &[u8]) -> bool {
        let end = usize::try_from(place.offset).ok();
        [false, true].into_iter().any(|full| {
            let header = Piece {
                digest,
                size: place.size,
                full,
            }
            .header();
            end.and_then(|end| raw.get(end.checked_sub(header.len())?..end))
                .is_some_and(|found| found == header)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str, size: u64) -> Piece {
        Piece {
            digest: Digest::of(text.as_bytes()),
            size,
            full: false,
        }
    }

    #[test]
    fn large_contents_fill_frames_of_their_own() {
        let pieces = [
            piece("a", 10),
            piece("b", (2 << 20) + 5),
            piece("c", 0),
            piece("d", 800_000),
            piece("e", 1),
        ];
        assert_eq!(
            frames(&pieces),
            [
                Holds::Whole(0..1),
                Holds::Stretch(1, 0..(1 << 20) - 512),
                Holds::Stretch(1, (1 << 20) - 512..(2 << 20) - 512),
                Holds::Stretch(1, (2 << 20) - 512..(2 << 20) + 5),
                Holds::Whole(2..4),
                Holds::Whole(4..5),
            ]
        );
        assert!(frames(&[]).is_empty());
    }

    #[test]
    fn packs_find_their_cuts_again() {
        let pieces: Vec<Piece> = (0..4000).map(|at| piece(&at.to_string(), 40_000)).collect();
        let lists = |pieces: &[Piece]| -> Vec<Vec<Digest>> {
            let runs = packs(pieces);
            let digests = |run: &Range<usize>| {
                pieces[run.clone()]
                    .iter()
                    .map(|piece| piece.digest)
                    .collect()
            };
            runs.iter().map(digests).collect()
        };
        let before = lists(&pieces);
        assert!(before.len() > 8, "{}", before.len());
        let mut changed = pieces.clone();
        changed[2000] = piece("changed", 17);
        changed.remove(1000);
        changed.insert(3000, piece("new", 99));
        let after = lists(&changed);
        let new = after.iter().filter(|list| !before.contains(list)).count();
        assert!(new <= 6, "{new} of {}", after.len());
    }

    #[test]
    fn sizes_beyond_ustar_get_a_record() {
        let header = piece("x", 1 << 34).header();
        assert_eq!(header.len(), 1536);
        assert!(header[512..].starts_with(b"20 size=17179869184\n"));
        let mut archive = tar::Archive::new(&header[..]);
        let entry = archive.entries().unwrap().next().unwrap().unwrap();
        assert_eq!(entry.size(), 1 << 34);
    }
}
