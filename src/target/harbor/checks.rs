//! What is told about a dataset once, before any of its packages is made.
//!
//! Owns the findings that concern every package alike, and the environment that they declare.
//! Refuses to know cases.

use std::collections::{BTreeMap, BTreeSet};

use super::options::{Options, Profile, VerifierKind};
use super::verifier::Judging;
use crate::dataset::{Dataset, Phase, Runner};
use crate::diag::{Diagnostic, Diagnostics, Rule};

/// Tells everything that all packages have in common.
pub(super) fn dataset(
    dataset: &Dataset,
    options: &Options,
    judging: &Judging,
    diags: &mut Diagnostics,
) {
    repo_mode(&dataset.execution.runner, diags);
    hooks(dataset, diags);
    judges(options, judging, diags);
    ignored(dataset, diags);
    strict(options, diags);
}

/// `workspace_mode: repo` can't be packaged (policy 25).
pub(super) fn repo_mode(runner: &Runner, diags: &mut Diagnostics) {
    if runner.repo_mode {
        diags.push(
            Diagnostic::new(
                Rule::RepoModeNotPackaged,
                "workspace_mode: repo can not be packaged: the agent would work in the project \
                 itself, which a package does not hold.",
            )
            .help("Use it with local runs of the harness only, or list the files in workspace.files and drop workspace_mode.")
            .field("runner.workspace_mode"),
        );
    }
}

/// Hooks belong to local runs (policy 18).
fn hooks(dataset: &Dataset, diags: &mut Diagnostics) {
    let phases: BTreeSet<Phase> = dataset.hooks.iter().map(|hook| hook.phase).collect();
    if phases.is_empty() {
        return;
    }
    let phases: Vec<&str> = phases.into_iter().map(Phase::name).collect();
    diags.push(
        Diagnostic::new(
            Rule::HooksNotPortable,
            format!(
                "Hooks do not run in packages ({}): what they stage or check is missing there.",
                phases.join(", ")
            ),
        )
        .help("Make what they stage part of the case: list it in workspace.files.")
        .field("hooks"),
    );
}

fn judges(options: &Options, judging: &Judging, diags: &mut Diagnostics) {
    if judging.mode() == "none" {
        let why = if options.no_llm_judges {
            "Nothing judges the cases: no judge is left without those that ask a model."
        } else {
            "Nothing judges the cases: every package reports the reward 0 and says so."
        };
        diags.push(
            Diagnostic::new(Rule::NoVerdict, why)
                .help("Add a judge, for example a check.")
                .field("judges"),
        );
    }
    for judge in judging.without_model() {
        diags.push(
            Diagnostic::new(
                Rule::LlmJudgeWithoutModel,
                format!(
                    "The judge '{}' asks a model, and none is named: it ends in an error when a \
                     package is verified.",
                    judge.name
                ),
            )
            .help("Set models.judge, the judge's own model, or --judge-model; or drop such judges with --no-llm-judges.")
            .at_place(judge.place.as_ref())
            .entry(&judge.name),
        );
    }
    if options.verifier == VerifierKind::Bundled {
        for (judge, why) in judging.beyond_bundled() {
            diags.push(
                Diagnostic::new(
                    Rule::BundledVerifierLimits,
                    format!("The judge '{}' ends in an error in packages: {why}.", judge.name),
                )
                .help(if why.starts_with("a runner:/") {
                    "Name a model of a provider with --judge-model or `model`, use --verifier harness with an image that has the harness, or drop the judge from packages with --no-llm-judges."
                } else {
                    "Use --verifier harness with an image that has the harness, or drop the judge from packages with --no-llm-judges."
                })
                .at_place(judge.place.as_ref())
                .entry(&judge.name),
            );
        }
    }
}

/// The names that are given, for a sentence; `None` when none is.
pub(super) fn given(options: &[(&str, bool)]) -> Option<String> {
    let names = options
        .iter()
        .filter(|(_, given)| *given)
        .map(|(name, _)| *name);
    let names: Vec<&str> = names.collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Options of the agent: they belong to the run.
fn ignored(dataset: &Dataset, diags: &mut Diagnostics) {
    let execution = &dataset.execution;
    let runner = &execution.runner;
    let given = given(&[
        (
            "execution.max_budget_usd",
            execution.max_budget_usd.is_some(),
        ),
        ("runner.effort", runner.effort.is_some()),
        ("runner.permission_mode", runner.permission_mode.is_some()),
        ("runner.env", !runner.env.is_empty()),
        ("models.skill", execution.model.is_some()),
        ("models.subagent", execution.subagent_model.is_some()),
    ]);
    if let Some(given) = given {
        diags.push(
            Diagnostic::new(
                Rule::AgentOptionIgnored,
                format!("Packages say what to do, not which agent does it; left out: {given}."),
            )
            .help(options_help(runner)),
        );
    }
}

/// Where options of the agent go: `casepack run` starts only agents that are a command.
pub(super) fn options_help(runner: &Runner) -> &'static str {
    if runner.command.is_some() {
        "Give them to the program that runs the packages; `casepack run` fills them into a \
         runner.command that names them."
    } else {
        "Give them to the program that runs the packages."
    }
}

fn strict(options: &Options, diags: &mut Diagnostics) {
    if options.profile != Profile::Strict {
        return;
    }
    let root = |user: &String| user == "root" || user.bytes().all(|digit| digit == b'0');
    if options.agent_user.as_ref().is_none_or(root) {
        diags.push(
            Diagnostic::new(
                Rule::StrictUser,
                "The strict profile needs a user for the agent that is not root.",
            )
            .help("Give --agent-user NAME, a user of the image that may write the workdir.")
            .field("agent-user"),
        );
    }
    if let Some(image) = &options.image {
        strict_image(Some(image), diags);
    }
}

/// The strict profile wants an image that is pinned (policy 22).
pub(super) fn strict_image(image: Option<&str>, diags: &mut Diagnostics) {
    let pinned = image.and_then(|image| image.split_once("@sha256:"));
    let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if pinned.is_some_and(|(_, digest)| digest.len() == 64 && digest.bytes().all(hex)) {
        return;
    }
    let message = match image {
        Some(image) => {
            format!(
                "The strict profile wants an image that is pinned by its digest, not '{image}'."
            )
        }
        None => {
            "The strict profile wants a prebuilt image that is pinned by its digest.".to_owned()
        }
    };
    diags.push(
        Diagnostic::new(Rule::ImageWithoutDigest, message)
            .help("Give --image NAME@sha256:… with the 64 hex digits of the image's digest.")
            .field("image"),
    );
}

/// `execution.env` as Harbor takes it (policy 23): `$NAME` becomes the reference `${NAME}`, which
/// Harbor resolves where the package runs.
pub(super) fn environment(dataset: &Dataset, diags: &mut Diagnostics) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for (name, text) in &dataset.execution.env {
        let field = format!("execution.env.{name}");
        if !is_name(name) || text.contains('\0') {
            diags.push(
                Diagnostic::new(
                    Rule::BadValue,
                    format!("'{name}' can not be set in an environment."),
                )
                .help("Use letters, digits and underscores for names, and no NUL byte in values.")
                .field(field),
            );
            continue;
        }
        let reference = text.strip_prefix('$').filter(|rest| is_name(rest));
        let value = reference.map_or_else(|| text.clone(), |name| format!("${{{name}}}"));
        if reference.is_none() && looks_secret(name, text) {
            diags.push(
                Diagnostic::new(
                    Rule::SecretLiteral,
                    format!(
                        "The value of '{name}' looks like a secret and would be written into \
                         every package in clear."
                    ),
                )
                .help(format!(
                    "Write `{name}: ${name}`: Harbor takes the value from where the package runs."
                ))
                .field(field),
            );
        }
        env.insert(name.clone(), value);
    }
    env
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a literal is something that nobody would want in a file.
fn looks_secret(name: &str, value: &str) -> bool {
    const PREFIXES: &[&str] = &[
        "sk-",
        "ghp_",
        "gho_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "xoxp-",
        "hf_",
        "AKIA",
        "ASIA",
        "AIza",
        "eyJ",
        "-----BEGIN",
    ];
    const WORDS: &[&str] = &[
        "KEY",
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "PASSPHRASE",
        "CREDENTIAL",
        "CREDENTIALS",
    ];
    let value = value.trim();
    if PREFIXES.iter().any(|prefix| value.starts_with(prefix)) && value.len() >= 16 {
        return true;
    }
    let name = name.to_ascii_uppercase();
    let named = name.split('_').any(|word| WORDS.contains(&word));
    // Names of keys, switches and paths are no secrets themselves.
    let plain = value.len() < 6 || value.contains(['/', ' ', '$']) && !value.contains("://");
    named && !plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_secrets_when_it_sees_them() {
        for (name, value) in [
            ("API_KEY", "abcdef123456"),
            ("X", "sk-ant-0123456789abcdef"),
            ("DB_PASSWORD", "hunter22"),
            ("jira_token", "0123456"),
            ("PRIVATE", "-----BEGIN RSA PRIVATE KEY-----"),
        ] {
            assert!(looks_secret(name, value), "{name}");
        }
        for (name, value) in [
            ("API_KEY", ""),
            ("KEYBOARD", "qwertz-de"),
            ("TOKEN_FILE", "/run/secrets/token"),
            ("USE_TOKEN", "true"),
            ("MODE", "production"),
        ] {
            assert!(!looks_secret(name, value), "{name}");
        }
    }

    #[test]
    fn pins_are_whole_digests() {
        let pinned = format!("ghcr.io/a/b@sha256:{}", "0a".repeat(32));
        for (image, findings) in [
            (Some(pinned.as_str()), 0),
            (Some("python:3.12"), 1),
            (Some("python@sha256:00"), 1),
            (None, 1),
        ] {
            let mut diags = Diagnostics::default();
            strict_image(image, &mut diags);
            assert_eq!(diags.iter().count(), findings, "{image:?}");
        }
    }
}
