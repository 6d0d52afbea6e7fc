//! Interop tests of `bareverbs` with the C programs of rdma-core, which run in the lab.
//!
//! [`program`] runs programs and collects their output, [`pingpong`] runs ping-pong between two of
//! them, [`perf`] benchmarks, [`lines`] parses their output, and [`calls`] records their verbs calls.
//! [`connect`] runs clients of the connection manager, [`link`] cuts the link of the device,
//! [`namespace`] has an rxe device and a host for soft devices.
//! [`bareverbs_test_support::resources`] counts their objects in the kernel.

pub mod calls;
pub mod connect;
pub mod lines;
pub mod link;
pub mod namespace;
pub mod perf;
pub mod pingpong;
pub mod program;
