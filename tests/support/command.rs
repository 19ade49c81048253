//! Runs the binary with an empty environment, and shows what it did as one text.

use std::ffi::OsString;
use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A command that is about to be run.
#[must_use = "nothing runs before `.run()`"]
pub(crate) struct Invocation {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    home: PathBuf,
    stdin: Vec<u8>,
    /// Paths that are told by name, longest first.
    names: Vec<(String, &'static str)>,
}

/// What a command did.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// Its exit code; 128 and the signal when it was killed.
    pub code: i32,
    /// Its output, with the paths of the test's own directories replaced.
    pub stdout: String,
    /// The same of standard error.
    pub stderr: String,
}

impl Invocation {
    /// `casepack` in `cwd`, at home in `home`.
    pub(crate) fn new(cwd: &Path, home: &Path, names: Vec<(String, &'static str)>) -> Self {
        Self {
            program: PathBuf::from(env!("CARGO_BIN_EXE_casepack")),
            args: Vec::new(),
            env: Vec::new(),
            cwd: cwd.to_owned(),
            home: home.to_owned(),
            stdin: Vec::new(),
            names,
        }
    }

    /// Adds arguments.
    pub(crate) fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of its otherwise empty environment.
    pub(crate) fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts it in another directory.
    pub(crate) fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = cwd.into();
        self
    }

    /// Starts it by way of another program, which takes the command after its own arguments.
    pub(crate) fn within(
        mut self,
        program: &str,
        args: impl IntoIterator<Item = OsString>,
    ) -> Self {
        let inner = std::mem::replace(&mut self.program, program.into());
        let args = args.into_iter().chain([inner.into_os_string()]);
        self.args = args.chain(std::mem::take(&mut self.args)).collect();
        self
    }

    /// The command itself, for tests that need pipes or signals.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .current_dir(&self.cwd)
            .env_clear()
            .env("HOME", &self.home)
            .env("TMPDIR", &self.home)
            // Agents and checks need the machine's python3 and shell; nothing else is taken over.
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("COLUMNS", "100")
            .env("NO_COLOR", "1")
            .env("LC_ALL", "C.UTF-8")
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(self) -> Outcome {
        let mut child = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary under test starts");
        let mut stdin = child.stdin.take().expect("it was piped");
        // A command that does not read its input closes it early; that is no failure.
        drop(stdin.write_all(&self.stdin));
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        let code = output.status.code().unwrap_or_else(|| {
            use std::os::unix::process::ExitStatusExt as _;
            128 + output.status.signal().unwrap_or(0)
        });
        Outcome {
            code,
            stdout: self.tell(&output.stdout),
            stderr: self.tell(&output.stderr),
        }
    }

    fn tell(&self, bytes: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        for (path, name) in &self.names {
            text = text.replace(path, name);
        }
        text
    }
}

impl Outcome {
    /// Fails with everything that was said unless the exit code is `code`.
    #[track_caller]
    pub(crate) fn assert_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self}");
        self
    }

    /// Fails with everything that was said if `text` is told.
    #[track_caller]
    pub(crate) fn assert_stderr_without(self, text: &str) -> Self {
        assert!(!self.stderr.contains(text), "{self}");
        self
    }

    /// The document on standard output.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("standard output is no JSON document: {error}\n{self}"))
    }

    /// The diagnostics of the document on standard output that have `rule`.
    #[track_caller]
    pub(crate) fn findings(&self, rule: &str) -> Vec<serde_json::Value> {
        self.json()["diagnostics"]
            .as_array()
            .unwrap_or_else(|| panic!("no diagnostics in\n{self}"))
            .iter()
            .filter(|diagnostic| diagnostic["rule"] == rule)
            .cloned()
            .collect()
    }
}

/// Standard output, standard error and exit code as one text, for snapshots.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.stdout)?;
        if !self.stderr.is_empty() {
            write!(f, "--- stderr ---\n{}", self.stderr)?;
        }
        write!(f, "[exit {}]", self.code)
    }
}
