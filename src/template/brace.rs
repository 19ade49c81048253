//! `{field}` and `{field?}`: everything between a `{` and the next `}` is a name.
//!
//! Owns the rules of the packager's own resolver (agent-eval-harness 2.1): a required field must
//! be there and not null, an optional one becomes nothing, and `false`, `0` and `''` are values.

use std::ops::Range;

use super::{MAX_TEXT, MissingField, TemplateError, text};
use crate::yaml::Yaml;

/// A part of a template.
enum Part<'a> {
    Text(&'a str),
    Field {
        name: &'a str,
        optional: bool,
        range: Range<usize>,
    },
}

/// Cuts a template into texts and placeholders.
struct Parts<'a> {
    template: &'a str,
    at: usize,
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self
            .template
            .get(self.at..)
            .filter(|rest| !rest.is_empty())?;
        let start = self.at;
        // `{}` names nothing and stays; the name may hold every other `{`.
        let open = rest
            .match_indices('{')
            .map(|(open, _)| open)
            .find(|open| !rest[open + 1..].starts_with('}'));
        let Some(open) = open.filter(|open| rest[open + 1..].contains('}')) else {
            self.at = self.template.len();
            return Some(Part::Text(rest));
        };
        if open > 0 {
            self.at = start + open;
            return Some(Part::Text(&rest[..open]));
        }
        let name = rest[1..].split('}').next().unwrap_or_default();
        self.at = start + name.len() + 2;
        let range = start..self.at;
        Some(match name.strip_suffix('?') {
            Some(name) => Part::Field {
                name,
                optional: true,
                range,
            },
            None => Part::Field {
                name,
                optional: false,
                range,
            },
        })
    }
}

/// Renders `template` with the fields of `input`.
pub(super) fn render(template: &str, input: &Yaml) -> Result<String, TemplateError> {
    let mut out = String::new();
    let mut missing = Vec::new();
    for part in (Parts { template, at: 0 }) {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Field {
                name,
                optional,
                range,
            } => {
                let value = match input {
                    Yaml::Map(_) => input.get(name).map(|node| &node.value),
                    Yaml::Null => None,
                    _ => return Err(TemplateError::NotAMapping),
                };
                match value {
                    Some(Yaml::Null) | None if optional => {}
                    Some(Yaml::Null) | None => missing.push(MissingField {
                        field: name.to_owned(),
                        range: Some(range),
                    }),
                    Some(value) => text::write(&mut out, value, false, MAX_TEXT)
                        .map_err(|text::TooLong| TemplateError::too_long(Some(range)))?,
                }
            }
        }
    }
    if !missing.is_empty() {
        return Err(TemplateError::MissingFields(missing));
    }
    if out.len() > MAX_TEXT {
        return Err(TemplateError::too_long(None));
    }
    Ok(out)
}

/// The names of all placeholders, sorted.
pub(super) fn fields(template: &str) -> Vec<String> {
    let mut names: Vec<String> = Parts { template, at: 0 }
        .filter_map(|part| match part {
            Part::Field { name, .. } => Some(name.to_owned()),
            Part::Text(_) => None,
        })
        .collect();
    names.sort();
    names.dedup();
    names
}
