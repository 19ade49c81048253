//! What may be typed: one struct for each verb, and nothing of what it means (`settings` does).
//!
//! Every flag has an environment variable of its name (a test); lists in the environment have
//! one value a line, those of targets and rules may also be separated by commas.

mod bundles;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::{FalseyValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use self::bundles::{
    Emit, EmitFor, Gc, Inspect, Ls, Publish, PublishLayout, Pull, PullAs, PullView, S3Args, Source,
};
use crate::bundle::Compression;
use crate::dataset::Format;
use crate::diag::Rule;
use crate::run::{Keep, Known, SandboxMode};

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    findings in your files, or cases that did not pass
  2    the command line itself
  3    the disk or another system failed; worth a retry
  101  a bug in casepack
  130  interrupted";

/// The build system for agent-evaluation datasets: Harbor task packages and local runs from one
/// layout.
#[derive(Debug, Parser)]
#[command(
    name = "casepack",
    bin_name = "casepack",
    version,
    max_term_width = 100
)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) talk: Talk,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Write a small, complete, runnable dataset
    Init(Init),
    /// Load and validate everything, write nothing
    Check(Check),
    /// Say what a build would do, and why
    Plan(Plan),
    /// Compile the dataset for its targets
    Build(Build),
    /// Run every case on this machine and judge it
    Run(Run),
    /// Write the reports of a run, or of the shards of one run merged
    Report(Report),
    /// Read what was built or published and compare it with what was recorded
    Verify(Verify),
    /// Say what differs between two builds, two datasets, a dataset and a build, or two releases
    Diff(Diff),
    /// Build a release and send it to a store
    Publish(Publish),
    /// Get cases from a store, verified
    Pull(Pull),
    /// List the releases of a store, or the cases of one
    Ls(Ls),
    /// Show a release, or the trees of one of its cases
    Inspect(Inspect),
    /// Remove from a store what no release needs
    Gc(Gc),
    /// Write what another system needs to run what was published
    Emit(Emit),
    /// Say what a rule means, why, and how to mend what it found
    Explain(Explain),
    /// Write the completions of a shell to standard output
    Completions(Completions),
    /// Write the manual page to standard output
    Man(Man),
}

/// How casepack talks; the same for every verb.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Talk {
    /// What standard output carries
    #[arg(long, global = true, value_name = "FORMAT", env = "CASEPACK_OUTPUT")]
    #[arg(value_enum, default_value_t = OutputFormat::Human)]
    pub(crate) output: OutputFormat,
    /// Tell errors only
    #[arg(
        short,
        long,
        global = true,
        env = "CASEPACK_QUIET",
        conflicts_with = "verbose"
    )]
    #[arg(value_parser = FalseyValueParser::new())]
    pub(crate) quiet: bool,
    /// Tell notes as well, and every case that a finding touches
    #[arg(short, long, global = true, env = "CASEPACK_VERBOSE")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub(crate) verbose: bool,
    /// Whether to use colours
    #[arg(long, global = true, value_name = "WHEN", env = "CASEPACK_COLOR")]
    #[arg(value_enum, default_value_t = When::Auto)]
    pub(crate) color: When,
    /// How to show progress
    #[arg(long, global = true, value_name = "HOW", env = "CASEPACK_PROGRESS")]
    #[arg(value_enum, default_value_t = ProgressStyle::Auto)]
    pub(crate) progress: ProgressStyle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Text for people
    Human,
    /// One JSON document
    Json,
    /// Annotations of GitHub Actions
    Github,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On terminals, unless `NO_COLOR` is set
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressStyle {
    /// Bars on a terminal, else lines
    Auto,
    /// One line for each stage
    Plain,
    None,
}

/// Which dataset, and how findings in it count.
#[derive(Debug, Args)]
pub(crate) struct Input {
    /// A config, a dataset, or a directory that holds one
    #[arg(default_value = ".", hide_default_value = true)]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) levels: LevelArgs,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Dataset")]
pub(crate) struct Reading {
    /// The format of the dataset; recognised without it
    #[arg(long, value_name = "FORMAT", env = "CASEPACK_FORMAT")]
    #[arg(value_parser = named([Format::EvalYaml, Format::HarborTask].map(|it| (it.name(), it))))]
    pub(crate) format: Option<Format>,
    /// Where shared sources are looked for
    #[arg(long, value_name = "DIR", env = "CASEPACK_PROJECT_ROOT")]
    pub(crate) project_root: Option<PathBuf>,
    /// Another directory that sources may come from (repeatable)
    #[arg(
        long,
        value_name = "DIR",
        env = "CASEPACK_PLUGIN_DIR",
        value_delimiter = '\n'
    )]
    pub(crate) plugin_dir: Vec<PathBuf>,
    /// Only cases whose id matches, with *, ? and [...] (repeatable)
    #[arg(
        long,
        value_name = "GLOB",
        env = "CASEPACK_CASE",
        value_delimiter = '\n'
    )]
    pub(crate) case: Vec<String>,
    /// Only part I of N of the cases (1/4 … 4/4), a stable share by the digest of their ids
    #[arg(long, value_name = "I/N", env = "CASEPACK_SHARD", value_parser = shard)]
    pub(crate) shard: Option<(u64, u64)>,
    /// How many cases to work on at a time; as many as there are processors without it
    #[arg(short, long, value_name = "N", env = "CASEPACK_JOBS")]
    pub(crate) jobs: Option<NonZeroUsize>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Findings")]
pub(crate) struct LevelArgs {
    /// Count warnings of a rule as errors; "warnings" for all (repeatable)
    #[arg(
        long,
        value_name = "RULE",
        env = "CASEPACK_DENY",
        value_delimiter = ','
    )]
    #[arg(value_parser = deny)]
    pub(crate) deny: Vec<Deny>,
    /// Do not tell findings of a rule, and do what it forbids (repeatable)
    #[arg(
        long,
        value_name = "RULE",
        env = "CASEPACK_ALLOW",
        value_delimiter = ','
    )]
    #[arg(value_parser = allow)]
    pub(crate) allow: Vec<Rule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deny {
    Warnings,
    Rule(Rule),
}

/// How packages are made. The values are checked where options of all sources are merged.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packages")]
pub(crate) struct Packaging {
    /// A prebuilt image that has the workdir; without it packages bring a Dockerfile
    #[arg(long, value_name = "REF", env = "CASEPACK_IMAGE")]
    pub(crate) image: Option<String>,
    /// What generated Dockerfiles start from [default: python:3.12-slim]
    #[arg(long, value_name = "REF", env = "CASEPACK_BASE_IMAGE")]
    pub(crate) base_image: Option<String>,
    /// Where the agent works [default: /workspace]
    #[arg(long, value_name = "PATH", env = "CASEPACK_WORKDIR")]
    pub(crate) workdir: Option<String>,
    /// How long an agent may take
    #[arg(long, value_name = "SECONDS", env = "CASEPACK_AGENT_TIMEOUT")]
    pub(crate) agent_timeout: Option<String>,
    /// How long judging may take [default: 300]
    #[arg(long, value_name = "SECONDS", env = "CASEPACK_VERIFIER_TIMEOUT")]
    pub(crate) verifier_timeout: Option<String>,
    /// The model of LLM judges that name none
    #[arg(long, value_name = "MODEL", env = "CASEPACK_JUDGE_MODEL")]
    pub(crate) judge_model: Option<String>,
    /// Leave judges out that ask a model
    #[arg(long, env = "CASEPACK_NO_LLM_JUDGES", value_parser = FalseyValueParser::new())]
    pub(crate) no_llm_judges: bool,
    /// Who judges: a runner that packages bring, or the harness in the image
    #[arg(long, value_name = "WHO", env = "CASEPACK_VERIFIER")]
    #[arg(value_parser = ["bundled", "harness"])]
    pub(crate) verifier: Option<String>,
    /// How strict packages are; strict ones are clean under harbor lint
    #[arg(long, value_name = "PROFILE", env = "CASEPACK_PROFILE")]
    #[arg(value_parser = ["default", "strict"])]
    pub(crate) profile: Option<String>,
    /// The user of the image that the agent runs as
    #[arg(long, value_name = "USER", env = "CASEPACK_AGENT_USER")]
    pub(crate) agent_user: Option<String>,
    /// The first part of task names; the name of the dataset without it
    #[arg(long, value_name = "NAME", env = "CASEPACK_ORG")]
    pub(crate) org: Option<String>,
}

/// Where outputs go.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[command(next_help_heading = "Packages")]
pub(crate) struct Destination {
    /// Where outputs go
    #[arg(
        short,
        long,
        value_name = "DIR",
        env = "CASEPACK_OUT",
        default_value = "dist"
    )]
    pub(crate) out: PathBuf,
    /// Overwrite outputs that were changed since casepack wrote them
    #[arg(long, env = "CASEPACK_FORCE", value_parser = FalseyValueParser::new())]
    pub(crate) force: bool,
    /// Write files that many outputs have once, as hard links: less space and time, but they are
    /// read-only, and one that is changed all the same changes in every output
    #[arg(long, env = "CASEPACK_LINK", value_parser = FalseyValueParser::new())]
    pub(crate) link: bool,
    /// How bundles are compressed
    #[arg(
        long,
        value_name = "HOW",
        env = "CASEPACK_COMPRESSION",
        default_value = "zstd"
    )]
    #[arg(value_parser = named([Compression::Zstd, Compression::Gzip].map(|it| (it.name(), it))))]
    pub(crate) compression: Compression,
    /// Read every case, even when nothing looks changed
    #[arg(long, env = "CASEPACK_NO_INDEX", value_parser = FalseyValueParser::new())]
    pub(crate) no_index: bool,
    /// Read every output that is there, even when it does not look changed
    #[arg(long, env = "CASEPACK_VERIFY_OUTPUTS", value_parser = FalseyValueParser::new())]
    pub(crate) verify_outputs: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// A directory that is empty or does not exist yet
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) packaging: Packaging,
}

#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) building: Building,
}

#[derive(Debug, Args)]
pub(crate) struct Build {
    #[command(flatten)]
    pub(crate) building: Building,
    /// Build again whenever something changes, until it is interrupted
    #[arg(long, env = "CASEPACK_WATCH", value_parser = FalseyValueParser::new())]
    #[arg(help_heading = "Packages")]
    pub(crate) watch: bool,
}

/// What is built, and where.
#[derive(Debug, Args)]
pub(crate) struct Building {
    #[command(flatten)]
    pub(crate) input: Input,
    /// What to build (repeatable, or separated by commas) [default: harbor]
    #[arg(
        long,
        value_name = "TARGET",
        env = "CASEPACK_TARGET",
        value_delimiter = ','
    )]
    #[arg(value_enum, help_heading = "Packages")]
    pub(crate) target: Vec<TargetName>,
    #[command(flatten)]
    pub(crate) destination: Destination,
    #[command(flatten)]
    pub(crate) packaging: Packaging,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum TargetName {
    /// Harbor task packages and dataset.toml
    Harbor,
    /// What the agent sees, as plain directories
    Workspace,
    /// Plain objects for EvalHub
    Evalhub,
    /// A release stored by content, as `casepack publish` sends it
    Bundle,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) running: Running,
    #[command(flatten)]
    pub(crate) destination: Destination,
    #[command(flatten)]
    pub(crate) packaging: Packaging,
}

/// Who works on the cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// The runner of the dataset.
    Config,
    Oracle,
    Nop,
    /// An agent of this name, whatever the dataset says.
    Known(Known),
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
pub(crate) struct Running {
    /// Where results go, one directory for each run
    #[arg(
        long,
        value_name = "DIR",
        env = "CASEPACK_RUNS_DIR",
        default_value = "runs"
    )]
    pub(crate) runs_dir: PathBuf,
    /// The name of this run; the time without it
    #[arg(long, value_name = "ID", env = "CASEPACK_RUN_ID")]
    pub(crate) run_id: Option<String>,
    /// Take up a run again that was stopped: its name, or its directory; runs what has no verdict
    #[arg(
        long,
        value_name = "RUN",
        env = "CASEPACK_RESUME",
        conflicts_with = "run_id"
    )]
    pub(crate) resume: Option<PathBuf>,
    /// Who works: the dataset's runner, the case's own solution, nobody, or a known agent
    #[arg(
        long,
        value_name = "WHO",
        env = "CASEPACK_AGENT",
        default_value = "config"
    )]
    #[arg(value_parser = named([
        ("config", Who::Config),
        ("oracle", Who::Oracle),
        ("nop", Who::Nop),
        ("claude-code", Who::Known(Known::ClaudeCode)),
        ("codex", Who::Known(Known::Codex)),
        ("opencode", Who::Known(Known::OpenCode)),
    ]))]
    pub(crate) agent: Who,
    /// The command of the agent, in place of the dataset's runner; with its placeholders
    #[arg(long, value_name = "COMMAND", env = "CASEPACK_AGENT_COMMAND")]
    pub(crate) agent_command: Option<String>,
    /// The model that the agent is told
    #[arg(long, value_name = "MODEL", env = "CASEPACK_MODEL")]
    pub(crate) model: Option<String>,
    /// A home directory (such as ~) whose login files of known agents are shown to them
    #[arg(long, value_name = "DIR", env = "CASEPACK_AGENT_HOME")]
    pub(crate) agent_home: Option<PathBuf>,
    /// How often each case is run; the summary then has pass@k
    #[arg(long, value_name = "K", env = "CASEPACK_ATTEMPTS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) attempts: u32,
    /// How often a case that ends without a verdict is tried again
    #[arg(long, value_name = "N", env = "CASEPACK_RETRIES", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) retries: u32,
    /// How agents and judges are kept from this machine
    #[arg(
        long,
        value_name = "HOW",
        env = "CASEPACK_SANDBOX",
        default_value = "auto"
    )]
    #[arg(value_parser = named([
        ("auto", SandboxMode::Auto), ("bwrap", SandboxMode::Bwrap), ("none", SandboxMode::None)
    ]))]
    pub(crate) sandbox: SandboxMode,
    /// Which workspaces are kept: of all cases, of those that did not pass, or none
    #[arg(
        long,
        value_name = "WHICH",
        env = "CASEPACK_KEEP_WORKSPACES",
        default_value = "all"
    )]
    #[arg(value_parser = named([
        ("all", Keep::All), ("failed", Keep::Failed), ("none", Keep::None)
    ]))]
    pub(crate) keep_workspaces: Keep,
    /// What runs the packages: casepack itself, or Harbor, whose own arguments follow after --
    #[arg(
        long,
        value_name = "ENGINE",
        env = "CASEPACK_ENGINE",
        default_value = "casepack"
    )]
    #[arg(value_parser = ["casepack", "harbor"])]
    pub(crate) engine: String,
    /// Arguments for `harbor run`, with --engine harbor
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) harbor_args: Vec<String>,
    /// The reward that passes a case
    #[arg(long, value_name = "REWARD", env = "CASEPACK_PASS_AT", value_parser = reward)]
    #[arg(default_value_t = crate::run::PASS_AT)]
    pub(crate) pass_at: f64,
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// A run, by its directory or its name; several are the shards of one run
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// Where reports go; into the directory of the run without it
    #[arg(
        short = 'o',
        long = "report-dir",
        value_name = "DIR",
        env = "CASEPACK_REPORT_DIR"
    )]
    pub(crate) dir: Option<PathBuf>,
    /// An earlier run to compare with, by its directory or its name
    #[arg(long, value_name = "RUN", env = "CASEPACK_BASELINE")]
    pub(crate) baseline: Option<PathBuf>,
    /// Where runs that are named lie
    #[arg(
        long,
        value_name = "DIR",
        env = "CASEPACK_RUNS_DIR",
        default_value = "runs"
    )]
    pub(crate) runs_dir: PathBuf,
    #[command(flatten)]
    pub(crate) levels: LevelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The output directory of a build, or a store
    #[arg(default_value = "dist")]
    pub(crate) path: PathBuf,
    /// How many outputs to read at a time; as many as there are processors without it
    #[arg(short, long, value_name = "N", env = "CASEPACK_JOBS")]
    pub(crate) jobs: Option<NonZeroUsize>,
    /// Of a store, read only this share of the packs, always the same ones
    #[arg(
        long,
        value_name = "PERCENT",
        env = "CASEPACK_SHARE",
        default_value_t = 100
    )]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) share: u8,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The output directory of a build, a dataset, or a release: STORE@NAME or STORE@sha256:…
    pub(crate) a: PathBuf,
    /// Another one; @NAME and @sha256:… are releases of the first one's store
    pub(crate) b: PathBuf,
    /// Which outputs to compare
    #[arg(long, value_name = "TARGET", env = "CASEPACK_TARGET")]
    #[arg(value_enum, default_value_t = TargetName::Harbor, help_heading = "Packages")]
    pub(crate) target: TargetName,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) levels: LevelArgs,
    #[command(flatten)]
    pub(crate) packaging: Packaging,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The rule; all rules are listed without it
    #[arg(value_parser = rule)]
    pub(crate) rule: Option<Rule>,
    /// All rules as the Markdown of docs/rules.md
    #[arg(long, hide = true, conflicts_with = "rule")]
    pub(crate) markdown: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Which shell
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The page of one command; of casepack itself without it
    #[arg(value_parser = ["init", "check", "plan", "build", "run", "report", "verify", "diff", "publish", "pull", "ls", "inspect", "gc", "emit", "explain", "completions"])]
    pub(crate) command: Option<String>,
}

/// The command line as clap knows it: values of the environment are not shown in help, they may
/// be secrets and differ from machine to machine.
pub(crate) fn command() -> clap::Command {
    fn hide(command: clap::Command) -> clap::Command {
        command
            .mut_args(|arg| arg.hide_env_values(true))
            .mut_subcommands(hide)
    }
    hide(CommandLine::command())
}

fn rule(text: &str) -> Result<Rule, String> {
    Rule::from_name(text).ok_or_else(|| {
        let near = nearest(text, Rule::ALL.iter().map(|rule| rule.name()));
        let near = near.map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
        format!("there is no such rule{near}")
    })
}

/// The name that was probably meant by `text`.
pub(crate) fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|name| (strsim::damerau_levenshtein(name, text), name))
        .min()
        .filter(|(distance, name)| *distance <= name.len() / 3)
        .map(|(_, name)| name)
}

fn deny(text: &str) -> Result<Deny, String> {
    if text == "warnings" {
        return Ok(Deny::Warnings);
    }
    rule(text).map(Deny::Rule)
}

fn allow(text: &str) -> Result<Rule, String> {
    let rule = rule(text)?;
    if rule.may_be_allowed() {
        return Ok(rule);
    }
    Err("what this rule forbids can not be done, so it can not be allowed".to_owned())
}

/// A parser of fixed names, so that help and completions list them.
fn named<T: Clone + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(values.each_ref().map(|(name, _)| *name));
    names.try_map(move |text| {
        let value = values.iter().find(|(name, _)| *name == text);
        value.map(|(_, value)| value.clone()).ok_or("no such name")
    })
}

fn reward(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err("it must be a number".to_owned()),
    }
}

/// `I/N` with 1 ≤ I ≤ N.
fn shard(text: &str) -> Result<(u64, u64), String> {
    let parts = text
        .split_once('/')
        .and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
    match parts {
        Some((index, count)) if 1 <= index && index <= count => Ok((index, count)),
        _ => Err("write part and number of parts, as 1/4".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_has_a_variable_of_its_name() {
        let command = command();
        let mut seen = 0;
        for verb in std::iter::once(&command).chain(command.get_subcommands()) {
            for arg in verb.get_arguments() {
                let Some(long) = arg.get_long() else { continue };
                if arg.is_hide_set() || matches!(long, "help" | "version") {
                    continue;
                }
                let name = format!("CASEPACK_{}", long.replace('-', "_").to_uppercase());
                assert_eq!(arg.get_env(), Some(name.as_ref()), "--{long}");
                seen += 1;
            }
        }
        assert!(seen > 50);
    }

    #[test]
    fn unknown_rules_are_refused_with_the_nearest_name() {
        assert_eq!(
            rule("reservd-dest").unwrap_err(),
            "there is no such rule; did you mean 'reserved-dest'?"
        );
        assert_eq!(rule("zzz").unwrap_err(), "there is no such rule");
        assert!(
            allow("yaml-syntax")
                .unwrap_err()
                .contains("can not be allowed")
        );
        assert_eq!(allow("unknown-key"), Ok(Rule::UnknownKey));
    }
}
