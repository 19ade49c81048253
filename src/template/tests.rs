use std::collections::BTreeMap;
use std::sync::Arc;

use num_bigint::BigInt;
use proptest::prelude::*;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;

use super::*;
use crate::diag::Source;
use crate::yaml::{Date, DateTime, Node};

fn node(value: Yaml) -> Node {
    Node { value, span: 0..0 }
}

fn string(text: &str) -> Yaml {
    Yaml::Str(Arc::from(text))
}

/// JSON as YAML reads it, mappings in their order.
struct Ordered(Yaml);

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsYaml;
        impl<'de> Visitor<'de> for AsYaml {
            type Value = Yaml;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Yaml, E> {
                Ok(Yaml::Null)
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Yaml, E> {
                Ok(Yaml::Bool(flag))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Yaml, E> {
                Ok(Yaml::Int(number.into()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Yaml, E> {
                Ok(Yaml::Int(number.into()))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Yaml, E> {
                Ok(Yaml::Float(number))
            }
            fn visit_str<E>(self, text: &str) -> Result<Yaml, E> {
                Ok(string(text))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Yaml, A::Error> {
                let mut items = Vec::new();
                while let Some(Ordered(item)) = seq.next_element()? {
                    items.push(node(item));
                }
                Ok(Yaml::Seq(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Yaml, A::Error> {
                let mut entries = Vec::new();
                while let Some((key, Ordered(value))) = map.next_entry::<String, _>()? {
                    entries.push((node(string(&key)), node(value)));
                }
                Ok(Yaml::Map(entries))
            }
        }
        deserializer.deserialize_any(AsYaml).map(Self)
    }
}

fn input(text: &str) -> Yaml {
    serde_json::from_str::<Ordered>(text).unwrap().0
}

fn rendered(template: &str, json: &str) -> Result<String, TemplateError> {
    render(template, &input(json), &Yaml::Null)
}

#[test]
fn braces_take_everything_up_to_the_next_closing_one() {
    for (template, expected) in [
        ("{a}{b?}{c?}", "1False"),
        ("{a b}", "spaced"),
        ("{}{a", "{}{a"),
        ("{c??}x", "x"),
        ("  a \t {a}  \n   b \n", "a \t 1  \n   b"),
        ("${a} {{", ""),
        ("{e}", "{a} {{ x }}"),
    ] {
        let input = r#"{"a": 1, "b": false, "a b": "spaced", "e": "{a} {{ x }}", "n": null}"#;
        if template.contains("{{") {
            assert!(rendered(template, input).is_err(), "{template}");
        } else {
            assert_eq!(rendered(template, input).unwrap(), expected, "{template}");
        }
    }
}

#[test]
fn all_missing_fields_are_told_with_their_places() {
    let error = rendered("a {x} {n} {y?} {a}", r#"{"a": 1, "n": null}"#).unwrap_err();
    assert_eq!(error.to_string(), "the input has no fields 'x', 'n'");
    let TemplateError::MissingFields(missing) = error else {
        panic!("{error:?}");
    };
    let ranges: Vec<_> = missing.iter().map(|field| field.range.clone()).collect();
    assert_eq!(ranges, [Some(2..5), Some(6..9)]);
    assert_eq!(
        rendered("{x}", "[1]").unwrap_err(),
        TemplateError::NotAMapping
    );
    assert_eq!(rendered("x", "[1]").unwrap(), "x");
    assert_eq!(rendered("x{v?}y", "null").unwrap(), "xy");
}

/// The table of the packager's own resolver. Our text must be the table's after the same
/// collapse (runs of spaces and tabs to one space, then strip), which is what the packager does
/// to its result and what policy 14 leaves out; that ours keeps them is asserted by the tests
/// above and by the rows where the local resolver, which collapses nothing, gives the same text.
/// Rows that are errors there must be errors here, of the reader or of the template. Rows marked
/// unstable depend on Python's hash seed.
#[test]
fn the_packagers_table() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../shared/vectors/aeh/resolve_arguments.json"
    );
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("skipped: no {path}");
        return;
    };
    let table: Json = serde_json::from_str(&text).unwrap();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in table["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        if row["unstable"] == true {
            *counts.entry("unstable, skipped").or_default() += 1;
            continue;
        }
        if let Some((_, reason)) = GIVEN_UP.iter().find(|(given_up, _)| *given_up == name) {
            println!("given up: {name}: {reason}");
            *counts.entry("given up").or_default() += 1;
            continue;
        }
        let template = row["template"].as_str().unwrap();
        let result = parse(row["input_yaml"].as_str().unwrap())
            .and_then(|input| render(template, &input, &Yaml::Null).map_err(|e| e.to_string()));
        match (row["package"]["text"].as_str(), result) {
            (Some(expected), Ok(text)) if collapse(&text) == expected => {
                *counts.entry("same text").or_default() += 1;
                if text != expected {
                    *counts.entry("of these, white space kept").or_default() += 1;
                }
                if let Some(local) = row["local"]["text"].as_str()
                    && collapse(local) == expected
                    && text != local
                {
                    wrong.push(format!("{name}: kept {text:?}, local {local:?}"));
                }
            }
            (None, Err(_)) => *counts.entry("both refuse").or_default() += 1,
            (expected, result) => wrong.push(format!("{name}: {result:?}, want {expected:?}")),
        }
    }
    println!("{counts:#?}");
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

/// Rows of the table that are not done, each with the reason.
const GIVEN_UP: [(&str, &str); 1] = [(
    "input-recursive-alias",
    "the YAML reader refuses a value that holds itself, so there is nothing to render",
)];

fn collapse(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            ' ' | '\t' if out.ends_with(' ') => {}
            ' ' | '\t' => out.push(' '),
            _ => out.push(character),
        }
    }
    out.trim_matches(is_space).to_owned()
}

fn parse(text: &str) -> Result<Yaml, String> {
    let source = Source::new("input.yaml", text);
    crate::yaml::parse(Arc::new(source))
        .map(|document| document.root.value)
        .map_err(|finding| finding.message.clone())
}

#[test]
fn dates_bytes_and_sets_print_as_python_prints_them() {
    let date = Date {
        year: 2024,
        month: 1,
        day: 31,
    };
    let time = |second, microsecond, offset_minutes| {
        Yaml::DateTime(DateTime {
            date,
            hour: 10,
            minute: 0,
            second,
            microsecond,
            offset_minutes,
        })
    };
    for (value, str, repr) in [
        (Yaml::Date(date), "2024-01-31", "datetime.date(2024, 1, 31)"),
        (
            time(0, 0, None),
            "2024-01-31 10:00:00",
            "datetime.datetime(2024, 1, 31, 10, 0)",
        ),
        (
            time(0, 5, Some(0)),
            "2024-01-31 10:00:00.000005+00:00",
            "datetime.datetime(2024, 1, 31, 10, 0, 0, 5, tzinfo=datetime.timezone.utc)",
        ),
        (
            time(7, 0, Some(-150)),
            "2024-01-31 10:00:07-02:30",
            "datetime.datetime(2024, 1, 31, 10, 0, 7, \
             tzinfo=datetime.timezone(datetime.timedelta(days=-1, seconds=77400)))",
        ),
        (
            Yaml::Binary(Arc::from(*b"it's \x00\xff\n")),
            "b\"it's \\x00\\xff\\n\"",
            "b\"it's \\x00\\xff\\n\"",
        ),
        (Yaml::Set(Vec::new()), "set()", "set()"),
        (
            Yaml::Set(vec![node(string("a")), node(Yaml::Null)]),
            "{'a', None}",
            "{'a', None}",
        ),
        (
            Yaml::Pairs(vec![(node(string("a")), node(Yaml::Date(date)))]),
            "[('a', datetime.date(2024, 1, 31))]",
            "[('a', datetime.date(2024, 1, 31))]",
        ),
        (
            string("a\u{300}\u{ad}\u{a0}é\u{1F600}\u{2028}'"),
            "a\u{300}\u{ad}\u{a0}é\u{1F600}\u{2028}'",
            "\"a\u{300}\\xad\\xa0é\u{1F600}\\u2028'\"",
        ),
    ] {
        assert_eq!(python_str(&value), str);
        assert_eq!(python_repr(&value), repr);
        // The engine's copy of the value prints the same.
        let input = Yaml::Map(vec![(node(string("v")), node(value))]);
        let text = render("{{ input.v }}|{{ [input.v] }}", &input, &Yaml::Null).unwrap();
        assert_eq!(text, format!("{str}|[{repr}]"));
    }
}

#[test]
fn a_deep_value_is_printed_without_recursion() {
    let mut value = Yaml::Null;
    for _ in 0..2000 {
        value = Yaml::Seq(vec![node(value)]);
    }
    assert_eq!(python_str(&value).len(), 4004);
    let error = render("{{ input }}", &value, &Yaml::Null).unwrap_err();
    assert_eq!(error.to_string(), "the input is nested too deep");
}

/// The table that `tests/compat/regen_templates.py` asked of Jinja2.
#[derive(serde::Deserialize)]
struct JinjaTable {
    input: Ordered,
    rows: Vec<JinjaRow>,
}

#[derive(serde::Deserialize)]
struct JinjaRow {
    template: String,
    text: Option<String>,
    differs: Option<String>,
}

/// Texts must be the same, and what Jinja2 refuses must be refused, but where a row says that it
/// `differs`, and then it must differ in that way.
#[test]
fn jinja2s_table() {
    let table: JinjaTable =
        serde_json::from_str(include_str!("../../tests/compat/jinja.json")).unwrap();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in &table.rows {
        let result = render(&row.template, &table.input.0, &Yaml::Null);
        let outcome = match (&row.text, &result) {
            (Some(expected), Ok(text)) if text == expected => "same text",
            (None, Err(_)) => "both refuse",
            (Some(_), Ok(_)) => "other text",
            (Some(_), Err(_)) => "refused",
            (None, Ok(_)) => "accepted",
        };
        let fits = match &row.differs {
            None => ["same text", "both refuse"].contains(&outcome),
            Some(differs) => differs == outcome,
        };
        if !fits {
            wrong.push(format!("{}\n  {result:?}\n  {:?}", row.template, row.text));
        }
        *counts.entry(outcome.to_owned()).or_default() += 1;
    }
    println!("{counts:?}");
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn floats_print_as_python_prints_them() {
    let rows: Vec<(String, String)> =
        serde_json::from_str(include_str!("../../tests/compat/floats.json")).unwrap();
    assert!(rows.len() > 400);
    for (bits, expected) in rows {
        let number = f64::from_bits(u64::from_str_radix(&bits, 16).unwrap());
        assert_eq!(python_str(&Yaml::Float(number)), expected);
    }
    for (number, expected) in [
        (f64::NAN, "nan"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(python_str(&Yaml::Float(number)), expected);
    }
}

/// The text that an error points at.
fn pointed_at<'a>(template: &'a str, error: &TemplateError) -> &'a str {
    let range = match error {
        TemplateError::MissingFields(fields) => fields[0].range.clone(),
        TemplateError::Invalid { range, .. } => range.clone(),
        TemplateError::NotAMapping => None,
    };
    &template[range.unwrap_or_default()]
}

#[test]
fn errors_name_the_field_and_its_place() {
    for (template, message, place) in [
        (
            "a {{ input.nope }}",
            "the input has no field 'nope'",
            "input.nope",
        ),
        (
            "é {{ input['a b'] }}",
            "the input has no field 'a b'",
            "input['a b']",
        ),
        (
            "{{ input.m.x.y }}",
            "the input has no field 'm.x'",
            "input.m.x.y",
        ),
        (
            "{{ input.l[7].y }}",
            "the input has no field 'l[7]'",
            "input.l[7].y",
        ),
        (
            "{{ input.nope | upper }}",
            "the input has no field 'nope'",
            "upper",
        ),
        (
            "{{ input.nope | join }}",
            "the input has no field 'nope'",
            "join",
        ),
        (
            "{{ input.nope.split() }}",
            "the input has no field 'nope'",
            "input.nope.split()",
        ),
        (
            "\r\n\r\n{{ 1 }}\r\n {{ input.nope }}",
            "the input has no field 'nope'",
            "input.nope",
        ),
        (
            "{{ ticket }}",
            "'ticket' is not defined; a field of the input is written input.ticket",
            "ticket",
        ),
        (
            "{{ steps.a.output }}",
            "'steps.a' is not defined",
            "steps.a.output",
        ),
        ("{{ input.l | nope }}", "filter nope is unknown", "nope"),
        (
            "{{ input.items }}",
            "'.items' is a method of mappings: write ['items'] for the field",
            "input.items",
        ),
        (
            "{{ '\\N{DASH}' }}",
            "this escape in a string is not supported: write the character itself",
            "\\N",
        ),
        (
            "{% for i in input.l %}x",
            "unexpected end of input, expected end of block",
            "x",
        ),
    ] {
        let error = rendered(template, r#"{"m": {}, "l": [1]}"#).unwrap_err();
        assert_eq!(error.to_string(), message, "{template}");
        assert_eq!(pointed_at(template, &error), place, "{template}");
    }
}

#[test]
fn fields_are_found_in_both_styles() {
    for (template, fields_of_it, steps) in [
        ("{b} {a?} {b}", vec!["a", "b"], false),
        ("{steps}", vec!["steps"], false),
        (
            "{{ input.b }}{{ input['a'] }}{{ input.get(\"c\", 1) }}",
            vec!["a", "b", "c"],
            false,
        ),
        (
            "{{ x.input.b }} input.z {# input.y #} {{ 'input.w' }}",
            vec![],
            false,
        ),
        (
            "{% raw %}{{ input.b }}{% endraw %}{{ input.c.d }}",
            vec!["c"],
            false,
        ),
        ("{{ input.items() }}{{ input | tojson }}", vec![], false),
        ("{{ steps.plan.output }}", vec![], true),
        ("{% set steps = 1 %}{{ steps }}", vec![], false),
        ("{{ input.steps }}", vec!["steps"], false),
        ("{{ steps.x }", vec![], true),
        ("{{ '}}' }}{{ {'a': {}} }}{{ input.q", vec!["q"], false),
    ] {
        let fields_of_it: Vec<_> = fields_of_it.into_iter().map(str::to_owned).collect();
        assert_eq!(fields(template), (fields_of_it, steps), "{template}");
    }
}

#[test]
fn steps_are_a_name_of_their_own() {
    let steps = input(r#"{"plan": {"output": "done"}}"#);
    let text = render(
        "{{ steps.plan.output }} {{ input.x }}",
        &input(r#"{"x": 1}"#),
        &steps,
    );
    assert_eq!(text.unwrap(), "done 1");
}

/// Pieces that templates are made of, whole and broken.
const PIECES: [&str; 60] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "{",
    "}",
    "?",
    " ",
    "\n",
    "\r\n",
    "-",
    "+",
    "*",
    "/",
    "%",
    "~",
    "|",
    ".",
    ",",
    ":",
    "(",
    ")",
    "[",
    "]",
    "=",
    "==",
    "<",
    "'",
    "\"",
    "\\",
    "é",
    "😀",
    "0",
    "1.5",
    "1e",
    "input",
    "steps",
    ".a",
    "['b']",
    ".get(",
    "items",
    "loop",
    "range(3)",
    "for x in ",
    "endfor",
    "if ",
    "else",
    "endif",
    "set x = ",
    "raw",
    "endraw",
    "macro m(x)",
    "endmacro",
    "is ",
    "not ",
    "upper",
    "tojson",
    "join('~')",
];

fn any_value() -> impl Strategy<Value = Yaml> {
    let leaf = prop_oneof![
        Just(Yaml::Null),
        any::<bool>().prop_map(Yaml::Bool),
        any::<i128>().prop_map(|number| Yaml::Int(BigInt::from(number) * 3)),
        any::<f64>().prop_map(Yaml::Float),
        any::<String>().prop_map(|text| string(&text)),
        any::<Vec<u8>>().prop_map(|bytes| Yaml::Binary(bytes.into())),
        (0_u16.., 0_u8.., 0_u8..).prop_map(|(year, month, day)| Yaml::Date(Date {
            year,
            month,
            day
        })),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let pair = (inner.clone(), inner.clone()).prop_map(|(key, value)| (node(key), node(value)));
        prop_oneof![
            prop::collection::vec(inner.clone().prop_map(node), 0..4).prop_map(Yaml::Seq),
            prop::collection::vec(inner.prop_map(node), 0..4).prop_map(Yaml::Set),
            prop::collection::vec(pair.clone(), 0..4).prop_map(Yaml::Pairs),
            prop::collection::vec(pair, 0..4).prop_map(Yaml::Map),
        ]
    })
}

proptest! {
    /// Whatever template and input are: no panic (which would be "the template engine failed"), no
    /// end of patience, and places that can be shown.
    #[test]
    fn nothing_panics(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24),
        value in any_value(),
        jinja in any::<bool>(),
    ) {
        let mut template = pieces.concat();
        if jinja {
            template.insert_str(0, "{{ input.a }}{% if 1 %}");
        }
        let input = Yaml::Map(vec![(node(string("a")), node(value.clone())), (node(string("b")), node(value))]);
        fields(&template);
        if let Err(error) = render(&template, &input, &Yaml::Null) {
            let text = error.to_string();
            prop_assert!(!text.contains("engine failed") && !text.contains("too long"), "{}", text);
            let ranges = match error {
                TemplateError::MissingFields(fields) => {
                    fields.into_iter().filter_map(|field| field.range).collect()
                }
                TemplateError::Invalid { range, .. } => Vec::from_iter(range),
                TemplateError::NotAMapping => Vec::new(),
            };
            for range in ranges {
                prop_assert!(template.get(range.clone()).is_some(), "{:?} of {:?}", range, template);
            }
        }
    }

    /// Both styles give the same text, `str()` and `repr()` of any value.
    #[test]
    fn both_styles_print_alike(value in any_value()) {
        prop_assume!(value != Yaml::Null);
        let input = Yaml::Map(vec![(node(string("v")), node(value.clone()))]);
        let brace = render("<{v}>", &input, &Yaml::Null).unwrap();
        prop_assert_eq!(&brace, &format!("<{}>", python_str(&value)));
        for template in ["<{{ input.v }}>", "<{{ input['v'] | string }}>", "{{ '<' ~ input.v ~ '>' }}"] {
            let text = render(template, &input, &Yaml::Null).unwrap();
            // A mapping with one key twice can't come from YAML.
            if !brace.contains('{') && !brace.contains('(') {
                prop_assert_eq!(&text, &brace, "{}", template);
            }
        }
        let repr = python_repr(&value);
        prop_assert_eq!(python_repr(&Yaml::Seq(vec![node(value)])), format!("[{repr}]"));
    }

    /// What is between the braces is a name and nothing else.
    #[test]
    fn braces_do_what_the_expression_does(template in "[a-c{}? \n]{0,20}") {
        prop_assume!(!is_jinja(&template));
        let values = r#"{"a": 1, "b": null, "": "e"}"#;
        let mut expected = String::new();
        let mut missing = 0;
        let mut rest = template.as_str();
        // \{([^}]+)\}
        while let Some(open) = rest.find('{') {
            let close = rest[open..].find('}').map(|close| open + close);
            match close {
                Some(close) if close > open + 1 => {
                    expected.push_str(&rest[..open]);
                    let name = &rest[open + 1..close];
                    match (name.strip_suffix('?').unwrap_or(name), name.ends_with('?')) {
                        ("a", _) => expected.push('1'),
                        ("", _) => expected.push('e'),
                        (_, true) => {}
                        (_, false) => missing += 1,
                    }
                    rest = &rest[close + 1..];
                }
                _ => {
                    expected.push_str(&rest[..=open]);
                    rest = &rest[open + 1..];
                }
            }
        }
        expected.push_str(rest);
        match rendered(&template, values) {
            Ok(text) => {
                prop_assert_eq!(missing, 0);
                prop_assert_eq!(text, expected.trim());
            }
            Err(TemplateError::MissingFields(fields)) => prop_assert_eq!(fields.len(), missing),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

/// Nesting that the engine's parser refuses, and what goes through it before.
#[test]
fn deep_templates_are_refused() {
    for (open, close) in [
        ("(", ")"),
        ("[", "]"),
        ("{'a': ", "}"),
        ("-", ""),
        ("not ", ""),
        ("'a' ~ (", ")"),
        ("1 if ", ""),
        ("input.a(", ")"),
    ] {
        for depth in [100, 9_000, 100_000] {
            let template = format!("{{{{ {}1{} }}}}", open.repeat(depth), close.repeat(depth));
            fields(&template);
            let started = std::time::Instant::now();
            let result = rendered(&template, "{}");
            assert!(started.elapsed().as_secs() < 10, "{open}");
            assert!(depth < 100_000 || result.is_err(), "{open}");
        }
    }
    let template = format!(
        "{}{}",
        "{% if 1 %}".repeat(50_000),
        "{% endif %}".repeat(50_000)
    );
    fields(&template);
    assert!(rendered(&template, "{}").is_err());
}

/// Each of these would take minutes or gigabytes.
#[test]
fn bombs_are_refused_in_time() {
    for template in [
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{{ range(1000000000) | list }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 'x' * 90000000 }}",
        "{{ [1] * 90000000 }}",
        "{{ ([1] * 90000000) ~ '' }}",
        "{{ ([1] * 90000000) | list }}",
        "{{ ([1] * 90000000) | join }}",
        "{{ ([1] * 90000000) | tojson }}",
        "{{ ([1] * 90000000) | string }}",
        "{{ ([1] * 90000000) | sort }}",
        "{{ ([1] * 90000000) | upper }}",
        "{{ ([1] * 90000000) | unique | list }}",
        "{{ ([1] * 90000000) | batch(2) | list }}",
        "{{ ([1] * 90000000) | sum }}",
        "{{ ([1] * 90000000) | length }}{{ ([1] * 90000000) | last }}{{ ([1] * 90000000)[:-1] | length }}",
        "{{ 2 ** 100000000 }}",
        "{{ 'x' | center(2000000000) }}",
        "{{ 'x'.ljust(2000000000) }}",
        "{{ 'x' | indent(2000000000, true) }}",
        "{{ '%2000000000d' | format(1) }}",
        "{{ '{:2000000000d}'.format(1) }}",
        "{{ '{:.2000000000f}'.format(1.5) }}",
        "{{ 1.5 | round(2000000000) }}{{ input.big | replace('', input.big) }}",
        "{{ input.big.replace('x', input.big) }}",
        "{{ input.big.join(input.big) }}",
        "{{ input.big | join(input.big) }}",
        "{% set ns = namespace(x='xx') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=['xx']) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=['xx']) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=['xx']) %}{% for i in range(100) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x ~ '' }}",
        "{% macro m(x) %}{{ m(x) }}{{ m(x) }}{% endmacro %}{{ m(1) }}",
        "{% macro m(x) %}{% if x %}{{ m(x - 1) }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for x in range(100000) %}{{ input.big }}{% endfor %}",
        "{% for x in range(1000) %}{{ input.words.split() | length }}{% endfor %}",
        "{% for x in range(100000) %}{{ input.map | tojson }}{% endfor %}",
    ] {
        let big = "x".repeat(100_000);
        let input = Yaml::Map(vec![
            (node(string("big")), node(string(&big))),
            (node(string("words")), node(string(&"x ".repeat(100_000)))),
            (
                node(string("map")),
                node(Yaml::Seq(vec![node(Yaml::Null); 10_000])),
            ),
        ]);
        let started = std::time::Instant::now();
        let result = render(template, &input, &Yaml::Null);
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "{seconds:.3} {template}: {:?}",
            result.as_ref().map(String::len)
        );
        assert!(result.is_err(), "{template}");
        assert!(seconds < 20.0, "{template} took {seconds} s");
    }
}

/// Lists in lists are compared, hashed and dropped one within the other.
#[test]
fn deep_lists_of_a_template_are_no_crash() {
    let tower = "{% for i in range(55000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let towers =
        "{% for i in range(30000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}";
    for (tower, tail) in [
        (tower, ""),
        (tower, "{{ ns.x | length }}"),
        (tower, "{{ ns.x }}"),
        (tower, "{{ ns.x | tojson }}"),
        (tower, "{{ ns.x ~ '' }}"),
        (tower, "{{ {'a': ns.x} | length }}"),
        (tower, "{{ {ns.x: 1} | length }}"),
        (
            tower,
            "{% for a in [ns.x] recursive %}{{ loop(a) }}{% endfor %}",
        ),
        (towers, "{{ ns.x == ns.y }}"),
        (towers, "{{ ns.x < ns.y }}"),
        (towers, "{{ [ns.x, ns.y] | sort | length }}"),
        (towers, "{{ [ns.x, ns.y] | unique | list | length }}"),
        (towers, "{{ {ns.x: 1, ns.y: 2} | length }}"),
    ] {
        let template = format!("{{% set ns = namespace(x=[], y=[]) %}}{tower}{tail}");
        let result = rendered(&template, "{}");
        println!("{tail}: {:?}", result.map(|text| text.len()));
    }
}
