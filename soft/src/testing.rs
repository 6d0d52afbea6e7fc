//! The wire of a device without a socket, and its connections, for fuzz targets.

use std::net::{IpAddr, SocketAddr};

use bareverbs_transport::roce::NetworkHeaders;

pub use crate::cm::CmConnection;
use crate::device::SoftDevice;
use crate::wire::{datagram_packet, gid, global_of};

/// Receives a datagram on UDP port 4791 of the device, as from a socket. Returns whether it has a
/// packet of RoCE v2.
pub fn receive(device: &SoftDevice, source: SocketAddr, datagram: &[u8]) -> bool {
    let packet = datagram_packet(device.address(), source, datagram);
    packet.is_some_and(|packet| device.port().run(|engine| engine.receive(&packet)).is_ok())
}

/// The ICRC of a packet, as it is behind it.
#[must_use]
pub fn icrc(source: SocketAddr, destination: IpAddr, transport: &[u8]) -> [u8; 4] {
    let headers =
        NetworkHeaders::new(&global_of(gid(source.ip()), destination), source.port(), transport.len());
    headers.icrc(transport).to_le_bytes()
}

/// The number of connections of a device's communication manager, with those in `TIMEWAIT`, and of its
/// listeners.
#[must_use]
pub fn cm_count(device: &SoftDevice) -> usize {
    device.port().with(|engine| Ok(engine.cm_count())).unwrap_or(0)
}

/// The connections of a device's communication manager, with those in `TIMEWAIT`.
#[must_use]
pub fn cm_connections(device: &SoftDevice) -> Vec<CmConnection> {
    device.port().with(|engine| Ok(engine.cm_connections())).unwrap_or_default()
}
