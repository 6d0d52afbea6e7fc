//! The mlx5 provider without a kernel: its queues on the software HCA in the same process.
//!
//! [`Device`] creates queues on the HCA, as the kernel's driver does for the provider. [`Testbed`] has
//! one, and runs it on the calling thread. It serves the provider's tests and the measurements of the
//! data path. The threaded tests of the provider run a [`Device`] on a thread of its own.

mod device;
mod testbed;

pub use device::{Device, PD};
pub use testbed::{Cq, Qp, REGION, Testbed, cap, poll, post, push, recv, request, send};
