//! Where the files of a dataset may lie, and the files that its config names (policy 1, 3, 8).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::around::HandlerFile;
use super::execution::{ExecutionBlocks, What};
use super::judging::{Wanted, WantedKind};
use crate::dataset::{
    JudgeFile, LoadRequest, SkillSource, Sources, ToolHandler, Verification, dirs, expand_home,
    find,
};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::fs::{Kind, ResolveError, Resolved, Root, Roots};
use crate::path::{CaseId, TreePath};
use crate::yaml::Value;

/// Largest text of a tool handler.
const MAX_HANDLER: u64 = 1 << 20;

/// The roots, and where the config lies in them.
pub(super) struct Places {
    roots: Roots,
    /// False when there is no dataset directory: then nothing can be built.
    usable: bool,
    plugins: Vec<usize>,
    project: PathBuf,
    config: PathBuf,
    /// The directory of the config, when it lies in a root.
    beside: Option<(usize, Option<TreePath>)>,
    /// The dataset directory as findings show it.
    shown_cases: String,
    guarded: Vec<(usize, Option<TreePath>)>,
    home: Option<PathBuf>,
}

const PROJECT: usize = 0;
const DATASET: usize = 1;

/// Opens the roots. `None` only when the project itself can't be opened.
pub(super) fn open(
    config: &Path,
    project: &Path,
    cases: Option<&Value<'_>>,
    plugin_dirs: &[Value<'_>],
    request: &LoadRequest,
    diags: &mut Diagnostics,
) -> Option<Places> {
    let root = match Root::open(project) {
        Ok(root) => Arc::new(root),
        Err(error) => {
            diags.push(
                Diagnostic::new(
                    Rule::FileUnreadable,
                    format!(
                        "The project '{}' can not be opened: {}.",
                        project.display(),
                        error.source
                    ),
                )
                .help("Make the directory readable."),
            );
            return None;
        }
    };
    let config = fs::canonicalize(config).unwrap_or_else(|_| config.to_owned());
    let directory = config.parent().unwrap_or(&config).to_owned();
    let written = cases
        .and_then(|value| value.yaml().as_str())
        .unwrap_or_default();
    let path = directory.join(written);
    let opened = Root::open(&path);
    let usable = opened.is_ok();
    let dataset = match opened {
        Ok(dataset) => Arc::new(dataset),
        Err(error) => {
            dataset_not_found(cases, written, &path, &error.source, diags);
            Arc::clone(&root)
        }
    };
    let shown_cases = find::relative(dataset.path(), project);
    let mut all = vec![root, dataset];
    let mut plugins = Vec::new();
    for value in plugin_dirs {
        match plugin_dir(value, project, request, diags) {
            Some(root) if root.path() == project => plugins.push(PROJECT),
            Some(root) => {
                plugins.push(all.len());
                all.push(Arc::new(root));
            }
            None => {}
        }
    }
    for named in request.plugin_dirs {
        match Root::open(&request.cwd.join(named)) {
            Ok(root) => {
                plugins.push(all.len());
                all.push(Arc::new(root));
            }
            Err(error) => diags.push(
                Diagnostic::new(
                    Rule::PluginDirRefused,
                    format!(
                        "The plugin directory '{}' can not be opened: {}.",
                        named.display(),
                        error.source
                    ),
                )
                .severity(Severity::Error)
                .help("Correct --plugin-dir."),
            ),
        }
    }
    let roots = Roots::new(all);
    let beside = place_of(&roots, &directory);
    let mut guarded = vec![(DATASET, None)];
    if !usable {
        guarded.clear();
    }
    guarded.extend(place_of(&roots, &config));
    Some(Places {
        roots,
        usable,
        plugins,
        project: project.to_owned(),
        config,
        beside,
        shown_cases,
        guarded,
        home: request.home.map(Path::to_owned),
    })
}

fn dataset_not_found(
    cases: Option<&Value<'_>>,
    written: &str,
    path: &Path,
    error: &std::io::Error,
    diags: &mut Diagnostics,
) {
    let why = match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        std::io::ErrorKind::NotADirectory => "is no directory".to_owned(),
        _ => format!("can not be opened: {error}"),
    };
    let message = format!("The dataset directory '{written}' {why}.");
    let help = "Correct dataset.path, which is relative to the directory of the config, or create the directory.";
    let finding = match cases {
        Some(value) => value.finding(Rule::DatasetNotFound, message).entry(written),
        None => Diagnostic::new(Rule::DatasetNotFound, message).file(path.display().to_string()),
    };
    diags.push(finding.help(help));
}

/// The place of a canonical path in the first root that it lies in.
fn place_of(roots: &Roots, path: &Path) -> Option<(usize, Option<TreePath>)> {
    (0..roots.len()).find_map(|index| {
        let below = path.strip_prefix(roots.get(index)?.path()).ok()?;
        if below.as_os_str().is_empty() {
            return Some((index, None));
        }
        Some((index, Some(TreePath::new(below.to_str()?).ok()?)))
    })
}

/// One entry of `runner.plugin_dirs` (policy 8, agent-eval-harness 1.3).
fn plugin_dir(
    value: &Value<'_>,
    project: &Path,
    request: &LoadRequest,
    diags: &mut Diagnostics,
) -> Option<Root> {
    let mut refuse = |why: &str, help: &str| {
        let shown = value.yaml().as_str().unwrap_or("it");
        diags.push(
            value
                .finding(
                    Rule::PluginDirRefused,
                    format!("The plugin directory '{shown}' is not used: {why}."),
                )
                .help(help)
                .entry(shown),
        );
    };
    let Some(text) = value.yaml().as_str() else {
        refuse("it is no text", "Write the path of a directory.");
        return None;
    };
    let path = project.join(expand_home(text, request.home));
    let root = match Root::open(&path) {
        Ok(root) => root,
        Err(error) => {
            let why = match error.source.kind() {
                std::io::ErrorKind::NotFound => "it does not exist".to_owned(),
                _ => error.source.to_string(),
            };
            refuse(
                &why,
                "Correct the path; it is relative to the project root.",
            );
            return None;
        }
    };
    let real = root.path();
    let home = request.home.and_then(|home| fs::canonicalize(home).ok());
    let wide = real != project && project.starts_with(real)
        || home.is_some_and(|home| home.starts_with(real));
    if wide {
        refuse(
            "it holds the project or a home directory",
            "Name the plugin's own directory; to use a wide one, give it on the command line with --plugin-dir.",
        );
        return None;
    }
    if lexical(&path).starts_with(project) {
        if !real.starts_with(project) {
            refuse(
                "it leads out of the project through a link",
                "Write the path that the link leads to.",
            );
            return None;
        }
    } else {
        diags.push(
            value
                .finding(
                    Rule::PluginDirOutside,
                    format!("The plugin directory '{text}' lies outside of the project; shared files may come from there."),
                )
                .help("Nothing has to be done if it is meant.")
                .entry(text),
        );
    }
    Some(root)
}

/// The path with `.` and `..` taken out by name alone.
fn lexical(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

impl Places {
    /// The dataset directory as findings show it.
    pub(super) fn shown_cases(&self) -> String {
        self.shown_cases.clone()
    }

    /// The cases (policy 13).
    pub(super) fn cases(&self, diags: &mut Diagnostics) -> Vec<CaseId> {
        if !self.usable {
            return Vec::new();
        }
        let cases = dirs::case_dirs(&self.roots, DATASET, &self.shown_cases, diags);
        if cases.is_empty() {
            diags.push(dirs::no_cases(&self.shown_cases));
        }
        cases
    }

    /// The sources; `None` when there is no dataset directory.
    pub(super) fn finish(self) -> Option<Sources> {
        self.usable.then_some(Sources {
            roots: self.roots,
            dataset_root: DATASET,
            config: self.config,
            project: self.project,
            guarded: self.guarded,
        })
    }

    /// A file beside the config.
    pub(super) fn beside(&self, name: &str) -> Option<(usize, TreePath)> {
        let (root, dir) = self.beside.as_ref()?;
        let found = self.roots.resolve(*root, dir.as_ref(), name).ok()?;
        Some((found.root, found.path.filter(|_| found.kind == Kind::File)?))
    }

    /// What `text` names: under the project root, else beside the config (policy 33).
    fn look(&self, text: &str) -> Result<Resolved, ResolveError> {
        let text = expand_home(text, self.home.as_deref());
        match self.roots.resolve(PROJECT, None, &text) {
            Err(ResolveError::Missing) => {}
            found => return found,
        }
        match &self.beside {
            Some((root, dir)) => self.roots.resolve(*root, dir.as_ref(), &text),
            None => Err(ResolveError::Missing),
        }
    }

    /// Finds the files that judges name, and puts their places into the judges.
    pub(super) fn judge_files(
        &mut self,
        wanted: &[Wanted],
        verification: &mut Verification,
        diags: &mut Diagnostics,
    ) -> Vec<JudgeFile> {
        let mut files: Vec<JudgeFile> = Vec::new();
        for wanted in wanted {
            let Some(judge) = verification.judges.get_mut(wanted.judge) else {
                continue;
            };
            if wanted.kind == WantedKind::Module {
                self.module(wanted, &judge.name, &mut files, diags);
                continue;
            }
            let found = match self.look(&wanted.text) {
                Ok(found) => found,
                Err(error) => {
                    diags.push(missing(wanted, &judge.name, &error.to_string()));
                    continue;
                }
            };
            let Some(path) = found.path.filter(|_| {
                found.kind == Kind::File
                    || found.kind == Kind::Dir && wanted.kind == WantedKind::Context
            }) else {
                diags.push(missing(wanted, &judge.name, "it is no file"));
                continue;
            };
            let dest = dest_of(found.root, &path);
            if wanted.kind == WantedKind::Prompt {
                judge.prompt_file = Some(dest.clone());
            } else {
                judge.context.push(dest.clone());
            }
            self.add(&mut files, found.root, path, dest, wanted);
        }
        files
    }

    fn add(
        &mut self,
        files: &mut Vec<JudgeFile>,
        root: usize,
        path: TreePath,
        dest: TreePath,
        wanted: &Wanted,
    ) {
        self.guarded.push((root, Some(path.clone())));
        // Something named twice, or inside a directory that is carried anyway.
        if files.iter().any(|file| {
            file.root == root && path.starts_with(&file.path) && dest.starts_with(&file.dest)
        }) {
            return;
        }
        files.push(JudgeFile {
            root,
            path,
            dest,
            place: Some(wanted.place.clone()),
            field: wanted.field.clone(),
        });
    }

    /// A Python module: its file, or its package directory, and the packages around it. They lie
    /// below the judge files by their dotted names, so that one import path finds them all.
    fn module(
        &mut self,
        wanted: &Wanted,
        judge: &str,
        files: &mut Vec<JudgeFile>,
        diags: &mut Diagnostics,
    ) {
        let identifier = |part: &str| {
            part.starts_with(|first: char| first == '_' || first.is_alphabetic())
                && part
                    .chars()
                    .all(|letter| letter == '_' || letter.is_alphanumeric())
        };
        let parts: Vec<&str> = wanted.text.split('.').collect();
        if !parts.iter().all(|part| identifier(part)) {
            let path = wanted.text.trim_end_matches(".py").replace('/', ".");
            diags.push(
                Diagnostic::new(
                    Rule::BadValue,
                    format!(
                        "The judge `{judge}` names the module `{}`, which is no Python module.",
                        wanted.text
                    ),
                )
                .help(format!(
                    "Write it with dots, as Python imports it, for example {path}."
                ))
                .at_place(Some(&wanted.place))
                .field(wanted.field.clone())
                .entry(wanted.text.clone()),
            );
            return;
        }
        let name = parts.join("/");
        for (place, is_dir) in [(format!("{name}.py"), false), (name.clone(), true)] {
            let init = format!("{place}/__init__.py");
            let Ok(found) = self.look(if is_dir { &init } else { &place }) else {
                continue;
            };
            let (Some(path), Kind::File) = (found.path, found.kind) else {
                continue;
            };
            let path = if is_dir { path.parent() } else { Some(path) };
            let (Some(path), Ok(dest)) = (path, TreePath::new(&place)) else {
                continue;
            };
            self.add(files, found.root, path, dest, wanted);
            // `a.b.c` is found through `a/__init__.py` and `a/b/__init__.py`, when they are there.
            for depth in 1..parts.len() {
                let init = format!(
                    "{}/__init__.py",
                    parts.get(..depth).unwrap_or_default().join("/")
                );
                if let (Ok(found), Ok(dest)) = (self.look(&init), TreePath::new(&init))
                    && let (Some(path), Kind::File) = (found.path, found.kind)
                {
                    self.add(files, found.root, path, dest, wanted);
                }
            }
            return;
        }
        diags.push(
            Diagnostic::new(
                Rule::JudgeFileMissing,
                format!(
                    "The judge `{judge}` needs the module `{}`, which is not in the project.",
                    wanted.text
                ),
            )
            .severity(Severity::Warning)
            .help("Correct the name; nothing has to be done if the image has the module installed.")
            .at_place(Some(&wanted.place))
            .field(wanted.field.clone())
            .entry(wanted.text.clone()),
        );
    }

    /// Reads the prompt files of tool handlers.
    pub(super) fn handler_files(
        &self,
        wanted: &[HandlerFile],
        handlers: &mut [ToolHandler],
        diags: &mut Diagnostics,
    ) {
        for file in wanted {
            let read = || -> Result<String, String> {
                let found = self.look(&file.text).map_err(|error| error.to_string())?;
                let path = found.path.ok_or("it is no file")?;
                let root = self.roots.get(found.root).ok_or("it is no file")?;
                let (bytes, _) = root
                    .read(&path, MAX_HANDLER)
                    .map_err(|error| error.to_string())?;
                String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
            };
            match (read(), handlers.get_mut(file.handler)) {
                (Ok(text), Some(handler)) => handler.prompt_text = Some(text),
                (Err(why), _) => diags.push(
                    Diagnostic::new(
                        Rule::FileUnreadable,
                        format!("The prompt file '{}' of a tool handler can not be read: {why}.", file.text),
                    )
                    .help("Correct the path; it is looked for under the project root, then beside the config.")
                    .at_place(Some(&file.place))
                    .field(file.field.clone())
                    .entry(file.text.clone()),
                ),
                (Ok(_), None) => {}
            }
        }
    }

    /// The skills under test that are in reach (policy 1).
    pub(super) fn skills(
        &self,
        blocks: &ExecutionBlocks<'_>,
        stage: bool,
        diags: &mut Diagnostics,
    ) -> Vec<SkillSource> {
        let names: BTreeSet<&str> = blocks
            .steps
            .iter()
            .filter_map(|step| match &step.what {
                What::Skill { name, .. } => Some(name.as_str()),
                _ => None,
            })
            .collect();
        if !stage {
            return Vec::new();
        }
        let mut skills = Vec::new();
        for name in names {
            let plain = !name.contains(':');
            if let Some(skill) = plain.then(|| self.skill(name)).flatten() {
                skills.push(skill);
                continue;
            }
            let message = if plain {
                format!(
                    "The skill `{name}` is not in skills/, .claude/skills/ or a plugin directory, so packages do not carry it."
                )
            } else {
                format!("The skill `{name}` belongs to a plugin, so packages do not carry it.")
            };
            let mut finding = Diagnostic::new(Rule::SkillNotStaged, message)
                .help("Nothing has to be done if the image has it.")
                .entry(name);
            if let Some((_, place, field)) = blocks.skill.as_ref().filter(|skill| skill.0 == name) {
                finding = finding.at_place(Some(place)).field(field.clone());
            }
            diags.push(finding);
        }
        skills
    }

    fn skill(&self, name: &str) -> Option<SkillSource> {
        let project = ["skills", ".claude/skills"].map(|dir| (PROJECT, dir.to_owned()));
        let plugins = self.plugins.iter().flat_map(|&root| {
            self.plugin_skills(root)
                .into_iter()
                .map(move |dir| (root, dir))
        });
        project.into_iter().chain(plugins).find_map(|(root, dir)| {
            let found = self
                .roots
                .resolve(root, None, &format!("{dir}/{name}/SKILL.md"))
                .ok()?;
            let path = found.path.filter(|_| found.kind == Kind::File)?.parent()?;
            // A plugin's manifest is somebody else's: it must not lead out of the plugin.
            let inside = self.roots.contains((root, None), (found.root, Some(&path)));
            inside.then(|| SkillSource {
                name: name.to_owned(),
                root: found.root,
                path,
            })
        })
    }

    /// Where a plugin has its skills.
    fn plugin_skills(&self, root: usize) -> Vec<String> {
        let read = || -> Option<Vec<String>> {
            let path = TreePath::new(".claude-plugin/plugin.json").ok()?;
            let (bytes, _) = self.roots.get(root)?.read(&path, find::MAX_TEXT).ok()?;
            let manifest: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
            match manifest.get("skills")? {
                serde_json::Value::String(dir) => Some(vec![dir.clone()]),
                serde_json::Value::Array(dirs) => Some(
                    dirs.iter()
                        .filter_map(|dir| dir.as_str().map(str::to_owned))
                        .collect(),
                ),
                _ => None,
            }
        };
        read().unwrap_or_else(|| vec!["skills".to_owned()])
    }
}

fn missing(wanted: &Wanted, judge: &str, why: &str) -> Diagnostic {
    Diagnostic::new(
        Rule::JudgeFileMissing,
        format!(
            "The judge `{judge}` needs the file '{}': {why}.",
            wanted.text
        ),
    )
    .help("Correct the path; it is looked for under the project root, then beside the config.")
    .at_place(Some(&wanted.place))
    .field(wanted.field.clone())
    .entry(wanted.text.clone())
}

/// Where a judge file goes: at its path below the project root; files of other roots beside those.
fn dest_of(root: usize, path: &TreePath) -> TreePath {
    if root == PROJECT {
        return path.clone();
    }
    match TreePath::new(&format!("_root{root}")) {
        Ok(prefix) => prefix.join(path),
        // Proof: the prefix is one component of letters and digits.
        Err(_) => path.clone(),
    }
}
