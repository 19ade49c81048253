//! What a verifier left, read by Harbor's rules (harbor.md 3): rewards, and casepack's own judges.
//!
//! Owns the table of reward files. Refuses to know how the verifier ran.
//! Invariant: only finite numbers get out, and what is no verdict is told, never counted.

use std::collections::BTreeMap;

use serde_json::Value;

use super::env::Secrets;
use super::json;
use super::results::{ErrorKind, JudgeResult};
use crate::fs::{ReadError, Root};
use crate::path::TreePath;

/// The largest reward file that is read.
const REWARD_MAX: u64 = 16 << 20;
/// The largest `judges.json`.
const JUDGES_MAX: u64 = 16 << 20;
/// Of a rationale so much is repeated in the results.
const RATIONALE_MAX: usize = 2000;
/// So many judges are named in a case's message, each with so many bytes of its rationale.
const TOLD_MAX: usize = 3;
const LINE_MAX: usize = 160;
/// Keys that say that a reward of 0 means nothing: casepack's own, and the harness's.
const UNJUDGED: [&str; 2] = ["casepack_unjudged", "agent_eval_unjudged"];

/// Why there is no reward: the kind, and a sentence.
pub(super) type NoReward = (ErrorKind, String);

/// The rewards in `dir`, the verifier's log directory.
pub(super) fn rewards(dir: &Root) -> Result<BTreeMap<String, f64>, NoReward> {
    if let Some(bytes) = reward_file(dir, "reward.json")? {
        return rewards_of_json(&bytes);
    }
    match reward_file(dir, "reward.txt")? {
        Some(bytes) => text(&bytes),
        None => Err((
            ErrorKind::RewardMissing,
            "The verifier wrote neither reward.json nor reward.txt.".to_owned(),
        )),
    }
}

/// The value of `reward`, when it is a verdict.
pub(super) fn reward(rewards: &BTreeMap<String, f64>) -> Result<f64, NoReward> {
    if UNJUDGED
        .iter()
        .any(|key| rewards.get(*key).is_some_and(|&value| value != 0.0))
    {
        return Err((
            ErrorKind::Unjudged,
            "Nothing judged the case: the package has no judges.".to_owned(),
        ));
    }
    rewards.get("reward").copied().ok_or_else(|| {
        (
            ErrorKind::RewardUnnamed,
            "The verifier's rewards have no key 'reward'.".to_owned(),
        )
    })
}

fn reward_file(dir: &Root, name: &str) -> Result<Option<Vec<u8>>, NoReward> {
    let invalid = |why: &str| {
        let message = format!("The verifier's {name} can not be used: {why}.");
        Err((ErrorKind::RewardInvalid, message))
    };
    let Ok(path) = TreePath::new(name) else {
        return Ok(None);
    };
    let read = match dir.read(&path, REWARD_MAX) {
        Err(ReadError::Link) => match linked(dir, &path) {
            Some(target) => dir.read(&target, REWARD_MAX),
            None => Err(ReadError::Link),
        },
        read => read,
    };
    match read {
        Ok((bytes, _)) if bytes.is_empty() => {
            let message = format!("The verifier's {name} is empty.");
            Err((ErrorKind::RewardEmpty, message))
        }
        Ok((bytes, _)) => Ok(Some(bytes)),
        Err(ReadError::Missing) => Ok(None),
        Err(error) => invalid(&error.to_string()),
    }
}

/// Where the link `name` leads, when that is a name in `dir` itself, as `reward.txt -> score.txt`. It
/// is read there by the handle, and may be no link again.
fn linked(dir: &Root, name: &TreePath) -> Option<TreePath> {
    let target = rustix::fs::readlinkat(dir.handle(), name.as_str(), Vec::new()).ok()?;
    let target = target.to_str().ok()?;
    TreePath::new(target.strip_prefix("./").unwrap_or(target)).ok()
}

fn rewards_of_json(bytes: &[u8]) -> Result<BTreeMap<String, f64>, NoReward> {
    let invalid = |why: String| {
        let message = format!("The verifier's reward.json can not be used: {why}.");
        (ErrorKind::RewardInvalid, message)
    };
    // Python's reader takes NaN and Infinity, and Harbor then refuses them; this one refuses both.
    let value: Value = json::read(bytes).map_err(|error| invalid(error.to_string()))?;
    let Value::Object(entries) = value else {
        return Err(invalid(
            "it must be an object like {\"reward\": 1.0}".to_owned(),
        ));
    };
    entries
        .into_iter()
        .map(|(key, value)| {
            let number = match value {
                Value::Bool(value) => Some(f64::from(u8::from(value))),
                Value::Number(number) => number.as_f64().filter(|number| number.is_finite()),
                _ => None,
            };
            let number = number.ok_or_else(|| invalid(format!("'{key}' is no finite number")))?;
            Ok((key, number))
        })
        .collect()
}

fn text(bytes: &[u8]) -> Result<BTreeMap<String, f64>, NoReward> {
    let number = std::str::from_utf8(bytes).ok().and_then(python_float);
    match number.filter(|number| number.is_finite()) {
        Some(number) => Ok(BTreeMap::from([("reward".to_owned(), number)])),
        None => Err((
            ErrorKind::RewardInvalid,
            "The verifier's reward.txt is no finite number.".to_owned(),
        )),
    }
}

/// `float(text)`: white space around it, and underscores between digits, are fine.
fn python_float(text: &str) -> Option<f64> {
    let text = text.trim();
    let mut digits = String::with_capacity(text.len());
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if char == '_' {
            let after = chars.peek().is_some_and(char::is_ascii_digit);
            if !(before.is_ascii_digit() && after) {
                return None;
            }
        } else {
            digits.push(char);
        }
        before = char;
    }
    digits.parse().ok()
}

/// What the judges of casepack's own runner said, without `secrets`; none for other verifiers.
pub(super) fn judges(dir: &Root, secrets: &Secrets) -> Vec<JudgeResult> {
    let read = TreePath::new("judges.json").map(|path| dir.read(&path, JUDGES_MAX));
    let Ok(Ok((bytes, _))) = read else {
        return Vec::new();
    };
    let Ok(report) = json::read::<Value>(&bytes) else {
        return Vec::new();
    };
    let judges = report.get("judges").and_then(Value::as_array);
    let judges = judges.into_iter().flatten();
    judges.filter_map(|entry| judge(entry, secrets)).collect()
}

/// What there is to say about judges that said no, or nothing: a sentence each, for the first few.
pub(super) fn complaints(judges: &[JudgeResult]) -> Vec<String> {
    let mut told = Vec::new();
    for judge in judges {
        let name = &judge.name;
        if let Some(error) = &judge.error {
            told.push(format!("Judge {name} gave no verdict: {}.", line(error)));
        } else if judge.value == Some(Value::Bool(false)) {
            told.push(match &judge.rationale {
                Some(why) => format!("Judge {name} says no: {}.", line(why)),
                None => format!("Judge {name} says no."),
            });
        }
    }
    let more = told.len().saturating_sub(TOLD_MAX);
    told.truncate(TOLD_MAX);
    if more > 0 {
        told.push(format!("So do {more} more."));
    }
    told
}

/// The first line, cut, without the stop that the sentence brings.
fn line(text: &str) -> &str {
    let line = text.trim().lines().next().unwrap_or_default();
    let end = line.floor_char_boundary(LINE_MAX.min(line.len()));
    line.get(..end).unwrap_or_default().trim_end_matches('.')
}

fn judge(entry: &Value, secrets: &Secrets) -> Option<JudgeResult> {
    let text = |key: &str| {
        // Before the cut, which leaves nothing of one by which it is known.
        let text = secrets.hide(entry.get(key)?.as_str()?.to_owned());
        let end = text.floor_char_boundary(RATIONALE_MAX.min(text.len()));
        text.get(..end).map(str::to_owned)
    };
    Some(JudgeResult {
        name: text("name")?,
        value: entry
            .get("value")
            .filter(|value| value.is_boolean() || value.is_number())
            .cloned(),
        rationale: text("rationale").filter(|text| !text.is_empty()),
        error: text("error"),
        skipped: entry
            .get("skipped")
            .and_then(Value::as_bool)
            .unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Read {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        rewards(&Root::open(dir.path()).unwrap()).map_err(|(kind, _)| kind)
    }

    type Read = Result<BTreeMap<String, f64>, ErrorKind>;

    fn one(reward: f64) -> BTreeMap<String, f64> {
        BTreeMap::from([("reward".to_owned(), reward)])
    }

    /// One row for each of harbor.md 3, and neighbours.
    #[test]
    fn reads_reward_files_as_harbor_does() {
        use ErrorKind::{RewardEmpty, RewardInvalid, RewardMissing};
        let blanks = format!("1{}", " ".repeat(2_000_000));
        for (files, wanted) in [
            (&[("reward.txt", "0.25")][..], Ok(one(0.25))),
            (&[("reward.txt", " 1\n")], Ok(one(1.0))),
            (&[("reward.txt", "1_0.5")], Ok(one(10.5))),
            (&[("reward.txt", "-1e-3")], Ok(one(-0.001))),
            (&[("reward.txt", blanks.as_str())], Ok(one(1.0))),
            (
                &[("reward.txt", "0.1"), ("reward.json", r#"{"reward": 1}"#)],
                Ok(one(1.0)),
            ),
            (&[("reward.json", r#"{"reward": true}"#)], Ok(one(1.0))),
            (&[("reward.json", r#"{"reward": false}"#)], Ok(one(0.0))),
            (
                &[("reward.json", r#"{"reward": 1, "reward": 0.5}"#)],
                Ok(one(0.5)),
            ),
            (
                &[("reward.json", r#"{"reward": {"x": 1}}"#)],
                Err(RewardInvalid),
            ),
            (&[("reward.json", r#"{"reward": "1"}"#)], Err(RewardInvalid)),
            (
                &[("reward.json", r#"{"reward": null}"#)],
                Err(RewardInvalid),
            ),
            (
                &[("reward.json", r#"{"reward": 1, "x": []}"#)],
                Err(RewardInvalid),
            ),
            (&[("reward.json", "0.5")], Err(RewardInvalid)),
            (&[("reward.json", "[1]")], Err(RewardInvalid)),
            (&[("reward.json", r#"{"reward": NaN}"#)], Err(RewardInvalid)),
            (
                &[("reward.json", r#"{"reward": Infinity}"#)],
                Err(RewardInvalid),
            ),
            (
                &[("reward.json", r#"{"reward": 1e309}"#)],
                Err(RewardInvalid),
            ),
            (&[("reward.json", "{")], Err(RewardInvalid)),
            (&[("reward.txt", "nan")], Err(RewardInvalid)),
            (&[("reward.txt", "inf")], Err(RewardInvalid)),
            (&[("reward.txt", "1e309")], Err(RewardInvalid)),
            (&[("reward.txt", "1,5")], Err(RewardInvalid)),
            (&[("reward.txt", "1__0")], Err(RewardInvalid)),
            (&[("reward.txt", "\n")], Err(RewardInvalid)),
            (&[("reward.txt", "")], Err(RewardEmpty)),
            (
                &[("reward.json", ""), ("reward.txt", "1")],
                Err(RewardEmpty),
            ),
            (&[], Err(RewardMissing)),
        ] {
            assert_eq!(of(files), wanted, "{files:?}");
        }
        let more = of(&[("reward.json", r#"{"reward": 1, "x": 0.5}"#)]).unwrap();
        assert_eq!((more["reward"], more["x"]), (1.0, 0.5));
        let odd = of(&[("reward.json", r#"{"reward": 1, "a\udcff": 0.5}"#)]).unwrap();
        assert_eq!((odd["reward"], odd["a\u{fffd}"]), (1.0, 0.5));
    }

    #[test]
    fn follows_no_link_out_of_the_directory_and_opens_no_fifo() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("verifier");
        std::fs::create_dir(&dir).unwrap();
        let root = Root::open(&dir).unwrap();
        let own = dir.join("one").display().to_string();
        for at in [above.path().join("one"), dir.join("one")] {
            std::fs::write(at, "1").unwrap();
        }
        std::os::unix::fs::symlink("one", dir.join("other")).unwrap();
        std::os::unix::fs::symlink("..", dir.join("up")).unwrap();
        for (target, wanted) in [
            ("one", Ok(one(1.0))),
            ("./one", Ok(one(1.0))),
            ("other", Err(ErrorKind::RewardInvalid)),
            ("up/one", Err(ErrorKind::RewardInvalid)),
            ("../one", Err(ErrorKind::RewardInvalid)),
            (&own, Err(ErrorKind::RewardInvalid)),
            ("gone", Err(ErrorKind::RewardMissing)),
        ] {
            std::os::unix::fs::symlink(target, dir.join("reward.txt")).unwrap();
            assert_eq!(rewards(&root).map_err(|(kind, _)| kind), wanted, "{target}");
            std::fs::remove_file(dir.join("reward.txt")).unwrap();
        }
        let dir = dir.as_path();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.join("reward.txt"), mode).unwrap();
        assert_eq!(rewards(&root).unwrap_err().0, ErrorKind::RewardInvalid);
    }

    #[test]
    fn judges_that_said_no_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"judges": [
            {"name": "a", "value": true, "rationale": "fine", "error": null},
            {"name": "b", "value": false, "rationale": "wants high.\nmore"},
            {"name": "c", "value": null, "error": "KeyError"},
            {"name": "d", "value": 0.5}, {"name": "e", "skipped": true}, {"x": 1}, 7,
            {"name": "f", "value": false}, {"name": "g", "value": false}
        ]}"#;
        std::fs::write(dir.path().join("judges.json"), text).unwrap();
        let none = Secrets::default();
        let judges = judges(&Root::open(dir.path()).unwrap(), &none);
        assert_eq!(judges.len(), 7);
        assert_eq!(
            complaints(&judges),
            [
                "Judge b says no: wants high.",
                "Judge c gave no verdict: KeyError.",
                "Judge f says no.",
                "So do 1 more."
            ]
        );
        std::fs::write(dir.path().join("judges.json"), "{").unwrap();
        assert_eq!(super::judges(&Root::open(dir.path()).unwrap(), &none), []);
    }

    #[test]
    fn a_secret_is_hidden_before_words_are_cut() {
        let dir = tempfile::tempdir().unwrap();
        let secret = "sk-0123456789abcdefghijklmnopqrstuvwxyz";
        let secrets = Secrets::of(&[("KEY".to_owned(), secret.to_owned())].into());
        for before in [LINE_MAX - 9, RATIONALE_MAX - 9] {
            let said = format!("{}{secret}", ".".repeat(before));
            let text = serde_json::json!({"judges": [
                {"name": "a", "value": false, "rationale": said}, {"name": "b", "error": said}
            ]});
            std::fs::write(dir.path().join("judges.json"), text.to_string()).unwrap();
            let judges = judges(&Root::open(dir.path()).unwrap(), &secrets);
            assert!(judges[0].rationale.as_ref().unwrap().ends_with("[KEY]"));
            assert!(judges[1].error.as_ref().unwrap().ends_with("[KEY]"));
            for told in complaints(&judges) {
                assert!(!told.contains("sk-"), "{told}");
            }
        }
    }

    #[test]
    fn a_verdict_has_a_name_and_a_judge() {
        let of = |entries: &[(&str, f64)]| {
            let entries = entries
                .iter()
                .map(|(key, value)| ((*key).to_owned(), *value));
            reward(&entries.collect()).map_err(|(kind, _)| kind)
        };
        assert_eq!(of(&[("reward", 0.5), ("x", 1.0)]), Ok(0.5));
        assert_eq!(of(&[("score", 1.0)]), Err(ErrorKind::RewardUnnamed));
        for key in UNJUDGED {
            assert_eq!(of(&[("reward", 0.0), (key, 1.0)]), Err(ErrorKind::Unjudged));
            assert_eq!(of(&[("reward", 0.0), (key, 0.0)]), Ok(0.0));
        }
    }
}
