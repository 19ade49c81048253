//! The one integration binary: it links once, and every part shares `support`.
//!
//! A new part is one file in `tests/` and one `mod` line here (a test below sees a forgotten one).

mod architecture;
mod cli;
mod invariants;
mod judges;
mod support;
mod vectors;
