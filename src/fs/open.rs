//! Opening below a directory handle without following any link, on every kernel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A directory that is to be listed.
pub(super) const DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// A directory that is only passed through.
#[cfg(target_os = "linux")]
pub(super) const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
pub(super) const STEP: OFlags = DIR;

/// A file that is to be read. What is no regular file is found out after opening, so it must not
/// block (a fifo without a writer) nor become the controlling terminal.
pub(super) const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// The kernel takes paths below 4,096 bytes, the final NUL included (1,024 on macOS).
const MAX_PIECE: usize = if cfg!(target_os = "linux") {
    4095
} else {
    1023
};

/// Opens `path`, a tree path, below `dir`. [`Errno::LOOP`] when any component is a link.
pub(crate) fn below(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut held: Option<OwnedFd> = None;
    let mut rest = path;
    while rest.len() > MAX_PIECE {
        let piece = rest.as_bytes().get(..=MAX_PIECE);
        let cut = piece.and_then(|piece| piece.iter().rposition(|&byte| byte == b'/'));
        let (piece, after) = cut
            .and_then(|cut| rest.split_at_checked(cut))
            .ok_or(Errno::NAMETOOLONG)?;
        let at = held.as_ref().map_or(dir, AsFd::as_fd);
        held = Some(piece_below(at, piece, STEP)?);
        rest = after.trim_start_matches('/');
    }
    piece_below(held.as_ref().map_or(dir, AsFd::as_fd), rest, flags)
}

/// Another handle of the directory `dir`, with a read position of its own.
pub(super) fn again(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    retry(|| rustix::fs::openat(dir, c".", DIR, Mode::empty()))
}

/// Opens the entry `name` of `dir`; [`Errno::LOOP`] when it is a link.
pub(super) fn entry(
    dir: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let opened = retry(|| rustix::fs::openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty()));
    // Of a link, opened as a directory, the kernel says that it is no directory.
    if matches!(opened, Err(Errno::NOTDIR)) {
        let stat = rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        // Is it a directory by now, then it was none a moment ago: somebody plays with links.
        if kind.is_symlink() || kind.is_dir() {
            return Err(Errno::LOOP);
        }
    }
    opened
}

fn retry<T>(mut act: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match act() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// One look-up by the kernel. `openat2` was new in Linux 5.6, and sandboxes that don't know it
/// answer ENOSYS or EPERM.
#[cfg(target_os = "linux")]
fn piece_below(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    use rustix::fs::ResolveFlags;
    use std::sync::atomic::{AtomicBool, Ordering};

    static UNKNOWN: AtomicBool = AtomicBool::new(false);
    const CONTAINED: ResolveFlags = ResolveFlags::BENEATH
        .union(ResolveFlags::NO_SYMLINKS)
        .union(ResolveFlags::NO_MAGICLINKS);

    if UNKNOWN.load(Ordering::Relaxed) || tests_forbid_openat2() {
        return by_component(dir, path, flags);
    }
    match retry(|| rustix::fs::openat2(dir, path, flags, Mode::empty(), CONTAINED)) {
        Err(Errno::NOSYS) => {
            UNKNOWN.store(true, Ordering::Relaxed);
            by_component(dir, path, flags)
        }
        // EPERM: may be the sandbox's or the file's; EAGAIN: renames elsewhere on the system.
        Err(Errno::PERM | Errno::AGAIN) => by_component(dir, path, flags),
        done => done,
    }
}

#[cfg(not(target_os = "linux"))]
fn piece_below(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    by_component(dir, path, flags)
}

/// The same by hand: a handle per component, none of which is a link. Tree paths have no `..`, so
/// every handle lies below `dir`.
fn by_component(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut held: Option<OwnedFd> = None;
    let mut rest = path;
    while let Some((name, after)) = rest.split_once('/') {
        let at = held.as_ref().map_or(dir, AsFd::as_fd);
        held = Some(entry(at, name, STEP)?);
        rest = after;
    }
    entry(held.as_ref().map_or(dir, AsFd::as_fd), rest, flags)
}

#[cfg(all(target_os = "linux", not(test)))]
fn tests_forbid_openat2() -> bool {
    false
}

#[cfg(all(target_os = "linux", test))]
fn tests_forbid_openat2() -> bool {
    BY_COMPONENT.get()
}

#[cfg(test)]
std::thread_local! {
    /// Makes this thread do without `openat2`.
    pub(super) static BY_COMPONENT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
