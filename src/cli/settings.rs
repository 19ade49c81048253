//! What the machine and the command line say, as values.
//!
//! The only place that asks for environment, home, current directory, terminal and clock; below
//! `cli`, values are passed. Refuses to know what is done with them.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, IsTerminal as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::args::{
    Deny, Input, LevelArgs, OutputFormat, Packaging, ProgressStyle, Reading, Talk, When,
};
use crate::dataset::LoadRequest;
use crate::diag::{Levels, Rule};
use crate::target::harbor;

/// What casepack was told by the machine that it runs on.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// The current directory; absolute.
    pub(crate) cwd: PathBuf,
    /// The home directory; absolute.
    pub(crate) home: Option<PathBuf>,
    /// Variables whose name and value are text.
    pub(crate) env: BTreeMap<String, String>,
    /// Whether standard output and standard error are terminals.
    terminals: (bool, bool),
    /// Columns of the terminal, or what `COLUMNS` says.
    width: usize,
    /// Seconds since 1970, or what `SOURCE_DATE_EPOCH` says.
    now: u64,
    /// Seconds since 1970 by the clock, whatever `SOURCE_DATE_EPOCH` says: what garbage is told by.
    pub(crate) clock: u64,
}

/// How things are shown.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one flag of the user"
)]
pub(crate) struct Look {
    pub(crate) output: OutputFormat,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    /// Whether standard output may be coloured.
    pub(crate) color_out: bool,
    /// Whether standard error may be coloured.
    pub(crate) color_err: bool,
    /// Whether lines and arrows may be drawn in Unicode.
    pub(crate) unicode: bool,
    /// Whether sentences are wrapped: on terminals only, so that logs can be searched.
    pub(crate) wrap: bool,
    /// Columns.
    pub(crate) width: usize,
    pub(crate) progress: Progress,
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Bars,
    Lines,
    None,
}

impl Machine {
    /// Asks the machine.
    ///
    /// # Errors
    /// When there is no current directory.
    pub(crate) fn ask() -> io::Result<Self> {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let env: BTreeMap<_, _> = env::vars_os().filter_map(text).collect();
        let columns = env.get("COLUMNS").and_then(|columns| columns.parse().ok());
        let terminal = terminal_size::terminal_size_of(io::stderr());
        let seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        Ok(Self {
            cwd: env::current_dir()?,
            home: env::home_dir().filter(|home| home.is_absolute()),
            terminals: (io::stdout().is_terminal(), io::stderr().is_terminal()),
            width: columns
                .or_else(|| terminal.map(|(width, _)| usize::from(width.0)))
                .unwrap_or(100),
            now: env
                .get("SOURCE_DATE_EPOCH")
                .and_then(|epoch| epoch.parse().ok())
                .unwrap_or(seconds),
            clock: seconds,
            env,
        })
    }

    /// What is assumed when nothing can be asked.
    pub(crate) fn unknown() -> Self {
        Self {
            cwd: PathBuf::from("/"),
            home: None,
            env: BTreeMap::new(),
            terminals: (false, false),
            width: 100,
            now: 0,
            clock: 0,
        }
    }

    fn is_set(&self, name: &str) -> bool {
        self.env.get(name).is_some_and(|value| !value.is_empty())
    }

    /// How things are shown here.
    pub(crate) fn look(&self, talk: &Talk) -> Look {
        let human = talk.output == OutputFormat::Human;
        let dumb = self.env.get("TERM").is_some_and(|term| term == "dumb");
        let color = |terminal: bool| match talk.color {
            When::Always => true,
            When::Never => false,
            When::Auto => terminal && !dumb && !self.is_set("NO_COLOR"),
        };
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| self.env.get(*name).filter(|value| !value.is_empty()));
        let ascii = locale.is_some_and(|locale| locale == "C" || locale == "POSIX");
        let bars = self.terminals.1 && human && !dumb && !self.is_set("CI");
        Look {
            output: talk.output,
            quiet: talk.quiet,
            verbose: talk.verbose,
            color_out: human && color(self.terminals.0),
            color_err: human && color(self.terminals.1),
            unicode: !dumb && !ascii,
            wrap: self.terminals.1,
            width: self.width.clamp(40, 400),
            progress: match talk.progress {
                ProgressStyle::Auto if talk.quiet => Progress::None,
                ProgressStyle::Auto if bars => Progress::Bars,
                ProgressStyle::Auto | ProgressStyle::Plain => Progress::Lines,
                ProgressStyle::None => Progress::None,
            },
        }
    }

    /// The dataset that is meant.
    pub(crate) fn load_request<'a>(&'a self, input: &'a Input) -> LoadRequest<'a> {
        let Reading {
            format,
            project_root,
            plugin_dir,
            ..
        } = &input.reading;
        LoadRequest {
            path: &input.path,
            format: *format,
            project_root: project_root.as_deref(),
            cwd: &self.cwd,
            home: self.home.as_deref(),
            plugin_dirs: plugin_dir,
        }
    }

    /// `path` as an absolute one.
    pub(crate) fn absolute(&self, path: &Path) -> PathBuf {
        self.cwd.join(path)
    }

    /// `path` as the user would write it: below the current directory, relative to it.
    pub(crate) fn shown(&self, path: &Path) -> String {
        let below = path.strip_prefix(&self.cwd).unwrap_or(path);
        below.to_string_lossy().into_owned()
    }

    /// A name for a run that starts now: `20260131-102030`, in UTC, so that names sort by time.
    pub(crate) fn run_id(&self) -> String {
        let (days, seconds) = (self.now / 86_400, self.now % 86_400);
        let (year, month, day) = civil(days);
        format!(
            "{year:04}{month:02}{day:02}-{:02}{:02}{:02}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        )
    }
}

impl Machine {
    /// Where the `python3` is that checks are compiled with; nothing when there is none.
    pub(crate) fn python(&self) -> String {
        let path = self.env.get("PATH").map_or("", String::as_str);
        env::split_paths(path)
            .map(|dir| dir.join("python3"))
            .find(|program| program.is_file())
            .map_or_else(String::new, |program| {
                program.to_string_lossy().into_owned()
            })
    }
}

/// How many cases are worked on at a time.
pub(crate) fn jobs(given: Option<NonZeroUsize>) -> usize {
    given.map_or_else(
        || std::thread::available_parallelism().map_or(1, Into::into),
        Into::into,
    )
}

/// Whether this process was started with `signal` ignored; where nobody says so, it was not.
pub(super) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut masks = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigIgn:"));
    let mask = masks
        .next()
        .map(|mask| u64::from_str_radix(mask.trim(), 16));
    // Signals are counted from 1.
    matches!(mask, Some(Ok(mask)) if mask >> (signal - 1) & 1 == 1)
}

/// The value of an environment variable, before the machine was asked.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Year, month and day of a number of days since 1970-01-01 (Gregorian; Howard Hinnant's
/// `civil_from_days`, for days that are not negative).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

impl Reading {
    /// The globs of `--case`; a list in the environment may end with a line feed.
    pub(crate) fn globs(&self) -> Vec<String> {
        let given = self.case.iter().filter(|glob| !glob.is_empty());
        given.cloned().collect()
    }
}

impl Packaging {
    /// The options of the Harbor target that were typed.
    pub(crate) fn flags(&self) -> harbor::Flags {
        harbor::Flags {
            image: self.image.clone(),
            base_image: self.base_image.clone(),
            workdir: self.workdir.clone(),
            agent_timeout: self.agent_timeout.clone(),
            verifier_timeout: self.verifier_timeout.clone(),
            judge_model: self.judge_model.clone(),
            no_llm_judges: self.no_llm_judges.then(|| "true".to_owned()),
            verifier: self.verifier.clone(),
            profile: self.profile.clone(),
            agent_user: self.agent_user.clone(),
            org: self.org.clone(),
        }
    }

    /// The typed timeout of agents, when it is one.
    pub(crate) fn agent_timeout(&self) -> Option<Duration> {
        let seconds = self.agent_timeout.as_deref()?.parse().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

impl LevelArgs {
    /// What the user made of the rules.
    pub(crate) fn levels(&self) -> Levels {
        let denied = |deny: &Deny| match deny {
            Deny::Warnings => None,
            Deny::Rule(rule) => Some(*rule),
        };
        Levels {
            deny: self.deny.iter().filter_map(denied).collect(),
            deny_warnings: self.deny.contains(&Deny::Warnings),
            allow: self.allow.iter().copied().collect(),
        }
    }

    /// The same where cases leave the author's hands: an unresolved placeholder, a warning until
    /// then, is an error (policy 15).
    pub(crate) fn levels_to_ship(&self) -> Levels {
        let mut levels = self.levels();
        levels.deny.insert(Rule::UnresolvedExternalPlaceholder);
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(env: &[(&str, &str)], terminals: (bool, bool)) -> Machine {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Machine {
            cwd: "/c".into(),
            home: None,
            env: env.iter().map(pair).collect(),
            terminals,
            width: 100,
            now: 0,
            clock: 0,
        }
    }

    fn talk(output: OutputFormat, color: When, progress: ProgressStyle) -> Talk {
        Talk {
            output,
            quiet: false,
            verbose: false,
            color,
            progress,
        }
    }

    #[test]
    fn bars_and_colours_need_a_terminal_that_wants_them() {
        use OutputFormat::{Github, Human, Json};
        let auto = talk(Human, When::Auto, ProgressStyle::Auto);
        for (env, terminals, color, progress) in [
            (&[][..], (true, true), true, Progress::Bars),
            (&[("CI", "true")], (true, true), true, Progress::Lines),
            (&[("NO_COLOR", "1")], (true, true), false, Progress::Bars),
            (&[("NO_COLOR", "")], (true, true), true, Progress::Bars),
            (&[("TERM", "dumb")], (true, true), false, Progress::Lines),
            (&[], (true, false), false, Progress::Lines),
        ] {
            let look = machine(env, terminals).look(&auto);
            assert_eq!(
                (look.color_err, look.progress),
                (color, progress),
                "{env:?}"
            );
        }
        let always = talk(Human, When::Always, ProgressStyle::None);
        let look = machine(&[("NO_COLOR", "1")], (false, false)).look(&always);
        assert!(look.color_out && look.color_err && look.progress == Progress::None);
        for output in [Json, Github] {
            let look =
                machine(&[], (true, true)).look(&talk(output, When::Always, ProgressStyle::Auto));
            assert!(!look.color_out && !look.color_err && look.progress == Progress::Lines);
        }
    }

    #[test]
    fn unicode_is_for_terminals_that_have_it() {
        let auto = talk(OutputFormat::Human, When::Auto, ProgressStyle::Auto);
        for (env, unicode) in [
            (&[][..], true),
            (&[("LANG", "C")], false),
            (&[("LANG", "C"), ("LC_ALL", "C.UTF-8")], true),
            (&[("LC_ALL", ""), ("LC_CTYPE", "POSIX")], false),
            (&[("TERM", "dumb")], false),
        ] {
            assert_eq!(
                machine(env, (true, true)).look(&auto).unicode,
                unicode,
                "{env:?}"
            );
        }
    }

    #[test]
    fn run_ids_are_times_in_utc() {
        for (now, id) in [
            (0, "19700101-000000"),
            (951_782_399, "20000228-235959"),
            (951_782_400, "20000229-000000"),
            (1_700_000_000, "20231114-221320"),
            (4_107_542_400, "21000301-000000"),
        ] {
            let machine = Machine {
                now,
                ..machine(&[], (false, false))
            };
            assert_eq!(machine.run_id(), id);
        }
    }
}
