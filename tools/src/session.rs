//! Shared by the programs with two sides: the exchange over TCP, the addresses of both sides, the
//! connection manager, and the causes of failures.

pub(crate) mod address;
pub(crate) mod connected;
pub(crate) mod datagram;
pub(crate) mod exchange;
pub(crate) mod hex;
pub(crate) mod path;
pub(crate) mod socket;
pub(crate) mod status;
