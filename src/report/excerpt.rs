//! Parts of what agents and verifiers left behind.
//!
//! Owns how much is taken and which end of it. Refuses to know what it is shown in.
//! Invariant: files are opened through the handle of the run's directory, links are not followed,
//! and never more than what is asked for is read (policy 20).

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use crate::fs::{Root, Stamp};
use crate::path::TreePath;
use crate::run::{CaseResult, Secrets};

/// Text of a file, as far as it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Excerpt {
    /// It, what is no UTF-8 replaced.
    pub(super) text: String,
    /// Bytes of the file that are not in it.
    pub(super) left_out: u64,
}

/// Which end of a file is the one to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    First,
    Last,
}

/// The directory of one attempt at one case.
#[derive(Debug)]
pub(super) struct Home<'a> {
    run: Option<&'a Root>,
    place: Option<TreePath>,
    secrets: &'a Secrets,
}

impl<'a> Home<'a> {
    /// Where the files of `case` are in the directory `run` of its run; `secrets` are not shown.
    pub(super) fn of(run: Option<&'a Root>, case: &CaseResult, secrets: &'a Secrets) -> Self {
        let place = case.dir.as_deref().unwrap_or(case.id.as_str());
        Self {
            run,
            place: TreePath::new(place).ok(),
            secrets,
        }
    }

    /// The directory of one of its steps.
    pub(super) fn step(&self, name: &str) -> Self {
        let below = TreePath::new("steps").and_then(|steps| steps.child(name));
        let place = self.place.as_ref().zip(below.ok());
        Self {
            run: self.run,
            place: place.map(|(place, below)| place.join(&below)),
            secrets: self.secrets,
        }
    }

    /// The file `name` as it is called below the run's directory.
    pub(super) fn path(&self, name: &str) -> String {
        let place = self.place.as_ref().map_or("", TreePath::as_str);
        format!("{place}/{name}")
    }

    /// At most `most` bytes of the file `name`; nothing when it is not there, or no file.
    pub(super) fn read(&self, name: &str, end: End, most: usize) -> Option<Excerpt> {
        let path = self.place.as_ref()?.join(&TreePath::new(name).ok()?);
        let (file, stamp) = self.run?.open_file(&path).ok()?;
        excerpt(file, &stamp, end, most, self.secrets)
    }
}

fn excerpt(
    mut file: File,
    stamp: &Stamp,
    end: End,
    most: usize,
    secrets: &Secrets,
) -> Option<Excerpt> {
    // A secret that the cut divides is known by all of it.
    let reach = most.saturating_add(secrets.longest()) as u64;
    let left_out = stamp.size.saturating_sub(most as u64);
    let beyond = match end {
        End::First => 0,
        End::Last => stamp.size.saturating_sub(reach),
    };
    file.seek(SeekFrom::Start(beyond)).ok()?;
    let mut bytes = Vec::new();
    file.take(reach).read_to_end(&mut bytes).ok()?;
    // What is only read for that is told by its place, as names have other lengths than secrets.
    let part = match end {
        End::First => 0..bytes.len().min(most),
        End::Last => {
            let start = usize::try_from(left_out.saturating_sub(beyond)).ok()?;
            start.min(bytes.len())..bytes.len()
        }
    };
    let mut bytes = secrets.hide_in(&bytes, part);
    // A cut goes between characters.
    if left_out > 0 && end == End::Last {
        let start = bytes
            .iter()
            .take(3)
            .take_while(|byte| **byte & 0xc0 == 0x80);
        let start = start.count();
        bytes.drain(..start);
    }
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if left_out > 0 && end == End::First && text.ends_with(char::REPLACEMENT_CHARACTER) {
        text.pop();
    }
    if left_out > 0 && end == End::First {
        text.truncate(text.floor_char_boundary(most.min(text.len())));
    } else if left_out > 0 {
        text.drain(..text.ceil_char_boundary(text.len().saturating_sub(most)));
    }
    Some(Excerpt { text, left_out })
}

/// The first `most` bytes of `text`, and how many more there are.
pub(super) fn cut(text: &str, most: usize) -> (&str, usize) {
    let end = text.floor_char_boundary(most.min(text.len()));
    (&text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::CaseId;

    #[test]
    fn takes_one_end_between_characters() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/log"), "aé日z").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("a/link")).unwrap();
        let root = Root::open(dir.path()).ok();
        let case = CaseResult::new(&CaseId::new("a").unwrap());
        let none = Secrets::default();
        let home = Home::of(root.as_ref(), &case, &none);
        let read = |end, most| {
            let excerpt = home.read("log", end, most).unwrap();
            (excerpt.text, excerpt.left_out)
        };
        assert_eq!(read(End::First, 9), ("aé日z".to_owned(), 0));
        assert_eq!(read(End::First, 2), ("a".to_owned(), 5));
        assert_eq!(read(End::Last, 3), ("z".to_owned(), 4));
        assert_eq!(read(End::Last, 4), ("日z".to_owned(), 3));
        for name in ["link", "gone", "../a/log", ""] {
            assert_eq!(home.read(name, End::First, 9), None, "{name}");
        }
        assert_eq!(home.step("..").read("log", End::First, 9), None);
        assert_eq!(cut("aé", 2), ("a", 2));
    }

    #[test]
    fn a_secret_is_hidden_wherever_the_cut_is() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/log"), "before s3cret-value after").unwrap();
        let root = Root::open(dir.path()).ok();
        let case = CaseResult::new(&CaseId::new("a").unwrap());
        let caller = [("MY_KEY".to_owned(), "s3cret-value".to_owned())].into();
        let secrets = Secrets::of(&caller);
        let home = Home::of(root.as_ref(), &case, &secrets);
        for most in 0..30 {
            for end in [End::First, End::Last] {
                let Excerpt { text, left_out } = home.read("log", end, most).unwrap();
                assert!(!text.contains("s3c") && !text.contains("lue"), "{text}");
                assert!(text.len() <= most.max(21));
                assert_eq!(left_out, 25_u64.saturating_sub(most as u64));
            }
        }
        let all = home.read("log", End::First, 99).unwrap().text;
        assert_eq!(all, "before [MY_KEY] after");
    }

    #[test]
    fn nothing_of_a_secret_is_left_where_names_are_shorter() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let secret = "sk-0123456789abcdefghijklmnopqrstuvwxyz";
        let log = format!("{secret} ").repeat(20);
        std::fs::write(dir.path().join("a/log"), &log).unwrap();
        let root = Root::open(dir.path()).ok();
        let case = CaseResult::new(&CaseId::new("a").unwrap());
        let secrets = Secrets::of(&[("KEY".to_owned(), secret.to_owned())].into());
        let home = Home::of(root.as_ref(), &case, &secrets);
        for most in 0..=log.len() {
            for end in [End::First, End::Last] {
                let text = home.read("log", end, most).unwrap().text;
                let is_mask = |word: &str| "[KEY]".contains(word);
                assert!(text.split(' ').all(is_mask), "{most}: {text}");
                assert!(text.len() <= most);
            }
        }
    }

    #[test]
    fn a_place_that_leads_elsewhere_has_no_files() {
        let world = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(world.path().join("run")).unwrap();
        std::fs::write(world.path().join("log"), "secret").unwrap();
        std::os::unix::fs::symlink(world.path(), world.path().join("run/up")).unwrap();
        let root = Root::open(&world.path().join("run")).ok();
        for place in ["..", "/", "up", "a/../.."] {
            let mut case = CaseResult::new(&CaseId::new("a").unwrap());
            case.dir = Some(place.to_owned());
            let none = Secrets::default();
            let home = Home::of(root.as_ref(), &case, &none);
            assert_eq!(home.read("log", End::First, 9), None, "{place}");
        }
    }
}
