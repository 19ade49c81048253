//! A control group (version 2) for each party, where casepack has a part of their tree for itself
//! (`systemd-run --user --scope -p Delegate=yes casepack run …`, or alone in a container): what a
//! package asks for then bounds all processes together, and none of them is left behind.
//!
//! Owns the directories below casepack's own group. Refuses to know what is started in them.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::limits::Limits;

/// What is asked of the kernel to be bounded.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// Processes and threads of one party: more than any work needs, and less than a machine has.
const PIDS_MAX: u32 = 4096;
/// The time of which a share is given, in microseconds.
const PERIOD: f64 = 100_000.0;
/// How long what was killed may take to end.
const REAPING: Duration = Duration::from_secs(10);

/// The group in which others can be made.
#[derive(Debug)]
pub(super) struct Groups {
    dir: PathBuf,
    /// Where casepack itself is meanwhile.
    leaf: PathBuf,
}

/// The group of one party. What is in it is ended with it.
#[derive(Debug)]
pub(super) struct Group {
    dir: PathBuf,
}

impl Groups {
    /// Casepack's own group, when nobody else is in it, and it may be parted.
    pub(super) fn find() -> Option<Self> {
        let read = |path: &Path| std::fs::read_to_string(path).ok();
        let own = read(Path::new("/proc/self/cgroup"))?;
        let mounts = read(Path::new("/proc/self/mountinfo"))?;
        let dir = place(&own, &mounts)?;
        let offered = read(&dir.join("cgroup.controllers"))?;
        let offers = |name: &&str| offered.split_whitespace().any(|it| it == *name);
        if !CONTROLLERS.iter().all(offers) {
            return None;
        }
        let id = std::process::id().to_string();
        if read(&dir.join("cgroup.procs"))?.trim() != id {
            return None;
        }
        // A group with processes of its own has none below it that is bounded (cgroups(7)).
        let leaf = dir.join(format!("casepack-{id}"));
        std::fs::create_dir(&leaf).ok()?;
        // From here on dropping it undoes it.
        let groups = Self { dir, leaf };
        std::fs::write(groups.leaf.join("cgroup.procs"), "0").ok()?;
        groups.part('+').ok()?;
        Some(groups)
    }

    /// Whether (`+`, `-`) groups below this one are bounded.
    fn part(&self, sign: char) -> io::Result<()> {
        let all = CONTROLLERS.map(|name| format!("{sign}{name}")).join(" ");
        std::fs::write(self.dir.join("cgroup.subtree_control"), all)
    }

    /// A new group that is held to `limits`.
    ///
    /// # Errors
    /// What the kernel does not take.
    pub(super) fn make(&self, limits: &Limits) -> io::Result<Group> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = std::process::id();
        let group = Group {
            dir: self.dir.join(format!("casepack-{id}-{number}")),
        };
        std::fs::create_dir(&group.dir)?;
        let set = |name: &str, value: String| std::fs::write(group.dir.join(name), value);
        set("pids.max", PIDS_MAX.to_string())?;
        if let Some(memory) = limits.memory {
            set("memory.max", memory.to_string())?;
            set("memory.oom.group", "1".to_owned())?;
            // Where the kernel has no swap there is no such file.
            set("memory.swap.max", "0".to_owned()).ok();
        }
        if let Some(cpus) = limits.cpus {
            // Less than a millisecond is refused.
            let time = (cpus * PERIOD).max(1000.0);
            set("cpu.max", format!("{time:.0} {PERIOD:.0}"))?;
        }
        Ok(group)
    }
}

impl Group {
    /// The words in front of a command that put it into the group.
    pub(super) fn words(&self) -> Vec<OsString> {
        let enter = "echo 0 > \"$0\" && exec \"$@\"";
        let words = ["/bin/sh", "-c", enter].map(OsString::from);
        let place = self.dir.join("cgroup.procs").into_os_string();
        words.into_iter().chain([place]).collect()
    }

    /// Whether the kernel ended it because its memory was used up.
    pub(super) fn out_of_memory(&self) -> bool {
        let events = std::fs::read_to_string(self.dir.join("memory.events"));
        let events = events.unwrap_or_default();
        let mut kills = events
            .lines()
            .filter_map(|line| line.strip_prefix("oom_kill "));
        kills.next().is_some_and(|kills| kills.trim() != "0")
    }

    /// Ends everything in the group; whether that could be done.
    pub(super) fn end(&self) -> bool {
        let until = Instant::now() + REAPING;
        loop {
            match std::fs::remove_dir(&self.dir) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => return false,
                _ => return true,
            }
            std::fs::write(self.dir.join("cgroup.kill"), "1").ok();
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // What can't be undone ends with the scope that casepack was started in.
        self.part('-').ok();
        std::fs::write(self.dir.join("cgroup.procs"), "0").ok();
        std::fs::remove_dir(&self.leaf).ok();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where the group lies that `own` (`/proc/self/cgroup`) names, by the `mounts` of this process
/// (`/proc/self/mountinfo`: id, parent, device, root, place, …, `-`, type, …).
fn place(own: &str, mounts: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        let below = Path::new(own).strip_prefix(root).ok()?;
        kind.starts_with("cgroup2 ")
            .then(|| Path::new(place).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_below_its_mount() {
        let v1 = "25 24 0:22 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let v2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let part = "30 24 0:26 /box /sys/fs/cgroup rw - cgroup2 none rw\n";
        let found = |own: &str, mounts: &str| {
            place(own, mounts).map(|place| place.to_string_lossy().into_owned())
        };
        for (own, mounts, wanted) in [
            ("0::/a/b.scope\n", v2, Some("/sys/fs/cgroup/a/b.scope")),
            ("0::/\n", v2, Some("/sys/fs/cgroup/")),
            ("8:pids:/x\n0::/box/y\n", part, Some("/sys/fs/cgroup/y")),
            ("0::/else\n", part, None),
            ("0::/a\n", v1, None),
            ("8:pids:/x\n", v2, None),
            ("", "", None),
        ] {
            assert_eq!(found(own, mounts).as_deref(), wanted, "{own} {mounts}");
        }
    }
}
