//! The one integration binary: it links once, and every part shares `support`.
//!
//! A new part is one file in `tests/` and one `mod` line here (a test below sees a forgotten one).

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "in a test a panic is the message, and what is skipped is told"
)]

mod architecture;
mod bundle;
mod cli;
mod cluster;
mod destination;
mod evalhub;
mod faults;
mod hostile;
mod incremental;
mod invariants;
mod judges;
mod report;
mod store;
mod support;
mod vectors;
