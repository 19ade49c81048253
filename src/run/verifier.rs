//! The verifier's turn: the package's own `test.sh`, and the rewards that it left.
//!
//! Owns what a verifier sees (harbor.md 3). Refuses to know agents.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::case::{Failure, Party, Work, capture, first_line, how, stage, write_tree};
use super::collect::{self, Wanted};
use super::exclude::Exclude;
use super::outside::OUTSIDE;
use super::package::{Artifact, Step, TEST};
use super::process::Cut;
use super::results::{ErrorKind, Outputs, StepResult, VerifierRun};
use super::sandbox::Mount;
use super::{Agent, verdict};
use crate::fs::{Root, remove_tree, unlock_dir};
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
        let mut published = dir.join("logs/artifacts");
        let mut workspace = None;
        let mut outside = Vec::new();
        let mut own_logs = false;
        if let Some(separate) = separate {
            workspace = self.separate_workspace(step, &separate.artifacts, report)?;
            published = self.separate_logs(&published, report)?;
            outside = self.separate_outside(&separate.artifacts, report)?;
            own_logs = !separate.artifacts.iter().any(|it| it.covers("/logs/agent"));
        }
        if own_logs {
            // The verifier's own environment does not get the agent's logs (harbor.md 3).
            std::fs::rename(&logs, &kept).map_err(failed)?;
            std::fs::create_dir(&logs).map_err(failed)?;
        }
        let mut mounts = vec![
            Mount::write(&logs, "/logs/agent"),
            Mount::write(&published, "/logs/artifacts"),
            Mount::write(&verifier, "/logs/verifier"),
            // A copy of its own, in which pytest and others may write.
            Mount::write(&tests, "/tests"),
        ];
        mounts.extend(outside);
        // What the oracle brought is still there, as in Harbor.
        let solution = self.dir.join("solution");
        if separate.is_none() && self.runner.request.agent == Agent::Oracle && solution.exists() {
            let seen = self.seen(&solution, "/solution");
            env.insert("CASEPACK_SOLUTION_DIR".to_owned(), seen);
            mounts.push(Mount::write(solution, "/solution"));
        }
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
                user: step.verifier.user(),
                limits: separate
                    .map_or(&self.package.limits, |own| &own.limits)
                    .clone(),
                input: None,
                files: Vec::new(),
                timeout: step.verifier.timeout,
                output: (output, None),
            },
        );
        if own_logs {
            remove_tree(&logs).map_err(|error| failed(error.source))?;
            std::fs::rename(&kept, &logs).map_err(failed)?;
        }
        let published = Some(published).filter(|path| !path.starts_with(dir.join("logs")));
        for gone in [Some(tests), workspace, published].into_iter().flatten() {
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

    /// What such a verifier sees of directories outside of the workdir: the artifacts in them.
    fn separate_outside(
        &self,
        artifacts: &[Artifact],
        report: &mut StepResult,
    ) -> Result<Vec<Mount>, Failure> {
        let failed = |error: io::Error| Failure::io("Preparing the verifier's artifacts", &error);
        let dir = self.dir.join(OUTSIDE);
        remove_tree(&dir).map_err(|error| failed(error.source))?;
        let mut mounts = Vec::new();
        for (at, (host, place)) in self.kept_outside().into_iter().enumerate() {
            // Nobody worked, or somebody for all cases.
            if !host.exists() {
                continue;
            }
            unlock_dir(&host).ok();
            let root = Root::open(&host).map_err(|error| failed(error.source))?;
            let leaves = artifacts.iter().filter_map(|artifact| {
                let below = Path::new(&artifact.source).strip_prefix(&place).ok()?;
                let below = Some(below.to_str()?).filter(|below| !below.is_empty());
                let below = below.map(TreePath::new).transpose().ok()?;
                let gone = |path| matches!(root.stat(path), Ok(None));
                let leave = left_of(&artifact.exclude, below.clone(), String::new());
                (!below.as_ref().is_some_and(gone)).then_some((below, leave))
            });
            let leaves: Vec<_> = leaves.collect();
            let wanted: Vec<_> = leaves
                .iter()
                .map(|(path, leave)| Wanted {
                    path: path.clone(),
                    leave,
                })
                .collect();
            std::fs::create_dir_all(&dir).map_err(failed)?;
            let into = dir.join(at.to_string());
            let found = collect::artifacts(&root, &wanted, &into).map_err(failed)?;
            tell_left(&found, report);
            mounts.push(Mount::write(into, place));
        }
        Ok(mounts)
    }

    /// What a verifier that has an environment of its own sees of `published`, which is `/logs/artifacts`:
    /// that, or a copy of what can be taken.
    fn separate_logs(&self, published: &Path, report: &mut StepResult) -> Result<PathBuf, Failure> {
        let failed = |error: io::Error| Failure::io("Preparing the verifier's /logs", &error);
        let root = Root::open(published).map_err(|error| failed(error.source))?;
        if collect::is_taken_whole(&root) {
            return Ok(published.to_owned());
        }
        let copy = self.dir.join("verifier-artifacts");
        remove_tree(&copy).map_err(|error| failed(error.source))?;
        let all = Wanted {
            path: None,
            leave: &|_| false,
        };
        let found = collect::artifacts(&root, &[all], &copy).map_err(failed)?;
        tell_left(&found, report);
        Ok(copy)
    }

    /// The workspace of a verifier that has an environment of its own: as it was at the start, and
    /// what the package's artifacts name. `None`: all of the workdir is named.
    fn separate_workspace(
        &self,
        step: &Step,
        artifacts: &[Artifact],
        report: &mut StepResult,
    ) -> Result<Option<PathBuf>, Failure> {
        let workdir = Path::new(&self.package.workdir);
        let mut claimed: Vec<&str> = Vec::new();
        // Their places in the workspace, and of those that count what is left out.
        let mut named: Vec<Option<TreePath>> = Vec::new();
        let mut leaves: Vec<(Option<TreePath>, Leave<'_>)> = Vec::new();
        for artifact in artifacts {
            let exclude = &artifact.exclude;
            let (place, above) = if let Ok(above) = workdir.strip_prefix(&artifact.source) {
                (None, above.to_string_lossy().into_owned())
            } else {
                let below = Path::new(&artifact.source).strip_prefix(workdir);
                let below = below
                    .ok()
                    .and_then(|below| TreePath::new(below.to_str()?).ok());
                let Some(below) = below else { continue };
                (Some(below), String::new())
            };
            let first = !claimed.iter().any(|kept| overlap(kept, &artifact.kept));
            claimed.push(&artifact.kept);
            named.push(place.clone());
            if !first {
                continue;
            }
            // With nothing to leave out, and no agent that comes after, that is the one there is.
            let last = self.package.steps.last().map(|last| &last.name) == Some(&step.name);
            let whole = place.is_none() && exclude.is_empty();
            if whole && last && collect::is_taken_whole(&self.workspace) {
                return Ok(None);
            }
            leaves.push((place.clone(), left_of(exclude, place, above)));
        }
        let failed = |error: io::Error| Failure::io("Preparing the verifier's workspace", &error);
        let clear = |path: &Path| remove_tree(path).map_err(|error| failed(error.source));
        let path = self.dir.join("verifier-workspace");
        let taken = self.dir.join("artifacts");
        clear(&path)?;
        clear(&taken)?;
        std::fs::create_dir(&path).map_err(failed)?;
        let root = Root::open(&path).map_err(|error| failed(error.source))?;
        write_tree(&self.package.workspace, &root)?;
        let wanted: Vec<Wanted<'_>> = leaves
            .iter()
            // An artifact that the agent did not make is none (harbor.md 3).
            .filter(|(path, _)| {
                let path = path.as_ref();
                path.is_none_or(|path| !matches!(self.workspace.stat(path), Ok(None)))
            })
            .map(|(path, leave)| Wanted {
                path: path.clone(),
                leave,
            })
            .collect();
        let found = collect::artifacts(&self.workspace, &wanted, &taken).map_err(failed)?;
        tell_left(&found, report);
        // A directory among the artifacts takes the place of the one that is there; what is in it
        // comes with it, as it comes after it.
        named.sort();
        for place in &named {
            let Some(place) = place else {
                clear(&path)?;
                std::fs::rename(&taken, &path).map_err(failed)?;
                break;
            };
            let (from, to) = (taken.join(place.as_str()), path.join(place.as_str()));
            if from.exists() {
                clear(&to)?;
                if let Some(parent) = to.parent() {
                    std::fs::create_dir_all(parent).map_err(failed)?;
                }
                std::fs::rename(from, to).map_err(failed)?;
            }
        }
        clear(&taken)?;
        Ok(Some(path))
    }
}

fn tell_left(found: &Outputs, report: &mut StepResult) {
    let Some(left) = found.skipped.first() else {
        return;
    };
    let more = match found.skipped.len() - 1 {
        0 => String::new(),
        more => format!(" So did {more} more."),
    };
    report.add_message(&format!(
        "Of the artifacts {} stayed behind: {}.{more}",
        left.path, left.reason
    ));
}

/// Whether something of an artifact stays behind.
type Leave<'a> = Box<dyn Fn(&TreePath) -> bool + 'a>;

/// What `exclude` leaves out of an artifact that is at `place` in the workspace, or holds all of it:
/// then the workspace is at `above` in the artifact.
fn left_of(exclude: &Exclude, place: Option<TreePath>, above: String) -> Leave<'_> {
    let ends = above.match_indices('/').map(|(at, _)| at);
    let mut ends = std::iter::once(0).chain(ends).chain([above.len()]);
    if ends.any(|end| exclude.has(above.get(..end).unwrap_or_default())) {
        return Box::new(|_| true);
    }
    Box::new(move |path| {
        let path = path.as_str();
        match &place {
            Some(place) => {
                let below = path.strip_prefix(place.as_str()).unwrap_or(path);
                exclude.has(below.trim_start_matches('/'))
            }
            None if above.is_empty() => exclude.has(path),
            None => exclude.has(&format!("{above}/{path}")),
        }
    })
}

/// Whether one of two places holds the other, or they are one.
fn overlap(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|path| Path::new(path.trim_start_matches('/')));
    one.starts_with(other) || other.starts_with(one)
}
