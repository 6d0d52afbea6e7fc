//! Datagrams over RDMA, used like those of UDP and wire-compatible with rdma-core's rsocket.
//!
//! [`DatagramSocket`] sends messages to IP addresses and receives them with the sender's address.
//!
//! # Protocol
//!
//! | | |
//! |---|---|
//! | address | a UDP socket owns the port; each local address has a UD QP with Q_Key 0x01234567 |
//! | data | UD sends that begin with the sender's address and UDP port (`ds_header`) |
//! | lookup | the UDP socket carries data to a peer whose QPN is unknown, with the own QPN (`ds_udp_header`); the peer answers with its QPN |
//! | path | each side resolves address and route by the connection manager |
//!
//! Source: `librdmacm/rsocket.c` of rdma-core. Messages may be lost, duplicated or reordered, as those
//! of UDP. Nothing authenticates the sender of a message.
//!
//! librdmacm makes an address handle without a GRH for itself, which the kernel refuses on RoCE. Its
//! datagram sockets therefore work on InfiniBand only. Those of this module work on both.

mod error;
mod options;
mod peers;
mod port;
mod socket;
mod wire;

pub use self::error::DatagramError;
pub use self::options::DatagramSocketOptions;
pub use self::socket::{DatagramSocket, Receiving, Sending};

/// The result of a call of a datagram socket.
pub type Result<T, E = DatagramError> = std::result::Result<T, E>;
