//! The agents that casepack knows by name: their documented commands for work without a terminal.
//!
//! Owns command lines, credentials and login files of these programs, and what their streams say
//! about cost. Refuses to know sandboxes and processes.
//! Invariant: what comes from the dataset is one argument or the standard input, never code; none
//! of it can be taken for an option.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::json;
use super::results::{AgentRun, Tokens};
use crate::fs::Root;
use crate::path::TreePath;

/// A program that casepack knows how to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Anthropic's `claude`.
    ClaudeCode,
    /// `OpenAI`'s `codex`.
    Codex,
    /// `opencode`.
    OpenCode,
}

/// What an agent is asked to do, and how.
#[derive(Debug, Default)]
pub(super) struct Asked<'a> {
    /// As packages have it: the runner's system prompt stands in front.
    pub(super) instruction: &'a str,
    pub(super) system_prompt: Option<&'a str>,
    pub(super) model: Option<&'a str>,
    pub(super) subagent_model: Option<&'a str>,
    pub(super) effort: Option<&'a str>,
    pub(super) permission_mode: Option<&'a str>,
    /// US dollars.
    pub(super) budget: Option<f64>,
    /// Plugin directories as the agent sees them.
    pub(super) plugins: &'a [String],
    /// Where it works, as it sees it.
    pub(super) workdir: &'a str,
    /// Whether casepack's sandbox is around it.
    pub(super) sandboxed: bool,
}

/// How it is called.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    /// Its arguments.
    pub(super) args: Vec<String>,
    /// What it reads from standard input.
    pub(super) input: String,
    /// More environment.
    pub(super) env: BTreeMap<&'static str, String>,
}

/// Passed on to every known agent: the way to its provider.
const NETWORK: &[&str] = &[
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NODE_EXTRA_CA_CERTS",
    "NO_PROXY",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

impl Known {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ClaudeCode, Self::Codex, Self::OpenCode];

    /// The `runner.type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::OpenCode => "opencode",
        }
    }

    /// The agent of this `runner.type`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// The program.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude",
            Self::Codex => "codex",
            Self::OpenCode => "opencode",
        }
    }

    /// Variables of the caller that it gets when they are set: its provider's credentials.
    pub(super) fn credentials(self) -> impl Iterator<Item = &'static str> {
        let own: &[&str] = match self {
            Self::ClaudeCode => &[
                "ANTHROPIC_API_KEY",
                "ANTHROPIC_AUTH_TOKEN",
                "ANTHROPIC_BASE_URL",
                "ANTHROPIC_CUSTOM_HEADERS",
                "ANTHROPIC_VERTEX_PROJECT_ID",
                "CLAUDE_CODE_OAUTH_TOKEN",
                "CLAUDE_CODE_USE_BEDROCK",
                "CLAUDE_CODE_USE_VERTEX",
                "CLOUD_ML_REGION",
            ],
            Self::Codex => &[
                "CODEX_API_KEY",
                "OPENAI_API_KEY",
                "OPENAI_BASE_URL",
                "OPENAI_ORGANIZATION",
                "OPENAI_ORG_ID",
                "OPENAI_PROJECT",
            ],
            Self::OpenCode => &[
                "ANTHROPIC_API_KEY",
                "DEEPSEEK_API_KEY",
                "GEMINI_API_KEY",
                "GOOGLE_GENERATIVE_AI_API_KEY",
                "GROQ_API_KEY",
                "MISTRAL_API_KEY",
                "OPENAI_API_KEY",
                "OPENCODE_API_KEY",
                "OPENROUTER_API_KEY",
                "XAI_API_KEY",
            ],
        };
        own.iter().chain(NETWORK).copied()
    }

    /// Files below the home directory that hold its login.
    pub(super) fn login_files(self) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode => &[".claude.json", ".claude/.credentials.json"],
            Self::Codex => &[".codex/auth.json", ".codex/config.toml"],
            Self::OpenCode => &[
                ".config/opencode/opencode.json",
                ".config/opencode/opencode.jsonc",
                ".local/share/opencode/auth.json",
            ],
        }
    }

    /// What it has no option for, of what it was asked.
    pub(super) fn ignores(self, asked: &Asked<'_>) -> Vec<&'static str> {
        let budget = asked.budget.map(|_| "max_budget_usd");
        let plugins = (!asked.plugins.is_empty()).then_some("plugin_dirs");
        let subagents = asked.subagent_model.map(|_| "models.subagent");
        let modes: &[&str] = match self {
            Self::ClaudeCode => return Vec::new(),
            Self::Codex => &["acceptEdits", "bypassPermissions", "default", "plan"],
            Self::OpenCode => &["bypassPermissions", "default", "plan"],
        };
        let mode = asked.permission_mode.filter(|mode| !modes.contains(mode));
        let mode = mode.map(|_| "permission_mode");
        let all = [budget, plugins, subagents, mode];
        all.into_iter().flatten().collect()
    }

    /// Its command line without the program.
    pub(super) fn command(self, asked: &Asked<'_>) -> Command {
        match self {
            Self::ClaudeCode => claude(asked),
            Self::Codex => codex(asked),
            Self::OpenCode => opencode(asked),
        }
    }

    /// Adds what its output says about its work.
    pub(super) fn account(self, output: &str, run: &mut AgentRun) {
        let mut account = Account::default();
        for line in output.lines() {
            // Other programs may print between its lines.
            if let Ok(Value::Object(event)) = json::read(line.as_bytes()) {
                account.add(self, &Value::Object(event));
            }
        }
        run.cost_usd = account.cost.filter(|cost| *cost >= 0.0);
        (run.num_turns, run.token_usage) = (account.turns, account.tokens);
    }
}

/// What an agent told in its ATIF trajectory, where nothing else tells it.
pub(super) fn account_of_trajectory(logs: &Path, run: &mut AgentRun) {
    /// The largest one that is read.
    const MAX: u64 = 64 << 20;
    let read = || {
        let root = Root::open(logs).ok()?;
        let (bytes, _) = root
            .read(&TreePath::new("trajectory.json").ok()?, MAX)
            .ok()?;
        json::read::<Trajectory>(&bytes).ok()?.final_metrics
    };
    let Some(told) = read() else { return };
    let cost = told.cost.filter(|cost| *cost >= 0.0);
    run.cost_usd = run.cost_usd.or(cost);
    let cached = told.cached.unwrap_or(0);
    let tokens = told.prompt.map(|prompt| Tokens {
        // As in Harbor's results, those from the cache are among them.
        input: prompt.saturating_sub(cached),
        output: told.completion.unwrap_or(0),
        cache_read: cached,
        cache_create: 0,
    });
    run.token_usage = run.token_usage.or(tokens);
}

/// As much of an ATIF document as is asked for (harbor.md 8).
#[derive(serde::Deserialize)]
struct Trajectory {
    final_metrics: Option<FinalMetrics>,
}

#[derive(serde::Deserialize)]
struct FinalMetrics {
    #[serde(rename = "total_prompt_tokens")]
    prompt: Option<u64>,
    #[serde(rename = "total_completion_tokens")]
    completion: Option<u64>,
    #[serde(rename = "total_cached_tokens")]
    cached: Option<u64>,
    #[serde(rename = "total_cost_usd")]
    cost: Option<f64>,
}

/// An option with its value in one word, so that no value can be taken for an option.
fn option(args: &mut Vec<String>, name: &str, value: Option<&str>) {
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        args.push(format!("{name}={value}"));
    }
}

fn claude(asked: &Asked<'_>) -> Command {
    let mut args: Vec<String> = ["--print", "--output-format=stream-json", "--verbose"]
        .map(str::to_owned)
        .into();
    option(&mut args, "--model", asked.model);
    let budget = asked.budget.map(|budget| budget.to_string());
    option(&mut args, "--max-budget-usd", budget.as_deref());
    option(&mut args, "--effort", asked.effort);
    option(&mut args, "--permission-mode", asked.permission_mode);
    for plugin in asked.plugins {
        option(&mut args, "--plugin-dir", Some(plugin));
    }
    option(&mut args, "--append-system-prompt", asked.system_prompt);
    let mut env = BTreeMap::new();
    if let Some(model) = asked.subagent_model {
        env.insert("CLAUDE_CODE_SUBAGENT_MODEL", model.to_owned());
    }
    if asked.sandboxed {
        // Without it permission_mode: bypassPermissions is refused to root.
        env.insert("IS_SANDBOX", "1".to_owned());
    }
    Command {
        args,
        // A slash command is one only at the very beginning.
        input: without_prompt(asked.instruction, asked.system_prompt).to_owned(),
        env,
    }
}

fn codex(asked: &Asked<'_>) -> Command {
    let mut args: Vec<String> = ["exec", "--json", "--ephemeral", "--skip-git-repo-check"]
        .map(str::to_owned)
        .into();
    match asked.permission_mode {
        Some("plan") => args.push("--sandbox=read-only".to_owned()),
        // Codex's own sandbox can not be made inside of another one.
        mode if asked.sandboxed || mode == Some("bypassPermissions") => {
            args.push("--dangerously-bypass-approvals-and-sandbox".to_owned());
        }
        _ => args.push("--sandbox=workspace-write".to_owned()),
    }
    option(&mut args, "--cd", Some(asked.workdir));
    option(&mut args, "--model", asked.model);
    if let Some(effort) = asked.effort.filter(|effort| !effort.is_empty()) {
        // The value is TOML, of which every JSON string is one.
        let value = Value::from(effort);
        args.push(format!("--config=model_reasoning_effort={value}"));
    }
    args.push("-".to_owned());
    Command {
        args,
        input: asked.instruction.to_owned(),
        env: BTreeMap::new(),
    }
}

fn opencode(asked: &Asked<'_>) -> Command {
    let mut args: Vec<String> = ["run", "--format=json"].map(str::to_owned).into();
    option(&mut args, "--model", asked.model);
    option(&mut args, "--variant", asked.effort);
    let mut env = BTreeMap::new();
    match asked.permission_mode {
        Some("plan") => args.push("--agent=plan".to_owned()),
        Some("bypassPermissions") => {
            env.insert("OPENCODE_PERMISSION", r#"{"*":"allow"}"#.to_owned());
        }
        _ => {}
    }
    args.extend(["--".to_owned(), asked.instruction.to_owned()]);
    Command {
        args,
        input: String::new(),
        env,
    }
}

/// The instruction without the system prompt that packages put in front of it.
pub(super) fn without_prompt<'a>(instruction: &'a str, system_prompt: Option<&str>) -> &'a str {
    system_prompt
        .map(str::trim_end)
        .filter(|prompt| !prompt.is_empty())
        .and_then(|prompt| instruction.strip_prefix(prompt)?.strip_prefix("\n\n"))
        .unwrap_or(instruction)
}

/// Of an agent's last words so many characters are kept (agent-eval-harness 3.3).
const LAST_WORDS: usize = 4000;

/// The last text of the agent in a stream of one of the known agents; of other output all of it.
pub(super) fn last_words(output: &str) -> String {
    let said = output.lines().rev().find_map(|line| {
        let event: Value = json::read(line.as_bytes()).ok()?;
        let text = match event.get("type").and_then(Value::as_str)? {
            "result" => event.get("result"),
            "item.completed" if event.pointer("/item/type")? == "agent_message" => {
                event.pointer("/item/text")
            }
            "text" => event.pointer("/part/text"),
            _ => None,
        };
        text?.as_str().map(str::to_owned)
    });
    let said = said.unwrap_or_else(|| output.trim().to_owned());
    said.chars().take(LAST_WORDS).collect()
}

#[derive(Default)]
struct Account {
    cost: Option<f64>,
    turns: Option<u64>,
    tokens: Option<Tokens>,
}

impl Account {
    fn add(&mut self, agent: Known, event: &Value) {
        let kind = event.get("type").and_then(Value::as_str);
        match (agent, kind) {
            // A session that is taken up again ends more than once; its cost is the session's.
            (Known::ClaudeCode, Some("result")) => {
                let cost = event.get("total_cost_usd").and_then(Value::as_f64);
                self.cost = cost.or(self.cost);
                let turns = event.get("num_turns").and_then(Value::as_u64);
                self.turns = turns.or(self.turns);
                if let Some(usage) = event.get("usage") {
                    self.tokens = Some(Tokens {
                        input: count(usage, "/input_tokens"),
                        output: count(usage, "/output_tokens"),
                        cache_read: count(usage, "/cache_read_input_tokens"),
                        cache_create: count(usage, "/cache_creation_input_tokens"),
                    });
                }
            }
            (Known::Codex, Some("turn.completed")) => {
                let usage = event.get("usage").unwrap_or(&Value::Null);
                let cached = count(usage, "/cached_input_tokens");
                self.turn(Tokens {
                    input: count(usage, "/input_tokens").saturating_sub(cached),
                    output: count(usage, "/output_tokens"),
                    cache_read: cached,
                    cache_create: 0,
                });
            }
            (Known::OpenCode, Some("step_finish")) => {
                let part = event.get("part").unwrap_or(&Value::Null);
                if let Some(cost) = part.get("cost").and_then(Value::as_f64) {
                    self.cost = Some((self.cost.unwrap_or(0.0) + cost).min(f64::MAX));
                }
                self.turn(Tokens {
                    input: count(part, "/tokens/input"),
                    output: count(part, "/tokens/output"),
                    cache_read: count(part, "/tokens/cache/read"),
                    cache_create: count(part, "/tokens/cache/write"),
                });
            }
            _ => {}
        }
    }

    /// One more turn of the model.
    fn turn(&mut self, more: Tokens) {
        self.turns = Some(self.turns.unwrap_or(0).saturating_add(1));
        let sum = self.tokens.get_or_insert_default();
        sum.input = sum.input.saturating_add(more.input);
        sum.output = sum.output.saturating_add(more.output);
        sum.cache_read = sum.cache_read.saturating_add(more.cache_read);
        sum.cache_create = sum.cache_create.saturating_add(more.cache_create);
    }
}

fn count(value: &Value, at: &str) -> u64 {
    value.pointer(at).and_then(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_case_are_no_options() {
        for known in Known::ALL {
            let asked = Asked {
                instruction: "--version",
                model: Some("--help"),
                effort: Some("--x"),
                workdir: "/w",
                ..Asked::default()
            };
            let command = known.command(&asked);
            let options = command.args.iter().take_while(|arg| *arg != "--");
            for arg in options.filter(|arg| arg.starts_with("--")) {
                assert!(!["--version", "--help", "--x"].contains(&arg.as_str()));
            }
            let told = command.args.last().is_some_and(|last| last == "--version");
            assert!(told || command.input == "--version");
        }
    }

    #[test]
    fn what_a_program_has_no_word_for_is_told() {
        for (known, mode, told) in [
            (Known::ClaudeCode, "dontAsk", false),
            (Known::Codex, "dontAsk", true),
            (Known::Codex, "acceptEdits", false),
            (Known::OpenCode, "acceptEdits", true),
            (Known::OpenCode, "plan", false),
        ] {
            let asked = Asked {
                permission_mode: Some(mode),
                ..Asked::default()
            };
            let wanted: &[&str] = if told { &["permission_mode"] } else { &[] };
            assert_eq!(known.ignores(&asked), wanted, "{known:?} {mode}");
        }
    }

    #[test]
    fn streams_tell_what_it_cost() {
        let of = |known: Known, text: &str| {
            let mut run = AgentRun::default();
            known.account(text, &mut run);
            let tokens = run.token_usage.unwrap_or_default();
            (run.cost_usd, run.num_turns, tokens.input, tokens.output)
        };
        let claude = "noise\n{\"type\":\"system\"}\n{\"type\":\"result\",\"total_cost_usd\":0.25,\
                      \"num_turns\":3,\"usage\":{\"input_tokens\":5,\"output_tokens\":7}}\n";
        assert_eq!(of(Known::ClaudeCode, claude), (Some(0.25), Some(3), 5, 7));
        let codex = "{\"type\":\"turn.completed\",\"usage\":{\"input_tokens\":9,\
                     \"cached_input_tokens\":4,\"output_tokens\":1}}\n";
        assert_eq!(of(Known::Codex, &codex.repeat(2)), (None, Some(2), 10, 2));
        let opencode = "{\"type\":\"step_finish\",\"part\":{\"cost\":0.5,\
                        \"tokens\":{\"input\":2,\"output\":3}}}\n";
        let told = of(Known::OpenCode, &opencode.repeat(2));
        assert_eq!(told, (Some(1.0), Some(2), 4, 6));
        assert_eq!(of(Known::ClaudeCode, "[]\n7\n{"), (None, None, 0, 0));
        let dear = "{\"type\":\"step_finish\",\"part\":{\"cost\":1.7e308}}\n";
        let told = of(Known::OpenCode, &dear.repeat(2));
        assert_eq!(told, (Some(f64::MAX), Some(2), 0, 0));
        let owed = "{\"type\":\"result\",\"total_cost_usd\":-1}";
        assert_eq!(of(Known::ClaudeCode, owed), (None, None, 0, 0));
    }

    #[test]
    fn last_words_are_those_of_the_agent() {
        for (stream, wanted) in [
            ("{\"type\":\"result\",\"result\":\"done\"}\n", "done"),
            (
                "{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"a\"}}\n{\"type\":\"turn.completed\"}",
                "a",
            ),
            ("{\"type\":\"text\",\"part\":{\"text\":\"b\"}}", "b"),
            ("  plain\nwords \n", "plain\nwords"),
            ("", ""),
        ] {
            assert_eq!(last_words(stream), wanted);
        }
        assert_eq!(last_words(&"é".repeat(5000)).chars().count(), 4000);
    }
}
