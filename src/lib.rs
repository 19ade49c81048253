//! casepack: the build system for agent-evaluation datasets.
//!
//! ```text
//!  readers                one tree per case            outcomes
//!  eval.yaml + cases ─┐
//!  Harbor tasks      ─┼─► Dataset ─► assemble ─► Views ─► target ─► harbor packages ─► run
//!                     ┘    of Cases   (policy)   (trees)   (pure)   workspace
//! ```
//!
//! A case is read once, its files are decided once ([`assemble`]), and every target is a function
//! of the same trees. Modules, bottom to top; a test reads `use crate::` lines against this table:
//!
//! | layer | modules |
//! | --- | --- |
//! | 1 words | `path`, `digest`, `diag`, `event`, `escape` |
//! | 2 tools | `yaml`, `fs`, `template`, `store`, `tree` |
//! | 3 inputs | `dataset`, `assemble` |
//! | 4 decisions | `target`, `bundle`, `plan` |
//! | 5 actions | `publish`, `run` |
//! | 6 outcomes | `report` |
//! | 7 shell | `cli` |

pub mod assemble;
pub mod bundle;
pub mod cli;
pub mod dataset;
pub mod diag;
pub mod digest;
pub mod escape;
pub mod event;
pub mod fs;
pub mod path;
pub mod plan;
pub mod publish;
pub mod report;
pub mod run;
pub mod store;
pub mod target;
pub mod template;
pub mod tree;
pub mod yaml;
