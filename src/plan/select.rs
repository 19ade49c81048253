//! Which cases of a dataset are worked on.

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::digest::Digest;
use crate::path::CaseId;

/// Which cases: those whose id matches one of the globs; all without globs.
#[derive(Debug, Clone, Default)]
pub struct Select {
    globs: Option<GlobSet>,
    /// `(i, n)`: part `i` of `n`, counted from 1.
    shard: Option<(u64, u64)>,
}

impl Select {
    /// The cases that match one of `globs` (`*`, `?`, `[…]`, `{a,b}`); every case when there is none.
    ///
    /// # Errors
    /// The first glob that is none, and why.
    pub fn new(globs: &[String]) -> Result<Self, (String, String)> {
        if globs.is_empty() {
            return Ok(Self::default());
        }
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            set.add(Glob::new(glob).map_err(|error| (glob.clone(), error.kind().to_string()))?);
        }
        let set = set
            .build()
            .map_err(|error| (globs.join(" "), error.to_string()))?;
        Ok(Self {
            globs: Some(set),
            shard: None,
        })
    }

    /// Only part `index` (from 1) of `count`: a stable share by the digest of the case id, so that
    /// a case stays in its part when others come and go.
    #[must_use]
    pub fn shard(mut self, index: u64, count: u64) -> Self {
        self.shard = Some((index, count.max(1)));
        self
    }

    /// Whether it is every case.
    pub fn is_all(&self) -> bool {
        self.globs.is_none() && self.shard.is_none()
    }

    /// Whether `case` would be one of them, and is left to another part.
    pub fn leaves_to_others(&self, case: &CaseId) -> bool {
        !self.has(case) && self.names(case)
    }

    /// Whether the globs match `case`, in whichever part it is.
    pub fn names(&self, case: &CaseId) -> bool {
        let globs = self.globs.as_ref();
        globs.is_none_or(|globs| globs.is_match(case.as_str()))
    }

    /// Whether `case` is one of them.
    pub fn has(&self, case: &CaseId) -> bool {
        let in_shard = self.shard.is_none_or(|(index, count)| {
            let digest = Digest::of(case.as_str().as_bytes());
            let head = digest
                .as_bytes()
                .iter()
                .take(8)
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            head % count == index - 1
        });
        in_shard && self.names(case)
    }
}
