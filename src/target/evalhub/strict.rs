//! Files for `EvalHub`, checked more strictly than its server does: that drops what it does not know
//! in silence, and takes keys, buckets and names that can't be (evalhub.md 0, 1 and 6.4).
//!
//! Unknown keys are told as `unknown-key`; whoever calls this makes them errors.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

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

fn job(mut top: Fields<'_>, diags: &mut Diagnostics) {
    need_text(&mut top, "name", diags);
    top.str("description", diags);
    tags(&mut top, diags);
    pass_criteria(&mut top, diags);
    let collection = top.fields("collection", diags);
    let direct = top.items("benchmarks", diags);
    match (&collection, direct.is_empty()) {
        (Some(_), false) => diags.push(
            top.finding(Rule::BadValue, "A job has `benchmarks` or a `collection`.")
                .help("Leave one of the two out."),
        ),
        (None, true) => diags.push(
            top.finding(Rule::MissingKey, "The job has no benchmark.")
                .help("Add `benchmarks` or a `collection`."),
        ),
        _ => {}
    }
    let mut recorded = collection.is_none() && !direct.is_empty();
    for benchmark in direct {
        recorded &= self::benchmark(&benchmark, Where::Job, diags);
    }
    if let Some(mut collection) = collection {
        need_text(&mut collection, "id", diags);
        for benchmark in collection.items("benchmarks", diags) {
            self::benchmark(&benchmark, Where::Job, diags);
        }
        collection.finish(diags);
    }
    if let Some(model) = top.need("model", diags)
        && let Some(model) = model.fields(diags)
    {
        self::model(model, recorded, diags);
    }
    hardware(&mut top, diags);
    if let Some(mut queue) = top.fields("queue", diags) {
        self::queue(&mut queue, diags);
        queue.finish(diags);
    }
    experiment(&mut top, diags);
    exports(&mut top, diags);
    top.entries("custom", diags);
    top.finish(diags);
}

fn model(mut model: Fields<'_>, recorded: bool, diags: &mut Diagnostics) {
    need_text(&mut model, "name", diags);
    let url = model.get("url");
    match &url {
        None if !recorded => diags.push(
            model
                .finding(Rule::ModelUrl, "The model has no `url`.")
                .help("Add the URL of its API: only jobs on recorded results go without."),
        ),
        Some(value) => {
            if let Some(text) = value.str(diags)
                && !is_url(text)
            {
                let message = format!("`{text}` is no URL of a model.");
                let help = "Write a whole URL: https://HOST/v1.";
                diags.push(value.finding(Rule::ModelUrl, message).help(help));
            }
        }
        None => {}
    }
    if let Some(mut auth) = model.fields("auth", diags) {
        kubernetes_name(auth.need("secret_ref", diags), diags);
        auth.finish(diags);
    }
    model.entries("parameters", diags);
    model.str("card_url", diags);
    model.finish(diags);
}

/// Where a benchmark stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Job,
    CollectionFile,
    CollectionRequest,
}

/// Whether it works on recorded results.
fn benchmark(value: &Value<'_>, at: Where, diags: &mut Diagnostics) -> bool {
    let Some(mut fields) = value.fields(diags) else {
        return false;
    };
    need_text(&mut fields, "id", diags);
    need_text(&mut fields, "provider_id", diags);
    if let Some(weight) = fields.get("weight")
        && weight.number(diags).is_some_and(|weight| weight < 0.0)
    {
        diags.push(
            weight
                .finding(Rule::BadValue, "The weight is below 0.")
                .help("Write 0 or more."),
        );
    }
    if let Some(mut score) = fields.fields("primary_score", diags) {
        need_text(&mut score, "metric", diags);
        score.bool("lower_is_better", diags);
        score.finish(diags);
    }
    pass_criteria(&mut fields, diags);
    if at == Where::Job {
        hardware(&mut fields, diags);
    } else {
        fields.str("url", diags);
    }
    let mut prefix = None;
    for (name, value) in fields.entries("parameters", diags) {
        if name == "s3_prefix" {
            let found = value.str(diags).unwrap_or_default();
            if found.trim_matches('/').is_empty() || found.starts_with('/') {
                let message = format!("Nothing is found below the prefix `{found}`.");
                let help = "Write a prefix of the bucket, without a slash before it.";
                diags.push(value.finding(Rule::PrefixEmpty, message).help(help));
            }
            prefix = Some(value);
        } else if name == "s3_bucket" {
            bucket(&value, diags);
        }
    }
    let mut recorded = false;
    if let Some(mut data) = fields.fields("test_data_ref", diags) {
        recorded = test_data(&mut data, at, diags);
        data.finish(diags);
        if let Some(prefix) = prefix {
            diags.push(
                prefix
                    .finding(
                        Rule::BothDownloads,
                        "The benchmark has both `s3_prefix` and `test_data_ref`.",
                    )
                    .help(
                        "Leave one out: EvalHub fetches the one, the adapter the other, and which \
                         of the two counts depends on the image.",
                    ),
            );
        }
    }
    fields.finish(diags);
    recorded
}

fn test_data(data: &mut Fields<'_>, at: Where, diags: &mut Diagnostics) -> bool {
    let kinds = [("data_set", false), ("pre_recorded_data", true)];
    let recorded = data.choice("type", &kinds, diags).unwrap_or(false);
    let s3 = data.fields("s3", diags);
    let pvc = data.fields("pvc", diags);
    let git = data.fields("git", diags);
    let hf = data.fields("hf", diags);
    let sources = [&s3, &pvc, &git, &hf];
    let count = sources.iter().filter(|source| source.is_some()).count();
    if count != 1 {
        let message = format!("`test_data_ref` has {count} sources.");
        diags.push(
            data.finding(Rule::BadValue, message)
                .help("Name exactly one of s3, pvc, git and hf."),
        );
    }
    if let Some(mut s3) = s3 {
        if let Some(value) = s3.need("bucket", diags) {
            bucket(&value, diags);
        }
        if let Some(value) = s3.need("key", diags) {
            key(&value, diags);
        }
        secret_ref(&mut s3, at, diags);
        s3.finish(diags);
    }
    if let Some(mut pvc) = pvc {
        kubernetes_name(pvc.need("claim_name", diags), diags);
        pvc.str("sub_path", diags);
        pvc.finish(diags);
    }
    for (source, required, revision) in [(git, "url", "ref"), (hf, "repo_id", "revision")] {
        let Some(mut source) = source else { continue };
        need_text(&mut source, required, diags);
        source.str(revision, diags);
        source.str("sub_path", diags);
        kubernetes_name(source.get("secret_ref"), diags);
        if let Some(value) = source.present("resolved_sha") {
            let message = "`resolved_sha` is written by EvalHub only.";
            diags.push(value.finding(Rule::BadValue, message).help("Remove it."));
        }
        source.finish(diags);
    }
    recorded
}

/// The Secret of a bucket. In a collection file its key is another one (evalhub.md 1, "Trap").
fn secret_ref(s3: &mut Fields<'_>, at: Where, diags: &mut Diagnostics) {
    let (right, wrong) = match at {
        Where::CollectionFile => ("secretref", "secret_ref"),
        Where::Job | Where::CollectionRequest => ("secret_ref", "secretref"),
    };
    let Some(value) = s3.present(wrong) else {
        kubernetes_name(s3.need(right, diags), diags);
        return;
    };
    s3.known(&[right]);
    let message = format!("`{wrong}` is not read here.");
    let help = match at {
        Where::CollectionFile => {
            "Write `secretref` in a collection's file, which the server reads when it starts; \
             `secret_ref` is right in requests."
        }
        _ => "Write `secret_ref`; only files of collections have `secretref`.",
    };
    diags.push(value.finding(Rule::CollectionSecretRef, message).help(help));
}

fn key(value: &Value<'_>, diags: &mut Diagnostics) {
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

fn bucket(value: &Value<'_>, diags: &mut Diagnostics) {
    let Some(name) = value.str(diags) else { return };
    if !is_bucket(name) {
        diags.push(
            value
                .finding(Rule::BucketName, format!("`{name}` is no name of a bucket."))
                .help("3 to 63 small letters, digits, dots and dashes, a letter or digit first and last."),
        );
    }
}

fn provider(mut top: Fields<'_>, diags: &mut Diagnostics) {
    kubernetes_name(top.need("id", diags), diags);
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

/// The URL of an S3 server, as pods see it.
fn endpoint(value: &Value<'_>, text: &str, diags: &mut Diagnostics) {
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
        top.str("id", diags);
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

fn tags(top: &mut Fields<'_>, diags: &mut Diagnostics) {
    for tag in top.items("tags", diags) {
        let Some(text) = tag.str(diags) else { continue };
        let length = text.chars().count();
        if !(1..=128).contains(&length) || text.contains([',', '|']) {
            diags.push(
                tag.finding(Rule::BadValue, format!("`{text}` can not be a tag."))
                    .help("1 to 128 characters, no comma and no vertical bar."),
            );
        }
    }
}

fn pass_criteria(fields: &mut Fields<'_>, diags: &mut Diagnostics) {
    if let Some(mut criteria) = fields.fields("pass_criteria", diags) {
        criteria
            .need("threshold", diags)
            .and_then(|value| value.number(diags));
        criteria.finish(diags);
    }
}

fn hardware(fields: &mut Fields<'_>, diags: &mut Diagnostics) {
    let Some(mut config) = fields.fields("hardware_config", diags) else {
        return;
    };
    let profile = config.str("hardware_profile_name", diags);
    let mut inline = false;
    if let Some(mut queue) = config.fields("queue", diags) {
        inline = true;
        self::queue(&mut queue, diags);
        queue.finish(diags);
    }
    for (block, keys) in [
        ("cpu", &["request", "limit"]),
        ("memory", &["request", "limit"]),
        ("gpu", &["name", "count"]),
    ] {
        if let Some(mut block) = config.fields(block, diags) {
            inline = true;
            block.known(keys);
            block.finish(diags);
        }
    }
    if profile.is_some() && inline {
        let message = "`hardware_config` has a profile and values of its own.";
        diags.push(
            config
                .finding(Rule::BadValue, message)
                .help("Name a hardware profile, or write the values."),
        );
    }
    config.finish(diags);
}

fn queue(queue: &mut Fields<'_>, diags: &mut Diagnostics) {
    queue.choice("kind", &[("kueue", ())], diags);
    kubernetes_name(queue.need("name", diags), diags);
}

fn experiment(top: &mut Fields<'_>, diags: &mut Diagnostics) {
    let Some(mut experiment) = top.fields("experiment", diags) else {
        return;
    };
    diags.push(
        experiment
            .finding(
                Rule::ExperimentNeedsMlflow,
                "An `experiment` needs a server with MLflow.",
            )
            .help("Without MLflow the server refuses the job: leave it out there."),
    );
    experiment.str("name", diags);
    experiment.str("artifact_location", diags);
    let tags = experiment.get("tags");
    let items = tags.as_ref().and_then(|tags| tags.items(diags));
    let items = items.unwrap_or_default();
    if let Some(tags) = tags.filter(|_| items.len() > 20) {
        let message = "An experiment has at most 20 tags.";
        diags.push(tags.finding(Rule::BadValue, message).help("Remove some."));
    }
    for tag in items {
        if let Some(mut tag) = tag.fields(diags) {
            need_text(&mut tag, "key", diags);
            need_text(&mut tag, "value", diags);
            tag.finish(diags);
        }
    }
    experiment.finish(diags);
}

fn exports(top: &mut Fields<'_>, diags: &mut Diagnostics) {
    let Some(mut exports) = top.fields("exports", diags) else {
        return;
    };
    if let Some(mut oci) = exports.fields("oci", diags) {
        if let Some(value) = oci.need("coordinates", diags)
            && let Some(mut coordinates) = value.fields(diags)
        {
            need_text(&mut coordinates, "oci_host", diags);
            need_text(&mut coordinates, "oci_repository", diags);
            coordinates.str("oci_tag", diags);
            coordinates.str("oci_subject", diags);
            coordinates.entries("annotations", diags);
            coordinates.finish(diags);
        }
        if let Some(mut k8s) = oci.fields("k8s", diags) {
            kubernetes_name(k8s.need("connection", diags), diags);
            k8s.finish(diags);
        }
        oci.finish(diags);
    }
    exports.finish(diags);
}

/// A text that has to be there and to say something.
fn need_text(fields: &mut Fields<'_>, key: &'static str, diags: &mut Diagnostics) {
    let Some(value) = fields.need(key, diags) else {
        return;
    };
    if value.str(diags).is_some_and(|text| text.trim().is_empty()) {
        let message = format!("`{}` is empty.", value.path());
        diags.push(value.finding(Rule::BadValue, message).help("Fill it in."));
    }
}

/// The name of a Secret, a claim or a queue.
fn kubernetes_name(value: Option<Value<'_>>, diags: &mut Diagnostics) {
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
fn is_url(text: &str) -> bool {
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
