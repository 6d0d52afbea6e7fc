//! Parts of the commands that measure in guests: [`programs`], [`guests`], commands in them
//! ([`command`]), runs in [`turns`], and tables ([`calls`], [`ceilings`]).

pub(crate) mod calls;
pub(crate) mod ceilings;
pub(crate) mod command;
mod guests;
pub(crate) mod programs;
mod tested;
pub(crate) mod turns;

pub(crate) use guests::{DEFAULT_KERNEL, Files, Port, add_siw, describe, kernel, one_host, run, start_hca};
pub(crate) use tested::Tested;
