//! Queues in the hands of several threads: one posts, resets and destroys, others poll, and the
//! ConnectX in software works on a thread of its own.
//!
//! Each test has an oracle of its own, and `cargo xtask tsan` runs all of them under
//! ThreadSanitizer. Threads of a test share relaxed atomics where they can: any other
//! synchronisation between them would hide a race of the provider.
// Miri has no signals, by which threads are preempted here.
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
