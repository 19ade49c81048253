//! `exclude` of artifacts: what of a directory is left behind.
//!
//! Owns the meaning of the patterns: that of `tar --exclude`, which Harbor calls (GNU tar, "Problems
//! with Using the exclude Options"). Refuses to know who asks.

use globset::{GlobBuilder, GlobMatcher};

/// Patterns of one artifact.
#[derive(Debug, Clone, Default)]
pub(super) struct Exclude(Vec<GlobMatcher>);

impl Exclude {
    /// A pattern that is none, as with an open bracket, stands for itself.
    pub(super) fn new<'p>(patterns: impl IntoIterator<Item = &'p str>) -> Self {
        let glob = |pattern: &str| GlobBuilder::new(pattern).literal_separator(false).build();
        let matchers = patterns.into_iter().filter_map(|pattern| {
            glob(&shell(pattern))
                .or_else(|_| glob(&globset::escape(pattern)))
                .ok()
        });
        Self(matchers.map(|glob| glob.compile_matcher()).collect())
    }

    /// Whether nothing is left behind.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether what is at `path` below the directory is left behind, with all below it; of what is
    /// below something that is left behind nobody asks. The empty path is the directory itself.
    pub(super) fn has(&self, path: &str) -> bool {
        // As tar calls its members.
        let member = if path.is_empty() {
            ".".to_owned()
        } else {
            format!("./{path}")
        };
        let ends = member.match_indices('/').map(|(at, _)| at + 1);
        let ends = std::iter::once(0).chain(ends);
        let ends: Vec<&str> = ends.filter_map(|at| member.get(at..)).collect();
        self.0
            .iter()
            .any(|glob| ends.iter().any(|end| glob.is_match(end)))
    }
}

/// A pattern of `fnmatch` in the words of `globset`: no braces, and several stars are one.
fn shell(pattern: &str) -> String {
    let mut glob = String::new();
    let mut chars = pattern.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '*' if chars.peek() == Some(&'*') => {}
            '{' | '}' => glob.extend(['\\', char]),
            '\\' => {
                glob.push(char);
                glob.extend(chars.next());
            }
            char => glob.push(char),
        }
    }
    glob
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const FILES: [&str; 9] = [
        "a.log",
        "build/a.o",
        "build/sub/b.o",
        "src/build",
        "src/deep/er/x.txt",
        "src/{a}",
        "src/a[b",
        "node_modules/x/index.js",
        ".hidden",
    ];

    /// The table is what tar does, where there is one; without it, what it did.
    #[test]
    fn leaves_behind_what_tar_does() {
        let dir = tempfile::tempdir().unwrap();
        for file in FILES {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let gnu = Command::new("tar").arg("--version").output();
        let gnu = gnu.is_ok_and(|told| String::from_utf8_lossy(&told.stdout).contains("GNU"));
        for (pattern, left) in [
            ("*.log", &["a.log"][..]),
            ("build", &["build/a.o", "build/sub/b.o", "src/build"]),
            ("./build", &["build/a.o", "build/sub/b.o"]),
            ("build/", &[]),
            ("build/sub", &["build/sub/b.o"]),
            ("sub/b.o", &["build/sub/b.o"]),
            ("src/*.txt", &["src/deep/er/x.txt"]),
            ("src/**/x.txt", &["src/deep/er/x.txt"]),
            ("{a}", &["src/{a}"]),
            ("a[b", &["src/a[b"]),
            ("[!.]*[!s]", &FILES[..8]),
            ("?.o", &["build/a.o", "build/sub/b.o"]),
            (".*", &FILES),
            ("*", &FILES),
            ("/build", &[]),
            ("\\{a\\}", &["src/{a}"]),
            ("NODE_MODULES", &[]),
        ] {
            let exclude = Exclude::new([pattern]);
            let is_left = |file: &str| {
                let ends = file.match_indices('/').map(|(at, _)| at);
                let ends = std::iter::once(0).chain(ends).chain([file.len()]);
                ends.filter_map(|end| file.get(..end))
                    .any(|part| exclude.has(part))
            };
            let found: Vec<_> = FILES.into_iter().filter(|file| is_left(file)).collect();
            assert_eq!(found, left, "{pattern}");
            if gnu {
                let told = Command::new("tar")
                    .arg(format!("--exclude={pattern}"))
                    .args(["-cf", "-", "-C"])
                    .arg(dir.path())
                    .arg(".")
                    .output()
                    .unwrap()
                    .stdout;
                let told = String::from_utf8_lossy(&told);
                // Headers hold the names.
                let kept = |file: &&str| !told.contains(&format!("./{file}\0"));
                let left: Vec<_> = FILES.into_iter().filter(kept).collect();
                assert_eq!(found, left, "{pattern}, as tar has it");
            }
        }
    }
}
