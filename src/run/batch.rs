//! Batch mode: one agent, one workspace, all cases; then each case is judged with its share
//! (policy 16, agent-eval-harness 3.1). Several attempts are as many trials.
//!
//! Owns what the shared workspace holds and which file belongs to which case. Refuses to know
//! judges.
//! Invariant: a case is judged in its own package's workspace, with nothing of other cases but what
//! the dataset gives to every case.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::Keep;
use super::case::{Failure, Life, Runner, Work, write_tree};
use super::collect::{self, Limits};
use super::package::Package;
use super::results::{AgentRun, ErrorKind, OutputSkipped, Outputs, StepResult, to_text};
use super::resume;
use crate::dataset::{self, Dataset};
use crate::fs::{Root, remove_tree, write_atomic};
use crate::path::{CaseId, TreePath};
use crate::tree::{Content, Mode, Tree, TreeBuilder};
use crate::yaml::Yaml;

/// The directory of the shared trial in a run's directory.
pub(super) const NAME: &str = "_batch";
const BATCH: &str = "batch.yaml";
/// What a package's workspace has of its own case (policy 1); in batch mode all else is shared.
const OWN: [&str; 5] = [
    BATCH,
    "answers.yaml",
    "input.json",
    "input.yaml",
    "input.yml",
];

/// So many files that are in no share are named with each case.
const NAMED_MAX: usize = 20;

/// What came out of a trial that is over, in the trial's directory.
const RECORD: &str = "batch.json";

/// What came out of one trial.
pub(super) struct Batch {
    /// What the agent printed, and the outputs that were taken.
    dir: PathBuf,
    /// Whether it was made by the run that is taken up again.
    pub(super) resumed: bool,
    told: Record,
}

/// The part of it that `--resume` needs.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The packages' digests by case. With others it is another trial.
    packages: BTreeMap<String, String>,
    run: AgentRun,
    /// What is to be said about it.
    message: Option<String>,
    /// Outputs by case.
    shares: BTreeMap<String, Vec<String>>,
    /// What of the declared outputs was left behind, by case: it would be part of its share.
    #[serde(default)]
    skipped: BTreeMap<String, Vec<OutputSkipped>>,
}

impl Runner<'_> {
    /// Lets one agent work on all cases, for the attempt `attempt` at them; when that was done by
    /// the run that is taken up again, nothing. An error is why there is no verdict on any.
    pub(super) fn batch(&self, dataset: &Dataset, attempt: u32) -> Result<Batch, Failure> {
        let packages = self.request.packages;
        let first = packages
            .first()
            .ok_or_else(|| Failure::Skipped("There are no cases.".to_owned()))?;
        let dir = self.place(NAME, attempt);
        let mut digests = BTreeMap::new();
        for package in packages {
            let digest = Package::read(&package.dir).map_err(Failure::from)?.digest;
            let digest = digest.map(|digest| digest.to_string()).unwrap_or_default();
            digests.insert(package.id.to_string(), digest);
        }
        if self.request.resume
            && let Some(told) = resume::read::<Record>(&dir, RECORD)
            && told.packages == digests
        {
            return Ok(Batch {
                dir,
                resumed: true,
                told,
            });
        }
        let cleared = resume::clear(&dir);
        cleared.map_err(|error| Failure::io("Clearing the batch's directory", &error.source))?;
        if self.request.stop.load(Ordering::Relaxed) {
            return Err(Failure::stopped());
        }
        let mut package = Package::read(&first.dir).map_err(Failure::from)?;
        let mut cases = Vec::new();
        for package in packages {
            cases.push(self.read_case(dataset, package)?);
        }
        let text = dataset::batch_yaml(cases.iter().map(|case| &case.input));
        package.workspace = shared(&package.workspace, text)?;
        let counts: Vec<usize> = cases.iter().map(|case| entries(&case.input)).collect();
        let made = |error: std::io::Error| Failure::io("Making the batch's directory", &error);
        for name in ["workspace", "home", "tmp", "logs/agent", "logs/artifacts"] {
            std::fs::create_dir_all(dir.join(name)).map_err(made)?;
        }
        let workspace = Root::open(&dir.join("workspace")).map_err(|error| made(error.source))?;
        write_tree(&package.workspace, &workspace)?;
        let outputs = self.declared(&package);
        super::case::make_outputs(&workspace, &outputs);
        let work = Work {
            runner: self,
            id: first.id.clone(),
            package,
            // The instruction is the same for all cases, and so is the rest of what is asked.
            case: cases.into_iter().next(),
            dir: dir.clone(),
            workspace,
            outputs,
            attempt,
        };
        let step = work.package.steps.first();
        let step = step.ok_or_else(|| Failure::Skipped("There is no step.".to_owned()))?;
        let mut report = StepResult::new("");
        let life = Life::of(self.told.clone());
        let run = work.agent(0, step, &dir, &life, &mut report)?;
        work.unlock(&dir);
        if work.stopped() {
            return Err(Failure::stopped());
        }
        work.check_workspace(&mut report)?;
        let taken = work.take_all(packages.len())?;
        work.clean_up(&mut Vec::new());
        if self.request.keep == Keep::None {
            remove_tree(&dir.join("workspace")).ok();
        }
        let mut shares: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut skipped: BTreeMap<String, Vec<OutputSkipped>> = BTreeMap::new();
        let left: BTreeMap<&str, &OutputSkipped> = taken
            .skipped
            .iter()
            .map(|it| (it.path.as_str(), it))
            .collect();
        // What was left has its place among the others: each gets the same with it and without.
        let mut all: Vec<TreePath> = taken
            .files
            .iter()
            .map(|file| &file.path)
            .chain(taken.skipped.iter().map(|it| &it.path))
            .filter_map(|path| TreePath::new(path).ok())
            .collect();
        all.sort();
        let patterns = dataset.verification.outputs.iter();
        let patterns = patterns
            .filter_map(|output| Some((output.path.clone()?, output.batch_pattern.clone())));
        for (output, pattern) in patterns {
            let own = all.iter().filter(|file| file.starts_with(&output));
            // A declared output that is left as a whole is everybody's.
            let (whole, files): (Vec<_>, Vec<_>) = own
                .cloned()
                .partition(|path| *path == output && left.contains_key(path.as_str()));
            let parts = share(files, &pattern, &counts);
            for (package, part) in packages.iter().zip(parts) {
                let id = package.id.to_string();
                for path in whole.iter().chain(&part) {
                    if let Some(&it) = left.get(path.as_str()) {
                        skipped.entry(id.clone()).or_default().push(it.clone());
                    } else {
                        shares.entry(id.clone()).or_default().push(path.to_string());
                    }
                }
            }
        }
        // What is nobody's is told with everybody.
        let shared = shares.values().flatten().map(String::as_str);
        let of_someone = skipped.values().flatten().map(|it| it.path.as_str());
        let given: BTreeSet<&str> = shared.chain(of_someone).collect();
        let in_no_share = all
            .iter()
            .map(TreePath::as_str)
            .filter(|path| !given.contains(path) && !left.contains_key(path))
            .map(|path| OutputSkipped {
                path: path.to_owned(),
                reason: "it is in the share of no case".to_owned(),
            });
        let mut nobodys: Vec<_> = in_no_share.collect();
        if !nobodys.is_empty() {
            let told = format!("{} of the batch's outputs are in no share.", nobodys.len());
            report.add_message(&told);
        }
        let behind = taken.skipped.iter();
        nobodys.extend(
            behind
                .filter(|it| !given.contains(it.path.as_str()))
                .cloned(),
        );
        let more = nobodys.len().saturating_sub(NAMED_MAX);
        nobodys.truncate(NAMED_MAX);
        nobodys.extend((more > 0).then(|| OutputSkipped {
            path: String::new(),
            reason: format!("{more} more are not named here"),
        }));
        for package in packages.iter().filter(|_| !nobodys.is_empty()) {
            let own = skipped.entry(package.id.to_string()).or_default();
            own.extend_from_slice(&nobodys);
        }
        let told = Record {
            packages: digests,
            run: run.unwrap_or_default(),
            message: report.message,
            shares,
            skipped,
        };
        // From here on the trial is over.
        write_atomic(&dir.join(RECORD), &to_text(&told), 0o644)
            .map_err(|error| Failure::io("Writing what the batch came to", &error.source))?;
        Ok(Batch {
            dir,
            resumed: false,
            told,
        })
    }
}

impl Batch {
    /// What of the case's share was left behind.
    pub(super) fn skipped(&self, id: &CaseId) -> &[OutputSkipped] {
        let skipped = self.told.skipped.get(id.as_str());
        skipped.map_or(&[], Vec::as_slice)
    }
}

impl Work<'_> {
    /// Copies every declared output to the batch's own directory.
    fn take_all(&self, cases: usize) -> Result<Outputs, Failure> {
        let one = Limits::default();
        let limits = Limits {
            file: one.file,
            total: one
                .total
                .saturating_mul(u64::try_from(cases).unwrap_or(u64::MAX)),
            files: one.files.saturating_mul(cases),
        };
        let paths: Vec<TreePath> = self.outputs.iter().map(|(path, _)| path.clone()).collect();
        collect::outputs(&self.workspace, &paths, &self.dir.join("outputs"), limits)
            .map_err(|error| Failure::io("Collecting the outputs", &error))
    }

    /// Puts the case's share into its own workspace, and the agent's words where it is judged.
    pub(super) fn take_share(
        &self,
        batch: &Batch,
        report: &mut StepResult,
    ) -> Result<AgentRun, Failure> {
        let failed = |error: std::io::Error| Failure::io("Sharing out the batch's outputs", &error);
        let share = batch.told.shares.get(self.id.as_str());
        // Checked, as it may have been read back.
        for path in share.into_iter().flatten() {
            let path = TreePath::new(path).map_err(|why| failed(std::io::Error::other(why)))?;
            let from = batch.dir.join("outputs").join(path.as_str());
            // Nobody but casepack has written here.
            let to = self.dir.join("workspace").join(path.as_str());
            if let Some(parent) = to.parent() {
                std::fs::create_dir_all(parent).map_err(failed)?;
            }
            std::fs::copy(from, to).map_err(failed)?;
        }
        for name in ["stdout.txt", "stderr.txt"] {
            std::fs::copy(batch.dir.join(name), self.dir.join(name)).map_err(failed)?;
        }
        if let Some(told) = &batch.told.message {
            report.add_message(told);
        }
        Ok(AgentRun {
            shared: true,
            ..batch.told.run.clone()
        })
    }
}

/// The workspace of all cases: a package's one without what is of its case.
fn shared(one: &Tree, batch_yaml: String) -> Result<Tree, Failure> {
    let clash = |_| Failure::NoVerdict(ErrorKind::Internal, "Two files have one place.".to_owned());
    let mut builder = TreeBuilder::new();
    let all = one.filter(|path| !OWN.contains(&path.as_str()));
    for (path, entry) in all.iter() {
        builder
            .insert(path.clone(), entry.mode, entry.content.clone())
            .map_err(clash)?;
    }
    if let Ok(path) = TreePath::new(BATCH) {
        let content = Content::bytes(batch_yaml.into_bytes());
        builder
            .insert(path, Mode::Regular, content)
            .map_err(clash)?;
    }
    Ok(builder.finish())
}

/// How many entries of `batch.yaml` come from this input.
fn entries(input: &Yaml) -> usize {
    match input {
        Yaml::Null => 0,
        Yaml::Seq(items) => items.len(),
        _ => 1,
    }
}

/// Shares files out to cases: by `pattern` (`*`: all to every case; `RFE-{n}`: by the beginning of
/// the name, where n counts entries from 1), else for each entry in turn those that begin with the
/// next `LETTERS-digits`, where there are enough of these, or else the next one
/// (agent-eval-harness 3.3). In all of it 2 comes before 10.
fn share(mut files: Vec<TreePath>, pattern: &str, counts: &[usize]) -> Vec<Vec<TreePath>> {
    if pattern == "*" {
        return counts.iter().map(|_| files.clone()).collect();
    }
    if !pattern.is_empty() {
        let mut next = 1;
        return counts
            .iter()
            .map(|count| {
                let prefixes: Vec<String> =
                    (next..next + count).map(|n| numbered(pattern, n)).collect();
                next += count;
                let own =
                    |file: &&TreePath| prefixes.iter().any(|prefix| begins(file.name(), prefix));
                files.iter().filter(own).cloned().collect()
            })
            .collect();
    }
    files.sort_by(|a, b| by_numbers(a.as_str()).cmp(&by_numbers(b.as_str())));
    let mut groups: BTreeMap<String, Vec<TreePath>> = BTreeMap::new();
    for file in &files {
        if let Some(prefix) = letters_and_digits(file.name()) {
            groups
                .entry(prefix.to_owned())
                .or_default()
                .push(file.clone());
        }
    }
    let entries: usize = counts.iter().sum();
    let parts: Vec<Vec<TreePath>> = if !groups.is_empty() && groups.len() * 2 >= entries {
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by(|(a, _), (b, _)| by_numbers(a).cmp(&by_numbers(b)));
        groups.into_iter().map(|(_, files)| files).collect()
    } else {
        files.into_iter().map(|file| vec![file]).collect()
    };
    let mut parts = parts.into_iter();
    counts
        .iter()
        .map(|count| parts.by_ref().take(*count).flatten().collect())
        .collect()
}

/// What to sort by, so that `R-2` comes before `R-10`: text with 0, and numbers, without zeros in
/// front, with their length.
fn by_numbers(text: &str) -> Vec<(usize, &str)> {
    let mut key = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let number = first.is_ascii_digit();
        let end = rest.find(|char: char| char.is_ascii_digit() != number);
        let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
        key.push(if number {
            let digits = part.trim_start_matches('0');
            (1 + digits.len(), digits)
        } else {
            (0, part)
        });
        rest = after;
    }
    key
}

/// Whether a name begins with `prefix`, which does not end within a number: `R-1` does not begin
/// `R-10.txt`.
fn begins(name: &str, prefix: &str) -> bool {
    let digit = |end: Option<char>| end.is_some_and(|end| end.is_ascii_digit());
    name.strip_prefix(prefix)
        .is_some_and(|rest| !(digit(prefix.chars().last()) && digit(rest.chars().next())))
}

/// `{n}` and `{n:03d}` as Python's `format` has them.
fn numbered(pattern: &str, n: usize) -> String {
    let Some((before, rest)) = pattern.split_once("{n") else {
        return pattern.to_owned();
    };
    let Some((format, after)) = rest.split_once('}') else {
        return pattern.to_owned();
    };
    let digits = format.trim_start_matches(':').trim_end_matches('d');
    let width: usize = digits.parse().unwrap_or(0);
    let number = if digits.starts_with('0') {
        format!("{n:0width$}", width = width.min(20))
    } else {
        format!("{n:width$}", width = width.min(20))
    };
    format!("{before}{number}{}", numbered(after, n))
}

fn letters_and_digits(name: &str) -> Option<&str> {
    let letters = name.bytes().take_while(u8::is_ascii_alphabetic).count();
    let rest = name.get(letters..)?.strip_prefix('-')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    (letters > 0 && digits > 0).then(|| name.get(..letters + 1 + digits))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared_out(files: &[&str], pattern: &str, counts: &[usize]) -> Vec<String> {
        let files = files
            .iter()
            .map(|file| TreePath::new(file).unwrap())
            .collect();
        let parts = share(files, pattern, counts);
        let names = |part: Vec<TreePath>| {
            part.iter()
                .map(TreePath::as_str)
                .collect::<Vec<_>>()
                .join(" ")
        };
        parts.into_iter().map(names).collect()
    }

    #[test]
    fn files_are_shared_out_as_the_harness_does() {
        let files = ["out/RFE-001.md", "out/RFE-002-x.md", "out/RFE-003.md"];
        for (pattern, counts, wanted) in [
            ("*", &[1, 1][..], [files.join(" "), files.join(" ")]),
            (
                "RFE-{n:03d}",
                &[1, 1],
                [files[0].to_owned(), files[1].to_owned()],
            ),
            (
                "RFE-00{n}",
                &[2, 1],
                [files[..2].join(" "), files[2].to_owned()],
            ),
            ("", &[1, 1], [files[0].to_owned(), files[1].to_owned()]),
        ] {
            assert_eq!(shared_out(&files, pattern, counts), wanted, "{pattern}");
        }
        let numbers = ["o/R-1.txt", "o/R-10.txt", "o/R-2-x", "o/R-20"];
        assert_eq!(
            shared_out(&numbers, "R-{n}", &[1, 1]),
            ["o/R-1.txt", "o/R-2-x"]
        );
        // Without a pattern: 2 before 10, and for a case as many as it has entries.
        let numbers = [
            "o/AB-1.md",
            "o/AB-10.md",
            "o/AB-11.md",
            "o/AB-2.md",
            "o/AB-2.x",
        ];
        assert_eq!(
            shared_out(&numbers, "", &[1, 2]),
            ["o/AB-1.md", "o/AB-2.md o/AB-2.x o/AB-10.md"]
        );
        assert_eq!(
            shared_out(&["o/10.md", "o/2.md", "o/3.md"], "", &[2, 1]),
            ["o/2.md o/3.md", "o/10.md"]
        );
        let keys = ["a", "a01", "a2", "a10", "a10b", "b", "B2"].map(by_numbers);
        assert!(keys[..6].is_sorted(), "{keys:?}");
        // Names without numbers: one each, in their order; who is left gets nothing.
        assert_eq!(
            shared_out(&["o/a", "o/b"], "", &[1, 1, 1]),
            ["o/a", "o/b", ""]
        );
        assert_eq!(shared_out(&["o/TASK-1/x"], "", &[1]), ["o/TASK-1/x"]);
        assert_eq!(numbered("a{n}-{n:2}", 7), "a7- 7");
        assert_eq!(numbered("{m}{n", 7), "{m}{n");
    }
}
