//! PyYAML itself as the judge: generated, mutated and real documents, and what the emitter writes.
//!
//! `CASEPACK_YAML_DOCUMENTS`, `_MUTATIONS`, `_SEED`, `_CORPUS` (a directory) and `_SHOW` widen the
//! search by hand.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};

use super::{read, tagged};
use crate::yaml::*;

/// Runs PyYAML over `texts`: for each the tagged JSON, or why it refused. `None` without PyYAML.
pub(super) fn pyyaml(texts: &[String]) -> Option<Vec<Result<Json, String>>> {
    const SCRIPT: &str = r#"
import base64, datetime, json, struct, sys
try:
    import yaml
except ImportError:
    sys.exit(77)
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(4300)
def tag(kind, value):
    return {"$py": kind, "v": value}
def convert(value):
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= 2**53 else tag("int", str(value))
    if isinstance(value, float):
        if value != value:
            return tag("float", "nan")
        return tag("bits", struct.pack(">d", value).hex())
    if isinstance(value, str):
        value.encode()
        return value
    if isinstance(value, datetime.datetime):
        return tag("datetime", value.isoformat())
    if isinstance(value, datetime.date):
        return tag("date", value.isoformat())
    if isinstance(value, bytes):
        return tag("bytes", base64.b64encode(value).decode())
    if isinstance(value, list):
        return [convert(item) for item in value]
    if isinstance(value, tuple):
        return tag("tuple", [convert(item) for item in value])
    if isinstance(value, set):
        return tag("set", sorted((convert(item) for item in value), key=key))
    pairs = [[convert(name), convert(item)] for name, item in value.items()]
    names = [name for name, _ in pairs]
    if all(isinstance(name, str) for name in names) and "$py" not in names and names == sorted(names):
        return dict(pairs)
    return tag("dict", pairs)
def key(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
def run(text):
    try:
        return {"ok": convert(yaml.safe_load(text))}
    except RecursionError:
        return {"error": "recursion"}
    except Exception as error:
        return {"error": "%s: %s" % (type(error).__name__, " ".join(str(error).split()))}
json.dump([run(text) for text in json.load(sys.stdin)], sys.stdout)
"#;
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take().unwrap();
    let input = serde_json::to_vec(texts).unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let written = writer.join().unwrap();
    if output.status.code() == Some(77) {
        return None;
    }
    assert!(output.status.success());
    written.unwrap();
    let answers: Vec<Json> = serde_json::from_slice(&output.stdout).unwrap();
    Some(
        answers
            .into_iter()
            .map(|answer| match answer.get("ok") {
                Some(value) => Ok(value.clone()),
                None => Err(answer["error"].as_str().unwrap().to_owned()),
            })
            .collect(),
    )
}

/// Tagged JSON in the form of the script: floats as bits, sets sorted.
fn canonical(value: Json) -> Json {
    match value {
        Json::Number(number) if number.is_f64() => {
            let bits = number.as_f64().unwrap().to_bits();
            json!({"$py": "bits", "v": format!("{bits:016x}")})
        }
        Json::Array(items) => items.into_iter().map(canonical).collect(),
        Json::Object(object) => {
            let kind = object.get("$py").and_then(Json::as_str).map(str::to_owned);
            let mut object: serde_json::Map<String, Json> = object
                .into_iter()
                .map(|(key, item)| (key, canonical(item)))
                .collect();
            match (kind.as_deref(), object.get("v").and_then(Json::as_str)) {
                (Some("float"), Some("inf")) => return canonical_bits(f64::INFINITY),
                (Some("float"), Some("-inf")) => return canonical_bits(f64::NEG_INFINITY),
                (Some("set"), None) => {
                    let mut items: Vec<String> = object["v"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(Json::to_string)
                        .collect();
                    items.sort();
                    object["v"] = items
                        .iter()
                        .map(|item| serde_json::from_str::<Json>(item).unwrap())
                        .collect();
                }
                _ => {}
            }
            Json::Object(object)
        }
        plain => plain,
    }
}

fn canonical_bits(value: f64) -> Json {
    json!({"$py": "bits", "v": format!("{:016x}", value.to_bits())})
}

/// How reading `texts` compares with PyYAML.
#[derive(Debug, Default)]
struct Comparison {
    same: usize,
    both_refuse: usize,
    /// Refused here only, which is allowed if a person is told how to write it.
    refused_here: Vec<(String, String)>,
    /// Everything else: other value, or accepted here only.
    wrong: Vec<(String, String)>,
}

fn compare(texts: &[String]) -> Option<Comparison> {
    let answers = pyyaml(texts)?;
    let mut found = Comparison::default();
    for (text, answer) in texts.iter().zip(answers) {
        match (read(text), answer) {
            (Ok(document), Ok(expected)) => {
                let here = canonical(document.root.value.to_tagged_json());
                if here == expected {
                    found.same += 1;
                } else {
                    found
                        .wrong
                        .push((text.clone(), format!("here {here}, PyYAML {expected}")));
                }
            }
            (Err(_), Err(_)) => found.both_refuse += 1,
            (Err(error), Ok(_)) => {
                assert!(!error.help.is_empty());
                found.refused_here.push((text.clone(), error.message));
            }
            (Ok(document), Err(error)) => {
                let here = document.root.value.to_tagged_json();
                found.wrong.push((
                    text.clone(),
                    format!("here {here}, PyYAML refuses: {error}"),
                ));
            }
        }
    }
    Some(found)
}

/// A small deterministic generator: the same texts on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % u64::try_from(below).unwrap()).unwrap()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.next(from.len())]
    }
}

pub(super) const PIECES: &[&str] = &[
    "a",
    "b: ",
    "key: ",
    "- ",
    "? ",
    ": ",
    ":",
    ",",
    ", ",
    "[",
    "]",
    "{",
    "}",
    "\n",
    "\n",
    "\n  ",
    "\n    ",
    " ",
    "  ",
    "\t",
    "#",
    " # c",
    "\n# c\n",
    "|",
    ">",
    "|\n  ",
    ">\n  ",
    "|-\n",
    "|+\n",
    ">2\n",
    "'",
    "\"",
    "'x'",
    "\"y\"",
    "\"a\n b\"",
    "''",
    "\\n",
    "\\",
    "&a ",
    "*a",
    "&b ",
    "*b ",
    "!!str ",
    "!!int ",
    "! ",
    "!x ",
    "!!set ",
    "!!omap ",
    "!!binary ",
    "<<: ",
    "<<",
    "=",
    "~",
    "null",
    "yes",
    "no",
    "010",
    "1_0",
    "1:30",
    "0x1F",
    "0b11",
    "1e3",
    "1.5",
    ".5",
    "-",
    "--",
    "---",
    "---\n",
    "\n---\n",
    "...",
    "\n...\n",
    "2024-01-31",
    "2024-02-31",
    "12:30:45",
    "é",
    "日本",
    "🦀",
    "%",
    "@",
    "`",
    "%YAML 1.1\n---\n",
    "\r\n",
    "\u{FEFF}",
    "\u{85}",
    "\u{2028}",
    "-\t",
    "x y",
    "x #y",
    "x: y",
    "?x",
    "x?y",
    ":x",
    "-1",
    "+.inf",
    ".nan",
    "on",
    "\"k\": ",
    "'k': ",
    "\"k\":v",
    "\"a\u{2028}b\"",
];

/// A text that nobody would write, from the pieces that matter to a YAML reader.
fn hostile(random: &mut Random) -> String {
    let length = 1 + random.next(10);
    (0..length).map(|_| random.pick(PIECES)).collect()
}

/// A scalar that looks like a number, a date or a word.
fn lookalike(random: &mut Random) -> String {
    const LETTERS: &[&str] = &[
        "0", "1", "2", "7", "8", "9", "5", "_", ".", ":", "-", "+", "e", "E", "x", "b", "o", "0x",
        "0b", "0o", "e+", "e-", "inf", ".inf", ".nan", "nan", "true", "Yes", "OFF", "null", "~",
        "T", " ", "Z", "2024-", "01-", "31", "12:", "30:", "00", "+02:00", " -5", "a", "f", "=",
        "<<", "y", "n",
    ];
    let length = 1 + random.next(7);
    (0..length).map(|_| random.pick(LETTERS)).collect()
}

/// A document with a sensible structure and odd details.
fn document(random: &mut Random, indent: usize, depth: usize, out: &mut String) {
    const SCALARS: &[&str] = &[
        "x",
        "a b",
        "10",
        "010",
        "1e3",
        "1.0e+3",
        "yes",
        "'it''s'",
        "\"q\\t\\u00e9\"",
        "~",
        "",
        "2024-01-31",
        "2024-01-31 10:20:30.5 +02:00",
        "[a, 1, {b: c}]",
        "{a: 1, 'b': [x, y], c: }",
        "|\n",
        ">\n",
        ">-\n",
        "|+\n",
        "|2-\n",
        "\"a\n",
        "plain\n",
        "# only a comment",
        "a # comment",
        "'x' # comment",
        "http://h/p?q=1#f",
        "[http://h/p, b]",
        "*x",
        "&x 1",
        "!!str 12",
        "!!float 3",
        "! 12",
        "&y [1, 2]",
        "é 日本",
        "-",
        "- a",
        "a: b",
        "!!set {a, b, a}",
        "!!binary aGk=",
        "!!pairs [a: 1, a: 2]",
        "=",
    ];
    let pad = " ".repeat(indent);
    let list = random.next(3) == 0;
    for _ in 0..=random.next(4) {
        out.push_str(&pad);
        let head = if list {
            "-".to_owned()
        } else {
            const KEYS: &[&str] = &[
                "a",
                "b",
                "key",
                "'q r'",
                "1",
                "1.0",
                "true",
                "on",
                "~",
                "? x",
                "\"d\"",
                "<<",
                "2024-01-31",
                "k k",
            ];
            let key = random.pick(KEYS);
            if key == "? x" {
                format!("{key}\n{pad}:")
            } else {
                format!("{key}:")
            }
        };
        out.push_str(&head);
        if depth > 0 && random.next(3) == 0 {
            if random.next(6) == 0 {
                out.push_str(" &z");
            }
            out.push('\n');
            let step = if list || random.next(4) > 0 {
                1 + random.next(3)
            } else {
                0
            };
            document(random, indent + step, depth - 1, out);
            continue;
        }
        let scalar = random.pick(SCALARS);
        out.push(' ');
        out.push_str(scalar);
        if scalar.ends_with('\n') {
            let inner = indent + 1 + random.next(3);
            for _ in 0..random.next(4) {
                let line = random.pick(&[
                    "text",
                    "  more",
                    "",
                    " ",
                    "   ",
                    "# no comment",
                    "- dash",
                    "k: v",
                    "tab\tbed",
                    "é",
                ]);
                if !line.is_empty() {
                    out.push_str(&" ".repeat(inner));
                }
                out.push_str(line);
                out.push('\n');
            }
            if scalar == "\"a\n" {
                out.push_str(&" ".repeat(inner));
                out.push_str("end\"\n");
            }
        } else {
            out.push_str(random.pick(&["\n", "\n", "\n", "\n\n", "  \n", "\r\n"]));
        }
    }
}

fn documents(seed: u64, count: usize) -> Vec<String> {
    let mut random = Random(seed);
    (0..count)
        .map(|index| match index % 3 {
            0 => hostile(&mut random),
            1 => {
                let scalar = lookalike(&mut random);
                let around = random.next(4);
                match around {
                    0 => scalar,
                    1 => format!("k: {scalar}\n"),
                    2 => format!("- {scalar}"),
                    _ => format!("[{scalar}, b]"),
                }
            }
            _ => {
                let mut text = String::new();
                document(&mut random, 0, 3, &mut text);
                for _ in 0..random.next(3) {
                    text.pop();
                }
                text
            }
        })
        .collect()
}

/// All files below `directory` with one of the endings.
fn files(directory: &std::path::Path, endings: &[&str], found: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() && !path.is_symlink() {
            files(&path, endings, found);
        } else if ending.is_some_and(|ending| endings.contains(&ending))
            && path
                .metadata()
                .is_ok_and(|file| file.is_file() && file.len() < 4_000)
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            found.push(text);
        }
    }
}

/// `text` with one or two small things changed.
fn mutated(text: &str, random: &mut Random) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for _ in 0..=random.next(2) {
        let at = random.next(letters.len() + 1);
        match random.next(3) {
            0 if at < letters.len() => {
                let end = (at + 1 + random.next(4)).min(letters.len());
                letters.drain(at..end);
            }
            1 => {
                let end = (at + random.next(30)).min(letters.len());
                let copy: Vec<char> = letters[at..end].to_vec();
                let to = random.next(letters.len() + 1);
                letters.splice(to..to, copy);
            }
            _ => {
                letters.splice(at..at, random.pick(PIECES).chars());
            }
        }
    }
    letters.into_iter().collect()
}

fn number_from(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(otherwise)
}

pub(super) fn assert_same(what: &str, texts: &[String]) {
    let Some(found) = compare(texts) else {
        println!("skipped: python3 with PyYAML is not here");
        return;
    };
    println!(
        "{} {what}: {} same, {} refused by both, {} refused here only, {} wrong",
        texts.len(),
        found.same,
        found.both_refuse,
        found.refused_here.len(),
        found.wrong.len()
    );
    if std::env::var_os("CASEPACK_YAML_SHOW").is_some() {
        for (text, why) in &found.refused_here {
            println!("REFUSED {text:?}: {why}");
        }
        for (text, why) in &found.wrong {
            println!("WRONG {text:?}: {why}");
        }
    }
    assert_eq!(found.wrong.len(), 0, "{:#?}", found.wrong.first());
}

#[test]
fn generated_documents_mean_what_pyyaml_says() {
    let count = number_from("CASEPACK_YAML_DOCUMENTS", 2_000);
    let seed = number_from("CASEPACK_YAML_SEED", 20_240_131);
    assert_same("generated documents", &documents(seed as u64, count));
}

#[test]
fn real_documents_mean_what_pyyaml_says() {
    let directory = std::env::var("CASEPACK_YAML_CORPUS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/vectors").to_owned());
    let mut texts = Vec::new();
    files(directory.as_ref(), &["yaml", "yml", "json"], &mut texts);
    if texts.is_empty() {
        println!("skipped: no vectors here");
        return;
    }
    texts.sort();
    texts.dedup();
    assert_same("real documents", &texts);
    let mut random = Random(number_from("CASEPACK_YAML_SEED", 1) as u64);
    let mutations = number_from("CASEPACK_YAML_MUTATIONS", 400);
    let texts: Vec<String> = (0..mutations)
        .map(|_| mutated(&texts[random.next(texts.len())], &mut random))
        .collect();
    assert_same("mutated documents", &texts);
}

/// Any value that a document can have.
fn value(random: &mut Random, depth: usize) -> Yaml {
    const TEXTS: &[&str] = &[
        "",
        " ",
        "yes",
        "010",
        "1:30",
        "1_000",
        "2024-01-01",
        "=",
        "<<",
        "~",
        "null",
        "a: b",
        "- a",
        "# c",
        "x # c",
        "\"q\" 'q' \\",
        "tab\tbed",
        "two\nlines\n",
        "\r\n",
        "\0\u{7}\u{1b}",
        "\u{7f}\u{85}\u{a0}",
        "\u{2028}\u{2029}",
        "\u{feff}x",
        "\u{fffe}\u{ffff}",
        "é日本🦀",
        "---",
        "...",
        "$py",
        "%a",
        "[",
        "{",
        "*a",
        "&a",
        "!a",
        "|",
        ">",
        " trailing ",
        "\u{e000}\u{10ffff}",
    ];
    let node = |value| Node { value, span: 0..0 };
    let date = Date {
        year: u16::try_from(1 + random.next(9999)).unwrap(),
        month: u8::try_from(1 + random.next(12)).unwrap(),
        day: u8::try_from(1 + random.next(28)).unwrap(),
    };
    match random.next(if depth == 0 { 9 } else { 14 }) {
        0 => Yaml::Null,
        1 => Yaml::Bool(random.next(2) == 0),
        2 => {
            let digits: String = (0..=random.next(40))
                .map(|_| random.pick(&["1", "0", "9", "5"]))
                .collect();
            let number: BigInt = digits.parse().unwrap();
            Yaml::Int(if random.next(2) == 0 { -number } else { number })
        }
        3 => match random.next(6) {
            0 => Yaml::Float(f64::NAN),
            1 => Yaml::Float(f64::NEG_INFINITY),
            2 => Yaml::Float(-0.0),
            3 => Yaml::Float(1e16),
            4 => Yaml::Float(5e-324),
            _ => {
                let bits = (random.next(1 << 31) as u64) << 33 | random.next(1 << 31) as u64;
                let float = f64::from_bits(bits);
                Yaml::Float(if float.is_nan() { f64::NAN } else { float })
            }
        },
        4 | 5 => Yaml::Str(Arc::from(random.pick(TEXTS))),
        6 => Yaml::Date(date),
        7 => Yaml::DateTime(DateTime {
            date,
            hour: u8::try_from(random.next(24)).unwrap(),
            minute: u8::try_from(random.next(60)).unwrap(),
            second: u8::try_from(random.next(60)).unwrap(),
            microsecond: if random.next(2) == 0 {
                0
            } else {
                u32::try_from(random.next(1_000_000)).unwrap()
            },
            offset_minutes: if random.next(2) == 0 {
                None
            } else {
                Some(i32::try_from(random.next(2800)).unwrap() - 1400)
            },
        }),
        8 => Yaml::Binary(
            (0..random.next(9))
                .map(|_| u8::try_from(random.next(256)).unwrap())
                .collect(),
        ),
        9 | 10 => Yaml::Seq(
            (0..random.next(4))
                .map(|_| node(value(random, depth - 1)))
                .collect(),
        ),
        11 | 12 => {
            let keys = keys(random);
            Yaml::Map(
                keys.into_iter()
                    .map(|key| (node(key), node(value(random, depth - 1))))
                    .collect(),
            )
        }
        _ if random.next(2) == 0 => Yaml::Set(keys(random).into_iter().map(node).collect()),
        _ => Yaml::Pairs(
            (0..random.next(3))
                .map(|_| {
                    (
                        node(value(random, depth - 1)),
                        node(value(random, depth - 1)),
                    )
                })
                .collect(),
        ),
    }
}

fn keys(random: &mut Random) -> Vec<Yaml> {
    let mut seen = std::collections::BTreeSet::new();
    let mut keys: Vec<Yaml> = (0..random.next(5)).map(|_| value(random, 0)).collect();
    if random.next(5) == 0 {
        keys.push(Yaml::Str(Arc::from("long ".repeat(300))));
    }
    keys.retain(|key| scalar::KeyIdentity::new(key).is_some_and(|identity| seen.insert(identity)));
    keys
}

#[test]
fn emitted_values_read_back_the_same() {
    let mut random = Random(7);
    let values: Vec<Yaml> = (0..500).map(|_| value(&mut random, 4)).collect();
    let texts: Vec<String> = values.iter().map(emit).collect();
    for (value, text) in values.iter().zip(&texts) {
        assert_eq!(tagged(text), value.to_tagged_json(), "{text}");
        assert_eq!(&emit(&read(text).unwrap().root.value), text);
    }
    let Some(answers) = pyyaml(&texts) else {
        println!("skipped: python3 with PyYAML is not here");
        return;
    };
    for ((value, text), answer) in values.iter().zip(&texts).zip(answers) {
        assert_eq!(Ok(canonical(value.to_tagged_json())), answer, "{text}");
    }
    println!(
        "{} emitted values read back the same by PyYAML",
        values.len()
    );
}
