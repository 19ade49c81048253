//! Names that are valid by construction: places inside a tree, and case ids.
//!
//! Owns what a portable relative path is. Refuses to know the disk: the only bridge from a
//! [`TreePath`] to a file is a root handle in `fs`.
//! Invariant: a value of these types never is empty, absolute, or leads upwards.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use unicode_normalization::UnicodeNormalization;

/// Longest path of one entry, in bytes (bundle-format, "Pull": limits).
pub const MAX_PATH_BYTES: usize = 4096;
/// Longest name of one component, in bytes (`NAME_MAX` of every common file system).
pub const MAX_COMPONENT_BYTES: usize = 255;

/// A place inside a tree: relative, `/`-separated, UTF-8, without empty, `.` or `..` components.
///
/// Ordered by bytes, as tree digests are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreePath(Arc<str>);

/// Why a text is no [`TreePath`] or [`CaseId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TreePathError {
    /// Nothing, or nothing between two slashes.
    #[error("it has an empty component")]
    Empty,
    /// A leading slash.
    #[error("it is absolute")]
    Absolute,
    /// A `.` component, which names the directory itself.
    #[error("it has a '.' component")]
    Dot,
    /// A `..` component.
    #[error("it has a '..' component")]
    Parent,
    /// A NUL byte, which no file system can hold.
    #[error("it has a NUL byte")]
    Nul,
    /// A component over 255 bytes.
    #[error("a component is longer than {MAX_COMPONENT_BYTES} bytes")]
    LongComponent,
    /// A path over 4,096 bytes.
    #[error("it is longer than {MAX_PATH_BYTES} bytes")]
    Long,
    /// More than one component where one is needed.
    #[error("it has a '/'")]
    Slash,
}

impl TreePath {
    /// Checks `text`; the only way in.
    ///
    /// # Errors
    /// The first reason why it is not a relative path inside a tree.
    pub fn new(text: &str) -> Result<Self, TreePathError> {
        if text.starts_with('/') {
            return Err(TreePathError::Absolute);
        }
        if text.len() > MAX_PATH_BYTES {
            return Err(TreePathError::Long);
        }
        for component in text.split('/') {
            check_component(component)?;
        }
        Ok(Self(text.into()))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its components, outermost first; at least one.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/')
    }

    /// The outermost component.
    pub fn first(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(first, _)| first)
    }

    /// The innermost component.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// The directory that holds it; `None` at the top of the tree.
    pub fn parent(&self) -> Option<Self> {
        self.0
            .rsplit_once('/')
            .map(|(parent, _)| Self(parent.into()))
    }

    /// `self/rest`. The length limit is one of inputs; a target's prefix may go beyond it.
    #[must_use]
    pub fn join(&self, rest: &Self) -> Self {
        self.joining()(rest)
    }

    /// The same for many.
    pub fn joining(&self) -> impl FnMut(&Self) -> Self + use<> {
        let mut text = format!("{self}/");
        let start = text.len();
        move |rest| {
            text.truncate(start);
            text.push_str(&rest.0);
            Self(text.as_str().into())
        }
    }

    /// `self/name`.
    ///
    /// # Errors
    /// When `name` is not one valid component, or the whole gets too long.
    pub fn child(&self, name: &str) -> Result<Self, TreePathError> {
        if name.contains('/') {
            return Err(TreePathError::Slash);
        }
        check_component(name)?;
        if self.0.len() + 1 + name.len() > MAX_PATH_BYTES {
            return Err(TreePathError::Long);
        }
        Ok(Self(format!("{}/{name}", self.0).into()))
    }

    /// What remains below `prefix`; `None` when it is not below it.
    pub fn strip_prefix(&self, prefix: &Self) -> Option<Self> {
        let rest = self.0.strip_prefix(&*prefix.0)?.strip_prefix('/')?;
        Some(Self(rest.into()))
    }

    /// Whether it is `prefix` or lies below it.
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self == prefix || self.strip_prefix(prefix).is_some()
    }

    /// The form in which names collide on a case-insensitive or normalising file system:
    /// NFC, then lower case, then NFC (policy 6 and 10).
    pub fn fold(&self) -> String {
        fold(&self.0)
    }
}

/// NFC, lower case, NFC: two names with one fold are one name on macOS and Windows (policy 6).
pub fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.nfc().flat_map(char::to_lowercase).nfc().collect()
}

fn check_component(component: &str) -> Result<(), TreePathError> {
    match component {
        "" => return Err(TreePathError::Empty),
        "." => return Err(TreePathError::Dot),
        ".." => return Err(TreePathError::Parent),
        _ => {}
    }
    if component.contains('\0') {
        return Err(TreePathError::Nul);
    }
    if component.len() > MAX_COMPONENT_BYTES {
        return Err(TreePathError::LongComponent);
    }
    Ok(())
}

/// So that maps by path can be asked with text: order, equality and hash are those of the text.
impl Borrow<str> for TreePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The name of a case: one path component (policy 13).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaseId(Arc<str>);

impl CaseId {
    /// Checks `text`; the only way in.
    ///
    /// # Errors
    /// When it is not exactly one valid component.
    pub fn new(text: &str) -> Result<Self, TreePathError> {
        if text.contains('/') {
            return Err(TreePathError::Slash);
        }
        check_component(text)?;
        Ok(Self(text.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id as a tree path of one component.
    pub fn to_path(&self) -> TreePath {
        TreePath(Arc::clone(&self.0))
    }
}

impl fmt::Display for CaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refuses_what_is_no_place_in_a_tree() {
        for (text, why) in [
            ("", TreePathError::Empty),
            ("/", TreePathError::Absolute),
            ("/etc/passwd", TreePathError::Absolute),
            ("a//b", TreePathError::Empty),
            ("a/", TreePathError::Empty),
            (".", TreePathError::Dot),
            ("a/./b", TreePathError::Dot),
            ("..", TreePathError::Parent),
            ("a/../b", TreePathError::Parent),
            ("a\0b", TreePathError::Nul),
        ] {
            assert_eq!(TreePath::new(text), Err(why), "{text:?}");
        }
        assert_eq!(
            TreePath::new(&"x".repeat(256)),
            Err(TreePathError::LongComponent)
        );
        assert_eq!(TreePath::new(&"x/".repeat(3000)), Err(TreePathError::Long));
        assert!(TreePath::new(&"x".repeat(255)).is_ok());
        assert_eq!(CaseId::new("a/b"), Err(TreePathError::Slash));
        assert_eq!(CaseId::new(".."), Err(TreePathError::Parent));
    }

    #[test]
    fn takes_itself_apart() {
        let path = TreePath::new("a/b c/d\n").unwrap();
        assert_eq!((path.first(), path.name()), ("a", "d\n"));
        assert_eq!(path.parent().unwrap().as_str(), "a/b c");
        assert_eq!(
            path.strip_prefix(&TreePath::new("a").unwrap())
                .unwrap()
                .as_str(),
            "b c/d\n"
        );
        assert!(
            !TreePath::new("ab")
                .unwrap()
                .starts_with(&TreePath::new("a").unwrap())
        );
        assert_eq!(fold("Caf\u{e9}"), fold("CAFE\u{301}"));
    }

    proptest! {
        #[test]
        fn accepted_text_is_kept_and_contained(text in "(?s).{0,40}") {
            if let Ok(path) = TreePath::new(&text) {
                prop_assert_eq!(path.as_str(), &text);
                let host = std::path::Path::new(path.as_str());
                prop_assert!(host.components().all(|c| matches!(c, std::path::Component::Normal(_))));
                prop_assert_eq!(host.components().count(), path.components().count());
            }
        }

        #[test]
        fn join_and_strip_are_inverse(a in "[a-z]{1,5}(/[a-z.]{2,5}x){0,3}", b in "[a-z]{1,5}(/[a-z]{1,5}){0,3}") {
            let (a, b) = (TreePath::new(&a).unwrap(), TreePath::new(&b).unwrap());
            prop_assert_eq!(a.join(&b).strip_prefix(&a), Some(b));
        }
    }
}
