//! `task.toml`: what Harbor reads first (harbor.md 2).
//!
//! Owns the order and the spelling of its fields. Refuses to know where the values come from.
//! Invariant: the text is a function of the fields; no time, host, user or tool version is in it.

use std::collections::BTreeMap;

use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

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
        let mut document = DocumentMut::new();
        document["schema_version"] = value(SCHEMA);
        if !self.steps.is_empty() {
            document["multi_step_reward_strategy"] = value("final");
        }
        if self.separate {
            // Without it a separate verifier sees nothing of the work (harbor.md 0.5).
            document["artifacts"] = value(Array::from_iter([self.workdir]));
        }
        document["task"] = Item::Table(self.task());
        document["metadata"] = Item::Table(self.metadata());
        document["environment"] = Item::Table(self.environment());
        document["agent"] = Item::Table(self.agent());
        document["verifier"] = Item::Table(self.verifier());
        if !self.steps.is_empty() {
            let mut steps = ArrayOfTables::new();
            for (name, timeout) in self.steps {
                steps.push(self.step(name, *timeout));
            }
            document["steps"] = Item::ArrayOfTables(steps);
        }
        document.to_string()
    }

    fn task(&self) -> Table {
        let mut task = Table::new();
        task["name"] = value(self.name);
        let description = one_line(self.description, DESCRIPTION_MAX);
        if !description.is_empty() {
            task["description"] = value(description);
        }
        task
    }

    fn metadata(&self) -> Table {
        let mut metadata = Table::new();
        metadata["generated_by"] = value("casepack");
        metadata["package_format"] = value(FORMAT);
        metadata["dataset"] = value(self.dataset);
        metadata["case_id"] = value(self.case);
        metadata["judge_mode"] = value(self.judge_mode);
        metadata["environment_mode"] = value(match self.image {
            Some(_) => "image",
            None => "dockerfile",
        });
        metadata["workspace_digest"] = value(self.workspace.to_string());
        if !self.metadata.is_empty() {
            // A table of its own: keys of the case never change what the others mean.
            let mut case = Table::new();
            for (key, text) in self.metadata {
                case[key] = value(text);
            }
            metadata["case"] = Item::Table(case);
        }
        metadata
    }

    fn environment(&self) -> Table {
        let mut environment = Table::new();
        if let Some(image) = self.image {
            environment["docker_image"] = value(image);
        }
        environment["workdir"] = value(self.workdir);
        if !self.env.is_empty() {
            let mut env = Table::new();
            for (name, text) in self.env {
                env[name] = value(text);
            }
            environment["env"] = Item::Table(env);
        }
        environment
    }

    fn agent(&self) -> Table {
        let mut agent = Table::new();
        agent["timeout_sec"] = value(self.agent_timeout_sec);
        if let Some(user) = self.agent_user {
            agent["user"] = match user.parse::<i64>() {
                Ok(id) => value(id),
                Err(_) => value(user),
            };
        }
        agent
    }

    fn verifier(&self) -> Table {
        let mut verifier = Table::new();
        verifier["timeout_sec"] = value(self.verifier_timeout_sec);
        if self.separate {
            verifier["environment_mode"] = value("separate");
        }
        if !self.verifier_env.is_empty() {
            let mut env = Table::new();
            for name in self.verifier_env {
                env[name] = value(format!("${{{name}:-}}"));
            }
            verifier["env"] = Item::Table(env);
        }
        verifier
    }

    fn step(&self, name: &str, timeout: f64) -> Table {
        let mut step = Table::new();
        step["name"] = value(name);
        let mut agent = self.agent();
        agent["timeout_sec"] = value(timeout);
        step["agent"] = Item::Table(agent);
        let mut verifier = Table::new();
        verifier["timeout_sec"] = value(self.verifier_timeout_sec);
        step["verifier"] = Item::Table(verifier);
        step
    }
}
