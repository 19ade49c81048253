//! Asks `python3` whether the checks of judges are Python (policy 17). They are compiled, never
//! run: only `run` executes anything that a dataset brings.

use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::json;

use crate::dataset::{Dataset, Judge};
use crate::diag::{Diagnostic, Diagnostics, Rule};

/// Compiles each text as `templates/judge.py` does, and answers with what is wrong.
const SCRIPT: &str = r#"
import ast, json, sys
answers = []
for number, (kind, text) in enumerate(json.load(sys.stdin)):
    try:
        if kind == "if":
            ast.parse(text.strip(), mode="eval")
        else:
            body = "\n".join(" " + line for line in text.split("\n"))
            compile("def check(outputs, arguments):\n" + body + "\n pass\n", "<check>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        line = (getattr(error, "lineno", None) or 1) - (kind == "check")
        answers.append([number, max(line, 1), str(getattr(error, "msg", None) or error)])
json.dump(answers, sys.stdout)
"#;

#[derive(Deserialize)]
struct Answer(usize, usize, String);

/// Tells which checks and conditions do not compile; without a `python3`, that nobody looked.
pub(super) fn compile(dataset: &Dataset, diags: &mut Diagnostics) {
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
    let answers = match ask(&question.to_string()) {
        Ok(answers) => answers,
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
    for Answer(number, line, why) in answers {
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

fn ask(question: &str) -> io::Result<Vec<Answer>> {
    let mut child = Command::new("python3")
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
