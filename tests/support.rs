//! Worlds for tests: projects made in code, and commands that see nothing of this machine.

mod cluster;
mod command;
mod http;
mod project;
mod proxy;
mod release;
mod s3;

pub(crate) use cluster::Cluster;
pub(crate) use command::{Invocation, Outcome};
pub(crate) use http::{http, serve};
pub(crate) use project::{CaseBuilder, Project, ProjectBuilder, fifo};
pub(crate) use proxy::{Fault, Proxy, Way};
pub(crate) use release::{Case, many, pack, read_tree, tree};
pub(crate) use s3::{BUCKET, Request, S3Server};
