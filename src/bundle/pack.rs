//! Packs: contents in tar archives of separately compressed frames, and where each content lies.
//!
//! Owns which content goes into which pack and frame, the bytes of tars and frames, and the way
//! back. Refuses to know where bytes come from.
//! Invariant: what a pack and its frames hold is a function of the digests and sizes of its
//! contents, in their order.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::ops::Range;

use flate2::GzBuilder;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use super::{Bad, Compression, catalog, cuts, limits};
use crate::digest::Digest;

/// Raw bytes past which contents may end a pack.
const PACK_MIN: u64 = 1 << 20;
/// Raw bytes of a pack on average.
const PACK_MEAN: u64 = 8 << 20;
/// Raw bytes at which a pack ends.
const PACK_MAX: u64 = 32 << 20;
/// Raw bytes past which a frame ends.
const FRAME_MIN: u64 = 256 << 10;
/// Contents from this size fill frames of this size.
pub(super) const LARGE: u64 = 1 << 20;
/// A tar block.
const BLOCK: u64 = 512;
/// The two zero blocks that end an archive.
const END: u64 = 2 * BLOCK;
/// Sizes from this one on need a pax record.
const USTAR_MAX: u64 = 1 << 33;

/// A content, as packing sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) digest: Digest,
    pub(super) size: u64,
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

    /// What precedes its data.
    pub(super) fn header(self) -> Vec<u8> {
        let name = format!("sha256/{}", self.digest.hex());
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
pub(super) struct FramePlan {
    /// Small contents whole, or a stretch of one large content.
    pub(super) holds: Holds,
    /// Whether the archive ends here.
    pub(super) last: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holds {
    /// These contents of the pack, each whole.
    Whole(Range<usize>),
    /// These bytes of a content of the pack; its header before the first, padding after the last.
    Stretch(usize, Range<u64>),
}

/// The frames of a pack with these contents.
pub(super) fn frames(pieces: &[Piece]) -> Vec<FramePlan> {
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
    let count = frames.len();
    let plan = |(at, holds)| FramePlan {
        holds,
        last: at + 1 == count,
    };
    frames.into_iter().enumerate().map(plan).collect()
}

/// Adds the padding after `size` bytes of data.
pub(super) fn pad(raw: &mut Vec<u8>, size: u64) {
    let padding = size.next_multiple_of(BLOCK) - size;
    raw.resize(raw.len() + usize::try_from(padding).unwrap_or(0), 0);
}

/// Adds the end of the archive.
pub(super) fn end(raw: &mut Vec<u8>) {
    raw.resize(raw.len() + usize::try_from(END).unwrap_or(0), 0);
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
    /// Inflates the frame from its bytes, which are compared with its digest first. The
    /// compression is seen from the bytes.
    ///
    /// # Errors
    /// When they are others, or inflate to another size.
    pub fn inflate(&self, bytes: &[u8]) -> Result<Vec<u8>, Bad> {
        let object = || format!("the frame {}", self.digest);
        if bytes.len() as u64 != self.length || Digest::of(bytes) != self.digest {
            return Err(Bad::new(object(), "has other bytes than its digest says"));
        }
        let raw = if bytes.starts_with(&[0x1f, 0x8b]) {
            let mut raw = Vec::new();
            let mut member = flate2::bufread::GzDecoder::new(bytes);
            (&mut member)
                .take(self.raw + 1)
                .read_to_end(&mut raw)
                .map_err(|error| Bad::new(object(), format!("can't be inflated: {error}")))?;
            raw
        } else {
            inflate_whole(bytes, self.raw, &object())?
        };
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

/// Where everything in a pack lies.
#[derive(Debug, Clone, Default)]
pub struct PackIndex {
    /// Its frames, in order, without gaps.
    pub frames: Vec<Frame>,
    /// Its contents, in order.
    pub contents: Vec<(Digest, Place)>,
    by_digest: BTreeMap<Digest, usize>,
}

impl PackIndex {
    /// The index of a pack with these contents and frames.
    pub(super) fn new(pieces: &[Piece], plans: &[FramePlan], frames: Vec<Frame>) -> Self {
        let mut contents = Vec::with_capacity(pieces.len());
        for (frame, plan) in plans.iter().enumerate() {
            let (range, stretch) = match &plan.holds {
                Holds::Whole(range) => (range.clone(), false),
                Holds::Stretch(at, bytes) if bytes.start == 0 => (*at..at + 1, true),
                Holds::Stretch(..) => continue,
            };
            let mut offset = 0;
            for piece in pieces.get(range).unwrap_or_default() {
                let place = Place {
                    frame,
                    offset: offset + piece.header_len(),
                    size: piece.size,
                };
                contents.push((piece.digest, place));
                offset += if stretch { 0 } else { piece.entry_len() };
            }
        }
        Self {
            frames,
            contents,
            by_digest: BTreeMap::new(),
        }
    }

    /// Its bytes before compression.
    pub(super) fn to_lines(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for frame in &self.frames {
            let Frame {
                offset,
                length,
                raw,
                digest,
            } = frame;
            let line = format!("[{offset},{length},{raw},\"{}\"]\n", digest.hex());
            out.extend_from_slice(line.as_bytes());
        }
        for (digest, place) in &self.contents {
            let Place {
                frame,
                offset,
                size,
            } = place;
            let line = format!("[\"{}\",{frame},{offset},{size}]\n", digest.hex());
            out.extend_from_slice(line.as_bytes());
        }
        out
    }

    /// Reads the index with the digest `digest` of a pack of `pack_size` bytes from its compressed
    /// bytes, which the caller has compared with the digest.
    ///
    /// # Errors
    /// When frames don't follow each other to the end of the pack, or contents lie outside.
    pub fn parse(digest: Digest, compressed: &[u8], pack_size: u64) -> Result<Self, Bad> {
        let object = format!("the pack index {digest}");
        let bad = |why: &str| Bad::new(&object, why);
        let bytes = inflate_whole(compressed, limits::SHARD_BYTES, &object)?;
        let mut index = Self::default();
        let mut end = 0_u64;
        for line in catalog::lines(&bytes, &object)? {
            let unreadable = |error: serde_json::Error| bad(&format!("has a bad line: {error}"));
            let hex = |hex: &str| Digest::from_hex(hex).map_err(|_| bad("has a bad digest"));
            if line.starts_with(b"[\"") {
                let (name, frame, offset, size): (&str, usize, u64, u64) =
                    serde_json::from_slice(line).map_err(unreadable)?;
                let place = Place {
                    frame,
                    offset,
                    size,
                };
                let name = hex(name)?;
                if index.by_digest.insert(name, index.contents.len()).is_some() {
                    return Err(bad("has a content twice"));
                }
                index.contents.push((name, place));
            } else {
                if !index.contents.is_empty() {
                    return Err(bad("has a frame after a content"));
                }
                let (offset, length, raw, name): (u64, u64, u64, &str) =
                    serde_json::from_slice(line).map_err(unreadable)?;
                if offset != end || length == 0 {
                    return Err(bad("has frames that don't follow each other"));
                }
                if raw > limits::FRAME_BYTES || length > 2 * limits::FRAME_BYTES {
                    return Err(bad("has a frame of more than 2 MiB"));
                }
                end = offset
                    .checked_add(length)
                    .ok_or_else(|| bad("has a frame without end"))?;
                index.frames.push(Frame {
                    offset,
                    length,
                    raw,
                    digest: hex(name)?,
                });
            }
        }
        if end != pack_size {
            return Err(bad("has frames that end elsewhere than the pack"));
        }
        let mut after = Vec::with_capacity(index.frames.len());
        let mut raw = 0_u64;
        for frame in index.frames.iter().rev() {
            raw += frame.raw;
            after.push(raw);
        }
        after.reverse();
        for (_, place) in &index.contents {
            let room = after.get(place.frame).copied().unwrap_or(0);
            let inside = place
                .offset
                .checked_add(place.size)
                .is_some_and(|end| end <= room);
            let starts = index
                .frames
                .get(place.frame)
                .is_some_and(|frame| place.offset <= frame.raw && place.offset >= BLOCK);
            if !inside || !starts {
                return Err(bad("has a content outside its frames"));
            }
        }
        Ok(index)
    }

    /// Where the content is, when the pack has it. Only for an index that was parsed.
    pub fn find(&self, digest: Digest) -> Option<Place> {
        let at = *self.by_digest.get(&digest)?;
        Some(self.contents.get(at)?.1)
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
        let header = Piece {
            digest,
            size: place.size,
        }
        .header();
        usize::try_from(place.offset)
            .ok()
            .and_then(|end| raw.get(end.checked_sub(header.len())?..end))
            .is_some_and(|found| found == header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str, size: u64) -> Piece {
        Piece {
            digest: Digest::of(text.as_bytes()),
            size,
        }
    }

    #[test]
    fn large_contents_fill_frames_of_their_own() {
        let pieces = [
            piece("a", 10),
            piece("b", (2 << 20) + 5),
            piece("c", 0),
            piece("d", 300_000),
            piece("e", 1),
        ];
        let holds: Vec<Holds> = frames(&pieces).into_iter().map(|plan| plan.holds).collect();
        assert_eq!(
            holds,
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
