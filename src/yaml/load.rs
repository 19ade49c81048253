//! Events to values: composes and constructs as PyYAML's `SafeLoader` does, within the limits.
//!
//! One pass over the events with a stack of open collections, so neither parsing nor the resulting
//! tree is ever deeper than [`MAX_DEPTH`](super::MAX_DEPTH).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::scalar::{KeyIdentity, ScalarType, construct, resolve};
use super::strict::{Surface, check_text, excerpt, scan_error};
use super::{Fault, MAX_ALIAS_BYTES, MAX_DEPTH, MAX_NODES, Node, Yaml};
use crate::diag::Rule;

const CORE: &str = "tag:yaml.org,2002:";

/// The top value of `text`, and the keys that it gives twice.
pub(super) type Loaded = (Node, Vec<(Range<usize>, Range<usize>)>);

pub(super) fn load(text: &str) -> Result<Loaded, Fault> {
    check_text(text)?;
    // PyYAML skips one byte order mark.
    let start = if text.starts_with('\u{FEFF}') { 3 } else { 0 };
    let mut loader = Loader::new(text, start);
    for event in Parser::new_from_str(text.get(start..).unwrap_or_default()) {
        match event {
            Ok((event, span)) => loader.event(event, span)?,
            Err(error) => {
                let offset = loader.offsets.byte(error.marker().index());
                return Err(scan_error(&error, text, offset));
            }
        }
    }
    let root = loader.root.map_or(
        Node {
            value: Yaml::Null,
            span: 0..0,
        },
        |item| item.node,
    );
    Ok((root, loader.duplicate_keys))
}

/// Characters to bytes: the parser's marks count characters.
struct Offsets<'s> {
    text: &'s str,
    start: usize,
    /// The byte of each 64th character; none for ASCII.
    table: Vec<usize>,
}

impl<'s> Offsets<'s> {
    const STEP: usize = 64;

    fn new(text: &'s str, start: usize) -> Self {
        let text = text.get(start..).unwrap_or_default();
        let table = if text.is_ascii() {
            Vec::new()
        } else {
            text.char_indices()
                .step_by(Self::STEP)
                .map(|(offset, _)| offset)
                .collect()
        };
        Self { text, start, table }
    }

    fn byte(&self, index: usize) -> usize {
        if self.table.is_empty() {
            return self.start + index.min(self.text.len());
        }
        let offset = match self.table.get(index / Self::STEP) {
            None => self.text.len(),
            Some(&from) => self.text[from..]
                .char_indices()
                .nth(index % Self::STEP)
                .map_or(self.text.len(), |(offset, _)| from + offset),
        };
        self.start + offset
    }
}

/// What a scalar may be besides its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Special {
    None,
    /// `<<`
    Merge,
    /// `=`
    Default,
}

#[derive(Debug, Clone)]
struct Item {
    node: Node,
    special: Special,
}

/// What a value weighs, aliases expanded.
#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    nodes: usize,
    bytes: usize,
    height: usize,
}

impl Weight {
    fn add(&mut self, child: Self) {
        self.nodes += child.nodes;
        self.bytes = self.bytes.saturating_add(child.bytes);
        self.height = self.height.max(child.height + 1);
    }
}

enum Collection {
    Seq,
    Pairs,
    Map,
    Set,
    /// The mapping of one entry that is an item of [`Collection::Pairs`].
    Pair,
}

struct Frame {
    kind: Collection,
    anchor: usize,
    /// Whether it starts with a bracket.
    bracket: bool,
    /// Whether it stands between brackets, its own or others.
    flow: bool,
    /// Where its first property or itself starts.
    start: usize,
    /// Where itself starts.
    content: usize,
    /// Where its last child ends.
    end: usize,
    /// Whether the current key has a `?`.
    explicit_key: bool,
    /// Of a mapping, keys and values in turn.
    children: Vec<Item>,
    weight: Weight,
}

impl Frame {
    fn expects_key(&self) -> bool {
        !matches!(self.kind, Collection::Seq | Collection::Pairs)
            && self.children.len().is_multiple_of(2)
    }
}

struct Loader<'s> {
    surface: Surface<'s>,
    offsets: Offsets<'s>,
    documents: usize,
    stack: Vec<Frame>,
    /// By the parser's number; none while the anchored collection is open.
    anchors: BTreeMap<usize, (Item, Weight)>,
    root: Option<Item>,
    duplicate_keys: Vec<(Range<usize>, Range<usize>)>,
    nodes: usize,
    anchored: usize,
    alias_bytes: usize,
}

impl<'s> Loader<'s> {
    fn new(text: &'s str, start: usize) -> Self {
        Self {
            surface: Surface::new(text, start),
            offsets: Offsets::new(text, start),
            documents: 0,
            stack: Vec::new(),
            anchors: BTreeMap::new(),
            root: None,
            duplicate_keys: Vec::new(),
            nodes: 0,
            anchored: 0,
            alias_bytes: 0,
        }
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Fault> {
        let start = self.offsets.byte(span.start.index());
        let end = self.offsets.byte(span.end.index());
        match event {
            Event::Nothing | Event::StreamStart | Event::DocumentEnd => Ok(()),
            Event::StreamEnd => self.surface.gap(end).map(drop),
            Event::DocumentStart(explicit) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(Fault::new(
                        Rule::YamlMultiDocument,
                        start..end,
                        "The file has a second document.",
                        "Remove the `---` line and what does not belong; a text with such a line must be indented or quoted.",
                    ));
                }
                if explicit {
                    self.surface.gap(start)?;
                    self.surface.start_document();
                }
                Ok(())
            }
            Event::Alias(id) => self.alias(id, start),
            Event::Scalar(value, style, anchor, tag) => {
                self.scalar(&value, style, anchor, tag.as_deref(), start..end)
            }
            Event::SequenceStart(anchor, tag) => {
                self.open(true, anchor, tag.as_deref(), start..end)
            }
            Event::MappingStart(anchor, tag) => {
                self.open(false, anchor, tag.as_deref(), start..end)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(start),
        }
    }

    /// Reads up to a node; notes whether it is an explicit key.
    fn approach(&mut self, start: usize) -> Result<(), Fault> {
        let gap = self.surface.gap(start)?;
        self.surface.start_document();
        if let Some(frame) = self.stack.last_mut()
            && frame.expects_key()
        {
            frame.explicit_key = gap.question;
        }
        Ok(())
    }

    fn count(&mut self, weight: Weight, range: &Range<usize>) -> Result<(), Fault> {
        self.nodes += weight.nodes;
        if self.nodes > MAX_NODES {
            return Err(Fault::too_many_values(range.clone()));
        }
        if self.stack.len() + weight.height > MAX_DEPTH {
            return Err(Fault::too_deep(range.clone()));
        }
        Ok(())
    }

    fn alias(&mut self, id: usize, start: usize) -> Result<(), Fault> {
        self.approach(start)?;
        let name = self.surface.alias(start)?;
        let range = start..start + 1 + name.len();
        let Some((item, weight)) = self.anchors.get(&id) else {
            return Err(Fault::new(
                Rule::YamlLimit,
                range,
                format!(
                    "The alias `*{}` stands inside of the value that it names, which would never end.",
                    excerpt(name)
                ),
                "Write out what is meant.",
            ));
        };
        let (item, weight) = (item.clone(), *weight);
        self.count(weight, &range)?;
        self.alias_bytes = self.alias_bytes.saturating_add(weight.bytes);
        if self.alias_bytes > MAX_ALIAS_BYTES {
            return Err(Fault::new(
                Rule::YamlLimit,
                range,
                format!(
                    "With its aliases written out the file has more than {} MiB of text.",
                    MAX_ALIAS_BYTES >> 20
                ),
                "Use fewer aliases, or shorter texts behind them.",
            ));
        }
        self.push(item, weight, start, range.end, &range)
    }

    fn scalar(
        &mut self,
        value: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        events: Range<usize>,
    ) -> Result<(), Fault> {
        let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        let mut start = events.start;
        let mut properties = start..start;
        if anchor > 0 || tag.is_some() {
            self.approach(start)?;
            (properties.end, start) = self.surface.properties(start)?;
            if value.is_empty() && style == ScalarStyle::Plain {
                // What comes next is no part of an empty scalar.
                start = properties.end;
            }
        } else if !block {
            self.approach(start)?;
        }
        let mut text = value;
        let span = if block {
            let is_root = self.stack.is_empty();
            let (content, span) = self.surface.block_scalar(value, events.end, is_root)?;
            self.surface.start_document();
            text = content;
            span
        } else {
            let end = match style {
                ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => {
                    self.surface.quoted_end(start)
                }
                _ if value.is_empty() => start,
                _ => events.end,
            };
            self.surface.skip_to(end);
            start..end
        };
        if matches!(style, ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted) {
            let key = self.stack.last().is_some_and(Frame::expects_key);
            self.surface.quoted(&span, key)?;
        }
        let plain = style == ScalarStyle::Plain;
        if plain {
            let in_flow = self.stack.last().is_some_and(|frame| frame.flow);
            self.surface.plain(&span, in_flow)?;
        }
        if plain
            && value.is_empty()
            && tag.is_none()
            && anchor == 0
            && self
                .stack
                .last()
                .is_some_and(|frame| frame.expects_key() && !frame.explicit_key)
        {
            return Err(self.surface.empty_key(start));
        }
        let kind = scalar_type(tag, text, plain, &properties)?;
        let value = construct(kind, text).map_err(|wrong| {
            Fault::new(
                if wrong.limit {
                    Rule::YamlLimit
                } else {
                    Rule::YamlSyntax
                },
                span.clone(),
                format!(
                    "This value looks like {}, but {}.",
                    wrong.looks_like, wrong.but
                ),
                "Put it in quotes if it is text, else correct it.",
            )
        })?;
        let special = match kind {
            ScalarType::Merge => Special::Merge,
            ScalarType::Default => Special::Default,
            _ => Special::None,
        };
        let weight = Weight {
            nodes: 1,
            bytes: text.len(),
            height: 0,
        };
        self.count(weight, &span)?;
        let item = Item {
            node: Node {
                value,
                span: span.clone(),
            },
            special,
        };
        self.keep(anchor, &item, weight, &span)?;
        let first = events.start.min(span.start);
        self.push(item, weight, first, span.end, &span)
    }

    /// Keeps an anchored value for its aliases.
    fn keep(
        &mut self,
        anchor: usize,
        item: &Item,
        weight: Weight,
        range: &Range<usize>,
    ) -> Result<(), Fault> {
        if anchor == 0 {
            return Ok(());
        }
        self.anchored += weight.nodes;
        if self.anchored > MAX_NODES {
            return Err(Fault::too_many_values(range.clone()));
        }
        self.anchors.insert(anchor, (item.clone(), weight));
        Ok(())
    }

    /// Gives a finished value to the collection around it. `start` is that of its properties.
    fn push(
        &mut self,
        item: Item,
        weight: Weight,
        start: usize,
        end: usize,
        range: &Range<usize>,
    ) -> Result<(), Fault> {
        let Some(frame) = self.stack.last_mut() else {
            special_is_key(&item, range)?;
            self.root = Some(item);
            return Ok(());
        };
        if frame.expects_key() {
            if matches!(frame.kind, Collection::Pair) {
                special_is_key(&item, range)?;
            } else if KeyIdentity::new(&item.node.value).is_none() {
                return Err(Fault::syntax(
                    first_line(self.surface.text, range),
                    "A list or mapping can not be a key.",
                    "Put the key in quotes if it is text.",
                ));
            }
            if frame.flow && !frame.explicit_key {
                self.surface.implicit_key(start, end)?;
            }
        } else {
            special_is_key(&item, range)?;
        }
        frame.weight.add(weight);
        frame.end = end;
        frame.children.push(item);
        Ok(())
    }

    fn open(
        &mut self,
        sequence: bool,
        anchor: usize,
        tag: Option<&Tag>,
        events: Range<usize>,
    ) -> Result<(), Fault> {
        let start = events.start;
        self.approach(start)?;
        let (properties, content) = if anchor > 0 || tag.is_some() {
            self.surface.properties(start)?
        } else {
            (start, start)
        };
        let kind = collection(tag, sequence, start..properties)?;
        let kind = match (&kind, self.stack.last()) {
            (Collection::Map, Some(frame)) if matches!(frame.kind, Collection::Pairs) => {
                Collection::Pair
            }
            _ => kind,
        };
        // A block opens with an empty token, or before a dash.
        let opener = if sequence { b'[' } else { b'{' };
        let bracket =
            events.end > content && self.surface.text.as_bytes().get(content) == Some(&opener);
        let flow = bracket || self.stack.last().is_some_and(|frame| frame.flow);
        let weight = Weight {
            nodes: 1,
            bytes: 0,
            height: 1,
        };
        self.count(weight, &(start..content + usize::from(bracket)))?;
        if bracket {
            self.surface.skip_to(content + 1);
        }
        self.stack.push(Frame {
            kind,
            anchor,
            bracket,
            flow,
            start,
            content,
            end: content,
            explicit_key: false,
            children: Vec::new(),
            weight,
        });
        Ok(())
    }

    fn close(&mut self, at: usize) -> Result<(), Fault> {
        let Some(frame) = self.stack.pop() else {
            // The parser's events are balanced.
            return Ok(());
        };
        let end = if frame.bracket {
            self.surface.gap(at)?;
            self.surface.skip_to(at + 1);
            at + 1
        } else {
            frame.end
        };
        let span = frame.content..end.max(frame.content);
        let value = match frame.kind {
            Collection::Seq => {
                Yaml::Seq(frame.children.into_iter().map(|item| item.node).collect())
            }
            Collection::Pairs => Yaml::Pairs(pairs(frame.children)?),
            Collection::Pair => Yaml::Map(
                halves(frame.children)
                    .map(|(key, value)| (key.node, value.node))
                    .collect(),
            ),
            Collection::Map => Yaml::Map(self.mapping(frame.children, true)?),
            Collection::Set => {
                let entries = self.mapping(frame.children, false)?;
                Yaml::Set(entries.into_iter().map(|(key, _)| key).collect())
            }
        };
        let item = Item {
            node: Node {
                value,
                span: span.clone(),
            },
            special: Special::None,
        };
        self.keep(frame.anchor, &item, frame.weight, &span)?;
        // The collection itself was counted when it was opened.
        self.push(item, frame.weight, frame.start, span.end, &span)
    }

    /// The entries of a `dict`: merged ones first, then its own, as PyYAML flattens them.
    fn mapping(
        &mut self,
        children: Vec<Item>,
        tell_duplicates: bool,
    ) -> Result<Vec<(Node, Node)>, Fault> {
        let mut entries = Entries::default();
        let mut own = Vec::with_capacity(children.len() / 2);
        for (key, value) in halves(children) {
            if key.special == Special::Merge {
                merge(value, &mut entries)?;
            } else {
                own.push((key.node, value.node));
            }
        }
        for (key, value) in own {
            if let Some(first) = entries.insert(key, value, true)
                && tell_duplicates
            {
                self.duplicate_keys.push(first);
            }
        }
        Ok(entries.list)
    }
}

/// Keys and values in turn as pairs.
fn halves(children: Vec<Item>) -> impl Iterator<Item = (Item, Item)> {
    let mut children = children.into_iter();
    std::iter::from_fn(move || Some((children.next()?, children.next()?)))
}

/// Entries with Python's rules for equal keys: the first key stays, the last value wins.
#[derive(Default)]
struct Entries {
    list: Vec<(Node, Node)>,
    /// Place in the list, and whether the mapping's own key stands there already.
    index: BTreeMap<KeyIdentity, (usize, Option<Range<usize>>)>,
}

impl Entries {
    /// Gives both places when `own` meets another own key.
    fn insert(
        &mut self,
        key: Node,
        value: Node,
        own: bool,
    ) -> Option<(Range<usize>, Range<usize>)> {
        // Keys were found hashable when they were pushed.
        let identity = KeyIdentity::new(&key.value)?;
        let place = own.then(|| key.span.clone());
        match self.index.entry(identity) {
            Entry::Vacant(entry) => {
                entry.insert((self.list.len(), place));
                self.list.push((key, value));
                None
            }
            Entry::Occupied(mut entry) => {
                let (at, first) = entry.get_mut();
                if let Some((_, slot)) = self.list.get_mut(*at) {
                    *slot = value;
                }
                match (first.clone(), place) {
                    (Some(first), Some(second)) => Some((first, second)),
                    (None, place) => {
                        *first = place;
                        None
                    }
                    (Some(_), None) => None,
                }
            }
        }
    }
}

/// `<<: value`: of several mappings the first one wins.
fn merge(value: Item, entries: &mut Entries) -> Result<(), Fault> {
    let mappings = match value.node.value {
        Yaml::Map(_) => vec![value.node],
        Yaml::Seq(items) => items,
        _ => return Err(no_merge(value.node.span)),
    };
    for mapping in mappings.into_iter().rev() {
        let Yaml::Map(merged) = mapping.value else {
            return Err(no_merge(mapping.span));
        };
        for (key, value) in merged {
            entries.insert(key, value, false);
        }
    }
    Ok(())
}

fn no_merge(range: Range<usize>) -> Fault {
    Fault::syntax(
        range,
        "`<<` merges mappings, and this is none.",
        "Name a mapping or a list of mappings; put the key in quotes if it is meant as text.",
    )
}

/// The items of `!!omap` or `!!pairs`.
fn pairs(children: Vec<Item>) -> Result<Vec<(Node, Node)>, Fault> {
    let mut pairs = Vec::with_capacity(children.len());
    for item in children {
        let range = item.node.span;
        match item.node.value {
            Yaml::Map(mut entries) if entries.len() == 1 => pairs.extend(entries.pop()),
            _ => {
                return Err(Fault::syntax(
                    range,
                    "Every item of `!!omap` and `!!pairs` must be one `key: value`.",
                    "Correct the item, or remove the tag.",
                ));
            }
        }
    }
    Ok(pairs)
}

/// `<<` and `=` can only be keys.
fn special_is_key(item: &Item, range: &Range<usize>) -> Result<(), Fault> {
    let text = match item.special {
        Special::None => return Ok(()),
        Special::Merge => "<<",
        Special::Default => "=",
    };
    Err(Fault::syntax(
        range.clone(),
        format!("`{text}` without quotes has a meaning of its own in YAML, and none here."),
        format!("Put it in quotes: \"{text}\""),
    ))
}

/// The first line of `range`.
fn first_line(text: &str, range: &Range<usize>) -> Range<usize> {
    let line = text.get(range.clone()).unwrap_or_default();
    let length = line.find(['\n', '\r']).unwrap_or(line.len());
    range.start..range.start + length
}

fn unsupported(tag: Option<&Tag>, range: Range<usize>) -> Fault {
    let full = tag.map_or_else(String::new, |tag| format!("{}{}", tag.handle, tag.suffix));
    let name = match full.strip_prefix(CORE) {
        Some(name) => format!("!!{name}"),
        None => full,
    };
    Fault::new(
        Rule::YamlTag,
        range,
        format!("The tag `{}` is not supported here.", excerpt(&name)),
        "Remove the tag; where the text only starts with `!`, put it in quotes.",
    )
}

/// The name of a core tag; `!` is none and asks for what the text looks like.
fn core_name<'t>(tag: Option<&'t Tag>, range: &Range<usize>) -> Result<Option<&'t str>, Fault> {
    let Some(tag) = tag else {
        return Ok(None);
    };
    // A tag has the prefix in its handle, one written in full has all in its suffix.
    if tag.handle.is_empty() && tag.suffix == "!" {
        return Ok(Some("!"));
    }
    if tag.handle == CORE {
        return Ok(Some(&tag.suffix));
    }
    if tag.handle.is_empty()
        && let Some(name) = tag.suffix.strip_prefix(CORE)
    {
        return Ok(Some(name));
    }
    Err(unsupported(Some(tag), range.clone()))
}

fn scalar_type(
    tag: Option<&Tag>,
    text: &str,
    plain: bool,
    range: &Range<usize>,
) -> Result<ScalarType, Fault> {
    Ok(match core_name(tag, range)? {
        None if plain => resolve(text),
        None | Some("str") => ScalarType::Str,
        Some("!") => resolve(text),
        Some("null") => ScalarType::Null,
        Some("bool") => ScalarType::Bool,
        Some("int") => ScalarType::Int,
        Some("float") => ScalarType::Float,
        Some("timestamp") => ScalarType::Timestamp,
        Some("binary") => ScalarType::Binary,
        Some("merge") => ScalarType::Merge,
        Some("value") => ScalarType::Default,
        Some(_) => return Err(unsupported(tag, range.clone())),
    })
}

fn collection(tag: Option<&Tag>, sequence: bool, range: Range<usize>) -> Result<Collection, Fault> {
    Ok(match (core_name(tag, &range)?, sequence) {
        (None | Some("!" | "seq"), true) => Collection::Seq,
        (Some("omap" | "pairs"), true) => Collection::Pairs,
        (None | Some("!" | "map"), false) => Collection::Map,
        (Some("set"), false) => Collection::Set,
        _ => return Err(unsupported(tag, range)),
    })
}
