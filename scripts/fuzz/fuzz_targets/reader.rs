//! What a store may say of a release, read by everything that reads it: no input makes a panic, or
//! more memory than the limits of the format allow.
//!
//! The first byte says what the rest is. Texts are compressed here, so that the fuzzer need not
//! find out about checksums.

#![no_main]

use casepack::bundle::{
    Bad, Descriptor, Frame, PackIndex, RefName, Release, Shard, release_of_ref,
};
use casepack::digest::Digest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    match kind {
        b'c' => catalog(&squeeze(bytes)),
        b'C' => catalog(bytes),
        b'i' => index(&squeeze(&entry(bytes)), bytes),
        b'I' => index(bytes, bytes),
        b'f' => frame(&squeeze(bytes), bytes),
        b'F' => frame(bytes, bytes),
        b'm' => manifest(bytes),
        b'r' => reference(bytes),
        _ => {}
    }
});

fn squeeze(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).expect("there is memory")
}

fn catalog(compressed: &[u8]) {
    let Ok(shard) = Shard::parse(Digest::of(compressed), compressed) else {
        return;
    };
    for case in &shard.cases {
        let (files, _) = shard.size(case);
        if let Ok(listing) = shard.listing(case) {
            assert_eq!(listing.len() as u64, files);
            assert!(listing.is_sorted_by(|a, b| a.path < b.path));
        }
        assert!(shard.case(&case.id).is_some());
    }
}

/// The archive's last entry, with the text of an index.
fn entry(text: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"index.jsonl");
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", text.len()).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut raw = header.to_vec();
    raw.extend(text);
    raw.resize(raw.len().next_multiple_of(512) + 1024, 0);
    raw
}

/// Where its frames end is taken from it: only what begins so gets past that check.
fn index(compressed: &[u8], text: &[u8]) {
    let digest = Digest::of(compressed);
    let lengths = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = line.strip_prefix(b"[")?;
        let digits = line.split(|byte| *byte == b',').next()?;
        std::str::from_utf8(digits).ok()?.parse::<u64>().ok()
    });
    let data = lengths.fold(0, u64::saturating_add);
    let Ok(index) = PackIndex::parse(digest, compressed, data) else {
        return;
    };
    for (_, place) in &index.contents {
        let frames = index.frames_of(*place);
        assert!(frames.start < frames.end && frames.end <= index.frames.len());
        let raw: u64 = index.frames[frames].iter().map(|frame| frame.raw).sum();
        assert!(place.offset + place.size <= raw);
        PackIndex::is_file(digest, *place, text);
    }
    assert!(index.find(digest).is_none() || !index.contents.is_empty());
}

fn frame(compressed: &[u8], raw: &[u8]) {
    let frame = Frame {
        offset: 0,
        length: compressed.len() as u64,
        raw: raw.len() as u64,
        digest: Digest::of(compressed),
    };
    if let Ok(inflated) = frame.inflate(compressed) {
        assert_eq!(inflated.len(), raw.len());
    }
}

fn manifest(bytes: &[u8]) {
    let none = |config: Descriptor| Err(Bad::new(config.digest.to_string(), "is not there"));
    if let Ok(release) = Release::parse(Digest::of(bytes), bytes.to_vec(), none) {
        assert!(!release.blobs().is_empty());
    }
}

fn reference(bytes: &[u8]) {
    let name = RefName::new("fuzz").expect("it is one");
    if let Ok((digest, manifest)) = release_of_ref(&name, bytes) {
        let none = |_| Err(Bad::new("the document", "is not there"));
        drop(Release::parse(digest, manifest, none));
    }
}
