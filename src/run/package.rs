//! A task package as a run needs it: what `task.toml` says, and where things lie.
//!
//! Owns the reading of `task.toml` (harbor.md 2) as far as a run without containers can follow it.
//! Refuses to know datasets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use toml_edit::{DocumentMut, Item, TableLike};

use super::limits::Limits;
use crate::digest::Digest;
use crate::fs::Root;
use crate::path::TreePath;
use crate::target::harbor;
use crate::tree::{Data, Mode, Tree, TreeBuilder};

/// A package, read.
#[derive(Debug)]
pub(super) struct Package {
    /// What the agent starts with.
    pub(super) workspace: Tree,
    /// The digest that Harbor computes for it.
    pub(super) digest: Option<Digest>,
    /// Where the agent works.
    pub(super) workdir: String,
    /// `[environment].env`
    pub(super) env: BTreeMap<String, String>,
    /// `[verifier].env`
    pub(super) verifier_env: BTreeMap<String, String>,
    /// `[solution].env`
    pub(super) solution_env: BTreeMap<String, String>,
    /// Whether the agent may use the network.
    pub(super) agent_network: bool,
    /// Whether the verifier may.
    pub(super) verifier_network: bool,
    /// As whom the agent works in the sandbox; `None`: as the caller.
    pub(super) agent_user: Option<u32>,
    /// As whom the verifier works.
    pub(super) verifier_user: Option<u32>,
    /// What its processes are held to.
    pub(super) limits: Limits,
    /// What it asks for that a run without containers does not give: fields of `task.toml`.
    pub(super) unheld: Vec<&'static str>,
    /// Whether the verifier sees only `artifacts` of what the agent did.
    pub(super) separate: Option<Vec<String>>,
    /// What is done, in order.
    pub(super) steps: Vec<Step>,
    /// How the rewards of `[[steps]]` become one; `None`: the package has none.
    pub(super) strategy: Option<Strategy>,
    /// The judges that casepack brought along need `python3`.
    pub(super) needs_python: bool,
}

/// One turn of agent and verifier.
#[derive(Debug)]
pub(super) struct Step {
    /// The step's name; empty for the only one of a package without steps.
    pub(super) name: String,
    /// What the agent is told.
    pub(super) instruction: String,
    /// `None`: no limit.
    pub(super) agent_timeout: Option<Duration>,
    pub(super) verifier_timeout: Duration,
    /// Rewards without which the following steps are left out.
    pub(super) min_reward: BTreeMap<String, f64>,
    /// `/tests`, with an executable `test.sh`.
    pub(super) tests: Tree,
    /// `/solution`, with an executable `solve.sh`, if there is one.
    pub(super) solution: Option<Tree>,
    /// What is put into the workdir before; its `setup.sh` is run.
    pub(super) workdir: Tree,
}

impl Step {
    /// What is said about this step, with its name when it has one.
    pub(super) fn say(&self, told: &str) -> String {
        if self.name.is_empty() {
            told.to_owned()
        } else {
            format!("Step {}: {told}", self.name)
        }
    }
}

/// `multi_step_reward_strategy`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// The last executed step's rewards.
    Final,
    /// The mean per key.
    Mean,
}

/// Why a package can't be run.
#[derive(Debug)]
pub(super) enum Unusable {
    /// Something is wrong with it.
    Broken(String),
    /// Nothing is, but it wants what this machine can't give.
    Elsewhere(String),
}

/// Files up to this size are read once; larger ones again when they are copied.
const KEEP: u64 = 16 << 10;
/// The largest `task.toml` or instruction.
const TEXT_MAX: u64 = 64 << 20;
/// The verifier.
pub(super) const TEST: &str = "test.sh";
/// The oracle's script.
pub(super) const SOLVE: &str = "solve.sh";
/// A step's script.
pub(super) const SETUP: &str = "setup.sh";
/// Where the agent works when the package does not say: the documented default of `--workdir`.
const WORKDIR: &str = "/workspace";
/// Harbor's own default.
const VERIFIER_TIMEOUT: f64 = 600.0;

impl Package {
    /// Reads the package at `dir`.
    pub(super) fn read(dir: &Path) -> Result<Self, Unusable> {
        let root = Root::open(dir).map_err(|error| {
            broken(format!(
                "{} can not be opened: {}",
                dir.display(),
                error.source
            ))
        })?;
        let tree = harbor::read_task(&Arc::new(root), KEEP).map_err(|bad| {
            let bad = bad.first().map_or_else(String::new, ToString::to_string);
            broken(format!(
                "the package has a file that can not be used: {bad}"
            ))
        })?;
        let text = read_text(&tree, "task.toml")?;
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            broken(format!("task.toml is not valid TOML: {}", error.message()))
        })?;
        let task = Table(document.as_table());
        let environment = task.table("environment")?;
        let agent = task.table("agent")?;
        let verifier = task.table("verifier")?;
        if environment
            .text("os")?
            .is_some_and(|os| !os.eq_ignore_ascii_case("linux"))
        {
            return Err(Unusable::Elsewhere("it is a task for Windows.".to_owned()));
        }
        let mode = task.table("metadata")?.text("environment_mode")?;
        let image = environment.text("docker_image")?.is_some();
        let workspace = workspace(&tree, mode.as_deref(), image)?;
        let own_image = verifier.table("environment")?.get("docker_image").is_some();
        let built = ["tests/Dockerfile", "tests/docker-compose.yaml"];
        if own_image || built.into_iter().any(|file| exists(&tree, file)) {
            return Err(Unusable::Elsewhere(
                "its verifier has an image of its own, and casepack runs without containers."
                    .to_owned(),
            ));
        }
        let separate = match verifier.text("environment_mode")?.as_deref() {
            Some("separate") => true,
            _ => verifier.get("environment").is_some(),
        };
        let network = |phase: &Table<'_>| -> Result<bool, Unusable> {
            let mode = match phase.text("network_mode")? {
                Some(mode) => Some(mode),
                None => environment.text("network_mode")?,
            };
            let old = environment.get("allow_internet").and_then(Item::as_bool);
            match mode.as_deref() {
                Some("no-network") => Ok(false),
                Some("allowlist") => Err(Unusable::Elsewhere(
                    "it asks for network_mode \"allowlist\", and the sandbox has only all of the \
                     network or none."
                        .to_owned(),
                )),
                Some("public") => Ok(true),
                None => Ok(old != Some(false)),
                Some(other) => Err(broken(format!(
                    "task.toml: the network_mode '{other}' is unknown"
                ))),
            }
        };
        let steps = steps(&task, &tree, &agent, &verifier)?;
        let strategy = match task.text("multi_step_reward_strategy")?.as_deref() {
            Some("final") => Strategy::Final,
            None | Some("mean") => Strategy::Mean,
            Some(other) => {
                return Err(broken(format!(
                    "task.toml: the multi_step_reward_strategy '{other}' is unknown"
                )));
            }
        };
        Ok(Self {
            workspace,
            workdir: environment
                .text("workdir")?
                .unwrap_or_else(|| WORKDIR.to_owned()),
            env: environment.texts("env")?,
            verifier_env: verifier.texts("env")?,
            solution_env: task.table("solution")?.texts("env")?,
            agent_network: network(&agent)?,
            verifier_network: network(&verifier)?,
            limits: Limits::of(|field| environment.get(field)),
            unheld: unheld(&environment),
            agent_user: user(&agent)?,
            verifier_user: user(&verifier)?,
            separate: if separate {
                Some(artifacts(&task)?)
            } else {
                None
            },
            strategy: task.get("steps").map(|_| strategy),
            needs_python: steps.iter().any(|step| exists(&step.tests, "judge.py")),
            digest: harbor::digest(&tree).ok(),
            steps,
        })
    }
}

/// Devices and services that only a container, or its host, can give.
fn unheld(environment: &Table<'_>) -> Vec<&'static str> {
    const FIELDS: [&str; 5] = ["gpus", "healthcheck", "mcp_servers", "skills_dir", "tpu"];
    let asks = |field: &&str| environment.get(field).is_some();
    FIELDS.into_iter().filter(asks).collect()
}

/// `user` of a phase: a number, or a name, which stands for this machine's user of that name and
/// else for the first ordinary one, since there is no image that knows it.
fn user(phase: &Table<'_>) -> Result<Option<u32>, Unusable> {
    const ORDINARY: u32 = 1000;
    let Some(item) = phase.get("user") else {
        return Ok(None);
    };
    if let Some(number) = item.as_integer() {
        return u32::try_from(number)
            .map(Some)
            .map_err(|_| broken(format!("task.toml: the user {number} is none")));
    }
    let name = item
        .as_str()
        .ok_or_else(|| broken("task.toml: user is neither a name nor a number"))?;
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = known.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    });
    Ok(Some(number.unwrap_or(ORDINARY)))
}

fn broken(message: impl Into<String>) -> Unusable {
    let mut message = message.into();
    message.push('.');
    Unusable::Broken(message)
}

fn exists(tree: &Tree, path: &str) -> bool {
    TreePath::new(path).is_ok_and(|path| tree.get(&path).is_some())
}

fn tree_path(text: &str) -> Result<TreePath, Unusable> {
    TreePath::new(text)
        .map_err(|error| broken(format!("'{text}' is no path in a package: {error}")))
}

fn read_text(tree: &Tree, path: &str) -> Result<String, Unusable> {
    let entry = tree
        .get(&tree_path(path)?)
        .ok_or_else(|| broken(format!("{path} is missing")))?;
    let bytes = match &entry.content.data {
        Data::Bytes(bytes) => bytes.to_vec(),
        Data::File { root, path: at, .. } => {
            let read = root.read(at, TEXT_MAX);
            let (bytes, _) =
                read.map_err(|error| broken(format!("{path} can not be read: {error}")))?;
            bytes
        }
    };
    String::from_utf8(bytes).map_err(|_| broken(format!("{path} is not UTF-8")))
}

/// The files below `dirs`, those of later ones over those of earlier ones; `script` is executable
/// (as Harbor makes it).
fn overlaid(tree: &Tree, dirs: &[&str], script: &str) -> Result<Tree, Unusable> {
    let mut files = BTreeMap::new();
    for dir in dirs {
        for (path, entry) in tree.below(&tree_path(dir)?).iter() {
            files.insert(path.clone(), entry.clone());
        }
    }
    let mut builder = TreeBuilder::new();
    for (path, entry) in files {
        let mode = if path.as_str() == script {
            Mode::Executable
        } else {
            entry.mode
        };
        builder
            .insert(path, mode, entry.content)
            .map_err(|clash| broken(format!("{}: {clash}", dirs.join(" and "))))?;
    }
    Ok(builder.finish())
}

/// The files that the agent starts with (policy 22; harbor.md 4.1).
fn workspace(tree: &Tree, mode: Option<&str>, image: bool) -> Result<Tree, Unusable> {
    let built = ["environment/Dockerfile", "environment/docker-compose.yaml"]
        .into_iter()
        .find(|file| exists(tree, file));
    let dir = match (mode, image, built) {
        (Some("dockerfile"), _, _) => "environment/workspace",
        (_, true, None) => "environment",
        (_, _, Some(file)) => {
            return Err(Unusable::Elsewhere(format!(
                "its {file} asks for an image to be built, and casepack runs without containers."
            )));
        }
        (_, false, None) => {
            return Err(broken(
                "task.toml has no docker_image, and environment/ no Dockerfile",
            ));
        }
    };
    Ok(tree.below(&tree_path(dir)?))
}

fn artifacts(task: &Table<'_>) -> Result<Vec<String>, Unusable> {
    let mut sources = Vec::new();
    if let Some(list) = task.get("artifacts").and_then(Item::as_array) {
        for entry in list {
            let source = match entry.as_inline_table() {
                Some(table) => table.get("source").and_then(toml_edit::Value::as_str),
                None => entry.as_str(),
            };
            let source = source
                .ok_or_else(|| broken("task.toml: artifacts has an entry without a source"))?;
            sources.push(source.to_owned());
        }
    }
    if let Some(list) = task.get("artifacts").and_then(Item::as_array_of_tables) {
        for entry in list {
            sources.extend(Table(entry).text("source")?);
        }
    }
    Ok(sources)
}

fn steps(
    task: &Table<'_>,
    tree: &Tree,
    agent: &Table<'_>,
    verifier: &Table<'_>,
) -> Result<Vec<Step>, Unusable> {
    let agent_timeout = agent.number("timeout_sec")?;
    let verifier_timeout = verifier.number("timeout_sec")?.unwrap_or(VERIFIER_TIMEOUT);
    let tests = |dirs: &[&str]| match overlaid(tree, dirs, TEST)? {
        tests if exists(&tests, TEST) => Ok(tests),
        _ => Err(broken(format!("{}/{TEST} is missing", dirs.join("/")))),
    };
    let solution = |dir: &str| -> Result<Option<Tree>, Unusable> {
        let solution = overlaid(tree, &[dir], SOLVE)?;
        Ok(Some(solution).filter(|solution| exists(solution, SOLVE)))
    };
    let Some(item) = task.get("steps") else {
        return Ok(vec![Step {
            name: String::new(),
            instruction: instruction(tree, "instruction.md")?,
            agent_timeout: agent_timeout.map(seconds),
            verifier_timeout: seconds(verifier_timeout),
            min_reward: BTreeMap::new(),
            tests: tests(&["tests"])?,
            solution: solution("solution")?,
            workdir: Tree::default(),
        }]);
    };
    let tables: Vec<&dyn TableLike> = if let Some(tables) = item.as_array_of_tables() {
        tables.iter().map(|table| table as &dyn TableLike).collect()
    } else {
        let list = item
            .as_array()
            .ok_or_else(|| broken("task.toml: steps is no list"))?;
        list.iter()
            .filter_map(toml_edit::Value::as_inline_table)
            .map(|table| table as &dyn TableLike)
            .collect()
    };
    let mut steps = Vec::new();
    for table in tables {
        let table = Table(table);
        let name = table
            .text("name")?
            .ok_or_else(|| broken("task.toml: a step has no name"))?;
        // One component, so that it can name a directory here too.
        if name.contains('/') || TreePath::new(&name).is_err() {
            return Err(broken(format!("task.toml: '{name}' is no name for a step")));
        }
        let dir = format!("steps/{name}");
        let own_tests = format!("{dir}/tests");
        let own_solution = format!("{dir}/solution");
        let own_agent = table.table("agent")?.number("timeout_sec")?;
        let own_verifier = table.table("verifier")?.number("timeout_sec")?;
        steps.push(Step {
            instruction: instruction(tree, &format!("{dir}/instruction.md"))?,
            agent_timeout: own_agent.or(agent_timeout).map(seconds),
            verifier_timeout: seconds(own_verifier.unwrap_or(verifier_timeout)),
            min_reward: min_reward(&table)?,
            tests: tests(&["tests", &own_tests])?,
            // A step's own solution stands in front of the task's.
            solution: if tree.below(&tree_path(&own_solution)?).is_empty() {
                solution("solution")?
            } else {
                solution(&own_solution)?
            },
            workdir: overlaid(tree, &[&format!("{dir}/workdir")], SETUP)?,
            name,
        });
    }
    if steps.is_empty() {
        return Err(broken("task.toml: steps is empty"));
    }
    Ok(steps)
}

fn min_reward(step: &Table<'_>) -> Result<BTreeMap<String, f64>, Unusable> {
    let Some(item) = step.get("min_reward") else {
        return Ok(BTreeMap::new());
    };
    if let Some(least) = number(item) {
        return Ok(BTreeMap::from([("reward".to_owned(), least)]));
    }
    let table = item
        .as_table_like()
        .ok_or_else(|| broken("task.toml: min_reward is neither a number nor a table"))?;
    table
        .iter()
        .map(|(key, item)| {
            let least = number(item)
                .ok_or_else(|| broken(format!("task.toml: min_reward.{key} is no number")))?;
            Ok((key.to_owned(), least))
        })
        .collect()
}

fn number(item: &Item) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "seconds and rewards")]
    item.as_float()
        .or_else(|| item.as_integer().map(|number| number as f64))
}

/// What is no sensible time is none (harbor.md 2: zero and less end the agent at once).
fn seconds(seconds: f64) -> Duration {
    if seconds.is_nan() || seconds <= 0.0 {
        return Duration::ZERO;
    }
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

fn instruction(tree: &Tree, path: &str) -> Result<String, Unusable> {
    let text = read_text(tree, path)?;
    // Harbor's reader takes every line end for a newline.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    Ok(without_canary(&text).to_owned())
}

/// Leading marker lines and then leading blank lines are not shown to agents (harbor.md 3).
fn without_canary(text: &str) -> &str {
    let marker = |line: &str| {
        let line = line.trim();
        let inner = match line.strip_prefix("<!--") {
            Some(comment) => comment.strip_suffix("-->"),
            None => line.strip_prefix('#'),
        };
        inner.is_some_and(|inner| inner.to_lowercase().contains("canary"))
    };
    let mut rest = text;
    for skip in [&marker as &dyn Fn(&str) -> bool, &|line: &str| {
        line.trim().is_empty()
    }] {
        while let Some((line, after)) = rest.split_once('\n') {
            if !skip(line) {
                break;
            }
            rest = after;
        }
        if !rest.contains('\n') && skip(rest) {
            rest = "";
        }
    }
    rest
}

/// A TOML table whose values have types.
struct Table<'a>(&'a dyn TableLike);

impl<'a> Table<'a> {
    fn get(&self, key: &str) -> Option<&'a Item> {
        self.0.get(key).filter(|item| !item.is_none())
    }

    fn table(&self, key: &str) -> Result<Self, Unusable> {
        match self.get(key) {
            None => Ok(Self(empty())),
            Some(item) => item
                .as_table_like()
                .map(Self)
                .ok_or_else(|| broken(format!("task.toml: {key} is no table"))),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>, Unusable> {
        self.get(key)
            .map(|item| {
                item.as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| broken(format!("task.toml: {key} is no string")))
            })
            .transpose()
    }

    fn number(&self, key: &str) -> Result<Option<f64>, Unusable> {
        self.get(key)
            .map(|item| {
                number(item).ok_or_else(|| broken(format!("task.toml: {key} is no number")))
            })
            .transpose()
    }

    fn texts(&self, key: &str) -> Result<BTreeMap<String, String>, Unusable> {
        self.table(key)?
            .0
            .iter()
            .map(|(name, item)| {
                let value = item
                    .as_str()
                    .ok_or_else(|| broken(format!("task.toml: {key}.{name} is no string")))?;
                if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                    return Err(broken(format!(
                        "task.toml: {key}.{name} can not be an environment variable"
                    )));
                }
                Ok((name.to_owned(), value.to_owned()))
            })
            .collect()
    }
}

fn empty() -> &'static toml_edit::Table {
    static EMPTY: std::sync::OnceLock<toml_edit::Table> = std::sync::OnceLock::new();
    EMPTY.get_or_init(toml_edit::Table::new)
}
