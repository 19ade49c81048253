//! What a `task.toml` may hold (harbor.md 2, 5), as a table of keys and types.

use std::collections::BTreeSet;
use std::ops::Range;

use toml_edit::{Item, TableLike, Value};
use unicode_normalization::UnicodeNormalization;

pub(crate) use super::tables;
use crate::yaml::nearest;

/// Takes a finding: config path, place, sentence, help.
type Tell<'a> = dyn FnMut(String, Option<Range<usize>>, String, String) + 'a;

/// What a value may be. Numbers written as text pass where Harbor's reader converts them.
#[derive(Clone, Copy)]
enum Type {
    Text,
    NotEmpty,
    TextOrInt,
    Whole,
    Number,
    /// Seconds, also endless ones.
    Seconds,
    /// `4G`, as `memory` and `storage` were once written.
    Size,
    Flag,
    Texts,
    /// One of these.
    Word(&'static [&'static str]),
    /// Text by text.
    Env,
    /// A table of these keys.
    Table(&'static [Key]),
    /// A list of such tables.
    Tables(&'static [Key]),
    /// Any table.
    Free,
    /// A number, or numbers by name.
    Reward,
    /// Texts or tables.
    Artifacts,
    TaskName,
    StepName,
}

struct Key {
    name: &'static str,
    kind: Type,
    needed: bool,
}

const fn key(name: &'static str, kind: Type) -> Key {
    Key {
        name,
        kind,
        needed: false,
    }
}

const fn needed(name: &'static str, kind: Type) -> Key {
    Key {
        name,
        kind,
        needed: true,
    }
}

const NETWORK: Type = Type::Word(&["public", "no-network", "allowlist"]);

const ROOT: &[Key] = &[
    key("schema_version", Type::Text),
    key("version", Type::Text),
    key("source", Type::Text),
    key("multi_step_reward_strategy", Type::Word(&["mean", "final"])),
    key("artifacts", Type::Artifacts),
    key("task", Type::Table(TASK)),
    key("metadata", Type::Free),
    key("environment", Type::Table(ENVIRONMENT)),
    key("agent", Type::Table(AGENT)),
    key("verifier", Type::Table(VERIFIER)),
    key("solution", Type::Table(SOLUTION)),
    key("steps", Type::Tables(STEP)),
];

const TASK: &[Key] = &[
    needed("name", Type::TaskName),
    key("version", Type::NotEmpty),
    key("description", Type::Text),
    key("authors", Type::Tables(AUTHOR)),
    key("keywords", Type::Texts),
];

const AUTHOR: &[Key] = &[needed("name", Type::Text), key("email", Type::Text)];

const ENVIRONMENT: &[Key] = &[
    key("docker_image", Type::Text),
    key("workdir", Type::Text),
    key("network_mode", NETWORK),
    key("allowed_hosts", Type::Texts),
    key("env", Type::Env),
    key("cpus", Type::Number),
    key("memory_mb", Type::Whole),
    key("storage_mb", Type::Whole),
    key("memory", Type::Size),
    key("storage", Type::Size),
    key("gpus", Type::Whole),
    key("gpu_types", Type::Texts),
    key("tpu", Type::Table(TPU)),
    key("os", Type::Word(&["linux", "windows"])),
    key("build_timeout_sec", Type::Seconds),
    key("skills_dir", Type::Text),
    key("mcp_servers", Type::Tables(MCP)),
    key("healthcheck", Type::Table(HEALTHCHECK)),
    key("allow_internet", Type::Flag),
];

const TPU: &[Key] = &[
    needed("type", Type::NotEmpty),
    needed("topology", Type::NotEmpty),
];

const MCP: &[Key] = &[
    needed("name", Type::Text),
    key(
        "transport",
        Type::Word(&["sse", "streamable-http", "http", "stdio"]),
    ),
    key("url", Type::Text),
    key("command", Type::Text),
    key("args", Type::Texts),
    key("headers", Type::Env),
];

const HEALTHCHECK: &[Key] = &[
    needed("command", Type::Text),
    key("interval_sec", Type::Seconds),
    key("timeout_sec", Type::Seconds),
    key("start_period_sec", Type::Seconds),
    key("start_interval_sec", Type::Seconds),
    key("retries", Type::Whole),
];

const AGENT: &[Key] = &[
    key("timeout_sec", Type::Seconds),
    key("user", Type::TextOrInt),
    key("network_mode", NETWORK),
    key("allowed_hosts", Type::Texts),
];

const VERIFIER: &[Key] = &[
    key("timeout_sec", Type::Seconds),
    key("env", Type::Env),
    key("user", Type::TextOrInt),
    key("network_mode", NETWORK),
    key("allowed_hosts", Type::Texts),
    key("environment_mode", Type::Word(&["shared", "separate"])),
    key("environment", Type::Table(ENVIRONMENT)),
    key("collect", Type::Tables(COLLECT)),
];

const COLLECT: &[Key] = &[
    needed("command", Type::Text),
    key("service", Type::Text),
    key("timeout_sec", Type::Seconds),
    key("user", Type::TextOrInt),
];

const SOLUTION: &[Key] = &[key("env", Type::Env)];

const STEP: &[Key] = &[
    needed("name", Type::StepName),
    key("agent", Type::Table(AGENT)),
    key("verifier", Type::Table(VERIFIER)),
    key("min_reward", Type::Reward),
    key("healthcheck", Type::Table(HEALTHCHECK)),
    key("artifacts", Type::Artifacts),
];

/// What Harbor's loader refuses in a `task.toml`, and amounts that are none: sentences that name the
/// field, each with how to mend it.
pub(crate) fn faults(root: &dyn TableLike) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    check(root, |_, _, what, fix| faults.push((what, fix)));
    faults
}

/// A number, also one that is written as text, as Harbor's reader takes it.
pub(crate) fn number(item: &Item) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "seconds, amounts and rewards")]
    let whole = || item.as_integer().map(|number| number as f64);
    let text = || item.as_str()?.trim().parse().ok();
    item.as_float().or_else(whole).or_else(text)
}

/// A whole number, in the same way.
fn whole(item: &Item) -> Option<f64> {
    // Where numbers of TOML end.
    const END: f64 = 9.3e18;
    let fraction = item
        .as_str()
        .is_some_and(|text| text.contains(['.', 'e', 'E']));
    let whole = |number: &f64| number.fract() == 0.0 && number.abs() < END && !fraction;
    number(item).filter(whole)
}

/// Yes or no, in all the ways that Harbor's reader takes.
pub(crate) fn flag(item: &Item) -> Option<bool> {
    const WORDS: [(&str, bool); 12] = [
        ("true", true),
        ("yes", true),
        ("on", true),
        ("t", true),
        ("y", true),
        ("1", true),
        ("false", false),
        ("no", false),
        ("off", false),
        ("f", false),
        ("n", false),
        ("0", false),
    ];
    let text = || {
        let text = item.as_str()?.to_lowercase();
        WORDS
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, yes)| *yes)
    };
    let digit = || match number(item) {
        Some(0.0) => Some(false),
        Some(1.0) => Some(true),
        _ => None,
    };
    match item.as_str() {
        Some(_) => text(),
        None => item.as_bool().or_else(digit),
    }
}

/// `4G`, `512M`, `2048K` in MiB, cut as Harbor cuts them.
pub(crate) fn mebibytes(text: &str) -> Option<f64> {
    let text = text.trim().to_ascii_uppercase();
    let units = [("G", 1024.0), ("M", 1.0), ("K", 1.0 / 1024.0)];
    let (digits, unit) = units
        .into_iter()
        .find_map(|(letter, unit)| Some((text.strip_suffix(letter)?, unit)))?;
    let number: f64 = digits.trim().parse().ok()?;
    number.is_finite().then(|| (number * unit).trunc())
}

/// Tells everything for which Harbor's loader refuses the file.
pub(super) fn check(
    root: &dyn TableLike,
    mut tell: impl FnMut(String, Option<Range<usize>>, String, String),
) {
    table(root, ROOT, "", None, &mut tell);
    step_names(root, &mut tell);
    verifier(root, "verifier", &mut tell);
    for (index, step) in tables(root.get("steps")).into_iter().enumerate() {
        verifier(step, &format!("steps[{index}].verifier"), &mut tell);
        hosts(
            step.get("agent"),
            &format!("steps[{index}].agent"),
            true,
            &mut tell,
        );
    }
    hosts(root.get("agent"), "agent", true, &mut tell);
    hosts(root.get("environment"), "environment", false, &mut tell);
}

/// Tells keys that Harbor ignores although they were meant for it: typing mistakes, and keys of the
/// file's top that stand below a table's head.
pub(super) fn misplaced(
    root: &dyn TableLike,
    mut tell: impl FnMut(String, Option<Range<usize>>, String, String),
) {
    unknown(root, ROOT, "", &mut tell);
}

fn unknown(table: &dyn TableLike, keys: &'static [Key], path: &str, tell: &mut Tell<'_>) {
    for (name, item) in table.iter() {
        let place = join(path, name);
        if let Some(key) = keys.iter().find(|key| key.name == name) {
            match key.kind {
                Type::Table(keys) => {
                    if let Some(inner) = item.as_table_like() {
                        unknown(inner, keys, &place, tell);
                    }
                }
                Type::Tables(keys) => {
                    for (index, inner) in tables(Some(item)).into_iter().enumerate() {
                        unknown(inner, keys, &format!("{place}[{index}]"), tell);
                    }
                }
                _ => {}
            }
            continue;
        }
        let scalar =
            |key: &&Key| !matches!(key.kind, Type::Table(_) | Type::Tables(_) | Type::Free);
        let of_root = !path.is_empty() && ROOT.iter().filter(scalar).any(|key| key.name == name);
        let help = if of_root {
            format!(
                "Move `{name}` above the first [table]: TOML counts it to the table that it stands in."
            )
        } else {
            match nearest(name, keys.iter().map(|key| key.name)) {
                Some(near) => format!("Did you mean `{near}`?"),
                None => continue,
            }
        };
        let range = table.get_key_value(name).and_then(|(key, _)| key.span());
        tell(
            place.clone(),
            range,
            format!("`{place}` is not a known key, so it has no effect."),
            help,
        );
    }
}

fn table(
    table: &dyn TableLike,
    keys: &'static [Key],
    path: &str,
    span: Option<&Range<usize>>,
    tell: &mut Tell<'_>,
) {
    for key in keys {
        let place = join(path, key.name);
        match table.get(key.name) {
            Some(item) if !item.is_none() => value(item, key.kind, &place, tell),
            _ if key.needed => tell(
                place.clone(),
                span.cloned(),
                format!("`{place}` is missing."),
                format!("Add `{}`.", key.name),
            ),
            _ => {}
        }
    }
}

fn value(item: &Item, kind: Type, path: &str, tell: &mut Tell<'_>) {
    let mut wrong = |what: &str| {
        tell(
            path.to_owned(),
            item.span(),
            format!("`{path}` must be {what}."),
            format!("Write {what}."),
        );
    };
    let text = item.as_str();
    match kind {
        Type::Text if text.is_none() => wrong("a text in quotes"),
        Type::NotEmpty if text.is_none_or(str::is_empty) => wrong("a text that is not empty"),
        Type::TextOrInt if text.is_none() && item.as_integer().is_none() => {
            wrong("a text or a whole number");
        }
        Type::Whole => {
            if whole(item).is_none() {
                wrong("a whole number");
            }
        }
        Type::Number if !number(item).is_some_and(f64::is_finite) => wrong("a number"),
        Type::Seconds if number(item).is_none_or(f64::is_nan) => wrong("a number of seconds"),
        Type::Size if text.and_then(mebibytes).is_none() => wrong("a size like \"4G\" or \"512M\""),
        Type::Flag if flag(item).is_none() => wrong("true or false"),
        Type::Texts => {
            let texts = item
                .as_array()
                .is_some_and(|list| list.iter().all(|value| value.as_str().is_some()));
            if !texts {
                wrong("a list of texts");
            }
        }
        Type::Word(words) => {
            let known = text.is_some_and(|text| {
                words.contains(&text)
                    || words.contains(&"windows") && words.contains(&text.to_lowercase().as_str())
            });
            if !known {
                let list = words
                    .iter()
                    .map(|word| format!("\"{word}\""))
                    .collect::<Vec<_>>();
                wrong(&format!("one of {}", list.join(", ")));
            }
        }
        Type::Env => match item.as_table_like() {
            None => wrong("a table of texts"),
            Some(table) => {
                for (name, value) in table.iter() {
                    if value.as_str().is_none() {
                        let place = join(path, name);
                        tell(
                            place.clone(),
                            value.span(),
                            format!("`{place}` must be a text in quotes."),
                            "Put the value in quotes.".to_owned(),
                        );
                    }
                }
            }
        },
        Type::Free if item.as_table_like().is_none() => wrong("a table"),
        Type::Table(keys) => match item.as_table_like() {
            None => wrong("a table"),
            Some(inner) => table(inner, keys, path, item.span().as_ref(), tell),
        },
        Type::Tables(keys) => {
            let count = match item {
                Item::ArrayOfTables(list) => list.len(),
                Item::Value(Value::Array(list)) => list.len(),
                _ => usize::MAX,
            };
            let list = tables(Some(item));
            if list.len() == count {
                for (index, inner) in list.into_iter().enumerate() {
                    table(
                        inner,
                        keys,
                        &format!("{path}[{index}]"),
                        item.span().as_ref(),
                        tell,
                    );
                }
            } else {
                wrong("a list of tables");
            }
        }
        Type::Reward => {
            let fine = number(item).is_some()
                || item
                    .as_table_like()
                    .is_some_and(|table| table.iter().all(|(_, value)| number(value).is_some()));
            if !fine {
                wrong("a number, or numbers by name");
            }
        }
        Type::Artifacts => {
            let fine = match item {
                Item::ArrayOfTables(list) => list
                    .iter()
                    .all(|table| table.get("source").is_some_and(Item::is_str)),
                Item::Value(Value::Array(list)) => list.iter().all(|value| {
                    value.as_str().is_some()
                        || value
                            .as_inline_table()
                            .is_some_and(|table| table.get("source").is_some_and(Value::is_str))
                }),
                _ => false,
            };
            if !fine {
                wrong("a list of paths, or of tables with a `source`");
            }
        }
        Type::TaskName => match text {
            None => wrong("a text in quotes"),
            Some(name) => {
                if !is_task_name(name) {
                    tell(
                        path.to_owned(),
                        item.span(),
                        format!("The task can not be called \"{name}\": a name is ORG/NAME, in letters, digits, dots, dashes and underscores."),
                        "Write it like \"my-org/my-task\"; each part starts with a letter or digit, and there is no `..`.".to_owned(),
                    );
                }
            }
        },
        Type::StepName => match text.map(step_name) {
            None => wrong("a text in quotes"),
            Some(Err(why)) => tell(
                path.to_owned(),
                item.span(),
                format!(
                    "A step can not be called \"{}\": {why}.",
                    text.unwrap_or_default()
                ),
                "Use letters, digits, dots, dashes and underscores.".to_owned(),
            ),
            Some(Ok(())) => {}
        },
        Type::Text
        | Type::NotEmpty
        | Type::TextOrInt
        | Type::Number
        | Type::Seconds
        | Type::Size
        | Type::Flag
        | Type::Free => {}
    }
}

/// `ORG/NAME` (harbor.md 5).
fn is_task_name(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-'))
    };
    !name.contains("..")
        && name
            .split_once('/')
            .is_some_and(|(org, name)| part(org) && part(name))
}

/// Why a step can't have this name (harbor.md 2).
pub(super) fn step_name(name: &str) -> Result<(), &'static str> {
    const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];
    let stem = name
        .split('.')
        .next()
        .unwrap_or(name)
        .trim_end()
        .to_lowercase();
    let numbered = |prefix: &str| {
        stem.strip_prefix(prefix).is_some_and(|rest| {
            let mut letters = rest.chars();
            matches!(letters.next(), Some('1'..='9' | '¹' | '²' | '³')) && letters.next().is_none()
        })
    };
    if name.trim().is_empty() {
        Err("it is blank")
    } else if matches!(name, "." | "..") {
        Err("it names a directory itself")
    } else if name.ends_with(['.', ' ']) {
        Err("it ends with a dot or a space")
    } else if name
        .chars()
        .any(|letter| "<>:\"/\\|?*".contains(letter) || letter.is_control())
    {
        Err("it has a character that file names can not have")
    } else if DEVICES.contains(&stem.as_str()) || numbered("com") || numbered("lpt") {
        Err("it is the name of a device on Windows")
    } else if name.len() > 255 {
        Err("it is longer than 255 bytes")
    } else {
        Ok(())
    }
}

/// Step names are unique without regard to letter case.
fn step_names(root: &dyn TableLike, tell: &mut Tell<'_>) {
    let mut seen = BTreeSet::new();
    for (index, step) in tables(root.get("steps")).into_iter().enumerate() {
        let Some(item) = step.get("name") else {
            continue;
        };
        let Some(name) = item.as_str() else { continue };
        let folded: String = name.nfc().flat_map(char::to_lowercase).collect();
        if !seen.insert(folded) {
            tell(
                format!("steps[{index}].name"),
                item.span(),
                format!("Two steps are called \"{name}\"."),
                "Rename one of them; letter case does not count.".to_owned(),
            );
        }
    }
}

fn verifier(table: &dyn TableLike, path: &str, tell: &mut Tell<'_>) {
    let Some(item) = table.get("verifier") else {
        return;
    };
    let Some(verifier) = item.as_table_like() else {
        return;
    };
    let mode = verifier.get("environment_mode");
    if verifier.get("environment").is_some() && mode.and_then(Item::as_str) == Some("shared") {
        tell(
            format!("{path}.environment_mode"),
            mode.and_then(Item::span),
            "A verifier with an environment of its own can not be \"shared\".".to_owned(),
            "Write \"separate\", or remove [verifier.environment].".to_owned(),
        );
    }
    hosts(Some(item), path, true, tell);
    hosts(
        verifier.get("environment"),
        &format!("{path}.environment"),
        false,
        tell,
    );
}

/// `allowed_hosts` goes with `network_mode = "allowlist"` only.
fn hosts(item: Option<&Item>, path: &str, even_empty: bool, tell: &mut Tell<'_>) {
    let Some(table) = item.and_then(Item::as_table_like) else {
        return;
    };
    let Some(hosts) = table.get("allowed_hosts") else {
        return;
    };
    let empty = hosts.as_array().is_some_and(toml_edit::Array::is_empty);
    let allowlist = table.get("network_mode").and_then(Item::as_str) == Some("allowlist");
    if !allowlist && (even_empty || !empty) {
        tell(
            format!("{path}.allowed_hosts"),
            hosts.span(),
            format!("`{path}.allowed_hosts` needs network_mode = \"allowlist\"."),
            "Add it, or remove the hosts.".to_owned(),
        );
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}
