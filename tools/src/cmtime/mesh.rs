//! The controller, which the peers agree by: records and barriers over TCP.
//!
//! The peer that can bind the controller's address is the root. The others send a record to it, and
//! get those of all. A barrier is a byte that each sends to the root, which then answers all.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use anyhow::{Context as _, Result, bail, ensure};

use crate::session::socket::{Server, Socket, Waiting};
use crate::signal::Stop;

/// Bytes of a record: a socket address, the role and padding.
pub(crate) const RECORD: usize = 136;

/// Offset of the role.
const ROLE: usize = 128;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// What a peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Connects,
    /// It listens at this address.
    Listens(SocketAddr),
}

/// Why a record is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadPeer {
    #[error("a peer has the role {0}: 0 connects and 1 listens")]
    Role(u32),
    #[error("a peer listens at an address of family {0}, not at an IP address")]
    Family(u16),
}

impl Peer {
    /// The record, in the byte order of the host as the C program writes it.
    pub(crate) fn encode(self) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        let Self::Listens(addr) = self else { return record };
        record[ROLE..ROLE + 4].copy_from_slice(&1_u32.to_ne_bytes());
        record[2..4].copy_from_slice(&addr.port().to_be_bytes());
        match addr {
            SocketAddr::V4(addr) => {
                record[..2].copy_from_slice(&AF_INET.to_ne_bytes());
                record[4..8].copy_from_slice(&addr.ip().octets());
            }
            SocketAddr::V6(addr) => {
                record[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
                record[4..8].copy_from_slice(&addr.flowinfo().to_be_bytes());
                record[8..24].copy_from_slice(&addr.ip().octets());
                record[24..28].copy_from_slice(&addr.scope_id().to_ne_bytes());
            }
        }
        record
    }

    pub(crate) fn decode(record: &[u8; RECORD]) -> Result<Self, BadPeer> {
        let word = |at: usize| [record[at], record[at + 1], record[at + 2], record[at + 3]];
        match u32::from_ne_bytes(word(ROLE)) {
            0 => return Ok(Self::Connects),
            1 => {}
            other => return Err(BadPeer::Role(other)),
        }
        let port = u16::from_be_bytes([record[2], record[3]]);
        Ok(Self::Listens(match u16::from_ne_bytes([record[0], record[1]]) {
            AF_INET => (Ipv4Addr::from(word(4)), port).into(),
            AF_INET6 => {
                let mut octets = [0; 16];
                octets.copy_from_slice(&record[8..24]);
                let (flow, scope) = (u32::from_be_bytes(word(4)), u32::from_ne_bytes(word(24)));
                SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, scope).into()
            }
            other => return Err(BadPeer::Family(other)),
        }))
    }
}

/// The connections to the other peers, or to the root.
pub(super) enum Mesh<'a> {
    Root(Vec<Socket<'a>>),
    Leaf(Socket<'a>),
}

impl<'a> Mesh<'a> {
    /// Binds the controller's address and waits for the `others`, or connects to it.
    pub(super) fn join(
        controller: SocketAddr,
        others: u32,
        stop: &'a Stop,
        is_root: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        let server = match Server::tcp(controller) {
            Ok(server) => server,
            Err(error) if is_taken(&error) => {
                let root = Socket::connect_tcp(controller, Waiting::Poll, stop);
                let root = root.with_context(|| format!("connecting to the controller at {controller}"))?;
                return Ok(Self::Leaf(root));
            }
            Err(error) => return Err(error.context(format!("binding the controller's address {controller}"))),
        };
        is_root()?;
        let leaves = (0..others).map(|_| Ok(server.accept(Waiting::Poll, stop)?.0));
        Ok(Self::Root(leaves.collect::<Result<_>>()?))
    }

    /// The peers, that of the root first.
    pub(super) fn exchange(&mut self, own: Peer, peers: u32) -> Result<Vec<Peer>> {
        let mut records = vec![own.encode()];
        match self {
            Self::Root(leaves) => {
                for leaf in &mut *leaves {
                    let mut record = [0; RECORD];
                    leaf.recv(&mut record)?;
                    records.push(record);
                }
                let all = records.concat();
                leaves.iter_mut().try_for_each(|leaf| leaf.send(&all))?;
            }
            Self::Leaf(root) => {
                root.send(&records[0])?;
                records.resize(peers as usize, [0; RECORD]);
                records.iter_mut().try_for_each(|record| root.recv(record))?;
            }
        }
        Ok(records.iter().map(Peer::decode).collect::<Result<_, _>>()?)
    }

    /// Waits until all peers are at the same point.
    pub(super) fn barrier(&mut self, point: u8) -> Result<()> {
        let meet = |peer: &mut Socket<'_>| {
            let mut byte = [0];
            peer.recv(&mut byte)?;
            ensure!(byte == [point], "a peer is at point {} of the test, this one at {point}", byte[0]);
            Ok(())
        };
        match self {
            Self::Root(leaves) => {
                leaves.iter_mut().try_for_each(meet)?;
                leaves.iter_mut().try_for_each(|leaf| leaf.send(&[point]))
            }
            Self::Leaf(root) => {
                root.send(&[point])?;
                meet(root)
            }
        }
    }
}

/// Whether another peer is the root.
fn is_taken(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable))
}

/// The addresses of the peers that listen.
pub(super) fn listeners(peers: &[Peer]) -> Result<Vec<SocketAddr>> {
    let listeners: Vec<_> = peers
        .iter()
        .filter_map(|peer| match peer {
            Peer::Listens(addr) => Some(*addr),
            Peer::Connects => None,
        })
        .collect();
    match listeners.len() {
        0 => bail!("no peer listens (-L)"),
        all if all == peers.len() => bail!("all peers listen (-L): one must connect"),
        _ => Ok(listeners),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn records_round_trip(ip: std::net::IpAddr, port: u16) {
            for peer in [Peer::Connects, Peer::Listens((ip, port).into())] {
                prop_assert_eq!(Peer::decode(&peer.encode()), Ok(peer));
            }
        }

        #[test]
        fn any_record_is_a_peer_or_an_error(record: [u8; 32], role in 0_u32..4) {
            let mut whole = [0; RECORD];
            whole[..32].copy_from_slice(&record);
            whole[ROLE..ROLE + 4].copy_from_slice(&role.to_ne_bytes());
            match Peer::decode(&whole) {
                Ok(Peer::Connects) => prop_assert_eq!(role, 0),
                Ok(Peer::Listens(_)) => prop_assert_eq!(role, 1),
                Err(BadPeer::Role(bad)) => prop_assert_eq!(bad, role),
                Err(BadPeer::Family(_)) => prop_assert_eq!(role, 1),
            }
        }
    }

    #[test]
    fn record_is_a_socket_address_and_the_role() {
        let record = Peer::Listens("10.1.0.1:258".parse().unwrap()).encode();
        assert_eq!(record[..8], [AF_INET.to_ne_bytes().as_slice(), &[1, 2, 10, 1, 0, 1]].concat());
        assert_eq!(record[ROLE..ROLE + 4], 1_u32.to_ne_bytes());
        assert_eq!(Peer::Connects.encode(), [0; RECORD]);
    }

    #[test]
    fn some_peers_listen_and_some_connect() {
        let listens = Peer::Listens("10.1.0.1:1".parse().unwrap());
        assert_eq!(listeners(&[Peer::Connects, listens]).unwrap().len(), 1);
        assert!(listeners(&[Peer::Connects; 2]).unwrap_err().to_string().contains("no peer listens"));
        assert!(listeners(&[listens; 2]).unwrap_err().to_string().contains("all peers listen"));
    }

    #[test]
    fn peers_exchange_records_and_meet_at_barriers() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let stop = Stop::new().unwrap();
        let listens = Peer::Listens("10.1.0.1:77".parse().unwrap());
        std::thread::scope(|scope| {
            let (ready, is_ready) = std::sync::mpsc::channel();
            let stop = &stop;
            let root = scope.spawn(move || {
                // The leaves may connect from now on: the socket listens.
                let mut mesh = Mesh::join(free, 2, stop, || Ok(ready.send(())?)).unwrap();
                let peers = mesh.exchange(listens, 3).unwrap();
                mesh.barrier(0).unwrap();
                (peers, mesh.barrier(12).unwrap_err().to_string())
            });
            is_ready.recv().unwrap();
            let leaves = [0, 1].map(|_| {
                scope.spawn(move || {
                    let mut mesh = Mesh::join(free, 2, stop, || bail!("there is a root")).unwrap();
                    let peers = mesh.exchange(Peer::Connects, 3).unwrap();
                    mesh.barrier(0).unwrap();
                    // The root ends here.
                    mesh.barrier(14).unwrap_err();
                    peers
                })
            });
            let (peers, error) = root.join().unwrap();
            assert_eq!(peers, [listens, Peer::Connects, Peer::Connects]);
            assert!(error.contains("at point 14 of the test, this one at 12"), "{error}");
            for leaf in leaves {
                assert_eq!(leaf.join().unwrap(), peers);
            }
        });
    }
}
