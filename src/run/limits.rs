//! What a package asks a machine for (`[environment]` of `task.toml`, harbor.md 2), as far as a
//! process can be held to it without a container and without root.
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

use super::sandbox::find_program;

/// Where the shell is that sets limits and gives way to the command.
const SHELL: &str = "/bin/sh";
/// `ulimit` counts memory in these, files in blocks of half of it.
const KIB: u64 = 1 << 10;
const BLOCK: u64 = 512;
/// The fields of `[environment]` that say what is asked for, and how far it is held to.
const HELD: [(&str, &str); 4] = [
    ("memory", "each process"),
    ("memory_mb", "each process"),
    ("storage", "each file"),
    ("storage_mb", "each file"),
];

/// What processes are held to. `None`: to nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Limits {
    /// Bytes.
    memory: Option<u64>,
    /// Bytes.
    storage: Option<u64>,
    /// Processors; parts of one count as one.
    cpus: Option<usize>,
    /// What is to be told about it, once for a run.
    pub(super) told: Vec<String>,
}

impl Limits {
    /// Of what `[environment]` says. What is no sensible amount asks for nothing.
    pub(super) fn of<'a>(get: impl Fn(&str) -> Option<&'a Item>) -> Self {
        let mib = |name: &str| get(name).and_then(Item::as_integer).and_then(mib);
        let size = |name: &str| get(name).and_then(Item::as_str).and_then(size);
        let told = HELD.iter().filter(|(name, _)| get(name).is_some());
        let told = told.map(|(name, which)| {
            format!(
                "[environment].{name} of task.toml is held to by {which}, not by all of them \
                 together: there is no container."
            )
        });
        Self {
            memory: mib("memory_mb").or_else(|| size("memory")),
            storage: mib("storage_mb").or_else(|| size("storage")),
            cpus: get("cpus").and_then(processors),
            told: told.collect(),
        }
    }

    /// The words in front of a command that hold it to the limits.
    pub(super) fn words(&self, env: &BTreeMap<String, String>) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if self.memory.is_some() || self.storage.is_some() {
            // Where the limit is lower already, it stays.
            let mut script = String::new();
            for (letter, limit) in [
                ('d', self.memory.map(|limit| limit / KIB)),
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
        if let Some(cpus) = self.cpus
            && let Some(taskset) = find_program("taskset", env)
            && let Some(list) = choose(cpus)
        {
            words.extend([taskset.into(), "--cpu-list".into(), list.into()]);
        }
        words
    }
}

fn mib(number: i64) -> Option<u64> {
    let number = u64::try_from(number).ok().filter(|number| *number > 0)?;
    number.checked_mul(1 << 20)
}

/// `4G`, `512M`, `64K`: Harbor's old way to say it.
fn size(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches(['B', 'b', 'i']);
    let units = [('K', 10), ('M', 20), ('G', 30)];
    let (digits, shift) = units
        .into_iter()
        .find_map(|(unit, shift)| {
            let digits = text.strip_suffix([unit, unit.to_ascii_lowercase()])?;
            Some((digits, shift))
        })
        .unwrap_or((text, 0));
    let number: f64 = digits.trim().parse().ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what does not fit ends at the largest number; what is negative at none"
    )]
    let bytes = (number * f64::from(1 << shift)) as u64;
    (bytes > 0).then_some(bytes)
}

fn processors(item: &Item) -> Option<usize> {
    let whole = item.as_integer().and_then(|number| number.try_into().ok());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what does not fit ends at the largest number; what is negative at none"
    )]
    let parts = || item.as_float().map(|number| number.ceil() as usize);
    whole.or_else(parts).filter(|number| *number > 0)
}

/// So many of the processors that casepack may use, others each time; `None`: there are not more
/// than that.
fn choose(count: usize) -> Option<String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let all = numbers(list.trim())?;
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

    fn of(text: &str) -> Limits {
        let document: DocumentMut = text.parse().unwrap();
        Limits::of(|name| document.get(name))
    }

    #[test]
    fn what_is_asked_for_is_understood_in_both_forms() {
        for (text, memory, storage, cpus) in [
            ("", None, None, None),
            (
                "memory_mb = 3\nstorage_mb = 2\ncpus = 2",
                Some(3 << 20),
                Some(2 << 20),
                Some(2),
            ),
            (
                "memory = '4G'\nstorage = '0.5m'\ncpus = 1.5",
                Some(4 << 30),
                Some(1 << 19),
                Some(2),
            ),
            (
                "memory = '64Ki'\nstorage = '7'",
                Some(64 << 10),
                Some(7),
                None,
            ),
            ("memory_mb = -1\nstorage = 'x'\ncpus = 0", None, None, None),
            (
                "memory_mb = 'x'\nstorage = -1\ncpus = -0.5",
                None,
                None,
                None,
            ),
        ] {
            let limits = of(text);
            let found = (limits.memory, limits.storage, limits.cpus);
            assert_eq!(found, (memory, storage, cpus), "{text}");
        }
        assert_eq!(of("memory_mb = 3\ncpus = 1").told.len(), 1);
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(numbers("0-2,7"), Some(vec![0, 1, 2, 7]));
        assert_eq!(numbers("5"), Some(vec![5]));
        assert_eq!(numbers("0-99999999999"), None);
        assert_eq!(numbers(""), None);
    }
}
