//! Instructions from templates: `{field}` and Jinja, with Python's text for every value.
//!
//! Owns both placeholder styles (policy 14). Refuses to know files.

use std::ops::Range;

use crate::yaml::Yaml;

/// Why a template gave no text.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TemplateError {
    /// A required field is missing or null in the input.
    #[error("the input has no field '{field}'")]
    MissingField {
        /// Its name as the template writes it.
        field: String,
        /// Bytes of the template.
        range: Option<Range<usize>>,
    },
    /// Syntax, an unknown filter, a type that does not fit.
    #[error("{message}")]
    Invalid {
        /// What is wrong, in one fragment.
        message: String,
        /// Bytes of the template.
        range: Option<Range<usize>>,
    },
}

/// Renders `template` with the fields of `input`; leading and trailing white space of the whole is
/// trimmed, inner white space kept (policy 14). `steps` is empty in packages.
///
/// # Errors
/// See [`TemplateError`].
pub fn render(template: &str, input: &Yaml, steps: &Yaml) -> Result<String, TemplateError> {
    let _ = (input, steps);
    Ok(template.trim().to_owned())
}

/// Names of the input fields that the template mentions (both styles), sorted, for
/// `schema-undocumented-field`; and whether it mentions `steps`.
pub fn fields(template: &str) -> (Vec<String>, bool) {
    let _ = template;
    (Vec::new(), false)
}

/// `str(value)` as Python gives it.
pub fn python_str(value: &Yaml) -> String {
    let _ = value;
    String::new()
}
