//! PyYAML's meaning, told by tables; the limits; and what holds for any text.

mod pyyaml;

use serde_json::{Value as Json, json};

use self::pyyaml::{PIECES, assert_same, pyyaml};
use super::*;

fn source(text: &str) -> Arc<Source> {
    Arc::new(Source::new("test.yaml", text))
}

fn read(text: &str) -> Result<Document, Box<Diagnostic>> {
    parse(source(text))
}

fn tagged(text: &str) -> Json {
    match read(text) {
        Ok(document) => document.root.value.to_tagged_json(),
        Err(error) => panic!("{text:?}: {}", error.message),
    }
}

/// `{"$py": kind, "v": value}`.
fn py(kind: &str, value: impl Into<Json>) -> Json {
    json!({"$py": kind, "v": value.into()})
}

#[test]
fn scalars_have_the_types_of_yaml_1_1() {
    let table: Vec<(&str, Json)> = vec![
        ("", Json::Null),
        ("~", Json::Null),
        ("null", Json::Null),
        ("nUll", json!("nUll")),
        ("yes", json!(true)),
        ("Off", json!(false)),
        ("y", json!("y")),
        ("tRUE", json!("tRUE")),
        ("'yes'", json!("yes")),
        ("010", json!(8)),
        ("-010", json!(-8)),
        ("08", json!("08")),
        ("0o10", json!("0o10")),
        ("0x1F", json!(31)),
        ("0b1_1", json!(3)),
        ("1_000", json!(1000)),
        ("+12", json!(12)),
        ("12:30:45", json!(45_045)),
        ("22:22", json!(1342)),
        ("00:30", json!("00:30")),
        ("1:60", json!("1:60")),
        ("9007199254740992", json!(9_007_199_254_740_992_i64)),
        ("9007199254740993", py("int", "9007199254740993")),
        (
            "-123456789012345678901234567890",
            py("int", "-123456789012345678901234567890"),
        ),
        ("1e3", json!("1e3")),
        ("1.0e3", json!("1.0e3")),
        ("1.5e+3", json!(1500.0)),
        ("1.10", json!(1.1)),
        ("2.0", json!(2.0)),
        (".5", json!(0.5)),
        ("-.5", json!("-.5")),
        ("1.", json!(1.0)),
        ("1_0.5_0", json!(10.5)),
        ("1:30.5", json!(90.5)),
        (".inf", py("float", "inf")),
        ("-.INF", py("float", "-inf")),
        (".NaN", py("float", "nan")),
        ("inf", json!("inf")),
        ("2024-01-31", py("date", "2024-01-31")),
        ("2024-1-5", json!("2024-1-5")),
        ("2024-1-5 1:02:03", py("datetime", "2024-01-05T01:02:03")),
        (
            "2024-01-31T10:20:30.12Z",
            py("datetime", "2024-01-31T10:20:30.120000+00:00"),
        ),
        (
            "2024-01-31 10:20:30.1234567 -5:30",
            py("datetime", "2024-01-31T10:20:30.123456-05:30"),
        ),
        ("2024-01-31 10:20", json!("2024-01-31 10:20")),
        ("! 12", json!(12)),
        ("! '12'", json!(12)),
        ("!!str 12", json!("12")),
        ("!!int '0b11'", json!(3)),
        ("!!float 3", json!(3.0)),
        ("!!float 1e3", json!(1000.0)),
        ("!!bool YeS", json!(true)),
        ("!!null x", Json::Null),
        ("!!timestamp 2024-1-5", py("date", "2024-01-05")),
        ("!<tag:yaml.org,2002:str> 1", json!("1")),
        ("!!binary aGk=", py("bytes", "aGk=")),
        ("!!binary 'a G\n  k = ='", py("bytes", "aGk=")),
        ("!!set {b, a}", py("set", json!(["b", "a"]))),
        (
            "!!pairs [a: 1, a: 2]",
            json!([py("tuple", json!(["a", 1])), py("tuple", json!(["a", 2]))]),
        ),
        ("!!omap [{[x]: 1}]", json!([py("tuple", json!([["x"], 1]))])),
        ("{=: 1}", json!({"=": 1})),
        ("{'$py': 1}", py("dict", json!([["$py", 1]]))),
        ("{b: 1, a: 2}", py("dict", json!([["b", 1], ["a", 2]]))),
        ("{on: 1}", py("dict", json!([[true, 1]]))),
        ("\u{FEFF}a: 1\r\nb: 2\r\n", json!({"a": 1, "b": 2})),
        ("%YAML 1.2\n---\nyes", json!(true)),
        ("# nothing\n", Json::Null),
        ("\"\\0\\x41\\u00e9\\U0001F980\\/\"", json!("\0Aé🦀/")),
        ("|\n  x", json!("x")),
        (">+\n  x\n  y", json!("x y")),
        ("|+\n  x\n\n  ", json!("x\n\n")),
        ("|\n  x\n  ", json!("x\n")),
        ("|\n  x\n     ", json!("x\n   ")),
        ("a: |+\n  ", json!({"a": ""})),
        ("\"a\u{2028}b\"", json!("a\u{2028}b")),
    ];
    for (text, expected) in &table {
        let here = tagged(text);
        assert_eq!(&here, expected, "{text:?}");
        // 2.0 and 2 are the same to serde_json's eyes only where both are floats.
        assert_eq!(here.to_string(), expected.to_string(), "{text:?}");
    }
    let texts: Vec<String> = table.iter().map(|(text, _)| (*text).to_owned()).collect();
    assert_same("scalars of the table", &texts);
}

#[test]
fn what_pyyaml_refuses_is_refused_with_a_place_and_a_way_out() {
    let table = [
        ("2024-02-31", Rule::YamlSyntax, "2024-02-31"),
        (
            "a: 2024-01-31 24:00:00",
            Rule::YamlSyntax,
            "2024-01-31 24:00:00",
        ),
        ("a: 0b_", Rule::YamlSyntax, "0b_"),
        ("é: =", Rule::YamlSyntax, "="),
        ("a: <<", Rule::YamlSyntax, "<<"),
        ("<<: 1", Rule::YamlSyntax, "1"),
        ("<<: [{a: 1}, 2]", Rule::YamlSyntax, "2"),
        ("{[a]: 1}", Rule::YamlSyntax, "[a]"),
        ("? {a: 1}\n: 1", Rule::YamlSyntax, "{a: 1}"),
        ("!!set {[a]}", Rule::YamlSyntax, "[a]"),
        ("é: !env FOO", Rule::YamlTag, "!env"),
        (
            "a: !!python/object:os.system {}",
            Rule::YamlTag,
            "!!python/object:os.system",
        ),
        ("!!map [a]", Rule::YamlTag, "!!map"),
        ("!!str [a]", Rule::YamlTag, "!!str"),
        ("!!int abc", Rule::YamlSyntax, "abc"),
        ("!!bool y", Rule::YamlSyntax, "y"),
        ("!!binary a", Rule::YamlSyntax, "a"),
        ("!!binary é", Rule::YamlSyntax, "é"),
        ("!!pairs [a]", Rule::YamlSyntax, "a"),
        ("!!omap [{a: 1, b: 2}]", Rule::YamlSyntax, "{a: 1, b: 2}"),
        ("é: &a [*a]", Rule::YamlLimit, "*a"),
        ("a: &x 1\nb: &x 2", Rule::YamlSyntax, "&x"),
        ("a: 1\n---\nb: 2", Rule::YamlMultiDocument, "---"),
        ("a: 1\n---\n", Rule::YamlMultiDocument, "---"),
        ("é: a\u{7}b", Rule::YamlSyntax, "\u{7}"),
        ("a: \0", Rule::YamlSyntax, "\0"),
        ("a: b\u{85}c", Rule::YamlSyntax, "\u{85}"),
        ("a: b\u{2028}c", Rule::YamlSyntax, "\u{2028}"),
        ("é:\tb", Rule::YamlSyntax, "\t"),
        ("a: b\tc", Rule::YamlSyntax, "\t"),
        ("-\ta", Rule::YamlSyntax, "\t"),
        ("a: b\n\t\nc: d", Rule::YamlSyntax, "\t"),
        ("é: [http://h/p?q=1]", Rule::YamlSyntax, "http://h/p?q=1"),
        ("{\"é\"\n: b}", Rule::YamlSyntax, "\"é\""),
        ("{a\n b: c}", Rule::YamlSyntax, "a\n b"),
        (": a", Rule::YamlSyntax, ":"),
        ("{a: 1, : 2}", Rule::YamlSyntax, ":"),
        ("|\nx", Rule::YamlSyntax, "x"),
        ("a: &b:c d", Rule::YamlSyntax, "&b:c"),
        ("[!!str, a]", Rule::YamlSyntax, "!!str,"),
        ("a\n...\n%FOO\n", Rule::YamlSyntax, ""),
        ("%YAML 2.0\n---\na", Rule::YamlSyntax, "%YAML 2.0"),
        ("é: x\nmore\n", Rule::YamlSyntax, "more"),
        ("é: x\nmore text", Rule::YamlSyntax, "more text"),
        (
            "a:\n  b: 1\n  more \n\n# c\n  d: 2",
            Rule::YamlSyntax,
            "more",
        ),
        ("a: x\n\"quoted\"\r\nb: y", Rule::YamlSyntax, "\"quoted\""),
    ];
    for (text, rule, place) in table {
        let error = match read(text) {
            Ok(document) => panic!("{text:?} was read: {:?}", document.root.value),
            Err(error) => error,
        };
        assert_eq!(error.rule, rule, "{text:?}: {}", error.message);
        let at = error.place.as_ref().unwrap();
        if !place.is_empty() {
            assert_eq!(
                &at.source.text[at.range.clone()],
                place,
                "{text:?}: {}",
                error.message
            );
        }
        assert!(
            error.message.ends_with('.') && !error.help.is_empty(),
            "{text:?}"
        );
    }
    // Without a value of their own the parser's errors are a place.
    for text in [
        "a: [1",
        "a: 'x",
        "a: *x",
        "a: b: c",
        "a: 1\nb",
        "a: \"\\q\"",
        "\"\\ud83d\\ude00\"",
        "a: @x",
        "- a\nb: 1",
        "a: -\n  - b\n c: d",
        "a: &x\n  *x",
    ] {
        let error = read(text).unwrap_err();
        assert_eq!(error.rule, Rule::YamlSyntax, "{text:?}");
        assert!(
            error.message.ends_with('.') && !error.help.is_empty(),
            "{text:?}: {}",
            error.message
        );
    }
    let texts: Vec<String> = table.iter().map(|(text, ..)| (*text).to_owned()).collect();
    if let Some(answers) = pyyaml(&texts) {
        for (text, answer) in texts.iter().zip(answers) {
            let here_only = ["a: &b:c d", "a: b\u{85}c", "a: b\u{2028}c", "é: &a [*a]"];
            assert!(
                answer.is_err() || here_only.contains(&text.as_str()),
                "PyYAML reads {text:?}"
            );
        }
    }
}

#[test]
fn keys_are_those_of_a_python_dict() {
    let order = |text: &str| match &read(text).unwrap().root.value {
        Yaml::Map(entries) => entries
            .iter()
            .map(|(key, node)| json!([key.value.to_tagged_json(), node.value.to_tagged_json()]))
            .collect::<Json>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(order("{a: 1, b: 2, a: 3}"), json!([["a", 3], ["b", 2]]));
    assert_eq!(
        order("{1: a, b: x, 1.0: c, true: d}"),
        json!([[1, "d"], ["b", "x"]])
    );
    assert_eq!(order("{1: a, '1': b}"), json!([[1, "a"], ["1", "b"]]));
    assert_eq!(
        order("{.nan: 1, .NaN: 2, 0: 3, -0.0: 4}"),
        json!([[py("float", "nan"), 2], [0, 4]])
    );
    assert_eq!(
        order("a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc:\n  z: 0\n  <<: [*a, *b]\n  x: 9\n")[2],
        json!(["c", py("dict", json!([["y", 2], ["z", 0], ["x", 9]]))])
    );
    assert_eq!(
        order("{'<<': {a: 1}, b: 2}"),
        json!([["<<", {"a": 1}], ["b", 2]])
    );
    assert_eq!(
        order("{2024-01-31 10:00:00 +02:00: 1, 2024-01-31 08:00:00Z: 2, 2024-01-31 08:00:00: 3}"),
        json!([
            [py("datetime", "2024-01-31T10:00:00+02:00"), 2],
            [py("datetime", "2024-01-31T08:00:00"), 3]
        ])
    );
    let document = read("é: 1\nb: {c: 1, <<: {c: 2}, 'c': 3}\n\"é\": 2\n").unwrap();
    let told: Vec<(&str, &str)> = document
        .duplicate_keys
        .iter()
        .map(|(first, second)| {
            let text = &document.source.text;
            (&text[first.clone()], &text[second.clone()])
        })
        .collect();
    assert_eq!(told, [("c", "'c'"), ("é", "\"é\"")]);
    let mut diags = Diagnostics::default();
    document.report_duplicate_keys(&mut diags);
    let messages: Vec<&str> = diags.iter().map(|found| found.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "The keys `c` and `'c'` are equal in YAML, and only the last one counts.",
            "The keys `é` and `\"é\"` are equal in YAML, and only the last one counts.",
        ]
    );
}

#[test]
fn spans_are_bytes_of_the_value() {
    let text = "\u{FEFF}# é\n日本: &x 'ü' # ö\n🦀:\n  - é x\n  - [ä, \"ß\" ]  # c\n  - *x\n  - |\n    ñ\n    ñ\n\nlast: !!str ï\n";
    let document = read(text).unwrap();
    let cut = |node: &Node| text[node.span.clone()].to_owned();
    let Yaml::Map(entries) = &document.root.value else {
        panic!()
    };
    let keys: Vec<String> = entries.iter().map(|(key, _)| cut(key)).collect();
    assert_eq!(keys, ["日本", "🦀", "last"]);
    assert_eq!(cut(&entries[0].1), "'ü'");
    assert_eq!(cut(&entries[2].1), "ï");
    let Yaml::Seq(items) = &entries[1].1.value else {
        panic!()
    };
    let items: Vec<String> = items.iter().map(cut).collect();
    assert_eq!(items[..3], ["é x", "[ä, \"ß\" ]", "'ü'"]);
    assert_eq!(items[3].trim_end(), "|\n    ñ\n    ñ");
    assert!(cut(&entries[1].1).starts_with("- é x\n"));
    // More characters than one step of the table of offsets.
    let long = format!("{}: [{}x]", "é".repeat(300), "ü, ".repeat(500));
    let document = read(&long).unwrap();
    let Yaml::Map(entries) = &document.root.value else {
        panic!()
    };
    let Yaml::Seq(items) = &entries[0].1.value else {
        panic!()
    };
    assert_eq!(items.len(), 501);
    for item in items {
        let text = item.value.as_str().unwrap();
        assert_eq!(&long[item.span.clone()], text);
    }
}

#[test]
fn limits_hold() {
    let limit = |text: &str| read(text).unwrap_err().rule;
    let start = std::time::Instant::now();
    assert_eq!(limit(&"[".repeat(100_000)), Rule::YamlLimit);
    assert_eq!(limit(&"{a: ".repeat(100_000)), Rule::YamlLimit);
    assert_eq!(limit(&"- ".repeat(100_000)), Rule::YamlLimit);
    assert_eq!(limit(&"? ".repeat(100_000)), Rule::YamlLimit);
    assert_eq!(limit(&"a: ".repeat(100_000)), Rule::YamlSyntax);
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    assert!(read(&nested(MAX_DEPTH)).is_ok());
    assert_eq!(limit(&nested(MAX_DEPTH + 1)), Rule::YamlLimit);
    // Depth behind aliases counts.
    let halves = format!("a: &a {}\nb: {}", nested(80), nested(80).replace('1', "*a"));
    assert_eq!(limit(&halves), Rule::YamlLimit);
    // Nine times nine to the ninth.
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..9 {
        let below = format!("*a{}", level - 1);
        let list = vec![below; 9].join(",");
        bomb.extend([format!("a{level}: &a{level} [{list}]\n")]);
    }
    assert_eq!(limit(&bomb), Rule::YamlLimit);
    let merges = bomb
        .replace("[x,x,x,x,x,x,x,x,x]", "{x: [1]}")
        .replace('[', "{<<: [")
        .replace(']', "]}");
    assert!(read(&merges).is_err());
    // 100 kB, 700 times.
    let text = format!("a: &a {}\nb: [{}]", "x".repeat(100_000), "*a,".repeat(700));
    assert_eq!(limit(&text), Rule::YamlLimit);
    assert!(read(&text.replace("*a,*a,", "")).is_ok());
    // Anchors around anchors hold copies: these count, too.
    let anchors = format!(
        "{}{}{}",
        (0..100).fold(String::new(), |text, at| text + &format!("&a{at} [")),
        "x,".repeat(20_000),
        "]".repeat(100)
    );
    assert_eq!(limit(&anchors), Rule::YamlLimit);
    assert_eq!(limit(&format!("a: {}", "9".repeat(4301))), Rule::YamlLimit);
    assert_eq!(
        limit(&format!("a: 0x{}", "f".repeat(4000))),
        Rule::YamlLimit
    );
    assert!(read(&format!("a: {}", "9".repeat(4300))).is_ok());
    assert_eq!(limit(&" ".repeat(MAX_BYTES + 1)), Rule::TooLarge);
    assert_eq!(limit(&"x".repeat(100 << 20)), Rule::TooLarge);
    println!("limits took {:?}", start.elapsed());
}

#[test]
fn many_values_are_refused_before_they_fill_the_memory() {
    let text = "[a,".to_owned() + &"a,".repeat(MAX_NODES + 1);
    assert_eq!(read(&text).unwrap_err().rule, Rule::YamlLimit);
    let text = "- \n".repeat(MAX_NODES + 1);
    assert_eq!(read(&text).unwrap_err().rule, Rule::YamlLimit);
    // Commas in a text are none of a list.
    let text = format!("a: |\n  {}", "[1,2], ".repeat(MAX_NODES / 2));
    assert!(read(&text).is_ok());
}

#[test]
fn emitted_text_is_block_style_with_quoted_strings() {
    let document = read("{a: [1, {b: yes, c: 'yes'}, [x]], d: {}, e: !!set {f}, 2024-01-31: 1.0e+20, g: !!pairs [h: [i]]}").unwrap();
    assert_eq!(
        emit(&document.root.value),
        "\"a\":\n  - 1\n  - \"b\": true\n    \"c\": \"yes\"\n  - - \"x\"\n\"d\": {}\n\"e\": !!set\n  \"f\": null\n2024-01-31: 1.0e+20\n\"g\": !!pairs\n  - \"h\":\n      - \"i\"\n"
    );
}

#[test]
fn types_are_those_of_the_measured_table() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../shared/vectors/aeh/resolve_arguments.json"
    );
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("skipped: no vectors here");
        return;
    };
    let table: Json = serde_json::from_str(&text).unwrap();
    let mut checked = 0;
    for row in table["rows"].as_array().unwrap() {
        let Some(input) = row["input_yaml"].as_str() else {
            continue;
        };
        let refused = row["package"]["stage"] == "input";
        let document = match read(input) {
            Ok(document) => document,
            Err(error) => {
                assert!(
                    refused || row["python_type"].is_null() || error.rule == Rule::YamlLimit,
                    "{input:?}: {}",
                    error.message
                );
                continue;
            }
        };
        assert!(!refused, "{input:?} was read");
        let Some(expected) = row["python_type"].as_str() else {
            continue;
        };
        let root = &document.root.value;
        // The programs take an empty file for an empty mapping.
        if *root == Yaml::Null && expected == "dict" {
            continue;
        }
        let here = match root.get("v").map_or(Some(root), |node| Some(&node.value)) {
            None | Some(Yaml::Null) => "NoneType",
            Some(Yaml::Bool(_)) => "bool",
            Some(Yaml::Int(_)) => "int",
            Some(Yaml::Float(_)) => "float",
            Some(Yaml::Str(_)) => "str",
            Some(Yaml::Date(_)) => "date",
            Some(Yaml::DateTime(_)) => "datetime",
            Some(Yaml::Binary(_)) => "bytes",
            Some(Yaml::Seq(_) | Yaml::Pairs(_)) => "list",
            Some(Yaml::Map(_)) => "dict",
            Some(Yaml::Set(_)) => "set",
        };
        assert_eq!(here, expected, "{input:?}");
        checked += 1;
    }
    println!("{checked} rows have the type of the table");
    assert!(checked > 100);
}

/// Every span lies in the text, on the borders of characters.
fn check_spans(node: &Node, text: &str) {
    assert!(text.get(node.span.clone()).is_some(), "{node:?}");
    match &node.value {
        Yaml::Seq(items) | Yaml::Set(items) => {
            for item in items {
                check_spans(item, text);
            }
        }
        Yaml::Map(entries) | Yaml::Pairs(entries) => {
            for (key, value) in entries {
                check_spans(key, text);
                check_spans(value, text);
            }
        }
        _ => {}
    }
}

fn check_any(text: &str) {
    match read(text) {
        Ok(document) => {
            check_spans(&document.root, text);
            let emitted = emit(&document.root.value);
            assert_eq!(tagged(&emitted), document.root.value.to_tagged_json());
        }
        Err(error) => {
            let place = error.place.unwrap();
            assert!(
                text.get(place.range.clone()).is_some(),
                "{text:?} {:?}",
                place.range
            );
        }
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*|[ -~\n\t\r]{0,60}|[\\[\\]{},:?|>&*!a\n \"'-]{0,40}|(?s).{0,30}") {
        check_any(&text);
    }

    #[test]
    fn any_pieces_are_read_or_refused(picks in proptest::collection::vec(0..PIECES.len(), 0..14)) {
        let text: String = picks.into_iter().map(|pick| PIECES[pick]).collect();
        check_any(&text);
    }
}
