//! Stands between casepack and what no sandbox holds: whatever a command starts, and however it
//! hides it, falls to this process when its own parent ends, and is ended with it.
//!
//! Owns the life of one command, in a process of its own (casepack, called as `casepack __keep`).
//! Refuses to know who is kept, and for how long: it ends everything when the command has ended,
//! when it is told to (USR1), and when casepack is gone.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::{flag, low_level};

/// The word that makes casepack a keeper: `casepack __keep PARENT PROGRAM ARGUMENT…`, where PARENT
/// is the process without which nothing is to go on.
pub const KEEP: &str = "__keep";
/// How long what was killed may take to end.
const REAPING: Duration = Duration::from_secs(10);

/// Runs a command; gives its exit status when nothing that it started runs any more.
///
/// # Errors
/// Why it was not started.
pub fn keep(args: &[OsString]) -> Result<u8, String> {
    let parent = args
        .first()
        .and_then(|parent| parent.to_str()?.parse().ok());
    let (Some(parent), Some(program)) = (parent.and_then(Pid::from_raw), args.get(1)) else {
        return Err(format!("{KEEP} is for casepack itself"));
    };
    let kept = Keeper::new(parent).and_then(|keeper| {
        let command = args.get(2..).unwrap_or_default();
        let child = Command::new(program).args(command).spawn()?;
        Ok(keeper.keep(Pid::from_child(&child)))
    });
    kept.map(end_like)
        .map_err(|error| format!("{}: {error}", program.display()))
}

struct Keeper {
    /// Readable when something happened.
    events: UnixStream,
    /// Whether everything is to end.
    asked: Arc<AtomicBool>,
}

impl Keeper {
    fn new(parent: Pid) -> std::io::Result<Self> {
        let (events, woken) = UnixStream::pair()?;
        events.set_nonblocking(true)?;
        let asked = Arc::new(AtomicBool::new(false));
        flag::register(SIGUSR1, Arc::clone(&asked))?;
        for signal in [SIGCHLD, SIGUSR1] {
            low_level::pipe::register(signal, woken.try_clone()?)?;
        }
        // Signals to the command's process group are for the command; this process waits for it.
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            flag::register(signal, Arc::default())?;
        }
        #[cfg(target_os = "linux")]
        {
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
            rustix::process::set_parent_process_death_signal(Some(Signal::USR1))?;
        }
        if rustix::process::getppid() != Some(parent) {
            return Err(std::io::Error::other("its parent is gone"));
        }
        Ok(Self { events, asked })
    }

    /// Waits for the end of `child`, or for the word; then ends everything. `None`: it can't be
    /// ended.
    fn keep(&self, child: Pid) -> Option<WaitStatus> {
        let mut status = None;
        loop {
            reap(child, &mut status);
            if status.is_some() || self.asked.load(Ordering::Relaxed) {
                break;
            }
            self.wait(Duration::from_secs(1));
        }
        let until = Instant::now() + REAPING;
        // Who has no children has no descendants, as those without a parent are its children.
        while reap(child, &mut status) && Instant::now() < until {
            let below = below(rustix::process::getpid());
            // Who is stopped makes no more of its kind while the others are killed.
            for signal in [Signal::STOP, Signal::KILL] {
                for pid in &below {
                    let _ = rustix::process::kill_process(*pid, signal);
                }
            }
            self.wait(Duration::from_millis(5));
        }
        status
    }

    fn wait(&self, time: Duration) {
        let mut fds = [PollFd::new(&self.events, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        // Whatever it says, the loops look again.
        let _ = rustix::event::poll(&mut fds, time.as_ref());
        let mut bytes = [0; 64];
        while matches!((&self.events).read(&mut bytes), Ok(1..)) {}
    }
}

/// Takes note of the children that have ended; whether there are others.
fn reap(child: Pid, status: &mut Option<WaitStatus>) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, told))) => {
                if pid == child {
                    *status = Some(told);
                }
            }
            Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// All processes below `top`.
fn below(top: Pid) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process
            .file_name()
            .to_str()
            .and_then(|pid| pid.parse().ok());
        let stat = std::fs::read(process.path().join("stat")).unwrap_or_default();
        if let (Some(pid), Some(parent)) = (pid, parent_in(&stat)) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut next) = (Vec::new(), vec![top.as_raw_nonzero().get()]);
    while let Some(pid) = next.pop() {
        // Each is taken once, so that this ends whatever was read.
        for child in children.remove(&pid).unwrap_or_default() {
            found.extend(Pid::from_raw(child));
            next.push(child);
        }
    }
    found
}

/// The parent in a `/proc/<pid>/stat`: `pid (name) state parent …`, where the name may hold anything.
fn parent_in(stat: &[u8]) -> Option<i32> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// The exit status that says how the command ended; where that was a signal, this process ends by
/// it too.
fn end_like(status: Option<WaitStatus>) -> u8 {
    const KILLED: u8 = 128 + 9;
    let Some(status) = status else { return KILLED };
    if let Some(signal) = status.terminating_signal() {
        low_level::emulate_default_handler(signal).ok();
        return u8::try_from(128 + signal).unwrap_or(KILLED);
    }
    status
        .exit_status()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(KILLED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent_in(b"12 (a) b) 3 () S 7 12 12 0 -1"), Some(7));
        assert_eq!(parent_in(b"12 (sh) S"), None);
        assert_eq!(parent_in(b""), None);
    }
}
