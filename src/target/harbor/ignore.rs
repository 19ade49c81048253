//! The two pattern dialects in which Harbor leaves files out of its digest (harbor.md 6.2, 6.3).
//!
//! Owns ignore lines → verdicts. Refuses to know trees.
//! Both dialects are defined by the regular expressions that Harbor's pattern library makes of a
//! line, with Python's meaning (`.` is no newline, `$` is also before a last newline, the first
//! alternative that leads to a match wins). They are compiled to a small program here and run in
//! time linear in the path, so that a hostile pattern costs nothing.

/// Which library rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// The `.gitignore` at the top of a task.
    Basic,
    /// `.harborignore`.
    Harbor,
}

/// A line that makes Harbor fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadLine(pub String);

/// The rules of one ignore file.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    program: Vec<Op>,
    exclude: bool,
}

/// How a rule matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hit {
    /// The path itself.
    Direct,
    /// A directory above it.
    Through,
}

/// One step of a program. Programs are anchored at the start of the path.
#[derive(Debug, Clone)]
enum Op {
    Char(char),
    /// `.`
    NotNewline,
    /// `[^/]`
    NotSlash,
    /// `[…]`
    Set {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// `$`
    End,
    /// From here on the match goes through a directory.
    Through,
    /// Goes on at both, preferring the first.
    Split(usize, usize),
    Jump(usize),
    Match,
}

impl Rules {
    /// Reads the text of an ignore file.
    ///
    /// # Errors
    /// The first line that Harbor refuses.
    pub(super) fn parse(text: &str, dialect: Dialect) -> Result<Self, BadLine> {
        let mut rules = Vec::new();
        for line in lines(text) {
            match compile(line, dialect) {
                Ok(Some(rule)) => rules.push(rule),
                Ok(None) => {}
                Err(()) => return Err(BadLine(line.to_owned())),
            }
        }
        Ok(Self(rules))
    }

    /// What the last matching line says about `path`; `None` when none matches. In the `.harborignore` dialect
    /// a line that matches the path itself outranks one that matches a directory above it.
    pub(super) fn verdict(&self, path: &str, dialect: Dialect) -> Option<bool> {
        let path: Vec<char> = path.chars().collect();
        let mut through = None;
        for rule in self.0.iter().rev() {
            match rule.run(&path) {
                Some(Hit::Direct) => return Some(rule.exclude),
                Some(Hit::Through) if dialect == Dialect::Basic => return Some(rule.exclude),
                Some(Hit::Through) => through = through.or(Some(rule.exclude)),
                None => {}
            }
        }
        through
    }
}

/// `str.splitlines()`.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let breaks = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    // The empty line inside CRLF means nothing to the rules.
    text.split(breaks)
}

/// `str.isspace()`.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// The rule of one line; `None` when the line says nothing.
fn compile(line: &str, dialect: Dialect) -> Result<Option<Rule>, ()> {
    let harbor = dialect == Dialect::Harbor;
    let line = if line.ends_with("\\ ") {
        line
    } else {
        line.trim_end_matches(is_space)
    };
    if line.is_empty() || line.starts_with('#') || (harbor && line == "/") {
        return Ok(None);
    }
    let (exclude, line) = match line.strip_prefix('!') {
        Some(rest) => (false, rest),
        None => (true, line),
    };
    let mut parts: Vec<&str> = line.split('/').collect();
    let directory = line != "/" && line.ends_with('/');
    if parts[0].is_empty() {
        parts.remove(0);
    } else if (parts.len() == 1 || (parts.len() == 2 && parts[1].is_empty())) && parts[0] != "**" {
        parts.insert(0, "**");
    }
    let Some(last) = parts.last_mut() else {
        return Err(());
    };
    if last.is_empty() {
        *last = "**";
    }
    parts.dedup_by(|next, before| *next == "**" && *before == "**");
    let mut program = Program::default();
    let through = harbor && directory;
    match &parts[..] {
        ["**"] if !directory => program.anywhere(Op::NotNewline, false),
        ["**", "*"] => program.anywhere(Op::NotNewline, false),
        ["**"] | ["**", "*", "**"] => program.anywhere(Op::Char('/'), through),
        _ => {
            if !program.parts(&parts, harbor, through)? {
                return Ok(None);
            }
        }
    }
    Ok(Some(Rule {
        program: program.ops,
        exclude,
    }))
}

/// A program under construction.
#[derive(Default)]
struct Program {
    ops: Vec<Op>,
    /// Whether a bracket holds a range that Python refuses. It does so last of all, when the line
    /// was not dropped for another reason.
    bad_range: bool,
}

impl Program {
    /// Adds `body` between a way in and a way out: `(?:body)?`.
    fn optional(&mut self, body: impl FnOnce(&mut Self)) {
        let split = self.ops.len();
        self.ops.push(Op::Match);
        body(self);
        self.ops[split] = Op::Split(split + 1, self.ops.len());
    }

    /// `op*`, greedy.
    fn star(&mut self, op: Op) {
        self.optional(|program| {
            let back = program.ops.len() - 1;
            program.ops.push(op);
            program.ops.push(Op::Jump(back));
        });
    }

    /// `op+`, greedy.
    fn plus(&mut self, op: Op) {
        self.ops.push(op.clone());
        self.star(op);
    }

    /// `op` at any place of the path.
    fn anywhere(&mut self, op: Op, through: bool) {
        // Unlike `.*` this passes newlines. Which place matches first makes no difference.
        self.ops.extend([
            Op::Split(3, 1),
            Op::Set {
                negated: true,
                ranges: Vec::new(),
            },
            Op::Jump(0),
            op,
        ]);
        if through {
            self.ops.push(Op::Through);
        }
        self.ops.push(Op::Match);
    }

    /// All parts of a line; false when the line says nothing because of an open bracket.
    fn parts(&mut self, parts: &[&str], harbor: bool, through: bool) -> Result<bool, ()> {
        let last = parts.len() - 1;
        let mut slash = false;
        for (at, &part) in parts.iter().enumerate() {
            if part == "**" {
                if at == 0 {
                    self.optional(|program| {
                        program.plus(Op::NotNewline);
                        program.ops.push(Op::Char('/'));
                    });
                    continue;
                }
                if at < last {
                    self.optional(|program| {
                        program.ops.push(Op::Char('/'));
                        program.plus(Op::NotNewline);
                    });
                } else {
                    self.ops.push(Op::Char('/'));
                    if through {
                        self.ops.push(Op::Through);
                    }
                }
            } else {
                if slash {
                    self.ops.push(Op::Char('/'));
                }
                if part == "*" {
                    self.plus(Op::NotSlash);
                } else if !self.segment(part, harbor)? {
                    return Ok(false);
                }
                if at == last {
                    self.end(part == "*" && !harbor, harbor);
                }
            }
            slash = true;
        }
        self.ops.push(Op::Match);
        if self.bad_range { Err(()) } else { Ok(true) }
    }

    /// What may follow the last part: a slash (and anything), or the end of the path. With
    /// `closed`, a slash may only be the last character.
    fn end(&mut self, closed: bool, harbor: bool) {
        if closed {
            self.optional(|program| program.ops.push(Op::Char('/')));
            self.ops.push(Op::End);
            return;
        }
        let split = self.ops.len();
        self.ops.push(Op::Match);
        self.ops.push(Op::Char('/'));
        if harbor {
            self.ops.push(Op::Through);
        }
        let jump = self.ops.len();
        self.ops.push(Op::Match);
        self.ops[split] = Op::Split(split + 1, jump + 1);
        self.ops.push(Op::End);
        self.ops[jump] = Op::Jump(self.ops.len());
    }

    /// One part; false when a bracket stays open in the dialect that then drops the line.
    fn segment(&mut self, part: &str, harbor: bool) -> Result<bool, ()> {
        let glob: Vec<char> = part.chars().collect();
        let mut at = 0;
        while let Some(&c) = glob.get(at) {
            at += 1;
            match c {
                '\\' => {
                    let escaped = *glob.get(at).ok_or(())?;
                    self.ops.push(Op::Char(escaped));
                    at += 1;
                }
                '*' => self.star(Op::NotSlash),
                '?' => self.ops.push(Op::NotSlash),
                '[' => {
                    let negated = matches!(glob.get(at), Some('!' | '^'));
                    let first = at + usize::from(negated);
                    // A bracket right at the start is a member.
                    let search = first + usize::from(glob.get(first) == Some(&']'));
                    let length = glob
                        .get(search..)
                        .and_then(|rest| rest.iter().position(|&c| c == ']'));
                    match length {
                        Some(length) => {
                            let end = search + length;
                            let ranges = ranges(&glob[first..end]);
                            self.bad_range |= ranges.iter().any(|(low, high)| high < low);
                            self.ops.push(Op::Set { negated, ranges });
                            at = end + 1;
                        }
                        None if harbor => return Ok(false),
                        None => self.ops.push(Op::Char('[')),
                    }
                }
                _ => self.ops.push(Op::Char(c)),
            }
        }
        Ok(true)
    }
}

/// The members of a bracket expression, without the brackets.
fn ranges(members: &[char]) -> Vec<(char, char)> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(&low) = members.get(at) {
        let mut high = low;
        if let (Some('-'), Some(&end)) = (members.get(at + 1), members.get(at + 2)) {
            high = end;
            at += 2;
        }
        ranges.push((low, high));
        at += 1;
    }
    ranges
}

impl Rule {
    /// Runs the program: all threads in step, in order of preference.
    fn run(&self, path: &[char]) -> Option<Hit> {
        let mut best = None;
        let mut threads = Threads::new(self.program.len());
        let mut next = Threads::new(self.program.len());
        threads.add(&self.program, 0, Hit::Direct, path, 0);
        for at in 0..=path.len() {
            next.clear();
            for &(pc, hit) in &threads.list {
                let c = path.get(at).copied();
                let passes = match &self.program[pc] {
                    Op::Match => {
                        // Preferred to all that follow.
                        best = Some(hit);
                        break;
                    }
                    Op::Char(wanted) => c == Some(*wanted),
                    Op::NotNewline => c.is_some_and(|c| c != '\n'),
                    Op::NotSlash => c.is_some_and(|c| c != '/'),
                    Op::Set { negated, ranges } => c.is_some_and(|c| {
                        let member = ranges.iter().any(|&(low, high)| (low..=high).contains(&c));
                        member != *negated
                    }),
                    // Followed when the thread was added.
                    Op::End | Op::Through | Op::Split(..) | Op::Jump(_) => false,
                };
                if passes {
                    next.add(&self.program, pc + 1, hit, path, at + 1);
                }
            }
            if next.list.is_empty() {
                break;
            }
            std::mem::swap(&mut threads, &mut next);
        }
        best
    }
}

/// The threads at one place of the path, preferred ones first; at most one for each op.
struct Threads {
    list: Vec<(usize, Hit)>,
    seen: Vec<bool>,
    todo: Vec<(usize, Hit)>,
}

impl Threads {
    fn new(ops: usize) -> Self {
        Self {
            list: Vec::new(),
            seen: vec![false; ops],
            todo: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.list.clear();
        self.seen.fill(false);
    }

    /// Adds a thread and all that it leads to without taking a character.
    fn add(&mut self, program: &[Op], pc: usize, hit: Hit, path: &[char], at: usize) {
        self.todo.push((pc, hit));
        while let Some((pc, hit)) = self.todo.pop() {
            if std::mem::replace(&mut self.seen[pc], true) {
                continue;
            }
            match program[pc] {
                Op::Jump(to) => self.todo.push((to, hit)),
                Op::Split(first, second) => {
                    self.todo.push((second, hit));
                    self.todo.push((first, hit));
                }
                Op::Through => self.todo.push((pc + 1, Hit::Through)),
                Op::End => {
                    if matches!(path.get(at..), Some([] | ['\n'])) {
                        self.todo.push((pc + 1, hit));
                    }
                }
                _ => self.list.push((pc, hit)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn verdict(dialect: Dialect, lines: &str, path: &str) -> Option<bool> {
        Rules::parse(lines, dialect).unwrap().verdict(path, dialect)
    }

    #[test]
    fn the_basic_dialect_is_not_quite_git() {
        for (lines, path, expected) in [
            ("foo", "a/foo", Some(true)),
            ("foo", "foo/b/c", Some(true)),
            ("foo/", "a/foo", None),
            ("foo/", "a/foo/b", Some(true)),
            ("/foo", "a/foo", None),
            ("a/*", "a/b", Some(true)),
            ("a/*", "a/b/c", None),
            ("*", "a/b/c", Some(true)),
            ("*/", "a", None),
            ("/", "a", Some(true)),
            ("a[b", "a[b", Some(true)),
            ("[!a]x", "/x", Some(true)),
            ("build/\n!build/kept", "build/kept", Some(false)),
            ("*.pyc", "x.pyc\n", Some(true)),
            ("**/b", "a\nc/b", None),
            ("a/**/b", "a/x/y/b", Some(true)),
            ("a/**/b", "a/b", Some(true)),
            ("\\#x", "#x", Some(true)),
            ("x\\ ", "x ", Some(true)),
            ("x\u{85}y", "y", Some(true)),
            ("x \u{1c}", "x", Some(true)),
            ("?", "/", None),
        ] {
            assert_eq!(
                verdict(Dialect::Basic, lines, path),
                expected,
                "{lines:?} {path:?}"
            );
        }
    }

    #[test]
    fn the_harbor_dialect_ranks_direct_matches_higher() {
        for (lines, path, expected) in [
            ("a/*", "a/b/c", Some(true)),
            ("/", "a", None),
            ("a[b", "a[b", None),
            ("!a/b\na/", "a/b", Some(false)),
            ("!a/b\na", "a/b/c", Some(true)),
            ("foo", "foo/foo", Some(true)),
        ] {
            assert_eq!(
                verdict(Dialect::Harbor, lines, path),
                expected,
                "{lines:?} {path:?}"
            );
        }
    }

    #[test]
    fn refuses_what_harbor_refuses() {
        for line in ["!", "a\\", "[z-a]"] {
            let text = format!("ok\n{line}\n");
            assert_eq!(
                Rules::parse(&text, Dialect::Basic).unwrap_err(),
                BadLine(line.to_owned())
            );
        }
    }

    #[test]
    fn hostile_patterns_cost_nothing() {
        let line = format!("{}b", "*a".repeat(200));
        let path = "a".repeat(4000);
        let start = Instant::now();
        assert_eq!(verdict(Dialect::Basic, &line, &path), None);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
