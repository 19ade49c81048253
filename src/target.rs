//! Targets: pure functions from a case and its trees to the tree of an output.
//!
//! Owns what an output holds. Refuses to know disk and network.
//! Invariant: an output is a function of the case, its views and the options, and of nothing else.

pub mod evalhub;
pub mod harbor;

use crate::digest::{Digest, Hasher};

/// What a dataset is compiled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The plain tree of every case, as a local run starts from it.
    Workspace,
    /// Harbor task packages.
    Harbor,
    /// The plain tree that EvalHub's stock adapters read.
    EvalHub,
    /// Everything, stored by content (`bundle`): a store root.
    Bundle,
}

impl Target {
    /// Every target, in the order in which they are built.
    pub const ALL: &'static [Self] = &[Self::Workspace, Self::Harbor, Self::EvalHub, Self::Bundle];

    /// The name, as `--target` takes it and the output directory is called (cli.md, "Fixed names").
    pub fn name(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Harbor => "harbor",
            Self::EvalHub => "evalhub",
            Self::Bundle => "bundle",
        }
    }

    /// Whether its outputs are made of Harbor packages.
    pub fn has_packages(self) -> bool {
        matches!(self, Self::Harbor | Self::Bundle)
    }

    /// The target of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|target| target.name() == name)
    }
}

/// The digest of every file that casepack puts into outputs as it is.
pub fn templates() -> Digest {
    let mut hasher = Hasher::new();
    for text in [
        include_str!("../templates/test.sh"),
        include_str!("../templates/test-harness.sh"),
        include_str!("../templates/judge.py"),
        include_str!("../templates/judge_llm.py"),
        include_str!("../templates/intercept.py"),
    ] {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finish()
}
