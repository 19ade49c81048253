//! One child at a time, watched to its end: time, output, and everything it started.
//!
//! Owns starting, polling, ending. Refuses to know what the child is for.
//! Invariant: when [`watch`] returns, the child is reaped and nothing that it started runs any
//! more. In a pid namespace the kernel warrants that; outside of one a keeper does, to which all
//! orphans fall (`keeper`). Where there is none, and for who kills it, it is as sure as a process
//! group and a mark in the environment can make it. Where this process is killed itself, the kernel,
//! the keeper and the `guard` of the run see to it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, FdFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};

use super::keeper::KEEP;
use super::seccomp;
use crate::diag::count;

/// Between TERM and KILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long the kernel may take to end what was killed.
const REAPING: Duration = Duration::from_secs(10);
/// How often the stop switch is looked at.
const TICK: Duration = Duration::from_millis(100);
/// This program.
pub(super) const SELF: &str = "/proc/self/exe";
/// The environment variable by which strays are found outside of a pid namespace, and sandboxes by the
/// guard of the run.
pub(super) const MARK: &str = "CASEPACK_PROCESS";

/// What is to be started.
pub(super) struct Job<'a> {
    /// The program and its arguments.
    pub(super) argv: &'a [OsString],
    /// All of its environment.
    pub(super) env: &'a BTreeMap<String, String>,
    /// Where it starts.
    pub(super) cwd: &'a Path,
    /// What it reads; `None`: nothing.
    pub(super) input: Option<File>,
    /// Files that `bwrap` copies into the sandbox, in memory, at these places.
    pub(super) files: &'a [(File, String)],
    /// Where its output goes, and where its errors go; `None`: to the same place.
    pub(super) output: (Capture, Option<Capture>),
    /// How long it may take.
    pub(super) timeout: Option<Duration>,
    /// Words in front of the command that hold it to limits.
    pub(super) limits: &'a [OsString],
    /// Whether it is `bwrap`, which tells what becomes of the command when it is asked to.
    pub(super) bwrap: bool,
    /// Whether the sandbox has a network.
    pub(super) network: bool,
    /// Whether it gets a keeper, where there is no `bwrap` and no scope.
    pub(super) kept: bool,
    /// The mark of a scope until whose end what it started may live; its output then goes to the
    /// file of the first capture directly, without a limit.
    pub(super) scope: Option<&'a str>,
    /// Ends it early.
    pub(super) stop: &'a AtomicBool,
}

impl Job<'_> {
    fn is_kept(&self) -> bool {
        self.kept && !self.bwrap && self.scope.is_none()
    }

    /// Whether there is such a program: who starts it for us does not say so.
    fn is_there(&self, program: &OsStr) -> bool {
        if program.as_bytes().contains(&b'/') {
            return self.cwd.join(program).is_file();
        }
        let path = self.env.get("PATH").map_or("", String::as_str);
        path.split(':')
            .any(|dir| self.cwd.join(dir).join(program).is_file())
    }
}

/// What became of a child.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Its exit status, if it had one.
    pub(super) exit_code: Option<i32>,
    /// The signal that ended it.
    pub(super) signal: Option<i32>,
    /// Why it was not left to its own end.
    pub(super) cut: Option<Cut>,
    /// From its start to its end.
    pub(super) duration: Duration,
    /// Bytes of output beyond what is kept.
    pub(super) dropped: u64,
    /// `bwrap` ended before the command started.
    pub(super) not_started: bool,
    /// Something that can not be ended.
    pub(super) undead: bool,
    /// The kernel ended it, as all of it had more memory than it may have.
    pub(super) out_of_memory: bool,
}

/// Why a child was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Its time was up.
    TimeUp,
    /// The run was stopped.
    Stopped,
}

/// A file that takes a child's output up to a limit.
#[derive(Debug)]
pub(super) struct Capture {
    file: File,
    left: u64,
    dropped: u64,
}

impl Capture {
    /// A new file at `path` for at most `limit` bytes.
    pub(super) fn create(path: &Path, limit: u64) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).open(path)?;
        Ok(Self {
            file,
            left: limit,
            dropped: 0,
        })
    }

    fn take(&mut self, bytes: &[u8]) {
        let keep = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let (kept, rest) = bytes.split_at(keep);
        // A full disk must not end the case: what can't be kept is counted.
        let lost = if self.file.write_all(kept).is_ok() {
            rest.len()
        } else {
            self.left = 0;
            bytes.len()
        };
        self.left = self.left.saturating_sub(kept.len() as u64);
        self.dropped = self.dropped.saturating_add(lost as u64);
    }

    fn finish(mut self) -> u64 {
        if self.dropped > 0 {
            // Best effort, as above.
            let told = format!(
                "\n[casepack: {} dropped]\n",
                count(self.dropped, "more byte", "more bytes")
            );
            drop(self.file.write_all(told.as_bytes()));
        }
        self.dropped
    }
}

/// A pipe that a child writes to.
struct Stream {
    pipe: Option<OwnedFd>,
    capture: Option<Capture>,
    /// What came through a pipe without a file.
    text: Vec<u8>,
}

/// What `bwrap` tells at most.
const STATUS_MAX: usize = 16 * 1024;

impl Stream {
    /// Reads what is there. Closes the pipe at its end.
    fn drain(&mut self, buffer: &mut [u8]) {
        // Bounded, so that a child that never stops writing does not keep the clock from being
        // looked at.
        for _ in 0..64 {
            let Some(pipe) = &self.pipe else { return };
            match rustix::io::read(pipe, &mut *buffer) {
                Ok(0) => self.pipe = None,
                Ok(read) => {
                    let bytes = buffer.get(..read).unwrap_or_default();
                    match &mut self.capture {
                        Some(capture) => capture.take(bytes),
                        None if self.text.len() < STATUS_MAX => self.text.extend(bytes),
                        None => {}
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.pipe = None,
            }
        }
    }
}

/// Held while a descriptor is open that only the child being started may inherit.
static STARTING: Mutex<()> = Mutex::new(());

/// Starts a child and returns when it has ended and all that it started. The calling thread waits,
/// so that `--die-with-parent` means this run and not a thread that ends earlier.
///
/// # Errors
/// When it can't be started.
pub(super) fn watch(job: Job<'_>) -> io::Result<Ended> {
    let start = Instant::now();
    let own_mark = job.scope.is_none().then(|| numbered(job.is_kept()));
    let mark = own_mark.as_deref().or(job.scope).unwrap_or_default();
    let (child, streams) = start_child(&job, mark)?;
    let mut watched = Watched {
        kept: job.is_kept(),
        pidfd: open_pidfd(Pid::from_child(&child)),
        child,
        streams: [Some(job.output.0), job.output.1, None]
            .into_iter()
            .zip(streams)
            .filter_map(|(capture, pipe)| Some(Stream::new(pipe?, capture)))
            .collect(),
        bwrap: job.bwrap,
        scoped: job.scope.is_some(),
        init: None,
    };
    let limits = Limits {
        start,
        timeout: job.timeout,
        stop: job.stop,
    };
    let mut ended = Ended::default();
    watched.until_exit(&limits, &mut ended);
    ended.duration = start.elapsed();
    watched.end_rest(mark, &mut ended)?;
    Ok(ended)
}

/// A mark for processes that may outlive the child that started them, until [`end_scope`].
pub(super) fn mark() -> String {
    numbered(false)
}

/// What all marks of this process begin with, but those of what has a keeper. Its number alone is
/// that of others too, in other containers.
pub(super) fn own_mark() -> &'static str {
    static OWN: OnceLock<String> = OnceLock::new();
    OWN.get_or_init(|| {
        let chance = RandomState::new().build_hasher().finish();
        format!("{}-{chance:x}-", std::process::id())
    })
}

fn numbered(kept: bool) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Who kills a keeper lets go what only the keeper can find.
    let kept = if kept { "kept-" } else { "" };
    format!("{kept}{}{number}", own_mark())
}

/// Ends every process of a scope; whether that could be done.
pub(super) fn end_scope(mark: &str) -> bool {
    end_marked(&|found| found == mark.as_bytes())
}

/// Ends every process whose mark begins with `mark`, which nobody gives any more; whether that could
/// be done.
pub(super) fn end_all(mark: &str) -> bool {
    let all = |found: &[u8]| found.starts_with(mark.as_bytes());
    let ended = end_marked(&all);
    // Of who is becoming another program the environment can not be read for a moment.
    std::thread::sleep(Duration::from_millis(50));
    end_marked(&all) && ended
}

/// Starts the child; gives the pipes of its output, its errors (if apart) and its status.
fn start_child(job: &Job<'_>, mark: &str) -> io::Result<(Child, [Option<OwnedFd>; 3])> {
    let (program, arguments) = job.argv.split_first().ok_or(Errno::INVAL)?;
    let mut words: Vec<OsString> = Vec::new();
    if job.is_kept() {
        let own = std::process::id().to_string();
        words.extend([SELF, KEEP, &own].map(OsString::from));
    }
    words.extend_from_slice(job.limits);
    if !words.is_empty() && !job.is_there(program) {
        return Err(io::ErrorKind::NotFound.into());
    }
    words.push(program.clone());
    let (first, words) = words.split_first().ok_or(Errno::INVAL)?;
    let mut command = Command::new(first);
    command.args(words);
    let held = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut out, mut err) = (None, None);
    let out_end;
    if job.scope.is_some() {
        out_end = OwnedFd::from(job.output.0.file.try_clone()?);
    } else {
        let (read, write) = pipe()?;
        (out, out_end) = (Some(read), write);
    }
    let err_end = if job.output.1.is_some() {
        let (read, write) = pipe()?;
        err = Some(read);
        write
    } else {
        out_end.try_clone()?
    };
    let input = match &job.input {
        Some(file) => Stdio::from(file.try_clone()?),
        None => Stdio::null(),
    };
    let mut status = None;
    let mut inherited = Vec::new();
    if job.bwrap {
        let (read, write) = pipe()?;
        rustix::io::fcntl_setfd(&write, FdFlags::empty())?;
        command.arg("--json-status-fd");
        command.arg(write.as_raw_fd().to_string());
        // The mark is for those around the command.
        command.args(["--unsetenv", MARK]);
        status = Some(read);
        inherited.push(write);
        let filter = seccomp::filter(job.network)?;
        rustix::io::fcntl_setfd(&filter, FdFlags::empty())?;
        command.arg("--seccomp");
        command.arg(filter.as_raw_fd().to_string());
        inherited.push(filter);
        for (file, inside) in job.files {
            let file = OwnedFd::from(file.try_clone()?);
            rustix::io::fcntl_setfd(&file, FdFlags::empty())?;
            let number = file.as_raw_fd().to_string();
            command.args(["--perms", "0600", "--file", &number, inside]);
            inherited.push(file);
        }
    }
    command
        .args(arguments)
        .env_clear()
        .envs(job.env)
        .current_dir(job.cwd)
        .stdin(input)
        .stdout(out_end)
        .stderr(err_end)
        .env(MARK, mark)
        .process_group(0);
    let child = command.spawn()?;
    // In this order: nobody else may inherit it.
    drop((inherited, command));
    drop(held);
    Ok((child, [out, err, status]))
}

impl Stream {
    fn new(pipe: OwnedFd, capture: Option<Capture>) -> Self {
        Self {
            pipe: Some(pipe),
            capture,
            text: Vec::new(),
        }
    }
}

/// A pipe whose reading end does not block; both ends close on exec.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let flags = rustix::fs::fcntl_getfl(&read)?;
    rustix::fs::fcntl_setfl(&read, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok((read, write))
}

/// A handle that becomes readable when the process ends; `None` where there is no such thing.
fn open_pidfd(pid: Pid) -> Option<OwnedFd> {
    #[cfg(target_os = "linux")]
    return rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok();
    #[cfg(not(target_os = "linux"))]
    return {
        let _ = pid;
        None
    };
}

/// When it is to end.
struct Limits<'a> {
    start: Instant,
    timeout: Option<Duration>,
    stop: &'a AtomicBool,
}

struct Watched {
    child: Child,
    pidfd: Option<OwnedFd>,
    streams: Vec<Stream>,
    /// The first process in `bwrap`'s pid namespace: when it has ended, all of them have.
    init: Option<(Pid, Option<OwnedFd>)>,
    bwrap: bool,
    /// Whether the child is a keeper.
    kept: bool,
    /// Whether what it started may outlive it.
    scoped: bool,
}

impl Watched {
    fn until_exit(&mut self, limits: &Limits<'_>, ended: &mut Ended) {
        let mut buffer = vec![0; 64 * 1024];
        let mut kill_at = None;
        let mut asked = false;
        while !self.exited() {
            let now = Instant::now();
            let left = limits
                .timeout
                .map(|limit| limit.saturating_sub(limits.start.elapsed()));
            if kill_at.is_none() {
                if limits.stop.load(Ordering::Relaxed) {
                    ended.cut = Some(Cut::Stopped);
                } else if left.is_some_and(|left| left.is_zero()) {
                    ended.cut = Some(Cut::TimeUp);
                }
                kill_at = ended.cut.map(|_| now + GRACE);
            }
            let mut wait = TICK;
            if let Some(at) = kill_at {
                asked = asked || self.signal(Signal::TERM);
                if now >= at {
                    self.kill(now >= at + GRACE);
                }
            } else if let Some(left) = left {
                wait = wait.min(left);
            }
            self.poll(wait.max(Duration::from_millis(1)));
            self.drain(&mut buffer);
        }
    }

    /// Whether the child has ended. It is not reaped, so that its process group stays its own.
    fn exited(&self) -> bool {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        match waitid(WaitId::Pid(Pid::from_child(&self.child)), options) {
            Ok(status) => status.is_some(),
            Err(Errno::INTR) => false,
            Err(_) => true,
        }
    }

    fn poll(&self, wait: Duration) {
        let mut fds: Vec<PollFd<'_>> = self
            .streams
            .iter()
            .filter_map(|stream| stream.pipe.as_ref())
            .chain(&self.pidfd)
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let wait = if self.pidfd.is_some() {
            wait
        } else {
            wait.min(Duration::from_millis(10))
        };
        let wait = Timespec::try_from(wait).ok();
        // Whatever it says, the loop looks again.
        let _ = rustix::event::poll(&mut fds, wait.as_ref());
    }

    fn drain(&mut self, buffer: &mut [u8]) {
        for stream in &mut self.streams {
            stream.drain(buffer);
        }
        if self.init.is_none()
            && let Some(pid) = self.told("child-pid")
            && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        {
            self.init = Some((pid, open_pidfd(pid)));
        }
    }

    /// A number that `bwrap` told.
    fn told(&self, key: &str) -> Option<i64> {
        let mut streams = self.streams.iter();
        let status = streams.find(|stream| stream.capture.is_none())?;
        status.text.split(|&byte| byte == b'\n').find_map(|line| {
            let line: serde_json::Value = serde_json::from_slice(line).ok()?;
            line.get(key)?.as_i64()
        })
    }

    /// Signals the command and its group; whether there was one. To `bwrap` itself TERM would be
    /// the end of everything at once; the processes in it are the group of its first one, which
    /// ignores the signal.
    fn signal(&self, signal: Signal) -> bool {
        let group = match &self.init {
            Some((init, _)) => *init,
            None if self.bwrap => return false,
            None => Pid::from_child(&self.child),
        };
        rustix::process::kill_process_group(group, signal).is_ok()
    }

    /// Ends everything at once. A keeper does that for us, but for who does not let it (`hard`).
    fn kill(&self, hard: bool) {
        let own = Pid::from_child(&self.child);
        if self.kept && !hard {
            for signal in [Signal::USR1, Signal::CONT] {
                let _ = rustix::process::kill_process(own, signal);
            }
            return;
        }
        self.signal(Signal::KILL);
        let _ = rustix::process::kill_process_group(own, Signal::KILL);
    }

    /// After the child's exit: ends what it left, reaps it, takes the last of its output.
    fn end_rest(mut self, mark: &str, ended: &mut Ended) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        self.drain(&mut buffer);
        let outlived = self.scoped && ended.cut.is_none();
        if !self.bwrap && !outlived {
            self.kill(true);
        }
        let status = self.child.wait()?;
        ended.exit_code = status.code();
        ended.signal = status.signal();
        match &self.init {
            Some((init, pidfd)) => ended.undead = !gone(*init, pidfd.as_ref()),
            None if self.bwrap || self.scoped => {}
            None => ended.undead = !end_scope(mark),
        }
        // All writers are gone; outside of a namespace one may have escaped, so this ends when
        // nothing is there and not only at the end of the pipe.
        let until = Instant::now() + Duration::from_secs(1);
        while self.streams.iter().any(|stream| stream.pipe.is_some()) {
            self.drain(&mut buffer);
            if Instant::now() >= until || !readable(&self.streams) {
                break;
            }
        }
        if self.bwrap && ended.cut.is_none() {
            ended.not_started =
                self.told("exit-code").is_none() && status.code().is_some_and(|code| code != 0);
        }
        for stream in self.streams {
            let dropped = stream.capture.map_or(0, Capture::finish);
            ended.dropped = ended.dropped.saturating_add(dropped);
        }
        Ok(())
    }
}

fn readable(streams: &[Stream]) -> bool {
    let pipes = streams.iter().filter_map(|stream| stream.pipe.as_ref());
    let mut fds: Vec<PollFd<'_>> = pipes.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let now = Timespec::default();
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Waits until the first process of a pid namespace has ended, which it does after all others.
fn gone(init: Pid, pidfd: Option<&OwnedFd>) -> bool {
    let until = Instant::now() + REAPING;
    loop {
        let over = match pidfd {
            Some(pidfd) => ready(pidfd.as_fd(), TICK),
            // It was gone before a handle could be had, or there are no handles here.
            None => rustix::process::test_kill_process(init).is_err(),
        };
        if over {
            return true;
        }
        let _ = rustix::process::kill_process(init, Signal::KILL);
        if Instant::now() >= until {
            return false;
        }
        if pidfd.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn ready(fd: BorrowedFd<'_>, wait: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let wait = Timespec::try_from(wait).ok();
    rustix::event::poll(&mut fds, wait.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Kills every process with such a mark in its environment, until there is none.
fn end_marked(such: &dyn Fn(&[u8]) -> bool) -> bool {
    let until = Instant::now() + REAPING;
    loop {
        let strays = marked(such);
        if strays.is_empty() {
            return true;
        }
        for pid in strays {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn marked(such: &dyn Fn(&[u8]) -> bool) -> Vec<Pid> {
    let mark_of = |variable: &[u8]| {
        let mark = variable.strip_prefix(MARK.as_bytes())?;
        mark.strip_prefix(b"=").map(such)
    };
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for process in processes.flatten() {
        let pid = process.file_name();
        let Some(pid) = pid.to_str().and_then(|pid| pid.parse().ok()) else {
            continue;
        };
        let mut environment = Vec::new();
        let read = File::open(process.path().join("environ"))
            .and_then(|file| file.take(1 << 20).read_to_end(&mut environment));
        // Of a process that is only waiting to be reaped the environment is empty.
        if read.is_ok()
            && environment
                .split(|&byte| byte == 0)
                .any(|variable| mark_of(variable) == Some(true))
        {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}
