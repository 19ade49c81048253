//! `task.toml`: what Harbor reads first (harbor.md 2).
//!
//! Owns the order and the spelling of its fields. Refuses to know where the values come from.
//! Invariant: the text is a function of the fields; no time, host, user or tool version is in it.

use std::collections::BTreeMap;

use toml_edit::{Array, Key, Value};

use super::digest::one_line;
use crate::digest::TreeId;

/// The newest schema that Harbor 0.25 knows.
const SCHEMA: &str = "1.4";
/// The format of casepack's packages; changes when packages of the same case change.
const FORMAT: i64 = 1;
/// Characters of the longest description (agent-eval-harness 4.1).
const DESCRIPTION_MAX: usize = 120;

/// The fields of a `task.toml`.
pub(super) struct TaskToml<'a> {
    pub(super) name: &'a str,
    pub(super) description: &'a str,
    pub(super) dataset: &'a str,
    pub(super) case: &'a str,
    pub(super) judge_mode: &'a str,
    /// Digest of the workspace view.
    pub(super) workspace: TreeId,
    /// More metadata of the case.
    pub(super) metadata: &'a BTreeMap<String, String>,
    /// `None`: the package has a Dockerfile.
    pub(super) image: Option<&'a str>,
    pub(super) workdir: &'a str,
    /// Values as Harbor takes them: literals and `${NAME}`.
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) agent_timeout_sec: f64,
    pub(super) agent_user: Option<&'a str>,
    pub(super) verifier_timeout_sec: f64,
    /// Names that the verifier gets from the host where they are set.
    pub(super) verifier_env: &'a [&'a str],
    /// Whether the verifier has a container of its own.
    pub(super) separate: bool,
    /// Name and agent timeout of each step; none for a single-step task.
    pub(super) steps: &'a [(String, f64)],
}

impl TaskToml<'_> {
    /// The text.
    pub(super) fn text(&self) -> String {
        let mut text = Text::default();
        text.line("schema_version", SCHEMA);
        if !self.steps.is_empty() {
            text.line("multi_step_reward_strategy", "final");
        }
        if self.separate {
            // Without it a separate verifier sees nothing of the work (harbor.md 0.5).
            text.line("artifacts", Array::from_iter([self.workdir]));
        }
        self.task(&mut text);
        self.metadata(&mut text);
        self.environment(&mut text);
        text.table("[agent]");
        self.agent(self.agent_timeout_sec, &mut text);
        self.verifier(&mut text);
        for (name, timeout) in self.steps {
            text.table("[[steps]]");
            text.line("name", name.as_str());
            text.table("[steps.agent]");
            self.agent(*timeout, &mut text);
            text.table("[steps.verifier]");
            text.line("timeout_sec", self.verifier_timeout_sec);
        }
        text.finish()
    }

    fn task(&self, text: &mut Text) {
        text.table("[task]");
        text.line("name", self.name);
        let description = one_line(self.description, DESCRIPTION_MAX);
        if !description.is_empty() {
            text.line("description", description);
        }
    }

    fn metadata(&self, text: &mut Text) {
        text.table("[metadata]");
        text.line("generated_by", "casepack");
        text.line("package_format", FORMAT);
        text.line("dataset", self.dataset);
        text.line("case_id", self.case);
        text.line("judge_mode", self.judge_mode);
        let mode = self.image.map_or("dockerfile", |_| "image");
        text.line("environment_mode", mode);
        text.line("workspace_digest", self.workspace.to_string());
        // A table of its own: keys of the case never change what the others mean.
        text.entries("[metadata.case]", self.metadata);
    }

    fn environment(&self, text: &mut Text) {
        text.table("[environment]");
        if let Some(image) = self.image {
            text.line("docker_image", image);
        }
        text.line("workdir", self.workdir);
        text.entries("[environment.env]", self.env);
    }

    fn agent(&self, timeout_sec: f64, text: &mut Text) {
        text.line("timeout_sec", timeout_sec);
        if let Some(user) = self.agent_user {
            match user.parse::<i64>() {
                Ok(id) => text.line("user", id),
                Err(_) => text.line("user", user),
            }
        }
    }

    fn verifier(&self, text: &mut Text) {
        text.table("[verifier]");
        text.line("timeout_sec", self.verifier_timeout_sec);
        if self.separate {
            text.line("environment_mode", "separate");
        }
        let env = self.verifier_env.iter();
        let env = env.map(|name| ((*name).to_owned(), format!("${{{name}:-}}")));
        text.entries("[verifier.env]", &env.collect());
    }
}

/// Lines of TOML. A document of `toml_edit` would cost more than everything else about a case; how
/// keys and values are spelt is still its business.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn table(&mut self, header: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(header);
        self.0.push('\n');
    }

    /// `key` needs no quotes.
    pub(super) fn line(&mut self, key: &str, value: impl Into<Value>) {
        self.0.push_str(key);
        self.0.push_str(" = ");
        match value.into() {
            // As `toml_edit` would; most are such.
            Value::String(text) if is_plain(text.value()) => {
                self.0.push('"');
                self.0.push_str(text.value());
                self.0.push('"');
            }
            value => self.0.push_str(&value.to_string()),
        }
        self.0.push('\n');
    }

    pub(super) fn finish(self) -> String {
        self.0
    }

    /// A table of texts, unless it is empty.
    fn entries(&mut self, header: &str, entries: &BTreeMap<String, String>) {
        if !entries.is_empty() {
            self.table(header);
        }
        for (key, value) in entries {
            self.line(&Key::new(key).to_string(), value);
        }
    }
}

/// Whether a text is written between quotation marks as it stands.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\'' | b'\\');
    text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn spells_values_as_the_library_does(text in "[ -~\n\u{e9}]{0,12}", key in "[a-c.\" ]{1,4}") {
            let mut ours = Text::default();
            ours.entries("[t]", &BTreeMap::from([(key.clone(), text.clone())]));
            let mut theirs = toml_edit::DocumentMut::new();
            let mut table = toml_edit::Table::new();
            table[&key] = toml_edit::value(&text);
            theirs["t"] = toml_edit::Item::Table(table);
            prop_assert_eq!(ours.finish(), theirs.to_string());
        }
    }
}
