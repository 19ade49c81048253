//! Declared outputs, taken out of a workspace that an agent had in its hands.
//!
//! Owns what is taken and the limits. Refuses to know who declared it.
//! Invariant: only regular files below the workspace are read, through its handle; no link is
//! followed, nothing that is no file is opened, and what is left behind is told (policy 20). A link
//! that is taken leads to nothing but what is taken with it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use super::results::{OutputFile, OutputSkipped, Outputs};
use crate::fs::{Found, Kind, ReadError, Root, Walk};
use crate::path::TreePath;

/// How much is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of one file.
    pub(super) file: u64,
    /// Bytes of all files of a case.
    pub(super) total: u64,
    /// Files of a case.
    pub(super) files: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file: 64 << 20,
            total: 1 << 30,
            files: 10_000,
        }
    }
}

impl Limits {
    /// Of what an agent leaves to a verifier that is elsewhere, which Harbor does not bound at all.
    pub(super) const ARTIFACTS: Self = Self {
        file: 8 << 30,
        total: 8 << 30,
        files: 1_000_000,
    };
}

/// So many of what is left behind are named.
const NAMED_MAX: usize = 100;

/// Copies what is at `paths` in `workspace` into the new directory `into`, with its paths.
///
/// # Errors
/// When `into` can't be written. What can't be read is left behind and told.
pub(super) fn outputs(
    workspace: &Root,
    paths: &[TreePath],
    into: &Path,
    limits: Limits,
) -> io::Result<Outputs> {
    let all: Vec<Wanted<'_>> = paths
        .iter()
        .map(|path| Wanted {
            path: Some(path.clone()),
            leave: &|_| false,
        })
        .collect();
    take(workspace, &all, into, limits, false)
}

/// What is to be taken.
pub(super) struct Wanted<'a> {
    /// A file or directory; `None`: all of the workspace.
    pub(super) path: Option<TreePath>,
    /// What of the directory stays behind without a word, with all below it.
    pub(super) leave: &'a dyn Fn(&TreePath) -> bool,
}

/// As [`outputs`], for who is to go on with it: as Harbor does, with what is executable, with empty
/// directories, and with links, but those that lead out of what is wanted.
///
/// # Errors
/// As there.
pub(super) fn artifacts(
    workspace: &Root,
    wanted: &[Wanted<'_>],
    into: &Path,
) -> io::Result<Outputs> {
    take(workspace, wanted, into, Limits::ARTIFACTS, true)
}

/// Whether [`artifacts`] would take all of `dir` as it is.
pub(super) fn is_taken_whole(dir: &Root) -> bool {
    let mut whole = true;
    let walked = dir.walk(None, &mut |found| {
        if let Found::Thing(thing) = found {
            whole &= match thing.kind {
                Kind::Link => target(dir, &thing.path, None).is_some(),
                Kind::Special => false,
                Kind::File | Kind::Dir => true,
            };
        }
        if whole { Walk::Enter } else { Walk::Skip }
    });
    walked.is_ok() && whole
}

/// Where the link at `link` leads, if that is in `top` (`None`: in `root`). On its way it may pass no
/// other link, which could lead anywhere.
fn target(root: &Root, link: &TreePath, top: Option<&TreePath>) -> Option<OsString> {
    let parent = link.parent();
    let dir = root.open_dir(parent.as_ref()).ok()?;
    let target = rustix::fs::readlinkat(dir, link.name(), Vec::new()).ok()?;
    let text = target.to_str().ok()?;
    let mut at: Vec<&str> = Vec::new();
    at.extend(parent.iter().flat_map(TreePath::components));
    if text.is_empty() || text.starts_with('/') {
        return None;
    }
    let mut parts = text.split('/').filter(|part| !matches!(*part, "" | "."));
    let mut next = parts.next();
    while let Some(part) = next {
        next = parts.next();
        if part == ".." {
            at.pop()?;
            continue;
        }
        at.push(part);
        if next.is_some() {
            let path = TreePath::new(&at.join("/")).ok()?;
            if matches!(root.stat(&path), Ok(Some((Kind::Link, _))) | Err(_)) {
                return None;
            }
        }
    }
    let top: Vec<&str> = top.into_iter().flat_map(TreePath::components).collect();
    at.starts_with(&top).then(|| text.into())
}

fn take(
    workspace: &Root,
    wanted: &[Wanted<'_>],
    into: &Path,
    limits: Limits,
    whole: bool,
) -> io::Result<Outputs> {
    std::fs::create_dir(into)?;
    let mut taker = Taker {
        workspace,
        into,
        limits,
        whole,
        total: 0,
        seen: BTreeSet::new(),
        unnamed: 0,
        outputs: Outputs::default(),
    };
    for Wanted { path, leave } in wanted {
        match path {
            Some(path) => taker.take(path, leave)?,
            None => taker.dir(None, leave)?,
        }
    }
    let mut outputs = taker.outputs;
    outputs.files.sort_by(|a, b| a.path.cmp(&b.path));
    if taker.unnamed > 0 {
        outputs.skipped.push(OutputSkipped {
            path: String::new(),
            reason: format!("{} more are not named here", taker.unnamed),
        });
    }
    Ok(outputs)
}

/// The small text files at `path`, for templates of later steps.
pub(super) fn texts(workspace: &Root, path: &TreePath) -> Vec<(TreePath, String)> {
    const FILE_MAX: u64 = 64 << 10;
    const FILES_MAX: usize = 100;
    let mut texts = Vec::new();
    let mut take = |path: &TreePath| {
        if texts.len() < FILES_MAX
            && let Ok((bytes, _)) = workspace.read(path, FILE_MAX)
            && let Ok(text) = String::from_utf8(bytes)
        {
            texts.push((path.clone(), text));
        }
    };
    match workspace.stat(path) {
        Ok(Some((Kind::File, _))) => take(path),
        Ok(Some((Kind::Dir, _))) => {
            // What can't be read is left out.
            drop(workspace.walk(Some(path), &mut |found| {
                if let Found::Thing(thing) = found
                    && thing.kind == Kind::File
                {
                    take(&thing.path);
                }
                Walk::Enter
            }));
        }
        _ => {}
    }
    texts
}

struct Taker<'a> {
    workspace: &'a Root,
    into: &'a Path,
    limits: Limits,
    /// As artifacts are taken.
    whole: bool,
    total: u64,
    /// Files of declared outputs that overlap are taken once.
    seen: BTreeSet<TreePath>,
    unnamed: usize,
    outputs: Outputs,
}

impl Taker<'_> {
    fn take(&mut self, path: &TreePath, leave: &dyn Fn(&TreePath) -> bool) -> io::Result<()> {
        match self.workspace.stat(path) {
            Ok(Some((Kind::File, _))) => self.file(path),
            Ok(Some((Kind::Dir, _))) => self.dir(Some(path), leave),
            Ok(Some((kind, _))) => {
                self.skip(path.as_str(), kind_reason(kind));
                Ok(())
            }
            Ok(None) => {
                self.skip(path.as_str(), "it does not exist");
                Ok(())
            }
            Err(error) => {
                self.skip(path.as_str(), &unreadable(&error.source));
                Ok(())
            }
        }
    }

    fn dir(&mut self, dir: Option<&TreePath>, leave: &dyn Fn(&TreePath) -> bool) -> io::Result<()> {
        let mut written = match dir {
            Some(dir) if self.whole => std::fs::create_dir_all(self.into.join(dir.as_str())),
            _ => Ok(()),
        };
        let workspace = self.workspace;
        let walked = workspace.walk(dir, &mut |found| {
            if written.is_err() {
                return Walk::Skip;
            }
            match found {
                Found::Thing(thing) if leave(&thing.path) => return Walk::Skip,
                Found::Thing(thing) => match thing.kind {
                    // Not listed to its end when nothing more is taken from it.
                    Kind::Dir if self.full() => {
                        self.skip(thing.path.as_str(), "there are too many files");
                        return Walk::Skip;
                    }
                    Kind::Dir if self.whole => {
                        written = std::fs::create_dir_all(self.into.join(thing.path.as_str()));
                    }
                    Kind::Dir => {}
                    Kind::Link if self.whole => written = self.link(&thing.path, dir),
                    Kind::File => written = self.file(&thing.path),
                    kind => self.skip(thing.path.as_str(), kind_reason(kind)),
                },
                Found::Unusable { shown, why, .. } => {
                    let why = why.map_or_else(
                        || "its name is not UTF-8".to_owned(),
                        |why| format!("its path is not usable: {why}"),
                    );
                    self.skip(&shown, &why);
                }
                Found::EmptyDir(_) => {}
            }
            Walk::Enter
        });
        if let Err(error) = walked {
            let shown = error
                .path
                .strip_prefix(workspace.path())
                .unwrap_or(&error.path);
            self.skip(&shown.to_string_lossy(), &unreadable(&error.source));
        }
        written
    }

    fn full(&self) -> bool {
        self.outputs.files.len() >= self.limits.files
    }

    fn link(&mut self, path: &TreePath, top: Option<&TreePath>) -> io::Result<()> {
        if self.full() {
            self.skip(path.as_str(), "there are too many files");
            return Ok(());
        }
        let Some(target) = target(self.workspace, path, top) else {
            self.skip(path.as_str(), "it is a symbolic link that leads out of it");
            return Ok(());
        };
        if !self.seen.insert(path.clone()) {
            return Ok(());
        }
        self.outputs.files.push(OutputFile {
            path: path.to_string(),
            size: 0,
        });
        symlink(target, self.into.join(path.as_str()))
    }

    fn file(&mut self, path: &TreePath) -> io::Result<()> {
        if !self.seen.insert(path.clone()) {
            return Ok(());
        }
        if self.full() {
            self.skip(path.as_str(), "there are too many files");
            return Ok(());
        }
        let (file, stamp) = match self.workspace.open_file(path) {
            Ok(opened) => opened,
            Err(error) => {
                let reason = match error {
                    ReadError::Link => kind_reason(Kind::Link).to_owned(),
                    ReadError::NotAFile => kind_reason(Kind::Special).to_owned(),
                    ReadError::Io(error) => unreadable(&error),
                    error => error.to_string(),
                };
                self.skip(path.as_str(), &reason);
                return Ok(());
            }
        };
        let room = self.limits.total.saturating_sub(self.total);
        if stamp.size > self.limits.file || stamp.size > room {
            let (what, limit) = if stamp.size > self.limits.file {
                ("one file", self.limits.file)
            } else {
                ("a case", self.limits.total)
            };
            let reason = format!("it has {} bytes, and {what} may have {limit}", stamp.size);
            self.skip(path.as_str(), &reason);
            return Ok(());
        }
        let target = self.into.join(path.as_str());
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent)?;
        }
        // Nobody should be writing to it any more; if somebody is, the limit still holds.
        let mut copy = File::create_new(&target)?;
        let size = io::copy(&mut file.take(stamp.size), &mut copy)?;
        if self.whole && stamp.executable {
            copy.set_permissions(Permissions::from_mode(0o755))?;
        }
        self.total = self.total.saturating_add(size);
        self.outputs.files.push(OutputFile {
            path: path.to_string(),
            size,
        });
        Ok(())
    }

    fn skip(&mut self, path: &str, reason: &str) {
        if self.outputs.skipped.len() < NAMED_MAX {
            self.outputs.skipped.push(OutputSkipped {
                path: path.to_owned(),
                reason: reason.to_owned(),
            });
        } else {
            self.unnamed += 1;
        }
    }
}

fn kind_reason(kind: Kind) -> &'static str {
    match kind {
        Kind::Link => "it is a symbolic link, and none is followed",
        Kind::Special => "it is a fifo, socket or device",
        Kind::File | Kind::Dir => "it is not what it was",
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("it can not be read: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(build: impl Fn(&Path), paths: &[&str], limits: Limits) -> (Outputs, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let workspace = dir.path().join("workspace");
        std::fs::create_dir(&workspace).unwrap();
        build(&workspace);
        let into = dir.path().join("outputs");
        let paths: Vec<TreePath> = paths
            .iter()
            .map(|path| TreePath::new(path).unwrap())
            .collect();
        let root = Root::open(&workspace).unwrap();
        let outputs = outputs(&root, &paths, &into, limits).unwrap();
        let mut found = Vec::new();
        Root::open(&into)
            .unwrap()
            .walk(None, &mut |found_thing| {
                if let Found::Thing(thing) = found_thing
                    && thing.kind != Kind::Dir
                {
                    found.push(format!("{}", thing.path));
                }
                Walk::Enter
            })
            .unwrap();
        (outputs, found)
    }

    #[test]
    fn takes_files_and_nothing_else() {
        let build = |dir: &Path| {
            std::fs::create_dir_all(dir.join("out/sub")).unwrap();
            std::fs::write(dir.join("out/a.txt"), "a").unwrap();
            std::fs::write(dir.join("out/sub/b.txt"), "bb").unwrap();
            std::fs::write(dir.join("report.html"), "r").unwrap();
            std::fs::write(dir.join("else.txt"), "e").unwrap();
            for (target, link) in [
                ("/etc/passwd", "out/passwd"),
                ("/tests", "out/tests"),
                ("/", "out/everything"),
                ("..", "out/up"),
                ("a.txt", "out/own"),
                ("/etc", "linked"),
            ] {
                symlink(target, dir.join(link)).unwrap();
            }
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mkfifoat(rustix::fs::CWD, dir.join("out/fifo"), mode).unwrap();
            let sparse = File::create(dir.join("out/sparse")).unwrap();
            sparse.set_len(10 << 30).unwrap();
        };
        let (outputs, found) = take(
            build,
            &["out", "report.html", "linked", "gone", "out/a.txt"],
            Limits::default(),
        );
        assert_eq!(found, ["out/a.txt", "out/sub/b.txt", "report.html"]);
        let listed: Vec<_> = outputs
            .files
            .iter()
            .map(|file| file.path.as_str())
            .collect();
        assert_eq!(listed, found);
        let skipped: Vec<_> = outputs
            .skipped
            .iter()
            .map(|skipped| skipped.path.as_str())
            .collect();
        assert_eq!(
            skipped,
            [
                "out/everything",
                "out/fifo",
                "out/own",
                "out/passwd",
                "out/sparse",
                "out/tests",
                "out/up",
                "linked",
                "gone"
            ]
        );
        let sparse = outputs
            .skipped
            .iter()
            .find(|skipped| skipped.path == "out/sparse")
            .unwrap();
        assert!(
            sparse.reason.contains("10737418240 bytes"),
            "{}",
            sparse.reason
        );
    }

    #[test]
    fn artifacts_are_whole_and_lead_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = dir.path().join("workspace");
        std::fs::create_dir_all(workspace.join("d/empty")).unwrap();
        std::fs::create_dir(workspace.join("d/sub")).unwrap();
        std::fs::write(workspace.join("d/run"), "x").unwrap();
        std::fs::write(workspace.join("beside"), "x").unwrap();
        let mode = Permissions::from_mode(0o4711);
        std::fs::set_permissions(workspace.join("d/run"), mode).unwrap();
        let root = Root::open(&workspace).unwrap();
        let link = |target: &str, name: &str| symlink(target, workspace.join(name)).unwrap();
        for (target, name) in [
            ("run", "d/a"),
            ("../d/./run", "d/b"),
            ("../sub/../run", "d/sub/c"),
            ("gone", "d/e"),
            (".", "d/sub/f"),
        ] {
            link(target, name);
        }
        assert!(is_taken_whole(&root));
        link("../beside", "d/g");
        link(".", "out");
        assert!(is_taken_whole(&root));
        for (target, name) in [
            ("/etc/passwd", "d/h"),
            ("../../x", "d/i"),
            // By way of another link, which leads further up than it looks.
            ("f/../../beside", "d/sub/j"),
        ] {
            link(target, name);
            assert!(!is_taken_whole(&root), "{name}");
            std::fs::remove_file(workspace.join(name)).unwrap();
            link(target, &format!("{name}2"));
            std::fs::rename(workspace.join(format!("{name}2")), workspace.join(name)).unwrap();
        }
        let into = dir.path().join("into");
        let wanted = Wanted {
            path: Some(TreePath::new("d").unwrap()),
            leave: &|_| false,
        };
        let taken = artifacts(&root, &[wanted], &into).unwrap();
        let left: Vec<_> = taken.skipped.iter().map(|it| it.path.as_str()).collect();
        assert_eq!(left, ["d/g", "d/h", "d/i", "d/sub/j"]);
        assert!(into.join("d/empty").is_dir() && !into.join("beside").exists());
        let mode = into.join("d/run").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        for (target, name) in [("run", "d/a"), ("../d/./run", "d/b"), ("gone", "d/e")] {
            assert_eq!(
                std::fs::read_link(into.join(name)).unwrap(),
                Path::new(target)
            );
        }
        assert_eq!(std::fs::read(into.join("d/sub/c")).unwrap(), b"x");
    }

    #[test]
    fn keeps_the_limits() {
        let build = |dir: &Path| {
            std::fs::create_dir(dir.join("out")).unwrap();
            for name in ["a", "b", "c", "d"] {
                std::fs::write(dir.join("out").join(name), "12345").unwrap();
            }
        };
        let limits = |file, total, files| Limits { file, total, files };
        assert_eq!(take(build, &["out"], limits(4, 99, 99)).1.len(), 0);
        assert_eq!(
            take(build, &["out"], limits(5, 12, 99)).1,
            ["out/a", "out/b"]
        );
        let (outputs, found) = take(build, &["out"], limits(5, 99, 3));
        assert_eq!(found.len(), 3);
        assert_eq!(outputs.skipped.len(), 1);
    }
}
