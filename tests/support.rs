//! Worlds for tests: projects made in code, and commands that see nothing of this machine.

mod command;
mod project;

pub(crate) use command::{Invocation, Outcome, has};
pub(crate) use project::{CaseBuilder, Project, ProjectBuilder};
