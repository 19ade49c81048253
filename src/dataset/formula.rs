//! Reward formulas, checked without Python: the subset of its expressions that `reward.formula`
//! may use (agent-eval-harness 4.4).
//!
//! Owns which formulas the verifier accepts. Refuses to know judges and values: it never computes.
//! Invariant: work and depth are bounded by the limits of the format, whatever the text.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::str::Chars;

use unicode_normalization::UnicodeNormalization;

/// Most nodes of Python's syntax tree, contexts and operators counted as its `ast.walk` does.
const MAX_NODES: usize = 200;
/// Largest magnitude of a number.
const MAX_CONSTANT: f64 = 1e6;
/// Most parentheses inside each other that Python's tokenizer takes.
const MAX_PARENTHESES: usize = 200;
/// Longest text that is looked at: far beyond what 200 nodes need, comments included.
const MAX_BYTES: usize = 64 * 1024;
/// What a formula may call.
const FUNCTIONS: [&str; 7] = ["min", "max", "abs", "round", "sum", "len", "mean"];
/// Words that are no names.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

/// Whether the formula is a bare word (`weighted`, or a judge's name), which is not checked as an
/// expression.
pub(super) fn is_bare(formula: &str) -> bool {
    let mut letters = formula.trim().chars();
    letters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '-'))
}

/// Checks a formula that is an expression; gives the names that it reads and does not set itself.
///
/// # Errors
/// What is wrong, as a fragment that fits after "the formula is invalid: ".
pub(super) fn check(formula: &str) -> Result<BTreeSet<String>, String> {
    let formula = formula.trim();
    if formula.len() > MAX_BYTES {
        return Err("it is too long".to_owned());
    }
    let mut parser = Parser {
        tokens: tokens(formula)?,
        at: 0,
        nodes: 1,
        loads: BTreeSet::new(),
        stores: BTreeSet::new(),
    };
    parser.module()?;
    Ok(parser
        .loads
        .iter()
        .filter(|name| !FUNCTIONS.contains(&name.as_str()) && !parser.stores.contains(*name))
        .cloned()
        .collect())
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Name(String),
    Number(f64),
    /// Operators and keywords.
    Sign(&'static str),
    /// A line break that ends a statement.
    Newline,
}

impl Token {
    fn describe(&self) -> String {
        match self {
            Self::Name(name) => format!("`{name}`"),
            Self::Number(number) => format!("`{number}`"),
            Self::Sign(sign) => format!("`{sign}`"),
            Self::Newline => "the end of a line".to_owned(),
        }
    }
}

/// Longest first, so that `<=` is not read as `<` and `=`. Those that are never allowed are here to
/// be named in the message.
const SIGNS: [&str; 45] = [
    "**=", "//=", "<<=", ">>=", "...", "**", "//", "<<", ">>", "<=", ">=", "==", "!=", "->", "+=",
    "-=", "*=", "/=", "%=", "@=", "&=", "|=", "^=", ":=", "<>", "+", "-", "*", "/", "%", "@", "&",
    "|", "^", "~", "<", ">", "(", ")", "[", "]", "{", "}", ",", ":",
];
const MORE_SIGNS: [&str; 3] = [".", ";", "="];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut open: Vec<char> = Vec::new();
    let mut line_start = true;
    while let Some(first) = rest.chars().next() {
        if line_start && open.is_empty() {
            let unindented = rest.trim_start_matches([' ', '\t', '\x0c']);
            // A line that holds nothing but a comment has no indentation.
            if unindented.len() < rest.len()
                && !unindented.is_empty()
                && !unindented.starts_with(['\n', '\r', '#'])
            {
                return Err("a line is indented".to_owned());
            }
        }
        // A line that starts with a backslash goes on with the indentation of the next.
        line_start &= first == '\\';
        match first {
            ' ' | '\t' | '\x0c' => rest = &rest[1..],
            '\n' | '\r' => {
                if open.is_empty() && found.last().is_some_and(|last| *last != Token::Newline) {
                    found.push(Token::Newline);
                }
                line_start = true;
                rest = &rest[1..];
            }
            '#' => rest = &rest[rest.find(['\n', '\r']).unwrap_or(rest.len())..],
            '\\' => {
                rest = rest
                    .strip_prefix("\\\r\n")
                    .or_else(|| rest.strip_prefix("\\\n"))
                    .or_else(|| rest.strip_prefix("\\\r"))
                    .filter(|next| !next.is_empty())
                    .ok_or("there is a stray backslash")?;
            }
            '"' | '\'' => return Err("text is not allowed, only numbers".to_owned()),
            '0'..='9' => rest = number(rest, &mut found)?,
            '.' if rest[1..].starts_with(|next: char| next.is_ascii_digit()) => {
                rest = number(rest, &mut found)?;
            }
            _ if is_name_start(first) => {
                let end = rest
                    .find(|letter: char| !is_name_part(letter))
                    .unwrap_or(rest.len());
                let (name, after) = rest.split_at(end);
                if after.starts_with(['"', '\'']) {
                    return Err("text is not allowed, only numbers".to_owned());
                }
                // Python compares names after NFKC.
                let name: String = name.nfkc().collect();
                found.push(match KEYWORDS.iter().find(|keyword| **keyword == name) {
                    Some(keyword) => Token::Sign(keyword),
                    None => Token::Name(name),
                });
                rest = after;
            }
            _ => {
                let sign = SIGNS
                    .iter()
                    .chain(&MORE_SIGNS)
                    .find(|sign| rest.starts_with(**sign))
                    .ok_or_else(|| format!("`{}` is not allowed", first.escape_debug()))?;
                match first {
                    '(' | '[' | '{' => {
                        open.push(first);
                        if open.len() >= MAX_PARENTHESES {
                            return Err("there are too many parentheses".to_owned());
                        }
                    }
                    ')' | ']' | '}' => {
                        let wanted = match first {
                            ')' => '(',
                            ']' => '[',
                            _ => '{',
                        };
                        if open.pop() != Some(wanted) {
                            return Err(format!("there is an unmatched `{first}`"));
                        }
                    }
                    _ => {}
                }
                found.push(Token::Sign(sign));
                rest = &rest[sign.len()..];
            }
        }
    }
    if let Some(open) = open.last() {
        return Err(format!("`{open}` is never closed"));
    }
    Ok(found)
}

fn is_name_start(letter: char) -> bool {
    letter == '_' || letter.is_alphabetic()
}

fn is_name_part(letter: char) -> bool {
    letter == '_' || letter.is_alphanumeric()
}

/// One number at the start of `text`; gives what is left.
fn number<'t>(text: &'t str, found: &mut Vec<Token>) -> Result<&'t str, String> {
    let wrong = || {
        let shown: String = text.chars().take(20).collect();
        format!("`{}` does not start with a number", shown.escape_debug())
    };
    let radix = match text.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 10,
    };
    let mut letters = text.chars().peekable();
    let (value, length) = if radix == 10 {
        decimal(&mut letters).ok_or_else(wrong)?
    } else {
        letters.next();
        letters.next();
        // An underscore may stand before the first digit here: `0x_ff`.
        let mut written = String::new();
        if letters.next_if_eq(&'_').is_some() {
            written.push('_');
        }
        digits(&mut letters, radix, &mut written).ok_or_else(wrong)?;
        let value = written
            .chars()
            .filter_map(|digit| digit.to_digit(radix))
            .fold(0.0, |value, digit| {
                value * f64::from(radix) + f64::from(digit)
            });
        (value, 2 + written.len())
    };
    let rest = text.get(length..).unwrap_or_default();
    if let Some(next) = rest.chars().next().filter(|next| is_name_part(*next)) {
        if matches!(next, 'j' | 'J') {
            return Err("imaginary numbers are not allowed".to_owned());
        }
        // A number may touch a keyword: `1if a else b`.
        let word: String = rest
            .chars()
            .take_while(|letter| is_name_part(*letter))
            .collect();
        if !["and", "or", "if", "else", "in", "is", "not"].contains(&word.as_str()) {
            return Err(wrong());
        }
    }
    if value.abs() > MAX_CONSTANT {
        return Err(format!("numbers go up to {MAX_CONSTANT}"));
    }
    found.push(Token::Number(value));
    Ok(rest)
}

/// A decimal integer or a float: its value and its length.
fn decimal(letters: &mut Peekable<Chars<'_>>) -> Option<(f64, usize)> {
    let mut written = String::new();
    let whole = letters.peek().is_some_and(char::is_ascii_digit);
    if whole {
        digits(letters, 10, &mut written)?;
    }
    let mut float = false;
    if letters.next_if_eq(&'.').is_some() {
        float = true;
        written.push('.');
        if letters.peek().is_some_and(char::is_ascii_digit) {
            digits(letters, 10, &mut written)?;
        } else if !whole {
            return None;
        }
    }
    // `1else` is a number and a keyword; `1e5` is one number.
    let mut ahead = letters.clone();
    if ahead.next_if(|next| matches!(next, 'e' | 'E')).is_some() {
        let sign = ahead.next_if(|next| matches!(next, '+' | '-'));
        if ahead.peek().is_some_and(char::is_ascii_digit) {
            float = true;
            written.push('e');
            written.extend(sign);
            digits(&mut ahead, 10, &mut written)?;
        }
    }
    let length = written.len();
    written.retain(|letter| letter != '_');
    // `010` is refused by Python 3, `00` is not.
    if !float
        && written.len() > 1
        && written.starts_with('0')
        && !written.trim_matches('0').is_empty()
    {
        return None;
    }
    Some((written.parse().ok()?, length))
}

/// Digits with single underscores between them.
fn digits(letters: &mut Peekable<Chars<'_>>, radix: u32, written: &mut String) -> Option<()> {
    loop {
        let mut some = false;
        while let Some(digit) = letters.next_if(|letter| letter.is_digit(radix)) {
            written.push(digit);
            some = true;
        }
        if !some {
            return None;
        }
        match letters.next_if_eq(&'_') {
            Some(underscore) => written.push(underscore),
            None => return Some(()),
        }
    }
}

/// What an expression was, as far as assignment and calls need to know.
#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Name(String),
    /// A list or tuple of targets.
    Sequence(Vec<Self>),
    Other,
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    /// Nodes of the syntax tree so far.
    nodes: usize,
    loads: BTreeSet<String>,
    stores: BTreeSet<String>,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(next)) if *next == sign)
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = self.is(sign);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.take(sign) {
            return Ok(());
        }
        Err(self.unexpected())
    }

    fn unexpected(&self) -> String {
        match self.peek() {
            Some(token) => format!("{} is not allowed here", token.describe()),
            None => "it ends too early".to_owned(),
        }
    }

    /// Counts nodes; this also bounds the depth of the recursion.
    fn node(&mut self, count: usize) -> Result<(), String> {
        self.nodes += count;
        if self.nodes > MAX_NODES {
            return Err(format!(
                "it is too complex: it may have {MAX_NODES} parts, operators and names"
            ));
        }
        Ok(())
    }

    fn module(&mut self) -> Result<(), String> {
        let mut last_is_expression = None;
        while self.peek().is_some() {
            last_is_expression = Some(self.statement()?);
            // `a; b` and `a;` are statements of one line.
            if self.take(";") {
                if self.peek() == Some(&Token::Newline) {
                    self.at += 1;
                }
            } else if self.peek() == Some(&Token::Newline) {
                self.at += 1;
            } else if self.peek().is_some() {
                return Err(self.unexpected());
            }
        }
        match last_is_expression {
            Some(true) => Ok(()),
            Some(false) => Err(
                "its last line must be an expression, which is the reward, and no assignment"
                    .to_owned(),
            ),
            None => Err("it is empty".to_owned()),
        }
    }

    /// One statement; whether it is an expression.
    fn statement(&mut self) -> Result<bool, String> {
        self.node(1)?;
        let mut targets = 0;
        loop {
            let loads = self.loads.clone();
            let shape = self.expressions()?;
            if !self.take("=") {
                return Ok(targets == 0);
            }
            targets += 1;
            // What was read as an expression is a target: it reads nothing.
            self.loads = loads;
            self.target(&shape, true)?;
        }
    }

    fn target(&mut self, shape: &Shape, top: bool) -> Result<(), String> {
        match shape {
            Shape::Name(name) if name.starts_with('_') => Err(format!(
                "`{name}` can not be set: names of variables do not start with `_`"
            )),
            Shape::Name(name) => {
                // The reference counts a variable of a tuple as a judge's name all the same.
                if top {
                    self.stores.insert(name.clone());
                }
                Ok(())
            }
            Shape::Sequence(shapes) => shapes
                .iter()
                .try_for_each(|shape| self.target(shape, false)),
            Shape::Other => Err("only a name can be set with `=`".to_owned()),
        }
    }

    /// One expression, or a tuple without parentheses.
    fn expressions(&mut self) -> Result<Shape, String> {
        let first = self.expression()?;
        if !self.is(",") {
            return Ok(first);
        }
        self.node(2)?;
        let mut shapes = vec![first];
        while self.take(",") {
            if !self.starts_expression() {
                break;
            }
            shapes.push(self.expression()?);
        }
        Ok(Shape::Sequence(shapes))
    }

    fn starts_expression(&self) -> bool {
        match self.peek() {
            Some(Token::Name(_) | Token::Number(_)) => true,
            Some(Token::Sign(sign)) => {
                matches!(*sign, "(" | "[" | "+" | "-" | "True" | "False" | "None")
            }
            Some(Token::Newline) | None => false,
        }
    }

    /// `a if b else c` and everything that binds tighter.
    fn expression(&mut self) -> Result<Shape, String> {
        let body = self.binary(0)?;
        if !self.take("if") {
            return Ok(body);
        }
        self.node(1)?;
        self.binary(0)?;
        self.expect("else")?;
        self.expression()?;
        Ok(Shape::Other)
    }

    /// Operators of level `level` and tighter: 0 or, 1 and, 2 comparison, 3 sum, 4 product.
    fn binary(&mut self, level: usize) -> Result<Shape, String> {
        const LEVELS: [&[&str]; 5] = [
            &["or"],
            &["and"],
            &["<", ">", "<=", ">=", "==", "!="],
            &["+", "-"],
            &["*", "/", "//", "%"],
        ];
        let Some(signs) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut shape = self.binary(level + 1)?;
        let mut count = 0;
        while signs.iter().any(|sign| self.is(sign)) {
            self.at += 1;
            count += 1;
            self.node(match (level, count) {
                // One node with one operator for all of `a or b or c`.
                (0 | 1, 2..) => 0,
                // One node for all of `a < b < c`, one for each operator.
                (2, 2..) => 1,
                _ => 2,
            })?;
            self.binary(level + 1)?;
            shape = Shape::Other;
        }
        Ok(shape)
    }

    fn unary(&mut self) -> Result<Shape, String> {
        if self.take("-") || self.take("+") {
            self.node(2)?;
            self.unary()?;
            return Ok(Shape::Other);
        }
        let mut shape = self.atom()?;
        while self.take("(") {
            let Shape::Name(name) = &shape else {
                return Err("only functions can be called, by their names".to_owned());
            };
            if !FUNCTIONS.contains(&name.as_str()) {
                return Err(format!(
                    "`{name}` can not be called: the functions are {}",
                    FUNCTIONS.join(", ")
                ));
            }
            self.node(1)?;
            while !self.take(")") {
                self.expression()?;
                if !self.take(",") {
                    self.expect(")")?;
                    break;
                }
            }
            shape = Shape::Other;
        }
        Ok(shape)
    }

    fn atom(&mut self) -> Result<Shape, String> {
        let token = self.peek().cloned();
        match token {
            Some(Token::Name(name)) => {
                self.at += 1;
                self.node(2)?;
                self.loads.insert(name.clone());
                Ok(Shape::Name(name))
            }
            Some(Token::Number(_) | Token::Sign("True" | "False" | "None")) => {
                self.at += 1;
                self.node(1)?;
                Ok(Shape::Other)
            }
            Some(Token::Sign("(")) => {
                self.at += 1;
                if self.take(")") {
                    self.node(2)?;
                    return Ok(Shape::Sequence(Vec::new()));
                }
                let shape = self.expressions()?;
                self.expect(")")?;
                Ok(shape)
            }
            Some(Token::Sign("[")) => {
                self.at += 1;
                self.node(2)?;
                let mut shapes = Vec::new();
                while !self.take("]") {
                    shapes.push(self.expression()?);
                    if !self.take(",") {
                        self.expect("]")?;
                        break;
                    }
                }
                Ok(Shape::Sequence(shapes))
            }
            _ => Err(self.unexpected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn agrees_with_the_reference_on_every_recorded_formula() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../shared/vectors/aeh/reward.json"
        );
        let Ok(text) = fs::read_to_string(path) else {
            println!("skipped: the recorded formulas are not here");
            return;
        };
        let table: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = table["formulas"].as_array().unwrap();
        assert!(!rows.is_empty());
        for row in rows {
            let formula = row["formula"].as_str().unwrap();
            let got = check(formula);
            assert_eq!(got.is_ok(), row["valid"], "{formula:?}: {got:?}");
            if let Ok(names) = got {
                let wanted: BTreeSet<String> =
                    serde_json::from_value(row["names"].clone()).unwrap();
                assert_eq!(names, wanted, "{formula:?}");
            }
        }
        println!("{} formulas agree", rows.len());
    }

    #[test]
    fn knows_what_python_accepts() {
        for valid in [
            "a  # the judge\n\n# more\nb",
            "(a +\n   b)",
            "a \\\n + b",
            "a;",
            "x = 1; x * 2",
            "(x) = a\nx",
            "[x, y] = a, b\nx + y",
            "x = y = z = a\nx",
            "a < b <= 1 != c",
            "a or b and c",
            "1if a else 0",
            "1else2 if a else 3".trim_start_matches("1else"),
            "0x_ff + 0b1 + 0o7 + 1_000 + 00 + 1. + .5 + 1.5e-3 + 0777.0",
            "min(a, b,)",
            "()",
            "a,",
            "(min)(a, b)",
            "é + 1",
            "--+a",
            "\ta",
            "None if a == True else False",
        ] {
            assert!(check(valid).is_ok(), "{valid:?}: {:?}", check(valid));
        }
        for invalid in [
            "a;;b",
            "; a",
            "a\n b",
            "a +\nb",
            "(a",
            "a)",
            "(a]",
            "a b",
            "1 2",
            "01",
            "1__0",
            "1_",
            "0x",
            "1e",
            "12a",
            "1.e",
            "1.5j",
            "x += 1\nx",
            "x: int = 1\nx",
            "1 = a\na",
            "a() = 1",
            "min(a) = 1\na",
            "True = 1\na",
            "f(a)",
            "a.b",
            "a ** 2",
            "a @ b",
            "a & b",
            "~a",
            "a in b",
            "a not in b",
            "a is not b",
            "lambda: a",
            "round(a, ndigits=1)",
            "min(x for x in a)",
            "(yield)",
            "await a",
            "a if b",
            "if a: b",
            "*a, b",
            "{}",
            "{a: b}",
            "`a`",
            "a $ b",
            "a ? b",
            "import os",
            "\"a\"",
            "f'{a}'",
            "a \\",
            "a \\ b",
            "1e7",
            "-1000001",
            "_ = 1\n1",
            "x, _y = a, b\nx",
            "a = ",
            "= a",
            ",",
            "min(,)",
            "[,]",
            "(,)",
            "a,,",
            "a if b else",
            "...",
            "a <> b",
            "not a",
            "# nothing",
            "min(a b)",
            "x = a\n# x",
        ] {
            assert!(check(invalid).is_err(), "{invalid:?}");
        }
        // 2 for the module and statement, then 4 for each `+a` and 2 for the first name.
        assert!(check(&format!("a{}", "+a".repeat(49))).is_ok());
        assert!(check(&format!("a{}", "+a".repeat(50))).is_err());
        let deep = |depth: usize| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
        assert!(check(&deep(199)).is_ok() && check(&deep(200)).is_err());
        assert!(check(&"-".repeat(100_000)).is_err());
    }

    #[test]
    fn tells_bare_words_from_expressions() {
        for bare in ["weighted", " a ", "a-b", "a.b", "_x1", "a-é"] {
            assert!(is_bare(bare), "{bare:?}");
        }
        for expression in ["", "a b", "1", "-a", "a + b", "é"] {
            assert!(!is_bare(expression), "{expression:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "(?s)[ab1 0xe._+*/()\\[\\]{}=<>!,;:#\\\\\n\r\t'\"éif else]{0,60}") {
            drop(check(&text));
        }
    }
}
