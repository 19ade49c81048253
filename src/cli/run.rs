//! `casepack run`: every case is built, run on this machine and judged.

use serde_json::Value;

use super::Context;
use super::args::Run;
use super::build;
use super::exit::Exit;
use super::input::{self, Loaded};
use super::outcome::{Failure, Outcome, interrupted};
use super::ui::{Cell, Ink, Progress, Table};
use crate::dataset::RunnerCommand;
use crate::diag::Diagnostics;
use crate::escape;
use crate::report;
use crate::run::{Error, PackageRef, Request, RunResults, run as run_packages};
use crate::target::Target;

/// Runs that start in one second, before one is refused.
const SAME_SECOND: usize = 100;

pub(super) fn run(args: &Run, context: &Context) -> Outcome {
    let mut diags = Diagnostics::new(args.input.levels.levels_to_ship());
    let mut loaded = match input::load(&args.input, &args.packaging, context, &mut diags) {
        Ok(Some(loaded)) => loaded,
        Ok(None) => return Outcome::of(diags),
        Err(failure) => return input::refused(diags, failure),
    };
    if let Some(command) = &args.running.agent_command {
        let runner = &mut loaded.dataset.execution.runner;
        "cli".clone_into(&mut runner.kind);
        runner.command = Some(RunnerCommand::Text(command.clone()));
    }
    let built = build::build(
        &loaded,
        &[Target::Harbor],
        &args.destination,
        context,
        &mut diags,
    );
    let built = match built {
        Ok(built) => built,
        Err(stopped) => return stopped.outcome(diags),
    };
    if built.interrupted {
        return interrupted(Outcome::of(diags), "No case was run.");
    }
    // A run of what is left would give a mean that looks like one of the whole dataset.
    if diags.has_errors() {
        let failure = Failure::new(
            "Nothing was run, because of the errors above.",
            "Mend them, or choose the cases that are fine with --case.",
        );
        return Outcome::of(diags).failed(Exit::Findings, failure);
    }
    let digest = built.dataset_digest;
    let packages: Vec<_> = built
        .packages
        .into_iter()
        .map(|(id, dir)| PackageRef { id, dir })
        .collect();
    match execute(args, &loaded, digest, &packages, context, &mut diags) {
        Ok(results) => finish(&results, context, diags),
        Err(Error::Refused) => Outcome::of(diags).at_least(Exit::Findings),
        Err(error) => {
            let (exit, help) = match error {
                Error::Exists { .. } => (Exit::Usage, "Choose another --run-id."),
                Error::RunId { .. } => (Exit::Usage, "Change --run-id."),
                Error::Sandbox { .. } => (
                    Exit::System,
                    "Install bubblewrap, or run without a sandbox: --sandbox none.",
                ),
                _ => (
                    Exit::System,
                    "Check that you may write there and that there is space.",
                ),
            };
            Outcome::of(diags).failed(exit, Failure::from_error(&error, help))
        }
    }
}

fn execute(
    args: &Run,
    loaded: &Loaded,
    digest: Option<crate::digest::Digest>,
    packages: &[PackageRef],
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<RunResults, Error> {
    let machine = &context.machine;
    let given = args.input.reading.jobs.map(Into::into);
    let dataset = &loaded.dataset;
    let running = &args.running;
    let request = Request {
        dataset: Some(dataset),
        dataset_name: &dataset.name,
        dataset_digest: digest,
        packages,
        runs_dir: &machine.absolute(&running.runs_dir),
        run_id: "",
        project: &dataset.sources.project,
        agent: running.agent,
        model: running.model.as_deref(),
        sandbox: running.sandbox,
        // What the dataset says about its agent counts before what the machine could do.
        jobs: given
            .or(dataset.execution.parallelism)
            .unwrap_or(loaded.jobs)
            .max(1),
        env: &machine.env,
        pass_at: running.pass_at,
        agent_timeout: args.packaging.agent_timeout(),
        stop: &context.stop,
    };
    let progress = Progress::new(&context.look);
    if let Some(run_id) = &running.run_id {
        return run_packages(&Request { run_id, ..request }, &progress, diags);
    }
    let now = machine.run_id();
    let mut run_id = now.clone();
    for another in 2.. {
        match run_packages(
            &Request {
                run_id: &run_id,
                ..request
            },
            &progress,
            diags,
        ) {
            Err(Error::Exists { .. }) if another < SAME_SECOND => {
                run_id = format!("{now}-{another}");
            }
            result => return result,
        }
    }
    Err(Error::RunId { id: now })
}

fn finish(results: &RunResults, context: &Context, diags: Diagnostics) -> Outcome {
    let outcome = Outcome::of(diags);
    let written = match report::write(results) {
        Ok(path) => path,
        Err(error) => {
            let failure = Failure {
                message: format!("Writing the results to '{}' failed.", results.dir.display()),
                causes: vec![error.to_string()],
                help: "The result.json of each case is there.".to_owned(),
            };
            return outcome.failed(Exit::System, failure);
        }
    };
    let path = context.machine.shown(&written);
    let mut outcome = outcome.field("results", path.clone());
    if let Value::Object(document) = report::results_json(results) {
        let fields = document.into_iter().filter(|(name, _)| name != "schema");
        outcome.fields.extend(fields);
    }
    outcome.text = table(results, &path, context.look.color_out);
    outcome.not_passed = report::rows(results)
        .into_iter()
        .filter(|row| row.status != "passed")
        .map(|row| {
            (
                row.case,
                format!("{} {} {}", row.status, row.reward, row.message),
            )
        })
        .collect();
    if results.interrupted {
        return interrupted(outcome, "The cases that were run have their results.");
    }
    if results.all_passed() {
        outcome
    } else {
        outcome.at_least(Exit::Findings)
    }
}

fn table(results: &RunResults, path: &str, color: bool) -> String {
    let mut table = Table::default();
    for row in report::rows(results) {
        let ink = match row.status {
            "passed" => Ink::Good,
            "skipped" => Ink::Unsure,
            _ => Ink::Bad,
        };
        table.row([
            Cell::new(row.status).ink(ink),
            Cell::new(row.case),
            Cell::new(row.reward).right(),
            Cell::new(row.time).right(),
            Cell::new(row.message),
        ]);
    }
    let numbers = results.summary();
    let parts: Vec<_> = [
        (numbers.passed, "passed"),
        (numbers.failed, "failed"),
        (numbers.errors, "without a verdict"),
        (numbers.skipped, "skipped"),
    ]
    .into_iter()
    .filter(|(number, what)| *number > 0 || *what == "passed")
    .map(|(number, what)| format!("{number} {what}"))
    .collect();
    let mean = numbers
        .mean_reward
        .map_or_else(String::new, |mean| format!("; mean reward {mean:.2}"));
    format!(
        "{}\n{}{mean}.\nResults: {}\n",
        table.show(color),
        parts.join(", "),
        escape::line(path)
    )
}
