//! Files for `EvalHub`, checked more strictly than its server does: that drops what it does not know
//! in silence, and takes keys, buckets and names that can't be (evalhub.md 0, 1 and 6.4).
//!
//! Unknown keys are told as `unknown-key`; whoever calls this makes them errors.

mod job;
mod words;

use std::path::Path;
use std::sync::Arc;

use self::job::{Where, benchmark, job, pass_criteria, tags};
use self::words::{endpoint, kubernetes_name, need_text, resource_id};
use super::files::CHANGE_ME;
use crate::diag::{Diagnostic, Diagnostics, Rule, Source};
use crate::yaml::{self, Fields, Node, Value, Yaml};

/// Bytes of a job beyond which its part in a `ConfigMap` may not fit (1 MiB).
const MAX_JOB: usize = 900 << 10;
/// The keys that a Secret for test data needs (evalhub.md 2).
const SECRET_KEYS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_DEFAULT_REGION",
    "AWS_S3_ENDPOINT",
];

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The body of a request for a job.
    Job,
    /// A provider, as a file of the server.
    Provider,
    /// A collection: a file of the server, or as JSON the body of a request.
    Collection,
    /// A Secret with the keys of a bucket.
    Secret,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Provider => "provider",
            Self::Collection => "collection",
            Self::Secret => "secret",
        }
    }
}

/// Checks the file `name` with the content `text`. `None`: it is none for EvalHub, which is told.
pub fn check_file(name: &str, text: &str, diags: &mut Diagnostics) -> Option<Kind> {
    let document = match yaml::parse(Arc::new(Source::new(name, text))) {
        Ok(document) => document,
        Err(finding) => {
            diags.push(*finding);
            return None;
        }
    };
    document.report_duplicate_keys(diags);
    let top = Fields::root(&document, diags)?;
    let has = |key: &str| document.root.value.get(key).is_some();
    let secret = document.root.value.get("kind");
    let kind = if secret.is_some_and(|kind| kind.value.as_str() == Some("Secret")) {
        secret_file(top, diags);
        Kind::Secret
    } else if has("runtime") {
        provider(top, diags);
        Kind::Provider
    } else if has("model") {
        job(top, diags);
        if text.len() > MAX_JOB {
            let message = format!("The job has {} kB.", text.len() / 1000);
            diags.push(
                Diagnostic::new(Rule::JobTooLarge, message)
                    .help("Give fewer parameters, or make several jobs of it.")
                    .file(name),
            );
        }
        Kind::Job
    } else if has("category") || has("benchmarks") {
        let json = Path::new(name)
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("json"));
        collection(top, !json, diags);
        Kind::Collection
    } else {
        let message = format!("'{name}' is no job, provider, collection or Secret.");
        diags.push(
            top.finding(Rule::MissingKey, message)
                .help("A job has `model`, a provider `runtime`, a collection `category`."),
        );
        return None;
    };
    let mut left = Vec::new();
    placeholders(&document.root, "", &mut left);
    if let Some((_, first)) = left.first() {
        let fields: Vec<String> = left.iter().map(|(path, _)| format!("`{path}`")).collect();
        let message = format!("Still to be filled in: {}.", fields.join(", "));
        diags.push(
            Diagnostic::new(Rule::ChangeMe, message)
                .help("Write what belongs here, or give it as a flag of `casepack emit evalhub`.")
                .at(&document.source, first.span.clone()),
        );
    }
    Some(kind)
}

/// Every value that is still to be filled in, with its path.
fn placeholders<'n>(node: &'n Node, path: &str, found: &mut Vec<(String, &'n Node)>) {
    match &node.value {
        Yaml::Str(text) if text.contains(CHANGE_ME) => found.push((path.to_owned(), node)),
        Yaml::Seq(items) => {
            for (index, item) in items.iter().enumerate() {
                placeholders(item, &format!("{path}[{index}]"), found);
            }
        }
        Yaml::Map(entries) => {
            for (key, value) in entries {
                let key = key.value.as_str().unwrap_or_default();
                let dot = if path.is_empty() { "" } else { "." };
                placeholders(value, &format!("{path}{dot}{key}"), found);
            }
        }
        _ => {}
    }
}

fn provider(mut top: Fields<'_>, diags: &mut Diagnostics) {
    let id = top.need("id", diags);
    resource_id(id.as_ref(), diags);
    kubernetes_name(id, diags);
    need_text(&mut top, "name", diags);
    for key in ["title", "description", "type"] {
        top.str(key, diags);
    }
    top.items("tags", diags);
    top.entries("agent", diags);
    if let Some(runtime) = top.need("runtime", diags)
        && let Some(mut runtime) = runtime.fields(diags)
    {
        if let Some(mut k8s) = runtime.fields("k8s", diags) {
            need_text(&mut k8s, "image", diags);
            let words = k8s.need("entrypoint", diags);
            for word in words
                .and_then(|words| words.items(diags))
                .unwrap_or_default()
            {
                word.str(diags);
            }
            for key in ["cpu_request", "memory_request", "cpu_limit", "memory_limit"] {
                k8s.str(key, diags);
            }
            k8s.str("image_pull_policy", diags);
            k8s.entries("node_selector", diags);
            for variable in k8s.items("env", diags) {
                self::variable(&variable, diags);
            }
            for key in ["volumes", "volumeMounts", "volume_mounts", "envFrom"] {
                if let Some(value) = k8s.present(key) {
                    not_literal(&value, key, diags);
                }
            }
            k8s.finish(diags);
        }
        if let Some(mut local) = runtime.fields("local", diags) {
            need_text(&mut local, "command", diags);
            for variable in local.items("env", diags) {
                self::variable(&variable, diags);
            }
            local.finish(diags);
        }
        runtime.finish(diags);
    }
    let benchmarks = top.need("benchmarks", diags);
    for benchmark in benchmarks
        .and_then(|benchmarks| benchmarks.items(diags))
        .unwrap_or_default()
    {
        let Some(mut benchmark) = benchmark.fields(diags) else {
            continue;
        };
        need_text(&mut benchmark, "id", diags);
        benchmark.known(&[
            "provider_id",
            "name",
            "title",
            "description",
            "category",
            "metrics",
            "num_few_shot",
            "dataset_size",
            "tags",
            "url",
            "primary_score",
            "pass_criteria",
            "domains",
            "tasks",
            "modalities",
            "evaluation_targets",
            "agent",
        ]);
        benchmark.finish(diags);
    }
    top.finish(diags);
}

fn variable(value: &Value<'_>, diags: &mut Diagnostics) {
    let Some(mut fields) = value.fields(diags) else {
        return;
    };
    need_text(&mut fields, "name", diags);
    let name = fields.get("name").and_then(|name| name.yaml().as_str());
    let from = fields.present("valueFrom");
    if let Some(value) = from.or_else(|| fields.present("value_from")) {
        not_literal(&value, "valueFrom", diags);
        fields.known(&["value"]);
    } else if let Some(value) = fields.need("value", diags)
        && let Some(text) = value.str(diags)
    {
        match name.unwrap_or_default() {
            "AWS_ENDPOINT_URL_S3" | "AWS_ENDPOINT_URL" => endpoint(&value, text, diags),
            secret @ ("AWS_SECRET_ACCESS_KEY" | "AWS_SESSION_TOKEN") if !text.is_empty() => {
                let message = format!("`{secret}` stands here for everybody who reads providers.");
                let help = "Let the pod's identity read the bucket, or publish for EvalHub's \
                            downloader, which has a Secret.";
                diags.push(value.finding(Rule::SecretLiteral, message).help(help));
            }
            _ => {}
        }
    }
    fields.finish(diags);
}

fn not_literal(value: &Value<'_>, key: &str, diags: &mut Diagnostics) {
    diags.push(
        value
            .finding(
                Rule::ProviderNotLiteral,
                format!("EvalHub's providers have no `{key}`."),
            )
            .help("Write the value itself; secrets reach pods through the job's secret_ref only."),
    );
}

fn collection(mut top: Fields<'_>, file: bool, diags: &mut Diagnostics) {
    let at = if file {
        resource_id(top.need("id", diags).as_ref(), diags);
        Where::CollectionFile
    } else {
        Where::CollectionRequest
    };
    need_text(&mut top, "name", diags);
    need_text(&mut top, "category", diags);
    top.str("description", diags);
    tags(&mut top, diags);
    pass_criteria(&mut top, diags);
    top.entries("custom", diags);
    top.known(&[
        "title",
        "agent",
        "curation_order",
        "domains",
        "tasks",
        "modalities",
        "industries",
        "evaluation_targets",
    ]);
    let benchmarks = top.need("benchmarks", diags);
    for benchmark in benchmarks
        .and_then(|benchmarks| benchmarks.items(diags))
        .unwrap_or_default()
    {
        self::benchmark(&benchmark, at, diags);
    }
    top.finish(diags);
}

fn secret_file(mut top: Fields<'_>, diags: &mut Diagnostics) {
    need_text(&mut top, "apiVersion", diags);
    need_text(&mut top, "kind", diags);
    top.str("type", diags);
    top.bool("immutable", diags);
    if let Some(metadata) = top.need("metadata", diags)
        && let Some(mut metadata) = metadata.fields(diags)
    {
        kubernetes_name(metadata.need("name", diags), diags);
        metadata.finish_open();
    }
    let mut found = Vec::new();
    let mut server = None;
    for block in ["data", "stringData"] {
        for (name, value) in top.entries(block, diags) {
            let text = value.str(diags).unwrap_or_default();
            if !text.is_empty() {
                found.push(name);
            }
            if name == "AWS_S3_ENDPOINT" && block == "stringData" {
                server = Some((value, text));
            }
        }
    }
    for key in SECRET_KEYS.iter().filter(|key| !found.contains(key)) {
        diags.push(
            top.finding(
                Rule::SecretIncomplete,
                format!("The Secret has no `{key}`, or an empty one."),
            )
            .help("EvalHub's downloader needs all four keys, on AWS too."),
        );
    }
    if let Some((value, text)) = server {
        endpoint(&value, text, diags);
    }
    top.finish(diags);
}
