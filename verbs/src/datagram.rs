//! Addresses, options and results of [`Datagrams`](crate::Datagrams).

pub use crate::owned::{
    DatagramAddress, DatagramDone, DatagramOptions, DatagramSender, NextDatagram, PendingDestination,
    ReceivedDatagram, SendTo,
};
