//! Worlds for tests: projects made in code, and commands that see nothing of this machine.

mod command;
mod project;

pub(crate) use command::{Invocation, Outcome};
pub(crate) use project::{Project, ProjectBuilder};
