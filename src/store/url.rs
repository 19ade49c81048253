//! Where a store is, as users write it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::path::{TreePath, TreePathError};

/// The place of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A directory, as it was written.
    Directory(PathBuf),
    /// What is in a bucket, or below a prefix there.
    S3 {
        /// The bucket's name.
        bucket: String,
        /// What every key starts with, without the slash that follows.
        prefix: Option<TreePath>,
    },
}

/// Why a text names no store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// Nothing.
    #[error("it is empty")]
    Empty,
    /// A scheme that casepack does not speak.
    #[error(
        "'{0}://' is no kind of store: write 's3://BUCKET/PREFIX' or a directory; where an S3 \
         server is, says --s3-endpoint"
    )]
    Scheme(String),
    /// No name that a bucket can have.
    #[error(
        "'{0}' is no bucket name: 3 to 255 letters, digits, '.', '-' and '_', a letter or digit \
         first and last"
    )]
    Bucket(String),
    /// A prefix that leads elsewhere.
    #[error("its prefix '{prefix}' can't be used: {why}")]
    Prefix {
        /// What is after the bucket.
        prefix: String,
        /// Why.
        why: TreePathError,
    },
    /// A `file:` URL of another machine, or a relative one.
    #[error("a 'file://' URL needs an absolute path: file:///srv/store")]
    File,
    /// Something that S3 URLs don't have.
    #[error("'{0}' does not belong in the URL of a store")]
    Extra(char),
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    /// `s3://BUCKET[/PREFIX]`, `file:///PATH`, or the path of a directory.
    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        if text.is_empty() {
            return Err(StoreUrlError::Empty);
        }
        let scheme = text.split_once("://").filter(|(scheme, _)| {
            !scheme.is_empty()
                && scheme
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        });
        let Some((scheme, rest)) = scheme else {
            return Ok(Self::Directory(text.into()));
        };
        match scheme.to_ascii_lowercase().as_str() {
            "s3" => parse_s3(rest),
            "file" if rest.starts_with('/') => Ok(Self::Directory(rest.into())),
            "file" => Err(StoreUrlError::File),
            _ => Err(StoreUrlError::Scheme(scheme.to_owned())),
        }
    }
}

fn parse_s3(rest: &str) -> Result<StoreUrl, StoreUrlError> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let middle = |b: u8| b.is_ascii_alphanumeric() || b".-_".contains(&b);
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = bucket.as_bytes();
    if !(3..=255).contains(&bytes.len())
        || !bytes.iter().copied().all(middle)
        || !end(bytes.first())
        || !end(bytes.last())
        || bucket.contains("..")
    {
        return Err(StoreUrlError::Bucket(bucket.to_owned()));
    }
    if let Some(extra) = prefix.chars().find(|c| matches!(c, '?' | '#')) {
        return Err(StoreUrlError::Extra(extra));
    }
    let prefix = match prefix.strip_suffix('/').unwrap_or(prefix) {
        "" => None,
        prefix => Some(TreePath::new(prefix).map_err(|why| StoreUrlError::Prefix {
            prefix: prefix.to_owned(),
            why,
        })?),
    };
    Ok(StoreUrl::S3 {
        bucket: bucket.to_owned(),
        prefix,
    })
}

impl StoreUrl {
    /// A relative directory becomes one below `cwd`.
    #[must_use]
    pub fn absolute(self, cwd: &Path) -> Self {
        match self {
            Self::Directory(path) => Self::Directory(cwd.join(path)),
            s3 @ Self::S3 { .. } => s3,
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::S3 { bucket, prefix } => {
                write!(f, "s3://{bucket}")?;
                match prefix {
                    Some(prefix) => write!(f, "/{prefix}"),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_users_write() {
        let s3 = |bucket: &str, prefix: Option<&str>| StoreUrl::S3 {
            bucket: bucket.to_owned(),
            prefix: prefix.map(|prefix| TreePath::new(prefix).unwrap()),
        };
        for (text, url, shown) in [
            ("s3://bucket", s3("bucket", None), "s3://bucket"),
            ("S3://bucket/", s3("bucket", None), "s3://bucket"),
            (
                "s3://a.b-c/x/y/",
                s3("a.b-c", Some("x/y")),
                "s3://a.b-c/x/y",
            ),
            (
                "file:///srv/x",
                StoreUrl::Directory("/srv/x".into()),
                "/srv/x",
            ),
            (
                "dist/bundle",
                StoreUrl::Directory("dist/bundle".into()),
                "dist/bundle",
            ),
            ("../x", StoreUrl::Directory("../x".into()), "../x"),
            ("a b://x", StoreUrl::Directory("a b://x".into()), "a b://x"),
        ] {
            assert_eq!(text.parse(), Ok(url.clone()), "{text}");
            assert_eq!(url.to_string(), shown);
        }
    }

    #[test]
    fn says_what_is_no_store() {
        use StoreUrlError as E;
        let bucket = |name: &str| E::Bucket(name.to_owned());
        let prefix = |prefix: &str, why| E::Prefix {
            prefix: prefix.to_owned(),
            why,
        };
        for (text, why) in [
            ("", E::Empty),
            ("gs://bucket/x", E::Scheme("gs".to_owned())),
            ("https://s3.example/bucket", E::Scheme("https".to_owned())),
            ("file://host/x", E::File),
            ("s3://", bucket("")),
            ("s3:///x", bucket("")),
            ("s3://NOT A BUCKET/x", bucket("NOT A BUCKET")),
            ("s3://-ab/x", bucket("-ab")),
            ("s3://a..b/x", bucket("a..b")),
            ("s3://user:key@bucket/x", bucket("user:key@bucket")),
            ("s3://bucket/a//b", prefix("a//b", TreePathError::Empty)),
            ("s3://bucket/../b", prefix("../b", TreePathError::Parent)),
            ("s3://bucket/x?y", E::Extra('?')),
        ] {
            assert_eq!(text.parse::<StoreUrl>(), Err(why), "{text}");
        }
    }
}
