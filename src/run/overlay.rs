//! Puts files into a workspace that an agent had in its hands: what a step brings.
//!
//! Invariant: every directory on the way is entered by handle; a link or file that stands where a
//! directory belongs is removed, never followed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::fs::{Root, StagedDir};
use crate::path::TreePath;
use crate::tree::{Tree, materialise};

/// Puts the files of `tree` into `workspace`, over what is there. `scratch` is a directory on the
/// same file system.
///
/// # Errors
/// When the disk fails, or a directory stands where a file belongs.
pub(super) fn put(tree: &Tree, workspace: &Root, scratch: &Path) -> io::Result<()> {
    let staged = StagedDir::new(scratch).map_err(|error| error.source)?;
    materialise(tree, staged.handle()).map_err(io::Error::other)?;
    for (path, _) in tree.iter() {
        let dir = directory(workspace, path)?;
        rustix::fs::renameat(staged.handle(), path.as_str(), &dir, path.name())?;
    }
    Ok(())
}

/// The directory in `workspace` that holds `path`, made where it is missing.
fn directory(workspace: &Root, path: &TreePath) -> io::Result<OwnedFd> {
    let mut dir = workspace.open_dir(None).map_err(|error| error.source)?;
    if let Some(parent) = path.parent() {
        for name in parent.components() {
            dir = enter(dir.as_fd(), name)?;
        }
    }
    Ok(dir)
}

fn enter(dir: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(dir, name, flags, Mode::empty());
    match open() {
        Err(Errno::NOENT) => {}
        Err(Errno::LOOP | Errno::NOTDIR) => {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
        }
        opened => return opened,
    }
    rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755))?;
    open()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Content, TreeBuilder};

    #[test]
    fn follows_no_link_that_the_agent_left() {
        let dir = tempfile::tempdir().unwrap();
        let (workspace, outside) = (dir.path().join("w"), dir.path().join("outside"));
        std::fs::create_dir(&workspace).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("f"), "theirs").unwrap();
        std::os::unix::fs::symlink(&outside, workspace.join("dir")).unwrap();
        std::os::unix::fs::symlink(outside.join("f"), workspace.join("f")).unwrap();
        std::fs::write(workspace.join("kept"), "kept").unwrap();
        let mut tree = TreeBuilder::new();
        for path in ["dir/f", "dir/sub/f", "f"] {
            let content = Content::bytes(*b"ours");
            let path = TreePath::new(path).unwrap();
            tree.insert(path, crate::tree::Mode::Regular, content)
                .unwrap();
        }
        put(&tree.finish(), &Root::open(&workspace).unwrap(), dir.path()).unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(&outside.join("f")), "theirs");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        for path in ["dir/f", "dir/sub/f", "f"] {
            assert_eq!(read(&workspace.join(path)), "ours");
        }
        assert_eq!(read(&workspace.join("kept")), "kept");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
