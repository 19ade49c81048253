//! Harbor task packages (policy 18–25, harbor.md).
//!
//! Owns what a package holds, how it is called, and the digest that Harbor itself computes for it.
//! Refuses to know disk and network.
//! Invariant: what is returned here, Harbor loads; what Harbor would skip in silence is an error.

mod digest;
mod ignore;
mod name;
mod options;

pub use self::digest::{DigestError, dataset_digest, dataset_toml, digest};
pub use self::name::SafeName;
pub use self::options::{Flags, Options, Profile, VerifierKind};
use crate::assemble::Views;
use crate::dataset::{Case, Dataset, Instruction};
use crate::diag::Diagnostics;
use crate::path::{CaseId, TreePath};
use crate::tree::{Content, Mode, Tree, TreeBuilder};

/// One package.
#[derive(Debug, Clone)]
pub struct Package {
    /// The directory's name.
    pub name: SafeName,
    /// `[task].name`: `org/name`.
    pub task_name: String,
    /// All files.
    pub tree: Tree,
}

/// What is the same in all packages of a dataset, computed and checked once.
#[derive(Debug)]
pub struct Prepared {
    names: std::collections::BTreeMap<CaseId, SafeName>,
}

impl Prepared {
    /// The directory name of a case of the dataset.
    pub fn name(&self, case: &CaseId) -> Option<&SafeName> {
        self.names.get(case)
    }
}

/// Checks what concerns the whole dataset and computes what all packages share; `None` after an
/// error.
pub fn prepare(dataset: &Dataset, options: &Options, diags: &mut Diagnostics) -> Option<Prepared> {
    let _ = options;
    let names = name::table(&dataset.cases, diags);
    Some(Prepared { names })
}

/// The package of one case; `None` after an error, which is in `diags`.
pub fn package(
    dataset: &Dataset,
    case: &Case,
    views: &Views,
    options: &Options,
    shared: &Prepared,
    diags: &mut Diagnostics,
) -> Option<Package> {
    let _ = (options, diags);
    let name = shared.name(&case.id)?.clone();
    let task_name = format!("{}/{}", dataset.name, name.as_str());
    let mut tree = TreeBuilder::new();
    let text = case.steps.first().map(|step| match &step.instruction {
        Instruction::Text(text) => format!("{text}\n"),
        Instruction::Deferred { .. } => String::new(),
    });
    tree.insert(
        TreePath::new("instruction.md").ok()?,
        Mode::Regular,
        Content::bytes(text.unwrap_or_default().into_bytes()),
    )
    .ok()?;
    tree.graft(&TreePath::new("environment").ok()?, &views.workspace)
        .ok()?;
    Some(Package {
        name,
        task_name,
        tree: tree.finish(),
    })
}

/// `org/name` of the dataset, for [`dataset_toml`].
pub fn dataset_name(dataset: &Dataset, options: &Options) -> String {
    let _ = options;
    format!("{0}/{0}", dataset.name)
}
