//! Catalog shards, read: the trees of one view of a run of cases.
//!
//! Refuses to know packs: a shard names none, so that packing never changes it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;

use super::{Bad, View, limits, pack};
use crate::digest::Digest;
use crate::path::{CaseId, TreePath};
use crate::tree::{self, Mode};

/// One file of a tree, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its place.
    pub path: TreePath,
    /// Its mode.
    pub mode: Mode,
    /// Its content.
    pub digest: Digest,
    /// The content's bytes.
    pub size: u64,
}

impl<'a> From<&'a Listed> for tree::Row<'a> {
    fn from(it: &'a Listed) -> Self {
        Self {
            path: &it.path,
            mode: it.mode,
            digest: it.digest,
            size: it.size,
        }
    }
}

/// Where the files of a view lie in a Harbor package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The directory.
    pub at: TreePath,
    /// Files of the view that are not there; sorted.
    pub without: BTreeSet<TreePath>,
}

/// What makes three trees a Harbor package: the task tree as it is, and the other two below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The package's directory.
    pub name: CaseId,
    /// `[task].name`.
    pub task: String,
    /// The digest that Harbor itself computes for the package.
    pub harbor: Digest,
    /// Where the workspace is; `None` when the package has none of it.
    pub workspace: Option<Mount>,
    /// Where the evaluation material is.
    pub evaluation: Option<Mount>,
    /// Where a file lies that lists the workspace (see [`tree::listing_file`]).
    pub listing: Option<TreePath>,
}

/// One case of a shard.
#[derive(Debug, Clone)]
pub struct ShardCase {
    /// The case.
    pub id: CaseId,
    /// In shards of the task view: how the package is put together.
    pub placement: Option<Placement>,
    groups: Vec<usize>,
    own: Vec<Listed>,
}

/// A catalog shard.
#[derive(Debug, Clone)]
pub struct Shard {
    object: String,
    groups: Vec<Arc<[Listed]>>,
    /// Its cases, sorted by id.
    pub cases: Vec<ShardCase>,
    /// Its inflated bytes.
    pub raw: u64,
}

type Row<'a> = (std::borrow::Cow<'a, str>, &'a str, &'a str, u64);

#[derive(Deserialize)]
struct GroupsLine<'a> {
    #[serde(borrow)]
    groups: Vec<Vec<Row<'a>>>,
}

#[derive(Deserialize)]
struct CaseLine<'a> {
    #[serde(borrow)]
    entries: Vec<Row<'a>>,
    groups: Vec<usize>,
    id: std::borrow::Cow<'a, str>,
    package: Option<PackageLine>,
}

/// How a [`Placement`] stands in a line.
#[derive(Deserialize)]
struct PackageLine {
    evaluation: Option<MountLine>,
    harbor: String,
    listing: Option<String>,
    name: String,
    task: String,
    workspace: Option<MountLine>,
}

#[derive(Deserialize)]
struct MountLine {
    at: String,
    #[serde(default)]
    without: Vec<String>,
}

impl Shard {
    /// Reads the shard with the digest `digest` from its compressed bytes, which the caller has
    /// compared with the digest.
    ///
    /// # Errors
    /// For everything that a writer of this format does not write.
    pub fn parse(digest: Digest, compressed: &[u8]) -> Result<Self, Bad> {
        let object = format!("the catalog shard {digest}");
        let bytes = pack::inflate_whole(compressed, limits::SHARD_BYTES, &object)?;
        let bad = |why: String| Bad::new(&object, why);
        let mut lines = lines(&bytes, &object)?;
        let first = lines.next().ok_or_else(|| bad("is empty".to_owned()))?;
        let first: GroupsLine<'_> = serde_json::from_slice(first)
            .map_err(|error| bad(format!("has a bad first line: {error}")))?;
        let groups = first
            .groups
            .iter()
            .map(|rows| Ok(listing(rows).map_err(&bad)?.into()))
            .collect::<Result<Vec<Arc<[Listed]>>, Bad>>()?;
        let mut cases: Vec<ShardCase> = Vec::new();
        for line in lines {
            let line: CaseLine<'_> = serde_json::from_slice(line)
                .map_err(|error| bad(format!("has a bad line: {error}")))?;
            let id = CaseId::new(&line.id)
                .map_err(|error| bad(format!("has a case id that is none: {error}")))?;
            if cases.last().is_some_and(|last| last.id >= id) {
                return Err(bad(format!("has the case '{id}' out of order")));
            }
            if line.groups.iter().any(|group| *group >= groups.len()) {
                return Err(bad(format!("names a group that it has not, in '{id}'")));
            }
            if !line.groups.is_sorted_by(|a, b| a < b) {
                return Err(bad(format!("has groups out of order, in '{id}'")));
            }
            cases.push(ShardCase {
                placement: line
                    .package
                    .map(|package| package.placement().map_err(&bad))
                    .transpose()?,
                id,
                groups: line.groups,
                own: listing(&line.entries).map_err(&bad)?,
            });
        }
        Ok(Self {
            raw: bytes.len() as u64,
            object,
            groups,
            cases,
        })
    }

    /// The case with that id.
    pub fn case(&self, id: &CaseId) -> Option<&ShardCase> {
        let at = self.cases.binary_search_by(|case| case.id.cmp(id)).ok()?;
        self.cases.get(at)
    }

    /// Number and bytes of the files of a case, as listed.
    pub fn size(&self, case: &ShardCase) -> (u64, u64) {
        let groups = case
            .groups
            .iter()
            .filter_map(|group| self.groups.get(*group));
        groups
            .map(|group| &**group)
            .chain([case.own.as_slice()])
            .flatten()
            .fold((0_u64, 0_u64), |(files, bytes), listed| {
                (files + 1, bytes.saturating_add(listed.size))
            })
    }

    /// The files of a case, sorted by path.
    ///
    /// # Errors
    /// When it has two files at one place, or too many.
    pub fn listing(&self, case: &ShardCase) -> Result<Vec<Listed>, Bad> {
        let bad = |why: &str| Bad::new(&self.object, format!("{why}, in '{}'", case.id));
        let groups = || {
            case.groups
                .iter()
                .filter_map(|group| self.groups.get(*group))
        };
        let count = groups().fold(case.own.len(), |count, group| {
            count.saturating_add(group.len())
        });
        if count > limits::FILES {
            return Err(bad("lists more than 100,000 files"));
        }
        let mut files: Vec<Listed> = Vec::with_capacity(count);
        for group in groups() {
            files.extend_from_slice(group);
        }
        files.extend_from_slice(&case.own);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        if !is_tree(&files) {
            return Err(bad("lists two files at one place, or one below another"));
        }
        Ok(files)
    }
}

impl PackageLine {
    fn placement(self) -> Result<Placement, String> {
        let path = |text: &str| {
            TreePath::new(text).map_err(|error| format!("has a bad path in a package: {error}"))
        };
        let mount = |line: MountLine| -> Result<Mount, String> {
            Ok(Mount {
                at: path(&line.at)?,
                without: line
                    .without
                    .iter()
                    .map(|text| path(text))
                    .collect::<Result<_, _>>()?,
            })
        };
        Ok(Placement {
            name: CaseId::new(&self.name)
                .map_err(|error| format!("has a bad name of a package: {error}"))?,
            task: self.task,
            harbor: Digest::from_hex(&self.harbor).map_err(|error| error.to_string())?,
            workspace: self.workspace.map(mount).transpose()?,
            evaluation: self.evaluation.map(mount).transpose()?,
            listing: self.listing.as_deref().map(path).transpose()?,
        })
    }
}

/// Whether sorted files can all be: no two at one place, none below another.
pub(super) fn is_tree(files: &[Listed]) -> bool {
    let taken = |text: &str| {
        files
            .binary_search_by(|listed| listed.path.as_str().cmp(text))
            .is_ok()
    };
    let mut last_dir = "";
    for pair in files.windows(2) {
        if let [a, b] = pair
            && a.path >= b.path
        {
            return false;
        }
    }
    for listed in files {
        let text = listed.path.as_str();
        let dir = text.rsplit_once('/').map_or("", |(dir, _)| dir);
        // Files of one directory follow each other, so that most have been looked at.
        if dir == last_dir {
            continue;
        }
        last_dir = dir;
        let mut above = dir;
        while !above.is_empty() {
            if taken(above) {
                return false;
            }
            above = above.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }
    true
}

fn listing(rows: &[Row<'_>]) -> Result<Vec<Listed>, String> {
    let listed = |(path, mode, hex, size): &Row<'_>| {
        let path = TreePath::new(path).map_err(|error| format!("has a bad path: {error}"))?;
        let mode = match *mode {
            "-" => Mode::Regular,
            "x" => Mode::Executable,
            _ => return Err("has an entry that is no file".to_owned()),
        };
        let digest = Digest::from_hex(hex).map_err(|error| format!("has a bad digest: {error}"))?;
        Ok(Listed {
            path,
            mode,
            digest,
            size: *size,
        })
    };
    rows.iter().map(listed).collect()
}

/// The lines of `bytes`, each ended by a line feed and of bounded length.
pub(super) fn lines<'a>(
    bytes: &'a [u8],
    object: &str,
) -> Result<impl Iterator<Item = &'a [u8]>, Bad> {
    let Some(text) = bytes.strip_suffix(b"\n") else {
        return Err(Bad::new(object, "does not end with a line feed"));
    };
    if text
        .split(|byte| *byte == b'\n')
        .any(|line| line.len() > limits::LINE_BYTES)
    {
        return Err(Bad::new(object, "has a line of more than 8 MiB"));
    }
    Ok(text.split(|byte| *byte == b'\n'))
}

/// The view that a shard is of, for messages.
impl std::fmt::Display for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
