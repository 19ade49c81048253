//! What may be typed for verbs that speak with stores.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};

use super::{Destination, Input, LevelArgs, Packaging, shard};
use crate::bundle::RefName;
use crate::digest::Digest;
use crate::store::StoreUrl;

/// How S3 servers are reached. What is left out, the variables and files of the AWS tools say.
#[derive(Debug, Args)]
#[command(next_help_heading = "S3")]
#[expect(
    clippy::struct_field_names,
    reason = "their names are their flags' names, and no verb has two of one name"
)]
pub(crate) struct S3Args {
    /// URL of the server's S3 API [default: AWS itself, or `AWS_ENDPOINT_URL_S3`]
    #[arg(long, value_name = "URL", env = "CASEPACK_S3_ENDPOINT")]
    pub(crate) s3_endpoint: Option<String>,
    /// Region of the bucket
    #[arg(long, value_name = "REGION", env = "CASEPACK_S3_REGION")]
    pub(crate) s3_region: Option<String>,
    /// Profile in the configuration files of the AWS tools
    #[arg(long, value_name = "NAME", env = "CASEPACK_S3_PROFILE")]
    pub(crate) s3_profile: Option<String>,
    /// Whether the bucket stands in the path of URLs; true with an endpoint of your own
    #[arg(long, value_name = "BOOL", env = "CASEPACK_S3_PATH_STYLE")]
    pub(crate) s3_path_style: Option<bool>,
    /// Do not sign requests, for public stores
    #[arg(long, env = "CASEPACK_S3_ANONYMOUS", value_parser = FalseyValueParser::new())]
    pub(crate) s3_anonymous: bool,
    /// A PEM file with further certificate authorities
    #[arg(long, value_name = "FILE", env = "CASEPACK_S3_CA_BUNDLE")]
    pub(crate) s3_ca_bundle: Option<PathBuf>,
    /// A directory with one file for each key of a mounted secret
    #[arg(long, value_name = "DIR", env = "CASEPACK_S3_SECRET_DIR")]
    pub(crate) s3_secret_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// The store: `s3://BUCKET/PREFIX` or a directory
    #[arg(value_name = "DEST")]
    pub(crate) dest: StoreUrl,
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) publishing: Publishing,
    #[command(flatten)]
    pub(crate) destination: Destination,
    #[command(flatten)]
    pub(crate) packaging: Packaging,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Publishing")]
pub(crate) struct Publishing {
    /// How the dataset lies in the store; {digest} in DEST stands for the digest of plain objects
    #[arg(
        long,
        value_name = "LAYOUT",
        env = "CASEPACK_LAYOUT",
        default_value = "bundle"
    )]
    #[arg(value_enum)]
    pub(crate) layout: PublishLayout,
    /// The name of the release [default: latest]; with --force it is moved whoever moved it
    /// meanwhile
    #[arg(long, value_name = "NAME", env = "CASEPACK_TAG", value_parser = reference)]
    pub(crate) tag: Option<RefName>,
    /// A directory with a release that was built before, which is sent as it is
    #[arg(
        long,
        value_name = "DIR",
        env = "CASEPACK_FROM",
        conflicts_with = "path"
    )]
    pub(crate) from: Option<PathBuf>,
    /// Read what the store has of the release, and send again what is damaged
    #[arg(long, env = "CASEPACK_REPAIR", value_parser = FalseyValueParser::new())]
    pub(crate) repair: bool,
    /// Say what would be sent, and send nothing; no output directory is made, and one that is there
    /// is brought up to date
    #[arg(long, env = "CASEPACK_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PublishLayout {
    /// A release, stored by content
    Bundle,
    /// Plain objects for `EvalHub`'s downloader: eval.yaml and cases/CASE/…
    #[value(name = "evalhub-testdata")]
    TestData,
    /// Plain objects for agent-eval's downloader: CASE/FILE
    #[value(name = "agent-eval-s3")]
    AgentEval,
}

/// A release in a store.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// The store, and after an '@' the digest of one release in it
    #[arg(value_name = "SRC[@sha256:…]", value_parser = source)]
    pub(crate) src: (StoreUrl, Option<Digest>),
    /// The name of the release; without it and without a digest `latest`
    #[arg(long, value_name = "NAME", env = "CASEPACK_REF")]
    #[arg(value_parser = reference, help_heading = "Release")]
    pub(crate) r#ref: Option<RefName>,
    /// The dataset digest that the release has to have
    #[arg(
        long,
        value_name = "DIGEST",
        env = "CASEPACK_EXPECT_DATASET",
        help_heading = "Release"
    )]
    pub(crate) expect_dataset: Option<Digest>,
    /// A directory where what was read is kept for the next time; several may share it
    #[arg(
        long,
        value_name = "DIR",
        env = "CASEPACK_CACHE",
        help_heading = "Release"
    )]
    pub(crate) cache: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Pull {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) pulling: Pulling,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Pulling")]
pub(crate) struct Pulling {
    /// Where cases go, one directory each
    #[arg(short, long, value_name = "DIR", env = "CASEPACK_OUT")]
    pub(crate) out: PathBuf,
    /// Only cases whose id matches, with *, ? and [...] (repeatable)
    #[arg(
        long,
        value_name = "GLOB",
        env = "CASEPACK_CASE",
        value_delimiter = '\n'
    )]
    pub(crate) case: Vec<String>,
    /// Only part I of N of the cases (1/4 … 4/4), a stable share by the digest of their ids
    #[arg(long, value_name = "I/N", env = "CASEPACK_SHARD", value_parser = shard)]
    pub(crate) shard: Option<(u64, u64)>,
    /// What is pulled: everything, or the files of one view and nothing else
    #[arg(
        long,
        value_name = "VIEW",
        env = "CASEPACK_VIEW",
        default_value = "all"
    )]
    #[arg(value_enum)]
    pub(crate) view: PullView,
    /// As what: Harbor packages, or workspace and evaluation material in one directory
    #[arg(long = "as", value_name = "LAYOUT", env = "CASEPACK_AS")]
    #[arg(value_enum)]
    pub(crate) r#as: Option<PullAs>,
    /// Bytes that the cases may have
    #[arg(long, value_name = "BYTES", env = "CASEPACK_MAX_BYTES")]
    pub(crate) max_bytes: Option<u64>,
    /// Replace cases that were changed since they were pulled
    #[arg(long, env = "CASEPACK_FORCE", value_parser = FalseyValueParser::new())]
    pub(crate) force: bool,
    /// How many cases to write at a time; as many as there are processors without it
    #[arg(short, long, value_name = "N", env = "CASEPACK_JOBS")]
    pub(crate) jobs: Option<NonZeroUsize>,
    /// A file for a short JSON summary
    #[arg(long, value_name = "FILE", env = "CASEPACK_SUMMARY")]
    pub(crate) summary: Option<PathBuf>,
    /// The summary goes to /dev/termination-log, where Kubernetes looks for it
    #[arg(long, env = "CASEPACK_IN_POD", value_parser = FalseyValueParser::new())]
    pub(crate) in_pod: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PullView {
    /// Every file
    All,
    /// What the agent sees; nothing of the rest is read
    Workspace,
    /// What judges see besides
    Evaluation,
    /// What a package has around them
    Task,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PullAs {
    /// Task packages
    Harbor,
    /// Plain directories; the agent can read answer keys there
    Cases,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// The store: `s3://BUCKET/PREFIX` or a directory
    #[arg(value_name = "STORE")]
    pub(crate) store: StoreUrl,
    /// List the cases of this release instead
    #[arg(long, value_name = "NAME", env = "CASEPACK_REF", value_parser = reference)]
    pub(crate) r#ref: Option<RefName>,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pub(crate) source: Source,
    /// The case whose trees are shown; the release itself without it
    #[arg(value_name = "CASE")]
    pub(crate) case: Option<String>,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

#[derive(Debug, Args)]
pub(crate) struct Emit {
    /// For which system
    #[arg(value_name = "FOR", value_enum)]
    pub(crate) what: EmitFor,
    /// What was published: `s3://BUCKET/PREFIX` of plain objects as publish printed it, or a store
    /// with --ref or '@' and the digest of a release; several make a benchmark each
    #[arg(value_name = "SRC", value_parser = source)]
    pub(crate) sources: Vec<(StoreUrl, Option<Digest>)>,
    #[command(flatten)]
    pub(crate) levels: LevelArgs,
    /// The release of a store, by its name
    #[arg(long, value_name = "NAME", env = "CASEPACK_REF", value_parser = reference)]
    pub(crate) r#ref: Option<RefName>,
    /// Into how many benchmarks a release is split; one for each 5,000 files without it
    #[arg(long, value_name = "N", env = "CASEPACK_SHARDS")]
    pub(crate) shards: Option<NonZeroU32>,
    /// Where the files go; they are printed without it
    #[arg(short, long, value_name = "DIR", env = "CASEPACK_OUT")]
    pub(crate) out: Option<PathBuf>,
    /// Overwrite files that are there
    #[arg(long, env = "CASEPACK_FORCE", value_parser = FalseyValueParser::new())]
    pub(crate) force: bool,
    /// Check these files instead, more strictly than the server does: jobs, providers,
    /// collections, Secrets
    #[arg(
        long,
        value_name = "FILE",
        env = "CASEPACK_CHECK",
        num_args = 1..,
        value_delimiter = '\n',
        conflicts_with = "sources"
    )]
    pub(crate) check: Vec<PathBuf>,
    /// The name of the job; made of prefix and digest without it
    #[arg(long, value_name = "NAME", env = "CASEPACK_NAME")]
    #[arg(help_heading = "EvalHub")]
    pub(crate) name: Option<String>,
    /// Write a collection of that id as well, and a job that runs it: for cases that many jobs use
    #[arg(long, value_name = "ID", env = "CASEPACK_COLLECTION")]
    #[arg(help_heading = "EvalHub")]
    pub(crate) collection: Option<String>,
    /// The model, by its name
    #[arg(long, value_name = "MODEL", env = "CASEPACK_MODEL")]
    #[arg(help_heading = "EvalHub")]
    pub(crate) model: Option<String>,
    /// The URL of the model's API
    #[arg(long, value_name = "URL", env = "CASEPACK_MODEL_URL")]
    #[arg(help_heading = "EvalHub")]
    pub(crate) model_url: Option<String>,
    /// The id of the provider [default: agent-eval]
    #[arg(long, value_name = "ID", env = "CASEPACK_PROVIDER")]
    #[arg(help_heading = "EvalHub")]
    pub(crate) provider: Option<String>,
    /// The id of the provider's benchmark [default: skill-eval]
    #[arg(long, value_name = "ID", env = "CASEPACK_BENCHMARK")]
    #[arg(help_heading = "EvalHub")]
    pub(crate) benchmark: Option<String>,
    /// The image with the adapter
    #[arg(long, value_name = "REF", env = "CASEPACK_ADAPTER_IMAGE")]
    #[arg(help_heading = "EvalHub")]
    pub(crate) adapter_image: Option<String>,
    /// A word of the adapter's command in its image (repeatable)
    #[arg(
        long,
        value_name = "WORD",
        env = "CASEPACK_ADAPTER_COMMAND",
        value_delimiter = '\n',
        allow_hyphen_values = true
    )]
    #[arg(help_heading = "EvalHub")]
    pub(crate) adapter_command: Vec<String>,
    /// The name of the Secret with the bucket's keys [default: casepack-s3]
    #[arg(long, value_name = "NAME", env = "CASEPACK_SECRET")]
    #[arg(help_heading = "EvalHub")]
    pub(crate) secret: Option<String>,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EmitFor {
    /// `EvalHub`: a provider, the request for a job, and a template of a Secret
    Evalhub,
}

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// The store: `s3://BUCKET/PREFIX` or a directory
    #[arg(value_name = "STORE")]
    pub(crate) store: StoreUrl,
    /// Name what nothing needs, and remove what was named before; without it, only tell
    #[arg(long, env = "CASEPACK_WRITE", value_parser = FalseyValueParser::new())]
    pub(crate) write: bool,
    /// How long garbage stays after it was named
    #[arg(long, value_name = "DAYS", env = "CASEPACK_GRACE", default_value_t = 7)]
    pub(crate) grace: u32,
    /// How long a release stays that no name leads to, since jobs may hold its digest
    #[arg(long, value_name = "DAYS", env = "CASEPACK_KEEP", default_value_t = 90)]
    pub(crate) keep: u32,
    #[command(flatten)]
    pub(crate) s3: S3Args,
}

fn reference(text: &str) -> Result<RefName, String> {
    RefName::new(text).map_err(|error| error.to_string())
}

/// `STORE` or `STORE@sha256:…`.
fn source(text: &str) -> Result<(StoreUrl, Option<Digest>), String> {
    let (store, digest) = match text.rsplit_once("@sha256:") {
        Some((store, hex)) => {
            let digest = Digest::from_hex(hex).map_err(|error| error.to_string())?;
            (store, Some(digest))
        }
        None => (text, None),
    };
    let store = store
        .parse::<StoreUrl>()
        .map_err(|error| error.to_string())?;
    Ok((store, digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_may_name_a_release() {
        let hex = "0".repeat(64);
        let (store, digest) = source(&format!("s3://bucket/a@b@sha256:{hex}")).unwrap();
        assert_eq!(store.to_string(), "s3://bucket/a@b");
        assert_eq!(digest.unwrap().hex(), hex);
        assert_eq!(source("dir").unwrap().1, None);
        assert!(source("dir@sha256:12").is_err());
        assert!(source("").is_err());
    }
}
