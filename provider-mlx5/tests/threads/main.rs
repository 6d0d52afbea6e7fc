//! Queues shared by several threads. One thread posts, resets and destroys; others poll. The
//! in-process HCA, a software ConnectX, runs on its own thread.
//!
//! Each test has its own oracle. `cargo xtask tsan` runs all tests under ThreadSanitizer. The
//! threads of a test share only relaxed atomics where possible, because any other synchronization
//! would hide races in the provider.
// Miri has no signals, and these tests preempt threads by signals.
#![cfg(not(miri))]

mod destroy;
mod doorbells;
mod malicious;
mod post;
mod preempt;
mod reset;
mod resize;
mod scatter;
mod srq;
mod testbed;
#[cfg(bareverbs_tsan)]
mod tsan;
