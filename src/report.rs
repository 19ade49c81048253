//! Outcomes for people and machines: `results.json` and the rows of the table.
//!
//! Owns the shape of the document (`casepack.results.v1`). Refuses to know how a case is run and
//! what the terminal looks like; texts are handed on raw, whoever shows them escapes them.

use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::run::RunResults;

/// The `schema` field of `results.json`.
pub const SCHEMA: &str = "casepack.results.v1";

/// The document `results.json`.
pub fn results_json(results: &RunResults) -> Value {
    json!({
        "schema": SCHEMA,
        "run_id": results.run_id,
        "casepack_version": env!("CARGO_PKG_VERSION"),
        "dataset": results.dataset,
        "agent": {"name": results.agent, "model": results.model, "files": results.agent_files},
        "isolated": results.isolated,
        "warnings": results.warnings,
        "interrupted": results.interrupted,
        "pass_at": results.pass_at,
        "cases": results.cases,
        "summary": results.summary(),
    })
}

/// Writes `results.json` into the run's directory, atomically; returns its path.
///
/// # Errors
/// What the disk gave.
pub fn write(results: &RunResults) -> io::Result<PathBuf> {
    let path = results.dir.join("results.json");
    let temporary = results.dir.join(".results.json.tmp");
    let mut text = serde_json::to_string_pretty(&results_json(results))?;
    text.push('\n');
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, &path)?;
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
