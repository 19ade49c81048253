//! Typed reading of mappings: every finding in one pass, each with its place, config path and fix.
//!
//! A [`Value`] is a node that knows where it stands (`execution.steps[0].timeout`); [`Fields`] is a
//! mapping that remembers which keys were asked for. Getters tell what is wrong and give `None`, so
//! that reading goes on. `null` counts as absent. Refuses to know which keys exist: callers name
//! them.
//!
//! ```ignore
//! let mut top = Fields::root(&document, diags)?;
//! let name = top.str("name", diags);
//! if let Some(mut execution) = top.fields("execution", diags) {
//!     let mode = execution.choice("mode", &[("case", Mode::Case), ("batch", Mode::Batch)], diags);
//!     for step in execution.items("steps", diags) {
//!         let Some(mut step) = step.fields(diags) else { continue };
//!         let id = step.need("id", diags).and_then(|id| id.str(diags));
//!         step.finish(diags);
//!     }
//!     execution.finish(diags);
//! }
//! top.finish_open();
//! ```

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::{Document, Node, Yaml};
use crate::diag::{Diagnostic, Diagnostics, Place, Rule, Source};

/// A node and its config path.
#[derive(Debug, Clone)]
pub struct Value<'d> {
    source: &'d Arc<Source>,
    node: &'d Node,
    path: String,
}

impl<'d> Value<'d> {
    /// The top value of `document`; its path is empty.
    pub fn root(document: &'d Document) -> Self {
        Self {
            source: &document.source,
            node: &document.root,
            path: String::new(),
        }
    }

    /// The value itself.
    pub fn yaml(&self) -> &'d Yaml {
        &self.node.value
    }

    /// The value with its bytes.
    pub fn node(&self) -> &'d Node {
        self.node
    }

    /// The config path with indices; empty for the top value.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Where it stands; of something that spans lines, the first line.
    pub fn place(&self) -> Place {
        place(self.source, &self.node.span)
    }

    /// A finding about this value, with its place and path.
    pub fn finding(&self, rule: Rule, message: impl Into<String>) -> Diagnostic {
        finding(rule, message, &self.place(), &self.path)
    }

    /// The `wrong-type` finding: it must be `expected` (`a list`).
    pub fn wrong_type(&self, expected: &str) -> Diagnostic {
        self.finding(
            Rule::WrongType,
            format!(
                "{} must be {expected}, not {}.",
                self.title(),
                kind(self.yaml())
            ),
        )
        .help(format!("Write {expected} here."))
    }

    /// A string. Numbers, booleans and dates are none; the help says to put them in quotes.
    pub fn str(&self, diags: &mut Diagnostics) -> Option<&'d str> {
        if let Yaml::Str(text) = self.yaml() {
            return Some(text);
        }
        let finding = self.wrong_type("a string");
        diags.push(match self.written() {
            Some(written) if is_scalar(self.yaml()) => {
                finding.help(format!("Put it in quotes: \"{written}\""))
            }
            _ => finding,
        });
        None
    }

    /// `true` or `false`, in any of YAML 1.1's spellings.
    pub fn bool(&self, diags: &mut Diagnostics) -> Option<bool> {
        if let Yaml::Bool(value) = self.yaml() {
            return Some(*value);
        }
        diags.push(
            self.wrong_type("true or false")
                .help("Write true or false, without quotes."),
        );
        None
    }

    /// A whole number. A boolean is none, although Python says so.
    pub fn int(&self, diags: &mut Diagnostics) -> Option<i64> {
        if let Yaml::Int(value) = self.yaml() {
            let small = i64::try_from(value).ok();
            if small.is_none() {
                diags.push(self.out_of_range());
            }
            return small;
        }
        diags.push(
            self.wrong_type("a whole number")
                .help("Write a whole number, without quotes."),
        );
        None
    }

    /// A finite number.
    pub fn number(&self, diags: &mut Diagnostics) -> Option<f64> {
        let value = match self.yaml() {
            // Through text, which rounds as Python does and needs no trait of another crate.
            Yaml::Int(value) => value.to_string().parse().unwrap_or(f64::INFINITY),
            Yaml::Float(value) => *value,
            _ => {
                diags.push(
                    self.wrong_type("a number")
                        .help("Write a number, without quotes; an exponent needs a dot and a sign, as in 1.0e+3."),
                );
                return None;
            }
        };
        if value.is_finite() {
            return Some(value);
        }
        diags.push(self.out_of_range());
        None
    }

    /// One of the names of `choices`.
    pub fn choice<T: Clone>(&self, choices: &[(&str, T)], diags: &mut Diagnostics) -> Option<T> {
        let names = || choices.iter().map(|(name, _)| *name);
        let Yaml::Str(text) = self.yaml() else {
            diags.push(
                self.wrong_type("a string")
                    .help(format!("Write one of {}.", listing(names()))),
            );
            return None;
        };
        if let Some((_, choice)) = choices.iter().find(|(name, _)| **name == **text) {
            return Some(choice.clone());
        }
        let listed = listing(names());
        let help = match nearest(text, names()) {
            Some(name) => format!("Did you mean `{name}`? It can be {listed}."),
            None => format!("Write one of {listed}."),
        };
        diags.push(
            self.finding(
                Rule::BadValue,
                format!("{} can not be `{text}`.", self.title()),
            )
            .help(help),
        );
        None
    }

    /// The items of a list.
    pub fn items(&self, diags: &mut Diagnostics) -> Option<Vec<Self>> {
        let Yaml::Seq(items) = self.yaml() else {
            let finding = self.wrong_type("a list");
            diags.push(match self.written() {
                Some(written) if is_scalar(self.yaml()) => {
                    finding.help(format!("Write it as a list: [{written}]"))
                }
                _ => finding.help("Write a list: a line for each item, starting with a dash."),
            });
            return None;
        };
        Some(
            items
                .iter()
                .enumerate()
                .map(|(index, node)| Self {
                    source: self.source,
                    node,
                    path: format!("{}[{index}]", self.path),
                })
                .collect(),
        )
    }

    /// Names and values of a mapping with free keys (`env`, `thresholds`), null values included.
    /// Keys that are no strings are told and left out.
    pub fn entries(&self, diags: &mut Diagnostics) -> Option<Vec<(&'d str, Self)>> {
        let entries = self.mapping(diags)?;
        let mut found = Vec::with_capacity(entries.len());
        for (key, node) in entries {
            if let Yaml::Str(name) = &key.value {
                let path = join(&self.path, name);
                let value = Self {
                    source: self.source,
                    node,
                    path,
                };
                found.push((&**name, value));
            } else {
                diags.push(non_string_key(
                    Rule::WrongType,
                    self.source,
                    key,
                    &self.path,
                ));
            }
        }
        Some(found)
    }

    /// The mapping, to be read key by key.
    pub fn fields(&self, diags: &mut Diagnostics) -> Option<Fields<'d>> {
        let entries = self.mapping(diags)?;
        Some(Fields {
            source: self.source,
            span: self.node.span.clone(),
            path: self.path.clone(),
            entries,
            asked: BTreeSet::new(),
        })
    }

    fn mapping(&self, diags: &mut Diagnostics) -> Option<&'d [(Node, Node)]> {
        if let Yaml::Map(entries) = self.yaml() {
            return Some(entries);
        }
        let expected = "a mapping";
        diags.push(
            self.wrong_type(expected)
                .help("Write a mapping: lines of `key: value`."),
        );
        None
    }

    fn out_of_range(&self) -> Diagnostic {
        self.finding(
            Rule::BadValue,
            format!("{} is too large a number.", self.title()),
        )
        .help("Write a smaller number.")
    }

    /// How a message names it.
    fn title(&self) -> String {
        if self.path.is_empty() {
            format!("`{}`", self.source.name)
        } else {
            format!("`{}`", self.path)
        }
    }

    /// What the user wrote, if it is short, plain and on one line.
    fn written(&self) -> Option<&'d str> {
        let written = self.source.text.get(self.node.span.clone())?;
        let plain = |letter: char| letter != '"' && letter != '\\' && !letter.is_control();
        (!written.is_empty() && written.len() <= 60 && written.chars().all(plain))
            .then_some(written)
    }
}

/// A mapping that is read key by key.
#[derive(Debug)]
pub struct Fields<'d> {
    source: &'d Arc<Source>,
    span: Range<usize>,
    path: String,
    entries: &'d [(Node, Node)],
    asked: BTreeSet<&'d str>,
}

impl<'d> Fields<'d> {
    /// The top mapping of `document`; an empty document is an empty mapping.
    pub fn root(document: &'d Document, diags: &mut Diagnostics) -> Option<Self> {
        if document.root.value == Yaml::Null {
            return Some(Self {
                source: &document.source,
                span: 0..0,
                path: String::new(),
                entries: &[],
                asked: BTreeSet::new(),
            });
        }
        Value::root(document).fields(diags)
    }

    /// The config path of the mapping; empty at the top.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The config path of `key` in it.
    pub fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// Where the mapping starts.
    pub fn place(&self) -> Place {
        place(self.source, &self.span)
    }

    /// A finding about the mapping, with its place and path.
    pub fn finding(&self, rule: Rule, message: impl Into<String>) -> Diagnostic {
        finding(rule, message, &self.place(), &self.path)
    }

    /// The value of `key`, even when it is null.
    pub fn present(&mut self, key: &'static str) -> Option<Value<'d>> {
        self.asked.insert(key);
        let (_, node) = self
            .entries
            .iter()
            .find(|(name, _)| matches!(&name.value, Yaml::Str(text) if **text == *key))?;
        Some(Value {
            source: self.source,
            node,
            path: join(&self.path, key),
        })
    }

    /// The value of `key`, unless it is absent or null.
    pub fn get(&mut self, key: &'static str) -> Option<Value<'d>> {
        self.present(key)
            .filter(|value| *value.yaml() != Yaml::Null)
    }

    /// The value of `key`; absent or null is told as `missing-key`.
    pub fn need(&mut self, key: &'static str, diags: &mut Diagnostics) -> Option<Value<'d>> {
        let found = self.get(key);
        if found.is_none() {
            let path = self.path_of(key);
            diags.push(
                finding(
                    Rule::MissingKey,
                    format!("`{path}` is missing."),
                    &self.place(),
                    &path,
                )
                .help(format!("Add `{key}`.")),
            );
        }
        found
    }

    /// See [`Value::str`].
    pub fn str(&mut self, key: &'static str, diags: &mut Diagnostics) -> Option<&'d str> {
        self.get(key)?.str(diags)
    }

    /// See [`Value::bool`].
    pub fn bool(&mut self, key: &'static str, diags: &mut Diagnostics) -> Option<bool> {
        self.get(key)?.bool(diags)
    }

    /// See [`Value::int`].
    pub fn int(&mut self, key: &'static str, diags: &mut Diagnostics) -> Option<i64> {
        self.get(key)?.int(diags)
    }

    /// See [`Value::number`].
    pub fn number(&mut self, key: &'static str, diags: &mut Diagnostics) -> Option<f64> {
        self.get(key)?.number(diags)
    }

    /// See [`Value::choice`].
    pub fn choice<T: Clone>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
        diags: &mut Diagnostics,
    ) -> Option<T> {
        self.get(key)?.choice(choices, diags)
    }

    /// See [`Value::fields`].
    pub fn fields(&mut self, key: &'static str, diags: &mut Diagnostics) -> Option<Self> {
        self.get(key)?.fields(diags)
    }

    /// The items of a list; none when it is absent or no list.
    pub fn items(&mut self, key: &'static str, diags: &mut Diagnostics) -> Vec<Value<'d>> {
        self.get(key)
            .and_then(|value| value.items(diags))
            .unwrap_or_default()
    }

    /// The entries of a mapping with free keys; none when it is absent or no mapping.
    pub fn entries(
        &mut self,
        key: &'static str,
        diags: &mut Diagnostics,
    ) -> Vec<(&'d str, Value<'d>)> {
        self.get(key)
            .and_then(|value| value.entries(diags))
            .unwrap_or_default()
    }

    /// The key that was probably meant to be `key`, when `key` is absent. It counts as known from
    /// then on: one mistake is told once. Ask for what else the mapping may have before.
    pub fn meant(&mut self, key: &'static str) -> Option<&'d str> {
        let found = self.entries.iter().find_map(|(name, _)| {
            let name = name.value.as_str()?;
            (name != key
                && !self.asked.contains(name)
                && nearest(name, std::iter::once(key)).is_some())
            .then_some(name)
        })?;
        self.asked.insert(found);
        Some(found)
    }

    /// Counts `keys` as known although nobody reads them here.
    pub fn known(&mut self, keys: &[&'static str]) {
        self.asked.extend(keys);
    }

    /// Warns of the keys that nobody asked for (policy 11).
    pub fn finish(self, diags: &mut Diagnostics) {
        for (key, _) in self.entries {
            let Yaml::Str(name) = &key.value else {
                diags.push(non_string_key(
                    Rule::UnknownKey,
                    self.source,
                    key,
                    &self.path,
                ));
                continue;
            };
            if self.asked.contains(&**name) {
                continue;
            }
            let path = join(&self.path, name);
            let known = || self.asked.iter().copied();
            let help = match nearest(name, known()) {
                Some(near) => format!("Did you mean `{near}`?"),
                None if self.asked.is_empty() => "Remove it.".to_owned(),
                None => format!("Remove it; the keys known here are {}.", listing(known())),
            };
            diags.push(
                finding(
                    Rule::UnknownKey,
                    format!("`{path}` is not a known key, so it has no effect."),
                    &place(self.source, &key.span),
                    &path,
                )
                .help(help),
            );
        }
    }

    /// Leaves the keys that nobody asked for to other tools (policy 11).
    pub fn finish_open(self) {}
}

/// What a message calls a value of this type.
pub fn kind(value: &Yaml) -> &'static str {
    match value {
        Yaml::Null => "null",
        Yaml::Bool(_) => "true or false",
        Yaml::Int(_) => "a whole number",
        Yaml::Float(_) => "a number",
        Yaml::Str(_) => "a string",
        Yaml::Date(_) => "a date",
        Yaml::DateTime(_) => "a time stamp",
        Yaml::Binary(_) => "binary data",
        Yaml::Seq(_) => "a list",
        Yaml::Map(_) => "a mapping",
        Yaml::Set(_) => "a set",
        Yaml::Pairs(_) => "a list of pairs",
    }
}

/// The name of `known` that `name` was probably meant to be.
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    // Longer keys than that are nobody's typing, and the distance costs the product of the lengths.
    if name.len() > 100 {
        return None;
    }
    let fold = |text: &str| text.to_lowercase().replace('-', "_");
    let wanted = fold(name);
    known
        .map(|key| (strsim::damerau_levenshtein(&wanted, &fold(key)), key))
        .filter(|(distance, key)| *distance <= 2.min(key.chars().count().max(2) / 2))
        .min()
        .map(|(_, key)| key)
}

fn is_scalar(value: &Yaml) -> bool {
    !matches!(
        value,
        Yaml::Seq(_) | Yaml::Map(_) | Yaml::Set(_) | Yaml::Pairs(_)
    )
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn listing<'k>(names: impl Iterator<Item = &'k str>) -> String {
    names
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn place(source: &Arc<Source>, span: &Range<usize>) -> Place {
    let line = source.text.get(span.clone()).unwrap_or_default();
    let length = line.find(['\n', '\r']).unwrap_or(line.len());
    Place {
        source: Arc::clone(source),
        range: span.start..span.start.saturating_add(length),
    }
}

fn finding(rule: Rule, message: impl Into<String>, place: &Place, path: &str) -> Diagnostic {
    let diagnostic = Diagnostic::new(rule, message).at_place(Some(place));
    if path.is_empty() {
        diagnostic
    } else {
        diagnostic.field(path)
    }
}

fn non_string_key(rule: Rule, source: &Arc<Source>, key: &Node, path: &str) -> Diagnostic {
    let place = place(source, &key.span);
    let written = source.text.get(place.range.clone()).unwrap_or_default();
    let within = if path.is_empty() {
        String::new()
    } else {
        format!(" in `{path}`")
    };
    finding(
        rule,
        format!(
            "The key `{written}`{within} is {}, not a string.",
            kind(&key.value)
        ),
        &place,
        path,
    )
    .help(format!("Put it in quotes: \"{written}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::Severity;
    use crate::yaml::parse;

    fn document(text: &str) -> Document {
        let source = Source::new("eval.yaml", text);
        parse(Arc::new(source)).unwrap()
    }

    /// Rule, field, underlined text, message and help of each finding.
    fn told(diags: &Diagnostics) -> Vec<String> {
        diags
            .iter()
            .map(|found| {
                let place = found.place.as_ref().unwrap();
                format!(
                    "{} {} [{}] {} {}",
                    found.rule.name(),
                    found.field.as_deref().unwrap_or("-"),
                    &place.source.text[place.range.clone()],
                    found.message,
                    found.help
                )
            })
            .collect()
    }

    #[test]
    fn what_fits_is_read_and_null_is_absent() {
        let document = document(
            "name: n\nn: 5\nf: 1\ng: 2.5\nb: off\nnothing: ~\nmode: batch\nlist: [a, b]\nenv: {B: x, A: ~}\n",
        );
        let mut diags = Diagnostics::default();
        let mut top = Fields::root(&document, &mut diags).unwrap();
        assert_eq!(top.str("name", &mut diags), Some("n"));
        assert_eq!(top.int("n", &mut diags), Some(5));
        assert_eq!(top.number("f", &mut diags), Some(1.0));
        assert_eq!(top.number("g", &mut diags), Some(2.5));
        assert_eq!(top.bool("b", &mut diags), Some(false));
        assert_eq!(top.str("nothing", &mut diags), None);
        assert!(top.present("nothing").is_some());
        assert_eq!(
            top.choice("mode", &[("case", 1), ("batch", 2)], &mut diags),
            Some(2)
        );
        let list: Vec<String> = top
            .items("list", &mut diags)
            .iter()
            .map(|item| format!("{}={}", item.path(), item.str(&mut diags).unwrap()))
            .collect();
        assert_eq!(list, ["list[0]=a", "list[1]=b"]);
        let env = top.entries("env", &mut diags);
        assert_eq!((env[0].0, env[0].1.path()), ("B", "env.B"));
        assert_eq!((env[1].0, env[1].1.yaml()), ("A", &Yaml::Null));
        assert!(top.items("absent", &mut diags).is_empty());
        top.finish(&mut diags);
        assert!(diags.is_empty(), "{:?}", told(&diags));
        let empty = self::document("# nothing\n");
        let mut top = Fields::root(&empty, &mut diags).unwrap();
        assert!(top.get("name").is_none());
        top.finish(&mut diags);
        assert!(diags.is_empty());
    }

    #[test]
    fn everything_wrong_is_told_at_once_with_place_path_and_fix() {
        let document = document(
            "name: 010\ndescription: [x]\nexecution:\n  mode: bacth\n  timeout: 1e3\n  budget: .inf\n  big: 99999999999999999999\n  flag: 'true'\n  steps:\n    - ide: é\n    - 5\n  files: a.md\n  env: x\n  on: 1\n  zebra: 2\n",
        );
        let mut diags = Diagnostics::default();
        let mut top = Fields::root(&document, &mut diags).unwrap();
        top.str("name", &mut diags);
        top.str("description", &mut diags);
        let mut execution = top.fields("execution", &mut diags).unwrap();
        execution.choice("mode", &[("case", 1), ("batch", 2)], &mut diags);
        execution.number("timeout", &mut diags);
        execution.number("budget", &mut diags);
        execution.int("big", &mut diags);
        execution.bool("flag", &mut diags);
        for step in execution.items("steps", &mut diags) {
            let Some(mut step) = step.fields(&mut diags) else {
                continue;
            };
            assert!(step.need("id", &mut diags).is_none());
            step.finish(&mut diags);
        }
        execution.items("files", &mut diags);
        execution.entries("env", &mut diags);
        execution.known(&["later"]);
        execution.finish(&mut diags);
        top.finish_open();
        let expected = [
            "wrong-type name [010] `name` must be a string, not a whole number. Put it in quotes: \"010\"",
            "wrong-type description [[x]] `description` must be a string, not a list. Write a string here.",
            "bad-value execution.mode [bacth] `execution.mode` can not be `bacth`. Did you mean `batch`? It can be `case`, `batch`.",
            "wrong-type execution.timeout [1e3] `execution.timeout` must be a number, not a string. Write a number, without quotes; an exponent needs a dot and a sign, as in 1.0e+3.",
            "bad-value execution.budget [.inf] `execution.budget` is too large a number. Write a smaller number.",
            "bad-value execution.big [99999999999999999999] `execution.big` is too large a number. Write a smaller number.",
            "wrong-type execution.flag ['true'] `execution.flag` must be true or false, not a string. Write true or false, without quotes.",
            "missing-key execution.steps[0].id [ide: é] `execution.steps[0].id` is missing. Add `id`.",
            "unknown-key execution.steps[0].ide [ide] `execution.steps[0].ide` is not a known key, so it has no effect. Did you mean `id`?",
            "wrong-type execution.steps[1] [5] `execution.steps[1]` must be a mapping, not a whole number. Write a mapping: lines of `key: value`.",
            "wrong-type execution.files [a.md] `execution.files` must be a list, not a string. Write it as a list: [a.md]",
            "wrong-type execution.env [x] `execution.env` must be a mapping, not a string. Write a mapping: lines of `key: value`.",
            "unknown-key execution [on] The key `on` in `execution` is true or false, not a string. Put it in quotes: \"on\"",
            "unknown-key execution.zebra [zebra] `execution.zebra` is not a known key, so it has no effect. Remove it; the keys known here are `big`, `budget`, `env`, `files`, `flag`, `later`, `mode`, `steps`, `timeout`.",
        ];
        assert_eq!(told(&diags), expected);
        assert_eq!(diags.count(Severity::Warning), 3);
    }

    #[test]
    fn a_top_that_is_no_mapping_names_the_file() {
        let mut diags = Diagnostics::default();
        assert!(Fields::root(&document("- a\n"), &mut diags).is_none());
        assert_eq!(
            told(&diags),
            [
                "wrong-type - [- a] `eval.yaml` must be a mapping, not a list. Write a mapping: lines of `key: value`."
            ]
        );
    }

    #[test]
    fn the_nearest_name_is_a_near_one() {
        let keys = ["path", "workspace", "schema", "id"];
        let near = |name| nearest(name, keys.iter().copied());
        assert_eq!(near("pth"), Some("path"));
        assert_eq!(near("Path"), Some("path"));
        assert_eq!(near("work-space"), Some("workspace"));
        assert_eq!(near("scehma"), Some("schema"));
        assert_eq!(near("di"), Some("id"));
        assert_eq!(near("x"), None);
        assert_eq!(near("files"), None);
        assert_eq!(near(&"path".repeat(1000)), None);
    }
}
