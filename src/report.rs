//! Outcomes for people and machines: `results.json`, `junit.xml`, `summary.md`, `report.html`.
//!
//! Owns the shape of the documents (`casepack.results.v1` is read and written here), and how shards
//! become one run. Refuses to know how a case is run and what the terminal looks like; the rows of
//! the table are handed on raw, whoever shows them escapes them.
//! Invariant: what agents, packages and other machines wrote is escaped by `escape` for the very
//! document that it stands in (policy 31), and read through handles (policy 20).

mod compare;
mod excerpt;
mod html;
mod junit;
mod markdown;
mod merge;
mod read;
mod words;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use self::compare::{Change, Changed, compare, strangeness};
pub use self::merge::{Merged, merge};
pub use self::read::{Unreadable, read};
pub use self::words::{mean_reward, usage};
use crate::escape;
use crate::fs::{FsError, Root, write_atomic};
use crate::path::TreePath;
use crate::run::{CaseResult, RunResults, Secrets};

/// The `schema` field of `results.json`.
pub const SCHEMA: &str = "casepack.results.v1";

/// The documents beside `results.json`.
pub const DOCUMENTS: [&str; 3] = ["junit.xml", "summary.md", "report.html"];

/// The document `results.json`.
pub fn results_json(results: &RunResults) -> Value {
    // The keys are all texts and the values finite, so that it always can be written.
    let mut document = serde_json::to_value(results).unwrap_or_default();
    document["schema"] = SCHEMA.into();
    document["summary"] = serde_json::to_value(results.summary()).unwrap_or_default();
    document
}

/// Writes `results.json` into the run's directory, atomically, and the reports beside it; returns
/// the path of `results.json`.
///
/// # Errors
/// What the disk gave.
pub fn write(results: &RunResults, secrets: Secrets) -> Result<PathBuf, FsError> {
    let path = write_results(results, &results.dir)?;
    Report::of(results, secrets).write(&results.dir)?;
    Ok(path)
}

/// Writes `results.json` into `dir`, atomically; returns its path.
///
/// # Errors
/// What the disk gave.
pub fn write_results(results: &RunResults, dir: &Path) -> Result<PathBuf, FsError> {
    let path = dir.join(read::NAME);
    // The document's keys are all texts, so that it always can be written.
    let text = escape::json(&results_json(results));
    write_atomic(&path, text.as_bytes(), 0o644)?;
    Ok(path)
}

/// What reports are made from.
#[derive(Debug)]
pub struct Report<'a> {
    results: &'a RunResults,
    /// The run directory of each case, in the order of the results; that of the results where there
    /// is none.
    homes: &'a [PathBuf],
    /// Run directories that could be opened.
    roots: BTreeMap<&'a Path, Root>,
    compared: Option<(&'a RunResults, Vec<Changed<'a>>)>,
    /// What is not shown of the files of cases.
    secrets: Secrets,
}

impl<'a> Report<'a> {
    /// Of a run as it is in its directory; `secrets` are hidden in what is shown of its files.
    pub fn of(results: &'a RunResults, secrets: Secrets) -> Self {
        Self::made(results, &[], secrets)
    }

    /// Of what was put together.
    pub fn of_merged(merged: &'a Merged, secrets: Secrets) -> Self {
        Self::made(&merged.results, &merged.homes, secrets)
    }

    fn made(results: &'a RunResults, homes: &'a [PathBuf], secrets: Secrets) -> Self {
        let dirs = homes.iter().chain([&results.dir]).map(PathBuf::as_path);
        let mut roots = BTreeMap::new();
        for dir in dirs {
            if !roots.contains_key(dir)
                && let Ok(root) = Root::open(dir)
            {
                roots.insert(dir, root);
            }
        }
        Self {
            results,
            homes,
            roots,
            compared: None,
            secrets,
        }
    }

    /// Held against an earlier run. Whether the two are of one kind is told by [`strangeness`].
    #[must_use]
    pub fn against(mut self, before: &'a RunResults) -> Self {
        self.compared = Some((before, compare(before, self.results)));
        self
    }

    /// The earlier run and what differs.
    pub fn compared(&self) -> Option<(&RunResults, &[Changed<'a>])> {
        let (before, changes) = self.compared.as_ref()?;
        Some((before, changes))
    }

    /// Writes [`DOCUMENTS`] into `dir`, each atomically.
    ///
    /// # Errors
    /// What the disk gave.
    pub fn write(&self, dir: &Path) -> Result<(), FsError> {
        let root = Root::open(dir)?;
        document(&root, "junit.xml", |to| junit::write(self, to))?;
        document(&root, "summary.md", |to| {
            to.write_all(markdown::text(self).as_bytes())
        })?;
        document(&root, "report.html", |to| html::write(self, to))
    }

    /// Each case, with the directory of the run that it is from.
    fn cases(&self) -> impl Iterator<Item = (&'a CaseResult, Option<&Root>)> {
        let own = self.results.dir.as_path();
        let homes = self.homes.iter().map(PathBuf::as_path);
        let homes = homes.chain(std::iter::repeat(own));
        let cases = self.results.cases.iter().zip(homes);
        cases.map(|(case, home)| (case, self.roots.get(home)))
    }

    /// What was run by whom: names and raw values.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let results = self.results;
        let sandbox = if results.isolated { "yes" } else { "no" };
        let facts = [
            ("run", Some(results.run_id.clone())),
            ("dataset", Some(results.dataset.name.clone())),
            ("dataset digest", results.dataset.digest.clone()),
            ("packages digest", results.dataset.packages_digest.clone()),
            ("agent", Some(results.agent.name.clone())),
            ("model", results.agent.model.clone()),
            ("engine", Some(results.engine.clone())),
            ("sandbox", Some(sandbox.to_owned())),
            ("passes at", Some(results.pass_at.to_string())),
            (
                "attempts",
                (results.attempts > 1).then(|| results.attempts.to_string()),
            ),
            (
                "cases of other shards",
                Some(results.other_shards.len())
                    .filter(|others| *others > 0)
                    .map(|others| others.to_string()),
            ),
            ("casepack", Some(results.casepack_version.clone())),
        ];
        let known = |(name, value): (_, Option<String>)| Some((name, value?));
        facts.into_iter().filter_map(known).collect()
    }
}

/// Writes one document into `dir`, atomically and as it comes.
fn document(
    dir: &Root,
    name: &str,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), FsError> {
    let failed = |source: io::Error| FsError {
        path: dir.path().join(name),
        source,
    };
    let path = TreePath::new(name).map_err(|why| failed(io::Error::other(why)))?;
    let staged = dir.stage(&path, 0o644)?;
    let mut to = BufWriter::with_capacity(64 << 10, staged.file());
    write(&mut to).and_then(|()| to.flush()).map_err(failed)?;
    drop(to);
    staged.commit()
}

/// One line of the table, cells raw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The case's id.
    pub case: String,
    /// `passed`, `failed`, `error`, `skipped`.
    pub status: &'static str,
    /// The reward with two digits, or nothing.
    pub reward: String,
    /// Seconds with one digit.
    pub time: String,
    /// What is to be said, or nothing.
    pub message: String,
}

/// The lines of the table, in the order of the results.
pub fn rows(results: &RunResults) -> Vec<Row> {
    results
        .cases
        .iter()
        .map(|case| Row {
            case: case.id.to_string(),
            status: case.status.name(),
            reward: case
                .reward
                .map_or_else(String::new, |reward| format!("{reward:.2}")),
            time: format!("{:.1} s", case.duration.as_secs_f64()),
            message: case.message.clone().unwrap_or_default(),
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::path::CaseId;
    use crate::run::{AgentRef, DatasetRef, Status};

    pub(super) fn results(cases: Vec<CaseResult>) -> RunResults {
        RunResults {
            run_id: "r1".to_owned(),
            dir: PathBuf::new(),
            dataset: DatasetRef {
                name: "d".to_owned(),
                digest: None,
                packages_digest: None,
            },
            casepack_version: "1.2.3".to_owned(),
            agent: AgentRef {
                name: "cli".to_owned(),
                model: Some("m".to_owned()),
                files: Vec::new(),
            },
            engine: "casepack".to_owned(),
            isolated: true,
            pass_at: 1.0,
            attempts: 1,
            thresholds: Vec::new(),
            hooks: Vec::new(),
            warnings: Vec::new(),
            interrupted: false,
            other_shards: Vec::new(),
            merged: Vec::new(),
            cases,
        }
    }

    pub(super) fn case(id: &str, status: Status, reward: Option<f64>) -> CaseResult {
        let mut case = CaseResult::new(&CaseId::new(id).unwrap());
        (case.status, case.reward) = (status, reward);
        case.duration = Duration::from_millis(1234);
        case
    }

    /// The fields that scripts rest on (cli.md, "Fixed names").
    #[test]
    fn has_the_documented_shape() {
        let cases = vec![
            case("a", Status::Passed, Some(1.0)),
            case("b", Status::Failed, Some(0.5)),
            case("c", Status::Error, None),
            case("d", Status::Skipped, None),
        ];
        let document = results_json(&results(cases));
        insta::assert_snapshot!(format!("{document:#}"));
        // And is read back.
        let read: RunResults = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(results_json(&read), document);
    }

    /// Whoever crashes in half of the cases is not told to be perfect.
    #[test]
    fn the_mean_says_what_it_is_of() {
        let none = results(vec![case("a", Status::Error, None)]);
        assert_eq!(none.summary().mean_reward, None);
        assert_eq!(none.summary().mean_reward_errors_as_zero, Some(0.0));
        let half = results(vec![
            case("a", Status::Passed, Some(1.0)),
            case("b", Status::Error, None),
            case("c", Status::Skipped, None),
        ]);
        let summary = half.summary();
        assert_eq!(summary.mean_reward, Some(1.0));
        assert_eq!(summary.mean_reward_errors_as_zero, Some(0.5));
        assert_eq!(
            mean_reward(&summary).unwrap(),
            "mean reward 0.50 (no verdict counts as 0; 1.00 where there is one)"
        );
        let mut tried = case("a", Status::Error, Some(1.0));
        tried.attempts = half.cases;
        let summary = results(vec![tried]).summary();
        assert_eq!(summary.mean_reward_errors_as_zero, Some(0.5));
        let fine = results(vec![case("a", Status::Passed, Some(1.0))]).summary();
        assert_eq!(mean_reward(&fine).unwrap(), "mean reward 1.00");
        assert_eq!(mean_reward(&results(Vec::new()).summary()), None);
        assert!(!none.all_passed());
        assert!(results(vec![case("a", Status::Passed, Some(1.0))]).all_passed());
        assert!(!results(vec![case("a", Status::Skipped, None)]).all_passed());
    }

    #[test]
    fn rows_are_raw_and_rounded() {
        let mut row = case("a", Status::Failed, Some(0.666));
        row.message = Some("\u{1b}[31mred".to_owned());
        let rows = rows(&results(vec![row]));
        assert_eq!(
            rows,
            [Row {
                case: "a".to_owned(),
                status: "failed",
                reward: "0.67".to_owned(),
                time: "1.2 s".to_owned(),
                message: "\u{1b}[31mred".to_owned(),
            }]
        );
    }

    #[test]
    fn replaces_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut all = results(vec![case("a", Status::Passed, Some(1.0))]);
        dir.path().clone_into(&mut all.dir);
        write(&all, Secrets::default()).unwrap();
        all.interrupted = true;
        let text = std::fs::read_to_string(write(&all, Secrets::default()).unwrap()).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, results_json(&all));
        let written = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(written, 1 + DOCUMENTS.len());
    }
}
