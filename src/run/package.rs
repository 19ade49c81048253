//! A task package as a run needs it: what `task.toml` says, and where things lie.
//!
//! Owns the reading of `task.toml` (harbor.md 2) as far as a run without containers can follow it.
//! Refuses to know datasets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use toml_edit::{DocumentMut, Item, TableLike};

use super::exclude::Exclude;
use super::limits::Limits;
use crate::dataset::task_toml;
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
    /// `[solution].env`
    pub(super) solution_env: BTreeMap<String, String>,
    /// What the agent's processes are held to, and those of a verifier that shares its environment.
    pub(super) limits: Limits,
    /// A link of the task, for which there is a copy of its file here.
    pub(super) link: Option<TreePath>,
    /// What it asks for that a run without containers does not give: fields of `task.toml`.
    pub(super) unheld: Vec<String>,
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
    pub(super) agent: Turn,
    pub(super) verifier: Turn,
    /// `[verifier].env`
    pub(super) verifier_env: BTreeMap<String, String>,
    /// Where the verifier has an environment of its own; `None`: the agent's.
    pub(super) separate: Option<Separate>,
    /// `[[verifier.collect]]`: shell commands that are run when the agent has ended.
    pub(super) collect: Vec<(String, Turn)>,
    /// Rewards without which the following steps are left out.
    pub(super) min_reward: BTreeMap<String, f64>,
    /// `/tests`, with an executable `test.sh`.
    pub(super) tests: Tree,
    /// `/solution`, with an executable `solve.sh`, if there is one.
    pub(super) solution: Option<Tree>,
    /// What is put into the workdir before; its `setup.sh` is run.
    pub(super) workdir: Tree,
}

/// As whom somebody works.
#[derive(Debug, Clone)]
pub(super) struct User {
    pub(super) number: u32,
    /// The name that stands in the package, where nobody has it on this machine.
    name: Option<String>,
}

/// How one party works.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    /// `None`: no limit.
    pub(super) timeout: Option<Duration>,
    /// As whom it works in the sandbox; `None`: as the caller.
    pub(super) user: Option<User>,
    /// Whether it may use the network.
    pub(super) network: bool,
}

/// What is taken from the agent's environment to that of its verifier.
#[derive(Debug, Clone)]
pub(super) struct Artifact {
    /// Where it is, and comes to be; absolute.
    pub(super) source: String,
    /// Where Harbor keeps it in between: of two that would overlap there the first one counts.
    pub(super) kept: String,
    /// What of a directory stays behind.
    pub(super) exclude: Exclude,
}

/// An environment of the verifier alone (`environment_mode = "separate"`): it sees the workspace as it
/// was at the start, and of what the agent did only the artifacts.
#[derive(Debug)]
pub(super) struct Separate {
    /// In their order.
    pub(super) artifacts: Vec<Artifact>,
    /// Its own `env`.
    pub(super) env: BTreeMap<String, String>,
    /// What its processes are held to.
    pub(super) limits: Limits,
}

impl Turn {
    /// As whom it works in the sandbox.
    pub(super) fn user(&self) -> Option<u32> {
        self.user.as_ref().map(|user| user.number)
    }
}

impl Step {
    /// Names of users that nobody has on this machine.
    pub(super) fn unknown_users(&self) -> impl Iterator<Item = &str> {
        let turns = [&self.agent, &self.verifier].into_iter();
        let turns = turns.chain(self.collect.iter().map(|(_, turn)| turn));
        turns.filter_map(|turn| turn.user.as_ref()?.name.as_deref())
    }

    /// What is said about this step, with its name when it has one.
    pub(super) fn say(&self, told: &str) -> String {
        if self.name.is_empty() {
            told.to_owned()
        } else {
            format!("Step {}: {told}", self.name)
        }
    }
}

impl Artifact {
    /// Whether it is what lies at the absolute path `path`, or holds that.
    pub(super) fn covers(&self, path: &str) -> bool {
        Path::new(path).starts_with(&self.source)
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
/// As whom somebody works whose name is not known here.
pub(super) const ORDINARY: u32 = 1000;
/// Harbor's own defaults.
const VERIFIER_TIMEOUT: Duration = Duration::from_mins(10);
const COLLECT_TIMEOUT: Duration = Duration::from_mins(1);

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
        let (tree, links) = harbor::read_task(&Arc::new(root), KEEP).map_err(|bad| {
            let Some(bad) = bad.first() else {
                return broken("The package can not be read");
            };
            let at = dir.join(&bad.shown);
            let target = at.canonicalize().ok().filter(|_| at.is_symlink());
            let own = dir.canonicalize().ok();
            // Harbor takes links as long as they stay in the task.
            if target
                .zip(own)
                .is_some_and(|(target, own)| target.starts_with(own))
            {
                return Unusable::Elsewhere(format!(
                    "its {} is a link, and not to a file that lies in a container with it; put \
                     the files themselves in its place.",
                    bad.shown
                ));
            }
            broken(format!(
                "The package has a file that can not be used: {bad}"
            ))
        })?;
        let text = read_text(&tree, "task.toml")?;
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            broken(format!("task.toml is not valid TOML: {}", error.message()))
        })?;
        let faults = task_toml::faults(document.as_table());
        if !faults.is_empty() {
            let faults: Vec<_> = faults
                .iter()
                .map(|(what, fix)| format!("{what} {fix}"))
                .collect();
            let mut told = format!("task.toml is not what Harbor takes: {}", faults.join(" "));
            told.truncate(told.trim_end_matches('.').len());
            return Err(broken(told));
        }
        let task = Table(document.as_table());
        let environment = task.table("environment");
        linux(&environment)?;
        let metadata = task.table("metadata");
        let own = metadata.text("generated_by").as_deref() == Some("casepack")
            && metadata.text("environment_mode").as_deref() == Some("dockerfile")
            && builds_the_workspace(&tree);
        let image = environment.named("docker_image");
        let workspace = workspace(&tree, own, image)?;
        let workdir = environment.text("workdir");
        let workdir = workdir.unwrap_or_else(|| WORKDIR.to_owned());
        without_nul("[environment].workdir", &workdir)?;
        let own = task.get("steps").is_some();
        let steps = steps(&task, &tree, &workdir)?;
        Ok(Self {
            workspace,
            env: environment.texts("env")?,
            solution_env: task.table("solution").texts("env")?,
            limits: Limits::of("environment", |field| environment.get(field))?,
            unheld: unheld(&task),
            strategy: own.then(
                || match task.text("multi_step_reward_strategy").as_deref() {
                    Some("final") => Strategy::Final,
                    _ => Strategy::Mean,
                },
            ),
            needs_python: steps.iter().any(|step| exists(&step.tests, "judge.py")),
            // A target's own rules would count too (harbor.md 6.2).
            digest: harbor::digest(&tree).ok().filter(|_| {
                let rules = |path: &TreePath| path.name() == ".harborignore";
                links.is_empty() || !tree.iter().any(|(path, _)| rules(path))
            }),
            link: links.into_iter().next(),
            workdir,
            steps,
        })
    }
}

/// Devices and services that only a container, or its host, can give, wherever they are asked for.
fn unheld(task: &Table<'_>) -> Vec<String> {
    const FIELDS: [&str; 5] = ["gpus", "healthcheck", "mcp_servers", "skills_dir", "tpu"];
    let verifier = task.table("verifier");
    let mut asked = Vec::new();
    let mut look = |table: &Table<'_>, place: &str| {
        let asks = FIELDS.iter().filter(|field| table.get(field).is_some());
        asked.extend(asks.map(|field| format!("[{place}].{field}")));
    };
    look(&task.table("environment"), "environment");
    look(&verifier.table("environment"), "verifier.environment");
    for step in task.tables("steps") {
        look(&step, "steps");
        look(
            &step.table("verifier").table("environment"),
            "steps.verifier.environment",
        );
    }
    asked.dedup();
    asked
}

fn linux(environment: &Table<'_>) -> Result<(), Unusable> {
    match environment.text("os") {
        Some(os) if !os.eq_ignore_ascii_case("linux") => {
            Err(Unusable::Elsewhere("it is a task for Windows.".to_owned()))
        }
        _ => Ok(()),
    }
}

/// Whether a party may use the network: the first of its tables that says so, else its environment.
fn network(phases: [&Table<'_>; 2], environment: &Table<'_>) -> Result<bool, Unusable> {
    let own = phases.iter().find_map(|phase| phase.text("network_mode"));
    let mode = own.or_else(|| environment.text("network_mode"));
    match mode.as_deref() {
        Some("no-network") => Ok(false),
        Some("allowlist") => Err(Unusable::Elsewhere(
            "it asks for network_mode \"allowlist\", and the sandbox has only all of the network \
             or none."
                .to_owned(),
        )),
        Some(_) => Ok(true),
        None => {
            let old = environment.get("allow_internet");
            Ok(old.and_then(task_toml::flag) != Some(false))
        }
    }
}

/// `user` of a phase: a number, or a name, which stands for this machine's user of that name and
/// else for the first ordinary one, since there is no image that knows it.
fn user(phases: [&Table<'_>; 2]) -> Result<Option<User>, Unusable> {
    // bubblewrap takes no more, and what starts containers does not either.
    const LAST: u32 = u32::MAX / 2;
    let Some(item) = phases.iter().find_map(|phase| phase.get("user")) else {
        return Ok(None);
    };
    let number = |number: i128| {
        let user = u32::try_from(number).ok().filter(|user| *user <= LAST);
        user.map(|number| Some(User { number, name: None }))
            .ok_or_else(|| {
                broken(format!(
                    "task.toml: user is {number}, and no user has that number: write one from 0 to \
                 {LAST}"
                ))
            })
    };
    if let Some(integer) = item.as_integer() {
        return number(integer.into());
    }
    // `docker exec --user` takes a group behind the user, which has its own number here.
    let name = item.as_str().unwrap_or_default();
    let name = name.split_once(':').map_or(name, |(user, _)| user);
    if let Ok(integer) = name.parse() {
        return number(integer);
    }
    let plain = |letter: char| !letter.is_control() && !letter.is_whitespace() && letter != '/';
    // The image's own, there; here the caller.
    if name.is_empty() {
        return Ok(None);
    }
    if !name.chars().all(plain) {
        return Err(broken(format!(
            "task.toml: user is {name:?}, and no user has that name: write a name, a number, or \
             leave it out"
        )));
    }
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = known.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    });
    Ok(Some(User {
        number: known.unwrap_or(ORDINARY),
        name: known.is_none().then(|| name.to_owned()),
    }))
}

/// Refuses a text that is to become a word of a command line.
fn without_nul(what: &str, text: &str) -> Result<(), Unusable> {
    if text.contains('\0') {
        return Err(broken(format!(
            "task.toml: {what} has a NUL character, which neither a path nor a command can hold"
        )));
    }
    Ok(())
}

/// The values in tables called `env` of the `task.toml` in `dir`, whoever they are for. What is wrong
/// with it is told when it is run.
pub(super) fn references(dir: &Path) -> Vec<String> {
    /// The largest `task.toml` that is looked at.
    const MAX: u64 = 16 << 20;
    fn below(table: &dyn TableLike, env: bool, found: &mut Vec<String>) {
        for (name, item) in table.iter() {
            if let Some(table) = item.as_table_like() {
                below(table, name == "env", found);
            } else if let Some(tables) = item.as_array_of_tables() {
                tables.iter().for_each(|table| below(table, false, found));
            } else if let Some(values) = item.as_array() {
                let tables = values.iter().filter_map(toml_edit::Value::as_inline_table);
                tables.for_each(|table| below(table, false, found));
            } else if env && let Some(text) = item.as_str() {
                found.push(text.to_owned());
            }
        }
    }
    let mut found = Vec::new();
    let text = Root::open(dir).ok().and_then(|root| {
        let path = TreePath::new("task.toml").ok()?;
        let (bytes, _) = root.read(&path, MAX).ok()?;
        String::from_utf8(bytes).ok()
    });
    // Most have none, and parsing takes time.
    let text = text.filter(|text| text.contains('$'));
    let document = text.and_then(|text| text.parse::<DocumentMut>().ok());
    if let Some(document) = document {
        below(document.as_table(), false, &mut found);
    }
    found
}

pub(super) fn broken(message: impl Into<String>) -> Unusable {
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
        Data::File(at) => {
            let read = at.root.read(&at.path, TEXT_MAX);
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

/// Whether what is built for a package is its workspace and nothing else: its Dockerfile is one that
/// casepack writes (`target::harbor`), so that nothing is lost without it.
fn builds_the_workspace(tree: &Tree) -> bool {
    let text = read_text(tree, "environment/Dockerfile").unwrap_or_default();
    let mut lines = text.lines();
    let first = lines.next().is_some_and(|line| line.starts_with("FROM "));
    let plain = |line: &str| {
        line == "COPY workspace/ ."
            || [
                "WORKDIR /",
                "RUN [\"mkdir\", \"-p\", \"--\", ",
                "RUN [\"chown\", \"-R\", ",
            ]
            .iter()
            .any(|begin| line.starts_with(begin) && !line.ends_with('\\'))
    };
    first && lines.all(plain) && !exists(tree, "environment/docker-compose.yaml")
}

/// The files that the agent starts with (policy 22; harbor.md 4.1); `own`: casepack made the
/// package, with a Dockerfile that only copies them.
fn workspace(tree: &Tree, own: bool, image: bool) -> Result<Tree, Unusable> {
    let built = ["environment/Dockerfile", "environment/docker-compose.yaml"]
        .into_iter()
        .find(|file| exists(tree, file));
    let dir = match (own, image, built) {
        (true, _, _) => "environment/workspace",
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

/// `artifacts`; those of other services are for Harbor.
fn artifacts(tables: [&Table<'_>; 2]) -> Result<Vec<Artifact>, Unusable> {
    let mut artifacts = Vec::new();
    let plain = |source: &str| Artifact {
        source: source.to_owned(),
        kept: source.to_owned(),
        exclude: Exclude::default(),
    };
    for table in tables {
        let list = table.get("artifacts").and_then(Item::as_array);
        let texts = list.into_iter().flatten();
        let texts: Vec<Option<&str>> = texts.map(|entry| entry.as_str()).collect();
        let mut tables = table.tables("artifacts");
        // As they stand: of two that overlap the first one counts.
        for text in texts {
            match (text, text.is_none().then(|| tables.next()).flatten()) {
                (Some(source), _) => artifacts.push(plain(source)),
                (None, Some(entry)) => artifacts.extend(artifact(&entry)?),
                (None, None) => {}
            }
        }
        for entry in tables {
            artifacts.extend(artifact(&entry)?);
        }
    }
    Ok(artifacts)
}

fn artifact(entry: &Table<'_>) -> Result<Option<Artifact>, Unusable> {
    of_main(entry)?;
    let exclude = entry.get("exclude").and_then(Item::as_array);
    let exclude = exclude.into_iter().flatten();
    Ok(entry.text("source").map(|source| Artifact {
        kept: entry.text("destination").unwrap_or_else(|| source.clone()),
        source,
        exclude: Exclude::new(exclude.filter_map(|pattern| pattern.as_str())),
    }))
}

/// Refuses what is about another service than the agent's.
fn of_main(table: &Table<'_>) -> Result<(), Unusable> {
    match table.text("service").as_deref().map(str::trim) {
        None | Some("main" | "") => Ok(()),
        Some(service) => Err(Unusable::Elsewhere(format!(
            "it takes something from the service '{service}', and casepack runs without containers."
        ))),
    }
}

fn steps(task: &Table<'_>, tree: &Tree, workdir: &str) -> Result<Vec<Step>, Unusable> {
    if task.get("steps").is_none() {
        return Ok(vec![step(task, &Table(empty()), tree, workdir)?]);
    }
    let steps: Vec<_> = task
        .tables("steps")
        .map(|own| step(task, &own, tree, workdir))
        .collect::<Result<_, _>>()?;
    if steps.is_empty() {
        return Err(broken("task.toml: steps is empty"));
    }
    Ok(steps)
}

/// One step; what it does not say itself (`own` is empty where there are no steps) the task says.
fn step(task: &Table<'_>, own: &Table<'_>, tree: &Tree, workdir: &str) -> Result<Step, Unusable> {
    let name = own.text("name").unwrap_or_default();
    let dir = if name.is_empty() {
        String::new()
    } else {
        format!("steps/{name}/")
    };
    let of_step = |place: &str| format!("{dir}{place}");
    let environment = task.table("environment");
    let agents = [&own.table("agent"), &task.table("agent")];
    let verifiers = [&own.table("verifier"), &task.table("verifier")];
    let timeout = |phases: [&Table<'_>; 2]| {
        let mut told = phases.iter().filter_map(|phase| phase.get("timeout_sec"));
        told.find_map(task_toml::number).map(seconds)
    };
    let agent = Turn {
        timeout: timeout(agents),
        user: user(agents)?,
        network: network(agents, &environment)?,
    };
    let (separate, around) = separate(task, own, tree, &dir, workdir)?;
    let around = around.as_ref().unwrap_or(&environment);
    let verifier = Turn {
        timeout: Some(timeout(verifiers).unwrap_or(VERIFIER_TIMEOUT)),
        user: user(verifiers)?,
        network: network(verifiers, around)?,
    };
    let mut collect = Vec::new();
    for hook in verifiers
        .iter()
        .rev()
        .flat_map(|table| table.tables("collect"))
    {
        of_main(&hook)?;
        let turn = Turn {
            timeout: Some(timeout([&hook, &hook]).unwrap_or(COLLECT_TIMEOUT)),
            user: user([&hook, &hook])?,
            network: agent.network,
        };
        if let Some(command) = hook.text("command") {
            without_nul("a command of verifier.collect", &command)?;
            collect.push((command, turn));
        }
    }
    let mut verifier_env = BTreeMap::new();
    for table in verifiers.iter().rev() {
        verifier_env.extend(table.texts("env")?);
    }
    let (tests, solution) = (of_step("tests"), of_step("solution"));
    // A step's own solution stands in front of the task's.
    let solution = if tree.below(&tree_path(&solution)?).is_empty() {
        "solution"
    } else {
        &solution
    };
    let solution = overlaid(tree, &[solution], SOLVE)?;
    let dirs: &[&str] = if dir.is_empty() {
        &["tests"]
    } else {
        &["tests", &tests]
    };
    let tests = overlaid(tree, dirs, TEST)?;
    if !exists(&tests, TEST) {
        return Err(broken(format!("{}{TEST} is missing", of_step("tests/"))));
    }
    Ok(Step {
        instruction: instruction(tree, &of_step("instruction.md"))?,
        agent,
        verifier,
        verifier_env,
        separate,
        collect,
        min_reward: min_reward(own),
        tests,
        solution: Some(solution).filter(|solution| exists(solution, SOLVE)),
        workdir: if dir.is_empty() {
            Tree::default()
        } else {
            overlaid(tree, &[&of_step("workdir")], SETUP)?
        },
        name,
    })
}

/// The environment of a verifier that has one of its own, and its table (Harbor's
/// `verifier_mode.py`): the step's, the task's, or a fresh copy of the agent's.
fn separate<'t>(
    task: &Table<'t>,
    own: &Table<'t>,
    tree: &Tree,
    dir: &str,
    workdir: &str,
) -> Result<(Option<Separate>, Option<Table<'t>>), Unusable> {
    let verifiers = [own.table("verifier"), task.table("verifier")];
    let is_separate = verifiers.iter().find_map(|table| {
        let said = table
            .text("environment_mode")
            .map(|mode| mode == "separate");
        said.or_else(|| table.get("environment").map(|_| true))
    });
    if is_separate != Some(true) {
        return Ok((None, None));
    }
    let built = [&format!("{dir}tests"), "tests"]
        .into_iter()
        .flat_map(|dir| ["Dockerfile", "docker-compose.yaml"].map(|name| format!("{dir}/{name}")))
        .any(|file| exists(tree, &file));
    let environments = verifiers.each_ref().map(|table| table.table("environment"));
    if built || environments.iter().any(|table| table.named("docker_image")) {
        return Err(Unusable::Elsewhere(
            "its verifier has an image of its own, and casepack runs without containers."
                .to_owned(),
        ));
    }
    let said = verifiers
        .iter()
        .position(|table| table.get("environment").is_some());
    let [of_step, of_task] = environments;
    let (table, place) = match said {
        Some(0) => (of_step, "steps.verifier.environment"),
        Some(_) => (of_task, "verifier.environment"),
        None => (task.table("environment"), "environment"),
    };
    linux(&table)?;
    if table.text("workdir").is_some_and(|other| other != workdir) {
        return Err(Unusable::Elsewhere(
            "its verifier works in another workdir than its agent, which needs a container."
                .to_owned(),
        ));
    }
    let separate = Separate {
        artifacts: artifacts([task, own])?,
        env: table.texts("env")?,
        limits: Limits::of(place, |field| table.get(field))?,
    };
    Ok((Some(separate), Some(table)))
}

fn min_reward(step: &Table<'_>) -> BTreeMap<String, f64> {
    let Some(item) = step.get("min_reward") else {
        return BTreeMap::new();
    };
    if let Some(least) = task_toml::number(item) {
        return BTreeMap::from([("reward".to_owned(), least)]);
    }
    let table = item.as_table_like();
    let bounds = table.into_iter().flat_map(TableLike::iter);
    bounds
        .filter_map(|(key, item)| Some((key.to_owned(), task_toml::number(item)?)))
        .collect()
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

/// A TOML table. Its types are those of the schema, which was asked before.
#[derive(Clone, Copy)]
struct Table<'a>(&'a dyn TableLike);

impl<'a> Table<'a> {
    fn get(&self, key: &str) -> Option<&'a Item> {
        self.0.get(key).filter(|item| !item.is_none())
    }

    /// The table of that name, or an empty one.
    fn table(&self, key: &str) -> Self {
        let table = self.get(key).and_then(Item::as_table_like);
        table.map_or_else(|| Self(empty()), Self)
    }

    /// The tables of a list.
    fn tables(&self, key: &str) -> impl Iterator<Item = Self> {
        task_toml::tables(self.get(key)).into_iter().map(Self)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.get(key)?.as_str().map(str::to_owned)
    }

    /// Whether there is a text that is not empty.
    fn named(&self, key: &str) -> bool {
        self.text(key).is_some_and(|text| !text.is_empty())
    }

    fn texts(&self, key: &str) -> Result<BTreeMap<String, String>, Unusable> {
        let entries = self.table(key).0.iter();
        entries
            .map(|(name, item)| {
                let value = item.as_str().unwrap_or_default();
                if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                    return Err(broken(format!(
                        "task.toml: {key}.{name} can not be an environment variable: rename it"
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
