//! Reads what an entry resolved to, file or directory, through the root's handle.

use std::sync::Arc;

use super::collect::{Collected, Item, Origin};
use super::{absolute, clean};
use crate::dataset::{Case, KEEP_BYTES, OUTPUT_MARK, ReadFile};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::fs::{Found, FsError, Kind, Listing, ReadError, ResolveError, Resolved, Roots, Walk};
use crate::path::TreePath;
use crate::tree::{Content, Data, KnownDigests};

/// Reads files, keeping small ones in memory up to a budget.
pub(super) struct Reader<'a> {
    roots: &'a Roots,
    /// What was read already.
    read: &'a [ReadFile],
    known: &'a dyn KnownDigests,
    /// Bytes that may still be kept.
    budget: u64,
}

/// A file that a walk found: root, place there, place below the directory that was walked.
type Hit = (usize, TreePath, TreePath);

/// What a walk through a directory takes.
struct Rules<'r> {
    /// Whether links to files are followed, as those that the user lists.
    links: bool,
    /// Whether caches, editor files and, at any depth, repository data stay behind (policy 2).
    litter: bool,
    /// Whether `.git` and `.harborignore` are among them: in the rest of a case, not in what the
    /// user listed.
    repository: bool,
    /// Places (below the same root) that are not entered, and say nothing.
    skip: &'r dyn Fn(&TreePath) -> bool,
}

impl Rules<'_> {
    /// What Harbor's digest ignores (harbor.md 6.1) and what only this checkout needs.
    fn leaves(&self, name: &str, kind: Kind) -> bool {
        let litter = match name {
            "__pycache__" => kind == Kind::Dir,
            ".DS_Store" => true,
            _ => [".pyc", ".swp", ".swo", "~"]
                .iter()
                .any(|ending| name.ends_with(ending)),
        };
        self.litter && litter || self.repository && matches!(name, ".git" | ".harborignore")
    }
}

impl<'a> Reader<'a> {
    /// `budget`: bytes that may be kept.
    pub(super) fn new(
        roots: &'a Roots,
        known: &'a dyn KnownDigests,
        read: &'a [ReadFile],
        budget: u64,
    ) -> Self {
        Self {
            roots,
            read,
            known,
            budget,
        }
    }

    /// Copies the file or directory `found` to `dest` (`None`: the top of the view). Links inside
    /// a directory are skipped and told.
    pub(super) fn copy(
        &mut self,
        found: &Resolved,
        dest: Option<&TreePath>,
        origin: &Arc<Origin>,
        into: &mut Collected<'_>,
        diags: &mut Diagnostics,
    ) {
        self.copy_except(found, dest, &|_| false, origin, into, diags);
    }

    /// The same without the places (below the root) that `skip` says.
    pub(super) fn copy_except(
        &mut self,
        found: &Resolved,
        dest: Option<&TreePath>,
        skip: &dyn Fn(&TreePath) -> bool,
        origin: &Arc<Origin>,
        into: &mut Collected<'_>,
        diags: &mut Diagnostics,
    ) {
        if found.kind == Kind::File {
            // A file is never a root itself, and one at the top of a view has a dest.
            if let (Some(path), Some(dest)) = (&found.path, dest) {
                self.file(found.root, path, dest.clone(), origin, into, diags);
            }
            return;
        }
        let rules = Rules {
            links: false,
            litter: true,
            repository: false,
            skip,
        };
        let top = found.path.as_ref();
        for (root, path, below) in self.walk(found.root, top, None, &rules, origin, diags) {
            let place = dest.map_or_else(|| below.clone(), |dest| dest.join(&below));
            self.file(root, &path, place, origin, into, diags);
        }
    }

    /// What the case directory holds and no entry lists: evaluation material (policy 2).
    pub(super) fn rest(&mut self, case: &Case, into: &mut Collected<'_>, diags: &mut Diagnostics) {
        let material = &case.material;
        let top = material.dir.as_ref();
        let listed: Vec<String> = material
            .listed
            .iter()
            .map(|listed| clean(&listed.source))
            .collect();
        let skip = |path: &TreePath| {
            let below = top.map_or_else(|| Some(path.clone()), |top| path.strip_prefix(top));
            below.is_some_and(|below| {
                listed.iter().any(|entry| {
                    entry.is_empty()
                        || below
                            .as_str()
                            .strip_prefix(entry)
                            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                })
            })
        };
        let origin = Arc::new(Origin {
            label: "the rest of the case directory".to_owned(),
            case: Some(case.id.clone()),
            rest: true,
            ..Origin::default()
        });
        let rules = Rules {
            links: true,
            litter: true,
            repository: true,
            skip: &skip,
        };
        let listing = material.listing.as_ref();
        for (root, path, below) in self.walk(material.root, top, listing, &rules, &origin, diags) {
            self.file(root, &path, below, &origin, into, diags);
        }
    }

    /// A Harbor task as it is. `environment/` is the workspace when Harbor uploads it (an image,
    /// no Dockerfile, no compose file: harbor.md 4.1), else it belongs to the task.
    pub(super) fn harbor_task(
        &mut self,
        case: &Case,
        workspace: &mut Collected<'_>,
        task: &mut Collected<'_>,
        diags: &mut Diagnostics,
    ) {
        let material = &case.material;
        let origin = Arc::new(Origin {
            label: "the task directory".to_owned(),
            case: Some(case.id.clone()),
            rest: true,
            ..Origin::default()
        });
        let rules = Rules {
            links: true,
            litter: false,
            repository: false,
            skip: &|_| false,
        };
        let (top, listing) = (material.dir.as_ref(), material.listing.as_ref());
        let hits = self.walk(material.root, top, listing, &rules, &origin, diags);
        let builds = hits.iter().any(|(_, _, below)| {
            matches!(
                below.as_str(),
                "environment/Dockerfile" | "environment/docker-compose.yaml"
            )
        });
        let uploads = case.image.is_some() && !builds;
        for (root, path, below) in hits {
            let upload = below
                .as_str()
                .strip_prefix("environment/")
                .filter(|_| uploads);
            match upload.and_then(|inner| TreePath::new(inner).ok()) {
                Some(inner) => self.file(root, &path, inner, &origin, workspace, diags),
                None if below.first() == ".git" => {}
                None => self.file(root, &path, below, &origin, task, diags),
            }
        }
    }

    /// The files below a directory, sorted; what is no file is told. `listing`: what is there, when
    /// it was listed before.
    fn walk(
        &self,
        root: usize,
        top: Option<&TreePath>,
        listing: Option<&Listing>,
        rules: &Rules<'_>,
        origin: &Origin,
        diags: &mut Diagnostics,
    ) -> Vec<Hit> {
        let Some(handle) = self.roots.get(root) else {
            return Vec::new();
        };
        let mut files: Vec<Hit> = Vec::new();
        let mut links: Vec<(TreePath, TreePath)> = Vec::new();
        let mut said: Vec<Diagnostic> = Vec::new();
        let below = |path: &TreePath| match top {
            Some(top) => path.strip_prefix(top),
            None => Some(path.clone()),
        };
        let say =
            |rule: Rule, message: String, help: &str| origin.finding(rule, message).help(help);
        // What lies inside an entry is named by its own path.
        let about = |rule: Rule, below: &TreePath, message: String, help: &str| {
            say(rule, message, help).entry(origin.entry.as_deref().map_or_else(
                || below.to_string(),
                |entry| format!("{}/{below}", entry.trim_end_matches('/')),
            ))
        };
        let is_output = |dir: &TreePath| {
            let mark = dir.child(OUTPUT_MARK);
            mark.is_ok_and(|mark| match listing {
                Some(listing) => below(&mark)
                    .is_some_and(|mark| matches!(listing.get(&mark), Ok(Some((_, Kind::Dir))))),
                None => handle.has_dir(&mark),
            })
        };
        let mut visit = |found: Found<'_>| {
            match found {
                Found::Unusable {
                    shown,
                    why: Some(why),
                    ..
                } => said.push(say(
                    Rule::PathTooLong,
                    format!(
                        "A path in {} can not be carried, {why}: {shown}.",
                        origin.label
                    ),
                    "Shorten it: a path has at most 4,096 bytes, a name 255.",
                )),
                Found::Unusable {
                    shown, why: None, ..
                } => said.push(say(
                    Rule::NonUtf8Name,
                    format!("A name in {} is not UTF-8: {shown}.", origin.label),
                    "Rename the file.",
                )),
                Found::EmptyDir(path) => {
                    if let Some(below) = below(&path) {
                        said.push(about(
                            Rule::EmptyDirectory,
                            &below,
                            format!(
                                "The empty directory '{below}' of {} is not carried.",
                                origin.label
                            ),
                            "Put a file into it, or declare it in outputs.",
                        ));
                    }
                }
                Found::Thing(thing) => {
                    let Some(below) = below(&thing.path).filter(|_| !(rules.skip)(&thing.path))
                    else {
                        return Walk::Skip;
                    };
                    if rules.leaves(below.name(), thing.kind) {
                        said.push(about(
                            Rule::UnpackagedFile,
                            &below,
                            format!("'{below}' of {} stays behind.", origin.label),
                            "Nothing has to be done: packages carry no repository data, caches \
                             and editor files.",
                        ));
                        return Walk::Skip;
                    }
                    match thing.kind {
                        Kind::Dir if rules.litter && is_output(&thing.path) => said.push(about(
                            Rule::UnpackagedFile,
                            &below,
                            format!(
                                "'{below}' of {} stays behind: casepack built into it.",
                                origin.label
                            ),
                            "Nothing has to be done; outputs are better kept elsewhere.",
                        )),
                        Kind::Dir => return Walk::Enter,
                        Kind::File => files.push((root, thing.path, below)),
                        Kind::Link if rules.links => links.push((thing.path, below)),
                        Kind::Link => said.push(about(
                            Rule::SymlinkNested,
                            &below,
                            format!("The link '{below}' inside {} is skipped.", origin.label),
                            "List the link itself in workspace.files, or use a shared \
                             {dest, source} entry.",
                        )),
                        Kind::Special => said.push(about(
                            Rule::SpecialFile,
                            &below,
                            format!(
                                "'{below}' of {} is skipped: it is no regular file.",
                                origin.label
                            ),
                            "Remove it.",
                        )),
                    }
                }
            }
            Walk::Skip
        };
        let message = |error: &FsError| {
            let FsError { path, source } = error;
            format!("{} can not be read: {source}.", path.display())
        };
        let walked = match listing {
            Some(listing) => listing.walk(&mut visit).map_err(message),
            None => handle
                .walk(top, &mut visit)
                .map_err(|error| message(&error)),
        };
        if let Err(message) = walked {
            said.push(
                origin
                    .finding(Rule::FileUnreadable, message)
                    .help("Make it readable for the user who runs casepack."),
            );
        }
        for (path, below) in links {
            match self.link(root, top, &path, &below, origin) {
                Ok((root, path)) => files.push((root, path, below)),
                Err(finding) => said.push(*finding),
            }
        }
        files.sort_by(|a, b| a.2.cmp(&b.2));
        for finding in said {
            diags.push(finding);
        }
        files
    }

    /// Where an unlisted link leads: the rule of listed links (policy 2, table 000).
    fn link(
        &self,
        root: usize,
        top: Option<&TreePath>,
        path: &TreePath,
        below: &TreePath,
        origin: &Origin,
    ) -> Result<(usize, TreePath), Box<Diagnostic>> {
        let say = |rule: Rule, why: &str, help: &str| {
            let message = format!("The link '{below}' of {} is skipped: {why}.", origin.label);
            Box::new(origin.finding(rule, message).help(help))
        };
        let outside = || {
            say(
                Rule::SymlinkOutsideRoots,
                "it leads out of the case, the project and the plugin directories",
                "Copy the file into the case.",
            )
        };
        match self.roots.resolve(root, None, path.as_str()) {
            Ok(Resolved {
                root: end,
                path: Some(place),
                kind: Kind::File,
                ..
            }) => {
                let target = absolute(self.roots, end, Some(&place));
                let home = absolute(self.roots, root, top);
                let siblings = home.parent().is_some_and(|dir| target.starts_with(dir));
                if siblings && !target.starts_with(&home) {
                    return Err(outside());
                }
                Ok((end, place))
            }
            Ok(Resolved {
                kind: Kind::Dir, ..
            }) => Err(say(
                Rule::SymlinkDirectory,
                "it leads to a directory",
                "Replace it by the directory.",
            )),
            Ok(_) => Err(say(
                Rule::SpecialFile,
                "it leads to no regular file",
                "Remove it.",
            )),
            Err(ResolveError::Outside) => Err(outside()),
            Err(error) => Err(say(
                Rule::SymlinkDangling,
                &error.to_string(),
                "Remove or mend the link.",
            )),
        }
    }

    /// Reads one file and adds it.
    fn file(
        &mut self,
        root: usize,
        path: &TreePath,
        place: TreePath,
        origin: &Arc<Origin>,
        into: &mut Collected<'_>,
        diags: &mut Diagnostics,
    ) {
        let Some(handle) = self.roots.get(root) else {
            return;
        };
        let known = self
            .read
            .iter()
            .find(|it| it.root == root && it.path == *path);
        let read = if let Some(known) = known {
            Ok((known.mode, known.content.clone()))
        } else {
            let keep = KEEP_BYTES.min(self.budget);
            Content::from_known_file(handle, path, keep, self.known)
        };
        match read {
            Ok((mode, content)) => {
                if matches!(content.data, Data::Bytes(_)) {
                    self.budget = self.budget.saturating_sub(content.size);
                }
                let source = Some((root, path.clone()));
                let item = Item {
                    mode,
                    content,
                    source,
                    origin: Arc::clone(origin),
                };
                into.add(place, item, diags);
            }
            Err(error) => {
                let shown = absolute(self.roots, root, Some(path));
                let shown = shown.display();
                let (rule, message, help) = match &error {
                    ReadError::Changed => (
                        Rule::FileChanged,
                        format!("{shown} changed while it was read."),
                        "Run the command again when nothing else writes there.",
                    ),
                    error => (
                        Rule::FileUnreadable,
                        format!("{shown} can not be read: {error}."),
                        "Make it a regular file that the user who runs casepack may read.",
                    ),
                };
                diags.push(origin.finding(rule, message).help(help));
            }
        }
    }
}
