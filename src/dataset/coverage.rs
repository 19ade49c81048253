//! What can only be said when all cases were seen (policy 17). Memory does not grow with them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, Dataset};
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::digest::Digest;
use crate::yaml::Yaml;

/// Collects over all cases of a dataset.
#[derive(Debug, Default, Clone)]
pub struct Coverage {
    /// Per annotation field that a judge's `if` reads.
    fields: BTreeMap<String, Values>,
    cases: usize,
}

#[derive(Debug, Clone)]
enum Values {
    /// None seen.
    None,
    /// The same in all cases so far.
    One(String),
    /// More than one.
    Many,
}

impl Coverage {
    /// For the judges of `dataset`.
    pub fn new(dataset: &Dataset) -> Self {
        let fields = dataset
            .verification
            .judges
            .iter()
            .filter_map(|judge| judge.condition.as_deref())
            .flat_map(annotation_fields)
            .map(|field| (field, Values::None))
            .collect();
        Self { fields, cases: 0 }
    }

    /// What `case` has of the fields that matter: short texts that are equal when the values are.
    pub fn values(&self, case: &Case) -> BTreeMap<String, String> {
        let value = |field: &String| {
            let value = case.annotations.get(field);
            let value = value.map_or(Yaml::Null, |node| node.value.clone());
            // Values of any size, so that memory does not grow with them.
            Digest::of(value.to_tagged_json().to_string().as_bytes()).hex()
        };
        let fields = self.fields.keys();
        fields.map(|field| (field.clone(), value(field))).collect()
    }

    /// Takes a case into account, by its [`Coverage::values`].
    pub fn add(&mut self, case: &BTreeMap<String, String>) {
        self.cases += 1;
        for (field, values) in &mut self.fields {
            let Some(value) = case.get(field) else {
                *values = Values::Many;
                continue;
            };
            match values {
                Values::None => *values = Values::One(value.clone()),
                Values::One(one) if one != value => *values = Values::Many,
                Values::One(_) | Values::Many => {}
            }
        }
    }

    /// Tells what was found; nothing about cases when not all of them were seen.
    pub fn finish(&self, dataset: &Dataset, diags: &mut Diagnostics) {
        undocumented(dataset, diags);
        if self.cases == 0 || self.cases < dataset.cases.len() {
            return;
        }
        for (index, judge) in dataset.verification.judges.iter().enumerate() {
            let Some(condition) = &judge.condition else {
                continue;
            };
            let fields = annotation_fields(condition);
            let one = |field: &String| matches!(self.fields.get(field), Some(Values::One(_)));
            if fields.is_empty() || !fields.iter().all(one) {
                continue;
            }
            let names: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
            let (has, it) = if names.len() == 1 {
                ("has", "it")
            } else {
                ("have", "them")
            };
            diags.push(
                Diagnostic::new(
                    Rule::JudgeBranchUncovered,
                    format!(
                        "The judge `{}` always or never runs: {} {has} one value in all cases.",
                        judge.name,
                        names.join(" and ")
                    ),
                )
                .help(format!(
                    "Add a case whose annotations have another value for {it}."
                ))
                .at_place(judge.place.as_ref())
                .field(format!("judges[{index}].if"))
                .entry(judge.name.clone()),
            );
        }
    }
}

/// Fields that templates and judges use but the schema does not mention.
fn undocumented(dataset: &Dataset, diags: &mut Diagnostics) {
    if dataset.schema.trim().is_empty() {
        return;
    }
    let mut used: BTreeMap<String, &str> = BTreeMap::new();
    for field in &dataset.template_fields {
        used.entry(field.clone()).or_insert("the instruction");
    }
    for judge in &dataset.verification.judges {
        for code in [&judge.condition, &judge.check].into_iter().flatten() {
            for field in annotation_fields(code) {
                used.entry(field).or_insert("a judge");
            }
        }
    }
    for (field, by) in used {
        if !mentions(&dataset.schema, &field) {
            diags.push(
                Diagnostic::new(
                    Rule::SchemaUndocumentedField,
                    format!(
                        "The field `{field}` is used by {by} but not mentioned in dataset.schema."
                    ),
                )
                .help("Describe it in the schema, from which new cases are written.")
                .field("dataset.schema")
                .entry(field),
            );
        }
    }
}

/// Whether `text` has `word` as a word.
fn mentions(text: &str, word: &str) -> bool {
    let part = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        let after = text
            .get(at + word.len()..)
            .and_then(|after| after.chars().next());
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// The annotation fields that Python code reads by name: `annotations.get('x')`,
/// `annotations["x"]`, and both through `outputs["annotations"]`.
fn annotation_fields(code: &str) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    for (at, word) in code.match_indices("annotations") {
        let before = code.get(..at).and_then(|before| before.chars().next_back());
        if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_') {
            continue;
        }
        let rest = code.get(at + word.len()..).unwrap_or_default();
        // The end of outputs["annotations"] or outputs.get("annotations").
        let rest = rest.trim_start_matches(['"', '\'']).trim_start();
        let rest = rest.trim_start_matches([']', ')']).trim_start();
        let name = rest.strip_prefix('[').or_else(|| {
            rest.strip_prefix(".get")
                .and_then(|rest| rest.trim_start().strip_prefix('('))
        });
        let Some(name) = name.map(str::trim_start) else {
            continue;
        };
        let quoted = name
            .strip_prefix('\'')
            .map(|name| (name, '\''))
            .or_else(|| name.strip_prefix('"').map(|name| (name, '"')));
        if let Some((name, quote)) = quoted
            && let Some((field, _)) = name.split_once(quote)
        {
            fields.insert(field.to_owned());
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_fields_that_a_condition_reads() {
        for (code, wanted) in [
            ("annotations.get('dup')", vec!["dup"]),
            (
                "not annotations.get( \"a b\", False) and annotations['c'] == 1",
                vec!["a b", "c"],
            ),
            ("outputs['annotations'].get('x')", vec!["x"]),
            ("outputs.get(\"annotations\")[\"y\"]", vec!["y"]),
            ("annotations.get(name)", vec![]),
            ("my_annotations['x']", vec![]),
            ("annotations", vec![]),
            ("annotations['open", vec![]),
        ] {
            let got = annotation_fields(code);
            assert_eq!(
                got,
                wanted.into_iter().map(str::to_owned).collect(),
                "{code}"
            );
        }
        assert!(mentions("a 'dup' flag", "dup") && !mentions("dupes", "dup"));
    }
}
