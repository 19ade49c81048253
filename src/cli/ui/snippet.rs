//! The lines that a finding is about, made harmless, with labels in them.
//!
//! Escaping changes lengths, so offsets are carried over from the source to what is shown. Only the
//! lines from the first label to the last one are kept, and those between that are far from every
//! label are left empty: a file of megabytes may have thousands of findings.

use std::ops::Range;
use std::sync::Arc;

use miette::{LabeledSpan, MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};

use crate::diag::{Diagnostic, Place, Source, newlines};
use crate::escape;

/// Characters of a line that are shown before and after the label's start when it is too long.
const AROUND: usize = 100;
/// Lines before and after a label that may be shown.
const NEAR: usize = 2;

/// A text to show, with labels.
#[derive(Debug)]
pub(super) struct Snippet {
    text: String,
    /// How many lines of the source come before.
    skipped: usize,
    labels: Vec<Label>,
}

#[derive(Debug)]
struct Label {
    /// Bytes of the shown text.
    range: Range<usize>,
    /// `eval.yaml:3:7`
    title: String,
    text: Option<String>,
}

impl Snippet {
    /// The place of `diagnostic` and the related ones in the same file.
    pub(super) fn of(diagnostic: &Diagnostic) -> Option<Self> {
        let place = diagnostic.place.as_ref()?;
        let primary = (place, diagnostic.field.clone());
        let related = diagnostic
            .related
            .iter()
            .filter(|(other, _)| Arc::ptr_eq(&other.source, &place.source))
            .map(|(place, text)| (place, Some(text.clone())));
        let labels: Vec<_> = std::iter::once(primary).chain(related).collect();
        let source = &place.source;
        let ranges: Vec<_> = labels
            .iter()
            .map(|(place, _)| in_one_line(source, &place.range))
            .collect();
        let Shown {
            text,
            skipped,
            ranges,
        } = show(&source.text, &ranges);
        let skipped = source.before.lines + skipped;
        let label = |((place, text), range): ((&Place, Option<String>), Range<usize>)| {
            let (line, column) = source.position(place.range.start);
            Label {
                range,
                title: format!("{}:{line}:{column}", escape::line(&source.name)),
                text: text.map(|text| escape::line(&text).into_owned()),
            }
        };
        let labels = labels.into_iter().zip(ranges).map(label).collect();
        Some(Self {
            text,
            skipped,
            labels,
        })
    }

    /// Related places that lie in other files.
    pub(super) fn elsewhere(diagnostic: &Diagnostic) -> impl Iterator<Item = &(Place, String)> {
        let source = diagnostic.place.as_ref().map(|place| &place.source);
        diagnostic.related.iter().filter(move |(other, _)| {
            !source.is_some_and(|source| Arc::ptr_eq(source, &other.source))
        })
    }

    /// The labels as miette takes them, the place of the finding first.
    pub(super) fn labels(&self) -> impl Iterator<Item = LabeledSpan> {
        self.labels.iter().enumerate().map(|(at, label)| {
            let span = SourceSpan::from(label.range.clone());
            if at == 0 {
                LabeledSpan::new_primary_with_span(label.text.clone(), span)
            } else {
                LabeledSpan::new_with_span(label.text.clone(), span)
            }
        })
    }
}

impl SourceCode for Snippet {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let read = self.text.as_bytes().read_span(span, before, after)?;
        let at_label = |label: &&Label| label.range.start == span.offset();
        let label = self.labels.iter().find(at_label).or(self.labels.first());
        Ok(Box::new(MietteSpanContents::new_named(
            label.map_or_else(String::new, |label| label.title.clone()),
            read.data(),
            *read.span(),
            self.skipped + read.line(),
            read.column(),
            read.line_count(),
        )))
    }
}

/// `range` within its text and at character boundaries, cut at the end of its first line: an
/// underlined block says no more than its beginning.
fn in_one_line(source: &Source, range: &Range<usize>) -> Range<usize> {
    let text = &source.text;
    let start = text.floor_char_boundary(range.start.min(text.len()));
    let end = text.ceil_char_boundary(range.end.clamp(start, text.len()));
    let inside = text.get(start..end).unwrap_or_default();
    let line = inside.split(['\n', '\r']).next().unwrap_or_default();
    start..start + line.trim_end().len()
}

/// A part of a text as it is shown.
struct Shown {
    text: String,
    /// Lines of the whole text that come before.
    skipped: usize,
    /// Where the ranges are in it.
    ranges: Vec<Range<usize>>,
}

/// The part of `text` around `ranges`, each of which lies in one line.
fn show(text: &str, ranges: &[Range<usize>]) -> Shown {
    let first = ranges.iter().map(|range| range.start).min().unwrap_or(0);
    let last = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    let begin = text[..first]
        .rmatch_indices('\n')
        .nth(NEAR)
        .map_or(0, |(at, _)| at + 1);
    let end = text[last..]
        .match_indices('\n')
        .nth(NEAR)
        .map_or(text.len(), |(at, _)| last + at);
    let mut shown = Shown {
        text: String::new(),
        skipped: newlines(&text[..begin]),
        ranges: vec![0..0; ranges.len()],
    };
    let line_of = |range: &Range<usize>| text[begin..range.start].matches('\n').count();
    let lines: Vec<_> = ranges.iter().map(line_of).collect();
    let out = &mut shown.text;
    let mut start = begin;
    for (number, line) in text[begin..end].split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        let (line, full) = (line.strip_suffix('\r').unwrap_or(line), line.len());
        if lines.iter().any(|label| label.abs_diff(number) <= NEAR) {
            let here: Vec<_> = (0..ranges.len())
                .filter(|at| lines[*at] == number)
                .collect();
            let label = here.iter().map(|at| ranges[*at].start - start).min();
            let window = window(line, label.unwrap_or(0));
            if window.start > 0 {
                out.push('…');
            }
            let base = out.len();
            let width = |from: usize, to: usize| {
                let (from, to) = (from.max(window.start), to.min(window.end));
                escape::block(line.get(from..to).unwrap_or_default()).len()
            };
            for at in here {
                let range = &ranges[at];
                let from = base + width(0, range.start - start);
                let length = width(range.start - start, range.end - start);
                shown.ranges[at] = from..from + length;
            }
            out.push_str(&escape::block(&line[window.clone()]));
            if window.end < line.len() {
                out.push('…');
            }
        }
        start += full + 1;
    }
    shown
}

/// The part of `line` that is shown: all of it unless it is long.
fn window(line: &str, label: usize) -> Range<usize> {
    let end = line.len();
    if end <= 2 * AROUND {
        return 0..end;
    }
    let from = line.floor_char_boundary(label.saturating_sub(AROUND));
    let to = line.ceil_char_boundary((from + 2 * AROUND).min(end));
    from..to
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_follow_their_text_through_escaping() {
        let text = "0\n1\none\r\n\u{1b}[2J: b\u{202e}d\r\nthree\nfour\nfive\nsix\n";
        let start = text.find('b').unwrap();
        let shown = show(text, std::slice::from_ref(&(start..start + 5)));
        assert_eq!(shown.skipped, 1);
        assert_eq!(shown.text, "1\none\n\\u{1b}[2J: b\\u{202e}d\nthree\nfour");
        assert_eq!(&shown.text[shown.ranges[0].clone()], "b\\u{202e}d");
    }

    #[test]
    fn long_lines_are_cut_around_the_label() {
        let text = format!("{}KEY{}", "a".repeat(5000), "é".repeat(5000));
        let Shown { text, ranges, .. } = show(&text, std::slice::from_ref(&(5000..5003)));
        assert!(text.len() < 500 && text.starts_with('…') && text.ends_with('…'));
        assert_eq!(&text[ranges[0].clone()], "KEY");
    }

    #[test]
    fn lines_between_far_labels_are_left_empty() {
        let text = "line\n".repeat(100);
        let shown = show(&text, &[10..12, 400..402]);
        assert_eq!((shown.skipped, shown.text.matches("line").count()), (0, 10));
        assert_eq!(shown.text.lines().count(), 83);
    }

    proptest! {
        #[test]
        fn every_range_of_every_text_can_be_shown(
            text in "(?s)[ab\r\n\t\u{1b}é日]{0,40}", from in 0_usize..60, len in 0_usize..60,
        ) {
            let source = Arc::new(Source::new("n", text));
            let diagnostic = Diagnostic::new(crate::diag::Rule::BadValue, "m")
                .at(&source, from..from + len)
                .related(Some(&Place { source: Arc::clone(&source), range: len..from }), "r");
            let snippet = Snippet::of(&diagnostic).unwrap();
            for label in snippet.labels() {
                for context in 0..3 {
                    prop_assert!(snippet.read_span(label.inner(), context, context).is_ok());
                }
            }
        }
    }
}
