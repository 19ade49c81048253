//! The command line as a user meets it.

mod explain;
mod help;
mod init;
mod streams;
