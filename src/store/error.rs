//! What can go wrong with a store, told apart, and what to do about it.

use std::fmt;
use std::io;
use std::time::Duration;

use rustix::io::Errno;

use crate::digest::Digest;
use crate::fs::{FsError, ReadError};

/// An operation on a store failed: what was done, to which object, and why.
#[derive(Debug, thiserror::Error)]
#[error("can't {action} {object}")]
pub struct StoreError {
    /// What was done.
    pub action: Action,
    /// To what: as [`super::Store::show`] names it.
    pub object: String,
    /// Why it failed.
    #[source]
    pub reason: Box<Reason>,
}

/// What is done with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Getting ready to use the store.
    Open,
    /// Reading it.
    Read,
    /// Writing it.
    Write,
    /// Listing what is below it.
    List,
    /// Removing it.
    Delete,
}

/// Why an operation failed. Text of servers is raw.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// No such object.
    #[error("there is no such object")]
    NotFound,
    /// More bytes than the caller takes.
    #[error("it has more than the {limit} bytes that are allowed")]
    TooLarge {
        /// How many were allowed.
        limit: u64,
    },
    /// More objects than the caller takes.
    #[error("there are more than the {limit} objects that are allowed")]
    TooMany {
        /// How many were allowed.
        limit: usize,
    },
    /// The object ends before the range does.
    #[error("it ends before the {size} bytes from {start} on do")]
    Short {
        /// Where the range starts.
        start: u64,
        /// Its bytes.
        size: usize,
    },
    /// What was to be written is not what it should be, or arrived as something else.
    #[error("the bytes have the digest {found}, not {wanted}")]
    Damaged {
        /// What they have.
        found: Digest,
        /// What they should have.
        wanted: Digest,
    },
    /// The store refuses conditional writes.
    #[error("the store refuses conditional writes")]
    NoConditions,
    /// The store is a directory, and there is none.
    #[error("there is no such directory")]
    NoDirectory,
    /// The key is one of casepack's names for unfinished files.
    #[error("names that start with '.casepack-' are kept for unfinished files")]
    ReservedKey,
    /// The file system of a directory can't lock files.
    #[error("its file system has no locks, without which two writers could overwrite each other")]
    NoLock(#[source] io::Error),
    /// What was to be written can't be read.
    #[error("what was to be written can't be read")]
    Source(#[source] io::Error),
    /// Settings that can't be used.
    #[error("{0}")]
    Settings(String),
    /// Nobody says who asks.
    #[error("no credentials were found: {0}")]
    NoCredentials(String),
    /// The profile that was asked for gives none.
    #[error("no credentials were found in the profile '{profile}': {why}")]
    BadProfile {
        /// What the AWS SDK says.
        why: String,
        /// The profile.
        profile: String,
        /// The file that profiles are in.
        file: String,
    },
    /// The service that gives credentials for a login or a role is not there.
    #[error("the {service} can not be reached: {why}")]
    NoCredentialService {
        /// What it is.
        service: &'static str,
        /// Its URL, and what happened.
        why: String,
    },
    /// The profile takes its credentials from a login that is missing or over.
    #[error("the login of this profile is missing or over: {why}")]
    NotLoggedIn {
        /// What the AWS SDK says.
        why: String,
        /// The profile that was asked for; none: the one that the environment names.
        profile: Option<String>,
    },
    /// The store does not know the keys, or they are no longer valid.
    #[error("the store does not accept these credentials: {0}")]
    BadCredentials(Answer),
    /// The store knows who asks, and refuses.
    #[error("access is denied: {0}")]
    Denied(Answer),
    /// The clocks differ too much for signatures to count.
    #[error("the clocks of this machine and of the store differ too much: {0}")]
    ClockSkew(Answer),
    /// The bucket is in another region.
    #[error("the region is wrong: {answer}")]
    WrongRegion {
        /// The region that was asked.
        asked: String,
        /// The one that the store names.
        expected: Option<String>,
        /// What the store said.
        answer: Answer,
    },
    /// No such bucket.
    #[error("there is no such bucket: {0}")]
    NoBucket(Answer),
    /// Nothing listens there, or it has no address.
    #[error("the server can't be reached: {0}")]
    Unreachable(String),
    /// The server's certificate is not trusted.
    #[error("the server's certificate is not trusted: {0}")]
    Untrusted(String),
    /// What answers does not speak S3.
    #[error("the server does not speak S3: {0}")]
    NotS3(String),
    /// The server said nothing for too long.
    #[error("the server did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The connection ended too early.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The store can't answer for now.
    #[error("the store is overloaded or not available: {0}")]
    Unavailable(Answer),
    /// The store says that the bytes arrived as something else.
    #[error("the bytes were damaged on their way: {0}")]
    DamagedOnTheWay(String),
    /// Longer than keys may be.
    #[error("its key has {0} bytes; S3 allows {MAX_KEY}")]
    LongKey(usize),
    /// It was stopped from outside; what was being sent may have arrived or not.
    #[error("stopped")]
    Stopped,
    /// Anything else that the store refuses.
    #[error("the store refused: {0}")]
    Refused(Answer),
    /// The object is in no state to be read.
    #[error(transparent)]
    Read(ReadError),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The longest key, in bytes of UTF-8 (S3, "Creating object key names").
pub(super) const MAX_KEY: usize = 1024;

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The code of the error, such as `AccessDenied`.
    pub code: Option<String>,
    /// What the server says in words.
    pub message: Option<String>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        if let Some(code) = &self.code {
            write!(f, " {code}")?;
        }
        match &self.message {
            Some(message) => write!(f, " ({message})"),
            None => Ok(()),
        }
    }
}

impl StoreError {
    pub(super) fn new(action: Action, object: String, reason: Reason) -> Self {
        Self {
            action,
            object,
            reason: Box::new(reason),
        }
    }

    /// Whether the object just is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(*self.reason, Reason::NotFound)
    }

    /// Whether something stands in the object's place that is none: it is to be replaced.
    pub fn is_no_file(&self) -> bool {
        matches!(
            *self.reason,
            Reason::Read(ReadError::NotAFile | ReadError::Link)
        )
    }

    /// What to do next.
    pub fn help(&self) -> String {
        self.reason.help()
    }
}

impl Reason {
    fn help(&self) -> String {
        match self {
            Self::NotFound => {
                "Look at what the store holds with `casepack ls`, and check the prefix of its URL."
            }
            Self::TooLarge { .. } | Self::TooMany { .. } => {
                "Is this a store that casepack wrote? Check its URL."
            }
            Self::Short { .. } => {
                "The object is damaged: publish the dataset again with `casepack publish --repair`."
            }
            Self::Damaged { .. } => {
                "A file changed while it was read, or was damaged on its way: try again."
            }
            Self::NoDirectory => {
                "Check the path; `casepack publish` makes the directory of a store."
            }
            Self::ReservedKey => "Rename the file.",
            Self::NoLock(_) => "Use a directory on a local disk, or an S3 store.",
            Self::Source(_) => {
                "Check the disk that the file is on; it may have been changed: try again."
            }
            Self::Settings(_) => "Correct the flag, the variable or the profile that says it.",
            Self::NoCredentials(_) => {
                "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, a web identity or \
                 --s3-secret-dir; for a public store use --s3-anonymous."
            }
            Self::BadProfile { profile, file, .. } => {
                return format!("Correct the profile {profile} in {file}.");
            }
            Self::NoCredentialService { .. } => {
                "Check the network and DNS and, where they are set, AWS_ENDPOINT_URL_SSO, \
                 AWS_ENDPOINT_URL_SSO_OIDC and AWS_ENDPOINT_URL_STS."
            }
            Self::NotLoggedIn { profile, .. } => {
                let profile = profile.as_ref();
                let profile = profile.map_or_else(String::new, |name| format!(" --profile {name}"));
                return format!("Run `aws sso login{profile}` and try again.");
            }
            Self::BadCredentials(_) => {
                "Check the access keys, and that they are of this server; temporary ones expire."
            }
            Self::Denied(_) => {
                "Let these credentials (with --s3-anonymous, everybody) read the bucket \
                 (s3:GetObject, s3:ListBucket) and, to publish, write it (s3:PutObject, \
                 s3:DeleteObject, s3:AbortMultipartUpload)."
            }
            Self::ClockSkew(_) => "Set the clock of this machine.",
            Self::WrongRegion {
                asked,
                expected: Some(expected),
                ..
            } => return format!("Set AWS_REGION={expected} (it is '{asked}')."),
            Self::WrongRegion { asked, .. } => {
                return format!("Set AWS_REGION to the region of the bucket (it is '{asked}').");
            }
            Self::NoBucket(_) => {
                "Check the bucket's name and the endpoint, or make the bucket: casepack does not."
            }
            Self::Unreachable(_) => {
                "Check the endpoint (AWS_ENDPOINT_URL_S3 or --s3-endpoint), the network and DNS."
            }
            Self::Untrusted(_) => {
                "Give the file with the authority's certificate as AWS_CA_BUNDLE or --s3-ca-bundle."
            }
            Self::NotS3(_) => {
                "Check the endpoint: it is the URL of the server's S3 API, not of its console, and \
                 http:// or https:// as the server speaks."
            }
            Self::Timeout(_) | Self::Broken(_) | Self::Unavailable(_) => {
                "Try again; what was done is kept. If it stays so, look at the store's health."
            }
            Self::DamagedOnTheWay(_) => {
                "Try again. If it stays so, something between here and the store changes bytes."
            }
            Self::Stopped => "What is finished is whole: the same command goes on.",
            Self::LongKey(_) => "Use a shorter prefix, or shorter names.",
            Self::Refused(_) => "What the store says is the reason; ask whoever runs it.",
            Self::NoConditions => "Use --force when nobody else publishes under this name.",
            Self::Read(ReadError::NotAFile | ReadError::Link) => {
                "What is there is none of casepack's objects: move it away, or remove it."
            }
            Self::Read(_) | Self::Io(_) => {
                "Check that the directory can be read and written, and the space that is left."
            }
        }
        .to_owned()
    }
}

impl From<ReadError> for Reason {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Missing => Self::NotFound,
            ReadError::TooLarge { limit, .. } => Self::TooLarge { limit },
            ReadError::Io(error) => Self::Io(error),
            error => Self::Read(error),
        }
    }
}

impl From<FsError> for Reason {
    fn from(error: FsError) -> Self {
        Self::Io(error.source)
    }
}

impl From<Errno> for Reason {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "use",
            Self::Read => "read",
            Self::Write => "write",
            Self::List => "list",
            Self::Delete => "delete",
        })
    }
}
