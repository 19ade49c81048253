//! Environment variables of agents and verifiers.
//!
//! Owns which of the caller's variables are passed on, and references. Refuses to know the
//! process's own environment: the caller's is a value.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use aho_corasick::AhoCorasick;

/// Passed on as they are: what programs need to speak to people.
const PASSED_ON: [&str; 5] = ["COLORTERM", "LANG", "LANGUAGE", "TERM", "TZ"];

/// What every party gets of the caller's environment.
pub(super) fn passed_on(caller: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    caller
        .iter()
        .filter(|(name, _)| PASSED_ON.contains(&name.as_str()) || name.starts_with("LC_"))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The value of an entry of `task.toml`, by Harbor's rule (harbor.md 2): the whole of `${NAME}` stands
/// for what the caller has, that of `${NAME:-default}` for the default where it is not set at all, and
/// everything else, also `$NAME`, for itself. `None`: not set.
pub(super) fn of_package(value: &str, caller: &BTreeMap<String, String>) -> Option<String> {
    let itself = || Some(value.to_owned());
    let braced = value.strip_prefix("${");
    let Some(braced) = braced.and_then(|braced| braced.strip_suffix('}')) else {
        return itself();
    };
    let (name, rest) = braced.split_at(braced.find([':', '}']).unwrap_or(braced.len()));
    let default = rest.strip_prefix(":-");
    if name.is_empty() || !rest.is_empty() && default.is_none_or(|text| text.contains('\n')) {
        return itself();
    }
    caller.get(name).cloned().or(default.map(str::to_owned))
}

/// The value of an entry of a dataset: a whole `$NAME` too stands for what the caller has. `None`: not
/// set.
pub(super) fn of_dataset(value: &str, caller: &BTreeMap<String, String>) -> Option<String> {
    let is_name = |name: &&str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match value.strip_prefix('$').filter(is_name) {
        Some(name) => caller.get(name).cloned(),
        None => of_package(value, caller),
    }
}

/// The value of an entry of the environment of somebody: [`of_package`] or [`of_dataset`].
pub(super) type Resolve = fn(&str, &BTreeMap<String, String>) -> Option<String>;

/// The caller's variable that `value` asks for and gets, where it is set to something.
pub(super) fn asked<'a>(
    value: &'a str,
    caller: &BTreeMap<String, String>,
    resolve: Resolve,
) -> Option<&'a str> {
    let rest = value.strip_prefix('$')?;
    let name = rest.strip_prefix('{').map_or(rest, |braced| {
        braced.split([':', '}']).next().unwrap_or_default()
    });
    let set = caller.get(name).filter(|set| !set.is_empty())?;
    (resolve(value, caller).as_ref() == Some(set)).then_some(name)
}

/// What names of variables that hold secrets have anywhere in them.
const SECRET: [&str; 5] = ["CREDENTIAL", "PASSPHRASE", "PASSWD", "PASSWORD", "SECRET"];
/// What a word of such a name ends in, as those of `API_KEY`, `GHTOKEN2` and `apiKeysFile` do, and those
/// of `KEYBOARD` and `TOKENIZER` don't.
const SECRET_END: [&str; 2] = ["KEY", "TOKEN"];
/// Words that only look like it.
const NO_SECRET: [&str; 6] = ["DONKEY", "HOCKEY", "JOCKEY", "MONKEY", "TURKEY", "WHISKEY"];
/// A shorter value is found everywhere.
const MIN_SECRET: usize = 8;

/// The caller's secrets: what agents and verifiers say of them is not to be shown around in reports.
///
/// They are known as they are, as each line of theirs, and as JSON and Python write these.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Finds each form of each of them; `None`: there are none.
    finder: Option<AhoCorasick>,
    /// What is shown for each form.
    shown: Vec<String>,
    /// Bytes of the longest form.
    longest: usize,
}

impl Secrets {
    /// Those among the caller's variables, by their names.
    pub fn of(caller: &BTreeMap<String, String>) -> Self {
        let mut all = BTreeMap::new();
        for (name, value) in caller.iter().filter(|(name, _)| is_secret(name)) {
            for form in parts(value).flat_map(forms) {
                all.entry(form).or_insert_with(|| format!("[{name}]"));
            }
        }
        if all.is_empty() {
            return Self::default();
        }
        let finder = AhoCorasick::new(all.keys())
            .expect("an environment, which the kernel bounds by some MiB, is below 2^31 bytes");
        Self {
            finder: Some(finder),
            longest: all.keys().map(String::len).max().unwrap_or_default(),
            shown: all.into_values().collect(),
        }
    }

    /// `text` with them replaced by the names of their variables.
    pub fn hide(&self, text: String) -> String {
        match &self.finder {
            Some(finder) if finder.is_match(&text) => {
                let hidden = self.hide_in(text.as_bytes(), 0..text.len());
                String::from_utf8_lossy(&hidden).into_owned()
            }
            _ => text,
        }
    }

    /// What is at `part` of `text`, with them replaced likewise, also those that an end of `part`
    /// divides: they are known as far as `text` has all of them.
    pub fn hide_in(&self, text: &[u8], part: Range<usize>) -> Vec<u8> {
        let found = self.finder.iter().flat_map(|finder| {
            let all = finder.find_overlapping_iter(text);
            all.map(|one| (one.range(), one.pattern().as_usize()))
        });
        let mut found: Vec<_> = found.collect();
        found.sort_unstable_by_key(|(range, _)| (range.start, Reverse(range.end)));
        let mut hidden = Vec::with_capacity(part.len());
        // Up to here everything is shown or hidden.
        let mut at = part.start;
        let mut masked = 0;
        for (range, which) in found {
            // Nothing is left of one that overlaps another one.
            let new = range.start >= masked;
            masked = masked.max(range.end);
            if range.end <= at || range.start >= part.end {
                continue;
            }
            hidden.extend_from_slice(text.get(at..range.start).unwrap_or_default());
            if new || hidden.is_empty() {
                hidden.extend_from_slice(self.shown[which].as_bytes());
            }
            at = range.end;
        }
        hidden.extend_from_slice(text.get(at..part.end).unwrap_or_default());
        hidden
    }

    /// Bytes of the longest one, as it may be written.
    pub fn longest(&self) -> usize {
        self.longest
    }
}

/// Whether a variable of the name `name` holds a secret.
fn is_secret(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    // Words end at what is no letter, and where capitals begin after small letters.
    let ends_at = |at: usize| {
        name[at..].chars().next().is_none_or(|next| {
            let small = name[..at].ends_with(|last: char| last.is_ascii_lowercase());
            !next.is_ascii_alphabetic() || small && next.is_ascii_uppercase()
        })
    };
    let ends_so = |word: &str| {
        upper.match_indices(word).any(|(at, _)| {
            let end = at + word.len();
            let plural = upper[end..].starts_with('S');
            let other = NO_SECRET.iter().any(|other| upper[..end].ends_with(other));
            !other && (ends_at(end) || plural && ends_at(end + 1))
        })
    };
    SECRET.iter().any(|word| upper.contains(word)) || SECRET_END.into_iter().any(ends_so)
}

/// What of a secret is one itself: all of it, and each line (of a PEM key, which a diff or a judge
/// shows line by line). What is short, blank, or one character again and again is none.
fn parts(secret: &str) -> impl Iterator<Item = &str> {
    let all = std::iter::once(secret).chain(secret.lines());
    all.map(str::trim).filter(|part| {
        let mut chars = part.chars();
        let first = chars.next();
        part.len() >= MIN_SECRET && chars.any(|char| Some(char) != first)
    })
}

/// How `secret` may be written: itself, in JSON (also as ASCII alone, and in a text within JSON), and
/// by Python's `repr`.
fn forms(secret: &str) -> [String; 6] {
    let json = |text: &str| {
        let quoted = serde_json::Value::from(text).to_string();
        let inner = quoted.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
        inner.unwrap_or_default().to_owned()
    };
    let once = json(secret);
    let twice = json(&once);
    let mut ascii = String::new();
    for char in once.chars() {
        if char.is_ascii() {
            ascii.push(char);
        } else {
            for unit in char.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                write!(ascii, "\\u{unit:04x}").ok();
            }
        }
    }
    let repr = once.replace("\\\"", "\"");
    let both_quotes = repr.replace('\'', "\\'");
    [secret.to_owned(), once, twice, ascii, repr, both_quotes]
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} forms of secrets", self.shown.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::{CaseResult, StepResult};
    use super::*;
    use crate::path::CaseId;

    #[test]
    fn resolves_whole_values_only() {
        let caller = [("KEY", "s3cret"), ("EMPTY", "")];
        let caller = caller
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        for (value, wanted) in [
            ("${KEY}", Some("s3cret")),
            ("${KEY:-other}", Some("s3cret")),
            ("${EMPTY:-other}", Some("")),
            ("${GONE}", None),
            ("${GONE:-}", Some("")),
            ("${GONE:-a}b}", Some("a}b")),
            ("plain", Some("plain")),
            ("$KEY and more", Some("$KEY and more")),
            ("${KEY} and more", Some("${KEY} and more")),
            ("${KEY}${KEY}", Some("${KEY}${KEY}")),
            ("${GONE:-a\nb}", Some("${GONE:-a\nb}")),
            ("${GONE:x}", Some("${GONE:x}")),
            ("$1", Some("$1")),
            ("$", Some("$")),
            ("${}", Some("${}")),
        ] {
            assert_eq!(of_package(value, &caller).as_deref(), wanted, "{value}");
            assert_eq!(of_dataset(value, &caller).as_deref(), wanted, "{value}");
        }
        for (value, wanted) in [
            ("$KEY", Some("s3cret")),
            ("$EMPTY", Some("")),
            ("$GONE", None),
        ] {
            assert_eq!(of_package(value, &caller).as_deref(), Some(value));
            assert_eq!(of_dataset(value, &caller).as_deref(), wanted, "{value}");
        }
    }

    #[test]
    fn secrets_are_shown_by_name() {
        let caller = [
            ("API_KEY", "s3cret-value"),
            ("KEY", "short"),
            ("LANG", "a-long-value"),
            ("a_token", "s3cret-value-and-more"),
        ];
        let caller = caller
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let text = "+s3cret-value short a-long-value s3cret-value-and-more\n".to_owned();
        let secrets = Secrets::of(&caller);
        let shown = secrets.hide(text);
        assert_eq!(shown, "+[API_KEY] short a-long-value [a_token]\n");
        assert!(!format!("{secrets:?}").contains("s3cret"));
    }

    #[test]
    fn secrets_are_known_by_their_lines_and_as_others_write_them() {
        let pem = "-----BEGIN KEY-----\nMIIEow/+IBAAKCAQ\nAB==\n-----END KEY-----\n";
        let caller = [
            ("MY_KEY", pem),
            ("ODD_KEY", r#"it's"pa"ss\word99"#),
            ("OTHER_KEY", "s3cret-é😀-value"),
            ("A_TOKEN", "0123456789"),
            ("B_TOKEN", "6789abcdefgh"),
        ];
        let caller = caller
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let secrets = Secrets::of(&caller);
        for (text, wanted) in [
            (pem, "[MY_KEY]\n"),
            ("+MIIEow/+IBAAKCAQ\n+AB==\n", "+[MY_KEY]\n+AB==\n"),
            (
                "FAIL j saw -----BEGIN KEY----- MIIEow/+IBAAKCAQ",
                "FAIL j saw [MY_KEY] [MY_KEY]",
            ),
            (
                r#"{"x":"-----BEGIN KEY-----\nMIIEow/+IBAAKCAQ\nAB==\n-----END KEY-----\n"}"#,
                r#"{"x":"[MY_KEY]\n"}"#,
            ),
            (r#"it's"pa"ss\word99."#, "[ODD_KEY]."),
            (r#""it's\"pa\"ss\\word99""#, r#""[ODD_KEY]""#),
            (r#""it's\\\"pa\\\"ss\\\\word99""#, r#""[ODD_KEY]""#),
            (r#"'it\'s"pa"ss\\word99'"#, "'[ODD_KEY]'"),
            (r#"it's"pa"ss\\word99"#, "[ODD_KEY]"),
            (r"s3cret-\u00e9\ud83d\ude00-value", "[OTHER_KEY]"),
            ("é s3cret-é😀-value", "é [OTHER_KEY]"),
            ("+0123456789abcdefgh+", "+[A_TOKEN]+"),
        ] {
            assert_eq!(secrets.hide(text.to_owned()), wanted, "{text}");
        }
    }

    #[test]
    fn only_words_of_names_make_secrets() {
        for name in [
            "KEY",
            "API_KEY",
            "APIKEY",
            "KEY_FILE",
            "KEYS2",
            "MONKEY_KEY",
            "apiKeyId",
            "apiKeysFile",
            "gh-token",
            "MYTOKEN1",
            "MYSECRETS",
            "PGPASSWORDFILE",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "KEYBOARD",
            "MONKEY_HOME",
            "keystone",
            "TOKENIZER_NAME",
            "HOME",
        ] {
            assert!(!is_secret(name), "{name}");
        }
        let blank = [("BLANK_KEY", "        "), ("DASH_KEY", "----------")];
        let caller = blank.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let text = "+                x\n--------------\n";
        let hidden = Secrets::of(&caller.into()).hide(text.to_owned());
        assert_eq!(hidden, text);
    }

    #[test]
    fn rewards_have_no_secrets_in_their_names() {
        let rewards = || {
            [
                ("reward".to_owned(), 1.0),
                ("a s3cret-value".to_owned(), 0.5),
            ]
            .into()
        };
        let mut case = CaseResult::new(&CaseId::new("a").unwrap());
        case.rewards = rewards();
        case.steps.push(StepResult::new("one"));
        case.steps[0].rewards = rewards();
        let secrets = Secrets::of(&[("MY_KEY".to_owned(), "s3cret-value".to_owned())].into());
        case.without(&secrets);
        let wanted = [("reward".to_owned(), 1.0), ("a [MY_KEY]".to_owned(), 0.5)].into();
        assert_eq!(case.rewards, wanted);
        assert_eq!(case.steps[0].rewards, wanted);
    }

    #[test]
    fn what_is_asked_for_is_known_by_name() {
        let caller = [("KEY", "s3cret"), ("EMPTY", ""), ("A b", "c")];
        let caller = caller
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        for (value, wanted) in [
            ("${KEY}", Some("KEY")),
            ("${KEY:-other}", Some("KEY")),
            ("${A b}", Some("A b")),
            ("${EMPTY:-other}", None),
            ("${GONE:-other}", None),
            ("${KEY} and more", None),
            ("KEY", None),
            ("${", None),
        ] {
            assert_eq!(asked(value, &caller, of_package), wanted, "{value}");
        }
        assert_eq!(asked("$KEY", &caller, of_package), None);
        assert_eq!(asked("$KEY", &caller, of_dataset), Some("KEY"));
    }

    #[test]
    fn passes_on_no_secret() {
        let caller = [
            "LANG",
            "LC_ALL",
            "TERM",
            "AWS_SECRET_ACCESS_KEY",
            "HOME",
            "SSH_AUTH_SOCK",
        ];
        let caller = caller.map(|name| (name.to_owned(), "x".to_owned())).into();
        let names: Vec<_> = passed_on(&caller).into_keys().collect();
        assert_eq!(names, ["LANG", "LC_ALL", "TERM"]);
    }
}
