//! What a verb hands back: facts, from which `ui` makes text, JSON or annotations.

use std::error::Error;

use serde_json::{Map, Value};

use super::exit::Exit;
use crate::diag::Diagnostics;

/// How a command went.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// All findings.
    pub(crate) diagnostics: Diagnostics,
    /// The result for people; already escaped. Ends with a line feed unless it is empty.
    pub(crate) text: String,
    /// The result for machines: the fields of the document beside `schema` and `diagnostics`.
    pub(crate) fields: Map<String, Value>,
    /// Cases that did not pass: id and why; raw. For outputs that point at what is wrong.
    pub(crate) not_passed: Vec<(String, String)>,
    /// Why it stopped, when that is no finding.
    pub(crate) failure: Option<Failure>,
    /// The exit code.
    pub(crate) exit: Exit,
}

/// Why a command stopped: what was done to what, why it failed and what to do next (cli.md).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What failed; raw.
    pub(crate) message: String,
    /// Why, outermost first; raw.
    pub(crate) causes: Vec<String>,
    /// What to do next.
    pub(crate) help: String,
}

impl Outcome {
    /// Nothing but what was found; the exit code says whether there was an error among it.
    pub(crate) fn of(diagnostics: Diagnostics) -> Self {
        let exit = if diagnostics.has_errors() {
            Exit::Findings
        } else {
            Exit::Done
        };
        Self {
            diagnostics,
            text: String::new(),
            fields: Map::new(),
            not_passed: Vec::new(),
            failure: None,
            exit,
        }
    }

    /// A result without findings.
    pub(crate) fn text(text: String) -> Self {
        Self {
            text,
            ..Self::of(Diagnostics::default())
        }
    }

    /// Adds a field of the document.
    #[must_use]
    pub(crate) fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Says why it stopped.
    #[must_use]
    pub(crate) fn failed(mut self, exit: Exit, failure: Failure) -> Self {
        self.failure = Some(failure);
        self.exit = exit;
        self
    }

    /// Replaces the exit code by a worse one.
    #[must_use]
    pub(crate) fn at_least(mut self, exit: Exit) -> Self {
        self.exit = self.exit.max(exit);
        self
    }
}

impl Failure {
    /// A failure without a deeper reason.
    pub(crate) fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            causes: Vec::new(),
            help: help.into(),
        }
    }

    /// `error` and everything that it came from.
    pub(crate) fn from_error(error: &dyn Error, help: impl Into<String>) -> Self {
        let mut letters = error.to_string();
        if let Some(first) = letters.chars().next() {
            letters.replace_range(..first.len_utf8(), &first.to_uppercase().to_string());
        }
        let mut failure = Self::new(letters, help);
        let mut source = error.source();
        while let Some(cause) = source {
            failure.causes.push(cause.to_string());
            source = cause.source();
        }
        if !failure.message.ends_with(['.', '!', '?']) && failure.causes.is_empty() {
            failure.message.push('.');
        }
        failure
    }
}

/// Adds that the command was interrupted.
pub(super) fn interrupted(outcome: Outcome, state: &str) -> Outcome {
    let failure = Failure::new(
        format!("Interrupted. {state}"),
        "The same command does the rest.",
    );
    outcome.failed(Exit::Interrupted, failure)
}

/// Case ids, for documents.
pub(super) fn ids(cases: &[crate::path::CaseId]) -> Vec<String> {
    cases.iter().map(ToString::to_string).collect()
}
