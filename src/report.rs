//! Outcomes for people and machines: `results.json` and the rows of the table.
//!
//! Owns the shape of the document (`casepack.results.v1`). Refuses to know how a case is run and
//! what the terminal looks like; texts are handed on raw, whoever shows them escapes them.

use std::path::PathBuf;

use serde_json::Value;

use crate::escape;
use crate::fs::{FsError, write_atomic};
use crate::run::RunResults;

/// The `schema` field of `results.json`.
pub const SCHEMA: &str = "casepack.results.v1";

/// The document `results.json`.
pub fn results_json(results: &RunResults) -> Value {
    // The keys are all texts and the values finite, so that it always can be written.
    let mut document = serde_json::to_value(results).unwrap_or_default();
    document["schema"] = SCHEMA.into();
    document["summary"] = serde_json::to_value(results.summary()).unwrap_or_default();
    document
}

/// Writes `results.json` into the run's directory, atomically; returns its path.
///
/// # Errors
/// What the disk gave.
pub fn write(results: &RunResults) -> Result<PathBuf, FsError> {
    let path = results.dir.join("results.json");
    // The document's keys are all texts, so that it always can be written.
    let text = escape::json(&results_json(results));
    write_atomic(&path, text.as_bytes(), 0o644)?;
    Ok(path)
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::path::CaseId;
    use crate::run::{AgentRef, CaseResult, DatasetRef, Status};

    fn results(cases: Vec<CaseResult>) -> RunResults {
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
            cases,
        }
    }

    fn case(id: &str, status: Status, reward: Option<f64>) -> CaseResult {
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

    #[test]
    fn the_mean_is_over_the_cases_with_a_reward() {
        let none = results(vec![case("a", Status::Error, None)]);
        assert_eq!(none.summary().mean_reward, None);
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
        write(&all).unwrap();
        all.interrupted = true;
        let text = std::fs::read_to_string(write(&all).unwrap()).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, results_json(&all));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
