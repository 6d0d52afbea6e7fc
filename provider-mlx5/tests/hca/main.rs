//! The queues against a ConnectX in software, in one process: what a program posts is carried out
//! by a device that was written apart from the provider and that the kernel's own driver and the C
//! library run on.

mod compressed;
mod connected;
mod datagrams;
mod events;
mod frames;
mod lifetime;
mod mixed;
mod scattered;
mod shared;
mod testbed;
mod windows;
mod work_queues;
