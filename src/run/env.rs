//! Environment variables of agents and verifiers.
//!
//! Owns which of the caller's variables are passed on, and references. Refuses to know the
//! process's own environment: the caller's is a value.

use std::collections::BTreeMap;

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

/// Words in the names of variables that hold secrets.
const SECRET: [&str; 7] = [
    "CREDENTIAL",
    "KEY",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "SECRET",
    "TOKEN",
];
/// A shorter value is found everywhere.
const MIN_SECRET: usize = 8;

/// The caller's secrets: what agents and verifiers say of them is not to be shown around in reports.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Values, and what is shown for them; one that holds another one stands before it.
    all: Vec<(String, String)>,
}

impl Secrets {
    /// Those among the caller's variables, by their names.
    pub fn of(caller: &BTreeMap<String, String>) -> Self {
        let secret = |name: &str| {
            let name = name.to_ascii_uppercase();
            SECRET.iter().any(|word| name.contains(word))
        };
        let mut all: Vec<_> = caller
            .iter()
            .filter(|(name, value)| secret(name) && value.len() >= MIN_SECRET)
            .map(|(name, value)| (value.clone(), format!("[{name}]")))
            .collect();
        all.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        Self { all }
    }

    /// `text` with them replaced by the names of their variables.
    pub fn hide(&self, mut text: String) -> String {
        for (value, shown) in &self.all {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), shown);
            }
        }
        text
    }

    /// Bytes of the longest one.
    pub fn longest(&self) -> usize {
        self.all.first().map_or(0, |(value, _)| value.len())
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.all.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
