//! Queue pairs that the kernel's connection manager connects, as iWARP needs.

use std::net::SocketAddr;
use std::sync::Mutex;

use bareverbs::qp::{Qp, QpState, Rc};
use bareverbs::server::{Client, Handle, PeerId};
use bareverbs::{Address, Provider};
use bareverbs_rdmacm::event::EventKind;
use bareverbs_rdmacm::{CmId, ConnParam, EventChannel, PortSpace};

use crate::TIMEOUT;
use crate::iwarp::{address, is_iwarp};

/// The identifiers of the connections that tests have made: drop of one ends its connection.
static CONNECTIONS: Mutex<Vec<[CmId; 2]>> = Mutex::new(Vec::new());

/// Connects two queue pairs of this process in RESET or INIT. Each side has up to `rd_atomic` READs
/// outstanding. The connection ends with its queue pairs.
///
/// # Panics
/// If the kernel does not connect them.
pub fn connect<P: Provider>(active: &mut Qp<Rc, P>, passive: &mut Qp<Rc, P>, rd_atomic: u8) {
    connect_numbers(active.qp_num(), passive.qp_num(), rd_atomic);
    for qp in [active, passive] {
        qp.set_cm_state(QpState::RTS).expect("RTS");
    }
}

/// The addresses of two queues of this process for the other one's `connect`. On iWARP, their queue pairs are
/// connected then.
///
/// # Panics
/// If the kernel does not connect them.
pub fn introduce(active: Address, passive: Address) -> [Address; 2] {
    if is_iwarp() {
        connect_numbers(active.qp_num, passive.qp_num, active.rd_atomic.min(passive.rd_atomic));
    }
    [active, passive].map(for_peer)
}

/// Connects a client to a server of this process.
///
/// # Panics
/// If they can't be connected.
pub fn admit(server: &Handle, client: &Client) -> PeerId {
    let (peer, address) = server.admit(&for_peer(client.address())).expect("the server has a place");
    let [_, to_server] = introduce(client.address(), address);
    client.connect(&to_server).expect("the server is there");
    peer
}

/// An address of this process for the `connect` of a queue.
fn for_peer(address: Address) -> Address {
    if is_iwarp() { address.of_cm_peer() } else { address }
}

fn connect_numbers(active: u32, passive: u32, rd_atomic: u8) {
    end_disconnected();
    let [listener, id] = [(); 2].map(|()| {
        CmId::new(&EventChannel::new().expect("an event channel"), PortSpace::Tcp).expect("an identifier")
    });
    listener.bind_addr(SocketAddr::from((address(), 0))).expect("a free port");
    listener.listen(1).expect("a listener");
    let addr = listener.addresses().expect("addresses").local.and_then(|addr| addr.ip());

    id.resolve_addr(None, addr.expect("an IP address"), TIMEOUT).expect("the address");
    expect(&id, |kind| matches!(kind, EventKind::AddrResolved));
    id.resolve_route(TIMEOUT).expect("the route");
    expect(&id, |kind| matches!(kind, EventKind::RouteResolved));
    let param = |qp_num| ConnParam {
        responder_resources: rd_atomic,
        initiator_depth: rd_atomic,
        ..ConnParam::new(qp_num)
    };
    id.connect(&param(active)).expect("a connection request");
    let EventKind::ConnectRequest(request) = next(&listener) else { panic!("no request") };
    let peer = request.accept(&param(passive)).expect("the request is accepted");
    // The accepting side may send only when the other side is connected.
    for id in [&peer, &id] {
        expect(id, |kind| matches!(kind, EventKind::Established(_)));
    }
    CONNECTIONS.lock().expect("no thread panics with it").push([id, peer]);
}

/// Destroys the identifiers of connections whose queue pairs are destroyed or in ERR. Returns the number of
/// those that are left.
pub(crate) fn end_disconnected() -> usize {
    // A forked child has no connections of its parent.
    let is_connected = |id: &CmId| matches!(id.channel().try_wait(), Ok(None));
    let mut connections = CONNECTIONS.lock().expect("no thread panics with it");
    connections.retain(|ids| ids.iter().all(is_connected));
    2 * connections.len()
}

/// The next event of an identifier's channel.
#[track_caller]
fn next(id: &CmId) -> EventKind {
    id.channel().next().wait_timeout(TIMEOUT).transpose().expect("an event").expect("an event in time").kind
}

#[track_caller]
fn expect(id: &CmId, expected: impl Fn(&EventKind) -> bool) {
    let kind = next(id);
    assert!(expected(&kind), "{kind:?}");
}
