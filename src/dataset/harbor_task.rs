//! The reader of directories that are Harbor tasks already: the second proof of the model.
//!
//! Owns what makes a task loadable for Harbor (harbor.md 1, 2, 5): Harbor skips a package that is
//! not, and says nothing; here each reason is told. Refuses to know targets.

pub(crate) mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use toml_edit::{Document, Item, TableLike};

use super::dirs::{self, CaseDir};
use super::find::{self, Found};
use super::{
    Case, CaseReader, Dataset, Execution, Format, Instruction, Interception, LoadRequest, Mode,
    Rest, Runner, Sources, Step, Verification, Verifier, expand_home,
};
use crate::diag::{Diagnostic, Diagnostics, Rule, Source};
use crate::fs::{self, Kind, ResolveError, Root, Roots, Walk};
use crate::path::{CaseId, TreePath};
use crate::yaml::Yaml;

const TASK: &str = "task.toml";
const DATASET: usize = 1;

/// Reads the tasks that were found: one, or a directory of them.
pub(super) fn load(
    found: Found,
    request: &LoadRequest,
    diags: &mut Diagnostics,
) -> Option<Dataset> {
    let mut open = |path: &Path| match Root::open(path) {
        Ok(root) => Some(Arc::new(root)),
        Err(error) => {
            diags.push(
                Diagnostic::new(
                    Rule::FileUnreadable,
                    format!(
                        "The directory '{}' can not be opened: {}.",
                        path.display(),
                        error.source
                    ),
                )
                .help("Make it readable."),
            );
            None
        }
    };
    let (project, dataset) = (open(&found.project)?, open(&found.path)?);
    let shown = find::relative(dataset.path(), project.path());
    let name = dataset.path().file_name().map_or_else(
        || "tasks".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let directory = dataset.path().to_owned();
    let roots = Roots::new(vec![project, dataset]);
    let single = directory.join(TASK).is_file();
    let mut cases = Vec::new();
    if single {
        match CaseId::new(&name) {
            Ok(id) => cases.push(id),
            Err(why) => diags.push(
                Diagnostic::new(
                    Rule::BadSegment,
                    format!("The task can not be called '{name}': {why}."),
                )
                .help("Rename the directory.")
                .file(shown.clone()),
            ),
        }
    } else {
        cases = dirs::case_dirs(&roots, DATASET, &shown, diags);
        cases.retain(|id| {
            roots
                .resolve(DATASET, None, &format!("{id}/{TASK}"))
                .is_ok()
        });
        if cases.is_empty() {
            diags.push(dirs::no_cases(&shown));
        }
    }
    let config = found.casepack.as_ref().map_or_else(
        || directory.clone(),
        |casepack| casepack.directory.join("casepack.yaml"),
    );
    let read = found
        .casepack
        .iter()
        .map(|casepack| casepack.read)
        .collect();
    let (mut shared, options) = found.casepack.map_or_else(Default::default, |casepack| {
        (casepack.shared, casepack.options)
    });
    for entry in &mut shared {
        entry.source = expand_home(&entry.source, request.home);
    }
    Some(Dataset {
        read,
        format: Format::HarborTask,
        name,
        description: String::new(),
        schema: String::new(),
        template_fields: BTreeSet::new(),
        sources: Sources {
            roots,
            dataset_root: DATASET,
            config,
            project: found.project,
            guarded: vec![(DATASET, None)],
        },
        cases,
        shared,
        judge_files: Vec::new(),
        mode: Mode::Case,
        skills: Vec::new(),
        interception: Interception::default(),
        execution: Execution {
            runner: Runner {
                kind: "claude-code".to_owned(),
                ..Runner::default()
            },
            ..Execution::default()
        },
        verification: Verification::default(),
        hooks: Vec::new(),
        options,
        reader: Box::new(Reader { single, shown }),
    })
}

struct Reader {
    /// Whether the dataset directory is itself the only task.
    single: bool,
    shown: String,
}

impl CaseReader for Reader {
    fn read(&self, dataset: &Dataset, id: &CaseId, diags: &mut Diagnostics) -> Option<Case> {
        let sources = &dataset.sources;
        let task = if self.single {
            CaseDir::at(sources, id, DATASET, None, self.shown.clone())
        } else {
            CaseDir::open(sources, id, &self.shown, diags)?
        };
        read(task, diags)
    }
}

fn read(dir: CaseDir<'_>, diags: &mut Diagnostics) -> Option<Case> {
    let task = &dir;
    let before = diags.count(crate::diag::Severity::Error);
    let found = task.file(TASK, diags).ok()??;
    let bytes = task.read(&found, TASK, diags)?;
    let text = match find::utf8(bytes, TASK) {
        Ok(text) => text,
        Err(finding) => {
            diags.push(
                invalid(
                    task,
                    format!(
                        "{}, so Harbor skips the task.",
                        finding.message.trim_end_matches('.')
                    ),
                )
                .file(task.name(TASK)),
            );
            return None;
        }
    };
    let source = Arc::new(Source::new(task.name(TASK), text));
    let document = match Document::parse(source.text.as_str()) {
        Ok(document) => document,
        Err(error) => {
            let range = error.span().unwrap_or(0..0);
            diags.push(
                invalid(
                    task,
                    format!(
                        "'{TASK}' is not valid TOML: {}.",
                        error.message().trim_end_matches('.').replace('\n', ", ")
                    ),
                )
                .help("Mend the file at the place that is shown.")
                .at(&source, range),
            );
            return None;
        }
    };
    let table = document.as_table();
    schema::check(table, |field, range, message, help| {
        let mut finding = invalid(task, message).help(help).field(field);
        if let Some(range) = range {
            finding = finding.at(&source, range);
        }
        diags.push(finding);
    });
    schema::misplaced(table, |field, range, message, help| {
        let mut finding = Diagnostic::new(Rule::UnknownKey, message)
            .help(help)
            .field(field)
            .case(task.id);
        if let Some(range) = range {
            finding = finding.at(&source, range);
        }
        diags.push(finding);
    });
    let (steps, multi_step) = steps(task, table, diags);
    files(task, table, &steps, diags);
    if diags.count(crate::diag::Severity::Error) > before {
        return None;
    }
    let metadata = sub(table, "metadata")
        .map(|metadata| {
            metadata
                .iter()
                .filter_map(|(key, item)| Some((key.to_owned(), item.as_str()?.to_owned())))
                .collect()
        })
        .unwrap_or_default();
    Some(Case {
        id: task.id.clone(),
        material: dir.material(Rest::HarborTask),
        steps,
        multi_step,
        input: Yaml::Null,
        annotations: Yaml::Null,
        image: sub(table, "environment")
            .and_then(|environment| Some(environment.get("docker_image")?.as_str()?.to_owned())),
        metadata,
        verifier: Verifier::Own,
    })
}

fn invalid(task: &CaseDir<'_>, message: String) -> Diagnostic {
    Diagnostic::new(Rule::PackageInvalid, message)
        .help("Harbor skips the task without a word; mend it.")
        .case(task.id)
}

fn sub<'t>(table: &'t dyn TableLike, key: &str) -> Option<&'t dyn TableLike> {
    table.get(key).and_then(Item::as_table_like)
}

/// The tables of a list of tables, in either of TOML's spellings.
pub(crate) fn tables(item: Option<&Item>) -> Vec<&dyn TableLike> {
    match item {
        Some(Item::ArrayOfTables(list)) => {
            list.iter().map(|table| table as &dyn TableLike).collect()
        }
        Some(Item::Value(toml_edit::Value::Array(list))) => list
            .iter()
            .filter_map(|value| value.as_inline_table().map(|table| table as &dyn TableLike))
            .collect(),
        _ => Vec::new(),
    }
}

fn timeout(table: &dyn TableLike) -> Option<f64> {
    schema::number(sub(table, "agent")?.get("timeout_sec")?)
}

/// The steps: `[[steps]]`, or the only one.
fn steps(task: &CaseDir<'_>, table: &dyn TableLike, diags: &mut Diagnostics) -> (Vec<Step>, bool) {
    let list = tables(table.get("steps"));
    let step = |id: Option<String>, text: String, own: Option<f64>| Step {
        id,
        instruction: Instruction::Text(text),
        timeout_sec: own.or_else(|| timeout(table)),
        max_budget_usd: None,
        env: BTreeMap::new(),
        runner: None,
        stop_on_failure: true,
    };
    if list.is_empty() {
        let text = instruction(task, "instruction.md", diags);
        return (
            text.map(|text| step(None, text, None))
                .into_iter()
                .collect(),
            false,
        );
    }
    let mut steps = Vec::new();
    for own in list {
        // A name that is wrong was told already.
        let Some(name) = own
            .get("name")
            .and_then(Item::as_str)
            .filter(|name| schema::step_name(name).is_ok())
        else {
            continue;
        };
        if let Some(text) = instruction(task, &format!("steps/{name}/instruction.md"), diags) {
            steps.push(step(Some(name.to_owned()), text, timeout(own)));
        }
    }
    (steps, true)
}

fn instruction(task: &CaseDir<'_>, name: &str, diags: &mut Diagnostics) -> Option<String> {
    let found = match task.file(name, diags) {
        Ok(Some(found)) => found,
        Ok(None) => {
            diags.push(
                invalid(task, format!("The task has no '{name}'."))
                    .help("Add it: it is what the agent is told.")
                    .file(task.name(name)),
            );
            return None;
        }
        Err(()) => return None,
    };
    let bytes = task.read(&found, name, diags)?;
    match find::utf8(bytes, name) {
        Ok(text) => Some(text.strip_suffix('\n').map_or(text.clone(), str::to_owned)),
        Err(finding) => {
            diags.push(
                invalid(task, finding.message)
                    .help("Save the file as UTF-8.")
                    .file(task.name(name)),
            );
            None
        }
    }
}

/// What must be there besides, and no link that leads out (harbor.md 1).
fn files(task: &CaseDir<'_>, table: &dyn TableLike, steps: &[Step], diags: &mut Diagnostics) {
    let environment = sub(table, "environment");
    let image = environment.is_some_and(|environment| environment.get("docker_image").is_some());
    if !image && kind(task, "environment") != Some(Kind::Dir) {
        diags.push(
            invalid(
                task,
                "The task has neither an 'environment' directory nor `docker_image`.".to_owned(),
            )
            .help("Add environment/ with a Dockerfile, or name an image in [environment].")
            .file(task.name("environment")),
        );
    }
    let windows = environment
        .and_then(|environment| environment.get("os")?.as_str())
        .is_some_and(|os| os.eq_ignore_ascii_case("windows"));
    let script = if windows { "test.bat" } else { "test.sh" };
    let bundled = sub(table, "verifier")
        .and_then(|verifier| sub(verifier, "environment"))
        .is_some_and(|environment| environment.get("docker_image").is_some())
        || has(task, "tests/Dockerfile")
        || has(task, "tests/docker-compose.yaml");
    let own = |step: &Step| {
        let Some(id) = &step.id else { return false };
        has(task, &format!("steps/{id}/tests/{script}"))
            || has(task, &format!("steps/{id}/tests/Dockerfile"))
    };
    let lacking: Vec<&Step> = steps.iter().filter(|step| !own(step)).collect();
    if !bundled
        && !has(task, &format!("tests/{script}"))
        && (steps.is_empty() || !lacking.is_empty())
    {
        let place = match lacking.first().and_then(|step| step.id.as_ref()) {
            Some(id) => format!("steps/{id}/tests/{script}"),
            None => format!("tests/{script}"),
        };
        diags.push(
            invalid(task, format!("The task has no test script '{place}'."))
                .help("Add it: it writes the reward to /logs/verifier.")
                .file(task.name(&place)),
        );
    }
    for part in ["tests", "solution", "steps", "environment"] {
        links(task, part, diags);
    }
}

fn kind(task: &CaseDir<'_>, name: &str) -> Option<Kind> {
    let found = task
        .sources
        .roots
        .resolve(task.root, task.dir.as_ref(), name);
    found.ok().map(|found| found.kind)
}

fn has(task: &CaseDir<'_>, name: &str) -> bool {
    kind(task, name) == Some(Kind::File)
}

/// Links that Harbor refuses: those that lead out of the task, and circles. In `environment/` only
/// circles matter, which stop all of Harbor's job.
fn links(task: &CaseDir<'_>, part: &str, diags: &mut Diagnostics) {
    let Ok(part_path) = TreePath::new(part) else {
        return;
    };
    let top = match &task.dir {
        Some(dir) => dir.join(&part_path),
        None => part_path,
    };
    let Some(root) = task.sources.roots.get(task.root) else {
        return;
    };
    let mut found: Vec<TreePath> = Vec::new();
    let walked = root.walk(Some(&top), &mut |thing| {
        if let fs::Found::Thing(thing) = thing
            && thing.kind == Kind::Link
        {
            found.push(thing.path);
        }
        Walk::Enter
    });
    // What is not there was told where it is needed.
    if walked.is_err() {
        return;
    }
    for link in found {
        let below = match &task.dir {
            Some(dir) => link.strip_prefix(dir).unwrap_or_else(|| link.clone()),
            None => link.clone(),
        };
        let why = match task.sources.roots.resolve(task.root, None, link.as_str()) {
            Ok(target) => {
                let place = (target.root, target.path.as_ref());
                let inside = task
                    .sources
                    .roots
                    .contains((task.root, task.dir.as_ref()), place);
                let circle = target.kind == Kind::Dir
                    && task.sources.roots.contains(place, (task.root, Some(&link)));
                if circle {
                    "leads to a directory around it"
                } else if !inside && part != "environment" {
                    "leads out of the task"
                } else {
                    continue;
                }
            }
            Err(ResolveError::Loop) => "leads in a circle",
            Err(ResolveError::Outside) if part != "environment" => "leads out of the task",
            Err(_) => continue,
        };
        diags.push(
            invalid(task, format!("The link '{below}' {why}."))
                .help("Put the file itself in its place.")
                .file(task.name(below.as_str()))
                .entry(below.as_str()),
        );
    }
}

#[cfg(test)]
mod tests;
