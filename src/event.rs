//! What happens while casepack works, told in ids and sizes.
//!
//! Owns [`Event`] and [`Observer`]. Refuses to know sentences: bars, log lines and reports are
//! observers of the same events, in `cli` and `report`.

use std::time::Duration;

use crate::path::CaseId;

/// One thing that happened.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Another casepack has the output directory; this one goes on when that has ended.
    Waiting {
        /// Its process, when it says so.
        pid: Option<u32>,
    },
    /// A stage starts that will tell `total` cases, one by one.
    StageStarted {
        /// Which one.
        stage: Stage,
        /// How many cases it has.
        total: usize,
    },
    /// One case was read and assembled without being written (`check`).
    CaseChecked {
        /// Which one.
        case: &'a CaseId,
    },
    /// The output of one case for one target is in place.
    CaseBuilt {
        /// Which one.
        case: &'a CaseId,
        /// Files written; 0 when the output was there already.
        files: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// A case was left out because of an error that is in the diagnostics.
    CaseFailed {
        /// Which one.
        case: &'a CaseId,
    },
    /// The agent of a case starts.
    CaseStarted {
        /// Which one.
        case: &'a CaseId,
    },
    /// A case was run and has a verdict.
    CaseRun {
        /// Which one.
        case: &'a CaseId,
        /// `passed`, `failed`, `error` or `skipped`.
        status: &'a str,
        /// The reward, when there is one.
        reward: Option<f64>,
        /// From the start of the agent to the verdict.
        duration: Duration,
    },
    /// What is found before something happens that can't be taken back.
    Told {
        /// One sentence.
        text: &'a str,
    },
    /// A stage starts that moves objects to or from a store.
    TransferStarted {
        /// Which one.
        stage: Stage,
        /// How many objects, or cases that come from them.
        objects: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// Objects were moved.
    Transferred {
        /// How many.
        objects: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The stage is over.
    StageFinished {
        /// Which one.
        stage: Stage,
    },
}

/// The long works that tell their progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Reading and validating every case.
    Check,
    /// Compiling packages.
    Build,
    /// Running cases.
    Run,
    /// Sending a release to a store.
    Upload,
    /// Getting cases from a store.
    Download,
    /// Hashing what a build wrote, or a store has.
    Verify,
}

/// Somebody who is told. Called from several threads at once.
pub trait Observer: Sync {
    /// Takes note of `event`; must be quick.
    fn on(&self, event: Event<'_>);
}

/// Nobody is told.
impl Observer for () {
    fn on(&self, _: Event<'_>) {}
}
