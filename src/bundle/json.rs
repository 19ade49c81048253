//! Canonical JSON: sorted keys, no white space, no floats.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Bad;

/// The canonical text of `value`: keys are sorted by way of a map that is.
pub(super) fn to_vec(value: &impl Serialize) -> Vec<u8> {
    // Proof: these values are plain structs with text keys, which serde_json never refuses.
    let value = serde_json::to_value(value).unwrap_or_default();
    value.to_string().into_bytes()
}

/// Parses `bytes` of `object`.
pub(super) fn from_slice<T: DeserializeOwned>(bytes: &[u8], object: &str) -> Result<T, Bad> {
    serde_json::from_slice(bytes)
        .map_err(|error| Bad::new(object, format!("can't be read: {error}")))
}

/// The length of `text` as a JSON string.
pub(super) fn text_len(text: &str) -> usize {
    let escapes: usize = text
        .bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 1,
            0..=31 => 5,
            _ => 0,
        })
        .sum();
    text.len() + escapes + 2
}
