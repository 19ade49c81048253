//! Releases: the document that says what is in one, and the OCI manifest around it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::pack::PackIndex;
use super::{Bad, Compression, Fault, RefName, View, json, limits};
use crate::digest::{Digest, Hasher, TreeId};
use crate::path::CaseId;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const ARTIFACT: &str = "application/vnd.casepack.dataset.v1";
const DOCUMENT: &str = "application/vnd.casepack.dataset.v1+json";
const CATALOG: &str = "application/vnd.casepack.catalog.v1+jsonl+zstd";
const PACK_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const PACK_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const VIEW: &str = "io.casepack.view";
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The version of the format, from documents to frames: what reads one reads no other.
const FORMAT: u64 = 2;
/// Characters that are told of who wrote a document of another version.
const WRITER_SHOWN: usize = 60;
/// Documents up to this size stand in the manifest as well.
const INLINE: usize = 64 << 10;

/// A blob, by content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Descriptor {
    /// Its digest.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
}

/// A catalog shard, as the document names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogShard {
    /// Of which view.
    pub view: View,
    /// The id of its first case.
    pub first: CaseId,
    /// The id of its last case.
    pub last: CaseId,
    /// How many cases it has.
    pub cases: u64,
    /// The blob.
    pub blob: Descriptor,
    /// Its inflated bytes.
    pub raw: u64,
}

/// A pack, as the document names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    /// Of which view.
    pub view: View,
    /// Whether several cases use its contents.
    pub shared: bool,
    /// The first and last content, for shared packs of the workspace; the first and last case, for
    /// packs of one case's contents each; nothing for other shared packs, since a digest of an
    /// answer key that is easy to guess tells it.
    pub range: Option<(String, String)>,
    /// The blob.
    pub blob: Descriptor,
    /// Its inflated bytes.
    pub raw: u64,
    /// Its last frame, which holds its index.
    pub index: Descriptor,
}

impl Pack {
    /// What it is called in messages.
    pub fn object(&self) -> String {
        format!("the pack {}", self.blob.digest)
    }

    /// Where its index begins: the bytes of the frames before.
    pub fn data(&self) -> u64 {
        self.blob.size.saturating_sub(self.index.size)
    }

    /// Its index, from the bytes of its last frame, which are compared with their digest.
    ///
    /// # Errors
    /// When they are others, or are no index.
    pub fn parse_index(&self, bytes: &[u8]) -> Result<PackIndex, Bad> {
        if Descriptor::of(bytes) != self.index {
            let why = "has an index with other bytes than its digest says";
            return Err(Bad::new(self.object(), why));
        }
        PackIndex::parse(self.index.digest, bytes, self.data())
    }

    /// Whether contents of the case may lie here.
    pub fn may_have_case(&self, case: &CaseId) -> bool {
        match &self.range {
            Some((first, last)) if !self.shared => {
                first.as_str() <= case.as_str() && case.as_str() <= last.as_str()
            }
            _ => true,
        }
    }

    /// Whether the content may lie here.
    pub fn may_have(&self, content: Digest) -> bool {
        match &self.range {
            Some((first, last)) if self.shared => {
                let hex = content.hex();
                *first <= hex && hex <= *last
            }
            _ => true,
        }
    }
}

/// What a release says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The dataset's name.
    pub name: String,
    /// Its description.
    pub description: String,
    /// The format that its sources are in.
    pub format: String,
    /// Its identity.
    pub dataset: Digest,
    /// That of its Harbor packages.
    pub packages: Digest,
    /// `org/name`, for `dataset.toml`.
    pub harbor_name: String,
    /// The digest of casepack's templates, which went into the packages.
    pub templates: Digest,
    /// The options that packages were made with.
    pub options: BTreeMap<String, String>,
    /// What made packs and shards, and how.
    pub writer: String,
    /// How frames are compressed.
    pub compression: Compression,
    /// How many cases it has.
    pub cases: u64,
    /// Files and their bytes, for each view.
    pub views: BTreeMap<View, (u64, u64)>,
    /// Catalog shards, by view, then by case.
    pub shards: Vec<CatalogShard>,
    /// Packs, by view, shared ones first.
    pub packs: Vec<Pack>,
}

/// A release: its manifest's digest, and what that says.
#[derive(Debug, Clone)]
pub struct Release {
    /// The digest that it is addressed by.
    pub digest: Digest,
    /// The manifest's bytes.
    pub manifest: Vec<u8>,
    /// The document's blob.
    pub config: Descriptor,
    /// The document's bytes.
    pub document_bytes: Vec<u8>,
    /// The document.
    pub document: Document,
}

#[derive(Serialize, Deserialize, Clone)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    digest: String,
    media_type: String,
    size: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawManifest {
    artifact_type: String,
    config: RawDescriptor,
    layers: Vec<RawDescriptor>,
    media_type: String,
    schema_version: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RawIndex {
    manifests: Vec<RawDescriptor>,
    media_type: String,
    schema_version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    cases: u64,
    compression: String,
    dataset: String,
    description: String,
    format: String,
    harbor_name: String,
    name: String,
    options: BTreeMap<String, String>,
    packages: String,
    packs: Vec<RawPack>,
    schema_version: u64,
    shards: Vec<RawShard>,
    templates: String,
    views: BTreeMap<String, RawCount>,
    writer: String,
}

/// What documents of every version have.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawHead {
    schema_version: u64,
    #[serde(default)]
    writer: String,
}

impl RawHead {
    /// A document that starts like this is another casepack's to read.
    fn check(&self, object: &str) -> Result<(), Bad> {
        let fault = match self.schema_version.cmp(&FORMAT) {
            Ordering::Equal => return Ok(()),
            Ordering::Less => Fault::Older,
            Ordering::Greater => Fault::Newer,
        };
        let writer: String = self.writer.chars().take(WRITER_SHOWN).collect();
        let why = format!(
            "was written in version {} of the format by '{writer}'; this casepack reads version \
             {FORMAT}",
            self.schema_version
        );
        Err(Bad {
            fault,
            ..Bad::new(object, why)
        })
    }
}

#[derive(Serialize, Deserialize)]
struct RawCount {
    bytes: u64,
    files: u64,
}

#[derive(Serialize, Deserialize)]
struct RawBlob {
    digest: String,
    size: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawShard {
    cases: u64,
    digest: String,
    first: String,
    last: String,
    raw_size: u64,
    size: u64,
    view: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPack {
    digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first: Option<String>,
    index: RawBlob,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<String>,
    raw_size: u64,
    shared: bool,
    size: u64,
    view: String,
}

impl Descriptor {
    /// The blob with these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
        }
    }

    fn raw(self, media_type: &str) -> RawDescriptor {
        RawDescriptor {
            annotations: BTreeMap::new(),
            artifact_type: None,
            data: None,
            digest: self.digest.to_string(),
            media_type: media_type.to_owned(),
            size: self.size,
        }
    }

    fn layer(self, media_type: &str, view: View) -> RawDescriptor {
        let annotations = [(VIEW.to_owned(), view.name().to_owned())];
        RawDescriptor {
            annotations: annotations.into(),
            ..self.raw(media_type)
        }
    }
}

impl Document {
    /// The blobs that it names, in the order of the manifest's layers.
    pub fn blobs(&self) -> impl Iterator<Item = Descriptor> {
        let shards = self.shards.iter().map(|shard| shard.blob);
        shards.chain(self.packs.iter().map(|pack| pack.blob))
    }

    fn layers(&self) -> Vec<RawDescriptor> {
        let pack_type = match self.compression {
            Compression::Zstd => PACK_ZSTD,
            Compression::Gzip => PACK_GZIP,
        };
        let shards = self.shards.iter();
        let shards = shards.map(|shard| shard.blob.layer(CATALOG, shard.view));
        let packs = self.packs.iter();
        shards
            .chain(packs.map(|pack| pack.blob.layer(pack_type, pack.view)))
            .collect()
    }

    fn to_bytes(&self) -> Vec<u8> {
        let shard = |shard: &CatalogShard| RawShard {
            cases: shard.cases,
            digest: shard.blob.digest.to_string(),
            first: shard.first.as_str().to_owned(),
            last: shard.last.as_str().to_owned(),
            raw_size: shard.raw,
            size: shard.blob.size,
            view: shard.view.name().to_owned(),
        };
        let pack = |pack: &Pack| RawPack {
            digest: pack.blob.digest.to_string(),
            first: pack.range.as_ref().map(|range| range.0.clone()),
            index: RawBlob {
                digest: pack.index.digest.to_string(),
                size: pack.index.size,
            },
            last: pack.range.as_ref().map(|range| range.1.clone()),
            raw_size: pack.raw,
            shared: pack.shared,
            size: pack.blob.size,
            view: pack.view.name().to_owned(),
        };
        let count = |(view, (files, bytes)): (&View, &(u64, u64))| {
            let count = RawCount {
                bytes: *bytes,
                files: *files,
            };
            (view.name().to_owned(), count)
        };
        json::to_vec(&RawDocument {
            cases: self.cases,
            compression: self.compression.name().to_owned(),
            dataset: self.dataset.to_string(),
            description: self.description.clone(),
            format: self.format.clone(),
            harbor_name: self.harbor_name.clone(),
            name: self.name.clone(),
            options: self.options.clone(),
            packages: self.packages.to_string(),
            packs: self.packs.iter().map(pack).collect(),
            schema_version: FORMAT,
            shards: self.shards.iter().map(shard).collect(),
            templates: self.templates.to_string(),
            views: self.views.iter().map(count).collect(),
            writer: self.writer.clone(),
        })
    }

    fn parse(bytes: &[u8], object: &str) -> Result<Self, Bad> {
        let bad = |why: &str| Bad::new(object, why);
        json::from_slice::<RawHead>(bytes, object)?.check(object)?;
        let raw: RawDocument = json::from_slice(bytes, object)?;
        if raw.cases > limits::CASES {
            return Err(bad("has more than 1,000,000 cases"));
        }
        let digest = |text: &str| text.parse().map_err(|_| bad("has a bad digest"));
        let view = |name: &str| View::from_name(name).ok_or_else(|| bad("names an unknown view"));
        let case = |id: &str| CaseId::new(id).map_err(|_| bad("has a case id that is none"));
        // A frame can't be much larger than what is in it.
        let compressed = limits::SHARD_BYTES + (1 << 20);
        let shards = raw.shards.iter().enumerate().flat_map(|(at, shard)| {
            [
                (format!("shards[{at}].size"), shard.size, compressed),
                (
                    format!("shards[{at}].rawSize"),
                    shard.raw_size,
                    limits::SHARD_BYTES,
                ),
            ]
        });
        let packs = raw.packs.iter().enumerate().flat_map(|(at, pack)| {
            [
                (format!("packs[{at}].size"), pack.size, limits::BLOB_BYTES),
                (
                    format!("packs[{at}].rawSize"),
                    pack.raw_size,
                    limits::BLOB_BYTES,
                ),
                (
                    format!("packs[{at}].index.size"),
                    pack.index.size,
                    compressed.min(pack.size),
                ),
            ]
        });
        for (field, size, limit) in shards.chain(packs) {
            if size > limit {
                return Err(bad(&format!(
                    "has a {field} of {size} bytes, more than {limit}"
                )));
            }
        }
        let mut shards = Vec::new();
        for shard in &raw.shards {
            shards.push(CatalogShard {
                view: view(&shard.view)?,
                first: case(&shard.first)?,
                last: case(&shard.last)?,
                cases: shard.cases,
                blob: Descriptor {
                    digest: digest(&shard.digest)?,
                    size: shard.size,
                },
                raw: shard.raw_size,
            });
        }
        let mut packs = Vec::new();
        for pack in &raw.packs {
            packs.push(Pack {
                view: view(&pack.view)?,
                shared: pack.shared,
                range: pack.first.clone().zip(pack.last.clone()),
                blob: Descriptor {
                    digest: digest(&pack.digest)?,
                    size: pack.size,
                },
                raw: pack.raw_size,
                index: Descriptor {
                    digest: digest(&pack.index.digest)?,
                    size: pack.index.size,
                },
            });
        }
        let document = Self {
            name: raw.name,
            description: raw.description,
            format: raw.format,
            dataset: digest(&raw.dataset)?,
            packages: digest(&raw.packages)?,
            harbor_name: raw.harbor_name,
            templates: digest(&raw.templates)?,
            options: raw.options,
            writer: raw.writer,
            compression: Compression::from_name(&raw.compression)
                .ok_or_else(|| bad("names an unknown compression"))?,
            cases: raw.cases,
            views: raw
                .views
                .iter()
                .map(|(name, count)| Ok((view(name)?, (count.files, count.bytes))))
                .collect::<Result<_, Bad>>()?,
            shards,
            packs,
        };
        document.check(object)?;
        Ok(document)
    }

    /// Shards of a view follow each other and have all cases.
    fn check(&self, object: &str) -> Result<(), Bad> {
        let bad = |why: &str| Bad::new(object, why);
        for view in View::ALL {
            let mut last: Option<&CaseId> = None;
            let mut cases = 0_u64;
            for shard in self.shards.iter().filter(|shard| shard.view == view) {
                if shard.first > shard.last || last.is_some_and(|last| *last >= shard.first) {
                    return Err(bad("has catalog shards out of order"));
                }
                last = Some(&shard.last);
                cases = cases.saturating_add(shard.cases);
            }
            if cases != self.cases {
                return Err(bad(
                    "has catalog shards of another number of cases than it says",
                ));
            }
        }
        Ok(())
    }
}

impl RawManifest {
    fn parse(digest: Digest, bytes: &[u8], object: &str) -> Result<Self, Bad> {
        let bad = |why: &str| Bad::new(object, why);
        if Digest::of(bytes) != digest {
            return Err(bad("has other bytes than its digest says"));
        }
        let raw: Self = json::from_slice(bytes, object)?;
        if raw.schema_version != 2 || raw.media_type != MANIFEST || raw.artifact_type != ARTIFACT {
            return Err(bad("is no release of casepack"));
        }
        Ok(raw)
    }
}

impl Release {
    /// The release of that document.
    pub(super) fn new(document: Document) -> Self {
        let document_bytes = document.to_bytes();
        let config = Descriptor::of(&document_bytes);
        let mut raw = config.raw(DOCUMENT);
        if document_bytes.len() <= INLINE {
            raw.data = Some(BASE64.encode(&document_bytes));
        }
        let manifest = json::to_vec(&RawManifest {
            artifact_type: ARTIFACT.to_owned(),
            config: raw,
            layers: document.layers(),
            media_type: MANIFEST.to_owned(),
            schema_version: 2,
        });
        Self {
            digest: Digest::of(&manifest),
            manifest,
            config,
            document_bytes,
            document,
        }
    }

    /// Reads the release with the manifest `bytes`, whose digest has to be `digest`. `fetch` gets
    /// the document's bytes when they are not in the manifest.
    ///
    /// # Errors
    /// What `fetch` gave, or what is wrong with manifest or document.
    pub fn parse<E: From<Bad>>(
        digest: Digest,
        bytes: Vec<u8>,
        fetch: impl FnOnce(Descriptor) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        let object = format!("the manifest {digest}");
        let bad = |why: &str| Bad::new(&object, why);
        let raw = RawManifest::parse(digest, &bytes, &object)?;
        let config = Descriptor {
            digest: raw
                .config
                .digest
                .parse()
                .map_err(|_| bad("has a bad digest"))?,
            size: raw.config.size,
        };
        if raw.config.media_type != DOCUMENT || config.size > limits::MANIFEST_BYTES {
            return Err(bad("has no document, or one of more than 8 MiB").into());
        }
        let document_bytes = match &raw.config.data {
            Some(data) => BASE64
                .decode(data)
                .map_err(|_| bad("has data that is no base64"))?,
            None => fetch(config)?,
        };
        if Descriptor::of(&document_bytes) != config {
            return Err(bad("has a document with another digest than it says").into());
        }
        let document =
            Document::parse(&document_bytes, &format!("the document {}", config.digest))?;
        let same = |a: &RawDescriptor, b: &RawDescriptor| {
            a.digest == b.digest
                && a.size == b.size
                && a.media_type == b.media_type
                && a.annotations.get(VIEW) == b.annotations.get(VIEW)
        };
        let layers = document.layers();
        if raw.layers.len() != layers.len()
            || !raw.layers.iter().zip(&layers).all(|(a, b)| same(a, b))
        {
            return Err(bad("has other layers than its document names").into());
        }
        Ok(Self {
            digest,
            manifest: bytes,
            config,
            document_bytes,
            document,
        })
    }

    /// Every blob but the manifest itself, each once.
    pub fn blobs(&self) -> Vec<Descriptor> {
        let mut blobs: Vec<Descriptor> = self.document.blobs().collect();
        blobs.push(self.config);
        blobs.sort_unstable();
        blobs.dedup();
        blobs
    }

    /// The manifest as a blob.
    pub fn manifest_blob(&self) -> Descriptor {
        Descriptor {
            digest: self.digest,
            size: self.manifest.len() as u64,
        }
    }

    fn raw(&self) -> RawDescriptor {
        RawDescriptor {
            artifact_type: Some(ARTIFACT.to_owned()),
            ..self.manifest_blob().raw(MANIFEST)
        }
    }
}

/// Every blob of the release with the manifest `bytes`, whatever version of the format it is of:
/// its document first, then shards, packs and the manifest itself.
///
/// # Errors
/// When it is no manifest of a release, or its digest is not `digest`.
pub fn blobs_of_manifest(digest: Digest, bytes: &[u8]) -> Result<Vec<Digest>, Bad> {
    let object = format!("the manifest {digest}");
    let raw = RawManifest::parse(digest, bytes, &object)?;
    let named = [&raw.config].into_iter().chain(&raw.layers);
    let mut blobs = named
        .map(|blob| blob.digest.parse())
        .collect::<Result<Vec<Digest>, _>>()
        .map_err(|_| Bad::new(object, "has a bad digest"))?;
    blobs.push(digest);
    Ok(blobs)
}

/// The bytes of a ref to the release.
pub fn ref_object(release: &Release) -> Vec<u8> {
    json::to_vec(&RawDescriptor {
        data: Some(BASE64.encode(&release.manifest)),
        ..release.raw()
    })
}

/// The manifest that the bytes of a ref hold, with its digest.
///
/// # Errors
/// When they are no ref, or the manifest in it has another digest.
pub fn release_of_ref(name: &RefName, bytes: &[u8]) -> Result<(Digest, Vec<u8>), Bad> {
    let object = format!("the ref '{name}'");
    let bad = |why: &str| Bad::new(&object, why);
    let raw: RawDescriptor = json::from_slice(bytes, &object)?;
    let digest: Digest = raw.digest.parse().map_err(|_| bad("has a bad digest"))?;
    let manifest = raw
        .data
        .and_then(|data| BASE64.decode(data).ok())
        .ok_or_else(|| bad("has no manifest in it"))?;
    if manifest.len() as u64 != raw.size || Digest::of(&manifest) != digest {
        return Err(bad("has a manifest with another digest than it says"));
    }
    Ok((digest, manifest))
}

/// The bytes of `index.json` over all refs: name and release. Sorted by name.
pub fn index_json<'a>(refs: impl IntoIterator<Item = (&'a RefName, Descriptor)>) -> Vec<u8> {
    let mut manifests: Vec<RawDescriptor> = refs
        .into_iter()
        .map(|(name, manifest)| {
            let annotations = [(REF_NAME.to_owned(), name.as_str().to_owned())];
            RawDescriptor {
                annotations: annotations.into(),
                artifact_type: Some(ARTIFACT.to_owned()),
                ..manifest.raw(MANIFEST)
            }
        })
        .collect();
    manifests.sort_by(|a, b| a.annotations.cmp(&b.annotations));
    json::to_vec(&RawIndex {
        manifests,
        media_type: INDEX.to_owned(),
        schema_version: 2,
    })
}

/// The dataset digest: over every case, sorted by id, `id NUL workspace-hex NUL evaluation-hex LF`.
pub fn dataset_digest<'a>(cases: impl IntoIterator<Item = (&'a CaseId, TreeId, TreeId)>) -> Digest {
    digest_of_pairs(
        cases
            .into_iter()
            .map(|(id, workspace, evaluation)| (id, workspace.0, evaluation.0)),
    )
}

/// The packages digest: over every case, sorted by id, `id NUL task-hex NUL harbor-hex LF`.
pub(super) fn packages_digest<'a>(
    cases: impl IntoIterator<Item = (&'a CaseId, TreeId, Digest)>,
) -> Digest {
    digest_of_pairs(
        cases
            .into_iter()
            .map(|(id, task, harbor)| (id, task.0, harbor)),
    )
}

fn digest_of_pairs<'a>(pairs: impl Iterator<Item = (&'a CaseId, Digest, Digest)>) -> Digest {
    let mut hasher = Hasher::new();
    for (id, a, b) in pairs {
        hasher.update(format!("{id}\0{}\0{}\n", a.hex(), b.hex()).as_bytes());
    }
    hasher.finish()
}
