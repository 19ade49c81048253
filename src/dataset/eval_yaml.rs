//! The reader of `eval.yaml`. Being written: the simple shape only.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::{
    Case, CaseReader, Dataset, Execution, Format, Instruction, Interception, Judge, Listed,
    LoadRequest, Material, Mode, Rest, Runner, SharedEntry, Sources, Step, Verification, Verifier,
};
use crate::diag::{Diagnostic, Diagnostics, Rule, Source};
use crate::fs::{Root, Roots};
use crate::path::{CaseId, TreePath};
use crate::template;
use crate::yaml::{self, Document, Yaml};

pub(super) fn load(request: &LoadRequest, diags: &mut Diagnostics) -> Option<Dataset> {
    let mut path = request.cwd.join(request.path);
    if path.is_dir() {
        path.push("eval.yaml");
    }
    let document = parse(&path, "eval.yaml", Rule::ConfigNotFound, diags)?;
    let top = &document.root.value;
    let directory = path.parent()?.to_owned();
    let project = match request.project_root {
        Some(root) => request.cwd.join(root),
        None if directory.starts_with(request.cwd) => request.cwd.to_owned(),
        None => directory.clone(),
    };
    let cases_dir = directory.join(text(top, &["dataset", "path"]).unwrap_or_default());
    let (Ok(project_root), Ok(dataset_root)) = (Root::open(&project), Root::open(&cases_dir))
    else {
        diags.push(Diagnostic::new(
            Rule::DatasetNotFound,
            "The directory of the cases does not exist.",
        ));
        return None;
    };
    let mut cases: Vec<CaseId> = fs::read_dir(&cases_dir)
        .ok()?
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| CaseId::new(entry.file_name().to_str()?).ok())
        .filter(|id| !id.as_str().starts_with('.') && id.as_str() != "__pycache__")
        .collect();
    cases.sort();
    let mut listed = Vec::new();
    let mut shared = Vec::new();
    if let Some(Yaml::Seq(files)) = get(top, &["dataset", "workspace", "files"]) {
        for (index, node) in files.iter().enumerate() {
            let field = format!("dataset.workspace.files[{index}]");
            if let Some(text) = node.value.as_str() {
                listed.push(Listed {
                    source: text.trim_end_matches('/').to_owned(),
                    dest: TreePath::new(text.trim_end_matches('/')).ok(),
                    by_user: true,
                    place: None,
                    field,
                });
            } else if let (Some(dest), Some(source)) =
                (text(&node.value, &["dest"]), text(&node.value, &["source"]))
            {
                shared.push(SharedEntry {
                    dest: TreePath::new(&dest).ok()?,
                    source,
                    place: None,
                    field,
                });
            }
        }
    }
    let mut judges = Vec::new();
    if let Some(Yaml::Seq(items)) = get(top, &["judges"]) {
        for node in items {
            judges.push(Judge {
                name: text(&node.value, &["name"]).unwrap_or_default(),
                check: text(&node.value, &["check"]),
                prompt: text(&node.value, &["prompt"]),
                condition: text(&node.value, &["if"]),
                samples: 1,
                ..Judge::default()
            });
        }
    }
    let runner = Runner {
        kind: text(top, &["runner", "type"]).unwrap_or_else(|| "claude-code".into()),
        command: text(top, &["runner", "command"]).map(super::RunnerCommand::Text),
        ..Runner::default()
    };
    Some(Dataset {
        format: Format::EvalYaml,
        name: text(top, &["name"]).unwrap_or_else(|| "eval".into()),
        description: text(top, &["description"]).unwrap_or_default(),
        sources: Sources {
            roots: Roots::new(vec![Arc::new(project_root), Arc::new(dataset_root)]),
            dataset_root: 1,
            config: path,
            project,
            guarded: vec![(1, None)],
        },
        cases,
        shared,
        judge_files: Vec::new(),
        mode: Mode::Case,
        skill: None,
        interception: Interception::default(),
        execution: Execution {
            runner,
            ..Execution::default()
        },
        verification: Verification {
            judges,
            ..Verification::default()
        },
        hooks: Vec::new(),
        options: BTreeMap::new(),
        reader: Box::new(Reader {
            listed,
            prompt: text(top, &["execution", "prompt"]),
            skill: text(top, &["execution", "skill"]).unwrap_or_default(),
            arguments: text(top, &["execution", "arguments"]).unwrap_or_default(),
        }),
    })
}

fn get<'a>(top: &'a Yaml, keys: &[&str]) -> Option<&'a Yaml> {
    keys.iter()
        .try_fold(top, |value, key| value.get(key).map(|node| &node.value))
}

fn text(top: &Yaml, keys: &[&str]) -> Option<String> {
    get(top, keys)?.as_str().map(str::to_owned)
}

fn parse(path: &Path, name: &str, missing: Rule, diags: &mut Diagnostics) -> Option<Document> {
    let Ok(text) = fs::read_to_string(path) else {
        diags.push(
            Diagnostic::new(missing, format!("There is no readable file '{name}'.")).file(name),
        );
        return None;
    };
    let name = name.to_owned();
    yaml::parse(Arc::new(Source { name, text }))
        .map_err(|diagnostic| diags.push(*diagnostic))
        .ok()
}

struct Reader {
    listed: Vec<Listed>,
    prompt: Option<String>,
    skill: String,
    arguments: String,
}

impl CaseReader for Reader {
    fn read(&self, dataset: &Dataset, id: &CaseId, diags: &mut Diagnostics) -> Option<Case> {
        let root = dataset.sources.roots.get(dataset.sources.dataset_root)?;
        let directory = root.path().join(id.as_str());
        let input_name = ["input.yaml", "input.yml", "input.json"]
            .into_iter()
            .find(|name| directory.join(name).exists())
            .unwrap_or("input.yaml");
        let shown = format!("{id}/{input_name}");
        let input = parse(
            &directory.join(input_name),
            &shown,
            Rule::InputMissing,
            diags,
        )?
        .root
        .value;
        let annotations = if directory.join("annotations.yaml").exists() {
            parse(
                &directory.join("annotations.yaml"),
                &format!("{id}/annotations.yaml"),
                Rule::InputInvalid,
                diags,
            )?
            .root
            .value
        } else {
            Yaml::Null
        };
        let render = |template: &str| template::render(template, &input, &Yaml::Null);
        let text = match &self.prompt {
            Some(prompt) => render(prompt),
            None => render(&self.arguments)
                .map(|text| format!("/{} {text}", self.skill).trim_end().to_owned()),
        };
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                diags.push(Diagnostic::new(Rule::TemplateMissingField, error.to_string()).case(id));
                return None;
            }
        };
        let mut listed: Vec<Listed> = [input_name, "answers.yaml"]
            .into_iter()
            .map(|name| Listed {
                source: name.to_owned(),
                dest: TreePath::new(name).ok(),
                by_user: false,
                place: None,
                field: String::new(),
            })
            .collect();
        listed.extend(self.listed.iter().cloned());
        Some(Case {
            id: id.clone(),
            material: Material {
                root: dataset.sources.dataset_root,
                dir: Some(id.to_path()),
                listed,
                generated: Vec::new(),
                rest: Rest::Evaluation,
            },
            steps: vec![Step {
                id: None,
                instruction: Instruction::Text(text),
                timeout_sec: None,
                max_budget_usd: None,
                env: BTreeMap::new(),
                runner: None,
                stop_on_failure: true,
            }],
            multi_step: false,
            input,
            annotations,
            image: None,
            metadata: BTreeMap::new(),
            verifier: Verifier::Judges,
        })
    }
}
