//! What became of a workspace: its files against those that it started with.
//!
//! Owns the text of `workspace.diff` and its limits. Refuses to know who changed what.
//! Invariant: the workspace is hostile; only regular files are read, through its handle, and time
//! and memory are bounded whatever lies there (policy 20).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use similar::TextDiff;

use super::env::Secrets;
use crate::diag::count;
use crate::escape;
use crate::fs::{Found, Kind, Root, Walk};
use crate::path::TreePath;
use crate::tree::{Content, Data, Tree};

/// Files of up to so many bytes are compared line by line, larger ones as a whole.
const TEXT_MAX: u64 = 128 << 10;
/// The text does not go on beyond so many bytes.
const DIFF_MAX: usize = 256 << 10;
/// So many bytes are read from one workspace, and so many files are looked at.
const READ_MAX: u64 = 64 << 20;
const FILES_MAX: usize = 20_000;
/// After this, a diff of two texts need not be the shortest one.
const LONG: Duration = Duration::from_millis(200);

/// How the files below `workspace` differ from `start`, as a unified diff without `secrets`.
pub(super) fn since(start: &Tree, workspace: &Root, secrets: &Secrets) -> String {
    let mut changes = Changes {
        workspace,
        secrets,
        text: String::new(),
        files: 0,
        room: READ_MAX,
        whole: true,
    };
    let mut seen = BTreeSet::new();
    let walked = workspace.walk(None, &mut |found| {
        if changes.text.len() > DIFF_MAX || changes.files > FILES_MAX {
            changes.whole = false;
            return Walk::Skip;
        }
        if let Found::Thing(thing) = found {
            let before = start.get(&thing.path).map(|entry| &entry.content);
            match (thing.kind, before) {
                (Kind::Dir, _) => {}
                (Kind::File, before) => {
                    changes.files += 1;
                    changes.file(&thing.path, before);
                    seen.insert(thing.path);
                }
                (kind, _) => {
                    changes.files += 1;
                    let what = if kind == Kind::Link {
                        "Link"
                    } else {
                        "Special file"
                    };
                    changes.tell(what, &thing.path, "added");
                }
            }
        }
        Walk::Enter
    });
    changes.whole &= walked.is_ok();
    if changes.whole {
        for (path, entry) in start.iter().filter(|(path, _)| !seen.contains(*path)) {
            if changes.text.len() > DIFF_MAX {
                changes.whole = false;
                break;
            }
            changes.gone(path, &entry.content);
        }
    }
    if !changes.whole {
        changes
            .text
            .push_str("There are more changes, which are not listed here.\n");
    }
    changes.text
}

struct Changes<'a> {
    workspace: &'a Root,
    secrets: &'a Secrets,
    text: String,
    files: usize,
    /// Bytes that may still be read.
    room: u64,
    /// Whether everything was looked at.
    whole: bool,
}

impl Changes<'_> {
    fn file(&mut self, path: &TreePath, before: Option<&Content>) {
        let Ok(Some((_, stamp))) = self.workspace.stat(path) else {
            return self.tell("File", path, "can not be read");
        };
        let changed = |text: &str| format!("{text} ({})", count(stamp.size, "byte", "bytes"));
        if stamp.size > self.room {
            return self.tell("File", path, &changed("not compared"));
        }
        if let Some(before) = before
            && (before.size > TEXT_MAX || stamp.size > TEXT_MAX)
        {
            if before.size != stamp.size {
                return self.tell("File", path, &changed("changed"));
            }
            self.room -= stamp.size;
            let digest = self.workspace.open_file(path).ok().and_then(|(file, _)| {
                let mut file = std::io::Read::take(file, stamp.size);
                crate::digest::hash_reader(&mut file).ok()
            });
            return match digest {
                Some((digest, _)) if digest == before.digest => {}
                Some(_) => self.tell("File", path, &changed("changed")),
                None => self.tell("File", path, "can not be read"),
            };
        }
        if stamp.size > TEXT_MAX {
            return self.tell("File", path, &changed("added"));
        }
        self.room -= stamp.size;
        let Ok((bytes, _)) = self.workspace.read(path, TEXT_MAX) else {
            return self.tell("File", path, "can not be read");
        };
        let old = match before.map(bytes_of) {
            None => None,
            Some(Some(old)) if old == bytes => return,
            Some(Some(old)) => Some(old),
            Some(None) => return self.tell("File", path, "not compared: its start is gone"),
        };
        let what = if old.is_some() { "changed" } else { "added" };
        match (text(old.as_deref().unwrap_or_default()), text(&bytes)) {
            (Some(a), Some(b)) => self.diff(path, old.is_some().then_some(a), Some(b)),
            _ => self.tell("Binary file", path, &changed(what)),
        }
    }

    fn gone(&mut self, path: &TreePath, before: &Content) {
        let old = (before.size <= TEXT_MAX)
            .then(|| bytes_of(before))
            .flatten();
        match old.as_deref().and_then(text) {
            Some(old) => self.diff(path, Some(old), None),
            None => self.tell(
                "File",
                path,
                &format!("removed ({})", count(before.size, "byte", "bytes")),
            ),
        }
    }

    fn diff(&mut self, path: &TreePath, old: Option<&str>, new: Option<&str>) {
        let name = |side: &str, text: Option<&str>| match text {
            Some(_) => format!("{side}/{}", escape::line(path.as_str())),
            None => "/dev/null".to_owned(),
        };
        let (from, to) = (name("a", old), name("b", new));
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        if old.is_empty() && new.is_empty() {
            let what = if from == "/dev/null" {
                "added"
            } else {
                "removed"
            };
            return self.tell("Empty file", path, what);
        }
        let diff = TextDiff::configure().timeout(LONG).diff_lines(old, new);
        let unified = diff.unified_diff().header(&from, &to).to_string();
        // Before the cut, which leaves nothing of one by which it is known.
        let unified = self.secrets.hide(unified);
        let end = unified.floor_char_boundary(DIFF_MAX.min(unified.len()));
        self.text.push_str(&unified[..end]);
        if end < unified.len() {
            let left = unified.len() - end;
            // Writing to a string does not fail.
            writeln!(
                self.text,
                "\n{} of this file's diff left out.",
                count(left, "more byte", "more bytes")
            )
            .ok();
        }
    }

    fn tell(&mut self, what: &str, path: &TreePath, how: &str) {
        let path = escape::line(path.as_str());
        // Writing to a string does not fail.
        writeln!(
            self.text,
            "{what} {}: {how}",
            self.secrets.hide(path.into_owned())
        )
        .ok();
    }
}

/// What a file of the start held; `None`: it is not there any more.
fn bytes_of(content: &Content) -> Option<Vec<u8>> {
    match &content.data {
        Data::Bytes(bytes) => Some(bytes.to_vec()),
        Data::File(at) => {
            let (bytes, _) = at.root.read(&at.path, TEXT_MAX).ok()?;
            Some(bytes)
        }
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0'))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn tells_every_kind_of_change() {
        let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let big = vec![b'x'; 200 << 10];
        for (name, old, new) in [
            ("same.txt", Some(&b"same\n"[..]), Some(&b"same\n"[..])),
            ("changed.txt", Some(b"a\nb\nc\n"), Some(b"a\nB\nc\n")),
            ("added.txt", None, Some(b"new")),
            ("gone.txt", Some(b"old\n"), None),
            ("bin", Some(b"a\0"), Some(b"b\0")),
            ("big", Some(&big), Some(&big)),
            ("grown", Some(b"x"), Some(&big)),
            ("empty", None, Some(b"")),
            ("odd\u{1b}[31m", None, Some(b"x\n")),
        ] {
            for (dir, bytes) in [(&before, old), (&after, new)] {
                if let Some(bytes) = bytes {
                    std::fs::write(dir.path().join(name), bytes).unwrap();
                }
            }
        }
        std::os::unix::fs::symlink("/etc/passwd", after.path().join("link")).unwrap();
        let root = Arc::new(Root::open(before.path()).unwrap());
        let start = Tree::from_dir(&root, None, 16).unwrap();
        let none = Secrets::default();
        let text = since(&start, &Root::open(after.path()).unwrap(), &none);
        insta::assert_snapshot!(text);
        assert_eq!(since(&start, &root, &none), "");
    }

    #[test]
    fn a_secret_is_hidden_also_where_the_cut_divides_it() {
        let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let part = "MIIE0123456789abcdefghijklmnopqrstuvwxyz";
        let key = format!("-----BEGIN KEY-----\n{part}\n");
        std::fs::write(after.path().join(part), "").unwrap();
        std::fs::write(after.path().join("key"), &key).unwrap();
        // Both sides of this one have more than a diff holds, which ends 30 bytes into a line.
        std::fs::write(before.path().join("long"), "x\n".repeat(60_000)).unwrap();
        let lines = format!("{part}\n").repeat(1964);
        std::fs::write(after.path().join("long"), lines).unwrap();
        let root = Arc::new(Root::open(before.path()).unwrap());
        let start = Tree::from_dir(&root, None, 16).unwrap();
        let secrets = Secrets::of(&[("MY_KEY".to_owned(), key)].into());
        let text = since(&start, &Root::open(after.path()).unwrap(), &secrets);
        assert!(!text.contains("MIIE") && !text.contains("BEGIN"));
        assert!(text.contains("Empty file [MY_KEY]: added\n") && text.contains("+[MY_KEY]\n"));
    }

    #[test]
    fn is_bounded() {
        let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for number in 0..40 {
            let text = format!("{number}\n").repeat(20_000);
            std::fs::write(after.path().join(number.to_string()), text).unwrap();
        }
        let root = Arc::new(Root::open(before.path()).unwrap());
        let start = Tree::from_dir(&root, None, 16).unwrap();
        let none = Secrets::default();
        let text = since(&start, &Root::open(after.path()).unwrap(), &none);
        assert!(text.len() < 2 * DIFF_MAX + 1000, "{}", text.len());
        assert!(text.ends_with("There are more changes, which are not listed here.\n"));
    }
}
