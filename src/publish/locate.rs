//! Where contents lie: as few pack indexes are read as say it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;

use super::{PublishError, Remote};
use crate::bundle::{Bad, Pack, PackIndex, Place, Release, View};
use crate::digest::Digest;
use crate::path::CaseId;
use crate::store::{AT_ONCE, for_each};

/// A content that is needed.
#[derive(Debug, Clone)]
pub(super) struct Need {
    /// The first view that needs it: it lies there or in a view before.
    pub(super) view: View,
    /// A case that needs it.
    pub(super) case: CaseId,
    /// Its bytes, as the catalog says.
    pub(super) size: u64,
}

/// Where the contents that are needed lie.
#[derive(Debug, Default)]
pub(super) struct Located {
    /// Pack, by its place in the document, and place in it.
    pub(super) places: BTreeMap<Digest, (usize, Place)>,
    /// The indexes that were read.
    pub(super) indexes: BTreeMap<usize, PackIndex>,
}

/// Whether a content may lie in a pack.
type Rule<'a> = &'a dyn Fn(&Pack, Digest, &Need) -> bool;

/// Finds all of `needs`, first where they are most likely.
pub(super) fn locate(
    remote: Remote<'_>,
    release: &Release,
    mut needs: BTreeMap<Digest, Need>,
) -> Result<Located, PublishError> {
    let likely = |pack: &Pack, digest: Digest, need: &Need| {
        pack.view == need.view && pack.may_have_case(&need.case) && pack.may_have(digest)
    };
    // The workspace of one case, and the evaluation material of another one.
    let earlier = |pack: &Pack, digest: Digest, need: &Need| {
        pack.view < need.view && pack.may_have_case(&need.case) && pack.may_have(digest)
    };
    let any = |pack: &Pack, _: Digest, need: &Need| pack.view <= need.view;
    let rules: [Rule<'_>; 3] = [&likely, &earlier, &any];
    let mut found = Located::default();
    for rule in rules {
        if needs.is_empty() {
            break;
        }
        let packs = release.document.packs.iter().enumerate();
        let wanted: Vec<(usize, &Pack)> = packs
            .filter(|(at, pack)| {
                !found.indexes.contains_key(at)
                    && needs.iter().any(|(digest, need)| rule(pack, *digest, need))
            })
            .collect();
        let read = Mutex::new(Vec::new());
        for_each(wanted, AT_ONCE, |(at, pack)| -> Result<(), PublishError> {
            let index = remote.index(pack)?;
            read.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((at, index));
            Ok(())
        })?;
        let mut read = read.into_inner().unwrap_or_else(PoisonError::into_inner);
        read.sort_by_key(|(at, _)| *at);
        for (at, index) in read {
            let mut wrong = None;
            needs.retain(|digest, need| {
                let Some(place) = index.find(*digest) else {
                    return true;
                };
                if place.size != need.size {
                    wrong = Some(*digest);
                }
                found.places.insert(*digest, (at, place));
                false
            });
            if let (Some(digest), Some(pack)) = (wrong, release.document.packs.get(at)) {
                let why = format!("has the content {digest} with another size than the catalog");
                return Err(Bad::new(pack.object(), why).into());
            }
            found.indexes.insert(at, index);
        }
    }
    match needs.first_key_value() {
        None => Ok(found),
        Some((digest, need)) => {
            let why = format!("has no pack with the content {digest} of '{}'", need.case);
            Err(Bad::new(format!("the release {}", release.digest), why).into())
        }
    }
}
