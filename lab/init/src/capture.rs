//! Captures the packets of a link for the host.

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use bareverbs_lab_init::frame::FromGuest;
use nix::sys::socket::{AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, socket};

use crate::port::Sender;

/// Sends every packet that the link with this index sends or receives to the host, from now on.
pub(crate) fn start(index: u32, sender: &Sender) -> Result<()> {
    let socket: OwnedFd =
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
            .context("opening a packet socket")?;
    let sender = sender.clone();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok((count, address)) = recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer) {
            let ours = address.is_some_and(|address| address.ifindex() == index as usize);
            if ours && sender.send(&FromGuest::Packet(buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
    Ok(())
}
