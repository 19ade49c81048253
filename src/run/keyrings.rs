//! Keeps what runs in a sandbox away from the kernel's keyrings, which no namespace divides: what
//! one attempt leaves in them another one finds, and so are the caller's own keys.
//!
//! Owns a seccomp filter (a classic BPF program, `linux/filter.h`). Refuses to know who loads it.
//! Invariant: `add_key`, `request_key` and `keyctl` fail with EPERM, by every way that a kernel of
//! the listed architectures takes system calls; all other calls, and other architectures, are let be.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

/// `AUDIT_ARCH_…`, and the first of the three calls, which are neighbours (`asm/unistd.h`).
const CALLS: [(u32, u32); 4] = [
    // x86_64, with x32
    (0xc000_003e, 248),
    // i386
    (0x4000_0003, 286),
    // aarch64
    (0xc000_00b7, 217),
    // arm
    (0x4000_0028, 309),
];
/// The bit that tells a call of x32 from the same one of `x86_64`.
const X32: u32 = 0x4000_0000;
/// Where `struct seccomp_data` has them.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// Instructions.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_MORE: u16 = 0x25;
const RETURN: u16 = 0x06;
/// Answers.
const ALLOW: u32 = 0x7fff_0000;
const EPERM: u32 = 0x0005_0001;

/// A file to read the filter from; closed on exec.
pub(super) fn filter() -> io::Result<OwnedFd> {
    // Far less than what a pipe holds, so that writing does not wait.
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    File::from(write).write_all(&program())?;
    Ok(read)
}

fn program() -> Vec<u8> {
    let mut program = Vec::new();
    let mut add = |code: u16, yes: u8, no: u8, value: u32| {
        program.extend(code.to_ne_bytes());
        program.extend([yes, no]);
        program.extend(value.to_ne_bytes());
    };
    add(LOAD, 0, 0, ARCHITECTURE);
    for (architecture, first) in CALLS {
        // Past the block of an architecture that it is not.
        add(IF_EQUAL, 0, 6, architecture);
        add(LOAD, 0, 0, NUMBER);
        add(AND, 0, 0, !X32);
        add(IF_AT_LEAST, 0, 2, first);
        add(IF_MORE, 1, 0, first + 2);
        add(RETURN, 0, 0, EPERM);
        add(RETURN, 0, 0, ALLOW);
    }
    add(RETURN, 0, 0, ALLOW);
    program
}
