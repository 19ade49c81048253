//! Names, keys and URLs, as Kubernetes, S3 and Go's `url.Parse` take them.

use std::net::IpAddr;

use crate::diag::{Diagnostics, Rule};
use crate::yaml::{Fields, Value};

pub(super) fn key(value: &Value<'_>, diags: &mut Diagnostics) {
    let Some(key) = value.str(diags) else { return };
    let trimmed = key.trim();
    let relative = trimmed.strip_prefix('/').unwrap_or(trimmed);
    if relative.trim_end_matches('/').is_empty() {
        diags.push(
            value
                .finding(Rule::PrefixEmpty, format!("The key `{key}` is empty."))
                .help("EvalHub makes a pod without any files of it: name a prefix."),
        );
        return;
    }
    let odd = |part: &str| matches!(part, "" | "." | "..");
    let inner = relative.strip_suffix('/').unwrap_or(relative);
    if inner.split('/').any(odd) || key.contains(|c: char| c == '\\' || c.is_control()) {
        let message = format!("The key `{key}` has a part that leads elsewhere.");
        let help = "Write the key as `casepack publish` printed it.";
        diags.push(value.finding(Rule::OddObjectName, message).help(help));
    }
    if !relative.ends_with('/') {
        diags.push(
            value
                .finding(
                    Rule::KeyWithoutSlash,
                    format!("The key `{key}` does not end with a slash."),
                )
                .help(format!(
                    "Write `{key}/`: without it everything is fetched that begins like this."
                )),
        );
    }
}

pub(super) fn bucket(value: &Value<'_>, diags: &mut Diagnostics) {
    let Some(name) = value.str(diags) else { return };
    if !is_bucket(name) {
        diags.push(
            value
                .finding(Rule::BucketName, format!("`{name}` is no name of a bucket."))
                .help("3 to 63 small letters, digits, dots and dashes, a letter or digit first and last."),
        );
    }
}

/// The URL of an S3 server, as pods see it.
pub(super) fn endpoint(value: &Value<'_>, text: &str, diags: &mut Diagnostics) {
    if is_loopback(text) {
        let message = format!("In a pod `{text}` is the pod itself.");
        let help = "Write the URL of the server as the cluster sees it.";
        diags.push(value.finding(Rule::LoopbackEndpoint, message).help(help));
    } else if !text.is_empty() && !is_url(text) {
        let message = format!("`{text}` is no URL of a server.");
        let help = "Write a whole URL: https://HOST.";
        diags.push(value.finding(Rule::BadValue, message).help(help));
    }
}

/// A text that has to be there and to say something.
pub(super) fn need_text(fields: &mut Fields<'_>, key: &'static str, diags: &mut Diagnostics) {
    let Some(value) = fields.need(key, diags) else {
        return;
    };
    if value.str(diags).is_some_and(|text| text.trim().is_empty()) {
        let message = format!("`{}` is empty.", value.path());
        diags.push(value.finding(Rule::BadValue, message).help("Fill it in."));
    }
}

/// The id of a provider or a collection. A server whose files have another one does not start
/// (eval-hub-server 1.0.2).
pub(super) fn resource_id(value: Option<&Value<'_>>, diags: &mut Diagnostics) {
    const MOST: usize = 36;
    let Some(value) = value else { return };
    let Some(text) = value.str(diags) else { return };
    let length = text.chars().count();
    if !(1..=MOST).contains(&length) {
        let message = format!("The id `{text}` has {length} characters.");
        let help = "1 to 36: with another one the server does not start.";
        diags.push(value.finding(Rule::BadValue, message).help(help));
    }
}

/// The name of a Secret, a claim or a queue.
pub(super) fn kubernetes_name(value: Option<Value<'_>>, diags: &mut Diagnostics) {
    let Some(value) = value else { return };
    let Some(text) = value.str(diags) else { return };
    if !is_label(text) {
        diags.push(
            value
                .finding(
                    Rule::KubernetesName,
                    format!("`{text}` is no name in Kubernetes."),
                )
                .help(
                    "1 to 63 small letters, digits and dashes, a letter or digit first and last.",
                ),
        );
    }
}

/// Whether `text` is a DNS label (RFC 1123).
fn is_label(text: &str) -> bool {
    let end = |byte: Option<u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 63
        && end(text.bytes().next())
        && end(text.bytes().last())
        && text.bytes().all(inner)
}

/// Whether `text` is the name of a bucket (S3, "Bucket naming rules").
fn is_bucket(text: &str) -> bool {
    (3..=63).contains(&text.len())
        && text.split('.').all(is_label)
        && text.parse::<std::net::Ipv4Addr>().is_err()
}

/// Whether `text` is a whole URL.
pub(super) fn is_url(text: &str) -> bool {
    host(text).is_some_and(|host| !host.is_empty())
        && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// What stands between `scheme://` and the path.
fn host(text: &str) -> Option<&str> {
    let (scheme, rest) = text.split_once("://")?;
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if scheme.is_empty() || !scheme.bytes().all(letters) {
        return None;
    }
    rest.split(['/', '?', '#']).next()
}

fn is_loopback(url: &str) -> bool {
    let host = host(url).unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) {
            name
        } else {
            host
        }
    });
    let host = host.trim_matches(['[', ']']);
    let address = host.parse::<IpAddr>();
    host == "localhost"
        || host.ends_with(".localhost")
        || address.is_ok_and(|address| address.is_loopback() || address.is_unspecified())
}
