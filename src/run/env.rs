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

/// Words in the names of variables that hold secrets.
const SECRET: [&str; 5] = ["CREDENTIAL", "KEY", "PASSWORD", "SECRET", "TOKEN"];
/// A shorter value is found everywhere.
const MIN_SECRET: usize = 8;

/// `text` with the caller's secrets replaced by the names of their variables: what an agent left of
/// them in its workspace is not to be shown around in reports.
pub(super) fn without_secrets(mut text: String, caller: &BTreeMap<String, String>) -> String {
    for (name, value) in caller {
        let secret = SECRET.iter().any(|word| name.contains(word));
        if secret && value.len() >= MIN_SECRET && text.contains(value.as_str()) {
            text = text.replace(value.as_str(), &format!("[{name}]"));
        }
    }
    text
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
        ];
        let caller = caller
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let text = "+s3cret-value short a-long-value\n".to_owned();
        let shown = without_secrets(text, &caller);
        assert_eq!(shown, "+[API_KEY] short a-long-value\n");
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
