//! Text of others, made harmless for whatever shows it (policy 31).
//!
//! Names, messages and logs come from datasets, stores and children. Owns one escaper per kind of
//! output; nothing else in casepack decides which characters are safe. Refuses to know what is
//! said.
//! Invariant: no output of these functions holds a character that moves a cursor, turns the
//! direction of text, hides itself, or ends the construct that the text stands in.

use std::borrow::Cow;
use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// What stands for a character; `None` when it stands for itself.
type Shown = Option<Cow<'static, str>>;

/// One line of a terminal or log: line feeds and tabs are shown as `\n` and `\t`.
pub fn line(text: &str) -> Cow<'_, str> {
    replace(text, hidden)
}

/// Text of several lines for a terminal or log: line feeds and tabs stay.
pub fn block(text: &str) -> Cow<'_, str> {
    replace(text, hidden_but_breaks)
}

/// A finished block of output in which no line is a command to a CI system that reads logs
/// (`::set-env …` at the start of a line, `##[…]` or `##vso[…]` anywhere), whatever wrapping did
/// to it.
pub fn log(text: &str) -> Cow<'_, str> {
    let harmless = |line: &str| !line.trim_start().starts_with("::") && command(line).is_none();
    if text.lines().all(harmless) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for line in text.split_inclusive('\n') {
        let start = line.trim_start();
        let (indent, mut rest) = line.split_at(line.len() - start.len());
        out.push_str(indent);
        if let Some(after) = rest.strip_prefix("::") {
            out.push_str("\\u{3a}:");
            rest = after;
        }
        while let Some(at) = command(rest) {
            out.push_str(&rest[..at]);
            out.push_str("#\\u{23}");
            rest = &rest[at + 2..];
        }
        out.push_str(rest);
    }
    Cow::Owned(out)
}

/// Where the first `##word[` of `line` is.
fn command(line: &str) -> Option<usize> {
    line.match_indices('#').map(|(at, _)| at).find(|at| {
        let after = line[at + 1..].strip_prefix('#');
        let word = after.map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()));
        word.is_some_and(|rest| rest.starts_with('['))
    })
}

/// The message of a workflow command of GitHub Actions: line feeds become `%0A`.
pub fn github_message(text: &str) -> Cow<'_, str> {
    replace(text, |c| match c {
        '%' => shown("%25"),
        '\n' => shown("%0A"),
        _ => hidden_but_breaks(c),
    })
}

/// A property (`file=`, `title=`) of a workflow command of GitHub Actions.
pub fn github_property(text: &str) -> Cow<'_, str> {
    replace(text, |c| match c {
        '%' => shown("%25"),
        ':' => shown("%3A"),
        ',' => shown("%2C"),
        _ => hidden(c),
    })
}

/// A space without a width. What GitHub and GitLab take for a person, an issue or an address they
/// look for in the text that is shown, where nothing is escaped any more; so it has to be broken.
const BREAK: &str = "&#8203;";

/// Inline text of Markdown (`CommonMark` with GitHub's tables, maths and emoji), on one line, which
/// calls nobody and leads nowhere.
pub fn markdown(text: &str) -> Cow<'_, str> {
    // List markers, rules and headings count only at the start of a line, which is where a caller
    // may put the text.
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let mut at = 0;
    replace(text, move |c| {
        let (first, after_number) = (at == 0, digits > 0 && at == digits);
        let before = |word: &str| {
            let start = at.checked_sub(word.len());
            let split = start.and_then(|start| text.get(..at)?.split_at_checked(start));
            split.is_some_and(|(before, it)| {
                it.eq_ignore_ascii_case(word) && !before.ends_with(char::is_alphanumeric)
            })
        };
        let digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        let (reference, issue, host) = (digit(at + 1), before("gh"), before("www"));
        at += c.len_utf8();
        match c {
            '@' => Some(format!("@{BREAK}").into()),
            // An issue, a merge request, an epic.
            '#' | '!' if reference => Some(format!("\\{c}{BREAK}").into()),
            '&' if reference => Some(format!("&amp;{BREAK}").into()),
            '-' if reference && issue => Some(format!("-{BREAK}").into()),
            '.' if host => Some(format!("{BREAK}.").into()),
            '<' => shown("&lt;"),
            '>' => shown("&gt;"),
            '&' => shown("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' | '$' | ':' | '!' => {
                backslashed(c)
            }
            '-' | '+' | '=' | ' ' if first => Some(format!("&#{};", u32::from(c)).into()),
            '.' | ')' if after_number => backslashed(c),
            _ => hidden(c),
        }
    })
}

/// Text or a quoted attribute of HTML; line feeds and tabs stay, for `<pre>`.
pub fn html(text: &str) -> Cow<'_, str> {
    replace(text, |c| markup(c).or_else(|| hidden_but_breaks(c)))
}

/// Text of XML 1.0, which has no way to write most control characters.
pub fn xml(text: &str) -> Cow<'_, str> {
    replace(text, |c| markup(c).or_else(|| hidden_but_breaks(c)))
}

/// A quoted attribute of XML 1.0: readers turn raw line feeds in it into spaces.
pub fn xml_attribute(text: &str) -> Cow<'_, str> {
    replace(text, |c| match c {
        '\n' => shown("&#10;"),
        '\t' => shown("&#9;"),
        _ => markup(c).or_else(|| hidden(c)),
    })
}

/// `value` as an indented JSON document with a final line feed. Readers get the very text; what
/// would be hostile to a terminal is written as `\u202e`, which is the same to them.
pub fn json(value: &serde_json::Value) -> String {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, Visible(PrettyFormatter::new()));
    value
        .serialize(&mut serializer)
        .expect("a JSON value is valid, and writing to memory does not fail");
    bytes.push(b'\n');
    String::from_utf8(bytes).expect("the serializer and the formatter write UTF-8")
}

fn replace(text: &str, mut show: impl FnMut(char) -> Shown) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    for (at, c) in text.char_indices() {
        if let Some(shown) = show(c) {
            out.push_str(&text[copied..at]);
            out.push_str(&shown);
            copied = at + c.len_utf8();
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "it is what the arms of the escapers give"
)]
fn shown(text: &'static str) -> Shown {
    Some(Cow::Borrowed(text))
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "it is what the arms of the escapers give"
)]
fn backslashed(c: char) -> Shown {
    Some(Cow::Owned(format!("\\{c}")))
}

fn markup(c: char) -> Shown {
    match c {
        '&' => shown("&amp;"),
        '<' => shown("&lt;"),
        '>' => shown("&gt;"),
        '"' => shown("&quot;"),
        '\'' => shown("&#39;"),
        _ => None,
    }
}

fn hidden_but_breaks(c: char) -> Shown {
    if matches!(c, '\n' | '\t') {
        None
    } else {
        hidden(c)
    }
}

fn hidden(c: char) -> Shown {
    match c {
        '\n' => shown("\\n"),
        '\r' => shown("\\r"),
        '\t' => shown("\\t"),
        _ if is_hostile(c) => Some(Cow::Owned(format!("\\u{{{:x}}}", u32::from(c)))),
        _ => None,
    }
}

/// Characters that act on what shows them, or are not seen at all. Joiners (U+200C and U+200D)
/// stay: whole scripts and emoji are written with them.
fn is_hostile(c: char) -> bool {
    matches!(c,
        // C0, DEL and C1: cursor, colours, titles, clipboard.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        // Direction: what is read is not what is there.
        | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
        // Breaks of lines and paragraphs.
        | '\u{2028}' | '\u{2029}'
        // Not seen: soft hyphen, zero-width space and its kin, annotations, tags, no characters.
        | '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e007f}')
}

/// A formatter of JSON that also escapes what JSON allows raw and terminals act on.
struct Visible<'a>(PrettyFormatter<'a>);

impl Formatter for Visible<'_> {
    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let escaped = replace(fragment, |c| {
            is_hostile(c).then(|| {
                let mut units = [0; 2];
                let escapes = c.encode_utf16(&mut units).iter();
                escapes
                    .fold(String::new(), |all, unit| format!("{all}\\u{unit:04x}"))
                    .into()
            })
        });
        // Where documents are logged, `##[…]` would be a command to the CI system.
        writer.write_all(escaped.replace("##", "#\\u0023").as_bytes())
    }

    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything that a hostile name may hold.
    const HOSTILE: &str = "a\u{1b}[31m\u{9b}1A\u{7f}\u{202e}b\u{2066}\u{feff}\r\n::error::x %0A,:\t<i>&\"'|`*_ \u{e0041}";

    #[test]
    fn each_output_shows_a_hostile_name_as_text() {
        let visible = "\\u{1b}[31m\\u{9b}1A\\u{7f}\\u{202e}b\\u{2066}\\u{feff}\\r";
        for (escaped, rest) in [
            (
                line(HOSTILE),
                "\\n::error::x %0A,:\\t<i>&\"'|`*_ \\u{e0041}",
            ),
            (block(HOSTILE), "\n::error::x %0A,:\t<i>&\"'|`*_ \\u{e0041}"),
            (
                github_message(HOSTILE),
                "%0A::error::x %250A,:\t<i>&\"'|`*_ \\u{e0041}",
            ),
            (
                github_property(HOSTILE),
                "\\n%3A%3Aerror%3A%3Ax %250A%2C%3A\\t<i>&\"'|`*_ \\u{e0041}",
            ),
            (
                html(HOSTILE),
                "\n::error::x %0A,:\t&lt;i&gt;&amp;&quot;&#39;|`*_ \\u{e0041}",
            ),
            (
                xml(HOSTILE),
                "\n::error::x %0A,:\t&lt;i&gt;&amp;&quot;&#39;|`*_ \\u{e0041}",
            ),
            (
                xml_attribute(HOSTILE),
                "&#10;::error::x %0A,:&#9;&lt;i&gt;&amp;&quot;&#39;|`*_ \\u{e0041}",
            ),
        ] {
            assert_eq!(escaped, format!("a{visible}{rest}"));
        }
        assert_eq!(
            markdown("a\u{202e}\n[x](y) <b>|`*_~ $m$ :smile: &lt;"),
            "a\\u{202e}\\n\\[x\\](y) &lt;b&gt;\\|\\`\\*\\_\\~ \\$m\\$ \\:smile\\: &amp;lt;"
        );
    }

    #[test]
    fn markdown_calls_nobody_and_leads_nowhere() {
        for (text, escaped) in [
            ("@octocat", "@&#8203;octocat"),
            ("a@b.c @org/team", "a@&#8203;b.c @&#8203;org/team"),
            (
                "o/r#12 GH-1 gh-2",
                "o/r\\#&#8203;12 GH-&#8203;1 gh-&#8203;2",
            ),
            ("!7 &8", "\\!&#8203;7 &amp;&#8203;8"),
            ("www.x.y WWW.x", "www&#8203;.x.y WWW&#8203;.x"),
            ("https://x.y", "https\\://x.y"),
            ("high-5 a.b", "high-5 a.b"),
        ] {
            assert_eq!(markdown(text), escaped);
        }
    }

    #[test]
    fn markdown_does_not_start_a_list_or_a_heading() {
        for (text, escaped) in [
            ("- x", "&#45; x"),
            ("+ x", "&#43; x"),
            ("12. x", "12\\. x"),
            ("3) x", "3\\) x"),
            ("# x", "\\# x"),
            ("    x", "&#32;   x"),
            ("case-1.5", "case-1.5"),
        ] {
            assert_eq!(markdown(text), escaped);
        }
    }

    #[test]
    fn no_line_of_a_log_is_a_command() {
        assert_eq!(
            log("ok\n  ::set-output name=a::b\nx ::y\n##[error] ###vso[group]z"),
            "ok\n  \\u{3a}:set-output name=a::b\nx ::y\n#\\u{23}[error] ##\\u{23}vso[group]z"
        );
        assert!(matches!(log("a::b\n## x [y]\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn joiners_and_plain_text_stay() {
        let text = "naïve 日本 👩\u{200d}💻 می\u{200c}خواهم";
        assert!(matches!(line(text), Cow::Borrowed(same) if same == text));
    }

    proptest! {
        #[test]
        fn nothing_hostile_is_left(text in any::<String>()) {
            for escaped in [line(&text), markdown(&text), github_property(&text), github_message(&text), xml_attribute(&text)] {
                prop_assert!(!escaped.chars().any(|c| is_hostile(c) && c != '\t'), "{escaped:?}");
            }
            for escaped in [block(&text), html(&text), xml(&text)] {
                prop_assert!(!escaped.chars().any(|c| is_hostile(c) && c != '\n' && c != '\t'), "{escaped:?}");
            }
        }

        #[test]
        fn json_says_the_very_text(text in "\\PC{0,9}#{0,4}.{0,9}") {
            let value = serde_json::json!({ "key": [text, HOSTILE] });
            let written = json(&value);
            prop_assert!(!written.chars().any(|c| is_hostile(c) && c != '\n'), "{written:?}");
            prop_assert!(!written.contains("##"), "{written:?}");
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap(), value);
        }
    }
}
