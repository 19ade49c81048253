//! Which file goes where: one set of trees per case, decided here and nowhere else.
//!
//! Owns the whitelist, shared `{dest, source}` entries, generated entries, and the trust boundary
//! between workspace and evaluation (policy 1–12). Refuses to know formats and targets.
//! Invariant: what an entry resolves to is what is read, through a root's handle; nothing that
//! judges need gets into the workspace unless the user allowed it by name.

mod collect;
mod generated;
mod walk;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::collect::{Collected, Item, Origin};
use self::walk::Reader;
use crate::dataset::{
    Case, Dataset, JUDGE_FILES, Listed, Mode, Rest, SharedEntry, SkillSource, View,
};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::digest::Digest;
use crate::fs::{Kind, ResolveError, Resolved, Roots};
use crate::path::{CaseId, TreePath, fold};
use crate::tree::{Content, KnownDigests, Mode as FileMode, Tree};

/// The trees of one case.
#[derive(Debug, Clone, Default)]
pub struct Views {
    /// What the agent sees.
    pub workspace: Tree,
    /// What judges see besides.
    pub evaluation: Tree,
    /// Package files that the case itself brings (native Harbor tasks).
    pub task: Tree,
}

/// First components of a `dest` that belong to the case itself or to generated files (policy 10);
/// compared after folding.
const RESERVED: &[&str] = &[
    "input.yaml",
    "input.yml",
    "input.json",
    "answers.yaml",
    "annotations.yaml",
    "batch.yaml",
    ".claude",
    "hooks",
    "tool_handlers.yaml",
    ".git",
    ".hook-outputs.yaml",
    ".hook-outputs.json",
];

/// Shared files together stay in memory up to this size.
const KEEP_SHARED_BYTES: u64 = 16 * 1024 * 1024;

/// What is the same for every case of a dataset: read and hashed once.
pub struct Common<'a> {
    workspace: Shared<'a>,
    evaluation: Shared<'a>,
    guarded: Vec<Guarded>,
    case_dirs: PathBuf,
    known: &'a dyn KnownDigests,
}

/// The files of one view that every case has.
struct Shared<'a> {
    files: Collected<'a>,
    /// Their outermost names, as they collide, and their tree; `None` when some of the names do
    /// among themselves, which is told for each case, or before all are there.
    frozen: Option<(BTreeSet<String>, Tree)>,
}

impl<'a> Shared<'a> {
    fn new(roots: &'a Roots) -> Self {
        Self {
            files: Collected::new(roots),
            frozen: None,
        }
    }

    /// Says that all files are there.
    fn complete(&mut self) {
        let mut found = Diagnostics::default();
        if let Ok(nobody) = CaseId::new("_") {
            self.files.check_names(&nobody, &mut found);
        }
        let plain = found.iter().next().is_none();
        self.frozen = plain.then(|| (self.files.tops(), self.files.clone().finish()));
    }

    /// They and the `own` files of a case; what is in the way is told.
    fn put_beside(&self, mut own: Collected<'a>, case: &CaseId, diags: &mut Diagnostics) -> Tree {
        if let Some((tops, tree)) = &self.frozen
            && own.tops().is_disjoint(tops)
        {
            own.check_names(case, diags);
            return own.finish_with(tree);
        }
        own.merge(&self.files, case, diags);
        own.check_names(case, diags);
        own.finish()
    }
}

/// A place that no workspace entry may reach, as an absolute path without links.
struct Guarded {
    path: PathBuf,
    what: &'static str,
}

/// Everything that the entries of one dataset have in common: shared files, generated entries, the
/// skill under test, judge files. `outputs` are directories that casepack writes to: a shared
/// source that contains one would contain itself. `known` has digests of large files.
///
/// `None` when an error is among the findings.
pub fn prepare<'a>(
    dataset: &'a Dataset,
    outputs: &[PathBuf],
    known: &'a dyn KnownDigests,
    diags: &mut Diagnostics,
) -> Option<Common<'a>> {
    let before = diags.count(Severity::Error);
    let roots = &dataset.sources.roots;
    let dataset_dir = absolute(roots, dataset.sources.dataset_root, None);
    let mut guarded: Vec<Guarded> = dataset
        .sources
        .guarded
        .iter()
        .map(|(root, path)| Guarded {
            path: absolute(roots, *root, path.as_ref()),
            what: "evaluation material",
        })
        .collect();
    guarded.push(Guarded {
        path: dataset_dir.clone(),
        what: "the dataset directory",
    });
    let mut common = Common {
        workspace: Shared::new(roots),
        evaluation: Shared::new(roots),
        guarded,
        case_dirs: dataset_dir,
        known,
    };
    let mut reader = Reader::new(roots, known, &[], KEEP_SHARED_BYTES);
    for entry in &dataset.shared {
        shared(dataset, entry, outputs, &mut reader, &mut common, diags);
    }
    for source in &dataset.skills {
        skill(dataset, source, &mut reader, &mut common, diags);
    }
    for (path, mode, bytes) in generated::entries(&dataset.interception, roots, diags) {
        common.workspace.files.add(
            path.clone(),
            generated_item(&path, mode, bytes, None),
            diags,
        );
    }
    for file in &dataset.judge_files {
        // Proof: a constant of valid components, joined with a valid path.
        let Ok(prefix) = TreePath::new(JUDGE_FILES) else {
            continue;
        };
        let origin = Arc::new(Origin::generated(format!("the judge file '{}'", file.dest)));
        let Ok(Some((kind, _))) = roots
            .get(file.root)
            .map_or(Ok(None), |root| root.stat(&file.path))
        else {
            continue;
        };
        let found = Resolved {
            root: file.root,
            path: Some(file.path.clone()),
            kind,
            through_link: false,
            last_was_link: false,
        };
        reader.copy(
            &found,
            Some(&prefix.join(&file.dest)),
            &origin,
            &mut common.evaluation.files,
            diags,
        );
    }
    common.workspace.complete();
    common.evaluation.complete();
    (diags.count(Severity::Error) == before).then_some(common)
}

/// A skill under test, without evaluation material: a skill's directory is where its own dataset
/// often lies (policy 1 and 3).
fn skill(
    dataset: &Dataset,
    skill: &SkillSource,
    reader: &mut Reader<'_>,
    common: &mut Common<'_>,
    diags: &mut Diagnostics,
) {
    // A skill's name is one component: the reader checked it.
    let Ok(dest) = TreePath::new(&format!(".claude/skills/{}", skill.name)) else {
        return;
    };
    let label = format!("the skill under test, '{}'", skill.name);
    let origin = Arc::new(Origin::generated(label));
    let found = Resolved {
        root: skill.root,
        path: Some(skill.path.clone()),
        kind: Kind::Dir,
        through_link: false,
        last_was_link: false,
    };
    let roots = &dataset.sources.roots;
    let left = RefCell::new(BTreeSet::new());
    let case_dirs = common.case_dirs.clone();
    let guarded: Vec<PathBuf> = common.guarded.iter().map(|it| it.path.clone()).collect();
    let skip = |path: &TreePath| {
        let place = absolute(roots, skill.root, Some(path));
        // The skill's directory may be the dataset directory itself.
        let is_case = place.parent() == Some(&case_dirs)
            && dataset
                .cases
                .iter()
                .any(|case| case.as_str() == path.name());
        let inside = is_case || guarded.contains(&place);
        if inside {
            left.borrow_mut().extend(path.strip_prefix(&skill.path));
        }
        inside
    };
    reader.copy_except(
        &found,
        Some(&dest),
        &skip,
        &origin,
        &mut common.workspace.files,
        diags,
    );
    let left: Vec<String> = left
        .into_inner()
        .iter()
        .map(|path| format!("'{path}'"))
        .collect();
    if !left.is_empty() {
        diags.push(
            Diagnostic::new(
                Rule::UnpackagedFile,
                format!(
                    "The skill '{}' is staged without {}: it is evaluation material.",
                    skill.name,
                    left.join(", ")
                ),
            )
            .help("Nothing has to be done.")
            .entry(skill.name.clone()),
        );
    }
}

/// One `{dest, source}` entry (policy 9, 10; the table of seed 000).
fn shared(
    dataset: &Dataset,
    entry: &SharedEntry,
    outputs: &[PathBuf],
    reader: &mut Reader<'_>,
    common: &mut Common<'_>,
    diags: &mut Diagnostics,
) {
    let say = |rule: Rule, message: String, help: &str| {
        Diagnostic::new(rule, message)
            .help(help)
            .at_place(entry.place.as_ref())
            .field(entry.field.clone())
            .entry(entry.dest.as_str())
    };
    let first = fold(entry.dest.first());
    if RESERVED.contains(&first.as_str()) {
        diags.push(say(
            Rule::ReservedDest,
            format!(
                "The shared dest '{}' is skipped: '{}' is reserved for the case itself.",
                entry.dest,
                entry.dest.first()
            ),
            "Choose a dest that does not start with a reserved name.",
        ));
        return;
    }
    let roots = &dataset.sources.roots;
    let found = match roots.resolve(0, None, &entry.source) {
        Ok(found) => found,
        Err(ResolveError::Outside) => {
            diags.push(say(
                Rule::SharedSourceOutsideRoots,
                format!(
                    "The shared source '{}' is skipped: it leads out of the project, the dataset \
                     and the plugin directories.",
                    entry.source
                ),
                "Move the file into the project, or add its directory to runner.plugin_dirs.",
            ));
            return;
        }
        Err(error) => {
            diags.push(say(
                Rule::SharedSourceMissing,
                format!("The shared source '{}' is skipped: {error}.", entry.source),
                &missing_help(dataset, entry),
            ));
            return;
        }
    };
    let place = absolute(roots, found.root, found.path.as_ref());
    if let Some(output) = outputs.iter().find(|output| output.starts_with(&place)) {
        diags.push(say(
            Rule::SharedDestInSource,
            format!(
                "The shared source '{}' is skipped: it contains the output directory {}, so the \
                 copy would contain itself.",
                entry.source,
                output.display()
            ),
            "Choose a smaller source, or an output directory outside of it.",
        ));
        return;
    }
    if !diags.allows(Rule::AnswerKeyInWorkspace)
        && let Some(what) = common.guards_shared(dataset, &place)
    {
        diags.push(say(
            Rule::AnswerKeyInWorkspace,
            format!(
                "The shared source '{}' would hand {what} to the agent.",
                entry.source
            ),
            "Share only files that are no evaluation material; to hand them over all the same, \
             use --allow answer-key-in-workspace.",
        ));
        return;
    }
    match found.kind {
        Kind::File | Kind::Dir => {
            let origin = Arc::new(Origin {
                label: format!("the shared entry '{}'", entry.dest),
                place: entry.place.clone(),
                field: Some(entry.field.clone()),
                entry: Some(entry.dest.to_string()),
                ..Origin::default()
            });
            reader.copy(
                &found,
                Some(&entry.dest),
                &origin,
                &mut common.workspace.files,
                diags,
            );
        }
        Kind::Special | Kind::Link => diags.push(say(
            Rule::SpecialFile,
            format!(
                "The shared source '{}' is no file and no directory.",
                entry.source
            ),
            "Name a regular file or a directory.",
        )),
    }
}

/// Says where the file would be found: most often the command was started elsewhere.
fn missing_help(dataset: &Dataset, entry: &SharedEntry) -> String {
    let project = dataset.sources.project.display();
    let beside = dataset
        .sources
        .config
        .parent()
        .filter(|dir| dir.join(&entry.source).exists());
    match beside {
        Some(dir) => format!(
            "It exists in {dir}, but sources are relative to the project root, {project}: give \
             --project-root, or write `casepack: {{project_root: .}}` into the config.",
            dir = dir.display()
        ),
        None => format!("Correct the path; it is relative to the project root, {project}."),
    }
}

impl Common<'_> {
    /// What the files that every case has hold.
    pub fn contents(&self) -> impl Iterator<Item = Digest> {
        let workspace = self.workspace.files.contents();
        workspace.chain(self.evaluation.files.contents())
    }

    /// What a shared source at `place` would give away: it is or contains, or lies in, a guarded
    /// place. Files directly in the dataset directory are not evaluation material; what is inside
    /// a case directory is.
    fn guards_shared(&self, dataset: &Dataset, place: &Path) -> Option<&'static str> {
        for guarded in &self.guarded {
            if guarded.path.starts_with(place) {
                return Some(guarded.what);
            }
            if guarded.path != self.case_dirs && place.starts_with(&guarded.path) {
                return Some(guarded.what);
            }
        }
        let below = place.strip_prefix(&self.case_dirs).ok()?;
        let first = below.components().next()?.as_os_str().to_str()?;
        let case = dataset.cases.binary_search_by(|id| id.as_str().cmp(first));
        case.is_ok().then_some("the files of a case")
    }

    /// Whether an own entry that resolved to `place` is evaluation material.
    fn guards_own(&self, place: &Path) -> Option<&'static str> {
        self.guarded
            .iter()
            .filter(|guarded| guarded.path != self.case_dirs)
            .find(|guarded| place.starts_with(&guarded.path) || guarded.path.starts_with(place))
            .map(|guarded| guarded.what)
    }
}

/// The trees of `case`. `None` when one of the findings is an error.
pub fn case(
    dataset: &Dataset,
    common: &Common<'_>,
    case: &Case,
    diags: &mut Diagnostics,
) -> Option<Views> {
    let before = diags.count(Severity::Error);
    let roots = &dataset.sources.roots;
    let mut reader = Reader::new(roots, common.known, &case.material.read, KEEP_SHARED_BYTES);
    let mut workspace = Collected::new(roots);
    let mut evaluation = Collected::new(roots);
    let mut task = Collected::new(roots);
    for listed in &case.material.listed {
        own(
            dataset,
            common,
            case,
            listed,
            &mut reader,
            &mut workspace,
            diags,
        );
    }
    for (view, path, bytes) in &case.material.generated {
        let into = match view {
            View::Workspace => &mut workspace,
            View::Evaluation => &mut evaluation,
            View::Task => &mut task,
        };
        let item = generated_item(path, FileMode::Regular, Arc::clone(bytes), Some(&case.id));
        into.add(path.clone(), item, diags);
    }
    let material = &case.material;
    match material.rest {
        Rest::Evaluation => {
            reader.rest(case, &mut evaluation, diags);
        }
        Rest::HarborTask => reader.harbor_task(case, &mut workspace, &mut task, diags),
        Rest::Ignored => {}
    }
    let workspace = common.workspace.put_beside(workspace, &case.id, diags);
    let evaluation = if material.rest == Rest::Evaluation {
        common.evaluation.put_beside(evaluation, &case.id, diags)
    } else {
        evaluation.check_names(&case.id, diags);
        evaluation.finish()
    };
    let views = Views {
        workspace,
        evaluation,
        task: task.finish(),
    };
    (diags.count(Severity::Error) == before).then_some(views)
}

/// One string entry (policy 9; the table of seed 000).
fn own(
    dataset: &Dataset,
    common: &Common<'_>,
    case: &Case,
    listed: &Listed,
    reader: &mut Reader<'_>,
    workspace: &mut Collected<'_>,
    diags: &mut Diagnostics,
) {
    let entry = if listed.source.is_empty() {
        "."
    } else {
        &listed.source
    };
    let say = |rule: Rule, message: String, help: &str| {
        let finding = Diagnostic::new(rule, message)
            .help(help)
            .at_place(listed.place.as_ref())
            .entry(entry)
            .case(&case.id);
        if listed.field.is_empty() {
            finding
        } else {
            finding.field(listed.field.clone())
        }
    };
    let roots = &dataset.sources.roots;
    let material = &case.material;
    let source = clean(&listed.source);
    let found = if source.is_empty() {
        Resolved {
            root: material.root,
            path: material.dir.clone(),
            kind: Kind::Dir,
            through_link: false,
            last_was_link: false,
        }
    } else {
        match material.resolve(roots, &source) {
            Ok(found) => found,
            Err(ResolveError::Missing) => {
                if listed.by_user {
                    diags.push(say(
                        Rule::WorkspaceFileMissing,
                        format!("The listed file '{entry}' is not in the case."),
                        "Add it to each case, or remove the entry; if a before_each hook stages \
                         it, only runs of the harness itself have it, and packages lack it.",
                    ));
                }
                return;
            }
            Err(ResolveError::Outside) => {
                diags.push(outside(&say, listed, entry));
                return;
            }
            Err(error @ (ResolveError::Dangling | ResolveError::Loop)) => {
                let mut finding = say(
                    Rule::SymlinkDangling,
                    format!("The link '{entry}' is skipped: {error}."),
                    "Remove or mend the link.",
                );
                if !listed.by_user {
                    finding = finding.severity(Severity::Error);
                }
                diags.push(finding);
                return;
            }
            Err(error) => {
                diags.push(say(
                    Rule::FileUnreadable,
                    format!("'{entry}' can not be read: {error}."),
                    "Make it readable, or remove the entry.",
                ));
                return;
            }
        }
    };
    if found.last_was_link && found.kind == Kind::Dir {
        diags.push(say(
            Rule::SymlinkDirectory,
            format!("The link '{entry}' is skipped: it leads to a directory."),
            "List the directory itself, or use a shared {dest, source} entry.",
        ));
        return;
    }
    let place = absolute(roots, found.root, found.path.as_ref());
    let case_dir = absolute(roots, material.root, material.dir.as_ref());
    if found.through_link && place.starts_with(&common.case_dirs) && !place.starts_with(&case_dir) {
        diags.push(outside(&say, listed, entry));
        return;
    }
    if !diags.allows(Rule::AnswerKeyInWorkspace) {
        let what = if case_dir.starts_with(&place) {
            Some("the whole case directory")
        } else if place == case_dir.join("annotations.yaml") {
            Some("the annotations")
        } else {
            common.guards_own(&place)
        };
        if let Some(what) = what {
            diags.push(say(
                Rule::AnswerKeyInWorkspace,
                format!("The entry '{entry}' would hand {what} to the agent."),
                "List only the files that the agent needs; to hand this over all the same, use \
                 --allow answer-key-in-workspace.",
            ));
            return;
        }
    }
    let dest = match &listed.dest {
        Some(dest) => Some(dest.clone()),
        None if source.is_empty() => None,
        None => match TreePath::new(&source) {
            Ok(dest) => Some(dest),
            Err(error) => {
                diags.push(say(
                    Rule::PathTooLong,
                    format!("The entry '{entry}' can not be carried: {error}."),
                    "Shorten the path.",
                ));
                return;
            }
        },
    };
    let origin = Arc::new(Origin {
        label: format!("the entry '{entry}'"),
        place: listed.place.clone(),
        field: (!listed.field.is_empty()).then(|| listed.field.clone()),
        entry: Some(entry.to_owned()),
        case: Some(case.id.clone()),
        rest: false,
    });
    match found.kind {
        Kind::File | Kind::Dir => reader.copy(&found, dest.as_ref(), &origin, workspace, diags),
        Kind::Special | Kind::Link => diags.push(say(
            Rule::SpecialFile,
            format!("'{entry}' is skipped: it is no file and no directory."),
            "Remove it from the case.",
        )),
    }
}

/// A listed thing that leads out: a warning, but an error where it is the input itself.
fn outside(
    say: &dyn Fn(Rule, String, &str) -> Diagnostic,
    listed: &Listed,
    entry: &str,
) -> Diagnostic {
    let finding = say(
        Rule::SymlinkOutsideRoots,
        format!(
            "'{entry}' is skipped: it leads out of the case, to a place that is not in the \
             project or a plugin directory, or into a sibling case."
        ),
        "Copy the file into the case, or use a shared {dest, source} entry.",
    );
    if listed.by_user {
        finding
    } else {
        finding.severity(Severity::Error)
    }
}

/// `src///` and `./docs/./a.md` as paths of a tree; `..` was refused when the config was read.
fn clean(source: &str) -> String {
    let parts: Vec<&str> = source
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    parts.join("/")
}

/// The one workspace that all cases of a batch share (policy 16): shared and generated entries and
/// the given `batch.yaml`.
pub fn batch(dataset: &Dataset, common: &Common<'_>, batch_yaml: Vec<u8>) -> Tree {
    let mut workspace = common.workspace.files.clone();
    if let Ok(path) = TreePath::new("batch.yaml") {
        let item = generated_item(&path, FileMode::Regular, batch_yaml.into(), None);
        // `batch.yaml` is a reserved name: nothing can stand there.
        workspace.add(path, item, &mut Diagnostics::default());
    }
    debug_assert_eq!(dataset.mode, Mode::Batch);
    workspace.finish()
}

/// A file that casepack makes.
fn generated_item(
    path: &TreePath,
    mode: FileMode,
    bytes: Arc<[u8]>,
    case: Option<&CaseId>,
) -> Item {
    let mut origin = Origin::generated(format!("the generated file '{path}'"));
    origin.case = case.cloned();
    Item {
        mode,
        content: Content::bytes(bytes),
        source: None,
        origin: Arc::new(origin),
    }
}

/// Where a resolved place is, for comparing places of overlapping roots; never for opening. A root
/// that does not exist is taken as the whole disk, which every check refuses.
fn absolute(roots: &Roots, root: usize, path: Option<&TreePath>) -> PathBuf {
    roots
        .absolute(root, path)
        .unwrap_or_else(|| PathBuf::from("/"))
}
