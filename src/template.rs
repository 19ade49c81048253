//! Instructions from templates: `{field}` and Jinja, with Python's text for every value.
//!
//! Owns both placeholder styles (policy 14; agent-eval-harness 2). Refuses to know files.
//! Invariants: rendering ends, in bounded time and memory, whatever template and input are; and
//! a value is never rendered a second time, so text of an input that looks like a placeholder
//! stays as it is.

mod args;
mod brace;
mod dates;
mod filters;
mod globals;
mod jinja;
mod json;
mod methods;
mod numbers;
mod scan;
mod strings;
mod text;
mod value;

use std::fmt;
use std::ops::Range;

use crate::yaml::Yaml;

/// No rendered text is longer than this.
pub const MAX_TEXT: usize = 8 * 1024 * 1024;

/// Why a template gave no text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Fields that the input does not have, or that are null where the template needs a value:
    /// of `{field}` all of them, of Jinja the first.
    #[error("the input has no {}", Fields(.0))]
    MissingFields(Vec<MissingField>),
    /// The template names fields, but the input is no mapping.
    #[error("the input is not a mapping, so it has no fields")]
    NotAMapping,
    /// Syntax, an unknown filter, a type that does not fit, too much work.
    #[error("{message}")]
    Invalid {
        /// What is wrong, in one fragment.
        message: String,
        /// Bytes of the template.
        range: Option<Range<usize>>,
    },
}

/// A field that a template needs and does not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingField {
    /// Its name as the template writes it (`ticket`; of Jinja's `input.a.b` it is `a.b`).
    pub field: String,
    /// The placeholder: bytes of the template.
    pub range: Option<Range<usize>>,
}

struct Fields<'a>(&'a [MissingField]);

impl fmt::Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "field" } else { "fields" })?;
        for (index, missing) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { " " } else { ", " })?;
            write!(f, "'{}'", missing.field)?;
        }
        Ok(())
    }
}

impl TemplateError {
    pub(self) fn invalid(message: impl Into<String>, range: Option<Range<usize>>) -> Self {
        Self::Invalid {
            message: message.into(),
            range,
        }
    }

    /// The same error with its ranges moved.
    pub(self) fn shifted(mut self, shift: impl Fn(Range<usize>) -> Range<usize>) -> Self {
        let ranges: Vec<&mut Option<Range<usize>>> = match &mut self {
            Self::MissingFields(missing) => {
                missing.iter_mut().map(|field| &mut field.range).collect()
            }
            Self::Invalid { range, .. } => vec![range],
            Self::NotAMapping => Vec::new(),
        };
        for range in ranges.into_iter().flatten() {
            *range = shift(range.clone());
        }
        self
    }

    pub(self) fn too_long(range: Option<Range<usize>>) -> Self {
        Self::invalid("the text grows beyond 8 MiB", range)
    }
}

/// Renders `template` with the fields of `input`; leading and trailing white space of the whole is
/// trimmed, inner white space kept (policy 14). `steps` is a mapping, or null in packages.
///
/// An empty input (null) counts as a mapping without fields.
///
/// # Errors
/// See [`TemplateError`].
pub fn render(template: &str, input: &Yaml, steps: &Yaml) -> Result<String, TemplateError> {
    let mut text = if is_jinja(template) {
        jinja::render(template, input, steps)?
    } else {
        brace::render(template, input)?
    };
    text.truncate(text.trim_end_matches(is_space).len());
    let start = text.len() - text.trim_start_matches(is_space).len();
    text.drain(..start);
    Ok(text)
}

/// Whether `template` is written in Jinja: `{#` alone does not make it so (agent-eval-harness 2.1).
fn is_jinja(template: &str) -> bool {
    template.contains("{{") || template.contains("{%")
}

/// `str.isspace` of Python: Unicode's white space and the four information separators.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Names of the input fields that the template mentions (both styles), sorted, for
/// `schema-undocumented-field`; and whether it mentions `steps`.
pub fn fields(template: &str) -> (Vec<String>, bool) {
    if !is_jinja(template) {
        return (brace::fields(template), false);
    }
    let words = scan::words(template);
    let steps = jinja::uses_steps(template).unwrap_or_else(|| scan::mentions(&words, "steps"));
    (scan::fields(&words), steps)
}

/// `str(value)` as Python gives it.
pub fn python_str(value: &Yaml) -> String {
    written(value, false)
}

/// `repr(value)` as Python gives it. A set keeps the order of the file.
pub fn python_repr(value: &Yaml) -> String {
    written(value, true)
}

fn written(value: &Yaml, quoted: bool) -> String {
    let mut out = String::new();
    // The YAML reader bounds a value, so there is no limit that could be passed.
    let _ = text::write(&mut out, value, quoted, usize::MAX);
    out
}

#[cfg(test)]
mod tests;
