//! Asks `python3` whether the checks of judges are Python (policy 17). They are compiled, never
//! run: only `run` executes anything that a dataset brings.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::json;

use crate::dataset::{Dataset, Judge};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::target::harbor::Options;

/// Compiles each text as `templates/judge.py` does, and answers with what is wrong and with the
/// modules of others that it imports, unless it is prepared for their absence.
const SCRIPT: &str = r#"
import ast, json, sys
wrong, imports = [], []

def modules(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
        elif not isinstance(node, ast.Try):
            yield from modules(ast.iter_child_nodes(node))

for number, (kind, text) in enumerate(json.load(sys.stdin)):
    try:
        if kind == "if":
            ast.parse(text.strip(), mode="eval")
        else:
            body = "\n".join(" " + line for line in text.split("\n"))
            code = "def check(outputs, arguments):\n" + body + "\n pass\n"
            compile(code, "<check>", "exec", dont_inherit=True)
            names = {name.partition(".")[0] for name in modules([ast.parse(code)])}
            imports.append([number, sorted(names - set(sys.stdlib_module_names))])
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        line = (getattr(error, "lineno", None) or 1) - (kind == "check")
        wrong.append([number, max(line, 1), str(getattr(error, "msg", None) or error)])
json.dump({"wrong": wrong, "imports": imports}, sys.stdout)
"#;

#[derive(Deserialize)]
struct Answer {
    /// Number of the text, line, what Python says.
    wrong: Vec<(usize, usize, String)>,
    /// Number of the text, modules that are not Python's own.
    imports: Vec<(usize, Vec<String>)>,
}

/// Tells which checks and conditions do not compile, and which import what the image of the
/// packages lacks; without a `python3`, that nobody looked. `env` is the caller's.
pub(super) fn compile(
    dataset: &Dataset,
    options: &Options,
    env: &BTreeMap<String, String>,
    diags: &mut Diagnostics,
) {
    let mut texts: Vec<(&Judge, &str, &str)> = Vec::new();
    for judge in &dataset.verification.judges {
        for (kind, text) in [("check", &judge.check), ("if", &judge.condition)] {
            if let Some(text) = text {
                texts.push((judge, kind, text));
            }
        }
    }
    if texts.is_empty() {
        return;
    }
    let question = json!(
        texts
            .iter()
            .map(|(_, kind, text)| json!([kind, text]))
            .collect::<Vec<_>>()
    );
    let answer = match ask(&question.to_string(), env) {
        Ok(answer) => answer,
        Err(error) => {
            diags.push(
                Diagnostic::new(
                    Rule::ChecksNotCompiled,
                    format!("The checks were not compiled: python3 can not be asked ({error})."),
                )
                .help("Install python3 where datasets are built, so that mistakes show early."),
            );
            return;
        }
    };
    if let Some(image) = options.plain_python() {
        let imports = answer.imports.iter().filter_map(|(number, modules)| {
            let (judge, ..) = texts.get(*number)?;
            Some((*judge, modules))
        });
        missing_modules(imports, image, diags);
    }
    for (number, line, why) in answer.wrong {
        let Some((judge, kind, _)) = texts.get(number) else {
            continue;
        };
        let place = judge
            .check_place
            .as_ref()
            .filter(|_| *kind == "check")
            .or(judge.place.as_ref());
        diags.push(
            Diagnostic::new(
                Rule::CheckSyntax,
                format!(
                    "The {kind} of the judge '{}' is no Python, line {line}: {why}.",
                    judge.name
                ),
            )
            .help("Mend that line; in every package this judge would end in an error.")
            .at_place(place)
            .field(format!("judges.{kind}"))
            .entry(judge.name.as_str()),
        );
    }
}

/// Tells what `image`, which has Python and nothing else, lacks: one finding for each module.
fn missing_modules<'a>(
    imports: impl Iterator<Item = (&'a Judge, &'a Vec<String>)>,
    image: &str,
    diags: &mut Diagnostics,
) {
    let mut wanted: BTreeMap<&str, Vec<&Judge>> = BTreeMap::new();
    for (judge, modules) in imports {
        for module in modules {
            wanted.entry(module).or_default().push(judge);
        }
    }
    for (module, judges) in wanted {
        let names: Vec<String> = judges
            .iter()
            .map(|judge| format!("'{}'", judge.name))
            .collect();
        diags.push(
            Diagnostic::new(
                Rule::CheckImport,
                format!(
                    "Checks import {module}, which {image} does not have: in its packages they \
                     end in an error ({}).",
                    names.join(", ")
                ),
            )
            .help(
                "Build with --base-image or --image and an image that has the module, or do \
                 without it.",
            )
            .at_place(judges.first().and_then(|judge| judge.check_place.as_ref()))
            .field("judges.check")
            .entry(module),
        );
    }
}

/// What `python3` says. Where that is a script of a version manager, which takes longer than a whole
/// small build, the first real one behind it is asked before; only what that one finds fault with is
/// shown to the one that the user means.
fn ask(question: &str, env: &BTreeMap<String, String>) -> io::Result<Answer> {
    if let Some(Ok(answer)) = behind_scripts(env).map(|python| ask_one(&python, question))
        && answer.wrong.is_empty()
        && answer.imports.iter().all(|(_, modules)| modules.is_empty())
    {
        return Ok(answer);
    }
    ask_one(Path::new("python3"), question)
}

/// The first `python3` on the path that is no script, when another one that is comes before it.
fn behind_scripts(env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let programs = std::env::split_paths(env.get("PATH")?).map(|dir| dir.join("python3"));
    let is_script = |program: &PathBuf| {
        let mut start = [0; 2];
        let read = File::open(program).and_then(|mut file| file.read_exact(&mut start));
        read.is_ok() && start == *b"#!"
    };
    let mut programs = programs.filter(|program| program.is_absolute() && program.is_file());
    let first = programs.next().filter(is_script)?;
    programs.find(|program| *program != first && !is_script(program))
}

fn ask_one(python: &Path, question: &str) -> io::Result<Answer> {
    let mut child = Command::new(python)
        .args(["-I", "-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that ends early closes its input; what it said, or not, decides.
        stdin.write_all(question.as_bytes()).ok();
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("it ended with {}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(io::Error::other)
}
