//! Jobs, and the benchmarks that they and collections name (evalhub.md 1).

use super::words::{bucket, is_url, key, kubernetes_name, need_text, resource_id};
use crate::diag::{Diagnostics, Rule};
use crate::yaml::{Fields, Value};

pub(super) fn job(mut top: Fields<'_>, diags: &mut Diagnostics) {
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
        resource_id(collection.need("id", diags).as_ref(), diags);
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
pub(super) enum Where {
    Job,
    CollectionFile,
    CollectionRequest,
}

/// Whether it works on recorded results.
pub(super) fn benchmark(value: &Value<'_>, at: Where, diags: &mut Diagnostics) -> bool {
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

pub(super) fn tags(top: &mut Fields<'_>, diags: &mut Diagnostics) {
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

pub(super) fn pass_criteria(fields: &mut Fields<'_>, diags: &mut Diagnostics) {
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
