//! The command line: one file for each verb, one for each way of talking.
//!
//! Owns arguments, settings, signals, exit codes and everything that is shown. Refuses to know how
//! the work is done: a verb turns arguments into values, calls the library, and hands back an
//! `Outcome` of facts.

mod args;
mod build;
mod check;
mod checks;
mod completions;
mod diff;
mod emit;
mod exit;
mod explain;
mod gc;
mod init;
mod init_container;
mod input;
mod inspect;
mod ls;
mod man;
mod outcome;
mod plan;
mod publish;
mod pull;
mod report;
mod run;
mod settings;
mod store;
mod ui;
mod verify;
mod watch;

use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::FromArgMatches as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use self::args::{CommandLine, OutputFormat, Verb};
use self::exit::Exit;
use self::outcome::{Failure, Outcome};
use self::settings::{Look, Machine};
use crate::diag::Diagnostics;
use crate::escape;
use crate::run::{GUARD, KEEP, guard, keep};

/// What every verb is given.
struct Context {
    machine: Machine,
    look: Look,
    /// Set by the first interrupt.
    stop: Arc<AtomicBool>,
    /// Set by each interrupt, where a second one does not end the process.
    again: Arc<AtomicBool>,
}

/// Runs the command line `args`, the program's name first.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // What the caller has open (a directory of answers, a lock) is for nobody who is started from
    // here; nothing else is open yet.
    close_fds::set_fds_cloexec(3, &[]);
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(|place| (place.file(), place.line()));
        ui::to_stderr(&bug(info.payload_as_str(), place));
    }));
    let args: Vec<OsString> = args.into_iter().collect();
    // Started by a run, for one of its agents or for itself.
    let rest = args.get(2..).unwrap_or_default();
    let served = match args.get(1) {
        Some(word) if word == KEEP => Some(keep(rest)),
        Some(word) if word == GUARD => Some(guard(rest).map(|ended| u8::from(!ended))),
        _ => None,
    };
    if let Some(served) = served {
        return match served {
            Ok(status) => status.into(),
            Err(why) => {
                ui::to_stderr(&format!("casepack: {why}\n"));
                // As shells have it.
                127.into()
            }
        };
    }
    guarded(|| dispatch(&args)).into()
}

/// The hook has told what happened by the time a panic arrives here.
fn guarded(work: impl FnOnce() -> Exit) -> Exit {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or(Exit::Bug)
}

fn dispatch(args: &[OsString]) -> Exit {
    if init_container::is_meant(args) {
        return init_container::main();
    }
    let parsed = args::command()
        .try_get_matches_from(args)
        .and_then(|matches| CommandLine::from_arg_matches(&matches));
    let command_line = match parsed {
        Ok(command_line) => command_line,
        Err(error) => return usage(args, &error),
    };
    let verb = command_line.verb.name();
    let machine = match Machine::ask() {
        Ok(machine) => machine,
        Err(error) => {
            let look = Machine::unknown().look(&command_line.talk);
            let failure = Failure {
                message: "The current directory can not be found.".to_owned(),
                causes: vec![error.to_string()],
                help: "Change to a directory that exists.".to_owned(),
            };
            let outcome = Outcome::of(Diagnostics::default()).failed(Exit::System, failure);
            return ui::show(&look, verb, &outcome);
        }
    };
    let by_harbor =
        matches!(&command_line.verb, Verb::Run(args) if args.running.engine == "harbor");
    let (stop, again) = interrupts(by_harbor);
    let context = Context {
        look: machine.look(&command_line.talk),
        machine,
        stop,
        again,
    };
    let outcome = match &command_line.verb {
        Verb::Init(args) => init::run(args, &context),
        Verb::Check(args) => check::run(args, &context),
        Verb::Plan(args) => plan::run(args, &context),
        Verb::Build(args) => build::run(args, &context),
        Verb::Run(args) => run::run(args, &context),
        Verb::Report(args) => report::run(args, &context),
        Verb::Verify(args) => verify::run(args, &context),
        Verb::Diff(args) => diff::run(args, &context),
        Verb::Publish(args) => publish::run(args, &context),
        Verb::Pull(args) => pull::run(args, &context),
        Verb::Ls(args) => ls::run(args, &context),
        Verb::Inspect(args) => inspect::run(args, &context),
        Verb::Gc(args) => gc::run(args, &context),
        Verb::Emit(args) => emit::run(args, &context),
        Verb::Explain(args) => explain::run(args, &context),
        Verb::Completions(args) => completions::run(args),
        Verb::Man(args) => man::run(args),
    };
    ui::show(&context.look, verb, &outcome)
}

/// Says what is wrong with the command line; help and version end up here as well.
fn usage(args: &[OsString], error: &clap::Error) -> Exit {
    let wanted = !error.use_stderr();
    if !wanted && json_is_wanted(args) {
        let verb = args::command()
            .get_subcommands()
            .map(|verb| verb.get_name().to_owned())
            .find(|name| args.iter().skip(1).any(|arg| arg == name.as_str()));
        let text = error.to_string();
        let failure = Failure::new(text.trim().trim_start_matches("error: "), "");
        let outcome = Outcome::of(Diagnostics::default()).failed(Exit::Usage, failure);
        let talk = args::Talk::json();
        let look = Machine::unknown().look(&talk);
        return ui::show(&look, verb.as_deref().unwrap_or("usage"), &outcome);
    }
    // Clap knows by itself whether the stream is a terminal that wants colours. A closed pipe is
    // no failure, and there is nobody to be told of another one.
    drop(error.print());
    if wanted { Exit::Done } else { Exit::Usage }
}

/// Whether a command line that could not be parsed asks for a JSON document.
fn json_is_wanted(args: &[OsString]) -> bool {
    let pairs = args
        .windows(2)
        .any(|pair| pair[0] == "--output" && pair[1] == "json");
    pairs
        || args.iter().any(|arg| arg == "--output=json")
        || settings::variable("CASEPACK_OUTPUT").is_some_and(|value| value == "json")
}

/// A flag that the first signal to end (SIGINT, SIGTERM, and SIGHUP of a terminal that is closed) sets;
/// the second one ends the process at once. Where it is `heard`, by whoever has somebody else to end,
/// it only sets the other flag, as each signal does.
fn interrupts(heard: bool) -> (Arc<AtomicBool>, Arc<AtomicBool>) {
    let stop = Arc::new(AtomicBool::new(false));
    let again = Arc::new(AtomicBool::new(false));
    // Whoever was started by nohup is to go on.
    let hangup = (!settings::is_ignored(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        // In this order: the first signal finds the flag unset, and only then sets it. Where
        // handlers can't be set, a signal ends the process, which loses nothing that is whole.
        if heard {
            drop(flag::register(signal, Arc::clone(&again)));
        } else {
            let code = (Exit::Interrupted as u8).into();
            let armed = Arc::clone(&stop);
            drop(flag::register_conditional_shutdown(signal, code, armed));
        }
        drop(flag::register(signal, Arc::clone(&stop)));
    }
    (stop, again)
}

/// What is said about a panic.
fn bug(message: Option<&str>, place: Option<(&str, u32)>) -> String {
    let message = escape::line(message.unwrap_or("no message"));
    let place = place.map_or_else(String::new, |(file, line)| format!(" ({file}:{line})"));
    format!(
        "error: This is a bug in casepack {}: {message}{place}\n  \
         help: What was finished is whole. Report this message and the command line.\n",
        env!("CARGO_PKG_VERSION"),
    )
}

impl Verb {
    fn name(&self) -> &'static str {
        match self {
            Self::Init(_) => "init",
            Self::Check(_) => "check",
            Self::Plan(_) => "plan",
            Self::Build(_) => "build",
            Self::Run(_) => "run",
            Self::Report(_) => "report",
            Self::Verify(_) => "verify",
            Self::Diff(_) => "diff",
            Self::Publish(_) => "publish",
            Self::Pull(_) => "pull",
            Self::Ls(_) => "ls",
            Self::Inspect(_) => "inspect",
            Self::Gc(_) => "gc",
            Self::Emit(_) => "emit",
            Self::Explain(_) => "explain",
            Self::Completions(_) => "completions",
            Self::Man(_) => "man",
        }
    }
}

impl args::Talk {
    /// What is known when a command line can't be parsed but asks for JSON.
    fn json() -> Self {
        Self::fixed(OutputFormat::Json)
    }

    /// How casepack talks when nobody can say how.
    fn fixed(output: OutputFormat) -> Self {
        Self {
            output,
            quiet: false,
            verbose: false,
            color: args::When::Never,
            progress: args::ProgressStyle::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_bug() {
        assert_eq!(
            guarded(|| panic!("told by the hook of the tests")),
            Exit::Bug
        );
        assert_eq!(guarded(|| Exit::Findings), Exit::Findings);
        let text = bug(Some("index\u{1b}[2J"), Some(("src/x.rs", 7)));
        assert!(
            text.starts_with("error: This is a bug in casepack"),
            "{text}"
        );
        assert!(text.contains("index\\u{1b}[2J (src/x.rs:7)\n"), "{text}");
    }
}
