//! Locks between processes, which the system releases when their holder dies.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;

/// How often a lock that somebody has is asked for.
const PAUSE: Duration = Duration::from_millis(20);

/// Takes the lock of `file` for this process alone, or with `shared` for all who only look; it is
/// held until the file is closed. Where another one has it, calls `waiting` and waits. `false` when
/// `stop` was set before there was a lock. A file system without locks gives every lock.
///
/// # Errors
/// What the system said.
pub(crate) fn lock(
    file: &File,
    shared: bool,
    stop: &AtomicBool,
    waiting: impl FnOnce(),
) -> io::Result<bool> {
    let mut waiting = Some(waiting);
    loop {
        let locked = if shared {
            file.try_lock_shared()
        } else {
            file.try_lock()
        };
        match locked {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => {
                let none = [Errno::NOSYS, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOLCK];
                let none = none.map(|errno| Some(errno.raw_os_error()));
                if none.contains(&error.raw_os_error()) {
                    return Ok(true);
                }
                return Err(error);
            }
            Err(TryLockError::WouldBlock) => {}
        }
        if let Some(waiting) = waiting.take() {
            waiting();
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
}
