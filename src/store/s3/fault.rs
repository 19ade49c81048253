//! What a failed request means, told apart.

use std::error::Error;
use std::time::Duration;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use crate::store::{Answer, Reason};

/// Why one request failed.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) reason: Reason,
    pub(super) again: Again,
    /// Whether somebody was there: who said so, or took the request and kept silent.
    pub(super) answered: bool,
}

/// Whether the same request may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// No.
    Never,
    /// Right away or never: worth a few tries.
    Soon,
    /// It may take a while.
    Later,
    /// No, unless what went wrong is that nobody said who asks.
    AskCredentials,
}

/// Everything that an error comes from, in one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    clip(&text)
}

/// Text of servers and libraries may be long, and have several lines.
fn clip(text: &str) -> String {
    const MOST: usize = 600;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(MOST).collect()
}

impl Fault {
    pub(super) fn new(reason: Reason, again: Again) -> Self {
        Self {
            reason,
            again,
            answered: true,
        }
    }

    /// Nothing for `silence`. Where nobody takes connections that is told sooner; so this is a server
    /// that waits for another one, perhaps, and will answer some day.
    pub(super) fn silent(silence: Duration) -> Self {
        Self {
            reason: Reason::Timeout(silence),
            again: Again::Later,
            answered: true,
        }
    }

    /// A body that ended before it was whole.
    pub(super) fn broken(why: &dyn Error) -> Self {
        let why = chain(why);
        // What the SDK says when an object is not what its checksum says.
        let damaged = why.contains("checksum mismatch");
        let reason = if damaged {
            Reason::DamagedOnTheWay
        } else {
            Reason::Broken
        };
        let again = if damaged { Again::Soon } else { Again::Later };
        Self::new(reason(why), again)
    }

    pub(super) fn of<E>(error: SdkError<E, HttpResponse>, region: &str) -> Self
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        match error {
            SdkError::ServiceError(context) => Self::service(context.raw(), context.err(), region),
            SdkError::ResponseError(ref context) => {
                let status = context.raw().status().as_u16();
                let why = chain(&error);
                if status >= 500 {
                    return Self::new(
                        Reason::Unavailable(answer(status, None, Some(&why))),
                        Again::Later,
                    );
                }
                // Broken off, or no XML.
                Self::new(Reason::NotS3(format!("{status}, {why}")), Again::Soon)
            }
            SdkError::DispatchFailure(_) | SdkError::TimeoutError(_) => {
                // The SDK's own words, "dispatch failure", tell nothing.
                let why = error.source().map_or_else(|| error.to_string(), chain);
                let connecting = why.contains("(Connect)") || why.contains("connect timeout");
                let (reason, again) = if why.contains("certificate") {
                    (Reason::Untrusted(why), Again::Never)
                } else if why.contains("received corrupt message") {
                    // What answers is no TLS.
                    (Reason::NotS3(why), Again::Soon)
                } else if connecting && why.contains("loading credentials") {
                    // Not the store: whoever gives the credentials for it.
                    (Reason::NoCredentials(why), Again::AskCredentials)
                } else if connecting {
                    (Reason::Unreachable(why), Again::Later)
                } else if !why.contains("client error")
                    && matches!(&error, SdkError::DispatchFailure(failure) if failure.is_other())
                {
                    (Reason::Broken(why), Again::AskCredentials)
                } else {
                    (Reason::Broken(why), Again::Later)
                };
                Self {
                    reason,
                    again,
                    answered: false,
                }
            }
            error => Self {
                reason: Reason::Settings(chain(&error)),
                again: Again::AskCredentials,
                answered: false,
            },
        }
    }

    fn service<E: ProvideErrorMetadata>(raw: &HttpResponse, error: &E, region: &str) -> Self {
        let status = raw.status().as_u16();
        let code = error.code();
        let answer = answer(status, code, error.message());
        let body = raw.body().bytes().unwrap_or_default();
        let (reason, again) = match (code.unwrap_or(""), status) {
            ("NoSuchBucket", _) => (Reason::NoBucket(answer), Again::Never),
            ("NoSuchKey" | "NotFound", _) => (Reason::NotFound, Again::Never),
            ("RequestTimeTooSkewed" | "RequestExpired", _) => {
                (Reason::ClockSkew(answer), Again::Soon)
            }
            (
                "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "InvalidToken"
                | "ExpiredToken"
                | "TokenRefreshRequired"
                | "NotSignedUp",
                _,
            ) => (Reason::BadCredentials(answer), Again::Never),
            (
                "AuthorizationHeaderMalformed"
                | "PermanentRedirect"
                | "TemporaryRedirect"
                | "IllegalLocationConstraintException",
                _,
            )
            | (_, 301 | 307) => {
                let header = raw.headers().get("x-amz-bucket-region").map(str::to_owned);
                let reason = Reason::WrongRegion {
                    asked: region.to_owned(),
                    expected: header.or_else(|| element(body, "Region")),
                    answer,
                };
                (reason, Again::Never)
            }
            (
                "BadDigest"
                | "InvalidDigest"
                | "XAmzContentSHA256Mismatch"
                | "XAmzContentChecksumMismatch"
                | "IncompleteBody",
                _,
            ) => (Reason::DamagedOnTheWay(answer.to_string()), Again::Soon),
            (_, 412 | 416 | 501) => (Reason::Refused(answer), Again::Never),
            (
                "RequestTimeout" | "SlowDown" | "ConditionalRequestConflict" | "OperationAborted",
                _,
            )
            | (_, 409 | 429 | 500..) => (Reason::Unavailable(answer), Again::Later),
            ("", ..=299) => (Reason::NotS3(answer.to_string()), Again::Never),
            ("", 400..) if !body.is_empty() && element(body, "Code").is_none() => {
                (Reason::NotS3(answer.to_string()), Again::Never)
            }
            (_, 401 | 403) if is_about_keys(&answer) => {
                (Reason::BadCredentials(answer), Again::Never)
            }
            (_, 401 | 403) => (Reason::Denied(answer), Again::Never),
            ("", 404) => (Reason::NotFound, Again::Never),
            _ => (Reason::Refused(answer), Again::Never),
        };
        Self::new(reason, again)
    }

    /// Whether the upload that was meant is over.
    pub(super) fn is_no_such_upload(&self) -> bool {
        matches!(&self.reason, Reason::Refused(answer) if answer.code.as_deref() == Some("NoSuchUpload"))
    }

    /// The HTTP status, when that is all there is to say.
    pub(super) fn status(&self) -> Option<u16> {
        match &self.reason {
            Reason::Refused(answer) => Some(answer.status),
            _ => None,
        }
    }
}

/// Garage calls keys that it does not know, and signatures that are not of their secrets,
/// `AccessDenied`; its words tell them apart (../spec/s3-servers.md).
fn is_about_keys(answer: &Answer) -> bool {
    let said = answer.message.as_deref().unwrap_or_default();
    said.contains("Invalid signature") || said.contains("No such key")
}

fn answer(status: u16, code: Option<&str>, message: Option<&str>) -> Answer {
    let text = |text: &str| Some(clip(text)).filter(|text| !text.is_empty());
    Answer {
        status,
        code: code.and_then(text),
        message: message.and_then(text),
    }
}

/// The text of the first `<name>` in an error's small document.
fn element(body: &[u8], name: &str) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (value, _) = rest.split_once("</")?;
    Some(clip(value)).filter(|value| !value.is_empty())
}
