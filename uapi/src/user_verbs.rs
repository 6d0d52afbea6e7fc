//! Structs and values of `ib_user_verbs.h`, the header of the write commands. Methods use some of them
//! too. Public in [`crate::write`].

pub mod structs;
pub mod types;
