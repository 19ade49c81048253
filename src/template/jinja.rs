//! The Jinja style, by the minijinja engine made to behave as Jinja2 does with `StrictUndefined`.
//!
//! Owns the engine's set-up, its limits and what its errors become. Filters, methods and values
//! that differ from Python's are replaced by ours; what can't be done as Python does it (filters
//! with chance in them, methods that change a value) is refused, never done in another way.

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::Duration;

use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value, context};

use super::{MAX_TEXT, MissingField, TemplateError, filters, methods, scan, strings, value};
use crate::yaml::Yaml;

/// Work that one template may do: an instruction costs 1, and so do 64 bytes of new text.
const FUEL: u64 = 500_000;

/// Stack for one rendering. The engine's own recursion is bounded (500 levels), but a template
/// can build lists in lists, and those are dropped one within the other.
const STACK: usize = 256 * 1024 * 1024;

/// How long a rendering may take.
const TIME: Duration = Duration::from_secs(10);

static ENGINE: LazyLock<Environment<'static>> = LazyLock::new(engine);

fn engine() -> Environment<'static> {
    let mut engine = Environment::new();
    engine.set_undefined_behavior(UndefinedBehavior::Strict);
    engine.set_debug(true);
    engine.set_fuel(Some(FUEL));
    engine.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    engine.set_formatter(print);
    engine.set_unknown_method_callback(methods::call);
    filters::install(&mut engine);
    engine
}

/// `{{ value }}`.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        // `{{ 'x' if condition }}` without an else: nothing. What is really undefined never
        // comes here.
        return Ok(());
    }
    let printed;
    let text = if let Some(text) = value.as_str() {
        text
    } else {
        printed = value::string(value)?;
        &printed
    };
    if value.is_safe() || *state.auto_escape() == minijinja::AutoEscape::None {
        out.write_str(text)?;
    } else {
        out.write_str(&strings::escape_html(text))?;
    }
    Ok(())
}

/// Renders `template` with the names `input` and `steps`.
pub(super) fn render(template: &str, input: &Yaml, steps: &Yaml) -> Result<String, TemplateError> {
    if !template.contains('\r') {
        return render_lines(template, input, steps);
    }
    // Jinja2 reads every line break as a line feed.
    let lines = template.replace("\r\n", "\n").replace('\r', "\n");
    render_lines(&lines, input, steps).map_err(|error| {
        error.shifted(|range| in_original(template, range.start)..in_original(template, range.end))
    })
}

/// The byte of `template` for one of the text with line feeds only.
fn in_original(template: &str, at: usize) -> usize {
    let mut original = at;
    for (index, (carriage_return, _)) in template.match_indices("\r\n").enumerate() {
        if carriage_return >= at + index {
            break;
        }
        original = at + index + 1;
    }
    original
}

fn render_lines(template: &str, input: &Yaml, steps: &Yaml) -> Result<String, TemplateError> {
    let words = scan::words(template);
    let put_in = check(&words)?;
    let text = rewritten(template, &put_in);
    let names = names(input, steps)?;
    let rendered = if is_plain(template, &words) {
        let here = AssertUnwindSafe(|| render_here(&text, names));
        catch_unwind(here)
            .unwrap_or_else(|_| Err(TemplateError::invalid("the template engine failed", None)))
    } else {
        in_thread(TIME, move || render_here(&text, names))
    };
    rendered.map_err(|error| {
        error.shifted(|range| {
            let range =
                before_rewriting(&put_in, range.start)..before_rewriting(&put_in, range.end);
            whole_expression(template, &words, range)
        })
    })
}

/// Whether a template only puts fields into text, as most do: such work is bounded by its result,
/// and a thread for each case would cost more than the work.
fn is_plain(template: &str, words: &[(usize, scan::Word<'_>)]) -> bool {
    const OPERATORS: [&str; 7] = ["and", "else", "if", "in", "is", "not", "or"];
    let plain = |word: &scan::Word<'_>| match word {
        scan::Word::Name(name) => !OPERATORS.contains(name),
        scan::Word::Mark(mark) => *mark == '.',
        scan::Word::End => true,
        scan::Word::Text(_) => false,
    };
    !template.contains("{%") && words.iter().all(|(_, word)| plain(word))
}

/// Refuses what the engine reads in another way than Python, and what it can't read safely; gives
/// what must be put in.
fn check(words: &[(usize, scan::Word<'_>)]) -> Result<Vec<(usize, &'static str)>, TemplateError> {
    for (range, message) in [
        (
            scan::strange_escape(words),
            "this escape in a string is not supported: write the character itself",
        ),
        (scan::empty_cycle(words), "cycle() has no items"),
        // The engine's parser is not bounded for signs and conditions.
        (scan::long_code(words), "this expression is too long"),
    ] {
        if range.is_some() {
            return Err(TemplateError::invalid(message, range));
        }
    }
    Ok(scan::rewritings(words))
}

fn rewritten(template: &str, put_in: &[(usize, &str)]) -> String {
    let mut text = String::with_capacity(template.len());
    let mut done = 0;
    for (place, more) in put_in {
        text.push_str(template.get(done..*place).unwrap_or_default());
        text.push_str(more);
        done = *place;
    }
    text.push_str(template.get(done..).unwrap_or_default());
    text
}

/// The names that a template knows.
fn names(input: &Yaml, steps: &Yaml) -> Result<Value, TemplateError> {
    let empty = Yaml::Map(Vec::new());
    let or_empty = |value| match value {
        &Yaml::Null => &empty,
        value => value,
    };
    let too_deep = || TemplateError::invalid("the input is nested too deep", None);
    Ok(context! {
        input => value::from_yaml(or_empty(input)).ok_or_else(too_deep)?,
        steps => value::from_yaml(or_empty(steps)).ok_or_else(too_deep)?,
    })
}

/// The engine's range, which may begin in the middle of `input.a.b`, or be empty because it was in
/// a part that was put in.
fn whole_expression(
    template: &str,
    words: &[(usize, scan::Word<'_>)],
    range: Range<usize>,
) -> Range<usize> {
    let before = words.partition_point(|(start, _)| *start < range.start);
    let earlier = words.get(..before).unwrap_or_default().iter().rev();
    let mut earlier = earlier.take_while(|(_, word)| *word != scan::Word::End);
    let inside = template
        .get(range.start..)
        .is_some_and(|rest| rest.starts_with(['.', '[']));
    if inside {
        let names = [scan::Word::Name("input"), scan::Word::Name("steps")];
        let input = earlier.find(|(_, word)| names.contains(word));
        return input.map_or(range.clone(), |(start, _)| *start..range.end);
    }
    match earlier.next() {
        Some((start, scan::Word::Name(name))) if range.is_empty() => *start..start + name.len(),
        _ => range,
    }
}

/// The byte of the template for one of the text with more put in.
fn before_rewriting(places: &[(usize, &str)], at: usize) -> usize {
    let mut added = 0;
    for (place, text) in places {
        if place + added >= at {
            break;
        }
        if at < place + added + text.len() {
            return *place;
        }
        added += text.len();
    }
    at - added
}

/// Works in a thread of its own, which also keeps a bug in the engine from taking the program
/// down. The fuel bounds nearly all work; what it does not see (comparing lists that hold the same
/// list many times) ends with the wait. The thread is then left to itself, and to the end of the
/// process.
fn in_thread<T: Send + 'static>(
    time: Duration,
    work: impl FnOnce() -> Result<T, TemplateError> + Send + 'static,
) -> Result<T, TemplateError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let worker = thread::Builder::new()
        .name("template".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            // No one may be waiting any more.
            drop(sender.send(work()));
        });
    let failed = |message: &str| Err(TemplateError::invalid(message, None));
    if worker.is_err() {
        return failed("no thread could be started for the template engine");
    }
    match receiver.recv_timeout(time) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => failed("the template takes too long"),
        Err(mpsc::RecvTimeoutError::Disconnected) => failed("the template engine failed"),
    }
}

fn render_here(template: &str, names: Value) -> Result<String, TemplateError> {
    let mut out = Limited(Vec::new());
    let engine: &Environment<'_> = &ENGINE;
    engine
        .template_from_named_str("template", template)
        .and_then(|template| template.render_captured_to(names, &mut out).map(drop))
        .map_err(|error| explain(&error, template))?;
    String::from_utf8(out.0).map_err(|_| TemplateError::invalid("the text is not UTF-8", None))
}

/// Whether rendering `template` reads `steps`; `None` when it can't be read.
pub(super) fn uses_steps(template: &str) -> Option<bool> {
    check(&scan::words(template)).ok()?;
    let template = template.to_owned();
    in_thread(TIME, move || {
        let engine: &Environment<'_> = &ENGINE;
        engine
            .template_from_named_str("template", &template)
            .map(|template| template.undeclared_variables(false).contains("steps"))
            .map_err(|error| explain(&error, &template))
    })
    .ok()
}

/// Collects text up to [`MAX_TEXT`].
struct Limited(Vec<u8>);

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > MAX_TEXT {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn explain(error: &Error, template: &str) -> TemplateError {
    let range = place(error, template);
    let message = match error.kind() {
        ErrorKind::OutOfFuel => {
            return TemplateError::invalid("the template does too much work", range);
        }
        ErrorKind::WriteFailure => return TemplateError::too_long(range),
        kind => error
            .detail()
            .map_or_else(|| kind.to_string(), str::to_owned),
    };
    // The engine names the expression in back quotes: "`input.a` is undefined (from line 2)", or
    // "not iterable (`input.a` is undefined)".
    let Some(name) = message
        .split_once("` is undefined")
        .and_then(|(before, _)| before.rsplit_once('`'))
        .map(|(_, name)| name)
    else {
        return TemplateError::invalid(message, range);
    };
    match name.strip_prefix("input") {
        Some(path) if path.starts_with(['.', '[']) => {
            TemplateError::MissingFields(vec![MissingField {
                field: field_name(path),
                range,
            }])
        }
        _ if name.contains(['.', '[', '(']) => {
            TemplateError::invalid(format!("'{name}' is not defined"), range)
        }
        _ => TemplateError::invalid(
            format!("'{name}' is not defined; a field of the input is written input.{name}"),
            range,
        ),
    }
}

/// `a.b` of `.a.b`, `a-b` of `["a-b"]` and `a[0].b` of `.a[0].b`.
fn field_name(path: &str) -> String {
    if let Some(path) = path.strip_prefix('.') {
        return path.to_owned();
    }
    path.strip_prefix(['[']).map_or_else(
        || path.to_owned(),
        |rest| {
            let (key, rest) = rest.split_once(']').unwrap_or((rest, ""));
            let key = key.trim_matches(['\'', '"']);
            format!("{key}{rest}")
        },
    )
}

/// Where it happened, if the engine knows; always on character borders of the template.
fn place(error: &Error, template: &str) -> Option<Range<usize>> {
    let range = error.range()?;
    let start = template.floor_char_boundary(range.start.min(template.len()));
    let end = template.ceil_char_boundary(range.end.clamp(start, template.len()));
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_costs_no_fuel_ends_with_the_wait() {
        // Two towers of lists, each level holding the one below twice: 2^28 comparisons.
        let template = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(28) %}\
                        {% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}\
                        {{ ns.x == ns.y }}";
        let started = Instant::now();
        let time = Duration::from_millis(100);
        let names = names(&Yaml::Null, &Yaml::Null).unwrap();
        let error = in_thread(time, move || render_here(template, names));
        assert!(started.elapsed() < Duration::from_secs(5));
        assert_eq!(
            error.unwrap_err().to_string(),
            "the template takes too long"
        );
    }
}
