//! Directories that are cases (policy 13), and reading a file of a case.

use std::cell::RefCell;
use std::sync::Arc;

use super::{KEEP_BYTES, Material, OUTPUT_MARK, ReadFile, Rest, Sources, find};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity, Source};
use crate::fs::{Kind, Listing, ReadError, ResolveError, Resolved, Roots};
use crate::path::{CaseId, TreePath};
use crate::tree::{Content, Mode};
use crate::yaml::{self, Document};

/// The directories of root `root` that may be cases, links to directories included; sorted.
/// `shown` is the root's name in findings.
pub(super) fn case_dirs(
    roots: &Roots,
    root: usize,
    shown: &str,
    diags: &mut Diagnostics,
) -> Vec<CaseId> {
    let entries = match roots.get(root).map(|root| root.list(None)) {
        Some(Ok(entries)) => entries,
        Some(Err(error)) => {
            diags.push(
                Diagnostic::new(
                    Rule::FileUnreadable,
                    format!(
                        "The directory '{shown}' can not be listed: {}.",
                        error.source
                    ),
                )
                .help("Make it readable.")
                .file(shown),
            );
            return Vec::new();
        }
        None => return Vec::new(),
    };
    let mut cases = Vec::new();
    for entry in entries {
        if !matches!(entry.kind, Kind::Dir | Kind::Link) {
            continue;
        }
        let name = match &entry.name {
            Ok(name) => name,
            Err(approximate) => {
                diags.push(
                    Diagnostic::new(
                        Rule::NonUtf8Name,
                        format!("The name of the directory '{approximate}' is not UTF-8."),
                    )
                    .help("Rename it.")
                    .file(format!("{shown}/{approximate}")),
                );
                continue;
            }
        };
        let Ok(id) = CaseId::new(name) else { continue };
        if name.starts_with('.') || name == "__pycache__" {
            continue;
        }
        if entry.kind == Kind::Dir {
            // An output directory of casepack, when the dataset is where it is started.
            let mark = id.to_path().child(OUTPUT_MARK).ok();
            let is_output = mark
                .zip(roots.get(root))
                .is_some_and(|(mark, root)| root.has_dir(&mark));
            if !is_output {
                cases.push(id);
            }
            continue;
        }
        match roots.resolve(root, None, name) {
            Ok(found) if found.kind == Kind::Dir => cases.push(id),
            Ok(_) => {}
            Err(error) => {
                let outside = matches!(error, ResolveError::Outside);
                let rule = if outside {
                    Rule::SymlinkOutsideRoots
                } else {
                    Rule::SymlinkDangling
                };
                let finding = Diagnostic::new(
                    rule,
                    format!("The link '{shown}/{name}' is no case: {error}."),
                )
                .file(format!("{shown}/{name}"))
                .entry(name);
                // A case that is silently left out would be taken for a passed one.
                diags.push(if outside {
                    finding
                        .severity(Severity::Error)
                        .help("Copy the directory into the dataset, or remove the link.")
                } else {
                    finding.help("Remove or mend the link.")
                });
            }
        }
    }
    cases.sort();
    cases
}

/// The finding for a dataset without cases.
pub(super) fn no_cases(shown: &str) -> Diagnostic {
    Diagnostic::new(
        Rule::NoCases,
        format!("The dataset directory '{shown}' holds no case."),
    )
    .help("A case is a directory below it; names that start with a dot and __pycache__ are none.")
    .file(shown)
}

/// A directory of a case, and how findings name it.
pub(super) struct CaseDir<'a> {
    pub(super) sources: &'a Sources,
    pub(super) id: &'a CaseId,
    pub(super) root: usize,
    pub(super) dir: Option<TreePath>,
    pub(super) shown: String,
    /// What is in it, unless a link leads to it.
    listing: Option<Listing>,
    /// What was read of it.
    read: RefCell<Vec<ReadFile>>,
}

impl<'a> CaseDir<'a> {
    /// The directory of the case `id`, links followed; `parent` is how findings name the directory
    /// that it is in.
    pub(super) fn open(
        sources: &'a Sources,
        id: &'a CaseId,
        parent: &str,
        diags: &mut Diagnostics,
    ) -> Option<Self> {
        let shown = format!("{parent}/{id}");
        match sources
            .roots
            .resolve(sources.dataset_root, None, id.as_str())
        {
            Ok(found) if found.kind == Kind::Dir => {
                let mut dir = Self::at(sources, id, found.root, found.path, shown);
                if found.through_link {
                    dir.listing = None;
                }
                Some(dir)
            }
            Ok(_) => None,
            Err(error) => {
                diags.push(
                    Diagnostic::new(
                        Rule::FileUnreadable,
                        format!("The case directory can not be read: {error}."),
                    )
                    .help("Make it a readable directory.")
                    .file(shown)
                    .case(id),
                );
                None
            }
        }
    }

    /// The directory `dir` of a root, which no link leads to.
    pub(super) fn at(
        sources: &'a Sources,
        id: &'a CaseId,
        root: usize,
        dir: Option<TreePath>,
        shown: String,
    ) -> Self {
        let handle = sources.roots.get(root);
        let listing = handle.map(|handle| Listing::of(handle, dir.as_ref()));
        Self {
            sources,
            id,
            root,
            dir,
            shown,
            listing,
            read: RefCell::default(),
        }
    }

    /// What the views are made of, so far.
    pub(super) fn material(self, rest: Rest) -> Material {
        Material {
            root: self.root,
            dir: self.dir,
            rest,
            listing: self.listing,
            read: self.read.into_inner(),
            ..Material::default()
        }
    }
}

impl CaseDir<'_> {
    /// How findings name a file of the case.
    pub(super) fn name(&self, file: &str) -> String {
        format!("{}/{file}", self.shown)
    }

    /// The file `name`, links followed within the rules of policy 8; `None` when it is not there.
    /// What is wrong with it is told as an error.
    pub(super) fn file(&self, name: &str, diags: &mut Diagnostics) -> Result<Option<Resolved>, ()> {
        let (rule, why) = match super::resolve(
            &self.sources.roots,
            self.root,
            self.dir.as_ref(),
            self.listing.as_ref(),
            name,
        ) {
            Ok(found) if self.is_sibling(&found) => (
                Rule::SymlinkOutsideRoots,
                "it leads to another case or to the dataset itself".to_owned(),
            ),
            Ok(found) if found.kind == Kind::File => return Ok(Some(found)),
            Ok(_) => (Rule::FileUnreadable, "it is no regular file".to_owned()),
            Err(ResolveError::Missing) => return Ok(None),
            Err(error @ ResolveError::Outside) => (Rule::SymlinkOutsideRoots, error.to_string()),
            Err(error @ (ResolveError::Dangling | ResolveError::Loop)) => {
                (Rule::SymlinkDangling, error.to_string())
            }
            Err(error) => (Rule::FileUnreadable, error.to_string()),
        };
        diags.push(
            Diagnostic::new(rule, format!("'{name}' can not be used: {why}."))
                .severity(Severity::Error)
                .help("Put the file itself into the case.")
                .file(self.name(name))
                .entry(name)
                .case(self.id),
        );
        Err(())
    }

    /// Whether a link leads into the dataset directory but out of this case.
    fn is_sibling(&self, found: &Resolved) -> bool {
        let place = (found.root, found.path.as_ref());
        found.through_link
            && self
                .sources
                .roots
                .contains((self.sources.dataset_root, None), place)
            && !self
                .sources
                .roots
                .contains((self.root, self.dir.as_ref()), place)
    }

    /// The bytes of a file that was found.
    pub(super) fn read(
        &self,
        found: &Resolved,
        name: &str,
        diags: &mut Diagnostics,
    ) -> Option<Vec<u8>> {
        let read = || {
            let root = self
                .sources
                .roots
                .get(found.root)
                .ok_or(ReadError::Missing)?;
            let path = found.path.as_ref().ok_or(ReadError::NotAFile)?;
            root.read(path, find::MAX_TEXT)
        };
        match read() {
            Ok((bytes, stamp)) => {
                if let Some(path) = found.path.clone()
                    && stamp.size <= KEEP_BYTES
                {
                    self.read.borrow_mut().push(ReadFile {
                        root: found.root,
                        path,
                        mode: Mode::of(&stamp),
                        content: Content::bytes(bytes.as_slice()),
                    });
                }
                Some(bytes)
            }
            Err(error) => {
                let rule = match error {
                    ReadError::TooLarge { .. } => Rule::TooLarge,
                    ReadError::Changed => Rule::FileChanged,
                    _ => Rule::FileUnreadable,
                };
                diags.push(
                    Diagnostic::new(rule, format!("'{name}' can not be read: {error}."))
                        .help("Make it a readable file of less than 16 MiB.")
                        .file(self.name(name))
                        .case(self.id),
                );
                None
            }
        }
    }

    /// The parsed YAML of a file that was found; duplicate keys are told. What makes it unusable is
    /// told as `as_rule` (`None`: by its own rule) with `severity`.
    pub(super) fn parse(
        &self,
        found: &Resolved,
        name: &str,
        as_rule: Option<Rule>,
        severity: Severity,
        diags: &mut Diagnostics,
    ) -> Option<Document> {
        let bytes = self.read(found, name, diags)?;
        let parsed = find::utf8(bytes, name)
            .map_err(|finding| Box::new(finding.file(self.name(name))))
            .and_then(|text| {
                let name = self.name(name);
                yaml::parse(Arc::new(Source::new(name, text)))
            });
        match parsed {
            Ok(document) => {
                find::duplicate_keys(&document, |finding| diags.push(finding.case(self.id)));
                Some(document)
            }
            Err(mut finding) => {
                finding.rule = as_rule.unwrap_or(finding.rule);
                diags.push(finding.severity(severity).case(self.id));
                None
            }
        }
    }
}
