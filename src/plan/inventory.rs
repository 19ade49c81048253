//! What outputs were made of, file by file: read when something has to be explained or verified,
//! never on the way of a build that has nothing to do.
//!
//! `OUT/.casepack/<target>.files` has a line for each output: the action key, the settings, the
//! files of the case's views and those of the output, with their digests. Lines are appended, the
//! last one of an output counts, so that a changed case costs one line; the file is written anew
//! when most of it is old. What most outputs have in common stands in the first line, the base, and
//! the others say what they lack of it and have besides.
//! A line carries a checksum; one that is damaged, or of an output that was made anew since (its
//! tree is another), says nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{
    self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _,
};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use super::settings::Settings;
use crate::digest::{ActionKey, Digest, TreeId};
use crate::path::TreePath;
use crate::tree::{Mode, Tree};

/// The first line begins with it.
const SCHEMA: &str = "casepack.files.v1";
/// A longer line is damaged: no case has that many files.
const MAX_LINE: u64 = 256 << 20;

/// One file of a listing: path, mode, digest, size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Item(String, char, String, u64);

/// The files of a tree, without their content.
pub(super) type Listing = BTreeMap<TreePath, (Mode, Digest, u64)>;

/// What one output was made of, and what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Made {
    /// Of everything that follows but the output itself.
    pub(super) key: Option<ActionKey>,
    /// Options, config and templates.
    pub(super) settings: Settings,
    /// The workspace view.
    pub(super) workspace: Listing,
    /// The evaluation view.
    pub(super) evaluation: Listing,
    /// Package files that the case itself brings.
    pub(super) task: Listing,
    /// The output.
    pub(super) output: Listing,
}

/// The same, borrowed, for writing.
pub(super) struct Making<'a> {
    pub(super) place: &'a TreePath,
    pub(super) key: ActionKey,
    pub(super) workspace: &'a Tree,
    pub(super) evaluation: &'a Tree,
    pub(super) task: &'a Tree,
    pub(super) output: &'a Tree,
    /// The digest of the output.
    pub(super) tree: TreeId,
}

#[derive(Serialize, Deserialize)]
struct Line {
    place: String,
    key: String,
    /// The digest of the settings; they stand in a line of their own.
    settings: String,
    /// The output's tree.
    tree: String,
    /// Workspace, evaluation, task, output.
    files: [Part; 4],
}

/// A listing against that of the base.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Part {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    own: Vec<Item>,
    /// Which files of the base are not in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lacks: Vec<usize>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    schema: String,
    /// Workspace, evaluation, task, output.
    base: [Vec<Item>; 4],
}

/// One file, ready to be compared.
type Plain = (TreePath, Mode, Digest, u64);

impl Item {
    fn of((path, mode, digest, size): (&TreePath, Mode, Digest, u64)) -> Self {
        let mode = if mode == Mode::Executable { 'x' } else { '-' };
        Self(path.as_str().to_owned(), mode, digest.hex(), size)
    }

    fn parse(&self) -> Option<Plain> {
        let mode = match self.1 {
            'x' => Mode::Executable,
            '-' => Mode::Regular,
            _ => return None,
        };
        let path = TreePath::new(&self.0).ok()?;
        Some((path, mode, Digest::from_hex(&self.2).ok()?, self.3))
    }
}

fn plain(tree: &Tree) -> impl Iterator<Item = Plain> {
    tree.iter().map(|(path, entry)| {
        let content = &entry.content;
        (path.clone(), entry.mode, content.digest, content.size)
    })
}

impl Part {
    /// Both are sorted by path.
    fn of(tree: &Tree, base: &[Plain]) -> Self {
        let mut part = Self::default();
        let mut base = base.iter().enumerate().peekable();
        for (path, entry) in tree.iter() {
            let content = &entry.content;
            let item = (path, entry.mode, content.digest, content.size);
            while let Some((at, _)) = base.next_if(|(_, other)| other.0 < *path) {
                part.lacks.push(at);
            }
            let there = base.next_if(|(_, other)| other.0 == *path);
            let same = |(path, mode, digest, size): &Plain| item == (path, *mode, *digest, *size);
            if there.is_some_and(|(_, other)| same(other)) {
                continue;
            }
            part.lacks.extend(there.map(|(at, _)| at));
            part.own.push(Item::of(item));
        }
        part.lacks.extend(base.map(|(at, _)| at));
        part
    }

    fn listing(&self, base: &[Plain]) -> Option<Listing> {
        let mut lacks = self.lacks.iter().peekable();
        let mut all: Vec<Plain> = Vec::with_capacity(base.len() + self.own.len());
        for (at, item) in base.iter().enumerate() {
            if lacks.next_if(|lacks| **lacks == at).is_none() {
                all.push(item.clone());
            }
        }
        for item in &self.own {
            all.push(item.parse()?);
        }
        let split = |(path, mode, digest, size)| (path, (mode, digest, size));
        Some(all.into_iter().map(split).collect())
    }
}

/// `<checksum> <kind> <name> <json>`: 16 digits of the SHA-256 of the rest; `h`, `s` or `o` for the
/// head, settings and an output; 16 digits of the SHA-256 of the output's name, or the settings'.
fn framed(kind: char, name: &str, json: &str) -> String {
    let mut line = format!("{:16} {kind} {name} {json}", "");
    let sum = Digest::of(&line.as_bytes()[17..]).hex();
    line.replace_range(..16, &sum[..16]);
    line.push('\n');
    line
}

fn short(place: &str) -> String {
    Digest::of(place.as_bytes()).hex()[..16].to_owned()
}

/// The JSON of a line, when its checksum is right.
fn unframed(line: &str) -> Option<(char, &str, &str)> {
    let (sum, rest) = line.split_once(' ')?;
    if !Digest::of(rest.as_bytes()).hex().starts_with(sum) || sum.len() != 16 {
        return None;
    }
    let (kind, rest) = rest.split_once(' ')?;
    let (name, json) = rest.split_once(' ')?;
    Some((kind.chars().next()?, name, json))
}

/// Reads the file of one target.
pub(super) struct Inventory {
    file: BufReader<File>,
    base: [Vec<Plain>; 4],
    /// Where the last line of each output is.
    outputs: BTreeMap<String, u64>,
    settings: BTreeMap<String, u64>,
    /// Whether the lines were found.
    found: bool,
}

impl Inventory {
    /// Reads the head of `file`.
    ///
    /// # Errors
    /// `InvalidData` when it is not what this version writes; what reading gave.
    pub(super) fn open(file: File) -> io::Result<Self> {
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        let mut all = Self {
            file: BufReader::with_capacity(1 << 16, file),
            base: Default::default(),
            outputs: BTreeMap::new(),
            settings: BTreeMap::new(),
            found: false,
        };
        let head = all.line()?.unwrap_or_default();
        let (kind, _, json) = unframed(&head).ok_or_else(damaged)?;
        let read: Head = serde_json::from_str(json).map_err(|_| damaged())?;
        if kind != 'h' || read.schema != SCHEMA {
            return Err(damaged());
        }
        for (base, items) in all.base.iter_mut().zip(&read.base) {
            *base = items
                .iter()
                .map(Item::parse)
                .collect::<Option<_>>()
                .ok_or_else(damaged)?;
        }
        Ok(all)
    }

    /// Finds the lines that count, once.
    fn find(&mut self) -> io::Result<()> {
        if self.found {
            return Ok(());
        }
        self.file.seek(SeekFrom::Start(0))?;
        let mut at = 0;
        while let Some(line) = self.line()? {
            // Whether the checksum is right is looked at when the line is used.
            let mut words = line.splitn(4, ' ').skip(1);
            match (words.next(), words.next()) {
                (Some("o"), Some(name)) => self.outputs.insert(name.to_owned(), at),
                (Some("s"), Some(name)) => self.settings.insert(name.to_owned(), at),
                _ => None,
            };
            at += line.len() as u64 + 1;
        }
        self.found = true;
        Ok(())
    }

    /// The next line without its newline; `None` at the end, and for a line that was cut.
    fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        (&mut self.file)
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Ok(None);
        }
        let line = String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Some(line))
    }

    fn line_at(&mut self, at: u64) -> Option<String> {
        self.file.seek(SeekFrom::Start(at)).ok()?;
        self.line().ok()?
    }

    /// What the output at `place`, whose tree is `tree`, was made of.
    pub(super) fn get(&mut self, place: &TreePath, tree: &TreeId) -> Option<Made> {
        self.find().ok()?;
        let at = *self.outputs.get(&short(place.as_str()))?;
        let text = self.line_at(at)?;
        let (_, _, json) = unframed(&text)?;
        let line: Line = serde_json::from_str(json).ok()?;
        if line.place != place.as_str() || line.tree != tree.0.hex() {
            return None;
        }
        let at = *self
            .settings
            .get(&line.settings[..16.min(line.settings.len())])?;
        let text = self.line_at(at)?;
        let (_, _, json) = unframed(&text)?;
        let [workspace, evaluation, task, output] = &line.files;
        let base = &self.base;
        Some(Made {
            key: Some(ActionKey(Digest::from_hex(&line.key).ok()?)),
            settings: serde_json::from_str(json).ok()?,
            workspace: workspace.listing(&base[0])?,
            evaluation: evaluation.listing(&base[1])?,
            task: task.listing(&base[2])?,
            output: output.listing(&base[3])?,
        })
    }

    /// Writes the lines that count to `into`.
    ///
    /// # Errors
    /// What reading and writing gave.
    pub(super) fn compact(&mut self, into: &File) -> io::Result<()> {
        self.find()?;
        let mut into = BufWriter::with_capacity(1 << 16, into);
        let mut places: Vec<u64> = self
            .outputs
            .values()
            .chain(self.settings.values())
            .copied()
            .collect();
        places.push(0);
        places.sort_unstable();
        for at in places {
            if let Some(mut line) = self.line_at(at) {
                line.push('\n');
                into.write_all(line.as_bytes())?;
            }
        }
        into.flush()
    }
}

/// Adds lines for the outputs of a build; called from several threads at once.
pub(super) struct Writer {
    file: Mutex<(BufWriter<File>, io::Result<()>)>,
    base: OnceLock<[Vec<Plain>; 4]>,
    settings: Settings,
    id: String,
}

impl Writer {
    /// Writes to the end of `file`, of which `earlier` was read; at its beginning when it is
    /// empty. `settings` are those of all outputs of this build.
    pub(super) fn new(file: File, earlier: Option<&Inventory>, settings: Settings) -> Self {
        let writer = Self {
            file: Mutex::new((BufWriter::with_capacity(1 << 16, file), Ok(()))),
            base: OnceLock::new(),
            id: settings.id().hex(),
            settings,
        };
        if let Some(earlier) = earlier {
            // Ends a line that a kill cut.
            writer.write("\n");
            writer.settings_line();
            drop(writer.base.set(earlier.base.clone()));
        }
        writer
    }

    /// A failure is told at the end.
    fn write(&self, text: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, state) = &mut *file;
        if state.is_ok() {
            *state = file.write_all(text.as_bytes());
        }
    }

    fn settings_line(&self) {
        let json = serde_json::to_string(&self.settings).unwrap_or_default();
        self.write(&framed('s', &self.id[..16], &json));
    }

    /// Adds the line of one output. The first one of a new file becomes the base.
    pub(super) fn add(&self, making: &Making<'_>) {
        let trees = [
            making.workspace,
            making.evaluation,
            making.task,
            making.output,
        ];
        let base = self.base.get_or_init(|| {
            let base = trees.map(|tree| plain(tree).collect::<Vec<_>>());
            let head = Head {
                schema: SCHEMA.to_owned(),
                base: base.each_ref().map(|items| {
                    items
                        .iter()
                        .map(|it| Item::of((&it.0, it.1, it.2, it.3)))
                        .collect()
                }),
            };
            let json = serde_json::to_string(&head).unwrap_or_default();
            self.write(&framed('h', "-", &json));
            self.settings_line();
            base
        });
        let mut base = base.iter();
        let files = trees.map(|tree| Part::of(tree, base.next().map_or(&[], Vec::as_slice)));
        let line = Line {
            place: making.place.as_str().to_owned(),
            key: making.key.0.hex(),
            settings: self.id.clone(),
            tree: making.tree.0.hex(),
            files,
        };
        // Proof that this can not fail: texts, numbers and lists of them.
        let json = serde_json::to_string(&line).unwrap_or_default();
        self.write(&framed('o', &short(making.place.as_str()), &json));
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// What writing gave, now or before.
    pub(super) fn finish(self) -> io::Result<()> {
        let (mut file, state) = self
            .file
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        state?;
        file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::Path;

    use super::*;
    use crate::tree::{Content, TreeBuilder};

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut builder = TreeBuilder::new();
        for (path, text) in files {
            let content = Content::bytes(text.as_bytes());
            let path = TreePath::new(path).unwrap();
            builder.insert(path, Mode::Regular, content).unwrap();
        }
        builder.finish()
    }

    /// One build of `places`, all of them with `note`.
    fn write(path: &Path, places: &[&str], note: &str, settings: &Settings) {
        let earlier = File::open(path)
            .ok()
            .map(|file| Inventory::open(file).unwrap());
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        let writer = Writer::new(file, earlier.as_ref(), settings.clone());
        for place in places {
            let workspace = tree(&[("shared", "same"), ("note", note), ("own", place)]);
            let output = tree(&[("a", place), ("shared", "same")]);
            let none = tree(&[]);
            writer.add(&Making {
                place: &TreePath::new(place).unwrap(),
                key: ActionKey(Digest::of(note.as_bytes())),
                workspace: &workspace,
                evaluation: &none,
                task: &none,
                output: &output,
                tree: output.id(),
            });
        }
        writer.finish().unwrap();
    }

    fn note_of(inventory: &mut Inventory, place: &str) -> Option<(Digest, Settings, usize)> {
        let id = tree(&[("a", place), ("shared", "same")]).id();
        let made = inventory.get(&TreePath::new(place).unwrap(), &id)?;
        let note = made.workspace.get(&TreePath::new("note").unwrap())?.1;
        Some((note, made.settings, made.output.len()))
    }

    fn open(path: &Path) -> Inventory {
        Inventory::open(File::open(path).unwrap()).unwrap()
    }

    #[test]
    fn the_last_line_of_an_output_counts() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("files");
        let old = Settings::default();
        let mut new = Settings::default();
        new.0.insert("--image".to_owned(), "x".to_owned());
        write(&path, &["one", "two", "three"], "first", &old);
        // A line that a kill cut.
        let mut text = std::fs::read(&path).unwrap();
        text.extend(b"0123456789abcdef o 0123 {\"place");
        std::fs::write(&path, &text).unwrap();
        write(&path, &["two"], "second", &new);
        let first = Digest::of(b"first");
        let second = Digest::of(b"second");
        let mut inventory = open(&path);
        assert_eq!(
            note_of(&mut inventory, "one"),
            Some((first, old.clone(), 2))
        );
        assert_eq!(
            note_of(&mut inventory, "two"),
            Some((second, new.clone(), 2))
        );
        assert_eq!(note_of(&mut inventory, "four"), None);
        // Of an output that is another one now nothing is said.
        let other = tree(&[("b", "b")]).id();
        assert_eq!(inventory.get(&TreePath::new("one").unwrap(), &other), None);

        let shorter = temp.path().join("shorter");
        inventory.compact(&File::create(&shorter).unwrap()).unwrap();
        assert!(std::fs::metadata(&shorter).unwrap().len() < text.len() as u64 + 200);
        let mut inventory = open(&shorter);
        assert_eq!(note_of(&mut inventory, "two"), Some((second, new, 2)));
        assert_eq!(note_of(&mut inventory, "three"), Some((first, old, 2)));
    }

    #[test]
    fn a_damaged_line_says_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("files");
        write(&path, &["one", "two"], "note", &Settings::default());
        let text = std::fs::read(&path).unwrap();
        let right = note_of(&mut open(&path), "two");
        assert!(right.is_some());
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 2;
            std::fs::write(&path, &damaged).unwrap();
            let Ok(mut inventory) = Inventory::open(File::open(&path).unwrap()) else {
                continue;
            };
            let said = note_of(&mut inventory, "two");
            assert!(said.is_none() || said == right, "byte {at}");
        }
    }
}
