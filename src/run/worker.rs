//! The agent's turn: who works, what it sees, and how that ended.
//!
//! Owns oracle, nop and the agents of `runner` blocks. Refuses to know verifiers.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use super::agent::{self, Call, PLUGIN_ROOTS, Values, WORD_MAX};
use super::case::{Failure, Life, Party, Work, capture, first_line, how, printed, stage};
use super::known::{Asked, Known, account_of_trajectory, without_prompt};
use super::package::{SOLVE, Step};
use super::process::{Cut, Ended};
use super::results::{AgentRun, ErrorKind, StepResult};
use super::sandbox::{self, Brought, Mount, OWN, find_program};
use super::{Agent, Request};
use crate::dataset::{Execution, Runner, RunnerCommand, unknown_placeholder};
use crate::diag::{Diagnostic, Rule};
use crate::fs::write_atomic;
use crate::tree::Tree;
use crate::yaml::Yaml;

/// The time that a `cli` agent is told when there is no limit: the harness's default.
const TOLD_TIMEOUT: Duration = Duration::from_hours(1);
/// The budget that it is told when there is none: the harness's default, in US dollars.
const TOLD_BUDGET: f64 = 100.0;

/// An agent, ready to be started.
#[derive(Default)]
struct Ready {
    command: Vec<OsString>,
    mounts: Vec<Mount>,
    /// Over the environment that every agent has.
    env: BTreeMap<String, String>,
    input: Option<File>,
    /// Login files, and where the agent finds them.
    files: Vec<(File, String)>,
    /// Whose output is to be read.
    known: Option<Known>,
}

impl Work<'_> {
    /// Lets the agent work; `None`: there is nobody.
    pub(super) fn agent(
        &self,
        index: usize,
        step: &Step,
        dir: &Path,
        life: &Life,
        report: &mut StepResult,
    ) -> Result<Option<AgentRun>, Failure> {
        let solution = self.dir.join("solution");
        let timeout = self.runner.request.agent_timeout.or(step.agent.timeout);
        let ready = match self.runner.request.agent {
            Agent::Nop => return Ok(None),
            Agent::Oracle => match &step.solution {
                Some(tree) => self.oracle(tree, dir, &solution)?,
                // As in Harbor the step is judged all the same.
                None if self.package.strategy.is_some() => {
                    report.add_message("There is no solve.sh for it, so the oracle did nothing.");
                    return Ok(None);
                }
                None => {
                    return Err(Failure::NoVerdict(
                        ErrorKind::AgentStart,
                        "The package has no solution/solve.sh for the oracle to run.".to_owned(),
                    ));
                }
            },
            Agent::Runner => self.runner_agent(index, step, dir, life, timeout)?,
        };
        let mut env = self.agent_env(index, life)?;
        env.extend(ready.env);
        let mut mounts = self.agent_mounts(dir)?;
        mounts.extend(ready.mounts);
        let program = ready.command.first().cloned().unwrap_or_default();
        let party = Party {
            command: ready.command,
            mounts,
            env,
            network: step.agent.network,
            user: step.agent.user(),
            timeout,
            limits: self.package.limits.clone(),
            input: ready.input,
            files: ready.files,
            output: (
                capture(&dir.join("stdout.txt"))?,
                Some(capture(&dir.join("stderr.txt"))?),
            ),
        };
        let ended = if timeout == Some(Duration::ZERO) {
            // Nobody can do anything in no time (harbor.md 2).
            Ok(Ended {
                cut: Some(Cut::TimeUp),
                ..Ended::default()
            })
        } else {
            self.start(party)
        };
        let ended = ended.map_err(|error| self.not_started(&program, &error.to_string()))?;
        if ended.not_started {
            let said = first_line(dir, "stderr.txt");
            let said = said.trim_start_matches("bwrap: ").to_owned();
            return Err(self.not_started(&program, &said));
        }
        if ended.undead {
            return Err(Failure::NoVerdict(
                ErrorKind::AgentStart,
                "A process of the agent could not be ended, so nothing was judged.".to_owned(),
            ));
        }
        if ended.cut == Some(Cut::TimeUp) {
            let limit = timeout.unwrap_or_default().as_secs_f64();
            report.add_message(&format!("The agent's time ({limit} s) was up."));
        }
        let mut run = AgentRun {
            exit_code: ended.exit_code,
            signal: ended.signal,
            timed_out: ended.cut == Some(Cut::TimeUp),
            duration: ended.duration,
            output_dropped: ended.dropped,
            ..AgentRun::default()
        };
        if let Some(known) = ready.known {
            let output = printed(dir, "stdout.txt");
            known.account(&String::from_utf8_lossy(&output), &mut run);
        }
        account_of_trajectory(&dir.join("logs/agent"), &mut run);
        if ended.cut == Some(Cut::Stopped) {
            report.agent = Some(run);
            return Err(Failure::stopped());
        }
        if ended.cut.is_none() && (ended.exit_code != Some(0) || ended.out_of_memory) {
            report.add_message(&format!("The agent failed: {}.", how(&ended)));
        }
        Ok(Some(run))
    }

    /// The package's own solution, as Harbor's agent of that name runs it.
    fn oracle(&self, tree: &Tree, dir: &Path, solution: &Path) -> Result<Ready, Failure> {
        stage(tree, solution)?;
        let seen = self.seen(solution, "/solution");
        let mut env = self.resolved("solution", &self.package.solution_env)?;
        let told = "noninteractive".to_owned();
        env.entry("DEBIAN_FRONTEND".to_owned()).or_insert(told);
        self.add_places(&mut env, dir);
        env.insert("CASEPACK_SOLUTION_DIR".to_owned(), seen.clone());
        Ok(Ready {
            command: self.script(tree, SOLVE, &format!("{seen}/{SOLVE}")),
            mounts: vec![Mount::write(solution, "/solution")],
            env,
            ..Ready::default()
        })
    }

    /// The agent of the `runner` block.
    fn runner_agent(
        &self,
        index: usize,
        step: &Step,
        dir: &Path,
        life: &Life,
        timeout: Option<Duration>,
    ) -> Result<Ready, Failure> {
        let refused = |message: String| Failure::NoVerdict(ErrorKind::AgentStart, message);
        let execution = self.runner.request.execution;
        let Some(execution) = execution else {
            return Err(refused("There is nothing that names an agent.".to_owned()));
        };
        let text = self.instruction(index, step, life)?;
        write_atomic(&dir.join("instruction.md"), text.as_bytes(), 0o644)
            .map_err(|error| Failure::io("Writing the instruction", &error.source))?;
        let instruction = text.strip_suffix('\n').unwrap_or(&text);
        let runner = self.runner_of(index, execution);
        let logins = self.logins(runner);
        let mut ready = match Worker::of(runner).map_err(refused)? {
            Worker::Cli(command) => {
                let mut call = self.call(index, execution, command, instruction, dir, timeout)?;
                // Each mount costs time, and few ask for this one.
                if self.runner.sandbox.is_some() && asks_for_file(command) {
                    let file = format!("{OWN}/instruction.md");
                    call.mounts
                        .push(Mount::read(dir.join("instruction.md"), file));
                }
                Ready {
                    command: call.argv.into_iter().map(OsString::from).collect(),
                    mounts: call.mounts,
                    ..Ready::default()
                }
            }
            Worker::Known(known) => self.known_agent(known, index, execution, instruction, dir)?,
        };
        ready.files = logins;
        Ok(ready)
    }

    /// An agent that casepack knows by name.
    fn known_agent(
        &self,
        known: Known,
        index: usize,
        execution: &Execution,
        instruction: &str,
        dir: &Path,
    ) -> Result<Ready, Failure> {
        let refused = |message: String| Failure::NoVerdict(ErrorKind::AgentStart, message);
        let runner = self.runner_of(index, execution);
        let caller = self.runner.request.env;
        let brought = match &self.runner.sandbox {
            Some(sandbox) => sandbox.bring(known.program(), caller).map_err(|why| {
                refused(format!("{} can not be used here: {why}.", known.program()))
            })?,
            None => Brought {
                program: known.program().to_owned(),
                ..Brought::default()
            },
        };
        let (plugins, plugin_mounts) = self.plugins().map_err(refused)?;
        let budget = self
            .dataset_step(index)
            .and_then(|step| step.max_budget_usd);
        let model = super::model(self.runner.request);
        let workdir = self.seen(&self.dir.join("workspace"), &self.package.workdir);
        let asked = Asked {
            instruction,
            system_prompt: runner.system_prompt.as_deref(),
            model: model.as_deref(),
            subagent_model: execution.subagent_model.as_deref(),
            effort: runner.effort.as_deref(),
            permission_mode: runner.permission_mode.as_deref(),
            budget: budget.or(execution.max_budget_usd),
            plugins: &plugins,
            workdir: &workdir,
            sandboxed: self.runner.sandbox.is_some(),
        };
        for ignored in known.ignores(&asked) {
            self.runner.tell(option_ignored(known, ignored));
        }
        let told = known.command(&asked);
        if let Some(long) = told.args.iter().find(|arg| arg.len() > WORD_MAX) {
            return Err(refused(format!(
                "The instruction has {} bytes, and {} takes it as one argument, which has at most \
                 {WORD_MAX}.",
                long.len(),
                known.program()
            )));
        }
        if let Some(at) = told.args.iter().position(|arg| arg.contains('\0')) {
            return Err(refused(format!(
                "Argument {} of {} would have a NUL byte, which no argument can hold: it comes from \
                 the instruction or the runner block.",
                at + 1,
                known.program()
            )));
        }
        let mut input = None;
        if !told.input.is_empty() {
            let prompt = dir.join("prompt.txt");
            let failed = |error: &std::io::Error| Failure::io("Writing the prompt", error);
            write_atomic(&prompt, told.input.as_bytes(), 0o644)
                .map_err(|error| failed(&error.source))?;
            input = Some(File::open(&prompt).map_err(|error| failed(&error))?);
        }
        let mut env: BTreeMap<String, String> = known
            .credentials()
            .filter_map(|name| Some((name.to_owned(), caller.get(name)?.clone())))
            .collect();
        env.extend(
            told.env
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        );
        // What the dataset says about its agent's environment is said last.
        env.extend(self.execution_env(index, execution));
        if let (Some(dir), Some(sandbox)) = (&brought.path, &self.runner.sandbox) {
            env.insert("PATH".to_owned(), format!("{dir}:{}", sandbox.path()));
        }
        let mut command = vec![OsString::from(brought.program)];
        command.extend(told.args.into_iter().map(OsString::from));
        let mut mounts = brought.mounts;
        mounts.extend(plugin_mounts);
        Ok(Ready {
            command,
            mounts,
            env,
            input,
            files: Vec::new(),
            known: Some(known),
        })
    }

    /// The dataset's plugin directories as the agent sees them.
    fn plugins(&self) -> Result<(Vec<String>, Vec<Mount>), String> {
        let (mut seen, mut mounts) = (Vec::new(), Vec::new());
        let Some(dataset) = self.runner.request.dataset else {
            return Ok((seen, mounts));
        };
        let roots = &dataset.sources.roots;
        for (number, root) in (PLUGIN_ROOTS..roots.len())
            .filter_map(|at| roots.get(at))
            .enumerate()
        {
            let path = root.path();
            self.runner.project.may_show(path)?;
            if self.runner.sandbox.is_none() {
                seen.push(path.to_string_lossy().into_owned());
                continue;
            }
            // Plugins are called by the name of their directory where they do not say.
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let inside = format!("{OWN}/plugins/{number}/{name}");
            mounts.push(Mount::read(path, inside.clone()));
            seen.push(inside);
        }
        Ok((seen, mounts))
    }

    /// With `--agent-home`: login files of known agents, in the agent's own home directory. In the
    /// sandbox they are copies in memory, so that nothing of them is left or changed.
    fn logins(&self, runner: &Runner) -> Vec<(File, String)> {
        let mut files = Vec::new();
        let Some(home) = self.runner.request.agent_home else {
            return files;
        };
        let known = Known::from_name(&runner.kind);
        // What a command of the dataset calls is not known: any of them.
        let whose = Known::ALL
            .into_iter()
            .filter(|it| known.is_none_or(|known| known == *it));
        for name in whose.flat_map(Known::login_files) {
            let path = home.join(name);
            let Ok(file) = File::open(&path) else {
                continue;
            };
            if self.runner.sandbox.is_some() {
                files.push((file, format!("{}/{name}", sandbox::HOME)));
            } else {
                let own = self.dir.join("home").join(name);
                let made = own.parent().map(std::fs::create_dir_all);
                if matches!(made, Some(Ok(()))) {
                    std::os::unix::fs::symlink(&path, own).ok();
                }
            }
        }
        files
    }

    fn not_started(&self, program: &OsString, why: &str) -> Failure {
        let mut message = format!(
            "The agent did not start: {} ({}).",
            why.trim_end_matches('.'),
            program.to_string_lossy()
        );
        if self.runner.sandbox.is_some()
            && let Some(path) = self.runner.request.env.get("PATH")
            && let Some(found) = path
                .split(':')
                .map(|dir| Path::new(dir).join(program))
                .find(|found| found.is_absolute() && found.is_file())
        {
            message.extend([
                " The sandbox does not show ",
                &found.to_string_lossy(),
                ": install the program for all users (in /usr/local/bin), name it by its path in \
                 the project, or run with --sandbox none.",
            ]);
        }
        Failure::NoVerdict(ErrorKind::AgentStart, message)
    }

    /// The command line of a `cli` agent.
    fn call(
        &self,
        index: usize,
        execution: &Execution,
        command: &RunnerCommand,
        instruction: &str,
        dir: &Path,
        timeout: Option<Duration>,
    ) -> Result<Call, Failure> {
        let refused = |message: String| Failure::NoVerdict(ErrorKind::AgentStart, message);
        let of_step = self.dataset_step(index);
        let runner = self.runner_of(index, execution);
        let mut values = Values::default();
        let mut known = |name, text: Option<String>| {
            values.known.insert(name, text.unwrap_or_default());
        };
        let seconds = timeout.unwrap_or(TOLD_TIMEOUT).as_secs_f64();
        let budget = of_step.and_then(|step| step.max_budget_usd);
        let budget = budget.or(execution.max_budget_usd).unwrap_or(TOLD_BUDGET);
        known("agent", Some(runner.kind.clone()));
        known(
            "workspace",
            Some(self.seen(&self.dir.join("workspace"), &self.package.workdir)),
        );
        known(
            "output_dir",
            Some(self.seen(&dir.join("logs/agent"), "/logs/agent")),
        );
        known("model", super::model(self.runner.request));
        known("subagent_model", execution.subagent_model.clone());
        known("timeout", Some(seconds.to_string()));
        known("max_budget_usd", Some(budget.to_string()));
        known("effort", runner.effort.clone());
        known("system_prompt", runner.system_prompt.clone());
        known("config_dir", Some(self.runner.project.config_dir()));
        let host = dir.join("instruction.md");
        let file = self.seen(&host, &format!("{OWN}/instruction.md"));
        known("instruction_file", Some(file));
        let args = arguments(instruction, runner.system_prompt.as_deref());
        let input = self.case.as_ref().map_or(&Yaml::Null, |case| &case.input);
        values.add_texts(input, instruction, args);
        let call = agent::compose(
            command,
            &values,
            &self.runner.project,
            &self.package.workspace,
        )
        .map_err(refused)?;
        if let Some(sandbox) = &self.runner.sandbox {
            // What of the project is named has another place there; what the package brings is no
            // file of this machine.
            let own = [&self.package.workdir, OWN, "/logs"];
            let hidden = |word: &&String| {
                let path = Path::new(word.as_str());
                path.is_absolute()
                    && path.is_file()
                    && !sandbox.shows(path)
                    && !own.iter().any(|own| path.starts_with(own))
            };
            if let Some(hidden) = agent::started(&call.argv).find(hidden) {
                return Err(refused(format!(
                    "The agent's command names {hidden}, which is on this machine, but not seen in \
                     the sandbox: copy it into the project and name it by its path there, install it \
                     below /usr/local, or run with --sandbox none."
                )));
            }
        }
        for name in &call.unknown {
            self.runner.tell(unknown_placeholder(name).case(&self.id));
        }
        let mut shown = self
            .runner
            .shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        shown.extend(call.mounts.iter().map(|mount| mount.host.clone()));
        Ok(call)
    }
}

/// Who works, of what a `runner` block can name.
pub(super) enum Worker<'a> {
    Cli(&'a RunnerCommand),
    Known(Known),
}

impl<'a> Worker<'a> {
    /// Who is meant.
    ///
    /// # Errors
    /// A sentence about why nobody is.
    pub(super) fn of(runner: &'a Runner) -> Result<Self, String> {
        if let Some(known) = Known::from_name(&runner.kind) {
            return Ok(Self::Known(known));
        }
        match (runner.kind.as_str(), &runner.command) {
            ("cli", Some(command)) => agent::words(command).map(|_| Self::Cli(command)),
            ("cli", None) => Err("runner.type is cli, and runner.command is missing.".to_owned()),
            ("", _) => Err("The dataset names no runner.type.".to_owned()),
            (kind, _) => {
                let known = Known::ALL.map(Known::name).join(", ");
                Err(format!(
                    "casepack does not know the runner.type '{kind}': it knows cli, {known}."
                ))
            }
        }
    }
}

/// The program of a command, when it is certain that nobody who could run finds it. One that is
/// named by its path, or looked for in a `PATH` of the dataset's own, is told of when it is started.
pub(super) fn missing(
    command: &RunnerCommand,
    runner: &Runner,
    request: &Request<'_>,
) -> Option<String> {
    let words = agent::words(command).ok()?;
    let program = words.into_iter().next()?;
    let own_path = |env: &BTreeMap<String, String>| env.contains_key("PATH");
    let unsure = program.contains(['/', '{'])
        || own_path(&runner.env)
        || request.execution.is_some_and(|it| own_path(&it.env))
        || find_program(&program, request.env).is_some()
        || sandbox::PATHS
            .iter()
            .any(|dir| Path::new(dir).join(&program).is_file());
    (!unsure).then_some(program)
}

/// Whether a command names the file of the instruction.
fn asks_for_file(command: &RunnerCommand) -> bool {
    let asks = |word: &String| word.contains("{instruction_file}");
    match command {
        RunnerCommand::Text(text) => asks(text),
        RunnerCommand::List(words) => words.iter().any(asks),
    }
}

fn option_ignored(known: Known, option: &str) -> Diagnostic {
    Diagnostic::new(
        Rule::AgentOptionIgnored,
        format!(
            "{} has no option for `{option}`; it is left out.",
            known.program()
        ),
    )
    .help(match option {
        "max_budget_usd" => "Bound the run by --agent-timeout, or at the provider.",
        _ => "Nothing has to be done if the agent does well without it.",
    })
    .entry(option)
}

/// `{args}`: of `/skill words` the words; of anything else all of it.
fn arguments<'a>(instruction: &'a str, system_prompt: Option<&str>) -> &'a str {
    let own = without_prompt(instruction, system_prompt);
    match own.strip_prefix('/') {
        Some(command) => command
            .split_once(char::is_whitespace)
            .map_or("", |(_, arguments)| arguments.trim_start()),
        None => own,
    }
}
