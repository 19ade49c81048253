//! `casepack plan`: what a build would do, and why.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Context;
use super::args::Plan;
use super::build::{self, Stopped, tally};
use super::checks;
use super::input;
use super::outcome::{Failure, Outcome, interrupted};
use super::ui::{Cell, Ink, Progress, Table, count};
use super::verify::brief;
use crate::diag::Diagnostics;
use crate::digest::Digest;
use crate::escape;
use crate::plan::{self, Action, Moved, Step};

/// Outputs of one kind that are shown to people without `-v`.
const SHOWN: usize = 20;
/// Moved files of one output that are shown.
const SHOWN_FILES: usize = 5;

pub(super) fn run(args: &Plan, context: &Context) -> Outcome {
    let args = &args.building;
    let mut diags = Diagnostics::new(args.input.levels.levels_to_ship());
    let loaded = match input::load(&args.input, &args.packaging, context, &mut diags) {
        Ok(Some(loaded)) => loaded,
        Ok(None) => return Outcome::of(diags),
        Err(failure) => return input::refused(diags, failure),
    };
    let targets = build::targets(&args.target, &loaded, &mut diags);
    if diags.has_errors() {
        return Outcome::of(diags);
    }
    let out = context.machine.absolute(&args.destination.out);
    let env = &context.machine.env;
    let vet =
        |diags: &mut Diagnostics| checks::compile(&loaded.dataset, &loaded.options, env, diags);
    let request = build::request(&loaded, &targets, &args.destination, &out, &vet, context);
    let progress = Progress::new(&context.look);
    let planned = plan::plan(&request, &progress, &mut diags);
    drop(progress);
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) => {
            let help = "Check that you may read there.";
            return Stopped::Failed(Failure::from_error(&error, help)).outcome(diags);
        }
    };
    let names: Vec<_> = targets.iter().map(|target| target.name()).collect();
    let beside = plan.beside.iter();
    let files: Vec<Value> = beside
        .map(|(path, action)| json!({"path": path, "action": action.name()}))
        .collect();
    let numbers = numbers(&plan.steps);
    let summary: BTreeMap<&str, usize> = numbers
        .iter()
        .map(|(number, what)| (*what, *number))
        .collect();
    let settings = settings(&plan.steps);
    let settings_json: Vec<Value> = settings
        .iter()
        .map(|((name, old, new), cases)| {
            json!({"name": name, "old": old, "new": new, "outputs": cases})
        })
        .collect();
    let shown_out = args.destination.out.to_string_lossy().into_owned();
    let project = loaded
        .dataset
        .sources
        .project
        .to_string_lossy()
        .into_owned();
    let mut text = String::new();
    text.extend(["Project root: ", &escape::line(&project), "\n"]);
    text.push_str(&table(&plan.steps, &plan.beside, context));
    for ((name, old, new), outputs) in &settings {
        let value = |value: &Option<String>| {
            value.as_deref().map_or_else(
                || "not given".to_owned(),
                |value| match value.strip_prefix("sha256:") {
                    Some(hex) => format!("{}…", brief(hex)),
                    None => format!("`{}`", escape::line(value)),
                },
            )
        };
        text.push_str(
            &format_args!(
                "{} was {}, now {} ({})\n",
                escape::line(name),
                value(old),
                value(new),
                count(*outputs, "output", "outputs")
            )
            .to_string(),
        );
    }
    let outputs = count(plan.steps.len(), "output", "outputs");
    text.extend([
        "Plan for ",
        &escape::line(&shown_out),
        ", ",
        &outputs,
        &tally(&numbers),
        ".\n",
    ]);
    let mut outcome = Outcome::of(diags)
        .field("dataset", input::describe(&loaded.dataset))
        .field("project_root", project)
        .field("out", shown_out)
        .field("targets", names)
        .field("settings", settings_json)
        .field("outputs", plan.steps.iter().map(step).collect::<Vec<_>>())
        .field("files", files)
        .field("summary", json!(summary));
    outcome.text = text;
    if plan.interrupted {
        return interrupted(outcome, "Nothing was changed.");
    }
    outcome
}

fn numbers(steps: &[Step]) -> Vec<(usize, &'static str)> {
    [
        Action::New,
        Action::Changed,
        Action::Unchanged,
        Action::Removed,
        Action::Kept,
        Action::Failed,
    ]
    .map(|action| {
        let number = steps.iter().filter(|step| step.action == action).count();
        (number, action.name())
    })
    .into()
}

type Setting = (String, Option<String>, Option<String>);

/// The settings that moved, and for how many outputs.
fn settings(steps: &[Step]) -> BTreeMap<Setting, usize> {
    let mut settings = BTreeMap::new();
    for moved in steps
        .iter()
        .filter_map(|step| step.moved.as_ref())
        .flatten()
    {
        if let Moved::Setting { name, old, new } = moved {
            *settings
                .entry((name.clone(), old.clone(), new.clone()))
                .or_insert(0) += 1;
        }
    }
    settings
}

/// One output in the document.
fn step(step: &Step) -> Value {
    let text = |digest: &Option<Digest>| digest.as_ref().map(ToString::to_string);
    let moved = step.moved.as_ref().map(|moved| {
        let one = |moved: &Moved| match moved {
            Moved::Setting { name, old, new } => {
                json!({"setting": name, "old": old, "new": new})
            }
            Moved::File {
                view,
                path,
                old,
                new,
            } => json!({
                "view": view, "file": path.as_str(), "old": text(old), "new": text(new),
            }),
        };
        moved.iter().map(one).collect::<Vec<_>>()
    });
    json!({
        "case": step.case.as_str(),
        "target": step.target.name(),
        "place": step.place,
        "action": step.action.name(),
        "key": step.key.map(|key| key.to_string()),
        "previous_key": step.was.map(|key| key.to_string()),
        "inputs": moved,
    })
}

/// What is done to which output, and to files beside them; those that stay as they are are only
/// counted.
fn table(steps: &[Step], beside: &[(String, Action)], context: &Context) -> String {
    let mut table = Table::default();
    let mut left = BTreeMap::new();
    for step in steps {
        let ink = match step.action {
            Action::Unchanged => continue,
            Action::New => Ink::Good,
            Action::Changed => Ink::Unsure,
            Action::Removed | Action::Failed => Ink::Bad,
            Action::Kept => Ink::Faint,
        };
        let shown = left.entry(step.action).or_insert(0);
        *shown += 1;
        if *shown > SHOWN && !context.look.verbose {
            continue;
        }
        table.row([
            Cell::new(step.action.name()).ink(ink),
            Cell::new(format!("{}/{}", step.target.name(), step.place)),
            Cell::new(why(step)).ink(Ink::Faint),
        ]);
    }
    for (path, action) in beside {
        let (ink, why) = match action {
            Action::New => (Ink::Good, "it is missing"),
            _ => (Ink::Unsure, "it is not as the last build left it"),
        };
        table.row([
            Cell::new(action.name()).ink(ink),
            Cell::new(path.as_str()),
            Cell::new(why).ink(Ink::Faint),
        ]);
    }
    let mut text = table.show(context.look.color_out);
    if !context.look.verbose {
        for (action, number) in left {
            if number > SHOWN {
                let more = (number - SHOWN).to_string();
                text.extend([
                    "… and ",
                    &more,
                    " more ",
                    action.name(),
                    " (-v shows all)\n",
                ]);
            }
        }
    }
    text
}

/// The inputs that moved, in a line.
fn why(step: &Step) -> String {
    let Some(moved) = &step.moved else {
        return "what it was made of is not recorded".to_owned();
    };
    let mut files = Vec::new();
    let mut settings = 0;
    for moved in moved {
        match moved {
            Moved::Setting { .. } => settings += 1,
            Moved::File {
                view,
                path,
                old,
                new,
            } => {
                let how = match (old, new) {
                    (None, _) => "added".to_owned(),
                    (_, None) => "removed".to_owned(),
                    (Some(old), Some(new)) if old == new => "mode".to_owned(),
                    (Some(old), Some(new)) => {
                        format!("{} → {}", brief(&old.hex()), brief(&new.hex()))
                    }
                };
                files.push(format!("{view}: {path} ({how})"));
            }
        }
    }
    let more = files.len().saturating_sub(SHOWN_FILES);
    files.truncate(SHOWN_FILES);
    if more > 0 {
        files.push(format!("{more} more"));
    }
    if settings > 0 {
        files.push(count(settings, "setting", "settings"));
    }
    files.join(", ")
}
