//! How to reach an S3 server, as values.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How to reach an S3 server. What is left out, the standard chain of the AWS tools says:
/// environment, profile, SSO, web identity, container, instance.
#[derive(Debug, Clone)]
pub struct S3Settings {
    /// URL of the server; none: `AWS_ENDPOINT_URL_S3` and the like, else AWS itself.
    pub endpoint: Option<String>,
    /// Region; none: what the chain says, else `us-east-1`.
    pub region: Option<String>,
    /// Profile in the AWS configuration files.
    pub profile: Option<String>,
    /// The profile that the environment names, for messages; the chain finds it by itself.
    pub usual_profile: Option<String>,
    /// The file that profiles are in, for messages.
    pub profile_file: String,
    /// Whether the bucket stands in the path instead of the host name; none: when there is an
    /// endpoint.
    pub path_style: Option<bool>,
    /// Who asks.
    pub access: Access,
    /// A PEM file with further certificate authorities to trust.
    pub ca_bundle: Option<PathBuf>,
    /// How long the server may keep silent before a request is given up and tried again.
    pub timeout: Duration,
    /// How long an operation that fails is tried again, once the server was reached.
    pub patience: Duration,
    /// Set from outside: what fails is not tried again.
    pub stop: Arc<AtomicBool>,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Whoever the standard chain says.
    Chain,
    /// Nobody: requests are not signed, which is enough for what is public.
    Anonymous,
    /// The holder of these keys.
    Keys(AccessKeys),
}

/// A pair of access keys. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKeys {
    /// `AWS_ACCESS_KEY_ID`.
    pub id: String,
    /// `AWS_SECRET_ACCESS_KEY`.
    pub secret: String,
    /// `AWS_SESSION_TOKEN`, for temporary keys.
    pub session: Option<String>,
}

impl fmt::Debug for AccessKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKeys(hidden)")
    }
}

/// Why a directory with a mounted secret can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// There is no such directory.
    #[error("there is no directory '{dir}'", dir = .0.display())]
    NoDirectory(PathBuf),
    /// A key that has to be there is not, or is empty.
    #[error("the secret in '{dir}' has no '{key}'", dir = dir.display())]
    Missing {
        /// The directory.
        dir: PathBuf,
        /// The key.
        key: &'static str,
    },
    /// A file that can't be read.
    #[error("'{path}' can't be read", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The longest value of a secret that makes sense; session tokens have a few kilobytes.
const MAX_SECRET: u64 = 64 * 1024;

impl Default for S3Settings {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            profile: None,
            usual_profile: None,
            profile_file: "~/.aws/config".to_owned(),
            path_style: None,
            access: Access::Chain,
            ca_bundle: None,
            timeout: Duration::from_secs(20),
            // A cluster may need 100 s to notice that one of its nodes is frozen.
            patience: Duration::from_mins(2),
            stop: Arc::default(),
        }
    }
}

impl S3Settings {
    /// What a Secret says that is mounted at `dir`, one file a key: EvalHub's names
    /// (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_DEFAULT_REGION`, `AWS_S3_ENDPOINT`;
    /// ../spec/evalhub.md 2) and those of the AWS tools.
    ///
    /// # Errors
    /// When there is no such directory, a file can't be read, or one of the two access keys is
    /// missing.
    pub fn from_secret_dir(dir: &Path) -> Result<Self, SecretError> {
        if !dir.is_dir() {
            return Err(SecretError::NoDirectory(dir.to_owned()));
        }
        let optional = |name: &str| {
            let path = dir.join(name);
            let read = || {
                let mut text = String::new();
                // Mounted files are links into a directory of the day: followed.
                File::open(&path)?
                    .take(MAX_SECRET)
                    .read_to_string(&mut text)?;
                Ok::<_, io::Error>(text)
            };
            match read() {
                Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(SecretError::Unreadable { path, source }),
            }
        };
        let first = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| optional(name).transpose())
                .transpose()
        };
        let required = |key: &'static str| {
            optional(key)?.ok_or_else(|| SecretError::Missing {
                dir: dir.to_owned(),
                key,
            })
        };
        Ok(Self {
            access: Access::Keys(AccessKeys {
                id: required("AWS_ACCESS_KEY_ID")?,
                secret: required("AWS_SECRET_ACCESS_KEY")?,
                session: optional("AWS_SESSION_TOKEN")?,
            }),
            endpoint: first(&["AWS_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])?,
            region: first(&["AWS_DEFAULT_REGION", "AWS_REGION"])?,
            ..Self::default()
        })
    }

    /// Fills gaps from environment variables that the AWS SDK does not read itself: EvalHub's
    /// `AWS_S3_ENDPOINT`, and `AWS_CA_BUNDLE`.
    #[must_use]
    pub fn with_variables(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let sdk_knows = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]
            .into_iter()
            .any(|name| variable(name).is_some());
        if self.endpoint.is_none() && !sdk_knows {
            self.endpoint = variable("AWS_S3_ENDPOINT");
        }
        self.usual_profile = variable("AWS_PROFILE");
        if let Some(file) = variable("AWS_CONFIG_FILE") {
            self.profile_file = file;
        }
        if self.ca_bundle.is_none() {
            self.ca_bundle = variable("AWS_CA_BUNDLE").map(PathBuf::from);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn reads_a_mounted_secret_and_never_shows_it() {
        let temp = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(temp.path().join(name), text).unwrap();
        write("AWS_ACCESS_KEY_ID", "GK1\n");
        let nowhere = S3Settings::from_secret_dir(&temp.path().join("no")).unwrap_err();
        assert!(nowhere.to_string().contains("no directory"), "{nowhere}");
        let missing = S3Settings::from_secret_dir(temp.path()).unwrap_err();
        assert!(
            missing.to_string().contains("AWS_SECRET_ACCESS_KEY"),
            "{missing}"
        );
        write("AWS_SECRET_ACCESS_KEY", "hush-hush");
        write("AWS_DEFAULT_REGION", "garage");
        write("AWS_S3_ENDPOINT", "http://s3.example:3900\n");
        let settings = S3Settings::from_secret_dir(temp.path()).unwrap();
        let keys = AccessKeys {
            id: "GK1".to_owned(),
            secret: "hush-hush".to_owned(),
            session: None,
        };
        assert_eq!(settings.access, Access::Keys(keys));
        assert_eq!(settings.region.as_deref(), Some("garage"));
        assert_eq!(settings.endpoint.as_deref(), Some("http://s3.example:3900"));
        let shown = format!("{settings:?}");
        assert!(!shown.contains("hush") && !shown.contains("GK1"), "{shown}");
    }

    #[test]
    fn variables_fill_gaps_only() {
        let all = |name: &str| match name {
            "AWS_S3_ENDPOINT" => Some("http://evalhub".to_owned()),
            "AWS_CA_BUNDLE" => Some("/ca.pem".to_owned()),
            _ => None,
        };
        let filled = S3Settings::default().with_variables(all);
        assert_eq!(filled.endpoint.as_deref(), Some("http://evalhub"));
        assert_eq!(filled.ca_bundle, Some(PathBuf::from("/ca.pem")));
        let given = S3Settings {
            endpoint: Some("http://mine".to_owned()),
            ..S3Settings::default()
        };
        assert_eq!(
            given.with_variables(all).endpoint.as_deref(),
            Some("http://mine")
        );
        // The SDK reads this one, and it comes first.
        let sdk = |name: &str| {
            (name == "AWS_ENDPOINT_URL")
                .then(|| "x".to_owned())
                .or(all(name))
        };
        assert_eq!(S3Settings::default().with_variables(sdk).endpoint, None);
    }
}
