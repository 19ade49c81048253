//! Large objects, sent in parts.

use std::sync::Mutex;

use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumType, CompletedMultipartUpload, CompletedPart};
use base64::Engine as _;
use bytes::Bytes;
use tokio::sync::SemaphorePermit;

use super::body::observed;
use super::{BASE64, S3};
use crate::digest::{Digest, Hasher};
use crate::path::TreePath;
use crate::store::{Action, Body, Etag, Reason, StoreError, in_order, verify};

/// Bytes of a part, as long as there are not too many.
const PART: u64 = 8 * 1024 * 1024;
/// The most parts that an upload may have (S3, "multipart upload limits").
const MAX_PARTS: u64 = 10_000;
/// Parts of one object that are under way at once.
const PARTS_AT_ONCE: usize = 4;

/// A piece of the object, which holds its share of the memory.
struct Part<'a> {
    number: i32,
    bytes: Bytes,
    _room: SemaphorePermit<'a>,
}

impl S3 {
    /// Sends `body` in parts, each with its own SHA-256; the object appears when all are there and
    /// the whole has `digest`.
    pub(super) fn upload(
        &self,
        key: &TreePath,
        body: Body<'_>,
        digest: &Digest,
    ) -> Result<Etag, StoreError> {
        let full = self.full(Action::Write, key)?;
        let created = self.run(Action::Write, key.as_str(), async || {
            let request = self.connection.client.create_multipart_upload();
            let send = request
                .bucket(&self.bucket)
                .key(&full)
                .checksum_algorithm(ChecksumAlgorithm::Sha256)
                .checksum_type(ChecksumType::Composite)
                .send();
            self.asking(send).await
        })?;
        let failed = |reason| self.error(Action::Write, key.as_str(), reason);
        let Some(id) = created.upload_id else {
            let why = "it began an upload without giving it an id";
            return Err(failed(Reason::NotS3(why.to_owned())));
        };
        let sent = self
            .send_parts(key, &full, &id, body, digest)
            .and_then(|parts| self.complete(key, &full, &id, parts, body.size()));
        match sent {
            Ok(etag) => {
                self.counters.wrote(body.size());
                Ok(etag)
            }
            Err(error) => {
                // The first error is the one to tell; what stays, the bucket's own rules clean up.
                self.abort(&full, &id);
                Err(error)
            }
        }
    }

    fn send_parts(
        &self,
        key: &TreePath,
        full: &str,
        id: &str,
        body: Body<'_>,
        digest: &Digest,
    ) -> Result<Vec<CompletedPart>, StoreError> {
        let size = body.size();
        let part = PART.max(size.div_ceil(MAX_PARTS));
        let whole = Mutex::new(Hasher::new());
        // Read one after the other, so that the whole can be hashed on the way.
        let parts = (0..size.div_ceil(part)).map(|at| {
            let offset = at * part;
            let piece = body.slice(offset, part.min(size - offset));
            let room = self.room(piece.size());
            let bytes = piece
                .to_bytes()
                .map_err(|reason| self.error(Action::Write, key.as_str(), reason))?;
            if let Ok(mut whole) = whole.lock() {
                whole.update(&bytes);
            }
            Ok(Part {
                number: i32::try_from(at + 1).unwrap_or(i32::MAX),
                bytes,
                _room: room,
            })
        });
        let mut done = Vec::new();
        in_order(
            parts,
            PARTS_AT_ONCE,
            |part: Result<Part<'_>, StoreError>| self.send_part(key, full, id, part?),
            |part| {
                done.push(part);
                Ok(())
            },
        )?;
        let whole = whole.into_inner().unwrap_or_default();
        verify(whole, digest).map_err(|reason| self.error(Action::Write, key.as_str(), reason))?;
        Ok(done)
    }

    fn send_part(
        &self,
        key: &TreePath,
        full: &str,
        id: &str,
        part: Part<'_>,
    ) -> Result<CompletedPart, StoreError> {
        let Part {
            number,
            bytes,
            _room,
        } = part;
        let checksum = BASE64.encode(Digest::of(&bytes).as_bytes());
        let sent = self.run(Action::Write, key.as_str(), async || {
            let (body, progress) = observed(&bytes, self.connection.is_plain());
            let send = self
                .connection
                .client
                .upload_part()
                .bucket(&self.bucket)
                .key(full)
                .upload_id(id)
                .part_number(number)
                .checksum_sha256(&checksum)
                .body(body)
                .send();
            self.sending(progress, send).await
        })?;
        Ok(CompletedPart::builder()
            .part_number(number)
            .set_e_tag(sent.e_tag)
            .checksum_sha256(checksum)
            .build())
    }

    fn complete(
        &self,
        key: &TreePath,
        full: &str,
        id: &str,
        parts: Vec<CompletedPart>,
        size: u64,
    ) -> Result<Etag, StoreError> {
        let parts = CompletedMultipartUpload::builder()
            .set_parts(Some(parts))
            .build();
        let mut tried = false;
        self.run(Action::Write, key.as_str(), async || {
            let again = std::mem::replace(&mut tried, true);
            let request = self.connection.client.complete_multipart_upload();
            let send = request
                .bucket(&self.bucket)
                .key(full)
                .upload_id(id)
                .multipart_upload(parts.clone())
                .send();
            let done = self.asking(send);
            match done.await {
                Ok(done) => Ok(Etag(done.e_tag.unwrap_or_default())),
                // An earlier try may have arrived, and its answer got lost.
                Err(fault) if again && fault.is_no_such_upload() => {
                    self.arrived(full, size).await.ok_or(fault)
                }
                Err(fault) => Err(fault),
            }
        })
    }

    /// The state of the object, when it has `size` bytes.
    async fn arrived(&self, full: &str, size: u64) -> Option<Etag> {
        let request = self.connection.client.head_object();
        let send = request.bucket(&self.bucket).key(full).send();
        self.counters.request();
        let found = self.asking(send);
        let found = found.await.ok()?;
        let same = found
            .content_length
            .and_then(|size| u64::try_from(size).ok())
            == Some(size);
        same.then(|| Etag(found.e_tag.unwrap_or_default()))
    }

    fn abort(&self, full: &str, id: &str) {
        let request = self.connection.client.abort_multipart_upload();
        let send = request.bucket(&self.bucket).key(full).upload_id(id).send();
        self.once(self.asking(send)).ok();
    }
}
