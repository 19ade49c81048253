//! Generated workspace entries: `.claude/settings.json`, `hooks/tools.py`, `tool_handlers.yaml`.
//!
//! They exist only where they apply: permissions, intercepted tools or agent settings are given
//! (policy 1). Paths in them are the workspace's own, so that they mean the same everywhere.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::dataset::{Interception, PermissionRule, ToolHandler};
use crate::diag::{Diagnostic, Diagnostics, Rule, Severity};
use crate::fs::Roots;
use crate::path::TreePath;
use crate::tree::Mode;

/// The interceptor, as packages carry it.
const INTERCEPTOR: &str = include_str!("../../templates/intercept.py");

/// Largest `tool_handlers.yaml` of the user's own, bytes.
const HANDLERS_LIMIT: u64 = 1024 * 1024;

/// Tools whose use can be limited by a path in a permission rule; Bash never can
/// (agent-eval-harness 3.2; its table of permission rules).
const PATH_TOOLS: &[&str] = &[
    "Read",
    "Write",
    "Edit",
    "MultiEdit",
    "NotebookEdit",
    "Glob",
    "Grep",
    "LS",
];

/// Tool names that are looked for in the words of a handler's `match`.
const KNOWN_TOOLS: &[&str] = &[
    "AskUserQuestion",
    "Bash",
    "Read",
    "Write",
    "Edit",
    "Glob",
    "Grep",
    "Agent",
    "Skill",
];

/// The generated files: place, mode, bytes.
pub(super) fn entries(
    interception: &Interception,
    roots: &Roots,
    diags: &mut Diagnostics,
) -> Vec<(TreePath, Mode, Arc<[u8]>)> {
    let mut files: Vec<(&str, Mode, Vec<u8>)> = Vec::new();
    let intercepts = !interception.tools.is_empty() || interception.handlers_file.is_some();
    if let Some(settings) = settings(interception, intercepts) {
        files.push((".claude/settings.json", Mode::Regular, pretty(&settings)));
    }
    if intercepts {
        files.push((
            "hooks/tools.py",
            Mode::Executable,
            INTERCEPTOR.as_bytes().to_vec(),
        ));
        let handlers = match &interception.handlers_file {
            None => pretty(&handlers(interception)),
            Some((root, path)) => {
                let read = roots.get(*root).map(|root| root.read(path, HANDLERS_LIMIT));
                match read {
                    Some(Ok((bytes, _))) => bytes,
                    Some(Err(error)) => {
                        diags.push(
                            Diagnostic::new(
                                Rule::FileUnreadable,
                                format!("'{path}' can not be read: {error}."),
                            )
                            .severity(Severity::Error)
                            .help("Make it a readable file of at most 1 MiB, or remove it.")
                            .file(path.as_str()),
                        );
                        Vec::new()
                    }
                    None => Vec::new(),
                }
            }
        };
        files.push(("tool_handlers.yaml", Mode::Regular, handlers));
    }
    files
        .into_iter()
        .filter_map(|(path, mode, bytes)| Some((TreePath::new(path).ok()?, mode, bytes.into())))
        .collect()
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut text = format!("{value:#}");
    text.push('\n');
    text.into_bytes()
}

/// `.claude/settings.json`, when there is anything to say.
fn settings(interception: &Interception, intercepts: bool) -> Option<Value> {
    let mut settings = Map::new();
    let permissions = &interception.permissions;
    let mut allow: Vec<String> = Vec::new();
    let mut deny: Vec<String> = Vec::new();
    for rule in &permissions.allow {
        allow.extend(compile(rule, false));
    }
    for rule in &permissions.deny {
        deny.extend(compile(rule, true));
    }
    let mut block = Map::new();
    for (key, list) in [("allow", allow), ("deny", deny)] {
        if !list.is_empty() {
            block.insert(key.to_owned(), json!(list));
        }
    }
    if !permissions.additional_directories.is_empty() {
        let directories = json!(permissions.additional_directories);
        block.insert("additionalDirectories".to_owned(), directories);
    }
    if !block.is_empty() {
        settings.insert("permissions".to_owned(), Value::Object(block));
    }
    if intercepts {
        let mut patterns: Vec<String> = interception
            .tools
            .iter()
            .flat_map(|tool| patterns(&tool.matches))
            .collect();
        if interception.handlers_file.is_some() {
            // The user's own file says which calls it is for; the hook looks there.
            patterns = vec!["*".to_owned()];
        }
        patterns.sort();
        patterns.dedup();
        let hooks: Vec<Value> = patterns
            .iter()
            .map(|pattern| {
                json!({
                    "matcher": pattern,
                    "hooks": [{
                        "type": "command",
                        "command": "python3 -I \"$CLAUDE_PROJECT_DIR/hooks/tools.py\"",
                    }],
                })
            })
            .collect();
        settings.insert("hooks".to_owned(), json!({ "PreToolUse": hooks }));
    }
    let mut settings = Value::Object(settings);
    merge(&mut settings, &interception.settings);
    settings
        .as_object()
        .is_some_and(|map| !map.is_empty())
        .then_some(settings)
}

/// `b` over `a`: mappings key by key, lists one after the other, anything else replaced
/// (agent-eval-harness 3.2, `runner.settings`).
fn merge(a: &mut Value, b: &Value) {
    match (a, b) {
        (_, Value::Null) => {}
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in b {
                match a.get_mut(key) {
                    Some(there) => merge(there, value),
                    None => {
                        a.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(a), Value::Array(b)) => a.extend(b.iter().cloned()),
        (a, b) => *a = b.clone(),
    }
}

/// A permission as the agent's settings write it. `{path: eval/, tools: [Read]}` is
/// `Read(eval/**)`; a deny list with Bash also denies Read and Edit, since Bash can't be limited
/// by a path.
fn compile(rule: &PermissionRule, deny: bool) -> Vec<String> {
    match rule {
        PermissionRule::Text(text) => vec![text.clone()],
        PermissionRule::Path { path, .. } if path.is_empty() => Vec::new(),
        PermissionRule::Path { path, tools } => {
            let mut tools: Vec<&str> = tools.iter().map(String::as_str).collect();
            if deny && tools.contains(&"Bash") {
                for tool in ["Read", "Edit"] {
                    if !tools.contains(&tool) {
                        tools.push(tool);
                    }
                }
            }
            let place = if path.ends_with('/') {
                format!("{path}**")
            } else {
                path.clone()
            };
            tools
                .iter()
                .filter(|tool| PATH_TOOLS.contains(tool))
                .map(|tool| format!("{tool}({place})"))
                .collect()
        }
    }
}

/// Which tools the words of a `match` mean (agent-eval-harness 3.2): known names wherever they
/// stand in the text, `mcp__` names, "script" and "api" for Bash, else every tool.
fn patterns(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let mut found: Vec<String> = KNOWN_TOOLS
        .iter()
        .filter(|name| lower.contains(&name.to_lowercase()))
        .map(|name| (*name).to_owned())
        .collect();
    for word in text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')) {
        if word.len() > 5 && word.starts_with("mcp__") {
            found.push(word.to_owned());
        }
    }
    if found.is_empty() && (lower.contains("script") || lower.contains("api")) {
        found.push("Bash".to_owned());
    }
    if found.is_empty() {
        found.push("*".to_owned());
    }
    found.sort();
    found.dedup();
    found
}

/// `tool_handlers.yaml`: JSON, which every YAML reader takes, so that the hook needs none.
fn handlers(interception: &Interception) -> Value {
    let handlers: Vec<Value> = interception
        .tools
        .iter()
        .map(|tool: &ToolHandler| {
            let mut handler = Map::new();
            handler.insert("match".to_owned(), json!(tool.matches));
            handler.insert("patterns".to_owned(), json!(patterns(&tool.matches)));
            let prompt = tool.prompt_text.as_ref().unwrap_or(&tool.prompt);
            if !prompt.is_empty() {
                handler.insert("prompt".to_owned(), json!(prompt));
            }
            Value::Object(handler)
        })
        .collect();
    let mut top = Map::new();
    top.insert("handlers".to_owned(), json!(handlers));
    if let Some(model) = &interception.hook_model {
        top.insert("hook_model".to_owned(), json!(model));
    }
    Value::Object(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `bundle_and_tools.json`: what the real program compiled.
    #[test]
    fn compile_as_the_harness_does() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../shared/vectors/aeh/bundle_and_tools.json"
        );
        let Ok(text) = std::fs::read_to_string(file) else {
            println!("skipped: {file} is absent");
            return;
        };
        let table: Value = serde_json::from_str(&text).unwrap();
        let (mut tools, mut rules) = (0, 0);
        for row in table["tool_patterns"].as_array().unwrap() {
            let mut want: Vec<&str> = row["patterns"]
                .as_array()
                .unwrap()
                .iter()
                .map(|p| p.as_str().unwrap())
                .collect();
            want.sort_unstable();
            assert_eq!(patterns(row["text"].as_str().unwrap()), want, "{row}");
            tools += 1;
        }
        for row in table["permission_rules"].as_array().unwrap() {
            let deny = row["harden_bash"].as_bool().unwrap();
            let got: Vec<String> = row["rules"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|rule| {
                    let rule = match rule.as_str() {
                        Some(text) => PermissionRule::Text(text.to_owned()),
                        None => PermissionRule::Path {
                            path: rule["path"].as_str().unwrap_or_default().to_owned(),
                            tools: rule["tools"]
                                .as_array()
                                .map(|tools| {
                                    tools
                                        .iter()
                                        .map(|t| t.as_str().unwrap().to_owned())
                                        .collect()
                                })
                                .unwrap_or_default(),
                        },
                    };
                    compile(&rule, deny)
                })
                .collect();
            assert_eq!(json!(got), row["out"], "{row}");
            rules += 1;
        }
        println!("{tools} tool patterns and {rules} permission rules agree");
        assert!(tools > 5 && rules > 3);
    }
}
