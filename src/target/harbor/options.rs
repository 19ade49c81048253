//! Options of the Harbor target: their names, defaults, and where they come from (policy 33).

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::dataset::OptionValue;
use crate::diag::{Diagnostic, Diagnostics, Place, Rule};

/// Who judges in a package (policy 19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VerifierKind {
    /// The judge runner that every package carries; needs only `python3`.
    #[default]
    Bundled,
    /// The judge engine of agent-eval-harness, which the image must have.
    Harness,
}

/// How strictly packages follow `harbor lint` (harbor.md 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// The verifier shares the agent's container, as agent-eval-harness has it.
    #[default]
    Default,
    /// Clean under `harbor lint --select ALL`: image pinned by digest, an agent that is not root,
    /// a verifier in a container of its own.
    Strict,
}

macro_rules! named {
    ($type:ident: $($variant:ident $name:literal),* $(,)?) => {
        impl $type {
            /// The name, as the flag takes it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(format!("it must be one of: {}", [$($name),*].join(", "))),
                }
            }
        }
    };
}

named!(VerifierKind: Bundled "bundled", Harness "harness");
named!(Profile: Default "default", Strict "strict");

/// Options of the Harbor target. The names in the docs are those of flags and of options in
/// `casepack.yaml`.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// `image`: a prebuilt image that has `workdir` (and `python3` for judges). Without it a
    /// package brings a Dockerfile. An image that the case itself names wins.
    pub image: Option<String>,
    /// `base-image`: what the generated Dockerfile starts from.
    pub base_image: String,
    /// `workdir`: where the agent works; absolute.
    pub workdir: String,
    /// `agent-timeout`: seconds for the agent, each step of a multi-step case on its own. Given,
    /// it wins over the step's own timeout, which wins over `execution.timeout`, which wins over
    /// [`Options::AGENT_TIMEOUT_SEC`].
    pub agent_timeout_sec: Option<f64>,
    /// `verifier-timeout`: seconds for the verifier.
    pub verifier_timeout_sec: f64,
    /// `judge-model`: the model of LLM judges that name none; wins over `models.judge`.
    pub judge_model: Option<String>,
    /// `no-llm-judges`: leave judges out that ask a model (agent-eval-harness 4.3).
    pub no_llm_judges: bool,
    /// `verifier`: `bundled` or `harness`.
    pub verifier: VerifierKind,
    /// `profile`: `default` or `strict`.
    pub profile: Profile,
    /// `agent-user`: the user of the image that the agent runs as.
    pub agent_user: Option<String>,
    /// `org`: the first part of task names; the dataset's name without it.
    pub org: Option<String>,
    /// No flag: packages for a local run only, which can render what earlier steps came to.
    pub local: bool,
}

/// The base image when none is given: Python, and no module that is not Python's own.
const PLAIN_PYTHON: &str = "python:3.12-slim";

impl Options {
    /// Seconds for an agent when nothing says otherwise; as agent-eval-harness (4.1).
    pub const AGENT_TIMEOUT_SEC: f64 = 1800.0;

    /// The names of all options, sorted.
    pub const NAMES: &'static [&'static str] = &[
        "agent-timeout",
        "agent-user",
        "base-image",
        "image",
        "judge-model",
        "no-llm-judges",
        "org",
        "profile",
        "verifier",
        "verifier-timeout",
        "workdir",
    ];

    /// The image that judges run in, when it is known to have Python and no other modules.
    #[must_use]
    pub fn plain_python(&self) -> Option<&str> {
        let plain = self.image.is_none()
            && self.base_image == PLAIN_PYTHON
            && self.verifier == VerifierKind::Bundled;
        plain.then_some(PLAIN_PYTHON)
    }

    /// Merges `flags` (command line and environment) over `dataset`, the options that the
    /// dataset's files give, over the defaults (policy 33). A value that can't be used is an error
    /// at its place. Names that are no Harbor options are left to the caller
    /// (see [`Options::NAMES`]). `_` in a name counts as `-`.
    pub fn from_settings(
        flags: &Flags,
        dataset: &BTreeMap<String, OptionValue>,
        diags: &mut Diagnostics,
    ) -> Self {
        let mut given = Given { dataset, diags };
        let default = Self::default();
        Self {
            image: given.take("image", flags.image.as_deref(), image),
            base_image: given
                .take("base-image", flags.base_image.as_deref(), image)
                .unwrap_or(default.base_image),
            workdir: given
                .take("workdir", flags.workdir.as_deref(), workdir)
                .unwrap_or(default.workdir),
            agent_timeout_sec: given.take("agent-timeout", flags.agent_timeout.as_deref(), seconds),
            verifier_timeout_sec: given
                .take(
                    "verifier-timeout",
                    flags.verifier_timeout.as_deref(),
                    seconds,
                )
                .unwrap_or(default.verifier_timeout_sec),
            judge_model: given.take("judge-model", flags.judge_model.as_deref(), plain),
            no_llm_judges: given
                .take("no-llm-judges", flags.no_llm_judges.as_deref(), switch)
                .unwrap_or(default.no_llm_judges),
            verifier: given
                .take("verifier", flags.verifier.as_deref(), str::parse)
                .unwrap_or_default(),
            profile: given
                .take("profile", flags.profile.as_deref(), str::parse)
                .unwrap_or_default(),
            agent_user: given.take("agent-user", flags.agent_user.as_deref(), user),
            org: given.take("org", flags.org.as_deref(), org),
            local: false,
        }
    }
}

impl Options {
    /// Every option that has a value, by name, as a user would write it.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, String)> {
        let number = |seconds: f64| seconds.to_string();
        [
            ("agent-timeout", self.agent_timeout_sec.map(number)),
            ("agent-user", self.agent_user.clone()),
            ("base-image", Some(self.base_image.clone())),
            ("image", self.image.clone()),
            ("judge-model", self.judge_model.clone()),
            ("local", self.local.then(|| "true".to_owned())),
            ("no-llm-judges", Some(self.no_llm_judges.to_string())),
            ("org", self.org.clone()),
            ("profile", Some(self.profile.name().to_owned())),
            ("verifier", Some(self.verifier.name().to_owned())),
            ("verifier-timeout", Some(number(self.verifier_timeout_sec))),
            ("workdir", Some(self.workdir.clone())),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            image: None,
            base_image: PLAIN_PYTHON.to_owned(),
            workdir: "/workspace".to_owned(),
            agent_timeout_sec: None,
            verifier_timeout_sec: 300.0,
            judge_model: None,
            no_llm_judges: false,
            verifier: VerifierKind::default(),
            profile: Profile::default(),
            agent_user: None,
            org: None,
            local: false,
        }
    }
}

/// Options as the command line or the environment gave them, unchecked. The fields are those of
/// [`Options`].
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the options by their names, see `Options`")]
pub struct Flags {
    pub image: Option<String>,
    pub base_image: Option<String>,
    pub workdir: Option<String>,
    pub agent_timeout: Option<String>,
    pub verifier_timeout: Option<String>,
    pub judge_model: Option<String>,
    /// `true` or `false`.
    pub no_llm_judges: Option<String>,
    pub verifier: Option<String>,
    pub profile: Option<String>,
    pub agent_user: Option<String>,
    pub org: Option<String>,
}

/// The values that were given, and where complaints about them go.
struct Given<'a> {
    dataset: &'a BTreeMap<String, OptionValue>,
    diags: &'a mut Diagnostics,
}

impl Given<'_> {
    /// The value of the option `name`; `None` when it is not given or can't be used.
    fn take<T>(
        &mut self,
        name: &str,
        flag: Option<&str>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        if let Some(text) = flag {
            return self.checked(format!("--{name}"), None, text, parse);
        }
        let dataset = self.dataset;
        let (key, value) = dataset
            .iter()
            .find(|(key, _)| key.replace('_', "-") == name)?;
        self.checked(key.clone(), value.place.as_ref(), &value.text, parse)
    }

    fn checked<T>(
        &mut self,
        field: String,
        place: Option<&Place>,
        text: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        match parse(text) {
            Ok(value) => Some(value),
            Err(why) => {
                self.diags.push(
                    Diagnostic::new(
                        Rule::BadValue,
                        format!("The option '{field}' can not be '{text}': {why}."),
                    )
                    .help("Write a value that the option takes, or leave it out.")
                    .at_place(place)
                    .field(field),
                );
                None
            }
        }
    }
}

/// A reference to an image, in the characters that such references have.
fn image(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err("an image is NAME, NAME:TAG or NAME@sha256:…".to_owned())
    }
}

/// An absolute path in characters that need no quoting anywhere, as agent-eval-harness has it.
fn workdir(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "/_.-".contains(c);
    if !text.starts_with('/') || !text.chars().all(allowed) {
        return Err("it must be absolute, of letters, digits and / _ . -".to_owned());
    }
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return Err("the root directory can not be the workspace".to_owned());
    }
    if parts.iter().any(|part| *part == "." || *part == "..") {
        return Err("it must not have '.' or '..' in it".to_owned());
    }
    if ["tests", "logs", "solution", "proc", "sys", "dev"].contains(&parts[0]) {
        return Err(format!("/{} belongs to Harbor or to the system", parts[0]));
    }
    Ok(format!("/{}", parts.join("/")))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("it must be a number of seconds above 0".to_owned()),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("it must be true or false".to_owned()),
    }
}

fn plain(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        Err("it must be a name".to_owned())
    } else {
        Ok(text.trim().to_owned())
    }
}

/// A user name or id as `useradd` takes it, so that it needs no quoting.
fn user(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let first = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.starts_with(first) && text.chars().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err("it must be a user name or a user id".to_owned())
    }
}

fn org(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(allowed)
        && !text.contains("..")
    {
        Ok(text.to_owned())
    } else {
        Err("it must be of letters, digits, dots, dashes and underscores".to_owned())
    }
}
