//! The peers of a datagram socket.

use std::collections::HashMap;
use std::net::SocketAddr;

use bareverbs::Destination;

use crate::{CmId, Key};

/// A peer, and what is known of its queue pair.
pub(super) struct Peer {
    pub(super) addr: SocketAddr,
    /// Index of the local port to it.
    pub(super) port: usize,
    /// The QPN that its last lookup said.
    pub(super) qp_num: u32,
    /// Its queue pair. `None`: messages go by UDP.
    pub(super) destination: Option<Destination>,
    /// The identifier that resolves the path to it.
    pub(super) resolving: Option<CmId>,
}

/// The peers by address. When there are too many, a new one replaces another one, which is looked up
/// again when it is needed.
#[derive(Default)]
pub(super) struct Peers {
    peers: Vec<Peer>,
    by_addr: HashMap<SocketAddr, usize>,
    /// The peer that was found last.
    last: usize,
    /// The peer that is replaced next.
    next: usize,
}

/// Most peers at a time. Anyone who can send UDP messages to the socket adds some.
const MOST: usize = 4096;

impl Peers {
    /// The peer with an address.
    pub(super) fn find(&mut self, addr: SocketAddr) -> Option<usize> {
        if self.peers.get(self.last).is_none_or(|peer| peer.addr != addr) {
            self.last = *self.by_addr.get(&addr)?;
        }
        Some(self.last)
    }

    /// Adds a peer to which a local port leads. `kept` is not replaced.
    pub(super) fn add(&mut self, addr: SocketAddr, port: usize, kept: Option<SocketAddr>) -> usize {
        let peer = Peer { addr, port, qp_num: 0, destination: None, resolving: None };
        let index = match self.peers.len() {
            MOST => {
                let replaced = |index: &usize| kept != Some(self.peers[*index].addr);
                let index = [self.next, (self.next + 1) % MOST].into_iter().find(replaced);
                let index = index.unwrap_or(self.next);
                self.next = (index + 1) % MOST;
                self.by_addr.remove(&self.peers[index].addr);
                self.peers[index] = peer;
                index
            }
            len => {
                self.peers.push(peer);
                len
            }
        };
        self.by_addr.insert(addr, index);
        index
    }

    pub(super) fn get(&self, index: usize) -> &Peer {
        &self.peers[index]
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut Peer {
        &mut self.peers[index]
    }

    /// The peer whose identifier has a key.
    pub(super) fn resolving(&self, key: Key) -> Option<usize> {
        self.peers.iter().position(|peer| peer.resolving.as_ref().is_some_and(|id| id.key() == key))
    }

    /// Forgets the queue pairs of the peers to which a port leads: its own queue pair is replaced.
    pub(super) fn forget(&mut self, port: usize) {
        for peer in self.peers.iter_mut().filter(|peer| peer.port == port) {
            (peer.destination, peer.resolving) = (None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{EventChannel, PortSpace};

    fn addr(number: u32) -> SocketAddr {
        (Ipv4Addr::from(number), 7174).into()
    }

    #[test]
    fn peers_are_found_by_address() {
        let mut peers = Peers::default();
        assert_eq!(peers.find(addr(1)), None);
        let indices = [1, 2, 3].map(|number| peers.add(addr(number), 0, None));
        for (number, index) in (1..).zip(indices) {
            assert_eq!(peers.find(addr(number)), Some(index));
            assert_eq!(peers.find(addr(number)), Some(index));
        }
    }

    #[test]
    fn replaced_queue_pair_ends_the_resolutions_of_its_own_peers() {
        let (mut peers, channel) = (Peers::default(), EventChannel::simulated());
        let keys = [(1, 0), (2, 1)].map(|(number, port)| {
            let (index, id) =
                (peers.add(addr(number), port, None), CmId::new(&channel, PortSpace::Udp).unwrap());
            let key = id.key();
            peers.get_mut(index).resolving = Some(id);
            key
        });
        peers.forget(1);
        assert_eq!(keys.map(|key| peers.resolving(key)), [Some(0), None]);
    }

    #[test]
    fn oldest_peer_is_replaced_unless_the_socket_is_connected_to_it() {
        let mut peers = Peers::default();
        let count = MOST as u32;
        for number in 0..count {
            peers.add(addr(number), 0, None);
        }
        peers.add(addr(count), 0, Some(addr(0)));
        peers.add(addr(count + 1), 0, Some(addr(0)));
        assert_eq!([1, 2].map(|number| peers.find(addr(number))), [None; 2]);
        for number in [0, 3, count - 1, count, count + 1] {
            let index = peers.find(addr(number)).expect("a peer");
            assert_eq!(peers.get(index).addr, addr(number));
        }
        assert_eq!(peers.peers.len(), MOST);
    }
}
