//! Exit codes: what scripts and pods branch on (cli.md).

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Exit {
    /// What was asked for is done.
    Done = 0,
    /// Errors in the user's files, or cases that did not pass.
    Findings = 1,
    /// The command line itself, or what it asks for is not to be had: no retry mends it.
    Usage = 2,
    /// The disk, the network or a store failed: worth a retry.
    System = 3,
    /// A bug in casepack.
    Bug = 101,
    /// A signal.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
