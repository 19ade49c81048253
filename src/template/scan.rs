//! The words of a Jinja template, without its grammar.
//!
//! The engine does not tell which keys a template asks for, nor which escapes a string has, so
//! this cuts the code between the marks into names, strings and single characters.

use std::ops::Range;

/// One word of the code in a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word<'a> {
    Name(&'a str),
    /// What stands between the quotes.
    Text(&'a str),
    Mark(char),
    /// The end of the code: before the mark, white space control included.
    End,
}

/// The words between `{{ }}` and `{% %}` with the byte where each starts; comments, raw blocks
/// and everything outside left out.
pub(super) fn words(template: &str) -> Vec<(usize, Word<'_>)> {
    let mut words = Vec::new();
    let mut at = 0;
    while let Some((open, kind)) = next_mark(template, at) {
        let start = open + 2;
        if kind == '#' {
            at = find(template, start, "#}").map_or(template.len(), |end| end + 2);
            continue;
        }
        let first = words.len();
        at = code(
            template,
            start,
            if kind == '{' { "}}" } else { "%}" },
            &mut words,
        );
        if let [(_, Word::Name("raw")), _] = words[first..] {
            words.truncate(first);
            at = end_of_raw(template, at);
        }
    }
    words
}

/// The next `{{`, `{%` or `{#`.
fn next_mark(template: &str, from: usize) -> Option<(usize, char)> {
    let rest = template.get(from..)?;
    rest.match_indices('{').find_map(|(open, _)| {
        let kind = rest.get(open + 1..)?.chars().next()?;
        "{%#".contains(kind).then_some((from + open, kind))
    })
}

fn find(template: &str, from: usize, pattern: &str) -> Option<usize> {
    Some(from + template.get(from..)?.find(pattern)?)
}

fn end_of_raw(template: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(open) = find(template, at, "{%") {
        at = open + 2;
        let tag = template.get(at..).unwrap_or_default();
        if tag
            .trim_start_matches(['-', '+'])
            .trim_start()
            .starts_with("endraw")
        {
            return find(template, at, "%}").map_or(template.len(), |end| end + 2);
        }
    }
    template.len()
}

/// Reads code up to `close` and gives the byte behind it.
fn code<'a>(
    template: &'a str,
    from: usize,
    close: &str,
    words: &mut Vec<(usize, Word<'a>)>,
) -> usize {
    let mut at = from;
    // A closing mark inside of brackets is none: `{{ {'a': {}}}}`.
    let mut braces = 0_usize;
    while let Some(rest) = template.get(at..)
        && let Some(character) = rest.chars().next()
    {
        if braces == 0 {
            // White space control belongs to the mark.
            let mark = rest.strip_prefix(['-', '+']).filter(|_| at != from);
            let mark = mark.filter(|mark| mark.starts_with(close)).unwrap_or(rest);
            if mark.starts_with(close) {
                words.push((at, Word::End));
                return at + (rest.len() - mark.len()) + close.len();
            }
        }
        let length = match character {
            '"' | '\'' => {
                let length = string_length(rest, character);
                let text = rest.get(1..length.saturating_sub(1)).unwrap_or_default();
                words.push((at, Word::Text(text)));
                length
            }
            _ if is_name(character) => {
                let after_dot = matches!(words.last(), Some((_, Word::Mark('.'))));
                let length = name_length(rest, after_dot);
                words.push((at, Word::Name(rest.get(..length).unwrap_or_default())));
                length
            }
            // White space control belongs to the marks.
            '-' | '+' if at == from => 1,
            _ => {
                match character {
                    '{' => braces += 1,
                    '}' => braces = braces.saturating_sub(1),
                    _ => {}
                }
                if !character.is_whitespace() {
                    words.push((at, Word::Mark(character)));
                }
                character.len_utf8()
            }
        };
        at += length;
    }
    template.len()
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The length of a name or number; a number may have a point and an exponent.
fn name_length(text: &str, after_dot: bool) -> usize {
    let run = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        from + rest.find(|next| !is_name(next)).unwrap_or(rest.len())
    };
    let digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let mut end = run(0);
    if !digit(0) {
        return end;
    }
    if !after_dot && text.as_bytes().get(end) == Some(&b'.') && digit(end + 1) {
        end = run(end + 1);
    }
    let number = text.get(..end).unwrap_or_default();
    let exponent = number.ends_with(['e', 'E']) && !number.starts_with("0x");
    if exponent && matches!(text.as_bytes().get(end), Some(b'-' | b'+')) && digit(end + 1) {
        end = run(end + 1);
    }
    end
}

/// The length of a string with its quotes; up to the end when it is not closed.
fn string_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (index, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return index + 1,
            _ => {}
        }
    }
    text.len()
}

/// The first escape in a string that the engine reads in another way than Python.
pub(super) fn strange_escape(words: &[(usize, Word<'_>)]) -> Option<Range<usize>> {
    words.iter().find_map(|(start, word)| {
        let Word::Text(text) = word else {
            return None;
        };
        let mut characters = text.char_indices();
        while let Some((index, character)) = characters.next() {
            if character == '\\'
                && let Some((_, escaped)) = characters.next()
                && "/av\nUN".contains(escaped)
            {
                let at = start + 1 + index;
                return Some(at..at + 1 + escaped.len_utf8());
            }
        }
        None
    })
}

/// What must be put in so that the engine does as Python does: bytes of the template, rising.
///
/// `a ~ b` becomes `(a)|string ~ (b)|string`, since the engine prints some values in another way;
/// `for x in a` becomes `for x in (a)|_each`, since it takes null for an empty list and does not
/// know where the last character of a string is.
pub(super) fn rewritings(words: &[(usize, Word<'_>)]) -> Vec<(usize, &'static str)> {
    let partners = partners(words);
    let mut places = Vec::new();
    let mut put_in = |from: usize, to: usize, filter| {
        if let (Some((start, _)), Some((end, _))) = (words.get(from), words.get(to))
            && from < to
        {
            places.push((*start, "("));
            places.push((*end, filter));
        }
    };
    for (index, (_, word)) in words.iter().enumerate() {
        if *word != Word::Mark('~') {
            continue;
        }
        let start = start_of_operand(words, &partners, index);
        // The left operand of a second `~` is the right one of the first.
        let joined_before = start.checked_sub(1).and_then(|before| words.get(before));
        if joined_before.is_none_or(|(_, word)| *word != Word::Mark('~')) {
            put_in(start, index, ")|string ");
        }
        let end = end_of_operand(words, &partners, index + 1);
        put_in(index + 1, end, ")|string ");
    }
    for (index, (_, word)) in words.iter().enumerate() {
        let begins = index
            .checked_sub(1)
            .is_none_or(|before| words[before].1 == Word::End);
        if *word != Word::Name("for") || !begins {
            continue;
        }
        let until = |from: usize, ends: &[Word<'_>]| {
            let mut at = from;
            while let Some((_, word)) = words.get(at)
                && *word != Word::End
                && !ends.contains(word)
            {
                at = partners[at].map_or(at, |partner| partner.max(at)) + 1;
            }
            at
        };
        let start = until(index, &[Word::Name("in")]) + 1;
        let end = until(start, &[Word::Name("if"), Word::Name("recursive")]);
        put_in(start, end, ")|_each ");
    }
    // Of two things put in at one place, the inner one was found first.
    places.sort_by_key(|(place, _)| *place);
    places
}

/// The other half of each bracket.
fn partners(words: &[(usize, Word<'_>)]) -> Vec<Option<usize>> {
    let mut partners = vec![None; words.len()];
    let mut open = Vec::new();
    for (index, (_, word)) in words.iter().enumerate() {
        match word {
            Word::Mark('(' | '[' | '{') => open.push(index),
            Word::Mark(')' | ']' | '}') => {
                if let Some(partner) = open.pop() {
                    partners[index] = Some(partner);
                    partners[partner] = Some(index);
                }
            }
            Word::End => open.clear(),
            _ => {}
        }
    }
    partners
}

/// Words that end an operand of `~`.
fn is_border(word: Word<'_>) -> bool {
    match word {
        Word::Mark(mark) => ",:~=<>!".contains(mark),
        Word::Name(name) => {
            ["and", "elif", "else", "if", "in", "not", "or", "recursive"].contains(&name)
        }
        Word::End => true,
        Word::Text(_) => false,
    }
}

/// Where the operand starts that ends before the word `end`.
fn start_of_operand(words: &[(usize, Word<'_>)], partners: &[Option<usize>], end: usize) -> usize {
    let word = |index: usize| words.get(index).map_or(Word::End, |(_, word)| *word);
    let mut start = end;
    while let Some(index) = start.checked_sub(1) {
        let earlier = index.checked_sub(1).map_or(Word::End, word);
        match word(index) {
            Word::Mark(')' | ']' | '}') => {
                start = partners[index].unwrap_or(index);
                continue;
            }
            Word::Mark('(' | '[' | '{') => break,
            // Two operands are added; one has a sign.
            Word::Mark('+' | '-') => match earlier {
                Word::Mark(')' | ']' | '}') => break,
                Word::Mark(_) => {}
                earlier if is_border(earlier) => {}
                _ => break,
            },
            // `is not none`, `is in list`
            Word::Name("not" | "in") if earlier == Word::Name("is") => {}
            word if is_border(word) => break,
            _ => {}
        }
        start = index;
    }
    start
}

/// The word behind the operand that starts here: values with signs and what is appended to them,
/// multiplied and divided.
fn end_of_operand(words: &[(usize, Word<'_>)], partners: &[Option<usize>], from: usize) -> usize {
    let word = |at: usize| words.get(at).map(|(_, word)| *word);
    let mut at = from;
    loop {
        while matches!(word(at), Some(Word::Mark('-' | '+' | '*' | '/' | '%'))) {
            at += 1;
        }
        at = end_of_value(words, partners, at);
        loop {
            at = match word(at) {
                Some(Word::Mark('(' | '[')) => end_of_value(words, partners, at),
                Some(Word::Mark('.' | '|')) => at + 2,
                Some(Word::Name("is")) => {
                    at += 1 + usize::from(word(at + 1) == Some(Word::Name("not")));
                    // The name of the test, and an argument without parentheses.
                    at += 1;
                    match word(at) {
                        Some(Word::Name(name)) if !is_border(Word::Name(name)) && name != "is" => {
                            at + 1
                        }
                        Some(Word::Text(_) | Word::Mark('[' | '{')) => {
                            end_of_value(words, partners, at)
                        }
                        _ => at,
                    }
                }
                _ => break,
            };
        }
        if !matches!(word(at), Some(Word::Mark('*' | '/' | '%'))) {
            return at;
        }
    }
}

/// The word behind a name, strings side by side, or a bracket and all up to its other half.
fn end_of_value(words: &[(usize, Word<'_>)], partners: &[Option<usize>], from: usize) -> usize {
    let word = |at: usize| words.get(at).map(|(_, word)| *word);
    match word(from) {
        None | Some(Word::End) => from,
        Some(Word::Text(_)) => {
            let mut at = from;
            while matches!(word(at), Some(Word::Text(_))) {
                at += 1;
            }
            at
        }
        Some(_) => partners[from].map_or(from, |partner| partner.max(from)) + 1,
    }
}

/// Code with more words than this is refused.
const MAX_WORDS: usize = 10_000;

/// The first piece of code that is too long.
pub(super) fn long_code(words: &[(usize, Word<'_>)]) -> Option<Range<usize>> {
    words
        .split_inclusive(|(_, word)| *word == Word::End)
        .find(|code| code.len() > MAX_WORDS)
        .and_then(|code| Some(code.first()?.0..code.last()?.0))
}

/// `.cycle()` without arguments, which the engine divides by.
pub(super) fn empty_cycle(words: &[(usize, Word<'_>)]) -> Option<Range<usize>> {
    words.windows(3).find_map(|three| match three {
        [
            (start, Word::Name("cycle")),
            (_, Word::Mark('(')),
            (end, Word::Mark(')')),
        ] => Some(*start..end + 1),
        _ => None,
    })
}

/// Fields of `input` that the code names: `input.a`, `input['a']` and `input.get('a')`; sorted.
pub(super) fn fields(words: &[(usize, Word<'_>)]) -> Vec<String> {
    let mut fields: Vec<String> = (0..words.len())
        .filter_map(|index| {
            let word = |offset: usize| words.get(index + offset).map(|(_, word)| *word);
            if word(0) != Some(Word::Name("input")) || follows_a_dot(words, index) {
                return None;
            }
            match (word(1)?, word(2)?) {
                (Word::Mark('.'), Word::Name(name)) if word(3) == Some(Word::Mark('(')) => {
                    match (name, word(4)) {
                        ("get", Some(Word::Text(field))) => Some(field.to_owned()),
                        _ => None,
                    }
                }
                (Word::Mark('.'), Word::Name(field)) | (Word::Mark('['), Word::Text(field)) => {
                    Some(field.to_owned())
                }
                _ => None,
            }
        })
        .collect();
    fields.sort();
    fields.dedup();
    fields
}

/// Whether a name stands in the code, other than as an attribute.
pub(super) fn mentions(words: &[(usize, Word<'_>)], name: &str) -> bool {
    words
        .iter()
        .enumerate()
        .any(|(index, (_, word))| *word == Word::Name(name) && !follows_a_dot(words, index))
}

fn follows_a_dot(words: &[(usize, Word<'_>)], index: usize) -> bool {
    let before = index.checked_sub(1).and_then(|index| words.get(index));
    matches!(before, Some((_, Word::Mark('.' | '|'))))
}
