//! Reading the results of a run back.
//!
//! Owns what is believed of a `results.json`: whoever had the run's directory in hand may have
//! written it. Refuses to know what is made of it.
//! Invariant: what gets out is a document that casepack itself could have written, in its ranges.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::SCHEMA;
use crate::fs::{ReadError, Root};
use crate::path::{CaseId, TreePath};
use crate::run::{CaseResult, RunResults};

/// The name of the document in a run's directory.
pub(super) const NAME: &str = "results.json";
/// What is in the directory of a run from its beginning.
const BEGUN: &str = "run.json";
/// The largest one that is read, in bytes.
const MAX: u64 = 256 << 20;
/// The most attempts at a case, as for `--attempts`.
const ATTEMPTS_MAX: usize = 1000;
/// Ten years: no run takes longer, and sums of it do not overflow.
const DURATION_MAX: Duration = Duration::from_hours(10 * 366 * 24);

/// Why a run's results can not be had.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// There is no such directory, or nothing in it.
    #[error("{path} is no run: it has no {NAME}", path = path.display())]
    NoRun {
        /// What was named.
        path: PathBuf,
    },
    /// A run that was begun, and killed before it wrote its results.
    #[error(
        "the run {path} was not finished: it has no {NAME} (cases with a result: {done})",
        path = path.display()
    )]
    Unfinished {
        /// What was named.
        path: PathBuf,
        /// Cases that have a result of their own.
        done: usize,
    },
    /// The document is not what casepack writes.
    #[error("{path} is no document of results: {reason}", path = path.display())]
    Invalid {
        /// The document.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The system.
    #[error("reading {path}", path = path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

/// What is looked at first: later versions may have another shape.
#[derive(Deserialize)]
struct Schema {
    schema: String,
}

/// The results of the run in the directory `dir`.
///
/// # Errors
/// See [`Unreadable`].
pub fn read(dir: &Path) -> Result<RunResults, Unreadable> {
    let path = dir.join(NAME);
    let invalid = |reason: String| {
        let path = path.clone();
        Unreadable::Invalid { path, reason }
    };
    let no_run = || Unreadable::NoRun {
        path: dir.to_owned(),
    };
    let root = Root::open(dir).map_err(|error| match error.source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => no_run(),
        _ => Unreadable::Io {
            path: error.path,
            source: error.source,
        },
    })?;
    let name = TreePath::new(NAME).map_err(|why| invalid(why.to_string()))?;
    let (bytes, _) = root.read(&name, MAX).map_err(|error| match error {
        ReadError::Missing if was_begun(&root) => Unreadable::Unfinished {
            path: dir.to_owned(),
            done: done(&root),
        },
        ReadError::Missing => no_run(),
        ReadError::Io(source) => Unreadable::Io {
            path: path.clone(),
            source,
        },
        error => invalid(error.to_string()),
    })?;
    let schema: Schema = serde_json::from_slice(&bytes).map_err(|error| {
        let why = format!("it has no text 'schema' ({error})");
        invalid(why)
    })?;
    if schema.schema != SCHEMA {
        let why = format!("its schema is '{}', not {SCHEMA}", schema.schema);
        return Err(invalid(why));
    }
    let mut results: RunResults =
        serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
    check(&results).map_err(invalid)?;
    root.path().clone_into(&mut results.dir);
    Ok(results)
}

fn was_begun(run: &Root) -> bool {
    TreePath::new(BEGUN).is_ok_and(|name| run.open_file(&name).is_ok())
}

/// How many cases have a result of their own.
fn done(run: &Root) -> usize {
    let cases = std::fs::read_dir(run.path()).into_iter().flatten();
    let cases = cases.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    cases
        .filter_map(|case| TreePath::new(&format!("{case}/result.json")).ok())
        .filter(|result| run.open_file(result).is_ok())
        .count()
}

/// What the types do not say.
fn check(results: &RunResults) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for case in &results.cases {
        let id = &case.id;
        if !seen.insert(id) {
            return Err(format!("it has the case '{id}' twice"));
        }
        if case.attempts.len() > ATTEMPTS_MAX {
            return Err(format!(
                "the case '{id}' has more than {ATTEMPTS_MAX} attempts"
            ));
        }
        for attempt in &case.attempts {
            if !attempt.attempts.is_empty() {
                return Err(format!("an attempt at the case '{id}' has attempts"));
            }
        }
        if std::iter::once(case)
            .chain(&case.attempts)
            .any(|attempt| longest(attempt) > DURATION_MAX)
        {
            return Err(format!("the case '{id}' took longer than ten years"));
        }
    }
    for id in &results.other_shards {
        CaseId::new(id).map_err(|why| format!("'{id}' is no id of a case: {why}"))?;
    }
    Ok(())
}

/// The longest time that is told of an attempt.
fn longest(attempt: &CaseResult) -> Duration {
    let agents = attempt.steps.iter().map(|step| &step.agent);
    let verifiers = attempt.steps.iter().map(|step| &step.verifier);
    let agents = agents.chain([&attempt.agent]).flatten();
    let verifiers = verifiers.chain([&attempt.verifier]).flatten();
    let told = agents
        .map(|run| run.duration)
        .chain(verifiers.map(|run| run.duration))
        .chain(attempt.hooks.iter().map(|hook| hook.duration));
    told.chain(attempt.started)
        .fold(attempt.duration, Duration::max)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn document() -> Value {
        json!({
            "schema": SCHEMA, "run_id": "r", "casepack_version": "1",
            "dataset": {"name": "d", "digest": null}, "agent": {"name": "nop", "model": null},
            "isolated": true, "warnings": [], "interrupted": false, "pass_at": 1.0,
            "cases": [{
                "id": "a", "status": "passed", "reward": 1.0, "rewards": {}, "duration_s": 1.0,
                "package_digest": null, "message": null, "agent": null, "verifier": null,
            }],
        })
    }

    fn refusal(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), text).unwrap();
        match read(dir.path()) {
            Err(Unreadable::Invalid { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_document_of_the_first_version_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = document();
        first["later"] = json!({"field": 1});
        std::fs::write(dir.path().join(NAME), first.to_string()).unwrap();
        let results = read(dir.path()).unwrap();
        assert_eq!(results.cases.len(), 1);
        assert_eq!(results.dir, dir.path().canonicalize().unwrap());
    }

    #[test]
    fn what_casepack_did_not_write_is_refused() {
        for (pointer, value, reason) in [
            ("/schema", json!("casepack.results.v2"), "its schema is"),
            ("/schema", json!(1), "no text 'schema'"),
            ("/cases/0/id", json!("../x"), "has a '/'"),
            ("/cases/0/id", json!(".."), "'..' component"),
            ("/cases/0/status", json!("fine"), "unknown variant"),
            ("/cases/0/duration_s", json!(-1.0), "negative"),
            ("/cases/0/duration_s", json!(1e18), "longer than ten years"),
            ("/cases/0/reward", json!("1"), "invalid type"),
            ("/pass_at", json!(null), "invalid type"),
        ] {
            let mut changed = document();
            *changed.pointer_mut(pointer).unwrap() = value;
            let told = refusal(&changed.to_string());
            assert!(told.contains(reason), "{pointer}: {told}");
        }
        let mut twice = document();
        twice["cases"] = json!([document()["cases"][0], document()["cases"][0]]);
        assert!(refusal(&twice.to_string()).contains("the case 'a' twice"));
        let mut nested = document();
        nested["cases"][0]["attempts"] = json!([document()["cases"][0]]);
        nested["cases"][0]["attempts"][0]["attempts"] = json!([document()["cases"][0]]);
        assert!(refusal(&nested.to_string()).contains("has attempts"));
        let infinite = document()
            .to_string()
            .replace("\"reward\":1.0", "\"reward\":1e999");
        assert!(refusal(&infinite).contains("out of range"));
        refusal("");
        refusal(&"[".repeat(100_000));
    }

    #[test]
    fn neither_a_link_nor_a_pipe_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join(NAME);
        assert!(matches!(read(dir.path()), Err(Unreadable::NoRun { .. })));
        assert!(matches!(read(&place), Err(Unreadable::NoRun { .. })));
        std::os::unix::fs::symlink("/dev/zero", &place).unwrap();
        assert!(matches!(read(dir.path()), Err(Unreadable::Invalid { .. })));
        std::fs::remove_file(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        assert!(matches!(read(dir.path()), Err(Unreadable::Invalid { .. })));
    }
}
