//! Targets: pure functions from a case and its trees to the tree of an output.
//!
//! Refuses to know disk and network.

pub mod harbor;
