//! The `casepack` binary.

/// Builds make many small things that live as long as a case; the system's allocator takes a seventh
/// of their time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    casepack::cli::main(std::env::args_os())
}
