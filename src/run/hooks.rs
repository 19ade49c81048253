//! Hooks: the dataset's own commands around cases, steps and judging (agent-eval-harness 3.3).
//!
//! Owns when one counts as failed, what it is told and what it tells back. Refuses to know agents.
//! Hooks run as the caller and outside of the sandbox: they are the operator's commands, made to
//! reach the project and services. What they start may live on until their scope ends, so that a
//! server can be started before a case and be there for it.
//! Invariant: nothing that an agent left behind is taken for the output of a hook.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::process::{self, Capture, Cut, Ended, Job};
use super::results::HookRun;
use crate::dataset::{Hook, Phase};
use crate::diag::Diagnostic;
use crate::diag::Source;
use crate::fs::{ReadError, Root, remove_tree};
use crate::path::TreePath;
use crate::template::python_str;
use crate::yaml::{self, Yaml};

/// How long a condition may take.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(30);
/// What a hook tells back, the first that is there.
const OUTPUTS: [&str; 2] = [".hook-outputs.yaml", ".hook-outputs.json"];
/// The largest of these.
const OUTPUTS_MAX: u64 = 1 << 20;
/// Of a command without a description so many characters are shown.
const WHAT_MAX: usize = 60;
/// The most that is kept of what a condition prints.
const CONDITION_OUTPUT: u64 = 64 << 10;

/// A stop switch that nobody has.
static NEVER: AtomicBool = AtomicBool::new(false);

/// The hooks of a dataset.
pub(super) struct Hooks<'a> {
    pub(super) all: &'a [Hook],
    /// The caller's environment and what every hook is told.
    pub(super) env: BTreeMap<String, String>,
    /// The run's directory; logs are told relative to it.
    pub(super) run_dir: PathBuf,
    pub(super) stop: &'a AtomicBool,
}

/// Around what hooks run.
pub(super) struct Around<'a> {
    /// Where they start.
    pub(super) cwd: &'a Path,
    /// Where their outputs are looked for.
    pub(super) outputs: Vec<&'a Path>,
    /// Where their logs go; made when it is missing.
    pub(super) logs: PathBuf,
    /// What they are told besides.
    pub(super) told: Vec<(&'static str, String)>,
    /// The step around which they run.
    pub(super) step: Option<&'a str>,
    /// The mark of processes that may outlive them.
    pub(super) scope: &'a str,
}

/// What hooks told back.
#[derive(Debug, Default, Clone)]
pub(super) struct Told {
    /// More environment for what follows.
    pub(super) env: BTreeMap<String, String>,
    /// For judges.
    pub(super) data: serde_json::Map<String, serde_json::Value>,
}

impl Told {
    /// Puts `later` over it.
    pub(super) fn add(&mut self, later: Self) {
        self.env.extend(later.env);
        self.data.extend(later.data);
    }
}

/// Whether a failure of such a hook ends what it is around.
fn decides(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::BeforeAll | Phase::BeforeEach | Phase::BeforeStep | Phase::BeforeScoring
    )
}

impl Hooks<'_> {
    pub(super) fn has(&self, phase: Phase) -> bool {
        self.all.iter().any(|hook| hook.phase == phase)
    }

    /// Runs the hooks of `phase`, one after the other.
    ///
    /// # Errors
    /// A sentence about the first that failed, where a failure counts.
    pub(super) fn run(
        &self,
        phase: Phase,
        around: &Around<'_>,
        done: &mut Vec<HookRun>,
    ) -> Result<Told, String> {
        let mut told = Told::default();
        let mut ran = false;
        // An agent may have put some there; in the project nobody but its owner can have.
        let own = around
            .outputs
            .iter()
            .filter(|dir| dir.starts_with(&self.run_dir));
        for path in own.flat_map(|dir| OUTPUTS.map(|name| dir.join(name))) {
            remove_tree(&path)
                .map_err(|error| format!("{} is in the way: {}.", path.display(), error.source))?;
        }
        let hooks = self.all.iter().filter(|hook| hook.phase == phase);
        for (index, hook) in hooks.enumerate() {
            let run = match self.one(hook, phase, index, around) {
                Ok(run) => run,
                Err(error) => {
                    let message = format!("The {} hook could not be run: {error}.", phase.name());
                    if decides(phase) && hook.fail {
                        return Err(message);
                    }
                    continue;
                }
            };
            ran |= !run.skipped;
            let failed = !run.skipped && (run.timed_out || run.exit_code != Some(0));
            let message = failed.then(|| {
                let why = match (run.timed_out, run.exit_code) {
                    (true, _) => format!("its time ({} s) was up", hook.timeout_sec),
                    (_, Some(code)) => format!("exit status {code}"),
                    _ => "it was ended by a signal".to_owned(),
                };
                let log = run.log.as_deref().unwrap_or_default();
                format!(
                    "The {} hook '{}' failed: {why}. See {log}.",
                    run.phase, run.what
                )
            });
            done.push(run);
            if let Some(message) = message.filter(|_| decides(phase) && hook.fail) {
                return Err(message);
            }
        }
        // What hooks after an agent tell is read too, for judges; only what hooks before it tell
        // gets to the agent.
        let counts = decides(phase) && self.all.iter().any(|it| it.phase == phase && it.fail);
        for dir in around.outputs.iter().filter(|_| ran) {
            match take_outputs(dir) {
                Ok(more) => told.add(more),
                Err(why) if counts => {
                    let name = phase.name();
                    return Err(format!(
                        "What the {name} hooks tell can not be used: {why}."
                    ));
                }
                // Of what stands after an agent nobody knows whose it is.
                Err(_) => {}
            }
        }
        if !decides(phase) {
            told.env.clear();
        }
        Ok(told)
    }

    fn one(
        &self,
        hook: &Hook,
        phase: Phase,
        index: usize,
        around: &Around<'_>,
    ) -> std::io::Result<HookRun> {
        let first = hook.command.lines().next().unwrap_or_default();
        let what: String = match hook.description.trim() {
            "" => first.chars().take(WHAT_MAX).collect(),
            description => description.to_owned(),
        };
        let mut run = HookRun {
            phase: phase.name().to_owned(),
            step: around.step.map(str::to_owned),
            what,
            skipped: false,
            exit_code: None,
            timed_out: false,
            duration: Duration::ZERO,
            log: None,
        };
        if hook.command.trim().is_empty() {
            run.skipped = true;
            return Ok(run);
        }
        std::fs::create_dir_all(&around.logs)?;
        let mut env = self.env.clone();
        for (name, value) in &around.told {
            env.insert((*name).to_owned(), value.clone());
        }
        if !hook.condition.trim().is_empty() {
            let log = around
                .logs
                .join(format!("{}.{index}.condition.log", phase.name()));
            let output = Capture::create(&log, CONDITION_OUTPUT)?;
            let ended = self.start(
                phase,
                &hook.condition,
                CONDITION_TIMEOUT,
                output,
                &env,
                around,
            )?;
            if ended.exit_code != Some(0) || ended.cut.is_some() {
                run.skipped = true;
                return Ok(run);
            }
            std::fs::remove_file(&log)?;
        }
        let log = around.logs.join(format!("{}.{index}.log", phase.name()));
        let output = Capture::create(&log, u64::MAX)?;
        let timeout = Duration::from_secs(hook.timeout_sec);
        let ended = self.start(phase, &hook.command, timeout, output, &env, around)?;
        run.exit_code = ended.exit_code;
        run.timed_out = ended.cut == Some(Cut::TimeUp);
        run.duration = ended.duration;
        let shown = log.strip_prefix(&self.run_dir).unwrap_or(&log);
        run.log = Some(shown.to_string_lossy().into_owned());
        Ok(run)
    }

    fn start(
        &self,
        phase: Phase,
        command: &str,
        timeout: Duration,
        output: Capture,
        env: &BTreeMap<String, String>,
        around: &Around<'_>,
    ) -> std::io::Result<Ended> {
        process::watch(Job {
            argv: &["bash".into(), "-c".into(), command.into()],
            env,
            cwd: around.cwd,
            input: None,
            files: &[],
            output: (output, None),
            timeout: Some(timeout),
            limits: &[],
            bwrap: false,
            network: true,
            kept: false,
            scope: Some(around.scope),
            // What cleans up is left to its own end, also when the run is stopped.
            stop: if decides(phase) { self.stop } else { &NEVER },
        })
    }
}

/// Reads and removes what hooks left in `dir`.
///
/// # Errors
/// What is wrong with it, as the end of a sentence.
fn take_outputs(dir: &Path) -> Result<Told, String> {
    let Ok(root) = Root::open(dir) else {
        return Ok(Told::default());
    };
    for name in OUTPUTS {
        let Ok(path) = TreePath::new(name) else {
            continue;
        };
        let read = root.read(&path, OUTPUTS_MAX);
        remove_tree(&dir.join(name)).ok();
        match read {
            Err(ReadError::Missing) => {}
            Err(error) => return Err(format!("{name}: {error}")),
            Ok((bytes, _)) => {
                let text = String::from_utf8(bytes);
                return parse(name, text.map_err(|_| format!("{name} is not UTF-8"))?);
            }
        }
    }
    Ok(Told::default())
}

fn parse(name: &str, text: String) -> Result<Told, String> {
    let mut told = Told::default();
    let source = Arc::new(Source::new(name, text));
    let bad = |error: Box<Diagnostic>| {
        let why = error.message.trim_end_matches('.');
        format!("{name} is no valid YAML: {why}")
    };
    let document = yaml::parse(source).map_err(bad)?;
    if let Some(Yaml::Map(entries)) = document.root.value.get("env").map(|node| &node.value) {
        for (key, value) in entries {
            let (key, value) = (python_str(&key.value), python_str(&value.value));
            if key.is_empty() || key.contains(['=', '\0']) {
                return Err(format!(
                    "{name} has {key:?} in `env`, and no variable has that name"
                ));
            }
            if value.contains('\0') {
                return Err(format!(
                    "{name}: {key} in `env` has a NUL character, which none can hold"
                ));
            }
            told.env.insert(key, value);
        }
    }
    if let Some(Yaml::Map(entries)) = document.root.value.get("data").map(|node| &node.value) {
        for (key, value) in entries {
            let value = value.value.to_tagged_json();
            told.data.insert(python_str(&key.value), value);
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_taken_once_and_only_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".hook-outputs.yaml");
        std::fs::write(&path, "env: {PORT: 8080}\ndata: {id: 7}\n").unwrap();
        let told = take_outputs(dir.path()).unwrap();
        assert_eq!(
            told.env,
            BTreeMap::from([("PORT".to_owned(), "8080".to_owned())])
        );
        assert_eq!(told.data["id"], 7);
        assert!(!path.exists());
        std::fs::write(dir.path().join("secret"), "env: {A: b}").unwrap();
        std::os::unix::fs::symlink("secret", &path).unwrap();
        assert!(
            take_outputs(dir.path())
                .unwrap_err()
                .contains("symbolic link")
        );
        assert!(dir.path().join("secret").exists());
        for (text, told) in [
            ("env: {'': x}", "\"\" in `env`"),
            ("env: {'a=b': c}", "\"a=b\" in `env`"),
            ("env: {A: \"b\\0\"}", "A in `env` has a NUL character"),
            ("env: {", "no valid YAML"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = take_outputs(dir.path()).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
            assert!(!path.exists(), "{text}");
        }
        std::fs::write(dir.path().join(".hook-outputs.json"), "[1]").unwrap();
        assert!(take_outputs(dir.path()).unwrap().env.is_empty());
    }
}
