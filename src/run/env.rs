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

/// The value of an entry: `$NAME` and `${NAME}` as the caller has it, `${NAME:-default}` with a
/// default where it is not set or empty, everything else as it is. `None`: not set.
pub(super) fn resolve(value: &str, caller: &BTreeMap<String, String>) -> Option<String> {
    let Some(reference) = value.strip_prefix('$') else {
        return Some(value.to_owned());
    };
    let braced = reference
        .strip_prefix('{')
        .and_then(|reference| reference.strip_suffix('}'));
    let (name, default) = match braced {
        Some(braced) => braced
            .split_once(":-")
            .map_or((braced, None), |(name, default)| (name, Some(default))),
        None => (reference, None),
    };
    let mut bytes = name.bytes();
    let valid = bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !valid {
        return Some(value.to_owned());
    }
    match (caller.get(name), default) {
        (Some(set), Some(default)) if set.is_empty() => Some(default.to_owned()),
        (Some(set), _) => Some(set.clone()),
        (None, default) => default.map(str::to_owned),
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
            ("$KEY", Some("s3cret")),
            ("${KEY}", Some("s3cret")),
            ("${KEY:-other}", Some("s3cret")),
            ("${EMPTY:-other}", Some("other")),
            ("$EMPTY", Some("")),
            ("$GONE", None),
            ("${GONE}", None),
            ("${GONE:-}", Some("")),
            ("plain", Some("plain")),
            ("$KEY and more", Some("$KEY and more")),
            ("$1", Some("$1")),
            ("$", Some("$")),
            ("${}", Some("${}")),
        ] {
            assert_eq!(resolve(value, &caller).as_deref(), wanted, "{value}");
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
