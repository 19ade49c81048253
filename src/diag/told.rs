//! Findings as they are kept beside an output, so that they can be told again without reading
//! what they are about.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Before, Diagnostic, Place, Rule, Severity, Source, newlines};
use crate::path::CaseId;

/// A longer excerpt is not kept.
const MAX_EXCERPT: usize = 64 * 1024;
/// Lines before and after a place that are shown with it.
const NEAR: usize = 2;

/// One finding, with the lines that it points at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    rule: String,
    severity: String,
    message: String,
    help: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    excerpts: Vec<Excerpt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<Spot>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    related: Vec<(Spot, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entry: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cases: Vec<String>,
}

/// Whole lines of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Excerpt {
    name: String,
    text: String,
    before: Before,
}

/// Which excerpt, and which bytes of it.
type Spot = (usize, usize, usize);

impl Told {
    /// What is to be kept of `diagnostic`; `None` when it points at too much text.
    pub fn of(diagnostic: &Diagnostic) -> Option<Self> {
        let places: Vec<&Place> = diagnostic
            .place
            .iter()
            .chain(diagnostic.related.iter().map(|(place, _)| place))
            .collect();
        let mut sources: Vec<(&Arc<Source>, Range<usize>)> = Vec::new();
        for place in &places {
            let range = place.range.start..place.range.end.max(place.range.start);
            let known = sources
                .iter_mut()
                .find(|(source, _)| Arc::ptr_eq(source, &place.source));
            match known {
                Some((_, all)) => *all = all.start.min(range.start)..all.end.max(range.end),
                None => sources.push((&place.source, range)),
            }
        }
        let mut excerpts = Vec::new();
        for (source, range) in &sources {
            excerpts.push(Excerpt::of(source, range)?);
        }
        let spot = |place: &Place| {
            let at = sources
                .iter()
                .position(|(source, _)| Arc::ptr_eq(source, &place.source))?;
            let shift = excerpts.get(at)?.before.bytes - place.source.before.bytes;
            let end = place.range.end.max(place.range.start);
            Some((at, place.range.start - shift, end - shift))
        };
        Some(Self {
            rule: diagnostic.rule.name().to_owned(),
            severity: diagnostic.severity.name().to_owned(),
            message: diagnostic.message.clone(),
            help: diagnostic.help.clone(),
            place: diagnostic.place.as_ref().and_then(spot),
            related: diagnostic
                .related
                .iter()
                .filter_map(|(place, text)| Some((spot(place)?, text.clone())))
                .collect(),
            file: diagnostic.file.clone(),
            field: diagnostic.field.clone(),
            entry: diagnostic.entry.clone(),
            cases: diagnostic.cases.iter().map(ToString::to_string).collect(),
            excerpts,
        })
    }

    /// The finding again; `None` when this version has no such rule, or something is out of range.
    pub fn again(&self) -> Option<Diagnostic> {
        let severity = [Severity::Note, Severity::Warning, Severity::Error]
            .into_iter()
            .find(|severity| severity.name() == self.severity)?;
        let sources: Vec<Arc<Source>> = self
            .excerpts
            .iter()
            .map(|excerpt| {
                Arc::new(Source {
                    name: excerpt.name.clone(),
                    text: excerpt.text.clone(),
                    before: excerpt.before,
                })
            })
            .collect();
        let place = |&(at, start, end): &Spot| {
            let source = sources.get(at)?;
            (start <= end && end <= source.text.len()).then(|| Place {
                source: Arc::clone(source),
                range: start..end,
            })
        };
        let mut diagnostic = Diagnostic::new(Rule::from_name(&self.rule)?, self.message.clone())
            .severity(severity)
            .help(self.help.clone());
        if let Some(spot) = &self.place {
            diagnostic.place = Some(place(spot)?);
        }
        for (spot, text) in &self.related {
            diagnostic.related.push((place(spot)?, text.clone()));
        }
        diagnostic.file.clone_from(&self.file);
        diagnostic.field.clone_from(&self.field);
        diagnostic.entry.clone_from(&self.entry);
        for case in &self.cases {
            diagnostic.cases.insert(CaseId::new(case).ok()?);
        }
        Some(diagnostic)
    }
}

impl Excerpt {
    /// The lines of `range`, and some around them.
    fn of(source: &Source, range: &Range<usize>) -> Option<Self> {
        let text = &source.text;
        let start = text.floor_char_boundary(range.start.min(text.len()));
        let end = text.ceil_char_boundary(range.end.min(text.len()));
        let from = text[..start]
            .rmatch_indices('\n')
            .nth(NEAR)
            .map_or(0, |(at, _)| at + 1);
        let to = text[end..]
            .match_indices('\n')
            .nth(NEAR)
            .map_or(text.len(), |(at, _)| end + at);
        if to - from > MAX_EXCERPT || range.end > text.len() {
            return None;
        }
        Some(Self {
            name: source.name.clone(),
            text: text[from..to].to_owned(),
            before: Before {
                lines: source.before.lines + newlines(&text[..from]),
                bytes: source.before.bytes + from,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_told_again_is_the_same() {
        let lines: Vec<String> = (1..=20).map(|line| format!("key{line}: é{line}")).collect();
        let source = Arc::new(Source::new("eval.yaml", lines.join("\n")));
        let at = |text: &str| {
            let start = source.text.find(text).unwrap();
            start..start + text.len()
        };
        let other = Arc::new(Source::new("cases/a/input.yaml", "x: 1\n"));
        let first = Diagnostic::new(Rule::DuplicateKey, "twice")
            .severity(Severity::Error)
            .help("once")
            .at(&source, at("key9"))
            .related(
                Some(&Place {
                    source: Arc::clone(&source),
                    range: at("key7"),
                }),
                "first",
            )
            .related(
                Some(&Place {
                    source: other,
                    range: 3..4,
                }),
                "and here",
            )
            .field("a[1].b")
            .entry("b")
            .case(&CaseId::new("a").unwrap());
        let told = Told::of(&first).unwrap();
        let text = serde_json::to_string(&told).unwrap();
        assert!(
            !text.contains("key4:") && !text.contains("key12:"),
            "{text}"
        );
        let again = serde_json::from_str::<Told>(&text)
            .unwrap()
            .again()
            .unwrap();
        assert_eq!(again.severity, Severity::Error);
        let (a, b) = (first.place.unwrap(), again.place.clone().unwrap());
        assert_eq!(
            a.source.position(a.range.start),
            b.source.position(b.range.start)
        );
        assert_eq!(b.source.text.get(b.range), Some("key9"));
        assert_eq!(again.related.len(), 2);
        assert!(Arc::ptr_eq(&again.related[0].0.source, &b.source));
        let mut broken = told;
        broken.place = Some((0, 5, 4000));
        assert!(broken.again().is_none());
    }
}
