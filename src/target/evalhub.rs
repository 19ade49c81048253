//! The plain tree that EvalHub's stock adapters read: one directory per case with everything in it
//! (policy 26, evalhub.md 6).

mod config;
mod files;
mod strict;

use std::collections::{BTreeMap, BTreeSet};

pub use self::config::config;
pub use self::files::{
    BENCHMARKS, Fetched, OBJECTS, Part, ReleaseKey, Request, label, release_key,
};
pub use self::strict::{Kind, check_file};
use crate::assemble::Views;
use crate::dataset::JUDGE_FILES;
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::path::{CaseId, TreePath, fold};
use crate::tree::{Mode, Tree, TreeBuilder};

/// Workspace and evaluation views merged, without the judges' own files, which the stock adapter
/// does not read from there. Names what the agent can read there and should not (policy 26).
pub fn case(id: &CaseId, views: &Views, diags: &mut Diagnostics) -> Tree {
    let mut merged = TreeBuilder::new();
    for (path, entry) in views.workspace.iter() {
        // Proof: a tree has no clash with itself.
        let placed = merged.insert(path.clone(), entry.mode, entry.content.clone());
        debug_assert!(placed.is_ok());
    }
    let judges = TreePath::new(JUDGE_FILES).ok();
    for (path, entry) in views.evaluation.iter() {
        if judges
            .as_ref()
            .is_some_and(|judges| path.starts_with(judges))
        {
            continue;
        }
        if let Err(clash) = merged.insert(path.clone(), entry.mode, entry.content.clone()) {
            diags.push(
                Diagnostic::new(
                    Rule::PathCollision,
                    format!(
                        "In EvalHub's layout '{}' of the case and '{}' of the workspace need one \
                         place.",
                        clash.adding, clash.at
                    ),
                )
                .help("Rename one of them, or give the shared entry another dest.")
                .case(id),
            );
            continue;
        }
        diags.push(
            Diagnostic::new(
                Rule::AnswerKeyReadable,
                format!("The agent can read '{path}' in EvalHub's layout."),
            )
            .help("Use packages or bundles for cases whose answers must stay secret.")
            .case(id),
        );
    }
    merged.finish()
}

/// The directory of a built tree that holds the cases.
pub const CASES: &str = "cases";
/// The config in a built tree.
const CONFIG: &str = "eval.yaml";
/// How long the stock downloader may take; nothing in a job can raise it (evalhub.md 0).
const DEADLINE_SECONDS: u64 = 600;
/// What one object takes it, as it gets them one after another, in milliseconds.
const OBJECT_MS: u64 = 30;
/// Bytes that it gets in a millisecond: 50 MB/s.
const BYTES_PER_MS: u64 = 50_000;
/// Bytes that a pod's disk may not have room for, twice: agent-eval copies them.
const LARGE_BYTES: u64 = 10_000_000_000;
/// Names of one kind are told one by one up to this number.
const TOLD: usize = 20;

/// How plain objects are laid out below their prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `eval.yaml` and `cases/<case>/…`, for `EvalHub`'s own downloader.
    TestData,
    /// `<case>/<file>`, for the downloader of the agent-eval adapter.
    AgentEval,
}

impl Layout {
    /// The name, as `--layout` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::TestData => "evalhub-testdata",
            Self::AgentEval => "agent-eval-s3",
        }
    }

    /// The layout of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::TestData, Self::AgentEval]
            .into_iter()
            .find(|layout| layout.name() == name)
    }

    /// The objects of a built tree, by what follows their prefix.
    pub fn objects(self, built: &Tree) -> Tree {
        match (self, TreePath::new(CASES)) {
            (Self::AgentEval, Ok(cases)) => built.below(&cases),
            _ => built.clone(),
        }
    }

    /// The case that an object belongs to.
    fn case(self, path: &TreePath) -> Option<CaseId> {
        let mut components = path.components();
        if self == Self::TestData && components.next() != Some(CASES) {
            return None;
        }
        let case = components.next()?;
        components.next()?;
        CaseId::new(case).ok().filter(|_| !case.starts_with('.'))
    }
}

/// Tells what the stock downloaders would lose, choke on or mistake for something else
/// (evalhub.md 6.4).
pub fn check(objects: &Tree, layout: Layout, diags: &mut Diagnostics) {
    let mut cases: BTreeMap<CaseId, bool> = BTreeMap::new();
    for (path, entry) in objects.iter() {
        odd_name(path, diags);
        let Some(case) = layout.case(path) else {
            if layout != Layout::TestData || path.as_str() != CONFIG {
                diags.push(
                    Diagnostic::new(
                        Rule::ObjectOutsideCase,
                        format!("'{path}' is not in the directory of a case."),
                    )
                    .help(
                        "Every directory counts as a case there, and other files are lost: move \
                         it into a case or leave it out.",
                    ),
                );
            }
            continue;
        };
        let depth = path.components().count();
        let below_case = depth - if layout == Layout::TestData { 2 } else { 1 };
        let is_input =
            below_case == 1 && matches!(path.name(), "input.yaml" | "input.yml" | "input.json");
        *cases.entry(case.clone()).or_default() |= is_input;
        if layout == Layout::AgentEval && below_case > 1 {
            diags.push(
                Diagnostic::new(
                    Rule::NestedObject,
                    format!(
                        "'{}' lies in a directory of the case.",
                        path.as_str()
                            .trim_start_matches(case.as_str())
                            .trim_start_matches('/')
                    ),
                )
                .help(
                    "The downloader of agent-eval can not restore it: use --layout \
                     evalhub-testdata, or keep all files of a case at its top.",
                )
                .case(&case),
            );
        }
        if entry.mode == Mode::Executable {
            let name = path.as_str().splitn(depth - below_case + 1, '/').last();
            diags.push(
                Diagnostic::new(
                    Rule::ExecutableBitLost,
                    format!(
                        "'{}' is executable here and will not be in the pod.",
                        name.unwrap_or_default()
                    ),
                )
                .help("Call it by its interpreter, as `sh NAME`; objects have no modes.")
                .case(&case),
            );
        }
    }
    for (case, _) in cases.iter().filter(|(_, has_input)| !**has_input) {
        diags.push(
            Diagnostic::new(Rule::InputMissing, "The case has no input file.")
                .help("Add an input.yaml.")
                .case(case),
        );
    }
    if cases.is_empty() {
        diags.push(
            Diagnostic::new(Rule::NoCases, "There is no case to publish.")
                .help("An empty prefix ends EvalHub's job; add a case."),
        );
    }
    let has_config = TreePath::new(CONFIG).is_ok_and(|config| objects.get(&config).is_some());
    if layout == Layout::TestData && !has_config {
        diags.push(
            Diagnostic::new(
                Rule::ConfigNotFound,
                "There is no eval.yaml beside the cases.",
            )
            .help("Build with --target evalhub, and publish that directory."),
        );
    }
    clashes(objects, diags);
    too_much(objects, layout, diags);
}

/// Names that keys or the pod's file system take amiss.
fn odd_name(path: &TreePath, diags: &mut Diagnostics) {
    let odd = |letter: char| letter == '\\' || letter.is_control();
    if path.as_str().contains(odd) {
        diags.push(
            Diagnostic::new(
                Rule::OddObjectName,
                format!("'{path}' has a backslash or a control character in its name."),
            )
            .help("Rename the file: such keys are changed or refused on their way."),
        );
    }
}

/// Names that are one on file systems that fold letter case or Unicode forms.
fn clashes(objects: &Tree, diags: &mut Diagnostics) {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let mut told = BTreeSet::new();
    for (path, _) in objects.iter() {
        let text = path.as_str();
        let ends = text.match_indices('/').map(|(end, _)| end);
        for end in ends.chain([text.len()]) {
            let place = text.get(..end).unwrap_or(text);
            let first = *seen.entry(fold(place)).or_insert(place);
            if first != place && told.len() < TOLD && told.insert(place) {
                diags.push(
                    Diagnostic::new(
                        Rule::PathCollision,
                        format!("'{first}' and '{place}' are one name on some file systems."),
                    )
                    .help("Rename one of them."),
                );
            }
        }
    }
}

/// What the stock downloaders will hardly get in time, or have no room for.
fn too_much(objects: &Tree, layout: Layout, diags: &mut Diagnostics) {
    let count = objects.len() as u64;
    let bytes = objects.bytes();
    let seconds = seconds(count, bytes);
    let megabytes = bytes / 1_000_000;
    if seconds > DEADLINE_SECONDS / 2 {
        let (who, end) = match layout {
            Layout::TestData => (
                "EvalHub's downloader",
                format!(", and gives up after {DEADLINE_SECONDS} s"),
            ),
            Layout::AgentEval => ("agent-eval's downloader", String::new()),
        };
        let message = format!(
            "{who} would take about {seconds} s for {count} objects of {megabytes} MB{end}."
        );
        diags.push(Diagnostic::new(Rule::SlowDownload, message).help(
            "Publish parts with --shard I/N below a prefix each, one benchmark for each; or \
                 use casepack as EvalHub's init image.",
        ));
    }
    if bytes > LARGE_BYTES {
        let message = format!("The objects have {megabytes} MB, which the pod's disk must hold.");
        diags.push(Diagnostic::new(Rule::LargeDownload, message).help(
            "agent-eval copies them once more: publish parts with --shard I/N below a prefix \
                 each, or leave large files out.",
        ));
    }
}

/// How long the stock downloaders take, one object after another.
pub fn seconds(objects: u64, bytes: u64) -> u64 {
    (objects * OBJECT_MS + bytes / BYTES_PER_MS) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::tree::Content;

    #[test]
    fn what_takes_too_long_or_too_much_room_is_told() {
        let objects = |count: u64, size: u64| {
            let mut tree = TreeBuilder::new();
            for number in 0..count {
                let path = TreePath::new(&format!("case-{number}/input.yaml")).unwrap();
                let content = Content {
                    digest: Digest::of(b""),
                    size,
                    ..Content::bytes(*b"")
                };
                tree.insert(path, Mode::Regular, content).unwrap();
            }
            tree.finish()
        };
        for (count, size, rules) in [
            (10_000, 10, vec![]),
            (10_100, 10, vec![Rule::SlowDownload]),
            (1, 11_000_000_000, vec![Rule::LargeDownload]),
            (
                2,
                16_000_000_000,
                vec![Rule::LargeDownload, Rule::SlowDownload],
            ),
        ] {
            let mut diags = Diagnostics::default();
            too_much(&objects(count, size), Layout::AgentEval, &mut diags);
            let mut told: Vec<Rule> = diags.iter().map(|found| found.rule).collect();
            told.sort();
            assert_eq!(told, rules, "{count} of {size}");
        }
    }
}
