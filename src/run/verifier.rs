//! The verifier's turn: the package's own `test.sh`, and the rewards that it left.
//!
//! Owns what a verifier sees (harbor.md 3). Refuses to know agents.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::case::{Failure, Party, Work, capture, first_line, how, stage, write_tree};
use super::package::{Step, TEST};
use super::process::Cut;
use super::results::{ErrorKind, StepResult, VerifierRun};
use super::sandbox::Mount;
use super::{collect, verdict};
use crate::fs::{Root, remove_tree};
use crate::path::TreePath;

impl Work<'_> {
    /// Runs the verifier; gives the rewards.
    pub(super) fn verify(
        &self,
        step: &Step,
        dir: &Path,
        report: &mut StepResult,
    ) -> Result<BTreeMap<String, f64>, Failure> {
        let no = |kind, message| Err(Failure::NoVerdict(kind, message));
        let failed = |error: io::Error| Failure::io("Preparing the verifier", &error);
        let tests = self.dir.join("tests");
        let verifier = dir.join("logs/verifier");
        let mut env = self.base_env();
        let separate = step.separate.as_ref();
        let (around, own) = match separate {
            Some(own) => ("verifier.environment", &own.env),
            None => ("environment", &self.package.env),
        };
        env.append(&mut self.resolved(around, own)?);
        env.append(&mut self.resolved("verifier", &step.verifier_env)?);
        self.add_places(&mut env, dir);
        // Without a sandbox the agent could reach it.
        remove_tree(&verifier).map_err(|error| failed(error.source))?;
        std::fs::create_dir(&verifier).map_err(failed)?;
        stage(&step.tests, &tests)?;
        let seen = self.seen(&tests, "/tests");
        env.insert("CASEPACK_TESTS_DIR".to_owned(), seen.clone());
        let logs = dir.join("logs/agent");
        let kept = dir.join("agent-logs");
        let mut workspace = None;
        if let Some(separate) = separate {
            workspace = self.separate_workspace(&separate.artifacts)?;
            // The verifier's own environment does not get the agent's logs (harbor.md 3).
            std::fs::rename(&logs, &kept).map_err(failed)?;
            std::fs::create_dir(&logs).map_err(failed)?;
        }
        let mut mounts = vec![
            Mount::write(&logs, "/logs/agent"),
            Mount::write(dir.join("logs/artifacts"), "/logs/artifacts"),
            Mount::write(&verifier, "/logs/verifier"),
            Mount::read(&tests, "/tests"),
        ];
        if let Some(workspace) = &workspace {
            mounts.push(Mount::write(workspace, &self.package.workdir));
            if self.runner.sandbox.is_none() {
                let seen = workspace.to_string_lossy().into_owned();
                env.insert("CASEPACK_WORKDIR".to_owned(), seen);
            }
        }
        let output = capture(&verifier.join("test-stdout.txt"))?;
        let ended = self.start_in(
            workspace.as_deref(),
            Party {
                command: self.script(&step.tests, TEST, &format!("{seen}/{TEST}")),
                mounts,
                env,
                network: step.verifier.network,
                user: step.verifier.user,
                limits: separate
                    .map_or(&self.package.limits, |own| &own.limits)
                    .clone(),
                input: None,
                files: Vec::new(),
                timeout: step.verifier.timeout,
                output: (output, None),
            },
        );
        if separate.is_some() {
            remove_tree(&logs).map_err(|error| failed(error.source))?;
            std::fs::rename(&kept, &logs).map_err(failed)?;
        }
        for gone in [Some(tests), workspace].into_iter().flatten() {
            remove_tree(&gone).ok();
        }
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let message = format!("test.sh did not start: {error}.");
                return no(ErrorKind::VerifierStart, message);
            }
        };
        let said = first_line(&verifier, "test-stdout.txt");
        report.verifier = Some(VerifierRun {
            exit_code: ended.exit_code,
            signal: ended.signal,
            timed_out: ended.cut == Some(Cut::TimeUp),
            duration: ended.duration,
        });
        if ended.not_started {
            let message = format!(
                "test.sh did not start: {}.",
                said.trim_start_matches("bwrap: ")
            );
            return no(ErrorKind::VerifierStart, message);
        }
        match ended.cut {
            Some(Cut::Stopped) => return Err(Failure::stopped()),
            Some(Cut::TimeUp) => {
                let limit = step.verifier.timeout.unwrap_or_default().as_secs_f64();
                let message = format!("The verifier's time ({limit} s) was up.");
                return no(ErrorKind::VerifierTimeout, message);
            }
            None => {}
        }
        let found = Root::open(&verifier).map_err(|error| failed(error.source))?;
        verdict::rewards(&found).or_else(|(kind, message)| {
            if kind != ErrorKind::RewardMissing {
                return no(kind, message);
            }
            let said = if said.is_empty() {
                String::new()
            } else {
                format!(" It said first: {said}")
            };
            no(
                kind,
                format!("{message} Its test.sh ended: {}.{said}", how(&ended)),
            )
        })
    }

    /// The workspace of a verifier that has an environment of its own: as it was at the start, and
    /// what the package's artifacts name. `None`: all of the workdir is named.
    fn separate_workspace(&self, artifacts: &[String]) -> Result<Option<PathBuf>, Failure> {
        let workdir = Path::new(&self.package.workdir);
        if artifacts
            .iter()
            .any(|artifact| workdir.starts_with(artifact))
        {
            return Ok(None);
        }
        let failed = |error: io::Error| Failure::io("Preparing the verifier's workspace", &error);
        let path = self.dir.join("verifier-workspace");
        remove_tree(&path).map_err(|error| failed(error.source))?;
        std::fs::create_dir(&path).map_err(failed)?;
        let root = Root::open(&path).map_err(|error| failed(error.source))?;
        write_tree(&self.package.workspace, &root)?;
        let named: Vec<TreePath> = artifacts
            .iter()
            .filter_map(|artifact| {
                let below = Path::new(artifact).strip_prefix(workdir).ok()?;
                TreePath::new(below.to_str()?).ok()
            })
            .collect();
        let taken = self.dir.join("artifacts");
        remove_tree(&taken).map_err(|error| failed(error.source))?;
        collect::outputs(&self.workspace, &named, &taken, collect::Limits::default())
            .map_err(failed)?;
        for path in &named {
            // A directory among the artifacts takes the place of the one that is there.
            let (from, to) = (taken.join(path.as_str()), root.absolute(Some(path)));
            if from.exists() {
                remove_tree(&to).map_err(|error| failed(error.source))?;
                if let Some(parent) = to.parent() {
                    std::fs::create_dir_all(parent).map_err(failed)?;
                }
                std::fs::rename(from, to).map_err(failed)?;
            }
        }
        remove_tree(&taken).map_err(|error| failed(error.source))?;
        Ok(Some(path))
    }
}
