//! Harbor task packages (policy 18–25, harbor.md).
//!
//! Owns what a package holds, how it is called, and the digest that Harbor itself computes for it.
//! Refuses to know disk and network.
//! Invariant: what is returned here, Harbor loads; what Harbor would skip in silence is an error.
//!
//! ```text
//! case-001/
//!   task.toml                    names, environment, timeouts
//!   instruction.md               or steps/<id>/instruction.md
//!   environment/                 with an image: the workspace, which Harbor uploads
//!   environment/Dockerfile       without: its build context ...
//!   environment/workspace/       ... and the workspace
//!   tests/test.sh judge.py       the verifier; judge_llm.py when a judge asks a model
//!   tests/config.json            judges and case; or steps/<id>/tests/config.json
//!   tests/start.json             the workspace as it was
//!   tests/evaluation/ judges/    answer keys, files of judges
//!   solution/                    the case's own, when it has a solve.sh
//! ```

mod checks;
mod digest;
mod environment;
mod ignore;
mod name;
mod native;
mod options;
mod task_toml;
mod verifier;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::digest::{DigestError, dataset_digest, dataset_toml, digest, listed, read_task};
pub use self::name::SafeName;
pub use self::options::{Flags, Options, Profile, VerifierKind};
use self::task_toml::TaskToml;
use self::verifier::{Judging, Part};
use crate::assemble::Views;
use crate::dataset::{Case, Dataset, Format, Instruction, JUDGE_FILES, Step, Verifier};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::digest::Digest;
use crate::path::{CaseId, MAX_PATH_BYTES, TreePath, fold};
use crate::tree::{Content, Mode, Tree, TreeBuilder, listing_file};

/// The judge runner that packages carry.
const JUDGE: &[u8] = include_bytes!("../../templates/judge.py");
/// The part of it that LLM judges need.
const JUDGE_LLM: &[u8] = include_bytes!("../../templates/judge_llm.py");
/// Its test script.
const TEST: &[u8] = include_bytes!("../../templates/test.sh");
/// The test script that calls the engine of agent-eval-harness.
const TEST_HARNESS: &str = include_str!("../../templates/test-harness.sh");
/// The workspace as the agent finds it, listed.
const START: &str = "tests/start.json";
/// What LLM judges read from the environment; empty where the host does not set it.
const MODEL_ENV: &[&str] = &[
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "EVAL_JUDGE_MODEL",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
];

/// One package.
#[derive(Debug, Clone)]
pub struct Package {
    /// The directory's name.
    pub name: SafeName,
    /// `[task].name`: `org/name`.
    pub task_name: String,
    /// All files.
    pub tree: Tree,
    /// Which of them is the listing of the workspace ([`listing_file`]).
    pub listing: Option<TreePath>,
}

/// What is the same in all packages of a dataset, computed and checked once.
#[derive(Debug)]
pub struct Prepared {
    names: BTreeMap<CaseId, SafeName>,
    org: String,
    judging: Judging,
    /// `[environment].env`.
    env: BTreeMap<String, String>,
    /// Files below `tests/` that depend on no case.
    tests: Vec<(&'static str, Mode, Content)>,
}

impl Prepared {
    /// The directory name of a case of the dataset.
    pub fn name(&self, case: &CaseId) -> Option<&SafeName> {
        self.names.get(case)
    }

    /// What files that every package has hold.
    pub fn shared(&self) -> impl Iterator<Item = Digest> {
        self.tests.iter().map(|(_, _, content)| content.digest)
    }
}

/// Checks what concerns the whole dataset and computes what all packages share; `None` after an
/// error.
pub fn prepare(dataset: &Dataset, options: &Options, diags: &mut Diagnostics) -> Option<Prepared> {
    let before = diags.count(Severity::Error);
    let names = name::table(&dataset.cases, diags);
    let judging = Judging::new(&dataset.verification, options);
    let mut env = BTreeMap::new();
    if dataset.format != Format::HarborTask {
        checks::dataset(dataset, options, &judging, diags);
        env = checks::environment(dataset, diags);
    }
    let tests = match options.verifier {
        VerifierKind::Bundled => {
            let mut tests = vec![
                ("test.sh", Mode::Executable, Content::bytes(TEST)),
                ("judge.py", Mode::Regular, Content::bytes(JUDGE)),
            ];
            if judging.asks_model() {
                tests.push(("judge_llm.py", Mode::Regular, Content::bytes(JUDGE_LLM)));
            }
            tests
        }
        VerifierKind::Harness => {
            let script = harness_script(&judging, &options.workdir);
            vec![("test.sh", Mode::Executable, Content::bytes(script))]
        }
    };
    let prepared = Prepared {
        names,
        org: org(dataset, options),
        judging,
        env,
        tests,
    };
    (diags.count(Severity::Error) == before).then_some(prepared)
}

/// The first part of task names.
fn org(dataset: &Dataset, options: &Options) -> String {
    let own = || name::part(&dataset.name, "dataset");
    options.org.clone().unwrap_or_else(own)
}

/// `org/name` of the dataset, for [`dataset_toml`].
pub fn dataset_name(dataset: &Dataset, options: &Options) -> String {
    let name = name::part(&dataset.name, "dataset");
    format!("{}/{name}", org(dataset, options))
}

fn harness_script(judging: &Judging, workdir: &str) -> Vec<u8> {
    let outputs: Vec<String> = judging
        .outputs()
        .iter()
        .filter_map(|output| output.path.as_ref())
        .map(|path| format!("'{}'", path.as_str().replace('\'', "'\\''")))
        .collect();
    TEST_HARNESS
        .replace("@WORKDIR@", workdir)
        .replace("@OUTPUTS@", &outputs.join(" "))
        .into_bytes()
}

/// The package of one case; `None` after an error, which is in `diags`.
pub fn package(
    dataset: &Dataset,
    case: &Case,
    views: &Views,
    options: &Options,
    shared: &Prepared,
    diags: &mut Diagnostics,
) -> Option<Package> {
    if case.verifier == Verifier::Own {
        return native::package(case, views, shared, diags);
    }
    let before = diags.count(Severity::Error);
    let name = shared.names.get(&case.id)?.clone();
    let task_name = format!("{}/{}", shared.org, name.as_str());
    let image = case.image.as_deref().or(options.image.as_deref());
    let steps = steps(case, options, dataset, diags);
    check_case(case, views, image, options, &steps, shared, diags);

    let task = TaskToml {
        name: &task_name,
        description: &dataset.description,
        dataset: &dataset.name,
        case: case.id.as_str(),
        judge_mode: shared.judging.mode(),
        workspace: views.workspace.id(),
        metadata: &case.metadata,
        image,
        workdir: &options.workdir,
        env: &shared.env,
        agent_timeout_sec: agent_timeout(None, options, dataset),
        agent_user: options.agent_user.as_deref(),
        verifier_timeout_sec: options.verifier_timeout_sec,
        verifier_env: if shared.judging.asks_model() {
            MODEL_ENV
        } else {
            &[]
        },
        separate: options.profile == Profile::Strict,
        steps: &steps
            .iter()
            .filter_map(|step| Some((step.name.clone()?, step.timeout_sec)))
            .collect::<Vec<_>>(),
    };
    let mut files = Files::default();
    files.text("task.toml", task.text());
    for (at, step) in steps.iter().enumerate() {
        let prefix = match &step.name {
            Some(name) => format!("steps/{name}/"),
            None => String::new(),
        };
        let part = Part {
            step: step.id,
            last: at + 1 == steps.len(),
        };
        files.text(
            &format!("{prefix}instruction.md"),
            format!("{}\n", step.text),
        );
        let (file, bytes) = match options.verifier {
            VerifierKind::Bundled => {
                let image = image.unwrap_or(&options.base_image);
                let judging = &shared.judging;
                let config = judging.config(dataset, case, part, image, &options.workdir);
                ("config.json", config)
            }
            VerifierKind::Harness => ("eval.yaml", shared.judging.eval_yaml(dataset, part)),
        };
        files.bytes(&format!("{prefix}tests/{file}"), bytes);
    }
    environment_files(&mut files, views, image, options, shared);
    test_files(&mut files, views, &steps, shared);
    let tree = files.finish(&case.id, diags);
    (diags.count(Severity::Error) == before).then_some(Package {
        name,
        task_name,
        tree,
        listing: TreePath::new(START).ok(),
    })
}

/// `environment/` (policy 22).
fn environment_files(
    files: &mut Files,
    views: &Views,
    image: Option<&str>,
    options: &Options,
    shared: &Prepared,
) {
    if image.is_some() {
        files.tree("environment", &views.workspace);
    } else {
        let outputs = shared.judging.outputs();
        let dockerfile = environment::dockerfile(options, &views.workspace, outputs);
        files.text("environment/Dockerfile", dockerfile);
        files.tree("environment/workspace", &views.workspace);
    }
}

/// `tests/` but what depends on the step, and `solution/` (policy 19, 21). With steps, Harbor
/// uploads `tests/` first, then the step's own; `solution/<step id>/` with a `solve.sh` is the
/// solution of that step.
fn test_files(files: &mut Files, views: &Views, steps: &[Told<'_>], shared: &Prepared) {
    for (name, mode, content) in &shared.tests {
        files.add(&format!("tests/{name}"), *mode, content.clone());
    }
    files.bytes(START, listing_file(views.workspace.iter()));
    let evaluation = &views.evaluation;
    let has = |path: &str| TreePath::new(path).is_ok_and(|path| evaluation.get(&path).is_some());
    // Where evaluation material goes, by the directory that it lies in; the first one counts.
    let mut homes = vec![(format!("{JUDGE_FILES}/"), "tests/judges/".to_owned())];
    for step in steps {
        if let (Some(id), Some(name)) = (step.id, &step.name)
            && has(&format!("solution/{id}/solve.sh"))
        {
            let own = format!("solution/{id}/");
            homes.push((own, format!("steps/{name}/solution/")));
        }
    }
    if has("solution/solve.sh") {
        homes.push(("solution/".to_owned(), "solution/".to_owned()));
    }
    homes.push((String::new(), "tests/evaluation/".to_owned()));
    for (path, entry) in evaluation.iter() {
        let to = homes
            .iter()
            .find_map(|(from, to)| Some(format!("{to}{}", path.as_str().strip_prefix(from)?)));
        files.add(&to.unwrap_or_default(), entry.mode, entry.content.clone());
    }
}

/// One step, ready for a package.
struct Told<'a> {
    id: Option<&'a str>,
    /// The directory below `steps/`; `None` for the only step of a single-step case.
    name: Option<String>,
    text: &'a str,
    timeout_sec: f64,
}

/// The steps of the case; tells what they have that no package can carry.
fn steps<'a>(
    case: &'a Case,
    options: &Options,
    dataset: &Dataset,
    diags: &mut Diagnostics,
) -> Vec<Told<'a>> {
    let mut keys = BTreeSet::new();
    let mut told = Vec::new();
    for step in &case.steps {
        let id = step.id.as_deref().filter(|_| case.multi_step);
        let name = id.map(name::of_step);
        if let (Some(id), Some(name)) = (id, &name)
            && !keys.insert(name::step_key(name))
        {
            diags.push(
                Diagnostic::new(
                    Rule::Duplicate,
                    format!("The step '{id}' has the name of another step but for letter case or Unicode form; Harbor refuses that."),
                )
                .help("Rename one of the steps.")
                .case(&case.id),
            );
        }
        let text = match &step.instruction {
            Instruction::Text(text) => text.as_str(),
            // The run renders it from the dataset.
            Instruction::Deferred { template, .. } if options.local => template.as_str(),
            Instruction::Deferred { .. } => {
                diags.push(
                    Diagnostic::new(
                        Rule::StepsReferenceInPackage,
                        format!(
                            "The instruction of the step '{}' uses the results of earlier steps, which exist only while a case runs.",
                            step.id.as_deref().unwrap_or("1")
                        ),
                    )
                    .help("Tell the agent where the earlier step leaves its results.")
                    .case(&case.id),
                );
                ""
            }
        };
        told.push(Told {
            id,
            name,
            text,
            timeout_sec: agent_timeout(step.timeout_sec, options, dataset),
        });
        step_options(step, case, diags);
    }
    if told.is_empty() {
        diags.push(invalid(case, "It has no instruction"));
    }
    told
}

/// Flag, then step, then dataset, then default (see [`Options::agent_timeout_sec`]).
fn agent_timeout(step: Option<f64>, options: &Options, dataset: &Dataset) -> f64 {
    options
        .agent_timeout_sec
        .or(step)
        .or(dataset.execution.timeout_sec)
        .unwrap_or(Options::AGENT_TIMEOUT_SEC)
}

/// Tells what a step says that a package does not.
fn step_options(step: &Step, case: &Case, diags: &mut Diagnostics) {
    let Some(id) = step.id.as_deref() else { return };
    if let Some(runner) = &step.runner {
        checks::repo_mode(runner, diags);
    }
    let given = checks::given(&[
        ("env", !step.env.is_empty()),
        ("runner", step.runner.is_some()),
        ("max_budget_usd", step.max_budget_usd.is_some()),
    ]);
    if let Some(given) = given {
        diags.push(
            Diagnostic::new(
                Rule::AgentOptionIgnored,
                format!(
                    "Harbor has no place for what the step '{id}' says about its agent; left out: {given}."
                ),
            )
            .severity(if step.env.is_empty() {
                Severity::Note
            } else {
                Severity::Warning
            })
            .help("Give them to the program that runs the packages.")
            .case(&case.id),
        );
    }
}

/// Tells what is wrong with one case as a package.
fn check_case(
    case: &Case,
    views: &Views,
    image: Option<&str>,
    options: &Options,
    steps: &[Told<'_>],
    shared: &Prepared,
    diags: &mut Diagnostics,
) {
    if image.is_some() {
        for name in environment::blocking_names(&views.workspace) {
            diags.push(
                Diagnostic::new(
                    Rule::HarborEnvironmentName,
                    format!(
                        "With an image, '{name}' at the top of the workspace makes Harbor build it \
                         and upload nothing of the workspace."
                    ),
                )
                .help("Put the file into a directory, or build without --image.")
                .entry(name)
                .case(&case.id),
            );
        }
    }
    if options.profile == Profile::Strict {
        if image != options.image.as_deref() || image.is_none() {
            checks::strict_image(image, diags);
        }
        one_name_each(case, &views.workspace, diags);
    }
    if let Some(last) = steps.last().and_then(|step| step.id)
        && shared.judging.mode() != "none"
        && let Some((rule, lost)) = shared.judging.lost_on_last_step(last)
    {
        diags.push(
            Diagnostic::new(rule, lost)
                .help("Give the last step a judge, or judges without `step`, and let `reward` read those.")
                .field("judges"),
        );
    }
    for (path, _) in views.workspace.iter() {
        if digest::is_left_out_by_default(path) {
            diags.push(
                Diagnostic::new(
                    Rule::HarborDigestIgnores,
                    format!(
                        "Harbor leaves '{path}' of the workspace out of its digest because of its \
                         name."
                    ),
                )
                .help("Rename the file; else a change in it goes unnoticed by what relies on the digest.")
                .entry(path.as_str())
                .case(&case.id),
            );
        }
    }
}

/// In the strict profile two names that are one on some file systems are an error (policy 6).
fn one_name_each(case: &Case, workspace: &Tree, diags: &mut Diagnostics) {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for (path, _) in workspace.iter() {
        for end in path
            .as_str()
            .match_indices('/')
            .map(|(at, _)| at)
            .chain([path.as_str().len()])
        {
            let Some(place) = path.as_str().get(..end) else {
                continue;
            };
            let other = *seen.entry(fold(place)).or_insert(place);
            if other != place {
                diags.push(
                    Diagnostic::new(
                        Rule::NameCaseCollision,
                        format!("'{other}' and '{place}' are one name on some file systems."),
                    )
                    .severity(Severity::Error)
                    .help("Rename one of them.")
                    .case(&case.id),
                );
            }
        }
    }
}

/// Something that would make Harbor skip the package in silence.
fn invalid(case: &Case, what: &str) -> Diagnostic {
    Diagnostic::new(
        Rule::PackageInvalid,
        format!("{what}, so Harbor would skip the package."),
    )
    .help("Mend what the message names.")
    .case(&case.id)
}

/// The files of a package under construction.
#[derive(Default)]
struct Files {
    tree: TreeBuilder,
    /// What could not be placed; there is no such thing unless a layout rule is broken.
    refused: BTreeSet<String>,
}

impl Files {
    fn add(&mut self, path: &str, mode: Mode, content: Content) {
        let placed =
            TreePath::new(path).is_ok_and(|place| self.tree.insert(place, mode, content).is_ok());
        if !placed {
            self.refused.insert(path.to_owned());
        }
    }

    fn bytes(&mut self, path: &str, bytes: impl Into<Arc<[u8]>>) {
        self.add(path, Mode::Regular, Content::bytes(bytes));
    }

    fn text(&mut self, path: &str, text: String) {
        self.bytes(path, text.into_bytes());
    }

    /// All files of `tree`, below the directory `dir`.
    fn tree(&mut self, dir: &str, tree: &Tree) {
        let long = |path: &&TreePath| dir.len() + 1 + path.as_str().len() > MAX_PATH_BYTES;
        let long = tree.iter().map(|(path, _)| path).filter(long);
        self.refused
            .extend(long.map(|path| format!("{dir}/{path}")));
        let grafted = TreePath::new(dir).is_ok_and(|dir| self.tree.graft(&dir, tree).is_ok());
        if !grafted {
            self.refused.insert(dir.to_owned());
        }
    }

    fn finish(self, case: &CaseId, diags: &mut Diagnostics) -> Tree {
        for path in self.refused {
            diags.push(
                Diagnostic::new(
                    Rule::PathTooLong,
                    format!(
                        "'{path}' can not be a path of a package: it has more than \
                         {MAX_PATH_BYTES} bytes, or stands where another file is."
                    ),
                )
                .help("Shorten or rename the file of the case.")
                .case(case),
            );
        }
        self.tree.finish()
    }
}

#[cfg(test)]
mod tests;
