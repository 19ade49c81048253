//! The command line of a `cli` agent (agent-eval-harness.md 3.3): words, placeholders, and the
//! files of the project that it names.
//!
//! Owns what becomes of `runner.command`. Refuses to know processes.
//! Invariant: the command is split into words before anything is filled in, and what is filled in
//! stays inside its word: a text of the dataset is an argument, never code. Where a word is code
//! (`sh -c '…'`, `python3 -c '…'`) nothing but harmless text is filled in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::sandbox::{Mount, OWN};
use crate::dataset::{COMMAND_PLACEHOLDERS, RunnerCommand};
use crate::template::python_str;
use crate::tree::Tree;
use crate::yaml::Yaml;

/// The first of the dataset's roots that is a plugin directory: the project and the directory of
/// the cases stand before (policy 8).
pub(super) const PLUGIN_ROOTS: usize = 2;
/// The longest argument that Linux takes, with room for the final NUL.
pub(super) const WORD_MAX: usize = 128 * 1024 - 1;

/// Where the project is, and what of it nobody may name.
#[derive(Debug)]
pub(super) struct Project {
    /// The project root and the config's directory, canonical, in the order in which a script is
    /// looked for: the config's directory first.
    pub(super) roots: Vec<PathBuf>,
    /// The directory that holds the case directories.
    pub(super) dataset: Option<PathBuf>,
    /// More evaluation material, and what this run reads and writes.
    pub(super) guarded: Vec<PathBuf>,
    /// Whether the agent runs in a sandbox, where only mounts are seen.
    pub(super) sandboxed: bool,
}

/// What the placeholders stand for.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// The placeholders of the harness and casepack's own: harmless unless their text says not.
    pub(super) known: BTreeMap<&'static str, String>,
    /// What comes from the dataset: never part of code. Stands behind `known`.
    pub(super) texts: BTreeMap<String, String>,
}

/// A command line that can be started.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) argv: Vec<String>,
    /// What of the project it needs to see.
    pub(super) mounts: Vec<Mount>,
    /// Placeholders that stand for nothing, and so for themselves.
    pub(super) unknown: BTreeSet<String>,
}

impl Values {
    /// Adds the fields of the input (as Python's `str` gives them, nothing for null) and the
    /// instruction. As in the harness a field hides what is not one of its own placeholders, so
    /// `{prompt}` is the field of that name, and the instruction where there is none.
    pub(super) fn add_texts(&mut self, input: &Yaml, instruction: &str, args: &str) {
        for name in ["instruction", "prompt"] {
            self.texts.insert(name.to_owned(), instruction.to_owned());
        }
        self.texts.insert("args".to_owned(), args.to_owned());
        let Yaml::Map(fields) = input else { return };
        for (key, value) in fields {
            let Some(name) = key.value.as_str() else {
                continue;
            };
            if !COMMAND_PLACEHOLDERS.contains(&name) {
                let text = match &value.value {
                    Yaml::Null => String::new(),
                    Yaml::Str(text) => text.to_string(),
                    value => python_str(value),
                };
                self.texts.insert(name.to_owned(), text);
            }
        }
    }

    fn get(&self, name: &str) -> Option<(&str, bool)> {
        match self.known.get(name) {
            Some(text) => Some((text, harmless(text))),
            None => self.texts.get(name).map(|text| (text.as_str(), false)),
        }
    }
}

/// Whether `text` means itself to every shell and interpreter.
fn harmless(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte))
}

/// The words of a command, before its placeholders are filled.
///
/// # Errors
/// Why it is none, in a sentence.
pub(super) fn words(command: &RunnerCommand) -> Result<Vec<String>, String> {
    let words = match command {
        RunnerCommand::Text(text) => {
            split(text).ok_or("runner.command is no command line: a quotation is not closed.")?
        }
        RunnerCommand::List(words) => words.clone(),
    };
    if words.first().is_none_or(String::is_empty) {
        return Err("runner.command is empty.".to_owned());
    }
    Ok(words)
}

/// The command line for one case.
///
/// # Errors
/// Why there is none, in a sentence or two.
pub(super) fn compose(
    command: &RunnerCommand,
    values: &Values,
    project: &Project,
    workspace: &Tree,
) -> Result<Call, String> {
    let words = words(command)?;
    let code = code_words(&words);
    let mut call = Call::default();
    for (index, word) in words.iter().enumerate() {
        let script = index == 0 && word.contains('/') || Some(index) == script(&words);
        let word = match project.place(word, script, workspace, &mut call.mounts)? {
            Some(placed) => placed,
            None => fill(word, values, code.contains(&index), &mut call.unknown)?,
        };
        if word.contains('\0') {
            return Err(format!(
                "Argument {index} of the agent's command would have a NUL byte, which no argument \
                 can hold."
            ));
        }
        if word.len() > WORD_MAX {
            return Err(format!(
                "Argument {index} of the agent's command would have {} bytes, and the system takes \
                 {WORD_MAX}. Give the agent {{instruction_file}} in place of the text.",
                word.len()
            ));
        }
        call.argv.push(word);
    }
    Ok(call)
}

/// Splits as a POSIX shell does, without expanding anything; `None`: a quotation is not closed.
///
/// `#` is no comment, as in Python's `shlex.split`, which the harness uses.
fn split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            ' ' | '\t' | '\r' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        char => word.push(char),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '\\' => match chars.next()? {
                            char @ ('"' | '\\') => word.push(char),
                            char => word.extend(['\\', char]),
                        },
                        char => word.push(char),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next()?),
            char => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    Some(words)
}

/// A piece of a word.
enum Piece<'a> {
    Text(&'a str),
    /// The name between the braces.
    Placeholder(&'a str),
}

fn pieces(word: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('{') {
        let name = after.split_once('}').map(|(name, _)| name);
        if let Some(name) = name.filter(|name| is_name(name)) {
            pieces.push(Piece::Text(before));
            pieces.push(Piece::Placeholder(name));
            rest = after.get(name.len() + 1..).unwrap_or_default();
        } else {
            // The brace itself is text.
            let (text, after) = rest.split_at(before.len() + 1);
            pieces.push(Piece::Text(text));
            rest = after;
        }
    }
    pieces.push(Piece::Text(rest));
    pieces
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_alphabetic() || first == '_')
        && name
            .chars()
            .all(|char| char.is_alphanumeric() || char == '_' || char == '-')
}

fn fill(
    word: &str,
    values: &Values,
    code: bool,
    unknown: &mut BTreeSet<String>,
) -> Result<String, String> {
    let mut filled = String::with_capacity(word.len());
    for piece in pieces(word) {
        match piece {
            Piece::Text(text) => filled.push_str(text),
            Piece::Placeholder(name) => match values.get(name) {
                Some((_, false)) if code => {
                    return Err(format!(
                        "The placeholder {{{name}}} stands in a word that is run as code, so the \
                         text of a case would be run too. Pass it as an argument: write the command \
                         as a list like [\"sh\", \"-c\", \"my-agent \\\"$1\\\"\", \"sh\", \
                         \"{{{name}}}\"]."
                    ));
                }
                Some((text, _)) => filled.push_str(text),
                None => {
                    unknown.insert(name.to_owned());
                    filled.extend(["{", name, "}"]);
                }
            },
        }
    }
    Ok(filled)
}

/// The words that an interpreter named in the command runs as code.
fn code_words(words: &[String]) -> BTreeSet<usize> {
    let mut code = BTreeSet::new();
    for (index, word) in words.iter().enumerate() {
        let Some(flags) = code_flags(word) else {
            continue;
        };
        let mut armed = flags.is_empty();
        for (index, word) in words.iter().enumerate().skip(index + 1) {
            if armed {
                code.insert(index);
                // `sh -c -e 'code'`: options may stand between the two.
                if !word.starts_with(['-', '+']) {
                    break;
                }
            } else if let Some(option) = word.strip_prefix("--") {
                let name = option.split_once('=').map_or(option, |(name, _)| name);
                if flags.contains(&word.as_str()) {
                    armed = true;
                } else if flags
                    .iter()
                    .any(|flag| flag.strip_prefix("--") == Some(name))
                {
                    code.insert(index);
                }
            } else if let Some(cluster) = word.strip_prefix('-') {
                let hit = flags.iter().any(|flag| match flag.strip_prefix('-') {
                    Some(letter) if letter.len() == 1 => cluster.contains(letter),
                    _ => false,
                });
                if hit {
                    // The code may follow in the same word: `perl -ecode`.
                    code.insert(index);
                    armed = true;
                }
            } else if !flags.is_empty() && index_is_operand(words, index) {
                // A script: what follows are its arguments.
                break;
            }
        }
    }
    code
}

/// Whether the word at `index` is no value of an option before it (`bash -o pipefail -c …`).
fn index_is_operand(words: &[String], index: usize) -> bool {
    let before = index.checked_sub(1).and_then(|before| words.get(before));
    !before.is_some_and(|before| before.starts_with(['-', '+']))
}

/// The options after which `program` takes code; empty: its first operand is code.
fn code_flags(program: &str) -> Option<&'static [&'static str]> {
    let name = program.rsplit('/').next().unwrap_or_default();
    let name = name.trim_end_matches(|char: char| char.is_ascii_digit() || char == '.');
    match name {
        "sh" | "bash" | "dash" | "zsh" | "ksh" | "mksh" | "ash" | "fish" | "su" | "runuser"
        | "script" => Some(&["-c", "--command"]),
        "python" | "pypy" => Some(&["-c"]),
        "perl" | "ruby" | "lua" => Some(&["-e", "-E"]),
        "node" | "nodejs" | "bun" | "deno" => Some(&["-e", "-p", "--eval", "--print"]),
        "php" => Some(&["-r"]),
        "awk" | "gawk" | "mawk" | "eval" | "watch" => Some(&[]),
        _ => None,
    }
}

/// What a command starts: the program, where it is named by its path, and its script.
pub(super) fn started(words: &[String]) -> impl Iterator<Item = &String> {
    let program = words.first().filter(|word| word.contains('/'));
    let script = script(words).and_then(|at| words.get(at));
    program.into_iter().chain(script)
}

/// Which word is the script of the first one: its first operand, when it is an interpreter.
fn script(words: &[String]) -> Option<usize> {
    const RUNNERS: [&str; 4] = ["env", "nice", "timeout", "uv"];
    let program = words.first()?;
    let name = program.rsplit('/').next()?;
    if code_flags(program).is_none() && !RUNNERS.contains(&name) {
        return None;
    }
    words
        .iter()
        .enumerate()
        .skip(1)
        .find(|(_, word)| !word.starts_with('-'))
        .map(|(index, _)| index)
}

impl Project {
    /// `{config_dir}`
    pub(super) fn config_dir(&self) -> String {
        match self.roots.first() {
            Some(dir) => self.seen(dir),
            None => String::new(),
        }
    }

    /// A word that names something of the project: as the agent finds it. `None`: it does not.
    fn place(
        &self,
        word: &str,
        script: bool,
        workspace: &Tree,
        mounts: &mut Vec<Mount>,
    ) -> Result<Option<String>, String> {
        for (at, name) in word.match_indices("{config_dir}/") {
            let named = word.get(at + name.len()..).unwrap_or_default();
            // In a shell's script the path ends where the word of the shell does.
            let end =
                named.find(|char: char| char.is_whitespace() || "\"'`;|&<>(){}".contains(char));
            let ends = [Some(named), end.and_then(|end| named.get(..end))];
            if let Some(config_dir) = self.roots.first() {
                for named in ends.into_iter().flatten().filter(|named| !named.is_empty()) {
                    if self.show(&config_dir.join(named), true, mounts)?.is_some() {
                        break;
                    }
                }
            }
        }
        if Path::new(word).is_absolute() {
            let own = self
                .roots
                .iter()
                .any(|root| Path::new(word).starts_with(root));
            return if own {
                self.show(Path::new(word), false, mounts)
            } else {
                Ok(None)
            };
        }
        let brought = crate::path::TreePath::new(word.trim_start_matches("./"))
            .is_ok_and(|path| workspace.get(&path).is_some());
        if !script || brought {
            return Ok(None);
        }
        for root in &self.roots {
            if let Some(seen) = self.show(&root.join(word), false, mounts)? {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }

    /// Shows the file (or directory) at `path` to the agent; gives the path at which it is found.
    fn show(
        &self,
        path: &Path,
        directories: bool,
        mounts: &mut Vec<Mount>,
    ) -> Result<Option<String>, String> {
        let Ok(real) = path.canonicalize() else {
            return Ok(None);
        };
        if !(real.is_file() || directories && real.is_dir()) {
            return Ok(None);
        }
        let Some(root) = self.roots.iter().find(|root| real.starts_with(root)) else {
            return Err(format!(
                "The agent's command names {}, which leads out of the project.",
                path.display()
            ));
        };
        if let Some(guarded) = self.held_back(&real) {
            return Err(format!(
                "The agent's command names {}, and the agent must not see {}: it would see what it \
                 is judged by. Name a file or directory that is only the agent's.",
                path.display(),
                guarded.display()
            ));
        }
        // The name under which it was asked for counts: `agent.py` may be a link to `v2.py`.
        let named = self
            .roots
            .iter()
            .find_map(|root| path.strip_prefix(root).ok().map(|rest| (root, rest)));
        let seen = match named {
            Some((root, rest)) if plain(rest) => self.seen(&root.join(rest)),
            _ => self.seen(&root.join(real.strip_prefix(root).unwrap_or(&real))),
        };
        if self.sandboxed && !mounts.iter().any(|mount| mount.inside == seen) {
            mounts.push(Mount::read(real, seen.clone()));
        }
        Ok(Some(seen))
    }

    /// What nobody may see of what is at `real`, or holds it.
    fn held_back(&self, real: &Path) -> Option<&Path> {
        // What lies beside the case directories, in the dataset's own directory, is no case.
        let dataset = self
            .dataset
            .iter()
            .filter(|dataset| !(real.is_file() && real.parent() == Some(dataset.as_path())));
        let mut guarded = self.guarded.iter().chain(dataset);
        guarded
            .find(|guarded| real.starts_with(guarded) || guarded.starts_with(real))
            .map(PathBuf::as_path)
    }

    /// Refuses a plugin directory that holds what agents are judged by.
    ///
    /// # Errors
    /// A sentence that names both.
    pub(super) fn may_show(&self, real: &Path) -> Result<(), String> {
        self.held_back(real).map_or(Ok(()), |guarded| {
            Err(format!(
                "The plugin directory {} can not be shown to the agent, since it would show {}. \
                 Name the plugin's own directory.",
                real.display(),
                guarded.display()
            ))
        })
    }

    /// The path at which the agent finds what is at `path`, a path below one of the roots.
    fn seen(&self, path: &Path) -> String {
        if !self.sandboxed {
            return path.to_string_lossy().into_owned();
        }
        let outermost = self.roots.iter().filter(|root| path.starts_with(root));
        let outermost = outermost.min_by_key(|root| root.components().count());
        let rest = outermost.and_then(|root| path.strip_prefix(root).ok());
        let rest = rest.unwrap_or(path).to_string_lossy();
        format!("{OWN}/project/{}", rest.trim_start_matches('/'))
            .trim_end_matches('/')
            .to_owned()
    }
}

fn plain(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, std::path::Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        let mut values = Values::default();
        values.known.insert("model", "m-1".to_owned());
        values
            .known
            .insert("system_prompt", "be brief; now".to_owned());
        values.add_texts(&Yaml::Null, "do it; $(touch /tmp/x)", "it");
        values
    }

    fn nowhere() -> Project {
        Project {
            roots: Vec::new(),
            dataset: None,
            guarded: Vec::new(),
            sandboxed: true,
        }
    }

    fn words(command: &RunnerCommand) -> Result<Call, String> {
        compose(command, &values(), &nowhere(), &Tree::default())
    }

    fn text(command: &str) -> Result<Vec<String>, String> {
        words(&RunnerCommand::Text(command.to_owned())).map(|call| call.argv)
    }

    #[test]
    fn splits_as_a_shell_would() {
        for (text, wanted) in [
            ("a  b\tc\n", &["a", "b", "c"][..]),
            ("a 'b c' \"d e\"", &["a", "b c", "d e"]),
            (r#"a"b"'c'd"#, &["abcd"]),
            (r#"'' "" x"#, &["", "", "x"]),
            (r#""a\"b\\c\d" e\ f"#, &[r#"a"b\c\d"#, "e f"]),
            ("tag #5 # no comment", &["tag", "#5", "#", "no", "comment"]),
        ] {
            assert_eq!(split(text).unwrap(), wanted, "{text}");
        }
        for text in ["a 'b", "a \"b", "a \\"] {
            assert_eq!(split(text), None, "{text}");
        }
    }

    #[test]
    fn texts_stay_in_their_word() {
        assert_eq!(
            text("agent --model={model} -p {instruction} '{prompt} twice'").unwrap(),
            [
                "agent",
                "--model=m-1",
                "-p",
                "do it; $(touch /tmp/x)",
                "do it; $(touch /tmp/x) twice"
            ]
        );
    }

    #[test]
    fn unknown_placeholders_and_other_braces_are_kept() {
        let command = "a {fle} {\"k\":1} {} {{model}} {x y} }{";
        let call = words(&RunnerCommand::Text(command.to_owned())).unwrap();
        assert_eq!(
            call.argv,
            ["a", "{fle}", "{k:1}", "{}", "{m-1}", "{x", "y}", "}{"]
        );
        assert_eq!(call.unknown.into_iter().collect::<Vec<_>>(), ["fle"]);
    }

    #[test]
    fn fields_hide_the_instruction_but_no_placeholder_of_the_harness() {
        let entry = |key: &str, value: Yaml| {
            let node = |value| crate::yaml::Node { value, span: 0..0 };
            (node(Yaml::Str(key.into())), node(value))
        };
        let mut values = values();
        let input = Yaml::Map(vec![
            entry("prompt", Yaml::Str("mine".into())),
            entry("model", Yaml::Str("evil".into())),
            entry("nothing", Yaml::Null),
        ]);
        values.add_texts(&input, "told", "");
        let command = RunnerCommand::List(
            ["a", "{prompt}", "{model}", "{nothing}", "{instruction}"]
                .map(str::to_owned)
                .into(),
        );
        let call = compose(&command, &values, &nowhere(), &Tree::default()).unwrap();
        assert_eq!(call.argv, ["a", "mine", "m-1", "", "told"]);
    }

    #[test]
    fn no_text_of_a_case_becomes_code() {
        for command in [
            &["sh", "-c", "agent {prompt}"][..],
            &["sh", "-ec", "agent '{instruction}'"],
            &["bash", "-o", "pipefail", "-c", "agent {prompt}"],
            &["bash", "-c", "-e", "agent {prompt}"],
            &["env", "A=b", "/bin/sh", "-c", "{prompt}"],
            &["timeout", "5", "bash", "-lc", "agent {args}"],
            &["python3.12", "-c", "print('{prompt}')"],
            &["python3", "-Ic", "print('{prompt}')"],
            &["perl", "-e{prompt}"],
            &["node", "--eval={prompt}"],
            &["awk", "{prompt}"],
            &["sh", "-c", "agent {system_prompt}"],
        ] {
            let command =
                RunnerCommand::List(command.iter().map(|&word| word.to_owned()).collect());
            let error = words(&command).unwrap_err();
            assert!(error.contains("run as code"), "{command:?}: {error}");
        }
        // Written as a string it is the same command.
        assert!(text("sh -c 'agent {prompt}'").is_err());
    }

    #[test]
    fn arguments_of_code_and_harmless_values_are_fine() {
        assert_eq!(
            text(r#"sh -c 'agent --model {model} "$1"' sh {prompt}"#).unwrap(),
            [
                "sh",
                "-c",
                "agent --model m-1 \"$1\"",
                "sh",
                "do it; $(touch /tmp/x)"
            ]
        );
        assert!(text("python3 agent.py -c {prompt}").is_ok());
        assert!(text("bash run.sh -c {prompt}").is_ok());
        assert!(text("my-agent -c {prompt}").is_ok());
    }

    #[test]
    fn finds_the_scripts_of_the_project_and_nothing_else_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for file in [
            "agent/run.py",
            "agent/lib/a.py",
            "cases/a/annotations.yaml",
            "cases/tool.py",
            "eval.yaml",
            "report.md",
        ] {
            std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            std::fs::write(root.join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", root.join("agent/out.py")).unwrap();
        std::os::unix::fs::symlink("../cases/a", root.join("agent/in")).unwrap();
        let mut project = Project {
            roots: vec![root.clone()],
            dataset: Some(root.join("cases")),
            guarded: vec![root.join("eval.yaml")],
            sandboxed: true,
        };
        let mut values = Values::default();
        values.known.insert("config_dir", project.config_dir());
        let go = |project: &Project, command: &str| {
            let command = RunnerCommand::Text(command.to_owned());
            compose(&command, &values, project, &Tree::default()).map(|call| {
                let mounts = call.mounts.iter().map(|mount| mount.inside.clone());
                (call.argv.join(" "), mounts.collect::<Vec<_>>())
            })
        };
        let shown = |path: &str| vec![format!("/casepack/project/{path}")];
        for (command, argv, mounts) in [
            (
                "python3 agent/run.py x",
                "python3 /casepack/project/agent/run.py x",
                shown("agent/run.py"),
            ),
            (
                "python3 -u ./agent/run.py",
                "python3 -u /casepack/project/agent/run.py",
                shown("agent/run.py"),
            ),
            (
                "agent/run.py",
                "/casepack/project/agent/run.py",
                shown("agent/run.py"),
            ),
            (
                "a --at={config_dir}/agent/run.py",
                "a --at=/casepack/project/agent/run.py",
                shown("agent/run.py"),
            ),
            (
                "a {config_dir}/agent/lib",
                "a /casepack/project/agent/lib",
                shown("agent/lib"),
            ),
            (
                "python3 cases/tool.py",
                "python3 /casepack/project/cases/tool.py",
                shown("cases/tool.py"),
            ),
            (
                "sh -c 'cd / && python3 {config_dir}/agent/run.py -v'",
                "sh -c cd / && python3 /casepack/project/agent/run.py -v",
                shown("agent/run.py"),
            ),
            // Named, but no script: a file of the workspace, to be.
            ("agent --to report.md", "agent --to report.md", vec![]),
            ("a {config_dir}", "a /casepack/project", vec![]),
            (
                "a {config_dir}/gone.py",
                "a /casepack/project/gone.py",
                vec![],
            ),
        ] {
            assert_eq!(
                go(&project, command),
                Ok((argv.to_owned(), mounts)),
                "{command}"
            );
        }
        for command in [
            "cat {config_dir}/cases/a/annotations.yaml",
            "cat {config_dir}/cases",
            "cat {config_dir}/agent/in",
            "cat {config_dir}/eval.yaml",
            "python3 cases/a/annotations.yaml",
            "python3 agent/out.py",
        ] {
            assert!(go(&project, command).is_err(), "{command}");
        }
        project.sandboxed = false;
        let seen = root.join("agent/run.py").display().to_string();
        assert_eq!(
            go(&project, "python3 agent/run.py"),
            Ok((format!("python3 {seen}"), vec![]))
        );
    }
}
