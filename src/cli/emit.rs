//! `casepack emit evalhub`: the files with which `EvalHub` runs what was published; and a strict
//! check of such files.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::num::NonZeroU32;
use std::path::Path;

use serde_json::{Value, json};

use super::Context;
use super::args::{Emit, EmitFor};
use super::exit::Exit;
use super::outcome::{Failure, Outcome};
use super::store;
use super::ui::{Cell, Ink, Table, count};
use crate::bundle::View;
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::digest::Digest;
use crate::escape;
use crate::fs::{ReadError, read_regular, write_atomic};
use crate::path::TreePath;
use crate::plan::Select;
use crate::publish::{Remote, Which, cases, published};
use crate::store::{Purpose, Server, Store, StoreUrl};
use crate::target::evalhub::{
    BENCHMARKS, Fetched, Layout, OBJECTS, Part, Request, check_file, label, release_key, seconds,
};
use crate::yaml;

/// How the agent-eval adapter calls its provider and its benchmark.
pub(super) const PROVIDER: &str = "agent-eval";
pub(super) const BENCHMARK: &str = "skill-eval";

/// What was published at one place.
struct Found {
    fetched: Fetched,
    parts: Vec<Part>,
    server: Server,
    name: String,
}

pub(super) fn run(args: &Emit, context: &Context) -> Outcome {
    let EmitFor::Evalhub = args.what;
    let mut levels = args.levels.levels();
    // EvalHub drops what it does not know in silence, so nothing else tells of a misspelt key.
    levels.deny.extend([Rule::UnknownKey, Rule::DuplicateKey]);
    let mut diags = Diagnostics::new(levels);
    if !args.check.is_empty() {
        return check(args, context, diags);
    }
    let request = match request(args, context, &mut diags) {
        Ok(request) => request,
        Err((exit, failure)) => return Outcome::of(diags).failed(exit, failure),
    };
    let files = request.files();
    for (name, text) in &files {
        check_file(name, text, &mut diags);
    }
    // As the id of a provider, whatever a server makes of others.
    if let Some(id) = request.collection.as_ref().filter(|id| label(id) != **id) {
        let message = format!("--collection: `{id}` is no name in Kubernetes.");
        let help = "1 to 36 small letters, digits and dashes, a letter or digit first and last.";
        diags.push(Diagnostic::new(Rule::KubernetesName, message).help(help));
    }
    if diags.has_errors() {
        return Outcome::of(diags);
    }
    let mut written = Vec::new();
    if let Some(out) = &args.out {
        let dir = context.machine.absolute(out);
        match write(&dir, &files, args.force) {
            Ok(names) => written = names,
            Err((exit, failure)) => return Outcome::of(diags).failed(exit, failure),
        }
    }
    told(args, &request, &files, &written, diags)
}

fn check(args: &Emit, context: &Context, mut diags: Diagnostics) -> Outcome {
    let mut table = Table::default();
    let mut fields = Vec::new();
    for path in &args.check {
        let name = path.to_string_lossy().into_owned();
        let text = match read(&context.machine.absolute(path)) {
            Ok(text) => text,
            Err(error) => {
                let failure = Failure {
                    causes: vec![error.to_string()],
                    ..Failure::new(
                        format!("'{name}' can not be read."),
                        "Name files with --check that are there and are text, YAML or JSON.",
                    )
                };
                return Outcome::of(diags).failed(Exit::Usage, failure);
            }
        };
        let kind = check_file(&name, &text, &mut diags);
        let kind = kind.map(crate::target::evalhub::Kind::name);
        table.row([
            Cell::new(name.as_str()).ink(Ink::Strong),
            Cell::new(kind.unwrap_or("unknown")),
        ]);
        fields.push(json!({ "file": name, "kind": kind }));
    }
    let mut outcome = Outcome::of(diags).field("checked", fields);
    outcome.text = table.show(context.look.color_out);
    outcome
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than is parsed, so that the parser tells of it.
    fs::File::open(path)?
        .take(yaml::MAX_BYTES as u64 + 1)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// What is to be written down, from what the stores say.
fn request(
    args: &Emit,
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<Request, (Exit, Failure)> {
    let mut all: Option<Found> = None;
    for (url, digest) in &args.sources {
        let found = find(url, *digest, args, context, diags)?;
        match &mut all {
            None => all = Some(found),
            Some(all) if all.fetched == found.fetched && all.server == found.server => {
                all.parts.extend(found.parts);
            }
            Some(_) => {
                let failure = Failure::new(
                    "The sources have different layouts or are on different servers, and one \
                     provider and one Secret serve all benchmarks of a job.",
                    "Emit them apart.",
                );
                return Err((Exit::Usage, failure));
            }
        }
    }
    let Some(found) = all else {
        let failure = Failure::new(
            "Nothing is named that was published.",
            "Add s3://BUCKET/PREFIX as `casepack publish` printed it, or --check FILE.",
        );
        return Err((Exit::Usage, failure));
    };
    let text =
        |given: &Option<String>, usual: &str| given.clone().unwrap_or_else(|| usual.to_owned());
    Ok(Request {
        name: text(&args.name, &found.name),
        collection: args.collection.clone(),
        fetched: found.fetched,
        parts: found.parts,
        provider: text(&args.provider, PROVIDER),
        benchmark: text(&args.benchmark, BENCHMARK),
        image: args.adapter_image.clone(),
        command: args.adapter_command.clone(),
        model_url: args.model_url.clone(),
        model: args.model.clone(),
        secret: text(&args.secret, "casepack-s3"),
        endpoint: found.server.endpoint,
        region: found.server.region,
    })
}

fn find(
    url: &StoreUrl,
    digest: Option<Digest>,
    args: &Emit,
    context: &Context,
    diags: &mut Diagnostics,
) -> Result<Found, (Exit, Failure)> {
    let StoreUrl::S3 { bucket, prefix } = url else {
        let failure = Failure::new(
            format!("{url} is a directory, and EvalHub fetches from S3."),
            "Publish to s3://BUCKET/PREFIX, and name that.",
        );
        return Err((Exit::Usage, failure));
    };
    let named = || args.r#ref.clone().map(Which::Ref);
    if let Some(which) = digest.map(Which::Manifest).or_else(named) {
        let store = store::open(url, &args.s3, context, Purpose::Read)?;
        return release(&*store, (bucket, prefix.as_ref()), &which, args.shards);
    }
    let nothing = || {
        let failure = Failure::new(
            format!("casepack has no record of plain objects at {url}."),
            "Name the prefix as `casepack publish --layout …` printed it; of a store of releases, \
             name one with --ref NAME or STORE@sha256:….",
        );
        (Exit::Usage, failure)
    };
    let (parent, name) = store::parted(url).ok_or_else(nothing)?;
    if args.shards.is_some() {
        let failure = Failure::new(
            "--shards is for releases: plain objects are fetched prefix by prefix.",
            "Publish parts with --shard I/N to a prefix each, and name all prefixes here.",
        );
        return Err((Exit::Usage, failure));
    }
    let store = store::open(&parent, &args.s3, context, Purpose::Read)?;
    let found = published(&*store, &name, &context.stop, diags)
        .map_err(|error| store::told(&error))?
        .ok_or_else(nothing)?;
    if found.objects > OBJECTS {
        let message = format!(
            "{url} has {}, which take one pod about {} s.",
            count(found.objects, "object", "objects"),
            seconds(found.objects, found.bytes)
        );
        diags.push(Diagnostic::new(Rule::SlowDownload, message).help(
            "Publish parts with --shard I/N to a prefix each, and name all prefixes here: each \
             becomes a benchmark with a pod of its own.",
        ));
    }
    let key = prefix
        .as_ref()
        .map_or_else(String::new, |prefix| format!("{prefix}/"));
    Ok(Found {
        fetched: match found.layout {
            Layout::TestData => Fetched::ByEvalHub,
            Layout::AgentEval => Fetched::ByAdapter,
        },
        name: job_name(bucket, &key, &found.tree),
        parts: vec![Part {
            bucket: bucket.clone(),
            key,
            digest: found.tree,
            dataset: found.dataset,
        }],
        server: server(&*store),
    })
}

/// A release, which casepack itself fetches as `EvalHub`'s init image.
fn release(
    store: &dyn Store,
    (bucket, prefix): (&str, Option<&TreePath>),
    which: &Which,
    shards: Option<NonZeroU32>,
) -> Result<Found, (Exit, Failure)> {
    let remote = Remote::new(store, None);
    let release = remote.release(which).map_err(|error| store::told(&error))?;
    let document = &release.document;
    let files = |view: View| document.views.get(&view).map_or(0, |(files, _)| *files);
    let files = files(View::Workspace) + files(View::Evaluation);
    let enough = files.div_ceil(OBJECTS).clamp(1, BENCHMARKS);
    let shards = shards.map_or(enough, |given| u64::from(given.get()));
    let shards = shards.min(document.cases.max(1));
    let prefix = prefix.map(TreePath::as_str);
    let mut parts = vec![None];
    if shards > 1 {
        let ids = cases(remote, &release).map_err(|error| store::told(&error))?;
        parts = (1..=shards).map(|index| Some((index, shards))).collect();
        // Parts are shares by the digests of ids: one without a case would be a job that fails.
        parts.retain(|part| {
            let part = part.map(|(index, of)| Select::default().shard(index, of));
            part.is_none_or(|part| ids.iter().any(|case| part.has(&case.id)))
        });
    }
    let parts = parts.into_iter().map(|shard| Part {
        bucket: bucket.to_owned(),
        key: release_key(prefix, &release.digest, shard),
        digest: release.digest.to_string(),
        dataset: Some(document.dataset.to_string()),
    });
    Ok(Found {
        fetched: Fetched::ByCasepack,
        name: job_name(bucket, &document.name, &release.digest.to_string()),
        parts: parts.collect(),
        server: server(store),
    })
}

fn server(store: &dyn Store) -> Server {
    store.server().unwrap_or(Server {
        endpoint: String::new(),
        region: String::new(),
    })
}

/// What is published and the beginning of its digest, as one label.
fn job_name(bucket: &str, key: &str, digest: &str) -> String {
    let is_name = |part: &&str| Digest::from_hex(part).is_err();
    let mut parts = key.split('/').filter(|part| !part.is_empty());
    let name = parts.rfind(is_name).unwrap_or(bucket);
    let digest = digest.trim_start_matches("sha256:");
    let mut name = label(name);
    name.truncate(54);
    label(&format!("{name}-{}", digest.get(..8).unwrap_or(digest)))
}

/// Writes the files into `dir`: all, or none if one is there that is another.
fn write(
    dir: &Path,
    files: &[(&'static str, String)],
    force: bool,
) -> Result<Vec<String>, (Exit, Failure)> {
    let failed = |doing: &str, error: &dyn std::error::Error| {
        let failure = Failure {
            causes: vec![error.to_string()],
            ..Failure::new(
                format!("{doing} {} failed.", dir.display()),
                "Check that you may write there and that there is space.",
            )
        };
        (Exit::System, failure)
    };
    fs::create_dir_all(dir).map_err(|error| failed("Making", &error))?;
    for (name, text) in files {
        let there = match read_regular(&dir.join(name), text.len() as u64) {
            Err(ReadError::Missing) => true,
            there => there.is_ok_and(|there| there == text.as_bytes()),
        };
        if !force && !there {
            let failure = Failure::new(
                format!(
                    "{} is there already, and is another.",
                    dir.join(name).display()
                ),
                "Move it away, name another directory, or overwrite it with --force.",
            );
            return Err((Exit::Usage, failure));
        }
    }
    let mut written = Vec::new();
    for (name, text) in files {
        write_atomic(&dir.join(name), text.as_bytes(), 0o644)
            .map_err(|error| failed("Writing to", &error))?;
        written.push((*name).to_owned());
    }
    Ok(written)
}

fn told(
    args: &Emit,
    request: &Request,
    files: &[(&'static str, String)],
    written: &[String],
    diags: Diagnostics,
) -> Outcome {
    let job = files.iter().find(|(name, _)| *name == "job.json");
    // The job is JSON that was written a moment ago.
    let job: Value = job
        .and_then(|(_, text)| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let texts: BTreeMap<&str, &str> = files
        .iter()
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    let out = args
        .out
        .as_ref()
        .map(|out| out.to_string_lossy().into_owned());
    let text = match &out {
        None => files
            .iter()
            .flat_map(|(name, text)| ["--- # ", name, "\n", text])
            .collect(),
        Some(out) => format!(
            "Wrote {} for {} to {}: {}.\nFill in what is missing, and check it: casepack emit \
             evalhub --check FILE…\n",
            count(written.len(), "file", "files"),
            count(request.parts.len(), "benchmark", "benchmarks"),
            escape::line(out),
            written.join(", "),
        ),
    };
    let mut outcome = Outcome::of(diags)
        .field("files", json!(texts))
        .field("job", job)
        .field("out", out)
        .field("written", written.to_vec());
    outcome.text = text;
    outcome
}
