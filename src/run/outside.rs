//! Places that a task means and that no verifier sees here.
//!
//! Owns a guess, for the message of a case that did not pass. Refuses to decide anything.

use std::collections::BTreeSet;

use super::package::Package;
use crate::tree::{Data, Tree};

/// What every party has to itself, or finds as it is on this machine, under the same name; names of
/// which nobody means a file.
const SAME: [&str; 15] = [
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/logs",
    "/nix",
    "/proc",
    "/sbin",
    "/solution",
    "/sys",
    "/tests",
    "/usr",
    "~/.cache",
    "~/.local",
];

/// A sentence about a place outside of the workdir and `/logs` which both the agent is told of (by
/// the instruction, or in the solution) and the tests name, if there is one: what an agent leaves
/// there is gone before the verifier starts.
pub(super) fn told(package: &Package) -> Option<String> {
    let shared = package.steps.iter().filter(|step| step.separate.is_none());
    let mut meant = shared.filter_map(|step| {
        let mut agent = places(&step.instruction);
        let solution = step.solution.iter().flat_map(texts);
        agent.extend(solution.flat_map(places));
        let tests: BTreeSet<&str> = texts(&step.tests).flat_map(places).collect();
        let own = |place: &&str| {
            tests.contains(place)
                && !std::path::Path::new(place).starts_with(&package.workdir)
                && !SAME
                    .iter()
                    .any(|same| std::path::Path::new(place).starts_with(same))
        };
        agent.into_iter().find(own).map(str::to_owned)
    });
    let place = meant.next()?;
    Some(format!(
        "The task and its tests name {place}: of what an agent leaves outside of the workdir and \
         /logs a verifier sees nothing here; Harbor, with --engine harbor, shows it."
    ))
}

fn texts(tree: &Tree) -> impl Iterator<Item = &str> {
    tree.iter()
        .filter_map(|(_, entry)| match &entry.content.data {
            Data::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            // Large ones are no scripts.
            Data::File { .. } => None,
        })
}

/// Words that look like absolute paths of files, or like those of a home.
fn places(text: &str) -> BTreeSet<&str> {
    let part = |char: char| char.is_ascii_alphanumeric() || "/._-~".contains(char);
    text.split(|char| !part(char))
        .map(|word| word.trim_end_matches(['.', '/', '-']))
        .filter(|word| {
            let below = word.strip_prefix('~').unwrap_or(word);
            let deep = below.len() < word.len() || below.matches('/').count() > 1;
            below.starts_with('/') && !below.starts_with("//") && below.len() > 1 && deep
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_paths() {
        let text = "Write it to /tmp/a/b.txt. See https://host/x, a/b, /tmp and `~/c`/; s/x/y/ //.";
        let found: Vec<_> = places(text).into_iter().collect();
        assert_eq!(found, ["/tmp/a/b.txt", "~/c"]);
    }
}
