//! Stands by while a run goes on, and ends what casepack leaves when it is killed.
//!
//! A sandbox ends with its parent, but only from the moment on at which it asked the kernel for that;
//! one that casepack was just starting would go on, or wait for its parent for ever. No process can
//! see to that by itself, so there is another one (casepack, called as `casepack __guard`): once for
//! a run, as each sandbox more would cost every case.
//!
//! Owns when that is. Refuses to know sandboxes: they have the mark of this casepack in their
//! environment (`process`).

use std::ffi::OsString;
use std::io::{self, PipeWriter, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

use super::process;

/// The word that makes casepack a guard: `casepack __guard MARK`.
pub const GUARD: &str = "__guard";

/// The guard of a run; it goes when this is dropped.
pub(super) struct Guard {
    child: Child,
    /// Held by this process alone, so that its end can be read at the other end, whatever ended it.
    _alive: PipeWriter,
}

impl Guard {
    /// Starts a guard over what this process starts from now on.
    ///
    /// # Errors
    /// When it can't be started.
    pub(super) fn start() -> io::Result<Self> {
        let (end, alive) = io::pipe()?;
        let child = Command::new(process::SELF)
            .args([GUARD, process::own_mark()])
            .env_clear()
            .current_dir("/")
            .stdin(end)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What the terminal tells casepack is not for it.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            child,
            _alive: alive,
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // There is nothing left to be ended, and it has nothing to write.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Waits for the end of casepack, and then ends all that has its mark; whether it could.
///
/// # Errors
/// Why it is no guard.
pub fn guard(args: &[OsString]) -> Result<bool, String> {
    let [mark] = args else {
        return Err(format!("{GUARD} is for casepack itself"));
    };
    // Whoever ends all of casepack's processes by their name ends casepack, too, and then it is due.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        flag::register(signal, Arc::default()).map_err(|error| error.to_string())?;
    }
    let mut nothing = [0];
    while !matches!(io::stdin().read(&mut nothing), Ok(0)) {}
    Ok(process::end_all(&mark.to_string_lossy()))
}
