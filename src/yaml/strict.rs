//! Where `saphyr-parser` (YAML 1.2) and PyYAML's `SafeLoader` (YAML 1.1, the pure Python loader)
//! part: what only one of them accepts is refused here, with a way to write it that both read.
//!
//! [`Surface`] follows the events through the text. What lies between two scalars is white space,
//! comments, indicators and properties; most differences show there.

use std::collections::BTreeSet;
use std::ops::Range;

use saphyr_parser::ScanError;

use super::{Fault, MAX_BYTES};
use crate::diag::Rule;

/// PyYAML looks for the colon of a key within so many characters.
const MAX_KEY_CHARS: usize = 1024;

/// Refuses what PyYAML's reader refuses, and line breaks that only YAML 1.1 knows.
pub(super) fn check_text(text: &str) -> Result<(), Fault> {
    if text.len() > MAX_BYTES {
        return Err(Fault::new(
            Rule::TooLarge,
            0..0,
            format!("The file is larger than {} MiB.", MAX_BYTES >> 20),
            "Put large texts into files of their own and name these.",
        ));
    }
    let plain = |byte: u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~');
    if text.bytes().all(plain) {
        return check_flow(text);
    }
    for (offset, letter) in text.char_indices() {
        let accepted = matches!(
            letter,
            '\t' | '\n' | '\r' | ' '..='~' | '\u{A0}'..='\u{FFFD}' | '\u{10000}'..
        );
        if !accepted {
            return Err(refused_letter(offset, letter));
        }
    }
    check_flow(text)
}

/// As much of `text` as a message can hold.
pub(super) fn excerpt(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None if line.len() < text.len() => format!("{line}…"),
        None => line.to_owned(),
    }
}

fn refused_letter(offset: usize, letter: char) -> Fault {
    let code = u32::from(letter);
    let escape = if code > 0xFF {
        format!("\\u{code:04x}")
    } else {
        format!("\\x{code:02x}")
    };
    Fault::syntax(
        offset..offset + letter.len_utf8(),
        format!("The character U+{code:04X} can not stand here as it is."),
        format!("Remove it, or write {escape} between double quotes."),
    )
}

/// Indicators that a plain scalar never starts with for PyYAML.
const PLAIN_NEVER_STARTS_WITH: [char; 15] = [
    ',', '[', ']', '{', '}', '#', '&', '*', '!', '|', '>', '\'', '"', '%', '@',
];

/// Line breaks of YAML 1.1 that YAML 1.2 takes for letters.
const SEPARATORS: [char; 2] = ['\u{2028}', '\u{2029}'];

/// The parser holds all of a `[…]` or `{…}` until its end, so one that can only break the limit on
/// values is refused before. Counts in texts that hold brackets too, but there they pair off.
fn check_flow(text: &str) -> Result<(), Fault> {
    if text.len() < super::MAX_NODES {
        return Ok(());
    }
    let (mut depth, mut commas) = (0_usize, 0_usize);
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth > 0 => commas += 1,
            _ => {}
        }
        if depth == 0 {
            commas = 0;
        }
        if commas > super::MAX_NODES {
            return Err(Fault::too_many_values(offset..offset + 1));
        }
    }
    Ok(())
}

/// What was seen between two nodes.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Gap {
    /// A `?`, which makes the next node an explicit key.
    pub(super) question: bool,
}

/// The text, read up to `cursor`.
pub(super) struct Surface<'s> {
    pub(super) text: &'s str,
    start: usize,
    cursor: usize,
    anchors: BTreeSet<&'s str>,
    started: bool,
}

impl<'s> Surface<'s> {
    pub(super) fn new(text: &'s str, start: usize) -> Self {
        Self {
            text,
            start,
            cursor: start,
            anchors: BTreeSet::new(),
            started: false,
        }
    }

    /// The byte at `offset`; NUL, which is no YAML, at the end.
    fn at(&self, offset: usize) -> u8 {
        self.text.as_bytes().get(offset).copied().unwrap_or(0)
    }

    /// Goes on behind a node.
    pub(super) fn skip_to(&mut self, offset: usize) {
        self.cursor = self.cursor.max(offset);
    }

    /// Tells that a node or `---` was reached, so that directives are past.
    pub(super) fn start_document(&mut self) {
        self.started = true;
    }

    /// Reads what stands before the node at `end`.
    pub(super) fn gap(&mut self, end: usize) -> Result<Gap, Fault> {
        let mut gap = Gap::default();
        while self.cursor < end {
            let at = self.cursor;
            let line_start = at == self.start || matches!(self.at(at - 1), b'\n' | b'\r');
            match self.at(at) {
                b'#' => self.skip_comment()?,
                b'\t' => return Err(tab(at)),
                b'?' => {
                    gap.question = true;
                    self.cursor += 1;
                }
                b'%' if line_start => {
                    self.directive(at)?;
                    self.cursor = self.line_end(at);
                }
                b'.' if !self.started => {
                    return Err(Fault::syntax(
                        at..at + 3,
                        "`...` ends a document that has not begun.",
                        "Remove the line.",
                    ));
                }
                0xEF => {
                    return Err(Fault::syntax(
                        at..at + 3,
                        "A byte order mark (U+FEFF) can stand only at the start of the file.",
                        "Remove it.",
                    ));
                }
                _ => self.cursor += 1,
            }
        }
        Ok(gap)
    }

    /// Skips the comment at the cursor.
    fn skip_comment(&mut self) -> Result<(), Fault> {
        let start = self.cursor;
        self.cursor = self.line_end(start);
        self.no_separator(start..self.cursor)
    }

    fn line_end(&self, from: usize) -> usize {
        let rest = self.text.as_bytes().get(from..).unwrap_or_default();
        from + rest
            .iter()
            .position(|byte| matches!(byte, b'\n' | b'\r'))
            .unwrap_or(rest.len())
    }

    /// `%YAML 1.x` is ignored by PyYAML, `%TAG` obeyed by both, other names ignored.
    fn directive(&self, at: usize) -> Result<(), Fault> {
        let range = at..self.line_end(at);
        let line = self.text.get(range.clone()).unwrap_or_default();
        if line.contains('\t') {
            return Err(tab(at + line.find('\t').unwrap_or(0)));
        }
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let known = match words.next() {
            _ if self.started => false,
            Some("%YAML") => words.next().is_some_and(|version| {
                version.strip_prefix("1.").is_some_and(|minor| {
                    !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit())
                })
            }),
            Some(name) => {
                name.len() > 1
                    && name
                        .bytes()
                        .skip(1)
                        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            }
            None => false,
        };
        if known {
            return Ok(());
        }
        Err(Fault::syntax(
            range,
            format!("The directive `{}` is not supported.", excerpt(line)),
            "Remove the line.",
        ))
    }

    /// Reads anchor and tag of the node at `start`; gives where they end, and where the node itself
    /// begins.
    pub(super) fn properties(&mut self, start: usize) -> Result<(usize, usize), Fault> {
        self.skip_to(start);
        let mut end = start;
        loop {
            let at = self.cursor;
            match self.at(at) {
                b'&' => {
                    let name = self.name(at)?;
                    if !self.anchors.insert(name) {
                        return Err(Fault::syntax(
                            at..self.cursor,
                            format!("The anchor `&{}` is given twice.", excerpt(name)),
                            "Give one of them another name.",
                        ));
                    }
                }
                b'!' => {
                    let rest = self.text.get(at..).unwrap_or_default();
                    let ends = |letter: char| matches!(letter, ' ' | '\t' | '\r' | '\n');
                    let length = rest.find(ends).unwrap_or(rest.len());
                    let tag = &rest[..length];
                    let verbatim = tag.starts_with("!<");
                    if (verbatim && !tag.ends_with('>'))
                        || (!verbatim && tag.contains([',', '[', ']', '{', '}']))
                    {
                        return Err(Fault::syntax(
                            at..at + length,
                            format!(
                                "The tag `{}` does not end before an indicator.",
                                excerpt(tag)
                            ),
                            "Put a space behind the tag.",
                        ));
                    }
                    self.cursor = at + length;
                }
                _ => return Ok((end, at)),
            }
            end = self.cursor;
            self.blank()?;
        }
    }

    /// Checks the name of the alias at `start`.
    pub(super) fn alias(&mut self, start: usize) -> Result<&'s str, Fault> {
        self.skip_to(start);
        self.name(start)
    }

    /// The name behind `&` or `*`, in PyYAML's letters.
    fn name(&mut self, start: usize) -> Result<&'s str, Fault> {
        let rest = self.text.get(start + 1..).unwrap_or_default();
        let ends = |letter: char| matches!(letter, ' ' | '\t' | '\r' | '\n' | ',' | ']' | '}');
        let length = rest.find(ends).unwrap_or(rest.len());
        let name = &rest[..length];
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || !name.bytes().all(fits) {
            return Err(Fault::syntax(
                start..start + 1 + length,
                format!("`{}` is no name for an anchor.", excerpt(name)),
                "Use letters, digits, `-` and `_`, and put a space behind the name.",
            ));
        }
        self.cursor = start + 1 + length;
        Ok(name)
    }

    /// Skips white space and comments.
    fn blank(&mut self) -> Result<(), Fault> {
        loop {
            match self.at(self.cursor) {
                b' ' | b'\n' | b'\r' => self.cursor += 1,
                b'#' => self.skip_comment()?,
                b'\t' => return Err(tab(self.cursor)),
                _ => return Ok(()),
            }
        }
    }

    /// The end of the quoted scalar at `start`: the parser's own end includes a comment behind it.
    pub(super) fn quoted_end(&self, start: usize) -> usize {
        let quote = self.at(start);
        let bytes = self.text.as_bytes();
        let mut at = start + 1;
        while let Some(&byte) = bytes.get(at) {
            if byte == b'\\' && quote == b'"' {
                at += 1;
            } else if byte == quote {
                if quote == b'\'' && self.at(at + 1) == b'\'' {
                    at += 1;
                } else {
                    return at + 1;
                }
            }
            at += 1;
        }
        bytes.len()
    }

    /// Refuses U+2028 and U+2029, which end a line for PyYAML.
    fn no_separator(&self, range: Range<usize>) -> Result<(), Fault> {
        let text = self.text.get(range.clone()).unwrap_or_default();
        match text
            .char_indices()
            .find(|(_, letter)| SEPARATORS.contains(letter))
        {
            Some((offset, letter)) => Err(refused_letter(range.start + offset, letter)),
            None => Ok(()),
        }
    }

    /// Refuses separators in the quoted scalar `span`, a key or not, except where they come out the
    /// same: in a value, away from white space.
    pub(super) fn quoted(&self, span: &Range<usize>, key: bool) -> Result<(), Fault> {
        let text = self.text.get(span.clone()).unwrap_or_default();
        for (offset, separator) in text.match_indices(SEPARATORS) {
            let blank = |letter: char| letter.is_whitespace() || matches!(letter, '-' | '.');
            let (before, after) = (&text[..offset], &text[offset + separator.len()..]);
            if key || before.ends_with(blank) || after.starts_with(blank) {
                let at = span.start + offset;
                return self.no_separator(at..at + separator.len());
            }
        }
        Ok(())
    }

    /// Refuses what PyYAML reads otherwise in a plain scalar, `in_flow` between brackets.
    pub(super) fn plain(&self, span: &Range<usize>, in_flow: bool) -> Result<(), Fault> {
        let text = self.text.get(span.clone()).unwrap_or_default();
        if let Some(offset) = text.find('\t') {
            return Err(tab(span.start + offset));
        }
        self.no_separator(span.clone())?;
        if text.starts_with(PLAIN_NEVER_STARTS_WITH) {
            return Err(Fault::syntax(
                span.start..span.start + 1,
                "A value can not start with this character.",
                "Put the value in quotes.",
            ));
        }
        if in_flow && (text.starts_with(':') || text.contains('?')) {
            return Err(Fault::syntax(
                span.clone(),
                format!(
                    "`{}` can not stand between brackets without quotes.",
                    excerpt(text)
                ),
                "Put it in quotes.",
            ));
        }
        Ok(())
    }

    /// Refuses a key without `?` that PyYAML would not take for one: over lines, or too long. `start`
    /// and `end` are those of the key, with its properties.
    pub(super) fn implicit_key(&self, start: usize, end: usize) -> Result<(), Fault> {
        let mut at = end;
        loop {
            match self.at(at) {
                b' ' | b'\n' | b'\r' => at += 1,
                b'#' => at = self.line_end(at),
                b':' => break,
                _ => return Ok(()),
            }
        }
        let key = self.text.get(start..at).unwrap_or_default();
        let range = start..end;
        if key.contains(['\n', '\r']) {
            return Err(Fault::syntax(
                range,
                "A key and its colon must stand on one line.",
                "Join the lines.",
            ));
        }
        if key.len() > MAX_KEY_CHARS && key.chars().count() > MAX_KEY_CHARS {
            return Err(Fault::syntax(
                range,
                format!("A key is longer than {MAX_KEY_CHARS} characters."),
                "Shorten it, or put `? ` before it and the colon on a line of its own.",
            ));
        }
        Ok(())
    }

    /// Refuses a colon without a key before it.
    pub(super) fn empty_key(&self, at: usize) -> Fault {
        Fault::syntax(
            at..at + usize::from(self.at(at) == b':'),
            "A key is missing before the colon.",
            "Write the key, or \"\" for an empty one.",
        )
    }

    /// The content of the block scalar that ends at `end` as PyYAML reads it, and its bytes.
    pub(super) fn block_scalar<'v>(
        &mut self,
        value: &'v str,
        end: usize,
        is_root: bool,
    ) -> Result<(&'v str, Range<usize>), Fault> {
        while !matches!(self.at(self.cursor), b'|' | b'>') && self.cursor < end {
            if self.at(self.cursor) == b'#' {
                self.skip_comment()?;
            } else {
                self.gap(self.cursor + 1)?;
            }
        }
        let start = self.cursor;
        let header_end = self.line_end(start);
        let header = self.text.get(start..header_end).unwrap_or_default();
        let indicators = header
            .find('#')
            .map_or(header, |comment| &header[..comment]);
        if let Some(offset) = indicators.find('\t') {
            return Err(tab(start + offset));
        }
        self.skip_to(end.max(header_end));
        self.no_separator(start..end.max(header_end))?;
        let body = self.text.get(header_end..).unwrap_or_default();
        let within = self.text.get(header_end..end).unwrap_or_default();
        let first = within.trim_start_matches([' ', '\n', '\r']);
        if is_root
            && !first.is_empty()
            && within[..within.len() - first.len()].ends_with(['\n', '\r'])
        {
            let at = end - first.len();
            return Err(Fault::syntax(
                letter_at(self.text, at),
                "The text of a block must be indented.",
                "Indent its lines by two spaces.",
            ));
        }
        let unterminated = end >= self.text.len() && !body.ends_with(['\n', '\r']);
        let value = if unterminated && !indicators.contains('-') && adds_line_break(body, value) {
            value.strip_suffix('\n').unwrap_or(value)
        } else {
            value
        };
        Ok((value, start..end.min(self.text.len())))
    }
}

/// Whether the parser ended `value` with a line break that the text does not have. It does when the
/// last line, without a line break itself, reaches the indentation of the block scalar.
fn adds_line_break(body: &str, value: &str) -> bool {
    let blank = |letter: char| matches!(letter, ' ' | '\n' | '\r');
    let lines = |text: &str| text.rfind(['\n', '\r']).map_or(0, |newline| newline + 1);
    let last = &body[lines(body)..];
    if !last.trim_matches(' ').is_empty() {
        return true;
    }
    // The first letter has its indentation in the text, and what is more than that in the value.
    match (
        body.find(|letter| !blank(letter)),
        value.find(|letter| !blank(letter)),
    ) {
        (Some(in_body), Some(in_value)) => {
            let column = in_body - lines(&body[..in_body]);
            let content = in_value - lines(&value[..in_value]);
            last.len() >= column.saturating_sub(content).max(1)
        }
        _ => value.contains(' ') || body.matches('\n').count().max(body.matches('\r').count()) == 1,
    }
}

/// The letter at `offset`; nothing at the end of a line.
fn letter_at(text: &str, offset: usize) -> Range<usize> {
    let letter = text.get(offset..).and_then(|rest| rest.chars().next());
    let length = letter
        .filter(|letter| !matches!(letter, '\n' | '\r'))
        .map_or(0, char::len_utf8);
    offset..offset + length
}

/// The last line of `text` that says something, without the space around it.
fn last_line(text: &str) -> Option<Range<usize>> {
    let mut end = text.len();
    for line in text.split_inclusive('\n').rev() {
        let start = end - line.len();
        let said = line.trim();
        if !said.is_empty() && !said.starts_with('#') {
            let start = start + (line.len() - line.trim_start().len());
            return Some(start..start + said.len());
        }
        end = start;
    }
    None
}

fn tab(at: usize) -> Fault {
    Fault::syntax(
        at..at + 1,
        "A tab can not separate or indent anything in YAML.",
        "Use spaces; where the tab belongs to a value, put the value in quotes.",
    )
}

/// The parser's own finding, in the user's words.
pub(super) fn scan_error(error: &ScanError, text: &str, offset: usize) -> Fault {
    let byte = |at: usize| text.as_bytes().get(at).copied();
    if byte(offset) == Some(b'\t') {
        return tab(offset);
    }
    if let Some(before) = offset.checked_sub(1)
        && byte(before) == Some(b'\t')
    {
        return tab(before);
    }
    let mut range = letter_at(text, offset);
    if error.info().starts_with("simple key expect") {
        // The parser is where it missed the colon: behind that line.
        range = last_line(text.get(..offset).unwrap_or_default()).unwrap_or(range);
    }
    let (message, help) = match error.info() {
        "recursion limit exceeded" => {
            return Fault::too_deep(range);
        }
        "while parsing node, found unknown anchor" => (
            "The alias names an anchor that does not exist.",
            "Define it before with `&name`; where the text only starts with `*`, put it in quotes. Before a colon the alias needs a space.",
        ),
        "invalid indentation in quoted scalar" => (
            "A quoted text goes on in a line that is not indented enough.",
            "Indent its lines further than the key.",
        ),
        "invalid indentation" | "invalid indentation in flow construct" => (
            "A line between brackets is not indented enough.",
            "Indent it further than the key.",
        ),
        "comments must be separated from other tokens by whitespace" => (
            "A comment starts without a space before its `#`.",
            "Put a space before the `#`.",
        ),
        "mapping values are not allowed in this context" => (
            "A colon can not stand here.",
            "Put a text that holds `: ` in quotes; else check the indentation.",
        ),
        "simple key expect ':'" | "simple key expected" => (
            "A line is no `key: value` although its neighbours are.",
            "Add the colon and a space behind it, or indent the line if it continues the one before.",
        ),
        "while scanning a quoted scalar, found unexpected end of stream" => {
            ("A quoted text has no end.", "Add the closing quote.")
        }
        "while scanning a quoted scalar, found unexpected document indicator" => (
            "A quoted text has a line that starts with `---` or `...`.",
            "Add the closing quote before it, or indent the line.",
        ),
        "while parsing a quoted scalar, found unknown escape character" => (
            "A backslash between double quotes is followed by no known escape.",
            "Write \\\\ for a backslash, or use single quotes.",
        ),
        "while parsing a quoted scalar, found invalid Unicode character escape code" => (
            "An escape between double quotes is no character.",
            "Write the character itself, or one \\U escape with eight digits instead of two \\u.",
        ),
        "while parsing a flow sequence, expected ',' or ']'" => (
            "A list between brackets lacks a `,` or `]` here.",
            "Add it; put texts that hold brackets, braces or commas in quotes.",
        ),
        "while parsing a flow mapping, did not find expected ',' or '}'" => (
            "A mapping between braces lacks a `,` or `}` here.",
            "Add it; put texts that hold brackets, braces or commas in quotes.",
        ),
        "while parsing a block mapping, did not find expected key" => (
            "A key is expected here.",
            "Check the indentation: all keys of a mapping start in one column.",
        ),
        "while parsing a block collection, did not find expected '-' indicator" => (
            "A `-` is expected here.",
            "Check the indentation: all dashes of a list stand in one column.",
        ),
        "block sequence entries are not allowed in this context" => (
            "A list can not start here.",
            "Start it on a line of its own, or put the text in quotes.",
        ),
        "a byte order mark must not appear inside a document" => (
            "A byte order mark (U+FEFF) can not stand here.",
            "Remove it, or write \\uFEFF between double quotes.",
        ),
        "the handle wasn't declared" => {
            return Fault::new(
                Rule::YamlTag,
                range,
                "The tag's prefix is not declared.",
                "Remove the tag.",
            );
        }
        "wrongly indented line in block scalar" => (
            "A block of text starts with blank lines that are indented further than the text.",
            "Remove the spaces from the blank lines.",
        ),
        "plain scalar cannot start with '-' followed by ,[]{}" => (
            "A lone dash can not stand between brackets.",
            "Put it in quotes: \"-\"",
        ),
        info if info.contains("tab") => return tab(offset),
        info if info.starts_with("unexpected character") => (
            "A value can not start with this character.",
            "Put the value in quotes.",
        ),
        info => {
            return Fault::syntax(
                range,
                format!("The YAML is not valid: {info}."),
                "Mend the file at this place.",
            );
        }
    };
    Fault::syntax(range, message, help)
}
