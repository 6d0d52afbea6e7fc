//! The firmware's command interface: it decodes commands and creates the engine's objects.

mod adapter;
mod allocation;
pub(crate) mod bits;
mod caps;
mod command;
mod counters;
mod devx;
mod dispatch;
pub(crate) mod example;
mod headers;
mod initialization;
mod keys;
pub(crate) mod layout;
mod lifecycle;
mod limits;
mod memic;
mod nic;
pub(crate) mod opcode;
mod pacing;
mod port;
mod qps;
mod queue;
mod queues;
mod registers;
mod resource_dump;
mod resources;
mod rqs;
mod rss;
mod sqs;
mod srqs;
mod state;
mod steering;
mod tirs;
mod traffic;
mod transitions;
mod umem;
mod vport;
mod work_queue;

#[cfg(test)]
mod tests;

pub(crate) use queue::{Delivery, LOG_SLOTS, LOG_STRIDE, Outcome, execute_slot};
pub(crate) use resources::FIRST_UAR;
pub(crate) use state::Firmware;
