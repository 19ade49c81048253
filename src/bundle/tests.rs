//! Properties of releases: they come back as they went in, are the same bytes however they were
//! made, and nothing that is altered is taken for true.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::digest::TreeId;
use crate::fs::Root;
use crate::path::{CaseId, TreePath};
use crate::tree::{Content, Mode, Tree, TreeBuilder, id_of};

/// Views and package of one case, as paths and texts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Made {
    pub(crate) workspace: BTreeMap<String, Vec<u8>>,
    pub(crate) evaluation: BTreeMap<String, Vec<u8>>,
    /// Files of the package beside them.
    pub(crate) around: BTreeMap<String, Vec<u8>>,
}

pub(crate) fn tree(files: &BTreeMap<String, Vec<u8>>) -> Tree {
    let mut builder = TreeBuilder::new();
    for (path, bytes) in files {
        let mode = if bytes.starts_with(b"#!") {
            Mode::Executable
        } else {
            Mode::Regular
        };
        let content = Content::bytes(bytes.clone());
        builder
            .insert(TreePath::new(path).unwrap(), mode, content)
            .unwrap();
    }
    builder.finish()
}

impl Made {
    pub(crate) fn numbered(at: usize) -> Self {
        let mut made = Self::default();
        made.workspace.insert(
            "input.yaml".to_owned(),
            format!("case: {at}\n").into_bytes(),
        );
        for name in ["a.md", "b/c.sh"] {
            let text = format!("#!shared {name}\n").repeat(20);
            made.workspace
                .insert(format!("skill/{name}"), text.into_bytes());
        }
        let answer: &[u8] = if at.is_multiple_of(2) {
            b"dup: true\n"
        } else {
            b"dup: false\n"
        };
        made.evaluation
            .insert("annotations.yaml".to_owned(), answer.to_vec());
        made.evaluation
            .insert(".casepack/judges/j.md".to_owned(), b"judge\n".to_vec());
        made.around.insert(
            "task.toml".to_owned(),
            format!("name = {at}\n").into_bytes(),
        );
        made.around
            .insert("tests/judges/j.md".to_owned(), b"judge\n".to_vec());
        made
    }

    pub(crate) fn package(&self) -> Tree {
        let mut all = self.around.clone();
        for (path, bytes) in &self.workspace {
            all.insert(format!("environment/{path}"), bytes.clone());
        }
        for (path, bytes) in &self.evaluation {
            if !path.starts_with(".casepack") {
                all.insert(format!("tests/evaluation/{path}"), bytes.clone());
            }
        }
        tree(&all)
    }

    fn add(&self, packer: &Packer, id: &str) -> CaseDigests {
        let id = CaseId::new(id).unwrap();
        let package = self.package();
        let package = PackageTree {
            name: &id,
            task: "org/x",
            harbor: package.id().0,
            tree: &package,
            listing: None,
        };
        packer
            .add(
                &id,
                &tree(&self.workspace),
                &tree(&self.evaluation),
                &package,
            )
            .unwrap()
    }
}

pub(crate) fn packer(root: &Path, compression: Compression) -> Packer {
    fs::create_dir_all(root).unwrap();
    let temp = root.with_extension("temp");
    fs::create_dir_all(&temp).unwrap();
    Packer::new(root, &temp, RefName::new("latest").unwrap(), compression).unwrap()
}

pub(crate) fn finish(packer: Packer, jobs: usize) -> Packed {
    let about = About {
        name: "set".to_owned(),
        ..About::default()
    };
    packer
        .finish(
            &about,
            Digest::of(b"templates"),
            jobs,
            &AtomicBool::new(false),
        )
        .unwrap()
}

pub(crate) fn pack_all(root: &Path, cases: &BTreeMap<String, Made>, jobs: usize) -> Packed {
    let packer = packer(root, Compression::Zstd);
    for (id, made) in cases {
        made.add(&packer, id);
    }
    finish(packer, jobs)
}

/// Every file of a store root.
pub(crate) fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let root = Arc::new(Root::open(root).unwrap());
    let tree = Tree::from_dir(&root, None, u64::MAX).unwrap();
    let text = |path: &TreePath| {
        (
            path.as_str().to_owned(),
            root.read(path, u64::MAX).unwrap().0,
        )
    };
    tree.iter().map(|(path, _)| text(path)).collect()
}

fn blob(root: &Path, blob: Descriptor) -> Vec<u8> {
    let bytes = fs::read(root.join(blob_key(blob.digest))).unwrap();
    assert_eq!(Descriptor::of(&bytes), blob);
    bytes
}

fn index_of(at: u64) -> usize {
    usize::try_from(at).unwrap()
}

/// The release as a reader without casepack's writer sees it: for each view and case its files.
fn restore(root: &Path, release: &Release) -> BTreeMap<(View, String), BTreeMap<String, Vec<u8>>> {
    let document = &release.document;
    let mut contents = BTreeMap::new();
    for pack in &document.packs {
        let bytes = blob(root, pack.blob);
        let (frames, last) = bytes.split_at(index_of(pack.data()));
        let index = pack.parse_index(last).unwrap();
        let mut raw = Vec::new();
        let mut starts = Vec::new();
        for frame in &index.frames {
            let (from, to) = (
                index_of(frame.offset),
                index_of(frame.offset + frame.length),
            );
            starts.push(raw.len());
            raw.extend(frame.inflate(&frames[from..to]).unwrap());
        }
        raw.extend(pack::inflate(last, limits::SHARD_BYTES, "index").unwrap());
        assert_eq!(raw.len() as u64, pack.raw);
        // The whole is one tar archive of files that are called by their content.
        let mut archive = tar::Archive::new(&raw[..]);
        let mut names = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.header().entry_type(), tar::EntryType::Regular);
            names.push(entry.path().unwrap().to_str().unwrap().to_owned());
        }
        let own = index.contents.iter();
        let expected: Vec<String> = own
            .map(|(name, _)| format!("sha256/{name}"))
            .chain(["index.jsonl".to_owned()])
            .collect();
        assert_eq!(names, expected);
        for (name, place) in &index.contents {
            let start = starts[place.frame] + index_of(place.offset);
            let data = raw[start..start + index_of(place.size)].to_vec();
            let digest = Digest::of(&data);
            assert!(Name::of(digest).contains(name));
            assert!(PackIndex::is_file(
                digest,
                *place,
                &raw[starts[place.frame]..]
            ));
            assert_eq!(index.find(digest), Some(*place));
            contents.insert((pack.view, digest), data);
        }
    }
    let mut trees = BTreeMap::new();
    for shard in &document.shards {
        let read = Shard::parse(shard.blob.digest, &blob(root, shard.blob)).unwrap();
        assert_eq!(read.cases.len() as u64, shard.cases);
        for case in &read.cases {
            let mut files = BTreeMap::new();
            let listing = read.listing(case).unwrap();
            for listed in &listing {
                // A view finds its contents in its own packs, or in those of views before it.
                let data = View::ALL
                    .into_iter()
                    .filter(|view| *view <= shard.view)
                    .find_map(|view| contents.get(&(view, listed.digest)))
                    .unwrap();
                files.insert(listed.path.as_str().to_owned(), data.clone());
            }
            assert_eq!(tree(&files).id(), id_of(&listing), "modes come back, too");
            trees.insert((shard.view, case.id.as_str().to_owned()), files);
        }
    }
    trees
}

pub(crate) fn many(count: usize) -> BTreeMap<String, Made> {
    (0..count)
        .map(|at| (format!("case-{at:05}"), Made::numbered(at)))
        .collect()
}

#[test]
fn a_release_comes_back_as_it_went_in() {
    let temp = TempDir::new().unwrap();
    let mut cases = many(30);
    let big: Vec<u8> = (0..3_500_000_u32)
        .flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    let first = cases.get_mut("case-00003").unwrap();
    first.workspace.insert("big.bin".to_owned(), big);
    first.workspace.insert("empty".to_owned(), Vec::new());
    first.workspace.insert("zeros".to_owned(), vec![0; 1 << 20]);
    for compression in [Compression::Zstd, Compression::Gzip] {
        let root = temp.path().join(compression.name());
        let packer = packer(&root, compression);
        for (id, made) in &cases {
            made.add(&packer, id);
        }
        let packed = finish(packer, 2);
        let trees = restore(&root, &packed.release);
        for (id, made) in &cases {
            assert_eq!(trees[&(View::Workspace, id.clone())], made.workspace);
            assert_eq!(trees[&(View::Evaluation, id.clone())], made.evaluation);
            assert_eq!(trees[&(View::Task, id.clone())], made.around);
        }
        let reference = RefName::new("latest").unwrap();
        let bytes = fs::read(root.join(reference.key())).unwrap();
        let (digest, manifest) = release_of_ref(&reference, &bytes).unwrap();
        let read = Release::parse(digest, manifest, |config| Ok::<_, Bad>(blob(&root, config)));
        assert_eq!(read.unwrap().document, packed.release.document);
        // Answer keys that are easy to guess are not told by what every reader reads.
        let document = String::from_utf8(packed.release.document_bytes).unwrap();
        for text in ["dup: true\n", "dup: false\n"] {
            assert!(!document.contains(&Digest::of(text.as_bytes()).hex()));
        }
    }
}

#[test]
fn threads_order_and_history_leave_no_trace() {
    let temp = TempDir::new().unwrap();
    let cases = many(400);
    let once = temp.path().join("once");
    pack_all(&once, &cases, 1);
    let again = temp.path().join("again");
    let packer_of = || packer(&again, Compression::Zstd);
    // Another history: fewer cases, other contents, another order, more threads.
    let packer = packer_of();
    for (id, made) in cases.iter().rev().step_by(3) {
        let mut made = made.clone();
        made.workspace.insert("extra".to_owned(), b"extra".to_vec());
        made.add(&packer, id);
    }
    finish(packer, 2);
    let packer = packer_of();
    for (id, made) in cases.iter().rev() {
        made.add(&packer, id);
    }
    finish(packer, 7);
    assert!(files(&once) == files(&again));
}

#[test]
fn kept_cases_come_from_the_earlier_release() {
    let temp = TempDir::new().unwrap();
    let root = temp.path().join("store");
    let mut cases = many(200);
    let packer_of = || packer(&root, Compression::Zstd);
    let first = packer_of();
    let digests: BTreeMap<&String, CaseDigests> = cases
        .iter()
        .map(|(id, made)| (id, made.add(&first, id)))
        .collect();
    let digests: BTreeMap<String, CaseDigests> = digests
        .into_iter()
        .map(|(id, digests)| (id.clone(), digests))
        .collect();
    let before = finish(first, 2);
    let keep = |packer: &Packer, id: &String| {
        packer.keep(&CaseId::new(id).unwrap(), digests[id]);
    };

    // Nothing new: nothing is written.
    let packer = packer_of();
    for id in cases.keys() {
        keep(&packer, id);
    }
    let same = finish(packer, 2);
    assert_eq!(
        (same.blobs, same.release.digest),
        (0, before.release.digest)
    );

    // One case changed, one gone, the rest kept: as if all had been added.
    cases.remove("case-00077");
    cases
        .get_mut("case-00100")
        .unwrap()
        .workspace
        .insert("notes.md".to_owned(), b"new".to_vec());
    let packer = packer_of();
    for (id, made) in &cases {
        if id == "case-00100" {
            made.add(&packer, id);
        } else {
            keep(&packer, id);
        }
    }
    let kept = finish(packer, 2);
    let fresh = temp.path().join("fresh");
    let added = pack_all(&fresh, &cases, 2);
    assert_eq!(kept.release.digest, added.release.digest);
    assert!(
        files(&root) == files(&fresh),
        "blobs that nothing needs are gone"
    );

    // A case that is not what the caller knows is refused, and the ref stays.
    let packer = packer_of();
    let wrong = CaseDigests {
        workspace: TreeId(Digest::of(b"other")),
        ..digests["case-00001"]
    };
    packer.keep(&CaseId::new("case-00001").unwrap(), wrong);
    let refused = packer.finish(
        &About::default(),
        Digest::of(b""),
        1,
        &AtomicBool::new(false),
    );
    assert!(
        matches!(refused, Err(PackError::Previous(_))),
        "{refused:?}"
    );
    assert!(files(&root) == files(&fresh));
}

#[test]
fn a_change_stays_where_it_is() {
    let temp = TempDir::new().unwrap();
    let mut cases = many(2000);
    // Own contents that don't compress, so that there are many packs.
    for (at, made) in cases.values_mut().enumerate() {
        let noise: Vec<u8> = (0..400_u64)
            .flat_map(|word| {
                *Digest::of(&[at as u64, word].map(u64::to_le_bytes).concat()).as_bytes()
            })
            .collect();
        made.workspace.insert("noise.bin".to_owned(), noise);
    }
    let blobs = |root: &Path| -> Vec<String> {
        let all = files(root).into_keys();
        all.filter(|key| key.starts_with(BLOBS)).collect()
    };
    let root = temp.path().join("store");
    pack_all(&root, &cases, 2);
    let before = blobs(&root);
    assert!(before.len() > 12, "{}", before.len());
    let changed = cases.get_mut("case-01000").unwrap();
    changed
        .workspace
        .insert("noise.bin".to_owned(), b"quiet now".to_vec());
    pack_all(&root, &cases, 2);
    let after = blobs(&root);
    let new = after.iter().filter(|key| !before.contains(key)).count();
    // Workspace shard, pack and index; document and manifest. A pack may have lost its end.
    assert!(new <= 7, "{new} of {}", after.len());
    cases.remove("case-00500");
    pack_all(&root, &cases, 2);
    let last = blobs(&root);
    let new = last.iter().filter(|key| !after.contains(key)).count();
    assert!(new <= 3 * 3 + 2 + 6, "{new} of {}", last.len());
}

#[test]
fn a_source_that_changed_is_told() {
    let temp = TempDir::new().unwrap();
    let root = temp.path().join("store");
    let packer = packer(&root, Compression::Zstd);
    let source = temp.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), vec![7; 3 << 20]).unwrap();
    let handle = Arc::new(Root::open(&source).unwrap());
    let workspace = Tree::from_dir(&handle, None, 0).unwrap();
    let id = CaseId::new("a").unwrap();
    let package = PackageTree {
        name: &id,
        task: "o/a",
        harbor: Digest::of(b""),
        tree: &Tree::default(),
        listing: None,
    };
    packer
        .add(&id, &workspace, &Tree::default(), &package)
        .unwrap();
    fs::write(source.join("f"), vec![8; 3 << 20]).unwrap();
    let error = packer
        .finish(
            &About::default(),
            Digest::of(b""),
            2,
            &AtomicBool::new(false),
        )
        .unwrap_err();
    assert!(
        matches!(&error, PackError::Source { path, .. } if path.ends_with("f")),
        "{error:?}"
    );
    assert!(!root.join("refs/latest.json").exists());
}

#[test]
fn refs_have_one_form() {
    for good in ["v1", "a.b-c_d/1.0", &"x".repeat(128)] {
        let name = RefName::new(good).unwrap();
        assert_eq!(RefName::from_key(&name.key()), Some(name));
    }
    for bad in [
        "",
        "/",
        "a/",
        "/a",
        "a/b/c",
        "a..b",
        "-a",
        "a-",
        "a b",
        "é",
        "a.json",
        "a.JSON",
        "..",
        "a/..",
        &"x".repeat(129),
    ] {
        assert!(RefName::new(bad).is_err(), "{bad}");
    }
    assert_eq!(RefName::from_key("refs/x.json/y"), None);
}

/// Digests that begin alike are told apart, in indexes and in archives.
#[test]
fn contents_that_begin_alike_have_longer_names() {
    let digest = |at: u8, last: u8| {
        let mut hex = format!("{at:02x}").repeat(32);
        hex.replace_range(62.., &format!("{last:02x}"));
        Digest::from_hex(&hex).unwrap()
    };
    let digests = [digest(1, 1), digest(2, 1), digest(1, 2), digest(3, 1)];
    let alike = pack::alike(digests.into_iter());
    assert_eq!(
        alike.into_iter().collect::<Vec<_>>(),
        [digests[0], digests[2]]
    );
    let pieces: Vec<pack::Piece> = [(digests[0], true), (digests[2], true), (digests[3], false)]
        .map(|(digest, full)| pack::Piece {
            digest,
            size: 5,
            full,
        })
        .into();
    let plans = pack::frames(&pieces);
    let frame = Frame {
        offset: 0,
        length: 9,
        raw: 3 * 1024,
        digest: digests[1],
    };
    let raw = pack::index_frame(&pieces, &plans, &[frame]);
    let bytes = pack::deflate_whole(&raw).unwrap();
    let index = PackIndex::parse(Digest::of(&bytes), &bytes, 9).unwrap();
    let places = [0, 2, 3, 1].map(|at| index.find(digests[at]).map(|place| place.offset));
    assert_eq!(places, [Some(512), Some(1536), Some(2560), None]);
}

/// A small release and its objects: ref, manifest, document, shards, indexes.
fn sample() -> (TempDir, Release) {
    let temp = TempDir::new().unwrap();
    let root = temp.path().join("store");
    let packed = pack_all(&root, &many(3), 1);
    (temp, packed.release)
}

#[test]
fn frames_and_indexes_are_believed_only_as_far_as_they_go() {
    let (temp, release) = sample();
    let root = temp.path().join("store");
    let pack = &release.document.packs[0];
    let bytes = blob(&root, pack.blob);
    let (_, last) = bytes.split_at(index_of(pack.data()));
    let raw = pack::inflate(last, limits::SHARD_BYTES, "index").unwrap();
    let text = String::from_utf8(pack::index_text(&raw).unwrap().to_vec()).unwrap();
    let parse = |text: &str| {
        let bytes = pack::deflate_whole(&pack::entry_of_index(text.as_bytes())).unwrap();
        PackIndex::parse(Digest::of(&bytes), &bytes, pack.data())
    };
    assert!(parse(&text).is_ok());
    let lines: Vec<&str> = text.lines().collect();
    let [list, frame, content, ..] = lines[..] else {
        panic!("{text}")
    };
    let huge = "9223372036854775808";
    let size = content.rsplit_once(',').unwrap().1;
    let (length, rest) = frame[1..].split_once(',').unwrap();
    for (from, to) in [
        // In the list's digest, in a frame, in a content.
        ("[\"", "[\"x".to_owned()),
        (list, list.replace("\"]", "\",1]")),
        (list, String::new()),
        (frame, format!("[0,{rest}")),
        (frame, format!("[{huge},{rest}")),
        (
            frame,
            frame.replace(&format!("[{length},"), &format!("[{length},{huge}")),
        ),
        (
            frame,
            frame.replace(&format!("[{length},"), &format!("[{length},1")),
        ),
        (frame, format!("{frame}\n{frame}")),
        (content, content.replace(size, &format!("{huge}]"))),
        (content, content.replace(size, "99999]")),
        (content, content.replace("[\"", "[\"0")),
        (content, content.replace("[\"", "[\"../")),
        ("\n", "\n\n".to_owned()),
        ("\n", String::new()),
        ("\"]", "x\"]".to_owned()),
    ] {
        let altered = text.replacen(from, &to, 1);
        assert_ne!(altered, text, "{from}");
        assert!(parse(&altered).is_err(), "{from} -> {to}");
    }
    let twice = format!("{text}{}\n", text.lines().last().unwrap());
    assert!(parse(&twice).is_err());
    // The index of another pack, or at another place.
    assert!(PackIndex::parse(pack.index.digest, last, pack.data() + 1).is_err());
    assert!(pack.parse_index(&last[1..]).is_err());
    for at in [0, 100, 124, 156, 257, raw.len() - 1] {
        let mut altered = raw.clone();
        altered[at] ^= 1;
        assert_eq!(pack::index_text(&altered).is_some(), at == raw.len() - 1);
    }
    assert!(pack::index_text(&raw[..raw.len() - 1]).is_none());

    // A frame that inflates without end, or that is another one.
    let bomb = pack::deflate_whole(&vec![0; 32 << 20]).unwrap();
    assert!(pack::inflate_whole(&bomb, limits::SHARD_BYTES, "bomb").is_err());
    let frame = Frame {
        offset: 0,
        length: bomb.len() as u64,
        raw: 1000,
        digest: Digest::of(&bomb),
    };
    assert!(frame.inflate(&bomb).is_err());
    assert!(frame.inflate(&bomb[1..]).is_err());
    let mut gzip = pack::Squeezer::new(Compression::Gzip);
    let bomb = gzip.frame(&vec![0; 1 << 20], false).unwrap();
    let frame = Frame {
        length: bomb.len() as u64,
        digest: Digest::of(&bomb),
        ..frame
    };
    assert!(frame.inflate(&bomb).is_err());
}

#[test]
fn shards_are_believed_only_as_far_as_they_go() {
    let (temp, release) = sample();
    let root = temp.path().join("store");
    let shard = &release.document.shards[0];
    let bytes = blob(&root, shard.blob);
    let text = pack::inflate_whole(&bytes, limits::SHARD_BYTES, "shard").unwrap();
    let text = String::from_utf8(text).unwrap();
    let read = |text: &str| -> Result<usize, Bad> {
        let bytes = pack::deflate_whole(text.as_bytes()).unwrap();
        let shard = Shard::parse(Digest::of(&bytes), &bytes)?;
        let mut files = 0;
        for case in &shard.cases {
            files += shard.listing(case)?.len();
        }
        Ok(files)
    };
    assert_eq!(read(&text), Ok(9));
    for (from, to) in [
        ("skill/a.md", "../a.md"),
        ("skill/a.md", "/a.md"),
        ("skill/a.md", "skill/\\u0000"),
        ("skill/a.md", "input.yaml"),
        ("skill/a.md", "input.yaml/x"),
        ("\"-\"", "\"l\""),
        ("\"groups\":[0]", "\"groups\":[9223372036854775808]"),
        ("\"groups\":[0]", "\"groups\":[1]"),
        ("\"groups\":[0]", "\"groups\":[0,0]"),
        ("case-00001", "case-00000"),
        ("case-00001", "case/1"),
        ("\",280]", "\",-280]"),
        ("\n", ""),
    ] {
        let altered = text.replacen(from, to, 1);
        assert_ne!(altered, text, "{from}");
        assert!(read(&altered).is_err(), "{from} -> {to}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_byte_of_a_manifest_can_change(at in 0_usize..1_000_000, to in any::<u8>()) {
        let (_temp, release) = sample();
        let fetch = |_| Err(Bad::new("the document", "was asked for"));
        for inner in [false, true] {
            let mut bytes = release.manifest.clone();
            let at = at % bytes.len();
            if bytes[at] == to { continue; }
            bytes[at] = to;
            // Even when the digest is that of the altered bytes, all has to fit together, or to be
            // something that is not looked at.
            let digest = if inner { Digest::of(&bytes) } else { release.digest };
            match Release::parse(digest, bytes, fetch) {
                Ok(read) => prop_assert!(inner && read.document == release.document),
                Err(error) => prop_assert!(!error.object.is_empty()),
            }
        }
    }
}
