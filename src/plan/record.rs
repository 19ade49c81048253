//! What casepack remembers of the outputs of one target, in `OUT/.casepack/<target>.record`.
//!
//! The first line names the schema, the target and the SHA-256 of the rest, which is JSON: a record
//! that was damaged, cut, made by another version or for another target is recognised, told and not
//! trusted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::diag::Told;
use crate::digest::Digest;
use crate::tree::Seen;

/// Another one is not trusted.
const SCHEMA: &str = "casepack.record.v3";

/// What is known of one output.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) case: String,
    /// The tree's digest; of a bundle, that of the task view.
    pub(super) tree: String,
    /// Harbor: the package's name and digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<(String, String)>,
    /// The digests of the case's workspace and evaluation views.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) views: Option<(String, String)>,
    /// What the case directory looked like, when that vouches for what was read of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) inputs: Option<String>,
    /// What the output looked like when it was in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) seen: Option<String>,
    /// What was found about the case, to be told again when it is not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) told: Vec<Told>,
    /// What the case has of the fields that judges branch on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) values: BTreeMap<String, String>,
}

/// What is known of all outputs of a target.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// Everything but the case directories that the outputs depend on, when a look vouches for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<String>,
    /// What was found about the dataset as a whole in that state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) told: Vec<Told>,
    /// How long the list of what outputs were made of was when it had no line too many.
    #[serde(default)]
    pub(super) files_length: u64,
    /// What the files that outputs share looked like.
    #[serde(default, skip_serializing_if = "Seen::is_empty")]
    pub(super) links: Seen,
    /// Bundles: the manifest's digest of the release that the outputs are in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) release: Option<String>,
    /// Bundles: what the blobs looked like when the release was whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) blobs: Option<String>,
    /// Digests of the files beside the outputs, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) beside: BTreeMap<String, String>,
    /// By place.
    pub(super) outputs: BTreeMap<String, Known>,
}

impl Record {
    /// Reads the text of the record of `target`; `None` when it is damaged or another one.
    pub(super) fn parse(target: &str, bytes: &[u8]) -> Option<Self> {
        let newline = bytes.iter().position(|byte| *byte == b'\n')?;
        let (head, body) = (bytes.get(..newline)?, bytes.get(newline + 1..)?);
        let head = str::from_utf8(head).ok()?.strip_prefix(SCHEMA)?;
        let head = head.strip_prefix(' ')?.strip_prefix(target)?;
        let digest = Digest::from_hex(head.strip_prefix(' ')?).ok()?;
        (Digest::of(body) == digest).then(|| serde_json::from_slice(body).ok())?
    }

    /// The text of the record of `target`.
    ///
    /// # Errors
    /// None that its types can have.
    pub(super) fn text(&self, target: &str) -> serde_json::Result<Vec<u8>> {
        let body = serde_json::to_vec(self)?;
        let mut text = format!("{SCHEMA} {target} {}\n", Digest::of(&body).hex()).into_bytes();
        text.extend(body);
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_record_is_none() {
        let mut record = Record::default();
        record.outputs.insert("a".to_owned(), Known::default());
        let text = record.text("harbor").unwrap();
        assert_eq!(Record::parse("harbor", &text).unwrap().outputs.len(), 1);
        assert!(Record::parse("evalhub", &text).is_none());
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 1;
            assert!(Record::parse("harbor", &damaged).is_none(), "byte {at}");
            assert!(
                Record::parse("harbor", &text[..at]).is_none(),
                "cut at {at}"
            );
        }
    }
}
