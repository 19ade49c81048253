//! What agents and verifiers can see of the machine: a bubblewrap command line.
//!
//! Owns the probe and the mounts. Refuses to know what runs inside.
//! Invariant: nothing is shown but the system's own directories (read-only, without `/etc` but for
//! what programs need to work) and what the caller mounts; the hidden directories stay hidden even
//! where they lie inside of a shown one. No capabilities, no process but the sandbox's own, no keys
//! of the kernel (`seccomp`).
//!
//! A caller who is root stays user 0 inside, so that tools behave as in Harbor's containers; what
//! that user could do without capabilities, through files of `/proc`, is shut off.
//!
//! What it does not do: with a public network, servers on this machine's loopback and its abstract
//! sockets can be reached; what `limits` does not hold is not limited; files below `/usr` that only
//! root may read are readable when the caller is root.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use super::package::Unusable;
use super::{process, seccomp};

/// The home directory inside: empty, in memory, gone afterwards.
pub(super) const HOME: &str = "/home/agent";
/// Where casepack puts what an agent needs of the project, and the instruction.
pub(super) const OWN: &str = "/casepack";

/// Shown when they exist. `/bin` and its like are links into `/usr` on most systems.
const SYSTEM: [&str; 9] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
];

/// Of `/etc`: what name look-up, time zones, certificates and the dynamic linker need. No
/// directory with private keys is among them: a caller who is root could read them inside too.
const ETC: [&str; 32] = [
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "gai.conf",
    "group",
    "host.conf",
    "hosts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
];

/// Where programs are looked for, after what is shown of the caller's own `PATH`.
pub(super) const PATHS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Parts of `/proc` that belong to the whole machine and that their owner, root, may write even
/// without capabilities: with `kernel/core_pattern` alone the machine could be taken over.
/// (bubblewrap covers some of them, but looks for write permission on the directory only.)
const PROC: [&str; 6] = [
    "/proc/bus",
    "/proc/irq",
    "/proc/mtrr",
    "/proc/pressure",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
/// Parts of `/proc` that nothing in a sandbox needs.
const PROC_HIDDEN: [&str; 4] = ["/proc/acpi", "/proc/driver", "/proc/fs", "/proc/scsi"];

/// A bubblewrap that works here.
#[derive(Debug)]
pub(super) struct Sandbox {
    program: PathBuf,
    /// Arguments that every sandbox has.
    base: Vec<OsString>,
    /// Arguments that show `/etc`.
    etc: Vec<OsString>,
    /// Arguments that only a sandbox with another user needs.
    other_user: Vec<OsString>,
    /// Canonical.
    shown: Vec<PathBuf>,
    /// Canonical.
    hidden: Vec<PathBuf>,
    /// `PATH` inside.
    path: String,
}

/// A file or directory that is shown at another place.
#[derive(Debug, Clone)]
pub(super) struct Mount {
    /// On this machine.
    pub(super) host: PathBuf,
    /// In the sandbox.
    pub(super) inside: String,
    /// Whether it may be changed.
    pub(super) write: bool,
}

/// A program of the caller, as it is used inside.
#[derive(Debug, Default)]
pub(super) struct Brought {
    /// What to call.
    pub(super) program: String,
    /// What it needs to see.
    pub(super) mounts: Vec<Mount>,
    /// A directory to put in front of `PATH`.
    pub(super) path: Option<String>,
}

/// The program `name` in the caller's `PATH`.
pub(super) fn find_program(name: &str, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let path = env.get("PATH")?;
    path.split(':')
        .map(Path::new)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

/// The directory that a program of a package manager for modules is installed in, with all that it
/// needs: `PREFIX/lib/node_modules/…` gives `PREFIX`. `None`: it stands for itself.
fn installation(program: &Path) -> Option<PathBuf> {
    let modules = program
        .ancestors()
        .filter(|dir| dir.file_name().is_some_and(|name| name == "node_modules"))
        .last()?;
    let above = modules.parent()?;
    match above.file_name() {
        Some(name) if name == "lib" => above.parent().map(Path::to_owned),
        _ => Some(above.to_owned()),
    }
}

impl Mount {
    /// Shown read-only.
    pub(super) fn read(host: impl Into<PathBuf>, inside: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            inside: inside.into(),
            write: false,
        }
    }

    /// May be changed.
    pub(super) fn write(host: impl Into<PathBuf>, inside: impl Into<String>) -> Self {
        Self {
            write: true,
            ..Self::read(host, inside)
        }
    }
}

impl Sandbox {
    /// Finds a bubblewrap and tries it. `hidden` is what nobody inside may see, wherever it lies.
    ///
    /// # Errors
    /// Why there is none, as the end of a sentence.
    pub(super) fn find(env: &BTreeMap<String, String>, hidden: &[PathBuf]) -> Result<Self, String> {
        let own = env.get("PATH").map_or("", String::as_str);
        let program = own
            .split(':')
            .chain(PATHS)
            .map(Path::new)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join("bwrap"))
            .find(|program| program.is_file())
            .ok_or("no program 'bwrap' was found")?;
        let shown: Vec<PathBuf> = SYSTEM
            .iter()
            .filter_map(|dir| Path::new(dir).canonicalize().ok())
            .collect();
        let hidden: Vec<PathBuf> = hidden
            .iter()
            .filter_map(|dir| dir.canonicalize().ok())
            .collect();
        for dir in &hidden {
            if shown.iter().any(|shown| shown.starts_with(dir)) {
                return Err(format!(
                    "{} holds directories of the system and can not be hidden",
                    dir.display()
                ));
            }
        }
        let mut sandbox = Self {
            program,
            base: Vec::new(),
            etc: Vec::new(),
            other_user: Vec::new(),
            shown,
            hidden,
            path: String::new(),
        };
        sandbox.path = sandbox.search_path(own);
        sandbox.base = sandbox.base(&PROC.map(str::to_owned));
        for name in ETC {
            let path = format!("/etc/{name}");
            let words = ["--ro-bind-try", &path, &path];
            sandbox.etc.extend(words.map(OsString::from));
        }
        if rustix::process::geteuid().is_root() {
            let covered = sandbox.covered();
            sandbox.base = sandbox.base(&covered);
            // What bubblewrap covers by itself depends on who it is inside.
            for path in covered.iter().filter(|path| PROC.contains(&path.as_str())) {
                let words = ["--ro-bind", path, path];
                sandbox.other_user.extend(words.map(OsString::from));
            }
        }
        sandbox.probe()?;
        Ok(sandbox)
    }

    /// Copies what is shown of `/etc` to the new directory `dir` and shows that from now on: one
    /// mount in place of some twenty, each of which costs a sandbox as much as a small program.
    /// Where it can't be copied, all stays as it is.
    pub(super) fn stage_etc(&mut self, dir: &Path) {
        let mut copied = std::fs::create_dir(dir);
        for name in ETC {
            let (from, to) = (Path::new("/etc").join(name), dir.join(name));
            copied = copied.and_then(|()| {
                if let Some(parent) = to.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                self.copy(&from, &to, 0)
            });
        }
        if copied.is_ok() {
            self.etc = ["--ro-bind".into(), dir.into(), "/etc".into()].into();
        }
    }

    /// Copies a file, or a directory with all that is in it. Links stay links where they lead to
    /// what is shown anyway; what can't be read is left out, as it could not be read inside.
    fn copy(&self, from: &Path, to: &Path, depth: usize) -> std::io::Result<()> {
        const DEEPEST: usize = 8;
        const LARGEST: u64 = 16 << 20;
        let Ok(meta) = from.symlink_metadata() else {
            return Ok(());
        };
        // Within a directory links lead to its neighbours, too.
        if meta.is_symlink() && (depth > 0 || self.shows(from)) {
            return std::os::unix::fs::symlink(std::fs::read_link(from)?, to);
        }
        let Ok(meta) = from.metadata() else {
            return Ok(());
        };
        if meta.is_dir() && depth < DEEPEST {
            std::fs::create_dir(to)?;
            for entry in std::fs::read_dir(from).into_iter().flatten().flatten() {
                self.copy(&entry.path(), &to.join(entry.file_name()), depth + 1)?;
            }
        } else if meta.is_file()
            && meta.len() <= LARGEST
            && let Ok(bytes) = std::fs::read(from)
        {
            std::fs::write(to, bytes)?;
        }
        Ok(())
    }

    /// `PATH` inside.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Whether `path` is part of what every sandbox shows of this machine.
    pub(super) fn shows(&self, path: &Path) -> bool {
        path.canonicalize().is_ok_and(|real| {
            self.shown.iter().any(|dir| real.starts_with(dir))
                && !self.hidden.iter().any(|dir| real.starts_with(dir))
        })
    }

    /// Where the program `name` is found inside.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        self.path
            .split(':')
            .map(|dir| Path::new(dir).join(name))
            .find(|program| program.is_file() && self.shows(program))
    }

    /// Makes a program of the caller usable inside, wherever it is installed.
    ///
    /// # Errors
    /// Why it can't be, as the end of a sentence.
    pub(super) fn bring(
        &self,
        name: &str,
        env: &BTreeMap<String, String>,
    ) -> Result<Brought, String> {
        let found = find_program(name, env).ok_or("it is not found in PATH")?;
        if self.shows(&found) {
            return Ok(Brought {
                program: name.to_owned(),
                ..Brought::default()
            });
        }
        let real = found.canonicalize().map_err(|error| error.to_string())?;
        let Some(prefix) = installation(&real) else {
            let program = format!("{OWN}/bin/{name}");
            return Ok(Brought {
                mounts: vec![Mount::read(real, program.clone())],
                program,
                path: None,
            });
        };
        // What is installed beside its modules is found by its own path, so that stays the same.
        let wide = |dir: &Path| dir.starts_with(&prefix);
        let home = env.get("HOME").map(Path::new);
        if self
            .hidden
            .iter()
            .map(PathBuf::as_path)
            .chain(home)
            .any(wide)
        {
            return Err(format!(
                "its installation {} holds what agents must not see",
                prefix.display()
            ));
        }
        let inside = prefix.to_str().ok_or("its path is not UTF-8")?.to_owned();
        Ok(Brought {
            program: real.to_string_lossy().into_owned(),
            mounts: vec![Mount::read(&prefix, inside.clone())],
            path: Some(format!("{inside}/bin")),
        })
    }

    /// The command line that runs `command` in `workdir`, as `user` where one is given.
    pub(super) fn command(
        &self,
        workdir: &str,
        mounts: &[Mount],
        network: bool,
        user: Option<u32>,
        command: &[OsString],
    ) -> Vec<OsString> {
        let mut argv = vec![self.program.clone().into()];
        argv.extend_from_slice(&self.base);
        argv.extend_from_slice(&self.etc);
        if user.is_some() {
            argv.extend_from_slice(&self.other_user);
        }
        let mut add = |words: &[&std::ffi::OsStr]| {
            argv.extend(words.iter().map(|&word| word.to_owned()));
        };
        if !network {
            add(&["--unshare-net".as_ref()]);
        }
        if let Some(user) = user {
            let user = OsString::from(user.to_string());
            add(&[
                "--unshare-user".as_ref(),
                "--uid".as_ref(),
                &user,
                "--gid".as_ref(),
                &user,
            ]);
        }
        for mount in mounts {
            let how = if mount.write { "--bind" } else { "--ro-bind" };
            add(&[how.as_ref(), mount.host.as_os_str(), mount.inside.as_ref()]);
        }
        add(&["--chdir".as_ref(), workdir.as_ref(), "--".as_ref()]);
        argv.extend_from_slice(command);
        argv
    }

    /// Whether the workspace can be mounted at `workdir`.
    ///
    /// # Errors
    /// It is no path for that, or one that only a container can give.
    pub(super) fn check_workdir(&self, workdir: &str) -> Result<(), Unusable> {
        let path = Path::new(workdir);
        let plain = path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !path.is_absolute() || !plain {
            return Err(Unusable::Broken(format!(
                "The workdir '{workdir}' can not be used: it must be an absolute path without '..'."
            )));
        }
        let elsewhere = |why: &str| {
            let why = format!("its workdir is '{workdir}', and {why}.");
            Err(Unusable::Elsewhere(why))
        };
        let taken = [
            "/dev",
            "/etc",
            "/logs",
            "/proc",
            "/solution",
            "/sys",
            "/tests",
            OWN,
        ];
        if taken
            .iter()
            .any(|taken| path.starts_with(taken) || Path::new(taken).starts_with(path))
        {
            return elsewhere("the sandbox has something else in that place");
        }
        // A place for it can't be made in what is read-only; one that is there is covered.
        let Some(above) = path.ancestors().find(|above| above.exists()) else {
            return Ok(());
        };
        let inside = self.shows(above) || self.shown.iter().any(|shown| shown == above);
        if inside && (above != path || !path.is_dir()) {
            return elsewhere(
                "here that lies in a directory of the system, which the sandbox shows read-only",
            );
        }
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if self.shown.iter().any(|shown| shown.starts_with(&real)) {
            return elsewhere("the sandbox has the system's programs in that place");
        }
        Ok(())
    }

    /// Arguments for all; `covered` are the parts of `/proc` that need nothing from us.
    fn base(&self, covered: &[String]) -> Vec<OsString> {
        let mut base: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| base.extend(words.iter().map(OsString::from));
        add(&["--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
        add(&["--unshare-pid", "--unshare-ipc", "--unshare-uts"]);
        add(&["--unshare-cgroup-try", "--hostname", "casepack"]);
        for dir in SYSTEM {
            match std::fs::read_link(dir) {
                Ok(target) => match target.to_str() {
                    Some(target) => add(&["--symlink", target, dir]),
                    None => add(&["--ro-bind", dir, dir]),
                },
                Err(_) => add(&["--ro-bind-try", dir, dir]),
            }
        }
        add(&["--proc", "/proc", "--dev", "/dev", "--dir", "/var/tmp"]);
        // The first process is bubblewrap's own, and no filter is around it: who could write to its
        // memory would be rid of the filter (`seccomp`).
        add(&["--tmpfs", "/proc/1"]);
        add(&["--tmpfs", "/tmp", "--dir", "/run", "--dir", HOME]);
        if rustix::process::geteuid().is_root() {
            let open = |path: &&str| {
                Path::new(path).exists() && !covered.iter().any(|covered| covered == path)
            };
            for path in PROC.into_iter().filter(open) {
                add(&["--ro-bind", path, path]);
            }
            for dir in PROC_HIDDEN
                .into_iter()
                .filter(|dir| Path::new(dir).is_dir())
            {
                add(&["--tmpfs", dir]);
            }
        }
        for dir in &self.hidden {
            if self.shown.iter().any(|shown| dir.starts_with(shown)) {
                base.push("--tmpfs".into());
                base.push(dir.into());
            }
        }
        base
    }

    fn search_path(&self, own: &str) -> String {
        let mut dirs: Vec<&str> = Vec::new();
        let own = own.split(':').filter(|dir| dir.starts_with('/'));
        for dir in own.chain(PATHS) {
            if !dirs.contains(&dir) && self.shows(Path::new(dir)) {
                dirs.push(dir);
            }
        }
        dirs.join(":")
    }

    /// Which mounts inside are read-only already: each that is made costs every case.
    fn covered(&self) -> Vec<String> {
        let Some(cat) = self.program("cat") else {
            return Vec::new();
        };
        let told = Command::new(&self.program)
            .args(&self.base)
            .args(&self.etc)
            .args(["--chdir", "/", "--"])
            .arg(cat)
            .arg("/proc/self/mountinfo")
            .env_clear()
            .env(process::MARK, process::mark())
            .stdin(Stdio::null())
            .output();
        let told = told.map(|told| told.stdout).unwrap_or_default();
        // id, parent, device, root, place, options, …
        let read_only = |line: &str| {
            let mut fields = line.split(' ').skip(4);
            let (place, options) = (fields.next()?, fields.next()?);
            let read_only = options.split(',').any(|option| option == "ro");
            read_only.then(|| place.to_owned())
        };
        let told = String::from_utf8_lossy(&told);
        told.lines().filter_map(read_only).collect()
    }

    fn probe(&self) -> Result<(), String> {
        let program = self
            .program("true")
            .ok_or("there is no program 'true' in the directories of the system")?;
        let failed = |error: std::io::Error| format!("it did not start: {error}");
        let filter = seccomp::filter(true).map_err(failed)?;
        let answer = Command::new(&self.program)
            .args(["--json-status-fd", "1", "--seccomp", "0"])
            .args(&self.base)
            .args(&self.etc)
            .args(["--chdir", "/", "--"])
            .arg(program)
            .env_clear()
            .env(process::MARK, process::mark())
            .stdin(filter)
            .output()
            .map_err(failed)?;
        let said = String::from_utf8_lossy(&answer.stderr);
        let said = said.lines().next().unwrap_or_default().trim();
        if !answer.status.success() {
            let said = if said.is_empty() { "it failed" } else { said };
            return Err(said.to_owned());
        }
        if !String::from_utf8_lossy(&answer.stdout).contains("exit-code") {
            return Err("it is too old: --json-status-fd does not tell the exit code".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_shown_with_what_it_is_installed_with() {
        for (program, wanted) in [
            (
                "/u/.nvm/v22/lib/node_modules/@a/b/cli.js",
                Some("/u/.nvm/v22"),
            ),
            ("/u/p/node_modules/a/node_modules/b/x", Some("/u/p")),
            ("/u/.local/share/claude/versions/2", None),
        ] {
            let found = installation(Path::new(program));
            assert_eq!(found.as_deref(), wanted.map(Path::new), "{program}");
        }
    }
}
