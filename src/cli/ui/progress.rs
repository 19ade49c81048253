//! Progress: bars on a terminal, one line for each stage elsewhere, or nothing.
//!
//! Bars come late (a quick command shows none) and redraw slowly. A run has a row for each case at
//! work below its bar, and what is judged scrolls up above it. Refuses to know what is done: it
//! hears the events that every observer hears.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::settings::{Look, Progress as How};
use super::{count, size, to_stderr};
use crate::escape;
use crate::event::{Event, Observer, Stage};

/// Before that, a command is quick.
const LATE: Duration = Duration::from_millis(250);
/// Redraws in a second.
const REDRAWS: u8 = 20;
/// Ids of running cases that are shown at a time.
const SHOWN: usize = 3;
/// Rows of running cases that are shown at a time.
const ROWS: usize = 12;

/// Shows what happens until it is dropped.
pub(crate) struct Progress {
    how: How,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bar: Option<Bar>,
    running: BTreeSet<String>,
    done: usize,
    failed: usize,
    skipped: usize,
    /// Bytes to be moved, and those that were.
    bytes: Option<(u64, u64)>,
}

impl Progress {
    /// Shows nothing yet.
    pub(crate) fn new(look: &Look) -> Self {
        Self {
            how: look.progress,
            state: Mutex::default(),
        }
    }
}

impl Observer for Progress {
    fn on(&self, event: Event<'_>) {
        if self.how == How::None {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = state.on(self.how, event) {
            to_stderr(&text);
        }
    }
}

impl State {
    /// Takes note of `event`; gives the line to tell, if any.
    fn on(&mut self, how: How, event: Event<'_>) -> Option<String> {
        match event {
            Event::StageStarted { stage, total } => {
                *self = Self::default();
                if how == How::Bars {
                    self.bar = Some(Bar::new(stage, total));
                    return None;
                }
                let cases = count(total, "case", "cases");
                return Some(format!("{} {cases}\n", verb(stage)));
            }
            Event::Waiting { pid } => {
                let who = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
                return Some(format!(
                    "Waiting for another casepack{who} in this output directory\n"
                ));
            }
            Event::Told { text } => return Some(format!("{}\n", escape::line(text))),
            Event::CaseStarted { case } => {
                let id = escape::line(case.as_str()).into_owned();
                if let Some(bar) = &mut self.bar {
                    bar.add_row(&id);
                }
                self.running.insert(id);
            }
            Event::CaseChecked { .. } | Event::CaseBuilt { .. } => self.done += 1,
            Event::CaseFailed { .. } => {
                self.done += 1;
                self.failed += 1;
            }
            Event::CaseRun {
                case,
                status,
                duration,
                reward,
            } => {
                let id = escape::line(case.as_str()).into_owned();
                self.running.remove(&id);
                self.done += 1;
                self.failed += usize::from(matches!(status, "failed" | "error"));
                self.skipped += usize::from(status == "skipped");
                let (status, seconds) = (escape::line(status), duration.as_secs_f64());
                if how == How::Lines {
                    return Some(format!("  {id}: {status} ({seconds:.1} s)\n"));
                }
                if let Some(bar) = &mut self.bar {
                    let reward = reward.map_or_else(String::new, |reward| format!("{reward:.2}"));
                    bar.end_row(
                        &id,
                        &format!("{status:<7} {reward:>5} {seconds:>7.1} s  {id}"),
                    );
                }
            }
            Event::TransferStarted {
                stage,
                objects,
                bytes,
            } => {
                *self = Self::default();
                self.bytes = Some((bytes, 0));
                if objects == 0 {
                    return None;
                }
                if how == How::Bars {
                    self.bar = Some(Bar::new(stage, objects));
                    return None;
                }
                let what = match stage {
                    Stage::Download => count(objects, "case", "cases"),
                    _ => count(objects, "object", "objects"),
                };
                return Some(format!("{} {what} ({})\n", verb(stage), size(bytes)));
            }
            Event::Transferred { objects, bytes } => {
                self.done += usize::try_from(objects).unwrap_or(0);
                if let Some((_, moved)) = &mut self.bytes {
                    *moved += bytes;
                }
            }
            Event::StageFinished { .. } => self.bar = None,
        }
        if let Some(bar) = &self.bar {
            bar.show(self.done, &self.message());
        }
        None
    }

    fn message(&self) -> String {
        let mut parts = Vec::new();
        if let Some((all, moved)) = self.bytes {
            parts.push(format!("{} of {}", size(moved), size(all)));
        }
        if self.failed > 0 {
            parts.push(format!("{} failed", self.failed));
        }
        if self.skipped > 0 {
            parts.push(format!("{} skipped", self.skipped));
        }
        // Those that have a row of their own are not named twice.
        let rows = self.bar.as_ref().map_or(0, |bar| bar.rows.len());
        let ids = self.running.iter().take(SHOWN).map(String::as_str);
        let ids = ids.collect::<Vec<_>>().join(", ");
        if !ids.is_empty() && rows == 0 {
            let more = if self.running.len() > SHOWN {
                ", …"
            } else {
                ""
            };
            parts.push(format!("{ids}{more}"));
        }
        parts.join("; ")
    }
}

fn verb(stage: Stage) -> &'static str {
    match stage {
        Stage::Check => "Checking",
        Stage::Build => "Building",
        Stage::Run => "Running",
        Stage::Upload => "Uploading",
        Stage::Download => "Pulling",
        Stage::Verify => "Verifying",
    }
}

/// A bar that appears when [`LATE`] has passed, with a row for each case at work.
struct Bar {
    all: MultiProgress,
    line: ProgressBar,
    rows: BTreeMap<String, ProgressBar>,
    /// Whether cases take so long that a row of their own is worth it.
    table: bool,
    gone: Option<mpsc::Sender<()>>,
    timer: Option<JoinHandle<()>>,
}

impl Bar {
    fn new(stage: Stage, total: usize) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::hidden());
        let line = all.add(ProgressBar::new(total.try_into().unwrap_or(u64::MAX)));
        let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {wide_msg}")
            .expect("the template is a constant that is shown in every test of bars");
        line.set_style(style);
        line.set_prefix(verb(stage));
        let (gone, wait) = mpsc::channel();
        let (late, first) = (all.clone(), line.clone());
        let timer = thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || {
                if wait.recv_timeout(LATE) == Err(RecvTimeoutError::Timeout) {
                    late.set_draw_target(ProgressDrawTarget::stderr_with_hz(REDRAWS));
                    first.tick();
                }
            });
        Self {
            all,
            line,
            rows: BTreeMap::new(),
            table: stage == Stage::Run,
            gone: Some(gone),
            // Without a thread there is no bar, and all else goes on.
            timer: timer.ok(),
        }
    }

    fn show(&self, done: usize, message: &str) {
        self.line.set_message(message.to_owned());
        self.line.set_position(done.try_into().unwrap_or(u64::MAX));
    }

    /// A case is at work; `id` is escaped. An id is there once, however many attempts run.
    fn add_row(&mut self, id: &str) {
        if !self.table || self.rows.len() >= ROWS || self.rows.contains_key(id) {
            return;
        }
        let row = self.all.add(ProgressBar::new_spinner());
        let style = ProgressStyle::with_template("{spinner} {elapsed:>6}  {wide_msg}")
            .expect("the template is a constant that is shown in every test of bars");
        row.set_style(style);
        row.set_message(id.to_owned());
        row.enable_steady_tick(Duration::from_secs(1));
        self.rows.insert(id.to_owned(), row);
    }

    /// A case is done: `told` stays above the bar.
    fn end_row(&mut self, id: &str, told: &str) {
        if let Some(row) = self.rows.remove(id) {
            row.finish_and_clear();
            self.all.remove(&row);
        }
        // As long as nothing is drawn, the table at the end says all.
        drop(self.all.println(told));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        drop(self.gone.take());
        if let Some(timer) = self.timer.take() {
            // It only waits and draws; if it panicked, the hook has told so.
            drop(timer.join());
        }
        for row in self.rows.values() {
            row.finish_and_clear();
        }
        self.line.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::CaseId;

    #[test]
    fn lines_tell_stages_and_verdicts_and_escape_ids() {
        let mut state = State::default();
        let case = CaseId::new("a\u{1b}[2J").unwrap();
        let mut lines = Vec::new();
        for event in [
            Event::StageStarted {
                stage: Stage::Run,
                total: 1,
            },
            Event::CaseStarted { case: &case },
            Event::CaseRun {
                case: &case,
                status: "failed",
                reward: None,
                duration: Duration::from_millis(1250),
            },
            Event::StageFinished { stage: Stage::Run },
        ] {
            lines.extend(state.on(How::Lines, event));
        }
        assert_eq!(
            lines.concat(),
            "Running 1 case\n  a\\u{1b}[2J: failed (1.2 s)\n"
        );
        assert_eq!((state.done, state.failed), (1, 1));
    }

    #[test]
    fn bars_are_quiet_when_the_work_is_quick() {
        let mut state = State::default();
        let total = Event::StageStarted {
            stage: Stage::Build,
            total: 5,
        };
        assert_eq!(state.on(How::Bars, total), None);
        for id in ["a", "b", "c", "d"] {
            let case = CaseId::new(id).unwrap();
            assert_eq!(
                state.on(How::Bars, Event::CaseStarted { case: &case }),
                None
            );
        }
        assert_eq!(state.message(), "a, b, c, …");
        assert!(state.bar.as_ref().unwrap().line.is_hidden());
        // A build has no rows; a run has one for each case at work, up to a screen full.
        assert_eq!(state.bar.as_ref().unwrap().rows.len(), 0);
        let total = Event::StageStarted {
            stage: Stage::Run,
            total: 20,
        };
        state.on(How::Bars, total);
        let cases: Vec<_> = (0..20)
            .map(|number| CaseId::new(&format!("c\u{1b}{number}")).unwrap())
            .collect();
        for case in &cases {
            state.on(How::Bars, Event::CaseStarted { case });
        }
        assert_eq!(state.bar.as_ref().unwrap().rows.len(), ROWS);
        assert_eq!(state.message(), "");
        let done = Event::CaseRun {
            case: &cases[0],
            status: "failed",
            reward: Some(0.5),
            duration: Duration::from_secs(3),
        };
        assert_eq!(state.on(How::Bars, done), None);
        assert_eq!(state.bar.as_ref().unwrap().rows.len(), ROWS - 1);
        assert_eq!(state.message(), "1 failed");
        let skipped = Event::CaseRun {
            case: &cases[1],
            status: "skipped",
            reward: None,
            duration: Duration::ZERO,
        };
        state.on(How::Bars, skipped);
        assert_eq!(state.message(), "1 failed; 1 skipped");
        let finished = Event::StageFinished {
            stage: Stage::Build,
        };
        assert_eq!(state.on(How::Bars, finished), None);
        assert!(state.bar.is_none());
    }
}
