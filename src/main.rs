//! The `casepack` binary.

fn main() {}
