//! The agent's turn: who works, what it sees, and how that ended.
//!
//! Owns oracle, nop and the dataset's `cli` agent. Refuses to know verifiers.

use std::ffi::OsString;
use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use super::agent::{self, Call, Values};
use super::case::{Failure, Party, Work, capture, first_line, how, stage};
use super::package::{SOLVE, Step};
use super::process::Cut;
use super::results::{AgentRun, ErrorKind, StepResult};
use super::sandbox::{Mount, OWN};
use super::{Agent, cli_command};
use crate::dataset::unknown_placeholder;
use crate::fs::{remove_tree, write_atomic};

/// The time that a `cli` agent is told when there is no limit: the harness's default.
const TOLD_TIMEOUT: Duration = Duration::from_hours(1);
/// The budget that it is told when there is none: the harness's default, in US dollars.
const TOLD_BUDGET: f64 = 100.0;

impl Work<'_> {
    /// Lets the agent work; `None`: there is nobody.
    pub(super) fn agent(
        &self,
        index: usize,
        step: &Step,
        dir: &Path,
        report: &mut StepResult,
    ) -> Result<Option<AgentRun>, Failure> {
        let solution = self.dir.join("solution");
        let mut env = self.agent_env(index)?;
        let mut mounts = vec![
            Mount::write(dir.join("logs/agent"), "/logs/agent"),
            Mount::write(dir.join("logs/artifacts"), "/logs/artifacts"),
        ];
        let timeout = self.runner.request.agent_timeout.or(step.agent_timeout);
        let command: Vec<OsString> = match self.runner.request.agent {
            Agent::Nop => return Ok(None),
            Agent::Oracle => {
                let tree = step.solution.as_ref().ok_or_else(|| {
                    Failure::NoVerdict(
                        ErrorKind::AgentStart,
                        "The package has no solution/solve.sh for the oracle to run.".to_owned(),
                    )
                })?;
                stage(tree, &solution)?;
                let seen = self.seen(&solution, "/solution");
                mounts.push(Mount::read(&solution, "/solution"));
                env.insert("DEBIAN_FRONTEND".to_owned(), "noninteractive".to_owned());
                env.append(&mut self.resolved("solution", &self.package.solution_env)?);
                self.add_places(&mut env, dir);
                env.insert("CASEPACK_SOLUTION_DIR".to_owned(), seen.clone());
                self.script(&format!("{seen}/{SOLVE}"))
            }
            Agent::Config => {
                let call = self.call(index, step, dir, timeout)?;
                if self.runner.sandbox.is_some() {
                    mounts.push(Mount::read(
                        dir.join("instruction.md"),
                        format!("{OWN}/instruction.md"),
                    ));
                    mounts.extend(call.mounts);
                }
                call.argv.into_iter().map(OsString::from).collect()
            }
        };
        let program = command.first().cloned().unwrap_or_default();
        let party = Party {
            command,
            mounts,
            env,
            network: self.package.agent_network,
            timeout,
            output: (
                capture(&dir.join("stdout.txt"))?,
                Some(capture(&dir.join("stderr.txt"))?),
            ),
        };
        let ended = self.start(party);
        remove_tree(&solution).ok();
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
        let run = AgentRun {
            exit_code: ended.exit_code,
            signal: ended.signal,
            timed_out: ended.cut == Some(Cut::TimeUp),
            duration: ended.duration,
            output_dropped: ended.dropped,
        };
        if ended.cut == Some(Cut::Stopped) {
            report.agent = Some(run);
            return Err(Failure::stopped());
        }
        if ended.cut.is_none() && ended.exit_code != Some(0) {
            report.add_message(&format!("The agent failed: {}.", how(&ended)));
        }
        Ok(Some(run))
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

    /// The command line of the dataset's agent.
    fn call(
        &self,
        index: usize,
        step: &Step,
        dir: &Path,
        timeout: Option<Duration>,
    ) -> Result<Call, Failure> {
        let refused = |message: String| Failure::NoVerdict(ErrorKind::AgentStart, message);
        let (Some(dataset), Some(case)) = (self.runner.request.dataset, &self.case) else {
            return Err(refused(
                "There is no dataset that names an agent.".to_owned(),
            ));
        };
        let execution = &dataset.execution;
        let of_step = self.dataset_step(index);
        let runner = of_step
            .and_then(|step| step.runner.as_ref())
            .unwrap_or(&execution.runner);
        let command = cli_command(runner).map_err(refused)?;
        let instruction = step
            .instruction
            .strip_suffix('\n')
            .unwrap_or(&step.instruction);
        let host = dir.join("instruction.md");
        write_atomic(&host, step.instruction.as_bytes(), 0o644)
            .map_err(|error| Failure::io("Writing the instruction", &error.source))?;
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
        known("model", self.runner.model());
        known("subagent_model", execution.subagent_model.clone());
        known("timeout", Some(seconds.to_string()));
        known("max_budget_usd", Some(budget.to_string()));
        known("effort", runner.effort.clone());
        known("system_prompt", runner.system_prompt.clone());
        known("config_dir", Some(self.runner.project.config_dir()));
        let file = self.seen(&host, &format!("{OWN}/instruction.md"));
        known("instruction_file", Some(file));
        let args = arguments(instruction, runner.system_prompt.as_deref());
        values.add_texts(&case.input, instruction, args);
        let call = agent::compose(
            command,
            &values,
            &self.runner.project,
            &self.package.workspace,
        )
        .map_err(refused)?;
        for name in &call.unknown {
            let mut diags = self
                .runner
                .diags
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            diags.push(unknown_placeholder(name).case(&case.id));
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

/// `{args}`: of `/skill words` the words; of anything else all of it.
fn arguments<'a>(instruction: &'a str, system_prompt: Option<&str>) -> &'a str {
    let own = system_prompt
        .map(str::trim_end)
        .filter(|prompt| !prompt.is_empty())
        .and_then(|prompt| instruction.strip_prefix(prompt)?.strip_prefix("\n\n"))
        .unwrap_or(instruction);
    match own.strip_prefix('/') {
        Some(command) => command
            .split_once(char::is_whitespace)
            .map_or("", |(_, arguments)| arguments.trim_start()),
        None => own,
    }
}
