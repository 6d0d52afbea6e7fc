//! The UD queue pair of a local address.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bareverbs::ah::{AhAttr, GlobalRoute, Rate};
use bareverbs::device::GidType;
use bareverbs::qp::{GRH_BYTES, QpState};
use bareverbs::{Datagrams, Destination, Op, Pd, Pool, PoolBuffer};
use rustix::io::Errno;

use super::wire::{Header, Lookup, SLOT};
use super::{DatagramSocketOptions, Result};
use crate::connection::Domains;
use crate::id::BoundDevice;
use crate::{CmId, Error, EventChannel, PathRecord, PortSpace};

/// The Q_Key of all datagram sockets (`RDMA_UDP_QKEY`).
const QKEY: u32 = 0x0123_4567;

/// How long drop waits until the device has sent all messages.
const LINGER: Duration = Duration::from_secs(1);

/// A local address with its queue pair.
pub(super) struct Port {
    datagrams: Datagrams<PoolBuffer>,
    /// Buffers of messages that are not inline.
    sends: Pool,
    /// The bytes of an inline message.
    inline: Vec<u8>,
    header: Header,
    local: SocketAddr,
    /// The local part of a path.
    from: AhAttr,
    is_ethernet: bool,
    /// Bits of the LID that select a path.
    path_bits: u8,
    max_message: usize,
    /// Whether the next completion makes the descriptor readable.
    pub(super) armed: bool,
    /// Receives that are posted.
    recvs: usize,
    channel: EventChannel,
}

/// What the connection manager knows of a local address.
struct Local {
    device: BoundDevice,
    gid: bareverbs::Gid,
    pkey_index: u16,
}

impl Local {
    fn find(channel: &EventChannel, addr: SocketAddr) -> Result<Self, Error> {
        let id = CmId::new(channel, PortSpace::Udp)?;
        let mut addr = addr;
        addr.set_port(0);
        id.bind_addr(addr)?;
        let Some(device) = id.addresses()?.device else { return Err(Error::Address(Errno::NODEV)) };
        let (attr, _) = id.init_qp_attr(QpState::INIT)?;
        let [Some(own), _] = id.gids()? else { return Err(Error::Address(Errno::NODEV)) };
        Ok(Self { device, gid: own.gid, pkey_index: attr.pkey_index })
    }
}

impl Port {
    /// The queue pair of a local address, `local`, whose port is that of the UDP socket.
    pub(super) fn new(
        channel: &EventChannel,
        domains: &Domains,
        options: &DatagramSocketOptions,
        local: SocketAddr,
    ) -> Result<Self> {
        let found = Local::find(channel, local)?;
        Ok(domains.build(found.device, Error::errno, |pd| Self::on(channel, pd, &found, options, local))?)
    }

    fn on(
        channel: &EventChannel,
        pd: &Pd,
        found: &Local,
        options: &DatagramSocketOptions,
        local: SocketAddr,
    ) -> Result<Self, Error> {
        let (context, port) = (pd.context(), found.device.port);
        let is_it = |entry: &&bareverbs::device::GidEntry| entry.port == port && entry.gid == found.gid;
        // On RoCE, an address has a GID of each version.
        let gids = context.gid_table()?;
        let gid = gids.iter().filter(is_it).max_by_key(|entry| entry.gid_type == GidType::ROCE_V2);
        let gid_index = gid.ok_or(Error::Address(Errno::NODEV))?.index;
        let attr = context.query_port(port)?;
        let mut datagrams: Datagrams = Datagrams::options()
            .port(port)
            .gid_index(gid_index)
            .pkey_index(found.pkey_index)
            .qkey(QKEY)
            // The socket's calls may not wait, and the peer's next answer starts the resolution again.
            .resolve_timeout(Duration::ZERO)
            .sends(options.sends() as u32)
            .recvs(options.recvs() as u32)
            .inline(options.inline)
            .build(pd)?;
        let recvs = Pool::new(pd, options.recvs(), GRH_BYTES + SLOT)?;
        while let Some(buffer) = recvs.take() {
            datagrams.post(Op::recv(buffer))?;
        }
        let header = Header::of(local);
        let packet = SLOT.min(datagrams.max_message() as usize) - header.as_bytes().len();
        Ok(Self {
            sends: Pool::new(pd, options.sends(), SLOT)?,
            inline: vec![0; options.inline as usize],
            header,
            local,
            from: AhAttr::global(port, bareverbs::Gid([0; 16]), gid_index),
            is_ethernet: attr.link_layer == bareverbs::device::LinkLayer::ETHERNET,
            // An LMC has 3 bits.
            path_bits: (1u8 << attr.lmc.min(7)) - 1,
            max_message: packet.min(SLOT - Lookup::len(local)),
            armed: false,
            recvs: options.recvs(),
            channel: channel.clone(),
            datagrams,
        })
    }

    /// The address of this port's messages.
    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Its QPN.
    pub(super) fn qp_num(&self) -> u32 {
        self.datagrams.address().qp_num
    }

    /// The longest message in bytes, without its header.
    pub(super) fn max_message(&self) -> usize {
        self.max_message
    }

    /// The QP of a peer on a path. A path within an InfiniBand subnet has no GRH, as in librdmacm.
    pub(super) fn destination(&self, path: &PathRecord, qp_num: u32) -> Result<Destination> {
        let route = |global: GlobalRoute| GlobalRoute {
            dgid: bareverbs::Gid(path.dgid),
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            ..global
        };
        let attr = AhAttr { sl: path.sl, grh: self.from.grh.map(route), ..self.from };
        let attr = match self.is_ethernet {
            true => attr,
            false => AhAttr {
                dlid: path.dlid,
                src_path_bits: path.slid as u8 & self.path_bits,
                static_rate: Rate(path.rate),
                grh: attr.grh.filter(|global| global.hop_limit > 1),
                ..attr
            },
        };
        Ok(self.datagrams.destination_with_path(&attr, qp_num, QKEY).wait()?)
    }

    /// Sends a message of at most `max_message` bytes. `false`: the send queue is full.
    pub(super) fn send(&mut self, to: &Destination, message: &[u8]) -> Result<bool> {
        while let Some(done) = self.datagrams.poll_send() {
            done?;
        }
        let header = self.header.as_bytes();
        let len = header.len() + message.len();
        let posted = match self.inline.get_mut(..len) {
            Some(inline) => {
                put(inline, header, message);
                self.datagrams.post(Op::send_to_inline(to, inline))
            }
            None => {
                let Some(mut buffer) = self.sends.take() else { return Ok(false) };
                put(&mut buffer.bytes_mut()[..len], header, message);
                self.datagrams.post(Op::send_to(to, buffer, ..len)).map_err(Into::into)
            }
        };
        match posted {
            Ok(()) => Ok(true),
            Err(refused) if refused.is_full() => Ok(false),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Copies the next message of `from`, or of any peer, to the start of `into`. Returns its length
    /// there and its sender.
    ///
    /// It handles at most as many messages as there are receives, because those of others may arrive
    /// without end. If the CQ was armed before, an event reports what is left.
    pub(super) fn recv(
        &mut self,
        into: &mut [u8],
        from: Option<SocketAddr>,
    ) -> Result<Option<(usize, SocketAddr)>> {
        let scope = match self.local {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(local) => local.scope_id(),
        };
        for _ in 0..self.recvs {
            let Some(received) = self.datagrams.poll_recv() else { break };
            let received = received?;
            let parsed = Header::parse(received.message(), scope);
            let taken = parsed
                .filter(|(sender, _)| from.is_none_or(|from| from == *sender))
                .map(|(sender, message)| (copy(message, into), sender));
            self.datagrams.post(Op::recv(received.into_buffer()))?;
            if taken.is_some() {
                return Ok(taken);
            }
        }
        Ok(None)
    }

    /// Makes the descriptor readable at the next completion.
    pub(super) fn arm(&mut self) -> Result<()> {
        self.datagrams.arm()?;
        self.armed = true;
        Ok(())
    }
}

/// Fills `slot` with a header and a message.
fn put(slot: &mut [u8], header: &[u8], message: &[u8]) {
    slot[..header.len()].copy_from_slice(header);
    slot[header.len()..].copy_from_slice(message);
}

/// Copies as much of a message as fits.
pub(super) fn copy(message: &[u8], into: &mut [u8]) -> usize {
    let len = message.len().min(into.len());
    into[..len].copy_from_slice(&message[..len]);
    len
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.datagrams.as_fd()
    }
}

impl Drop for Port {
    /// Waits until the device has sent all messages.
    fn drop(&mut self) {
        // A forked child does not inherit the rings.
        if !self.channel.file().is_of_this_process() {
            return;
        }
        let end = Instant::now() + LINGER;
        while self.datagrams.pending_sends() > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if !matches!(self.datagrams.next().wait_timeout(left), Some(Ok(_))) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_copied_as_far_as_it_fits() {
        for (room, copied) in [(0, 0), (2, 2), (3, 3), (5, 3)] {
            let mut into = vec![0; room];
            assert_eq!(copy(&[1, 2, 3], &mut into), copied);
            assert_eq!(into[..copied], [1, 2, 3][..copied]);
            assert!(into[copied..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn slot_has_the_message_behind_its_header() {
        let mut slot = [0; 5];
        put(&mut slot, &[1, 2], &[3, 4, 5]);
        assert_eq!(slot, [1, 2, 3, 4, 5]);
    }
}
