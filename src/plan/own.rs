//! The output directory and casepack's own files in it, `OUT/.casepack/`: made, opened without
//! following a link, locked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rustix::fs::OFlags;

use super::Error;
use super::fingerprint;
use crate::dataset::OUTPUT_MARK;
use crate::diag::{Diagnostic, Diagnostics, Rule};
use crate::event::{Event, Observer};
use crate::fs::{FsError, lock as lock_file, write_atomic};

/// Where state lies in an output directory.
pub(super) const STATE: &str = OUTPUT_MARK;
/// Where in there directories are made that are renamed when they are whole.
pub(super) const STAGING: &str = "tmp";

/// A file of the state directory that is about one target: its `record`, `journal`, `files`, `links`.
pub(super) fn state_path(state: &Path, target: &str, kind: &str) -> PathBuf {
    state.join(format!("{target}.{kind}"))
}

pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error {
        doing,
        path: path.to_owned(),
        source,
    }
}

pub(super) fn refused(doing: &'static str) -> impl FnOnce(FsError) -> Error {
    move |error| Error {
        doing,
        path: error.path,
        source: error.source,
    }
}

/// Makes the output directory and its state directory; its canonical path.
pub(super) fn create(out: &Path) -> Result<PathBuf, Error> {
    if let Some(parent) = out.parent() {
        fs::create_dir_all(parent).map_err(|error| {
            let why = match error.kind() {
                ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                    io::Error::other("a file stands where a directory is needed")
                }
                _ => error,
            };
            failed("can not create", parent)(why)
        })?;
    }
    real_dir(out)?;
    real_dir(&out.join(STATE))?;
    out.canonicalize().map_err(failed("can not open", out))
}

/// Makes a directory, unless it is there. A link in its place is refused: an output directory that
/// came with a hostile dataset must not lead anywhere else.
pub(super) fn real_dir(path: &Path) -> Result<(), Error> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => return made.map_err(failed("can not create", path)),
    }
    let there = path
        .symlink_metadata()
        .map_err(failed("can not look at", path))?;
    if there.is_dir() {
        return Ok(());
    }
    let why = io::Error::other(
        "it is a link or a file, and must be a directory: remove it, or name another one",
    );
    Err(failed("can not use", path)(why))
}

/// Flags of every open in the output directory: no link is followed, and a fifo in the place of a
/// file makes nobody wait.
fn no_surprise() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

/// The content of a file that casepack wrote; `InvalidData` when anything but a file is there.
pub(super) fn own_file(path: &Path) -> io::Result<Vec<u8>> {
    if !path.symlink_metadata()?.is_file() {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    OpenOptions::new()
        .read(true)
        .custom_flags(no_surprise())
        .open(path)?
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file of the state directory, never through a link.
pub(super) fn state_file(path: &Path, options: &mut OpenOptions) -> Result<File, Error> {
    options
        .custom_flags(no_surprise())
        .open(path)
        .map_err(failed("can not open", path))
}

/// Takes the lock of the output directory; waits for another build that has it, and tells. Released
/// when the file is dropped, and by the system when the process dies.
pub(super) fn lock(
    out: &Path,
    stop: &AtomicBool,
    observer: &dyn Observer,
) -> Result<Option<File>, Error> {
    let path = out.join(STATE).join("lock");
    let mut options = OpenOptions::new();
    let mut file = state_file(
        &path,
        options.read(true).write(true).create(true).truncate(false),
    )?;
    let waiting = || observer.on(Event::Waiting { pid: holder(&path) });
    if !lock_file(&file, false, stop, waiting).map_err(failed("can not lock", &path))? {
        return Ok(None);
    }
    // For those who wait.
    file.set_len(0).ok();
    writeln!(file, "{}", std::process::id()).ok();
    Ok(Some(file))
}

/// Whether outputs of a target are recorded in an output directory.
pub(super) fn is_recorded(out: &Path, target: &str) -> bool {
    let record = state_path(&out.join(STATE), target, "record");
    record.symlink_metadata().is_ok_and(|there| there.is_file())
}

/// Waits until no build is at work in the output directory, which may not be there, and keeps
/// others from beginning until it is dropped.
pub(super) fn lock_to_look(out: &Path, stop: &AtomicBool, observer: &dyn Observer) -> Option<File> {
    let path = out.join(STATE).join("lock");
    let file = state_file(&path, OpenOptions::new().read(true)).ok()?;
    let waiting = || observer.on(Event::Waiting { pid: holder(&path) });
    lock_file(&file, true, stop, waiting).ok()?;
    Some(file)
}

/// The process that holds the lock, when it says so.
fn holder(path: &Path) -> Option<u32> {
    let text = own_file(path).ok()?;
    String::from_utf8_lossy(&text).trim().parse().ok()
}

/// The file system's time in the output directory.
pub(super) fn now_ns(out: &Path) -> Result<i128, Error> {
    let state = out.join(STATE);
    fingerprint::now_ns(&state).map_err(failed("can not write in", &state))
}

/// What an earlier build knew of large input files, for [`super::index::Index`]. When `mend`, what is
/// no file there is moved away.
pub(super) fn read_index(
    out: &Path,
    mend: bool,
    diags: &mut Diagnostics,
) -> Result<Option<Vec<u8>>, Error> {
    let path = out.join(STATE).join(INDEX);
    if mend {
        clear(&path, diags)?;
    }
    Ok(own_file(&path).ok())
}

/// Tells that the index is not used.
pub(super) fn tell_index(out: &Path, diags: &mut Diagnostics) {
    let path = out.join(STATE).join(INDEX);
    let message = format!(
        "{} is no index that this version wrote, or was damaged.",
        path.display()
    );
    let help = "Nothing has to be done: large files are read again, and it is written anew.";
    diags.push(Diagnostic::new(Rule::RecordDamaged, message).help(help));
}

/// Writes what this one knows of them.
pub(super) fn write_index(out: &Path, text: &[u8]) -> Result<(), Error> {
    let path = out.join(STATE).join(INDEX);
    if own_file(&path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    write_atomic(&path, text, 0o644).map_err(refused("can not write"))
}

/// The digests of large input files.
const INDEX: &str = "inputs.index";

/// Makes room for a state file, and tells what was moved.
pub(super) fn clear(path: &Path, diags: &mut Diagnostics) -> Result<(), Error> {
    if let Some(aside) = put_aside(path)? {
        let (path, aside) = (path.display(), aside.display());
        let message = format!("{path} is no file; it is {aside} now.");
        let help = "Remove it if it is not needed; nothing of casepack's is in it.";
        diags.push(Diagnostic::new(Rule::RecordDamaged, message).help(help));
    }
    Ok(())
}

/// Moves what stands in the place of a state file, and is no file, out of the way; where it is now.
pub(super) fn put_aside(path: &Path) -> Result<Option<PathBuf>, Error> {
    match path.symlink_metadata() {
        Ok(there) if !there.is_file() => {}
        _ => return Ok(None),
    }
    let mut number = 1;
    loop {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".aside-{number}"));
        let aside = PathBuf::from(aside);
        if aside.symlink_metadata().is_err() {
            fs::rename(path, &aside).map_err(failed("can not move away", path))?;
            return Ok(Some(aside));
        }
        number += 1;
    }
}
