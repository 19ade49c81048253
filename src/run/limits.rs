//! What a package asks a machine for (`[environment]` of `task.toml`, harbor.md 2), and how far a
//! process is held to it without a container and without root (where there are control groups: `cgroup`).
//!
//! Owns the words in front of a command line that hold it. Refuses to know what is started.
//!
//! Memory is bounded for each process (`RLIMIT_DATA`: what it has of its own and may write to;
//! programs that reserve address space they never use, as those on V8, Go and the JVM do, are not
//! harmed), storage for each file (`RLIMIT_FSIZE`), processors by their number.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};

use toml_edit::Item;

use super::package::{Unusable, broken};
use super::sandbox::find_program;
use crate::dataset::task_toml;

/// Where the shell is that sets limits and gives way to the command.
const SHELL: &str = "/bin/sh";
/// `task.toml` counts memory in these.
const MIB: f64 = 1_048_576.0;
/// `ulimit` counts memory in these, files in blocks of half of it.
const KIB: u64 = 1 << 10;
const BLOCK: u64 = 512;
/// The fields of `[environment]` that say what is asked for, and how far it is held to.
const HELD: [(&str, &str); 4] = [
    ("memory", "each process"),
    ("memory_mb", "each process"),
    ("storage", FILE),
    ("storage_mb", FILE),
];
const FILE: &str = "each file";

/// What processes are held to. `None`: to nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Limits {
    /// Bytes.
    pub(super) memory: Option<u64>,
    /// Bytes.
    storage: Option<u64>,
    /// Processors.
    pub(super) cpus: Option<f64>,
    /// The fields that say so, and how far each is held to where there are no control groups.
    asked: Vec<(String, &'static str)>,
}

impl Limits {
    /// Of what the table `place` of `task.toml` says.
    ///
    /// # Errors
    /// An amount that no machine can have; Harbor hands it on, and what starts the container fails.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "above 0, and what does not fit ends at the largest number"
    )]
    pub(super) fn of<'a>(
        place: &str,
        get: impl Fn(&str) -> Option<&'a Item>,
    ) -> Result<Self, Unusable> {
        let above_zero = |name: &str, amount: Option<f64>| match amount {
            Some(amount) if amount <= 0.0 => Err(broken(format!(
                "task.toml: {place}.{name} is {amount}: write a number above 0, or remove it if \
                 there is no limit"
            ))),
            amount => Ok(amount),
        };
        let bytes = |name: &str, old: &str| {
            let text = || get(old)?.as_str().and_then(task_toml::mebibytes);
            let amount = match get(name).and_then(task_toml::number) {
                None => above_zero(old, text())?,
                amount => above_zero(name, amount)?,
            };
            Ok::<_, Unusable>(amount.map(|mib| (mib * MIB) as u64))
        };
        let asked = HELD.into_iter().filter(|(name, _)| get(name).is_some());
        let asked = asked.map(|(name, which)| (format!("[{place}].{name}"), which));
        let cpus = above_zero("cpus", get("cpus").and_then(task_toml::number))?;
        Ok(Self {
            memory: bytes("memory_mb", "memory")?,
            storage: bytes("storage_mb", "storage")?,
            cpus,
            asked: asked.collect(),
        })
    }

    /// What is to be told about it, once for a run; in a control group memory is held to by all.
    pub(super) fn told(&self, grouped: bool) -> impl Iterator<Item = String> {
        let asked = self.asked.iter();
        let loose = asked.filter(move |(_, which)| !grouped || *which == FILE);
        loose.map(|(field, which)| {
            format!(
                "{field} of task.toml is held to by {which}, not by all of them together: there is \
                 no container."
            )
        })
    }

    /// The words in front of a command that hold it to the limits that its control group, where it
    /// has one, does not.
    pub(super) fn words(&self, grouped: bool, env: &BTreeMap<String, String>) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let memory = self.memory.filter(|_| !grouped);
        if memory.is_some() || self.storage.is_some() {
            // Where the limit is lower already, it stays.
            let mut script = String::new();
            for (letter, limit) in [
                ('d', memory.map(|limit| limit / KIB)),
                ('f', self.storage.map(|limit| limit / BLOCK)),
            ] {
                if let Some(limit) = limit {
                    let set = format!("command ulimit -{letter} {limit} 2>/dev/null; ");
                    script.push_str(&set);
                }
            }
            script.push_str("exec \"$@\"");
            words.extend([SHELL, "-c", &script, "sh"].map(OsString::from));
        }
        if let Some(cpus) = self.cpus.filter(|_| !grouped)
            && let Some(taskset) = find_program("taskset", env)
            && let Some(list) = choose(cpus)
        {
            words.extend([taskset.into(), "--cpu-list".into(), list.into()]);
        }
        words
    }
}

/// So many of the processors that casepack may use, others each time; `None`: there are not more
/// than that.
fn choose(cpus: f64) -> Option<String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let all = numbers(list.trim())?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "above 0, and what does not fit ends at the largest number"
    )]
    let count = cpus.ceil() as usize;
    if count >= all.len() {
        return None;
    }
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    let chosen = all.iter().cycle().skip(first % all.len()).take(count);
    let chosen: Vec<String> = chosen.map(ToString::to_string).collect();
    Some(chosen.join(","))
}

/// `0-3,8` as numbers.
fn numbers(list: &str) -> Option<Vec<usize>> {
    const MOST: usize = 1 << 16;
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last > MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use toml_edit::DocumentMut;

    use super::*;

    fn of(text: &str) -> Result<Limits, Unusable> {
        let document: DocumentMut = text.parse().unwrap();
        Limits::of("environment", |name| document.get(name))
    }

    #[test]
    fn what_is_asked_for_is_understood_in_all_forms_that_harbor_takes() {
        for (text, memory, storage, cpus) in [
            ("", None, None, None),
            (
                "memory_mb = 3\nstorage_mb = 2.0\ncpus = 2",
                Some(3 << 20),
                Some(2 << 20),
                Some(2.0),
            ),
            (
                "memory = '4G'\nstorage = ' 1.5m'\ncpus = 1.5",
                Some(4 << 30),
                Some(1 << 20),
                Some(1.5),
            ),
            (
                "memory_mb = '64'\ncpus = '3'",
                Some(64 << 20),
                None,
                Some(3.0),
            ),
            (
                "memory_mb = 9000000000000000000",
                Some(u64::MAX),
                None,
                None,
            ),
        ] {
            let limits = of(text).unwrap();
            let found = (limits.memory, limits.storage, limits.cpus);
            assert_eq!(found, (memory, storage, cpus), "{text}");
        }
        let limits = of("memory_mb = 3\nstorage_mb = 1\ncpus = 1").unwrap();
        assert_eq!(
            (limits.told(false).count(), limits.told(true).count()),
            (2, 1)
        );
    }

    #[test]
    fn what_no_machine_can_have_is_named() {
        for (text, named) in [
            ("memory_mb = -1", "environment.memory_mb is -1"),
            ("memory_mb = 0", "environment.memory_mb is 0"),
            ("storage = '3K'", "environment.storage is 0"),
            ("cpus = -0.5", "environment.cpus is -0.5"),
        ] {
            match of(text) {
                Err(Unusable::Broken(told)) => assert!(told.contains(named), "{told}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(numbers("0-2,7"), Some(vec![0, 1, 2, 7]));
        assert_eq!(numbers("5"), Some(vec![5]));
        assert_eq!(numbers("0-99999999999"), None);
        assert_eq!(numbers(""), None);
    }
}
