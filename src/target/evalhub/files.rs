//! The files that `EvalHub` needs to run what was published: a provider, a job request, a Secret and,
//! where it is asked for, a collection (evalhub.md 1, 2 and 6.3).
//!
//! Credentials are never among what is written (policy 28): the Secret is a template.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::digest::Digest;
use crate::yaml::{Yaml, emit};

/// Stands where only the user knows what belongs there.
pub(super) const CHANGE_ME: &str = "CHANGE-ME";
/// Objects (or files) that one benchmark should have at most: one pod fetches them.
pub const OBJECTS: u64 = 5_000;
/// Benchmarks of one job at most: they are started one after another.
pub const BENCHMARKS: u64 = 50;

/// Who fetches the cases in the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// `EvalHub`'s init container, plain objects.
    ByEvalHub,
    /// The agent-eval adapter itself, plain objects.
    ByAdapter,
    /// casepack as `EvalHub`'s init image, a release stored by content.
    ByCasepack,
}

/// What one benchmark works on.
#[derive(Debug, Clone)]
pub struct Part {
    /// The bucket.
    pub bucket: String,
    /// The key; ends with a slash.
    pub key: String,
    /// The digest of what lies there.
    pub digest: String,
    /// The digest of the dataset, when it is known.
    pub dataset: Option<String>,
}

/// What is to be written down.
#[derive(Debug, Clone)]
pub struct Request {
    /// The name of the job.
    pub name: String,
    /// The id of the collection that the job runs; none: it names its benchmarks itself.
    pub collection: Option<String>,
    /// Who fetches the cases.
    pub fetched: Fetched,
    /// One benchmark each.
    pub parts: Vec<Part>,
    /// `provider_id`.
    pub provider: String,
    /// The benchmark of the provider.
    pub benchmark: String,
    /// The image with the adapter, and its command.
    pub image: Option<String>,
    /// The adapter's command in the image.
    pub command: Vec<String>,
    /// URL of the model's API.
    pub model_url: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The name of the Secret.
    pub secret: String,
    /// URL of the S3 API.
    pub endpoint: String,
    /// Region of the bucket.
    pub region: String,
}

impl Request {
    /// The files, by name.
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let mut files = vec![
            ("provider.yaml", self.provider()),
            ("job.json", self.job_text()),
        ];
        // The adapter's own downloader never sees the Secret of a job (evalhub.md 5).
        if self.fetched != Fetched::ByAdapter {
            files.push(("secret.yaml", self.secret()));
        }
        if let Some(id) = &self.collection {
            files.push(("collection.yaml", self.collection_file(id)));
        }
        files
    }

    fn provider(&self) -> String {
        let image = self.image.as_deref().unwrap_or(CHANGE_ME);
        let mut text = format!(
            "# A provider of EvalHub, for the directory `providers` of the server's configuration.\n\
             # Registered over REST it would lose its resources.\n\
             id: {id}\n\
             name: {id}\n\
             description: \"Runs agents on cases that casepack published.\"\n\
             runtime:\n  \
               k8s:\n    \
                 image: {image}\n    \
                 entrypoint:\n",
            id = quoted(&self.provider),
            image = quoted(image),
        );
        let changed = [CHANGE_ME.to_owned()];
        let command = if self.command.is_empty() {
            &changed
        } else {
            self.command.as_slice()
        };
        for word in command {
            let _ = writeln!(text, "      - {}", quoted(word));
        }
        text.push_str(
            "    cpu_request: \"500m\"\n    memory_request: \"1Gi\"\n    cpu_limit: \"2\"\n    \
             memory_limit: \"4Gi\"\n",
        );
        let comment = match self.fetched {
            Fetched::ByEvalHub => {
                "    # The adapter takes the files that EvalHub has fetched, before any bucket.\n"
            }
            Fetched::ByAdapter => {
                "    # The adapter fetches the cases itself. Its keys are not written here, where \
                 anybody can\n    # read them: let the pod's identity read the bucket.\n"
            }
            Fetched::ByCasepack => {
                "    # The image's own eval.yaml, with `dataset.path: /test_data/cases`. The server \
                 needs an image\n    # with casepack at /app/eval-runtime-init as \
                 service.eval_init_image.\n"
            }
        };
        text.push_str(comment);
        text.push_str("    env:\n");
        let config = match self.fetched {
            Fetched::ByEvalHub => "/test_data/eval.yaml",
            Fetched::ByAdapter | Fetched::ByCasepack => "/app/eval-config/eval.yaml",
        };
        let mut env = vec![("EVAL_CONFIG_PATH", config)];
        if self.fetched == Fetched::ByAdapter {
            env.push(("AWS_DEFAULT_REGION", &self.region));
            env.push(("AWS_ENDPOINT_URL_S3", &self.endpoint));
        }
        for (name, value) in env {
            let _ = write!(
                text,
                "      - name: {name}\n        value: {}\n",
                quoted(value)
            );
        }
        let _ = write!(
            text,
            "benchmarks:\n  - id: {id}\n    name: {id}\n    description: \"Cases of casepack.\"\n    \
             category: \"agents\"\n",
            id = quoted(&self.benchmark),
        );
        text
    }

    /// The body of `POST /api/v1/evaluations/jobs`.
    fn job(&self) -> Value {
        let mut job = json!({
            "name": self.name,
            "description": "Cases that casepack published.",
            "tags": ["casepack"],
            "model": {
                "url": self.model_url.clone()
                    .unwrap_or_else(|| format!("https://{CHANGE_ME}.example/v1")),
                "name": self.model.as_deref().unwrap_or(CHANGE_ME),
            },
        });
        // Never both: what a collection says wins over what a job says (evalhub.md 1).
        match &self.collection {
            Some(id) => job["collection"] = json!({ "id": id }),
            None => {
                job["benchmarks"] = self.parts.iter().map(|part| self.benchmark(part)).collect();
            }
        }
        job
    }

    /// What reaches the adapter: of all that a job says, only parameters do (evalhub.md 4).
    fn parameters<'p>(&self, part: &'p Part) -> Vec<(&'static str, &'p str)> {
        let mut parameters = vec![("casepack_digest", part.digest.as_str())];
        parameters.extend(
            part.dataset
                .iter()
                .map(|it| ("casepack_dataset", it.as_str())),
        );
        if self.fetched == Fetched::ByAdapter {
            parameters.extend([
                ("s3_bucket", part.bucket.as_str()),
                ("s3_prefix", &part.key),
            ]);
        }
        parameters
    }

    fn benchmark(&self, part: &Part) -> Value {
        let parameters = self.parameters(part).into_iter();
        let parameters: Map<String, Value> = parameters
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let mut benchmark = Map::new();
        benchmark.insert("id".to_owned(), self.benchmark.clone().into());
        benchmark.insert("provider_id".to_owned(), self.provider.clone().into());
        if self.fetched != Fetched::ByAdapter {
            let s3 = json!({
                "bucket": part.bucket, "key": part.key, "secret_ref": self.secret,
            });
            benchmark.insert("test_data_ref".to_owned(), json!({ "s3": s3 }));
        }
        benchmark.insert("parameters".to_owned(), parameters.into());
        benchmark.into()
    }

    fn job_text(&self) -> String {
        format!("{:#}\n", self.job())
    }

    /// A collection as a file of the server, which has a key of its own for the Secret.
    fn collection_file(&self, id: &str) -> String {
        let mut text = format!(
            "# A collection of EvalHub, for the directory `collections` of the server's configuration. \
             Over\n# REST `secretref` would be `secret_ref`. What stands here wins over what a job \
             says.\n\
             id: {id}\n\
             name: {id}\n\
             description: \"Cases that casepack published.\"\n\
             category: \"agents\"\n\
             tags:\n  - \"casepack\"\n\
             benchmarks:\n",
            id = quoted(id),
        );
        for part in &self.parts {
            let _ = write!(
                text,
                "  - id: {}\n    provider_id: {}\n    parameters:\n",
                quoted(&self.benchmark),
                quoted(&self.provider),
            );
            for (name, value) in self.parameters(part) {
                let _ = writeln!(text, "      {name}: {}", quoted(value));
            }
            if self.fetched != Fetched::ByAdapter {
                let _ = write!(
                    text,
                    "    test_data_ref:\n      s3:\n        bucket: {}\n        key: {}\n        \
                     secretref: {}\n",
                    quoted(&part.bucket),
                    quoted(&part.key),
                    quoted(&self.secret),
                );
            }
        }
        text
    }

    fn secret(&self) -> String {
        format!(
            "# EvalHub needs all four keys. The endpoint is asked from inside the cluster.\n\
             apiVersion: v1\n\
             kind: Secret\n\
             metadata:\n  \
               name: {}\n\
             type: Opaque\n\
             stringData:\n  \
               AWS_ACCESS_KEY_ID: \"{CHANGE_ME}\"\n  \
               AWS_SECRET_ACCESS_KEY: \"{CHANGE_ME}\"\n  \
               AWS_DEFAULT_REGION: {}\n  \
               AWS_S3_ENDPOINT: {}\n",
            quoted(&self.secret),
            quoted(&self.region),
            quoted(&self.endpoint),
        )
    }
}

fn quoted(text: &str) -> String {
    emit(&Yaml::Str(text.into())).trim_end().to_owned()
}

/// `text` as a DNS label (RFC 1123): small letters, digits and dashes, at most 63.
pub fn label(text: &str) -> String {
    let mut label = String::new();
    for letter in text.chars() {
        if letter.is_ascii_alphanumeric() {
            label.push(letter.to_ascii_lowercase());
        } else if !label.is_empty() && !label.ends_with('-') {
            label.push('-');
        }
    }
    label.truncate(63);
    label.trim_end_matches('-').to_owned()
}

/// The key by which casepack, as `EvalHub`'s init image, knows that a release is meant:
/// `PREFIX@sha256:HEX/`, or `PREFIX@sha256:HEX/I-of-N/` for a part of its cases. EvalHub's own
/// downloader finds nothing there, and says so.
pub fn release_key(prefix: Option<&str>, release: &Digest, shard: Option<(u64, u64)>) -> String {
    let prefix = prefix.unwrap_or_default();
    let part = shard.map_or_else(String::new, |(index, of)| format!("{index}-of-{of}/"));
    format!("{prefix}@{release}/{part}")
}

/// A release and the part of it that a key of [`release_key`] means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseKey<'k> {
    /// The prefix of the store; empty: the whole bucket is the store.
    pub prefix: &'k str,
    /// The release.
    pub release: Digest,
    /// Which part of how many.
    pub shard: Option<(u64, u64)>,
}

impl<'k> ReleaseKey<'k> {
    /// Reads a key as it comes from a job; `None`: it is the key of plain objects.
    ///
    /// # Errors
    /// What is wrong with one that means a release, as it has `@sha256:`.
    pub fn parse(key: &'k str) -> Result<Option<Self>, String> {
        let key = key.trim();
        let key = key.strip_prefix('/').unwrap_or(key);
        let Some((prefix, rest)) = key.rsplit_once("@sha256:") else {
            return Ok(None);
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (hex, part) = match rest.split_once('/') {
            None => (rest, None),
            Some((hex, part)) => (hex, Some(part)),
        };
        let Ok(release) = Digest::from_hex(hex) else {
            return Err(format!(
                "'{hex}' after '@sha256:' is no digest, which has 64 hexadecimal digits"
            ));
        };
        let shard = part.map(|part| {
            let numbers = part.split_once("-of-");
            let numbers = numbers.and_then(|(at, of)| Some((at.parse().ok()?, of.parse().ok()?)));
            numbers
                .filter(|(index, of)| 1 <= *index && index <= of)
                .ok_or_else(|| {
                    format!("'{part}' after the digest is no part: they are 1-of-N to N-of-N")
                })
        });
        Ok(Some(Self {
            prefix,
            release,
            shard: shard.transpose()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_releases_are_told_from_those_of_plain_objects() {
        let release = Digest::of(b"x");
        for (prefix, shard) in [
            (Some("evals/a@b"), None),
            (None, Some((1, 4))),
            (Some("evals"), Some((4, 4))),
        ] {
            let key = release_key(prefix, &release, shard);
            assert!(key.ends_with('/'));
            let meant = ReleaseKey {
                prefix: prefix.unwrap_or_default(),
                release,
                shard,
            };
            assert_eq!(ReleaseKey::parse(&key), Ok(Some(meant.clone())));
            let careless = format!(" /{}", key.trim_end_matches('/'));
            assert_eq!(ReleaseKey::parse(&careless), Ok(Some(meant)));
        }
        let hex = release.hex();
        let plain = format!("triage@2026/{hex}/");
        assert_eq!(ReleaseKey::parse(&plain), Ok(None));
        for (odd, told) in [
            (format!("triage@sha256:{hex}/cases/"), "'cases'"),
            (format!("triage@sha256:{hex}/0-of-2/"), "'0-of-2'"),
            (format!("triage@sha256:{hex}/3-of-2/"), "'3-of-2'"),
            (format!("triage@sha256:{hex}/1-of-2/x/"), "'1-of-2/x'"),
            ("triage@sha256:12/".to_owned(), "'12'"),
        ] {
            let wrong = ReleaseKey::parse(&odd).unwrap_err();
            assert!(wrong.contains(told), "{wrong}");
        }
    }

    #[test]
    fn labels_are_what_kubernetes_takes() {
        for (text, name) in [
            ("Triage_Skill", "triage-skill"),
            ("--a b!!c--", "a-b-c"),
            ("ü", ""),
            ("1.2", "1-2"),
        ] {
            assert_eq!(label(text), name);
        }
        assert_eq!(label(&"ab-".repeat(40)).len(), 62);
    }
}
