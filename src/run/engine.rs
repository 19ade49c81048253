//! Harbor as the engine: its command line, and its job directory read as our results
//! (harbor.md 8).
//!
//! Owns what is asked of `harbor run` and what its files mean. Refuses to know sandboxes: Harbor
//! has environments of its own.
//! Invariant: every package has a result; what Harbor passed over in silence is named.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::Value;

use super::env::Secrets;
use super::results::{AgentRun, CaseResult, ErrorKind, Status, StepResult, Tokens, VerifierRun};
use super::sandbox::find_program;
use super::{Agent, Error, PackageRef, Request, model, verdict};
use crate::dataset::RunnerCommand;
use crate::event::{Event, Observer};
use crate::fs::Root;
use crate::path::TreePath;

/// The program.
pub(super) const PROGRAM: &str = "harbor";
/// The name of the job, and where jobs lie in the run's directory.
const JOB: &str = "harbor";
const JOBS: &str = "jobs";
/// What it said, and how much of it is kept.
const LOG: &str = "harbor.log";
const LOG_MAX: usize = 64 << 20;
/// How often it is looked whether a case is done.
const LOOK: Duration = Duration::from_secs(2);
/// The largest file of a trial that is read.
const MAX: u64 = 64 << 20;
/// How long Harbor may take to end its own children when the run is stopped.
const GRACE: Duration = Duration::from_mins(1);
/// How long what it left may take.
const REST: Duration = Duration::from_secs(5);

/// Runs the packages with Harbor; a result for each, in their order, and whether Harbor had to be
/// killed.
pub(super) fn run(
    request: &Request<'_>,
    args: &[String],
    dir: &Path,
    observer: &dyn Observer,
) -> Result<(Vec<CaseResult>, bool), Error> {
    let failed = |source| Error::Io {
        doing: "running",
        path: PathBuf::from(PROGRAM),
        source,
    };
    let program = find_program(PROGRAM, request.env)
        .ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
    let (said, end) = std::io::pipe().map_err(failed)?;
    let log = dir.join(LOG);
    let file = std::fs::File::create_new(&log).map_err(|source| Error::Io {
        doing: "creating",
        path: log,
        source,
    })?;
    let mut command = Command::new(program);
    command
        .args(words(request, args, dir))
        .env_clear()
        .envs(request.env)
        .stdin(Stdio::null())
        // Standard output is for the result of the whole.
        .stdout(end.try_clone().map_err(failed)?)
        .stderr(end)
        // With all that it starts; an interrupt of the terminal is handed on to it.
        .process_group(0);
    let child = command.spawn().map_err(failed)?;
    // The ends that only the child is to have.
    drop(command);
    let (open, shown) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        pass_on(said, file);
        drop(open);
    });
    let mut told = BTreeSet::new();
    let status = wait(child, request, || {
        let trials = trials(&dir.join(JOBS).join(JOB));
        for package in request.packages {
            let found = results(package, request, &trials, dir);
            if found.len() >= attempts_of(request) && !told.contains(&package.id) {
                tell(&together(package, found), observer);
                told.insert(package.id.clone());
            }
        }
    });
    let (status, killed) = status.map_err(failed)?;
    // Its last words; who else holds the pipe is not waited for.
    shown.recv_timeout(LOOK).ok();
    let stopped = request.stop.load(Ordering::Relaxed);
    let trials = trials(&dir.join(JOBS).join(JOB));
    let found = request.packages.iter();
    let found: Vec<_> = found
        .map(|package| (package, results(package, request, &trials, dir)))
        .collect();
    // What is passed through may ask for other numbers.
    let attempts = found.iter().map(|(_, found)| found.len()).max();
    let attempts = attempts.unwrap_or(0).max(attempts_of(request));
    let results = found.into_iter().map(|(package, mut found)| {
        // An attempt that was not made counts like one without a verdict.
        found.resize_with(attempts.max(1), || missing(package, stopped, status));
        let result = together(package, found);
        if !told.contains(&package.id) {
            tell(&result, observer);
        }
        result
    });
    Ok((results.collect(), killed))
}

fn attempts_of(request: &Request<'_>) -> usize {
    usize::try_from(request.attempts).unwrap_or(usize::MAX)
}

/// Shows what Harbor says, and keeps it.
fn pass_on(mut said: impl Read, mut file: std::fs::File) {
    let mut buffer = [0; 8192];
    let mut left = LOG_MAX;
    while let Ok(read @ 1..) = said.read(&mut buffer) {
        let bytes = buffer.get(..read).unwrap_or_default();
        // That nobody is there to see it, or no space to keep it, is no reason to stop Harbor.
        std::io::stderr().write_all(bytes).ok();
        let kept = bytes.get(..read.min(left)).unwrap_or_default();
        file.write_all(kept).ok();
        left -= kept.len();
    }
}

/// What the trials of a package came to.
fn results(
    package: &PackageRef,
    request: &Request<'_>,
    trials: &[Trial],
    dir: &Path,
) -> Vec<CaseResult> {
    let name = package.dir.file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let own = trials.iter().filter(|trial| trial.name == name);
    own.map(|trial| trial.result(package, request, dir))
        .collect()
}

fn together(package: &PackageRef, mut found: Vec<CaseResult>) -> CaseResult {
    if found.len() == 1 {
        found.remove(0)
    } else {
        CaseResult::of_attempts(&package.id, found)
    }
}

fn tell(case: &CaseResult, observer: &dyn Observer) {
    observer.on(Event::CaseRun {
        case: &case.id,
        status: case.status.name(),
        reward: case.reward,
        duration: case.duration,
    });
}

/// Harbor's name for who works; `None`: what is passed through has to say.
pub(super) fn agent(request: &Request<'_>) -> Option<&'static str> {
    match (request.agent, request.execution) {
        (Agent::Oracle, _) => Some("oracle"),
        (Agent::Nop, _) => Some("nop"),
        (Agent::Runner, Some(execution)) => {
            let own = super::Known::from_name(&execution.runner.kind);
            own.map(super::Known::name)
        }
        (Agent::Runner, None) => None,
    }
}

/// Whether what is passed through names an agent.
pub(super) fn names_agent(args: &[String]) -> bool {
    args.iter().any(|arg| {
        arg == "-a"
            || arg == "--agent"
            || arg.starts_with("--agent=")
            || arg == "--config"
            || arg == "-c"
    })
}

/// Why the dataset's own agent can not be handed to Harbor.
pub(super) fn no_agent(request: &Request<'_>) -> String {
    let command = request
        .execution
        .and_then(|execution| execution.runner.command.as_ref());
    match command {
        Some(RunnerCommand::Text(_) | RunnerCommand::List(_)) => {
            "Harbor can not run the command of runner.type cli.".to_owned()
        }
        None => "Nothing names an agent that Harbor knows.".to_owned(),
    }
}

fn words(request: &Request<'_>, args: &[String], dir: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["run".into(), "-p".into()];
    let dirs: Vec<&Path> = request
        .packages
        .iter()
        .map(|package| package.dir.as_path())
        .collect();
    let parent = dirs
        .first()
        .and_then(|dir| dir.parent())
        .unwrap_or(request.project);
    match dirs.as_slice() {
        [one] => words.push((*one).into()),
        several => {
            words.push(parent.into());
            for dir in several {
                // A name stands for itself where it has no character of a pattern.
                words.push("-i".into());
                words.push(dir.file_name().unwrap_or_default().into());
            }
        }
    }
    words.extend(["--yes".into(), "--job-name".into(), JOB.into()]);
    words.extend(["-o".into(), dir.join(JOBS).into()]);
    words.extend(["-n".into(), request.jobs.to_string().into()]);
    words.extend(["-k".into(), request.attempts.to_string().into()]);
    words.extend(["-r".into(), request.retries.to_string().into()]);
    if !names_agent(args)
        && let Some(agent) = agent(request)
    {
        words.extend(["-a".into(), agent.into()]);
        if request.agent == Agent::Runner
            && let Some(model) = model(request)
        {
            words.extend(["-m".into(), model.into()]);
        }
    }
    words.extend(args.iter().map(OsString::from));
    words
}

/// Waits for Harbor, looking now and then at what is there; asks it to end when the run is stopped,
/// and ends it when that takes too long or the run is stopped once more. Gives whether it was ended.
fn wait(
    mut child: Child,
    request: &Request<'_>,
    mut look: impl FnMut(),
) -> std::io::Result<(ExitStatus, bool)> {
    let group = Pid::from_child(&child);
    let mut asked: Option<Instant> = None;
    let mut killed = false;
    let mut looked = Instant::now();
    loop {
        if looked.elapsed() > LOOK {
            look();
            looked = Instant::now();
        }
        if let Some(status) = child.try_wait()? {
            if asked.is_some() && !killed {
                end_rest(group);
            }
            return Ok((status, killed));
        }
        if request.stop.load(Ordering::Relaxed) {
            let since = *asked.get_or_insert_with(|| {
                // The first signal set it, too.
                request.again.store(false, Ordering::Relaxed);
                // It may have been gone already.
                let _ = kill_process_group(group, Signal::INT);
                Instant::now()
            });
            if since.elapsed() > GRACE || request.again.load(Ordering::Relaxed) {
                killed = true;
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ends what Harbor left behind when it was interrupted: what runs in the background of a shell takes
/// no notice of INT.
fn end_rest(group: Pid) {
    let until = Instant::now() + REST;
    let mut signal = Signal::TERM;
    while kill_process_group(group, signal).is_ok() && signal != Signal::KILL {
        while test_kill_process_group(group).is_ok() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        signal = Signal::KILL;
    }
}

/// One trial, as its directory has it.
struct Trial {
    /// The directory's name of the package.
    name: String,
    dir: PathBuf,
    result: Value,
}

/// All trials, in the order in which they started.
fn trials(job: &Path) -> Vec<Trial> {
    let entries = std::fs::read_dir(job).into_iter().flatten().flatten();
    let mut trials: Vec<Trial> = entries
        .filter_map(|entry| {
            let dir = entry.path();
            let result = read(&dir, "result.json")?;
            let path = result.pointer("/task_id/path")?.as_str()?;
            let name = Path::new(path).file_name()?.to_string_lossy().into_owned();
            Some(Trial { name, dir, result })
        })
        .collect();
    trials.sort_by(|a, b| a.text("/started_at").cmp(&b.text("/started_at")));
    trials
}

fn read(dir: &Path, name: &str) -> Option<Value> {
    let root = Root::open(dir).ok()?;
    let (bytes, _) = root.read(&TreePath::new(name).ok()?, MAX).ok()?;
    serde_json::from_slice(&bytes).ok()
}

impl Trial {
    fn text(&self, at: &str) -> Option<&str> {
        self.result.pointer(at)?.as_str()
    }

    fn result(&self, package: &PackageRef, request: &Request<'_>, run_dir: &Path) -> CaseResult {
        let mut result = CaseResult::new(&package.id);
        let lock = read(&self.dir, "lock.json");
        let digest = lock
            .as_ref()
            .and_then(|lock| lock.pointer("/task/digest")?.as_str());
        result.package_digest = digest.map(str::to_owned);
        let place = self.dir.strip_prefix(run_dir).unwrap_or(&self.dir);
        result.dir = Some(place.to_string_lossy().into_owned());
        result.duration = self.span("").unwrap_or_default();
        result.agent = self.span("/agent_execution").map(|duration| {
            let tokens = |name: &str| {
                self.result
                    .pointer(&format!("/agent_result/{name}"))?
                    .as_u64()
            };
            let cached = tokens("n_cache_tokens").unwrap_or(0);
            AgentRun {
                duration,
                timed_out: self.text("/exception_info/exception_type") == Some("AgentTimeoutError"),
                cost_usd: self
                    .result
                    .pointer("/agent_result/cost_usd")
                    .and_then(Value::as_f64),
                token_usage: tokens("n_input_tokens").map(|input| Tokens {
                    input: input.saturating_sub(cached),
                    output: tokens("n_output_tokens").unwrap_or(0),
                    cache_read: cached,
                    cache_create: 0,
                }),
                ..AgentRun::default()
            }
        });
        result.verifier = self.span("/verifier").map(|duration| VerifierRun {
            duration,
            ..VerifierRun::default()
        });
        let secrets = Secrets::of(request.env);
        let steps = self.result.get("step_results").and_then(Value::as_array);
        for step in steps.into_iter().flatten() {
            let name = step
                .get("step_name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let mut report = StepResult::new(name);
            report.rewards = rewards(step);
            report.reward = report.rewards.get("reward").copied();
            if let Ok(root) = Root::open(&self.dir.join("steps").join(name).join("verifier")) {
                report.judges = verdict::judges(&root, &secrets);
            }
            result.judges.clone_from(&report.judges);
            result.steps.push(report);
        }
        if let Ok(root) = Root::open(&self.dir.join("verifier")) {
            let judges = verdict::judges(&root, &secrets);
            if !judges.is_empty() {
                result.judges = judges;
            }
        }
        result.rewards = rewards(&self.result);
        let told = self.text("/exception_info/exception_message");
        let told = told.map(|told| format!("Harbor says: {}", told.trim()));
        let kind = self.text("/exception_info/exception_type");
        match verdict::reward(&result.rewards) {
            Ok(reward) => {
                result.reward = Some(reward);
                result.status = if reward >= request.pass_at - 1e-9 {
                    Status::Passed
                } else {
                    Status::Failed
                };
                let mut told: Vec<String> = told.into_iter().collect();
                told.extend(verdict::complaints(&result.judges));
                result.message = (!told.is_empty()).then(|| told.join(" "));
            }
            Err((unnamed, message)) => {
                result.error = Some(match kind {
                    None if result.rewards.is_empty() => ErrorKind::Engine,
                    None => unnamed,
                    Some("RewardFileNotFoundError") => ErrorKind::RewardMissing,
                    Some("RewardFileEmptyError") => ErrorKind::RewardEmpty,
                    Some("VerifierOutputParseError" | "ValidationError") => {
                        ErrorKind::RewardInvalid
                    }
                    Some("VerifierTimeoutError") => ErrorKind::VerifierTimeout,
                    Some("CancelledError" | "KeyboardInterrupt") => ErrorKind::Interrupted,
                    Some(_) => ErrorKind::Engine,
                });
                if result.error == Some(ErrorKind::Interrupted) {
                    result.status = Status::Skipped;
                }
                result.message = Some(told.unwrap_or(message));
            }
        }
        result
    }

    /// The time between start and end of a part.
    fn span(&self, part: &str) -> Option<Duration> {
        let start = moment(self.text(&format!("{part}/started_at"))?)?;
        let end = moment(self.text(&format!("{part}/finished_at"))?)?;
        Some(end.saturating_sub(start))
    }
}

fn rewards(of: &Value) -> BTreeMap<String, f64> {
    let rewards = of
        .pointer("/verifier_result/rewards")
        .and_then(Value::as_object);
    let rewards = rewards.into_iter().flatten();
    rewards
        .filter_map(|(name, value)| {
            let value = value
                .as_f64()
                .or_else(|| value.as_bool().map(|yes| f64::from(u8::from(yes))));
            Some((name.clone(), value?))
        })
        .collect()
}

/// A package of which there is no trial.
fn missing(package: &PackageRef, stopped: bool, status: ExitStatus) -> CaseResult {
    let mut result = CaseResult::new(&package.id);
    let (status, error, message) = if stopped {
        let message = "The run was stopped before Harbor was done with this case.".to_owned();
        (Status::Skipped, ErrorKind::Interrupted, message)
    } else {
        let ended = if status.success() {
            String::new()
        } else {
            format!(" It ended with {status}; {LOG} in the run's directory tells why.")
        };
        let message = format!(
            "Harbor has no trial of this package.{ended} It leaves out what it can not load: \
             `harbor lint {}` may say why.",
            package.dir.display()
        );
        (Status::Error, ErrorKind::Engine, message)
    };
    (result.status, result.error, result.message) = (status, Some(error), Some(message));
    result
}

/// Time since 0000-03-01 of a moment as Harbor writes it (RFC 3339); for differences only.
fn moment(text: &str) -> Option<Duration> {
    let moment: toml_edit::Datetime = text.parse().ok()?;
    let (date, time) = (moment.date?, moment.time?);
    let (mut year, mut month) = (u64::from(date.year), u64::from(date.month));
    // The year begins in March, so that its odd day is the last one.
    if month < 3 {
        (year, month) = (year.checked_sub(1)?, month + 12);
    }
    let days = 365 * year + year / 4 - year / 100
        + year / 400
        + (153 * (month - 3) + 2) / 5
        + u64::from(date.day);
    let minutes = u64::from(time.hour) * 60 + u64::from(time.minute);
    let seconds = days * 86_400 + minutes * 60 + u64::from(time.second.unwrap_or(0));
    Some(Duration::new(seconds, time.nanosecond.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_can_be_subtracted() {
        for (from, to, seconds) in [
            (
                "2026-11-30T22:47:14.480612Z",
                "2026-11-30T22:47:14.980612Z",
                0.5,
            ),
            ("2024-02-28T23:59:59Z", "2024-03-01T00:00:00Z", 86_401.0),
            (
                "2025-12-31T23:00:00+00:00",
                "2026-01-01T01:00:00+00:00",
                7200.0,
            ),
        ] {
            let span = moment(to).unwrap().abs_diff(moment(from).unwrap());
            assert!((span.as_secs_f64() - seconds).abs() < 1e-9, "{from} {to}");
        }
        assert_eq!(moment("soon"), None);
    }
}
