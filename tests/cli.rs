//! The command line as a user meets it.

mod build;
mod check;
mod explain;
mod help;
mod init;
mod run;
mod streams;
