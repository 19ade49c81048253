//! What a release has, case by case.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::{PublishError, Remote};
use crate::bundle::{Bad, CatalogShard, Listed, Release, Shard, View};
use crate::digest::TreeId;
use crate::path::CaseId;
use crate::store::{AT_ONCE, for_each};
use crate::tree::id_of;

/// A case of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseRow {
    /// The case.
    pub id: CaseId,
    /// Its workspace.
    pub tree: TreeId,
    /// Files of the workspace.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Every case, sorted by id. Reads the workspace's catalog only.
///
/// # Errors
/// When the store fails or is damaged.
pub fn cases(remote: Remote<'_>, release: &Release) -> Result<Vec<CaseRow>, PublishError> {
    let found: Mutex<BTreeMap<CaseId, CaseRow>> = Mutex::default();
    let shards = release.document.shards.iter();
    let shards = shards.filter(|shard| shard.view == View::Workspace);
    for_each(shards, AT_ONCE, |shard| -> Result<(), PublishError> {
        let shard = read(remote, shard)?;
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        for case in &shard.cases {
            let (files, bytes) = shard.size(case);
            let row = CaseRow {
                id: case.id.clone(),
                tree: id_of(&shard.listing(case)?),
                files,
                bytes,
            };
            found.insert(case.id.clone(), row);
        }
        Ok(())
    })?;
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(found.into_values().collect())
}

/// The trees of one case, by view.
///
/// # Errors
/// When the release has no such case, or the store fails or is damaged.
pub fn case(
    remote: Remote<'_>,
    release: &Release,
    id: &CaseId,
) -> Result<Vec<(View, TreeId, Vec<Listed>)>, PublishError> {
    let mut trees = Vec::new();
    for named in &release.document.shards {
        if *id < named.first || *id > named.last {
            continue;
        }
        let shard = read(remote, named)?;
        if let Some(case) = shard.case(id) {
            let listing = shard.listing(case)?;
            trees.push((named.view, id_of(&listing), listing));
        }
    }
    if trees.is_empty() {
        return Err(PublishError::refused(
            format!("The release has no case '{id}'"),
            "See its cases with `casepack ls STORE --ref NAME`.",
        ));
    }
    Ok(trees)
}

/// A shard, read and compared with what the document says of it.
pub(super) fn read(remote: Remote<'_>, named: &CatalogShard) -> Result<Shard, PublishError> {
    let shard = Shard::parse(named.blob.digest, &remote.blob(named.blob)?)?;
    let object = || format!("the catalog shard {}", named.blob.digest);
    if shard.raw != named.raw {
        let why = format!(
            "inflates to {} bytes, and the document gives it a rawSize of {}",
            shard.raw, named.raw
        );
        return Err(Bad::new(object(), why).into());
    }
    let ends = shard.cases.first().zip(shard.cases.last());
    let ends = ends.map(|(first, last)| (&first.id, &last.id));
    if shard.cases.len() as u64 == named.cases && ends == Some((&named.first, &named.last)) {
        return Ok(shard);
    }
    Err(Bad::new(object(), "has other cases than the document says").into())
}
