//! `bareverbs` against the C programs of rdma-core, as tests that run in the lab.
//!
//! [`program`] starts programs and collects what they leave, [`pingpong`] runs ping-pong between
//! two of them, [`lines`] reads what they print, [`resources`] counts what the kernel holds for
//! them, and [`calls`] records which of its methods a program calls.

pub mod calls;
pub mod lines;
pub mod pingpong;
pub mod program;
pub mod resources;
