//! System calls that no namespace divides: the kernel's keyrings, in which one attempt finds what
//! another one left, and the caller's own keys; and, where there is to be no network, sockets of
//! families that know no network namespace (`AF_VSOCK` reaches the host of a virtual machine).
//!
//! And those by which bubblewrap's first process, which has no filter, could be stopped, so that the
//! sandbox never ends, or be made to do what the filter forbids.
//!
//! Owns a seccomp filter (a classic BPF program, `linux/filter.h`). Refuses to know who loads it.
//! Invariant: `add_key`, `request_key` and `keyctl` fail with EPERM, by every way that a kernel of
//! the listed architectures takes system calls; so do `ptrace` and its kin of the process 1; without a network so does `socket` of any family but
//! [`FAMILIES`], with EAFNOSUPPORT. Other architectures are let be.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

/// Numbers of system calls (`asm/unistd.h`).
struct Calls {
    /// `AUDIT_ARCH_…`
    architecture: u32,
    /// The first of the three calls about keys, which are neighbours.
    keys: u32,
    socket: u32,
    /// The one call that stood for all about sockets.
    socketcall: Option<u32>,
    /// `ptrace`, whose second argument is a process.
    ptrace: &'static [u32],
    /// `process_vm_readv` and `process_vm_writev`, whose first argument is one.
    memory: &'static [u32],
}

const CALLS: [Calls; 4] = [
    // x86_64, with x32
    Calls {
        architecture: 0xc000_003e,
        keys: 248,
        socket: 41,
        socketcall: None,
        // Those of x32 are others.
        ptrace: &[101, 521],
        memory: &[310, 311, 539, 540],
    },
    // i386
    Calls {
        architecture: 0x4000_0003,
        keys: 286,
        socket: 359,
        socketcall: Some(102),
        ptrace: &[26],
        memory: &[347, 348],
    },
    // aarch64
    Calls {
        architecture: 0xc000_00b7,
        keys: 217,
        socket: 198,
        socketcall: None,
        ptrace: &[117],
        memory: &[270, 271],
    },
    // arm
    Calls {
        architecture: 0x4000_0028,
        keys: 309,
        socket: 281,
        socketcall: None,
        ptrace: &[26],
        memory: &[376, 377],
    },
];
/// The same number everywhere. Its rings make sockets that no filter sees.
const IO_URING_SETUP: u32 = 425;
/// What `socketcall` calls `socket`; the family is in memory then, where a filter can't look.
const SYS_SOCKET: u32 = 1;
/// What programs need without a network, and the network namespace holds: `AF_UNIX`, `AF_INET`,
/// `AF_INET6`, `AF_NETLINK`; and `AF_ALG`, which is none.
const FAMILIES: [u32; 5] = [1, 2, 10, 16, 38];
/// The bit that tells a call of x32 from the same one of `x86_64`.
const X32: u32 = 0x4000_0000;
/// Where `struct seccomp_data` has them; of arguments the low half, on the architectures above, which
/// is all that the kernel takes of the number of a process.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENT: u32 = 16;
const SECOND_ARGUMENT: u32 = 24;
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
const ENOSYS: u32 = 0x0005_0026;
const EAFNOSUPPORT: u32 = 0x0005_0061;

/// Code, how many instructions to leave out if so and if not, and a value.
type Instruction = (u16, u8, u8, u32);

/// A file to read the filter from; closed on exec.
pub(super) fn filter(network: bool) -> io::Result<OwnedFd> {
    // Far less than what a pipe holds, so that writing does not wait.
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    File::from(write).write_all(&program(network))?;
    Ok(read)
}

fn program(network: bool) -> Vec<u8> {
    let mut program: Vec<Instruction> = vec![(LOAD, 0, 0, ARCHITECTURE)];
    for calls in CALLS {
        let mut block: Vec<Instruction> = vec![
            (LOAD, 0, 0, NUMBER),
            (AND, 0, 0, !X32),
            (IF_AT_LEAST, 0, 2, calls.keys),
            (IF_MORE, 1, 0, calls.keys + 2),
            (RETURN, 0, 0, EPERM),
        ];
        block.extend(not_of_the_first(calls.ptrace, SECOND_ARGUMENT));
        block.extend(not_of_the_first(calls.memory, ARGUMENT));
        if !network {
            block.extend(without_network(&calls));
        }
        block.push((RETURN, 0, 0, ALLOW));
        // Past the block of an architecture that it is not. Proof: it has fewer than a hundred instructions.
        let length = u8::try_from(block.len()).unwrap_or(u8::MAX);
        program.push((IF_EQUAL, 0, length, calls.architecture));
        program.extend(block);
    }
    program.push((RETURN, 0, 0, ALLOW));
    let mut bytes = Vec::new();
    for (code, yes, no, value) in program {
        bytes.extend(code.to_ne_bytes());
        bytes.extend([yes, no]);
        bytes.extend(value.to_ne_bytes());
    }
    bytes
}

/// What is asked of a call's number where a process stands at `argument`; another one is not met.
fn not_of_the_first(calls: &[u32], argument: u32) -> Vec<Instruction> {
    let each = |&call| {
        [
            (IF_EQUAL, 0, 4, call),
            (LOAD, 0, 0, argument),
            (IF_EQUAL, 0, 1, 1),
            (RETURN, 0, 0, EPERM),
            (RETURN, 0, 0, ALLOW),
        ]
    };
    calls.iter().flat_map(each).collect()
}

/// What is asked of a call's number where there is to be no network; the next instruction allows.
fn without_network(calls: &Calls) -> Vec<Instruction> {
    let mut block: Vec<Instruction> =
        vec![(IF_EQUAL, 0, 1, IO_URING_SETUP), (RETURN, 0, 0, ENOSYS)];
    if let Some(socketcall) = calls.socketcall {
        block.extend([
            (IF_EQUAL, 0, 4, socketcall),
            (LOAD, 0, 0, ARGUMENT),
            (IF_EQUAL, 0, 1, SYS_SOCKET),
            (RETURN, 0, 0, EAFNOSUPPORT),
            (RETURN, 0, 0, ALLOW),
        ]);
    }
    // The load, the families, and the refusal.
    block.push((IF_EQUAL, 0, 7, calls.socket));
    block.push((LOAD, 0, 0, ARGUMENT));
    // Past the other families and the refusal.
    let left = (1..=5).rev();
    block.extend(
        left.zip(FAMILIES)
            .map(|(left, family)| (IF_EQUAL, left, 0, family)),
    );
    block.push((RETURN, 0, 0, EAFNOSUPPORT));
    block
}
