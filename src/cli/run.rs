//! `casepack run`: every case is built, run on this machine and judged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Context;
use super::args::{OutputFormat, Reading, Run, Who};
use super::build;
use super::exit::Exit;
use super::input::{self, Loaded};
use super::outcome::{Failure, Outcome, interrupted};
use super::settings;
use super::ui::{Cell, Ink, Progress, Table, count};
use crate::dataset::{Dataset, Execution, Instruction, Runner, RunnerCommand, Threshold};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::digest::Digest;
use crate::escape;
use crate::path::CaseId;
use crate::plan::Select;
use crate::report;
use crate::run::{
    self, Agent, CaseResult, Error, ErrorKind, PackageRef, Packages, Request, RunResults, Secrets,
    ViewDigests, check_place, check_runs_dir, find_packages, run as run_packages,
};
use crate::target::Target::Harbor;

/// Runs that start in one second, before one is refused.
const SAME_SECOND: usize = 100;

pub(super) fn run(args: &Run, context: &Context) -> Outcome {
    let mut levels = args.input.levels.levels_to_ship();
    if !levels.deny.contains(&Rule::HooksNotPortable) {
        // They do run here.
        levels.allow.insert(Rule::HooksNotPortable);
    }
    let mut diags = Diagnostics::new(levels);
    if args.running.engine != "harbor" && !args.running.harbor_args.is_empty() {
        let failure = Failure::new(
            "Arguments after -- are for Harbor, which does not run anything here.",
            "Add --engine harbor, or remove them.",
        );
        return input::refused(diags, failure);
    }
    if args.running.agent_command.is_some() && args.running.agent != Who::Config {
        let failure = Failure::new(
            "--agent and --agent-command name two who are to work.",
            "Leave one of them out.",
        );
        return input::refused(diags, failure);
    }
    let place = Place::of(args, context);
    if let Err(error) = place.check() {
        return not_begun(&error, diags);
    }
    let mut target = match find(args, context, &mut diags) {
        Ok(Some(target)) => target,
        Ok(None) => return Outcome::of(diags).at_least(Exit::Findings),
        Err(stopped) => return stopped.outcome(diags),
    };
    let checked = target.request(args, &place, context);
    match run::check(&checked, &mut diags) {
        Ok(()) => {}
        Err(Error::Refused) => return Outcome::of(diags).at_least(Exit::Findings),
        Err(error) => return not_begun(&error, diags),
    }
    if let Err(stopped) = target.build(args, context, &mut diags) {
        return stopped.outcome(diags);
    }
    match execute(args, &place, &target, context, &mut diags) {
        Ok(mut results) => {
            results.other_shards = target.other_shards;
            finish(&results, args.running.run_id.is_some(), context, diags)
        }
        Err(Error::Refused) => Outcome::of(diags).at_least(Exit::Findings),
        Err(error) => not_begun(&error, diags),
    }
}

fn not_begun(error: &Error, diags: Diagnostics) -> Outcome {
    let (exit, help) = match error {
        Error::Exists { .. } => (
            Exit::Usage,
            "Choose another --run-id, or take it up again with --resume.",
        ),
        Error::RunId { .. } => (Exit::Usage, "Change it."),
        Error::Linked { .. } => (
            Exit::Usage,
            "Name the directory that it leads to with --runs-dir.",
        ),
        Error::Resume { .. } => (
            Exit::Usage,
            "Name a run that was stopped and say the rest as it was said then, or start a new run \
             without --resume.",
        ),
        Error::Sandbox { .. } => (
            Exit::System,
            "Install bubblewrap, or run without a sandbox: --sandbox none.",
        ),
        _ => (
            Exit::System,
            "Check that you may write there and that there is space.",
        ),
    };
    Outcome::of(diags).failed(exit, Failure::from_error(error, help))
}

/// Where the run is kept.
struct Place {
    runs_dir: PathBuf,
    /// `None`: a name that is free.
    run_id: Option<String>,
    resume: bool,
}

impl Place {
    fn of(args: &Run, context: &Context) -> Self {
        let running = &args.running;
        let mut runs_dir = context.machine.absolute(&running.runs_dir);
        let Some(run) = &running.resume else {
            return Self {
                runs_dir,
                run_id: running.run_id.clone(),
                resume: false,
            };
        };
        // A path says where runs are, a name does not.
        if let Some(parent) = run.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            runs_dir = context.machine.absolute(parent);
        }
        let name = run.file_name().unwrap_or_default().to_string_lossy();
        Self {
            runs_dir,
            run_id: Some(name.into_owned()),
            resume: true,
        }
    }

    /// Said before anything is built for a run that can not be.
    fn check(&self) -> Result<(), Error> {
        match &self.run_id {
            Some(id) => check_place(&self.runs_dir, id, self.resume),
            None => check_runs_dir(&self.runs_dir),
        }
    }
}

/// What is to be run.
struct Target {
    /// The dataset, whose packages are still to be built.
    loaded: Option<Loaded>,
    execution: Option<Execution>,
    name: String,
    digest: Option<Digest>,
    packages: Vec<PackageRef>,
    thresholds: BTreeMap<String, Threshold>,
    project: PathBuf,
    jobs: usize,
    /// Cases that --shard leaves to other runs.
    other_shards: Vec<String>,
    agent_home: Option<PathBuf>,
    /// What chose the cases.
    selection: Vec<String>,
}

/// Why nothing is run.
enum Stopped {
    Usage(Failure),
    Findings(Failure),
    Build(build::Stopped),
    Interrupted,
}

impl Stopped {
    fn outcome(self, diags: Diagnostics) -> Outcome {
        match self {
            Self::Usage(failure) => input::refused(diags, failure),
            Self::Findings(failure) => Outcome::of(diags).failed(Exit::Findings, failure),
            Self::Build(stopped) => stopped.outcome(diags),
            Self::Interrupted => interrupted(Outcome::of(diags), "No case was run."),
        }
    }
}

/// Packages that are there, or a dataset, whose packages are built. `None`: the reasons are in
/// `diags`.
fn find(args: &Run, context: &Context, diags: &mut Diagnostics) -> Result<Option<Target>, Stopped> {
    let path = context.machine.absolute(&args.input.path);
    let found = match args.input.reading.format {
        None => find_packages(&path),
        Some(_) => None,
    };
    let mut target = match found {
        Some(found) => of_packages(args, found, context, diags)?,
        None => match of_dataset(args, context, diags).map_err(Stopped::Usage)? {
            Some(target) => target,
            None => return Ok(None),
        },
    };
    let running = &args.running;
    let runner = match (&running.agent_command, running.agent) {
        (Some(command), _) => Some(Runner {
            kind: "cli".to_owned(),
            command: Some(RunnerCommand::Text(command.clone())),
            ..Runner::default()
        }),
        (None, Who::Known(known)) => Some(Runner {
            kind: known.name().to_owned(),
            ..Runner::default()
        }),
        (None, _) => None,
    };
    if let Some(Runner { kind, command, .. }) = runner {
        let own = &mut target.execution.get_or_insert_default().runner;
        (own.kind, own.command) = (kind, command);
    }
    if let Some(home) = &running.agent_home {
        let path = context.machine.absolute(home);
        if !path.is_dir() {
            return Err(Stopped::Usage(Failure::new(
                format!("--agent-home '{}' is no directory.", home.display()),
                "Name the home directory with the agent's login files, for example ~.",
            )));
        }
        target.agent_home = Some(path);
    }
    Ok(Some(target))
}

fn of_packages(
    args: &Run,
    found: Packages,
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<Target, Stopped> {
    for (dir, why) in &found.unusable {
        let dir = context.machine.shown(dir);
        diags.push(
            Diagnostic::new(
                Rule::BadSegment,
                format!("The package '{dir}' can not be run: {why}."),
            )
            .help("Rename the directory.")
            .file(dir),
        );
    }
    let reading = &args.input.reading;
    let select = input::select(reading).map_err(Stopped::Usage)?;
    let ids: Vec<_> = found
        .packages
        .iter()
        .map(|package| package.id.clone())
        .collect();
    if !reading.globs().is_empty() && !ids.iter().any(|id| select.names(id)) {
        return Err(Stopped::Usage(input::no_case(&reading.globs(), &ids)));
    }
    let packages = found.packages.into_iter();
    Ok(Target {
        other_shards: left_to_others(&select, &ids),
        selection: selection(reading),
        agent_home: None,
        loaded: None,
        execution: None,
        name: found.name,
        digest: None,
        packages: packages.filter(|package| select.has(&package.id)).collect(),
        thresholds: found.thresholds,
        project: context.machine.cwd.clone(),
        jobs: settings::jobs(reading.jobs),
    })
}

fn of_dataset(
    args: &Run,
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<Option<Target>, Failure> {
    let Some(loaded) = input::load(&args.input, &args.packaging, context, diags)? else {
        return Ok(None);
    };
    let dataset = &loaded.dataset;
    let given = args.input.reading.jobs.map(Into::into);
    Ok(Some(Target {
        other_shards: left_to_others(&loaded.select, &dataset.cases),
        selection: selection(&args.input.reading),
        execution: Some(dataset.execution.clone()),
        name: dataset.name.clone(),
        digest: None,
        packages: Vec::new(),
        thresholds: dataset.verification.thresholds.clone(),
        project: dataset.sources.project.clone(),
        // What the dataset says about its agent counts before what the machine could do.
        jobs: given
            .or(dataset.execution.parallelism)
            .unwrap_or(loaded.jobs),
        agent_home: None,
        loaded: Some(loaded),
    }))
}

impl Target {
    /// Builds the packages of a dataset.
    fn build(
        &mut self,
        args: &Run,
        context: &Context,
        diags: &mut Diagnostics,
    ) -> Result<(), Stopped> {
        let Some(loaded) = &mut self.loaded else {
            return Ok(());
        };
        let mut destination = args.destination.clone();
        if uses_results_of_steps(&loaded.dataset) {
            // Kept apart from what may be given to others.
            loaded.options.local = true;
            destination.out.push("local");
        }
        let built = build::build(loaded, &[Harbor], &destination, context, diags)
            .map_err(Stopped::Build)?;
        if built.interrupted {
            return Err(Stopped::Interrupted);
        }
        // A run of what is left would give a mean that looks like one of the whole dataset.
        if diags.has_errors() {
            return Err(Stopped::Findings(Failure::new(
                "Nothing was run, because of the errors above.",
                "Mend them, or choose the cases that are fine with --case.",
            )));
        }
        let mut views: BTreeMap<CaseId, ViewDigests> = BTreeMap::new();
        // Cases that --case left out are in no list, so that nobody could tell whether all are there.
        let shard_only = args.input.reading.globs().is_empty();
        for (id, workspace, evaluation) in built.views.into_iter().filter(|_| shard_only) {
            let [workspace, evaluation] =
                [workspace, evaluation].map(|hex| format!("sha256:{hex}"));
            views.insert(
                id,
                ViewDigests {
                    workspace,
                    evaluation,
                },
            );
        }
        let packages = built.packages.into_iter().map(|(id, dir)| PackageRef {
            views: views.remove(&id),
            id,
            dir,
        });
        self.packages = packages.collect();
        self.digest = built.dataset_digest;
        Ok(())
    }

    /// What the command line asks for.
    fn request<'a>(&'a self, args: &'a Run, place: &'a Place, context: &'a Context) -> Request<'a> {
        let running = &args.running;
        let overridden = running.agent_command.is_some() || matches!(running.agent, Who::Known(_));
        Request {
            dataset: self.loaded.as_ref().map(|loaded| &loaded.dataset),
            execution: self.execution.as_ref(),
            step_runners: !overridden,
            thresholds: &self.thresholds,
            dataset_name: &self.name,
            dataset_digest: self.digest,
            packages: &self.packages,
            runs_dir: &place.runs_dir,
            run_id: place.run_id.as_deref().unwrap_or_default(),
            selection: &self.selection,
            resume: place.resume,
            project: &self.project,
            agent: match running.agent {
                Who::Oracle => Agent::Oracle,
                Who::Nop => Agent::Nop,
                Who::Config | Who::Known(_) => Agent::Runner,
            },
            model: running.model.as_deref(),
            sandbox: running.sandbox,
            // Where there is no /proc, as on other systems, this program can not call itself.
            keeper: Path::new("/proc/self/exe").exists(),
            keep: running.keep_workspaces,
            jobs: self.jobs.max(1),
            attempts: running.attempts,
            retries: running.retries,
            agent_home: self.agent_home.as_deref(),
            env: &context.machine.env,
            pass_at: running.pass_at,
            harbor: (running.engine == "harbor").then_some(running.harbor_args.as_slice()),
            agent_timeout: args.packaging.agent_timeout(),
            stop: &context.stop,
            again: &context.again,
        }
    }
}

/// The options that chose the cases, as they are given.
fn selection(reading: &Reading) -> Vec<String> {
    let globs = reading.globs().into_iter();
    let shard = reading
        .shard
        .map(|(index, count)| format!("--shard {index}/{count}"));
    globs
        .map(|glob| format!("--case {glob}"))
        .chain(shard)
        .collect()
}

fn left_to_others(select: &Select, cases: &[CaseId]) -> Vec<String> {
    let others = cases.iter().filter(|id| select.leaves_to_others(id));
    others.map(ToString::to_string).collect()
}

/// Whether an instruction can only be rendered while a case runs. All cases have the same
/// templates.
fn uses_results_of_steps(dataset: &Dataset) -> bool {
    let Some(first) = dataset.cases.first() else {
        return false;
    };
    // What is wrong with the case is told by the build.
    let case = dataset.read_case(first, &mut Diagnostics::default());
    case.is_some_and(|case| {
        let mut steps = case.steps.iter();
        steps.any(|step| matches!(step.instruction, Instruction::Deferred { .. }))
    })
}

fn execute(
    args: &Run,
    place: &Place,
    target: &Target,
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<RunResults, Error> {
    let request = target.request(args, place, context);
    let progress = Progress::new(&context.look);
    if place.run_id.is_some() {
        return run_packages(&request, &progress, diags);
    }
    let now = context.machine.run_id();
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

/// Writes and shows the results of a run, whose name was chosen by the caller or not (`named`).
fn finish(results: &RunResults, named: bool, context: &Context, diags: Diagnostics) -> Outcome {
    let written = match report::write(results, Secrets::of(&context.machine.env)) {
        Ok(path) => path,
        Err(error) => {
            let failure = Failure {
                message: format!("Writing the results to '{}' failed.", results.dir.display()),
                causes: vec![error.to_string()],
                help: "The result.json of each case is there.".to_owned(),
            };
            return Outcome::of(diags).failed(Exit::System, failure);
        }
    };
    let mut outcome = show(results, &written, context, diags);
    if results.interrupted {
        let help = if results.engine == "casepack" {
            let place = if named { ", in place of --run-id," } else { "" };
            format!(
                "Add --resume {} to the same command{place} to run the rest.",
                results.run_id
            )
        } else {
            "A run by Harbor can not be taken up again: start it anew.".to_owned()
        };
        // Below the table, too: the error stands above it.
        outcome.text.extend(["Interrupted. ", &help, "\n"]);
        let failure = Failure::new(
            "Interrupted. The cases that were run have their results.",
            help,
        );
        return outcome.failed(Exit::Interrupted, failure);
    }
    outcome
}

/// Results that were written to the file `written`.
pub(super) fn show(
    results: &RunResults,
    written: &Path,
    context: &Context,
    diags: Diagnostics,
) -> Outcome {
    let path = context.machine.shown(written);
    let mut outcome = Outcome::of(diags).field("results", path.clone());
    // As large as all of the results, and nobody else reads it.
    if context.look.output == OutputFormat::Json
        && let Value::Object(document) = report::results_json(results)
    {
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
    if results.all_passed() {
        outcome
    } else {
        outcome.at_least(Exit::Findings)
    }
}

fn table(results: &RunResults, path: &str, color: bool) -> String {
    let mut table = Table::default();
    let begun =
        |case: &&CaseResult| case.error != Some(ErrorKind::Interrupted) || !case.duration.is_zero();
    let left = results.cases.len() - results.cases.iter().filter(begun).count();
    for (row, _) in report::rows(results)
        .into_iter()
        .zip(&results.cases)
        .filter(|(_, case)| begun(case))
    {
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
    let mut text = table.show(color);
    if left > 0 {
        let left = count(left, "case", "cases");
        text.extend(["… and ", &left, " that had not begun\n"]);
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
    // A split of few cases into many parts has such a part; a choice that names none is refused.
    let others = count(results.other_shards.len(), "case", "cases");
    if results.cases.is_empty() {
        let told = [
            "This part of the run has no case: ",
            &others,
            " left to others.\n",
        ];
        text.extend(told);
    } else if !results.other_shards.is_empty() {
        text.extend(["… and ", &others, " left to other parts of the run\n"]);
    }
    let mut parts = vec![parts.join(", ")];
    parts.extend(report::mean_reward(&numbers));
    parts.extend(report::usage(&numbers));
    text.extend(["\n", &parts.join("; "), ".\n"]);
    let rates: Vec<_> = numbers
        .pass_at_k
        .iter()
        .map(|(k, rate)| format!("pass@{k} {rate:.2}"))
        .collect();
    if !rates.is_empty() {
        let attempts = results.attempts.to_string();
        text.extend([&attempts, " attempts each: ", &rates.join(", "), ".\n"]);
    }
    text.push_str(&thresholds(results, color));
    text.extend(["Results: ", &escape::line(path), "\n"]);
    text
}

/// What had to be reached, a line each.
fn thresholds(results: &RunResults, color: bool) -> String {
    if results.thresholds.is_empty() {
        return String::new();
    }
    let mut table = Table::default();
    for bound in &results.thresholds {
        let (word, ink) = if bound.met {
            ("met", Ink::Good)
        } else {
            ("missed", Ink::Bad)
        };
        let value = bound
            .value
            .map_or_else(|| "nothing".to_owned(), |value| format!("{value:.2}"));
        table.row([
            Cell::new(word).ink(ink),
            Cell::new(format!("{}.{}", bound.judge, bound.rule)),
            Cell::new(format!("{:.2}", bound.limit)).right(),
            Cell::new(format!("got {value}")),
        ]);
    }
    format!("Thresholds:\n{}", table.show(color))
}
