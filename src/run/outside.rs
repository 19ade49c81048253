//! Places outside of the workdir and `/logs`: which are kept, since artifacts lie there, and which a task
//! means and no verifier sees here.
//!
//! Owns what can be kept, and a guess for the message of a case that did not pass. Refuses to mount
//! anything.

use std::collections::BTreeSet;
use std::path::Path;

use super::package::{Artifact, Package};
use super::sandbox::{HOME, Sandbox};
use crate::tree::{Data, Tree};

/// Where in a case's directory a verifier's artifacts from outside of the workdir are.
pub(super) const OUTSIDE: &str = "verifier-outside";

/// The directories which agents are given on disk because artifacts of the package lie in them, and
/// which could else be anything: none holds another, the workdir or the home.
pub(super) fn kept(package: &Package, sandbox: &Sandbox) -> Vec<String> {
    let separate = package
        .steps
        .iter()
        .filter_map(|step| step.separate.as_ref());
    let artifacts = separate.flat_map(|own| &own.artifacts);
    let mut places: Vec<String> = artifacts
        .filter_map(|artifact| place(artifact, package, sandbox))
        .collect();
    places.sort();
    places.dedup_by(|place, before| Path::new(place).starts_with(before));
    places
}

fn place(artifact: &Artifact, package: &Package, sandbox: &Sandbox) -> Option<String> {
    let source = Path::new(&artifact.source);
    let workdir = Path::new(&package.workdir);
    if source.starts_with(workdir) {
        return None;
    }
    // A file is made in its directory; where that can not be had, what looks like a directory is.
    let itself = source.extension().is_none().then_some(source);
    let places = [source.parent(), itself].into_iter().flatten();
    let mut places = places.filter(|place| {
        let taken = [workdir, Path::new(HOME)];
        !taken.iter().any(|taken| taken.starts_with(place))
            && !place.starts_with(workdir)
            && place
                .to_str()
                .is_some_and(|place| sandbox.check_workdir(place).is_ok())
    });
    places.next()?.to_str().map(str::to_owned)
}

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
                && !Path::new(place).starts_with(&package.workdir)
                && !SAME.iter().any(|same| Path::new(place).starts_with(same))
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
            let deep = below.len() < word.len() || below.matches(['/', '.']).count() > 1;
            below.starts_with('/') && !below.starts_with("//") && below.len() > 1 && deep
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_paths() {
        let text = "Write it to /a.txt or /tmp/a/b.txt. See https://host/x, a/b, /tmp and `~/c`/; s/x/y/ //.";
        let found: Vec<_> = places(text).into_iter().collect();
        assert_eq!(found, ["/a.txt", "/tmp/a/b.txt", "~/c"]);
    }
}
