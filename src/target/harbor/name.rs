//! Names that Harbor, disks and container engines all take (harbor.md 5).
//!
//! Owns the safe form of a text, and the table of a dataset's package names.
//! Invariant: two cases of a dataset never get names that differ only in letter case.

use std::collections::BTreeMap;

use unicode_normalization::UnicodeNormalization;

use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::digest::Digest;
use crate::path::{CaseId, TreePath};

/// A directory name that is safe everywhere: clean, or cleaned and hashed (harbor.md 5).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SafeName(TreePath);

impl SafeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The name as a path of one component.
    pub fn to_path(&self) -> TreePath {
        self.0.clone()
    }
}

/// Names that mean something else beside the packages.
const TAKEN: &[&str] = &["dataset.toml"];

/// Bytes of the longest clean name.
const CLEAN_MAX: usize = 64;
/// Bytes that are kept of a name that is not clean.
const KEPT_MAX: usize = 48;

/// Whether `text` may stay as it is.
fn is_clean(text: &str) -> bool {
    text.len() <= CLEAN_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(is_plain)
        && !text.contains("..")
        && !text.ends_with('.')
        && !is_device(text)
        && !TAKEN.contains(&text.to_ascii_lowercase().as_str())
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// Whether Windows takes the name for a device, with any extension.
fn is_device(name: &str) -> bool {
    let base = name.split('.').next().unwrap_or_default();
    let base = base.trim_end_matches(' ').to_ascii_uppercase();
    if matches!(&*base, "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$") {
        return true;
    }
    let port = base
        .strip_prefix("COM")
        .or_else(|| base.strip_prefix("LPT"));
    port.is_some_and(|port| {
        let mut digits = port.chars();
        matches!(
            (digits.next(), digits.next()),
            (Some('1'..='9' | '¹' | '²' | '³'), None)
        )
    })
}

/// `text` as one part of `org/name`: itself when it is clean, else its clean characters and the
/// start of its hash, so that different texts stay different.
pub(super) fn part(text: &str, fallback: &str) -> String {
    if is_clean(text) {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        // No `..`, and no dot that could end a device name.
        let c = if is_plain(c) && c != '.' { c } else { '-' };
        if c != '-' || !kept.ends_with('-') {
            kept.push(c);
        }
    }
    let mut kept = kept.trim_matches(['.', '-', '_']);
    if kept.len() > KEPT_MAX {
        // All of it is ASCII by now.
        kept = kept[..KEPT_MAX].trim_end_matches(['.', '-', '_']);
    }
    let kept = if kept.is_empty() { fallback } else { kept };
    format!("{kept}-{}", &Digest::of(text.as_bytes()).hex()[..12])
}

/// The name of a case's package.
fn of_case(id: &CaseId) -> Option<SafeName> {
    // A clean name is always one component; there is no other way to fail.
    TreePath::new(&part(id.as_str(), "case")).ok().map(SafeName)
}

/// The package names of all cases. Changed names are told once with all their cases; clashes are
/// errors that name both (policy 13).
pub(super) fn table(cases: &[CaseId], diags: &mut Diagnostics) -> BTreeMap<CaseId, SafeName> {
    let mut names = BTreeMap::new();
    let mut taken: BTreeMap<String, CaseId> = BTreeMap::new();
    for id in cases {
        let Some(name) = of_case(id) else { continue };
        if name.as_str() != id.as_str() {
            diags.push(
                Diagnostic::new(
                    Rule::CaseNameChanged,
                    "Case ids that are no valid names for Harbor were replaced in packages.",
                )
                .help("Nothing has to be done: the id stays in [metadata].case_id of task.toml.")
                .case(id),
            );
        }
        let folded = name.as_str().to_ascii_lowercase();
        if let Some(other) = taken.get(&folded) {
            diags.push(
                Diagnostic::new(
                    Rule::CaseNameClash,
                    format!(
                        "The cases '{other}' and '{id}' would both be the package '{}': names \
                         that differ only in letter case are one name for disks and containers.",
                        name.as_str()
                    ),
                )
                .help("Rename one of the two case directories.")
                .case(other)
                .case(id),
            );
        } else {
            taken.insert(folded, id.clone());
        }
        names.insert(id.clone(), name);
    }
    names
}

/// Whether Harbor takes `name` for a step (harbor.md 2): a portable directory name.
fn is_step_name(name: &str) -> bool {
    let refused = |c: char| c.is_ascii_control() || r#"<>:"/\|?*"#.contains(c);
    !name.trim().is_empty()
        && !matches!(name, "." | "..")
        && !name.ends_with(['.', ' '])
        && !name.contains(refused)
        && !is_device(name)
        && name.len() <= 255
}

/// The directory name of the step `id`: itself where Harbor takes it.
pub(super) fn of_step(id: &str) -> String {
    if is_step_name(id) {
        id.to_owned()
    } else {
        part(id, "step")
    }
}

/// The form in which two step names clash (harbor.md 2: NFC and case folding).
pub(super) fn step_key(name: &str) -> String {
    name.nfc().flat_map(char::to_lowercase).nfc().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::diag::Severity;

    /// Harbor's own rule for the two parts of a task name.
    fn harbor_takes(part: &str) -> bool {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            && !part.contains("..")
    }

    #[test]
    fn clean_names_stay_and_others_are_hashed() {
        for text in ["case-001", "A", "1.2_b", "a-", "a--b", &"x".repeat(64)] {
            assert_eq!(part(text, "case"), text);
        }
        for (text, kept) in [
            ("case 1", "case-1-"),
            (".hidden", "hidden-"),
            ("-dash", "dash-"),
            ("_under", "under-"),
            ("a..b", "a-b-"),
            ("end.", "end-"),
            ("é", "case-"),
            ("con.txt", "con-txt-"),
            ("COM1", "COM1-"),
            ("Dataset.toml", "Dataset-toml-"),
            ("a/b\n", "a-b-"),
            (&"y".repeat(65), &format!("{}-", "y".repeat(48))),
        ] {
            let name = part(text, "case");
            let hash = &Digest::of(text.as_bytes()).hex()[..12];
            assert_eq!(name, format!("{kept}{hash}"), "{text:?}");
            assert!(harbor_takes(&name) && is_clean(&name), "{name}");
        }
    }

    #[test]
    fn tells_changes_once_and_clashes_with_both_cases() {
        let cases: Vec<CaseId> = ["Case-1", "a b", "c d", "case-1"]
            .iter()
            .map(|id| CaseId::new(id).unwrap())
            .collect();
        let mut diags = Diagnostics::default();
        let names = table(&cases, &mut diags);
        assert_eq!(names.len(), 4);
        let found: Vec<_> = diags.iter().collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].rule, Rule::CaseNameChanged);
        assert_eq!(found[0].cases.len(), 2);
        assert_eq!(found[1].rule, Rule::CaseNameClash);
        assert_eq!(found[1].severity, Severity::Error);
        assert!(found[1].message.contains("'Case-1' and 'case-1'"));
    }

    #[test]
    fn step_names_follow_harbor() {
        for name in ["plan", " lead", ".dot", "é", "1", "a b", "com10"] {
            assert_eq!(of_step(name), name);
        }
        for name in [
            "", " ", "end.", "end ", "a:b", "a\tb", "nul", "CON.md", "COM¹", "a?",
        ] {
            assert_ne!(of_step(name), name, "{name:?}");
            assert!(is_step_name(&of_step(name)), "{name:?}");
        }
        assert_eq!(step_key("Caf\u{e9}"), step_key("CAFE\u{301}"));
    }

    proptest! {
        #[test]
        fn every_text_has_a_name_that_harbor_takes(text in "(?s).{0,90}") {
            let name = part(&text, "case");
            prop_assert!(harbor_takes(&name) && is_clean(&name), "{}", name);
            prop_assert_eq!(name == text, is_clean(&text));
            prop_assert!(is_step_name(&of_step(&text)));
        }
    }
}
