//! The `casepack` binary.

fn main() -> std::process::ExitCode {
    casepack::cli::main(std::env::args_os())
}
