//! Projects made in code: a test shows the files that it is about, and nothing else.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use casepack::digest::Digest;

use super::command::{Invocation, Outcome};

/// Describes a project.
#[must_use = "nothing is written before `.build()`"]
#[derive(Default)]
pub(crate) struct ProjectBuilder {
    entries: Vec<(PathBuf, Thing)>,
}

enum Thing {
    File(Vec<u8>, u32),
    Link(PathBuf),
    Directory,
}

/// Describes one case of a project.
pub(crate) struct CaseBuilder {
    dir: PathBuf,
    entries: Vec<(PathBuf, Thing)>,
}

/// A project on disk, in a directory that goes away with it.
pub(crate) struct Project {
    root: PathBuf,
    home: PathBuf,
    world: tempfile::TempDir,
}

impl ProjectBuilder {
    /// An empty project.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds `eval.yaml`.
    pub(crate) fn eval_yaml(self, text: &str) -> Self {
        self.file("eval.yaml", text)
    }

    /// Adds a file.
    pub(crate) fn file(mut self, path: impl Into<PathBuf>, content: impl AsRef<[u8]>) -> Self {
        self.entries
            .push((path.into(), Thing::File(content.as_ref().to_vec(), 0o644)));
        self
    }

    /// Adds a file that may be executed.
    pub(crate) fn executable(
        mut self,
        path: impl Into<PathBuf>,
        content: impl AsRef<[u8]>,
    ) -> Self {
        self.entries
            .push((path.into(), Thing::File(content.as_ref().to_vec(), 0o755)));
        self
    }

    /// Adds a symbolic link at `path` to `target`.
    pub(crate) fn symlink(mut self, path: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        self.entries.push((path.into(), Thing::Link(target.into())));
        self
    }

    /// Adds an empty directory.
    pub(crate) fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.entries.push((path.into(), Thing::Directory));
        self
    }

    /// Adds the case `cases/<id>`.
    pub(crate) fn case(
        mut self,
        id: &str,
        describe: impl FnOnce(CaseBuilder) -> CaseBuilder,
    ) -> Self {
        let case = describe(CaseBuilder {
            dir: Path::new("cases").join(id),
            entries: Vec::new(),
        });
        self.entries.extend(case.entries);
        self
    }

    /// Writes it to a directory of its own.
    pub(crate) fn build(self) -> Project {
        let mut world = tempfile::Builder::new()
            .prefix("casepack-test-")
            .tempdir()
            .expect("a temporary directory");
        if std::env::var_os("CASEPACK_TEST_KEEP").is_some() {
            world.disable_cleanup(true);
        }
        // Canonical, so that paths in messages are the ones that are replaced by names.
        let top = world.path().canonicalize().expect("it exists");
        let (root, home) = (top.join("project"), top.join("home"));
        fs::create_dir(&root).expect("a new directory");
        fs::create_dir(&home).expect("a new directory");
        let project = Project { root, home, world };
        for (path, thing) in self.entries {
            project.put(&path, &thing);
        }
        project
    }
}

impl CaseBuilder {
    /// Adds its `input.yaml`.
    pub(crate) fn input(self, text: &str) -> Self {
        self.file("input.yaml", text)
    }

    /// Adds its `annotations.yaml`.
    pub(crate) fn annotations(self, text: &str) -> Self {
        self.file("annotations.yaml", text)
    }

    /// Adds a file.
    pub(crate) fn file(mut self, path: &str, content: impl AsRef<[u8]>) -> Self {
        let thing = Thing::File(content.as_ref().to_vec(), 0o644);
        self.entries.push((self.dir.join(path), thing));
        self
    }

    /// Adds a file that may be executed.
    pub(crate) fn executable(mut self, path: &str, content: impl AsRef<[u8]>) -> Self {
        let thing = Thing::File(content.as_ref().to_vec(), 0o755);
        self.entries.push((self.dir.join(path), thing));
        self
    }

    /// Adds a symbolic link.
    pub(crate) fn symlink(mut self, path: &str, target: &str) -> Self {
        self.entries
            .push((self.dir.join(path), Thing::Link(target.into())));
        self
    }
}

impl Project {
    /// Its directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// `path` below its directory.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// The text of a file in it.
    #[track_caller]
    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Writes a file in it.
    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        self.put(
            Path::new(path),
            &Thing::File(content.as_ref().to_vec(), 0o644),
        );
    }

    /// Removes a file or a directory with all that is in it.
    pub(crate) fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).expect("it can be removed");
        } else {
            fs::remove_file(path).expect("it can be removed");
        }
    }

    /// Runs `casepack` in it.
    pub(crate) fn casepack<S: Into<std::ffi::OsString>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Outcome {
        self.invoke(args).run()
    }

    /// A command in it that is not run yet.
    pub(crate) fn invoke<S: Into<std::ffi::OsString>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Invocation {
        let names = [
            (&self.root, "[PROJECT]"),
            (&self.home, "[HOME]"),
            (&self.world.path().to_owned(), "[WORLD]"),
        ]
        .map(|(path, name)| (path.to_string_lossy().into_owned(), name));
        Invocation::new(&self.root, &self.home, names.to_vec()).args(args)
    }

    /// The files below `path`, sorted, one a line: mode, size, digest, name; links with their
    /// target. The golden text of an emitter.
    pub(crate) fn tree(&self, path: &str) -> String {
        let mut lines = Vec::new();
        let top = self.path(path);
        list(&top, &top, &mut lines);
        lines.sort();
        let mut text = String::new();
        for (name, line) in lines {
            writeln!(text, "{line} {name}").expect("writing to a string");
        }
        text
    }

    fn put(&self, path: &Path, thing: &Thing) {
        let path = self.root.join(path);
        let parent = path.parent().expect("it is below the project");
        fs::create_dir_all(parent).expect("its directory can be made");
        match thing {
            Thing::File(content, mode) => {
                fs::write(&path, content).expect("it can be written");
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).expect("it is ours");
            }
            Thing::Link(target) => symlink(target, &path).expect("it can be linked"),
            Thing::Directory => fs::create_dir_all(&path).expect("it can be made"),
        }
    }
}

fn list(top: &Path, dir: &Path, lines: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.expect("it can be listed").path();
        let kind = fs::symlink_metadata(&path).expect("it is there");
        let name = path
            .strip_prefix(top)
            .expect("it is below")
            .display()
            .to_string();
        if kind.is_dir() {
            list(top, &path, lines);
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).expect("it is a link");
            lines.push((name, format!("link {}", target.display())));
        } else {
            let content = fs::read(&path).expect("it can be read");
            let digest = Digest::of(&content).hex();
            let line = format!(
                "{:04o} {:>6} {}",
                kind.permissions().mode() & 0o7777,
                content.len(),
                digest.get(..8).expect("a digest has 64 digits"),
            );
            lines.push((name, line));
        }
    }
}

/// Makes a fifo.
pub(crate) fn fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(
        made.expect("there is mkfifo").success(),
        "{}",
        path.display()
    );
}
