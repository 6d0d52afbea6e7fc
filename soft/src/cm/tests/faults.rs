//! Lost, repeated, late and foreign messages.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::cm::message::{Dreq, Mra, Rej, Rep, Req};

#[test]
fn unanswered_request_is_repeated_15_times() {
    let (mut net, _) = Net::listening();
    net.lose(|_, _| true);
    let client = net.call(0, |cm, sink| cm.connect(&request(), path(0), sink)).unwrap();
    net.run(16 * REQUEST_TIME - 1);
    assert!(net.sides[0].events().is_empty());
    let times: Vec<_> = net.log.iter().map(|(time, ..)| *time).collect();
    assert_eq!(times, (0..16).map(|nth| nth * REQUEST_TIME).collect::<Vec<_>>());
    net.run(1);
    assert_eq!(net.sides[0].event(), (client, CmEvent::Unreachable));
    assert_eq!(net.state(0, client), ConnState::Idle);
    net.call(0, |cm, _| cm.destroy(client));
    net.sides[0].assert_empty();
}

#[test]
fn unanswered_reply_and_disconnect_end() {
    let (mut net, _) = Net::listening();
    let (_, server) = net.requested();
    net.lose(|_, _| true);
    net.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
    net.run(16 * RESPONSE_TIME);
    assert_eq!(net.sides[1].event(), (server, CmEvent::Unreachable));
    assert_eq!(net.count(1, |message| matches!(message, Message::Rep(_))), 16);

    let (mut net, _) = Net::listening();
    let (client, _) = net.connected();
    net.lose(|_, _| true);
    net.call(0, |cm, _| cm.disconnect(client, &[])).unwrap();
    net.run(16 * REQUEST_TIME);
    assert_eq!(net.sides[0].event(), (client, CmEvent::DisconnectUnanswered));
    assert_eq!(net.state(0, client), ConnState::Timewait);
    net.run(512 * MS);
    assert_eq!(net.sides[0].event(), (client, CmEvent::TimewaitExit));
}

#[test]
fn unanswered_datagram_request_ends() {
    let (mut net, _) = Net::listening();
    net.lose(|_, _| true);
    let asked = DatagramRequest { service_id: SERVICE, private_data: vec![] };
    let client = net.call(0, |cm, sink| cm.datagram_request(&asked, 20, 15, path(0), sink)).unwrap();
    net.run(16 * RESPONSE_TIME);
    assert_eq!(net.sides[0].event(), (client, CmEvent::Unreachable));
    assert_eq!(net.log.len(), 16);
}

/// Connects and disconnects. Each first message for which `is_lost` is true is lost.
fn connect_without(is_lost: fn(&Message) -> bool) {
    let (mut net, _) = Net::listening();
    let mut first = true;
    net.lose(move |_, message| is_lost(message) && std::mem::take(&mut first));
    let client = net.call(0, |cm, sink| cm.connect(&request(), path(0), sink)).unwrap();
    net.run(REQUEST_TIME);
    let (server, ..) = net.sides[1].request();
    net.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
    net.run(RESPONSE_TIME);
    assert_eq!(net.sides[0].event(), (client, CmEvent::Reply(reply())));
    net.call(0, |cm, _| cm.establish(client, &[])).unwrap();
    net.run(2 * RESPONSE_TIME);
    assert_eq!(net.sides[1].event(), (server, CmEvent::Established));
    net.call(0, |cm, _| cm.disconnect(client, &[])).unwrap();
    net.run(REQUEST_TIME);
    assert_eq!(net.sides[1].event(), (server, CmEvent::Disconnected));
    net.call(1, |cm, _| cm.disconnect(server, &[])).unwrap();
    net.run(REQUEST_TIME);
    assert_eq!(net.sides[0].events()[0], (client, CmEvent::DisconnectReply));
    assert!(!(net.policy)(0, &net.log[0].2).is_empty(), "the message was lost");
}

#[test]
fn each_message_may_be_lost() {
    connect_without(|message| matches!(message, Message::Req(_)));
    connect_without(|message| matches!(message, Message::Rep(_)));
    connect_without(|message| matches!(message, Message::Rtu(_)));
    connect_without(|message| matches!(message, Message::Dreq(_)));
    connect_without(|message| matches!(message, Message::Drep(_)));
}

#[test]
fn delayed_request_is_answered_with_mra() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.requested();
    net.call(1, |cm, _| cm.delay(server)).unwrap();
    assert_eq!(net.state(1, server), ConnState::RequestDelayed);
    net.run(REQUEST_TIME);
    assert_eq!(net.count(1, |message| matches!(message, Message::Mra(_))), 1);
    assert_eq!(net.state(0, client), ConnState::RequestProlonged);
    // The service time is 2^24, the time-out of the QP 2^17.
    net.run((65_536 + 512) * MS - 1);
    assert_eq!(net.count(0, |message| matches!(message, Message::Req(_))), 2);
    net.run(1);
    assert_eq!(net.count(0, |message| matches!(message, Message::Req(_))), 3);
    net.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
    net.run(0);
    assert_eq!(net.sides[0].event(), (client, CmEvent::Reply(reply())));
}

#[test]
fn delayed_reply_is_answered_with_mra() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.requested();
    net.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
    net.run(0);
    net.sides[0].event();
    net.call(0, |cm, _| cm.delay(client)).unwrap();
    net.run(RESPONSE_TIME);
    assert_eq!(net.state(1, server), ConnState::ReplyProlonged);
    net.run(60_000 * MS);
    assert_eq!(net.count(1, |message| matches!(message, Message::Rep(_))), 2);
    net.call(0, |cm, _| cm.establish(client, &[])).unwrap();
    net.run(0);
    assert_eq!(net.sides[1].event(), (server, CmEvent::Established));
}

#[test]
fn disconnect_may_overtake_the_rtu() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.requested();
    net.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
    net.run(0);
    net.sides[0].event();
    net.policy = Box::new(|_, message| vec![if matches!(message, Message::Rtu(_)) { 5 } else { 0 }]);
    net.call(0, |cm, _| cm.establish(client, &[])).unwrap();
    net.call(0, |cm, _| cm.disconnect(client, &[])).unwrap();
    net.run(10);
    assert_eq!(net.sides[1].event(), (server, CmEvent::Disconnected));
}

#[test]
fn reused_qpn_ends_the_stale_connection() {
    let (mut net, _) = Net::listening();
    let (_, server) = net.connected();
    // The client's process has ended without a message.
    net.sides[0] = Side::new(0, 500);
    let client = net.call(0, |cm, sink| cm.connect(&request(), path(0), sink)).unwrap();
    net.run(0);
    let stale = CmEvent::Rejected { reason: 10, private_data: vec![0; 148] };
    assert_eq!(net.sides[0].event(), (client, stale));
    // The DREQ for the unknown connection is answered.
    assert_eq!(net.sides[1].event(), (server, CmEvent::DisconnectReply));
    net.run(512 * MS);
    assert_eq!(net.sides[0].event(), (client, CmEvent::TimewaitExit));
    assert_eq!(net.sides[1].event(), (server, CmEvent::TimewaitExit));
    net.connected();
}

#[test]
fn reused_qpn_of_a_reply_ends_the_stale_connection() {
    let (mut net, _) = Net::listening();
    let (stale, _) = net.connected();
    // The server's process has ended without a message. The next one has its QPN again.
    net.sides[1] = Side::new(1, 2000);
    net.call(1, |cm, sink| cm.listen(SERVICE, sink)).unwrap();
    let request = Request { qpn: 0x12, ..request() };
    let client = net.call(0, |cm, sink| cm.connect(&request, path(0), sink)).unwrap();
    net.run(0);
    let (server, ..) = net.sides[1].request();
    net.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
    net.run(0);
    let rejected = CmEvent::Rejected { reason: 10, private_data: vec![0; 148] };
    assert_eq!(net.sides[1].event(), (server, rejected));
    // The new server answers the DREQ.
    assert_eq!(net.sides[0].event(), (stale, CmEvent::DisconnectReply));
    assert_eq!(net.state(0, client), ConnState::RequestSent);
}

#[test]
fn request_that_is_repeated_in_timewait_is_stale() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.connected();
    net.call(0, |cm, _| cm.destroy(client));
    net.run(0);
    net.sides[1].event();
    net.call(1, |cm, _| cm.destroy(server));
    let request = net.log[0].2.clone();
    let mad = Mad { transaction: 1, message: request }.encode();
    let receive = |net: &mut Net| {
        net.log.clear();
        net.call(1, |cm, _| cm.receive(path(1), &mad));
        net.log.last().map(|(.., message)| message.clone())
    };
    let answer = receive(&mut net);
    assert!(matches!(answer, Some(Message::Rej(Rej { reason: 10, .. }))), "{answer:?}");
    assert!(net.sides[1].events().is_empty());
    net.run(512 * MS);
    assert_eq!(receive(&mut net), None);
    net.sides[1].request();
}

#[test]
fn requests_that_cannot_be_carried_out_are_rejected() {
    let (mut net, _) = Net::listening();
    let req = Req { service_id: SERVICE, remote_gid: gid(1), local_gid: gid(0), ..Req::zero() };
    let wrong = [
        (Req { transport: 3, ..req.clone() }, 9),
        (Req { remote_gid: gid(5), ..req.clone() }, 12),
        (Req { local_gid: gid(5), ..req.clone() }, 12),
    ];
    for (request, expected) in wrong {
        net.log.clear();
        let mad = Mad { transaction: 1, message: Message::Req(request) }.encode();
        net.call(1, |cm, _| cm.receive(path(1), &mad));
        let [(_, 1, Message::Rej(rej))] = &net.log[..] else { panic!("{:?}", net.log) };
        assert_eq!(rej.reason, expected);
    }
    assert!(net.sides[1].events().is_empty());
    net.sides[1].assert_empty();
}

#[test]
fn messages_of_other_addresses_and_qps_are_dropped() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.connected();
    let dreq = Dreq { local_id: client.0, remote_id: server.0, remote_qpn: 0x22, private_data: [0; 220] };
    let encode = |dreq: &Dreq| Mad { transaction: 1, message: Message::Dreq(dreq.clone()) }.encode();
    net.sides[1].cm.receive(Path { destination: gid(7), ..path(1) }, &encode(&dreq));
    net.sides[1].cm.receive(path(1), &encode(&Dreq { remote_qpn: 0x23, ..dreq.clone() }));
    net.sides[1].cm.receive(path(1), &encode(&Dreq { local_id: client.0 + 1, ..dreq.clone() }));
    assert!(net.sides[1].events().is_empty());
    net.sides[1].cm.receive(path(1), &encode(&dreq));
    assert_eq!(net.sides[1].event(), (server, CmEvent::Disconnected));
}

/// The bytes of a MAD with small ids, so that it may concern a connection.
fn near_mad() -> impl Strategy<Value = Vec<u8>> {
    let body = proptest::collection::vec(any::<u8>(), 232);
    (0x0f..0x1c_u16, body, 0..5_u32, 0..5_u32, any::<bool>()).prop_map(
        |(attribute, mut body, local, remote, is_of_path)| {
            body[..4].copy_from_slice(&local.to_be_bytes());
            body[4..8].copy_from_slice(&(1000 + remote).to_be_bytes());
            body[8..16].copy_from_slice(&SERVICE.to_be_bytes());
            if is_of_path && attribute == 0x10 {
                body[43] &= !6;
                body[56..72].copy_from_slice(&gid(0));
                body[72..88].copy_from_slice(&gid(1));
            }
            let mut bytes = vec![1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            bytes.extend(attribute.to_be_bytes());
            bytes.extend([0; 6]);
            bytes.extend(body);
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_messages_leave_a_bounded_state(
        mads in proptest::collection::vec(near_mad(), 1..200),
        drops in any::<bool>(),
    ) {
        let (mut net, listener) = Net::listening();
        net.connected();
        let other = Request { qpn: 0x12, ..request() };
        net.call(0, |cm, sink| cm.connect(&other, path(0), sink)).unwrap();
        net.run(0);
        net.sides[1].request();
        *net.sides[1].sink.verdict.lock().unwrap() = if drops { Verdict::Drop } else { Verdict::Keep };
        net.lose(|_, _| true);
        for mad in &mads {
            net.call(1, |cm, _| cm.receive(path(1), mad));
            net.run(100 * MS);
        }
        let cm = &net.sides[1].cm;
        let most = if drops { 2 } else { 2 + mads.len() };
        prop_assert!(cm.connections.len() <= most);
        prop_assert!(cm.remote_ids.len() <= cm.connections.len());
        prop_assert!(cm.remote_qps.len() <= cm.connections.len());
        prop_assert!(cm.timers.len() <= cm.connections.len());
        let ids: Vec<_> = cm.connections.keys().copied().collect();
        for id in ids {
            net.call(1, |cm, _| cm.destroy(ConnId(id)));
        }
        net.call(1, |cm, _| cm.destroy(listener));
        net.run(1 << 55);
        net.sides[1].assert_empty();
    }
}

/// A generator of numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ value >> 31) % limit
    }
}

/// The program of both sides: it does what it may, at random.
#[derive(Default)]
struct Program {
    /// The events of each connection, by side and id.
    seen: BTreeMap<(usize, u32), Vec<CmEvent>>,
}

impl Program {
    fn react(&mut self, net: &mut Net, random: &mut Random) {
        for side in 0..2 {
            for (id, event) in net.sides[side].events() {
                let id = match &event {
                    CmEvent::Request { connection, .. } => *connection,
                    _ => id,
                };
                self.seen.entry((side, id.0)).or_default().push(event.clone());
                match event {
                    CmEvent::Request { .. } => net.call(side, |cm, _| match random.below(10) {
                        0 => cm.reject(id, 28, &[], &[]).unwrap(),
                        1 => cm.destroy(id),
                        2 => cm.delay(id).unwrap(),
                        _ => cm.reply(id, &Reply { qpn: 0x1000 + id.0, ..reply() }).unwrap(),
                    }),
                    CmEvent::Reply(_) => net.call(side, |cm, _| match random.below(10) {
                        0 => cm.reject(id, 28, &[], &[]).unwrap(),
                        1 => cm.destroy(id),
                        2 => cm.delay(id).unwrap(),
                        _ => cm.establish(id, &[]).unwrap(),
                    }),
                    CmEvent::Disconnected if random.below(4) > 0 => {
                        // A DREQ that has crossed may have been answered by now.
                        let _: Result<(), _> = net.call(side, |cm, _| cm.disconnect(id, &[]));
                    }
                    _ => {}
                }
            }
        }
    }

    /// A call that isn't an answer.
    fn act(&mut self, net: &mut Net, random: &mut Random) {
        let ids: Vec<_> = self.seen.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let (side, id) = ids[random.below(ids.len() as u64) as usize];
        let id = ConnId(id);
        let state = net.sides[side].cm.state(id);
        net.call(side, |cm, _| match (state, random.below(3)) {
            (Some(ConnState::Established | ConnState::DisconnectReceived), 0) => {
                cm.disconnect(id, &[]).unwrap();
            }
            (Some(ConnState::RequestDelayed), _) => {
                cm.reply(id, &Reply { qpn: 0x1000 + id.0, ..reply() }).unwrap();
            }
            (Some(ConnState::ReplyDelayed), _) => cm.establish(id, &[]).unwrap(),
            (Some(ConnState::Idle), _) | (Some(_), 1) if random.below(4) == 0 => cm.destroy(id),
            _ => {}
        });
    }

    /// Whether the events of a connection are in an order that the protocol allows.
    fn check(&self) {
        for ((side, id), events) in &self.seen {
            let ranks: Vec<_> = events.iter().map(rank).collect();
            let ordered = ranks.windows(2).all(|pair| pair[0] < pair[1]);
            assert!(ordered, "side {side}, connection {id}: {events:?}");
        }
    }
}

fn rank(event: &CmEvent) -> u8 {
    match event {
        CmEvent::Request { .. } | CmEvent::Reply(_) => 0,
        CmEvent::Established => 1,
        CmEvent::Disconnected => 2,
        CmEvent::DisconnectReply | CmEvent::DisconnectUnanswered => 3,
        CmEvent::Rejected { .. } | CmEvent::Unreachable => 4,
        CmEvent::TimewaitExit => 5,
        event => panic!("{event:?}"),
    }
}

/// Connections over a network that loses, repeats, delays and reorders messages. Returns the number of
/// those that were established, and the messages.
fn run_seed(seed: u64) -> (usize, Vec<(u64, usize, Message)>) {
    let (mut net, listener) = Net::listening();
    let mut random = Random(seed);
    let mut faults = Random(!seed);
    let loss = random.below(5);
    net.policy = Box::new(move |_, _| {
        let copies = 1 + u64::from(faults.below(10) == 0);
        let delays = (0..copies).map(|_| match faults.below(10) {
            0 => faults.below(10_000 * MS),
            _ => faults.below(MS),
        });
        let delays: Vec<_> = delays.collect();
        delays.into_iter().filter(|_| faults.below(10) >= loss).collect()
    });
    let mut program = Program::default();
    for nth in 0..20 {
        let asked = Request { qpn: 0x11 + nth, ..request() };
        let id = net.call(0, |cm, sink| cm.connect(&asked, path(0), sink)).unwrap();
        program.seen.insert((0, id.0), Vec::new());
        for _ in 0..random.below(30) {
            let end = net.now + random.below(1000 * MS);
            net.step(end);
            program.react(&mut net, &mut random);
            program.act(&mut net, &mut random);
        }
    }
    // No message is under way and no timer runs after this.
    let end = net.now + 3_600_000 * MS;
    while net.step(end) {
        program.react(&mut net, &mut random);
    }
    program.check();
    for (side, id) in program.seen.keys() {
        net.call(*side, |cm, _| cm.destroy(ConnId(*id)));
    }
    net.call(1, |cm, _| cm.destroy(listener));
    net.lose(|_, _| true);
    net.run(3_600_000 * MS);
    net.sides.iter().for_each(Side::assert_empty);
    let established = |events: &&Vec<CmEvent>| events.contains(&CmEvent::Established);
    (program.seen.values().filter(established).count(), net.log)
}

#[test]
fn random_faults_leave_nothing_behind() {
    let established: usize = (0..200).map(|seed| run_seed(seed).0).sum();
    assert!(established > 1000, "{established}");
}

#[test]
fn the_same_seed_gives_the_same_messages() {
    assert_eq!(run_seed(7).1, run_seed(7).1);
}

#[test]
fn hosts_with_the_ids_of_a_peer_leave_its_connection_alone() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.connected();
    let Message::Req(req) = net.log[0].2.clone() else { panic!("{:?}", net.log) };
    let Some(Message::Rep(rep)) = net.log.iter().map(|(.., message)| message.clone()).nth(1) else {
        panic!("{:?}", net.log)
    };
    let encode = |message| Mad { transaction: 1, message }.encode();
    // The QPN with another id, then the id.
    for (host, local_id) in [(7, 77), (8, req.local_id)] {
        let message = Message::Req(Req { local_id, local_gid: gid(host), ..req.clone() });
        net.sides[1].cm.receive(Path { destination: gid(host), ..path(1) }, &encode(message));
        assert_ne!(net.sides[1].request().0, server);
    }
    let to = Path { destination: gid(7), ..path(0) };
    let sink: Arc<dyn CmSink> = Arc::<Recorder>::clone(&net.sides[0].sink);
    let other = net.sides[0].cm.connect(&request(), to, sink).unwrap();
    net.sides[0].cm.receive(to, &encode(Message::Rep(Rep { remote_id: other.0, ..rep })));
    assert_eq!(net.sides[0].event(), (other, CmEvent::Reply(reply())));
    assert_eq!(net.state(0, client), ConnState::Established);
    assert_eq!(net.state(1, server), ConnState::Established);
}

#[test]
fn time_outs_of_a_path_are_bounded() {
    for packet_life in [31, 55, 255] {
        let (mut net, _) = Net::listening();
        let to = Path { packet_life, ..path(0) };
        let client = net.call(0, |cm, sink| cm.connect(&request(), to, sink)).unwrap();
        net.run(0);
        let (server, ..) = net.sides[1].request();
        net.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
        net.run(0);
        net.call(0, |cm, _| cm.establish(client, &[])).unwrap();
        net.call(0, |cm, _| cm.destroy(client));
        net.run(MOST_OF_PEER);
        net.sides[0].assert_empty();
    }
}

/// Nanoseconds of the longest time-out of a peer.
const MOST_OF_PEER: u64 = 65_536 * MS;

#[test]
fn time_outs_of_a_peer_are_bounded() {
    // Of a REQ: the REP is repeated.
    let (mut net, _) = Net::listening();
    let asked = Request { local_response_timeout: 31, ..request() };
    net.call(0, |cm, sink| cm.connect(&asked, path(0), sink)).unwrap();
    net.run(0);
    let (server, ..) = net.sides[1].request();
    net.lose(|_, _| true);
    net.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
    net.run(16 * MOST_OF_PEER);
    assert_eq!(net.sides[1].event(), (server, CmEvent::Unreachable));

    // Of a MRA, and of the delay of ACKs of a REP.
    let (mut net, _) = Net::listening();
    let (client, server) = net.requested();
    let receive = |net: &mut Net, message| {
        let mad = Mad { transaction: 1, message }.encode();
        net.call(0, |cm, _| cm.receive(path(0), &mad));
    };
    let mra = Mra { local_id: server.0, remote_id: client.0, delayed: 0, service_timeout: 31 };
    receive(&mut net, Message::Mra(mra));
    assert_eq!(net.state(0, client), ConnState::RequestProlonged);
    assert!(net.sides[0].cm.next_timer().unwrap() <= net.now + 2 * MOST_OF_PEER);
    let rep = Rep { local_id: server.0, remote_id: client.0, ack_delay: 31, qpn: 0x22, ..Rep::zero() };
    receive(&mut net, Message::Rep(rep));
    assert_eq!(net.state(0, client), ConnState::ReplyReceived);
    net.call(0, |cm, _| cm.establish(client, &[])).unwrap();
    net.call(0, |cm, _| cm.destroy(client));
    net.run(MOST_OF_PEER);
    net.sides[0].assert_empty();
}

#[test]
fn connector_with_an_id_in_timewait_is_rejected() {
    let (mut net, _) = Net::listening();
    let (_, server) = net.connected();
    net.call(1, |cm, _| cm.destroy(server));
    // A process on the same address, with the same ids. The DREQ to the one before is lost.
    net.under_way.clear();
    net.sides[0] = Side::new(0, 1);
    let client = net.call(0, |cm, sink| cm.connect(&request(), path(0), sink)).unwrap();
    net.run(0);
    assert_eq!(net.sides[0].event(), (client, CmEvent::Rejected { reason: 10, private_data: vec![0; 148] }));
}

#[test]
fn repeated_datagram_request_is_one_event() {
    let (mut net, _) = Net::listening();
    net.policy = Box::new(|_, _| vec![0, MS]);
    let asked = DatagramRequest { service_id: SERVICE, private_data: vec![] };
    let client = net.call(0, |cm, sink| cm.datagram_request(&asked, 20, 15, path(0), sink)).unwrap();
    net.run(MS);
    let CmEvent::DatagramRequest { connection, .. } = net.sides[1].event().1 else { panic!("a request") };
    net.call(1, |cm, _| cm.datagram_reply(connection, &DatagramReply::default())).unwrap();
    net.run(MS);
    assert!(matches!(net.sides[0].event(), (id, CmEvent::DatagramReply(_)) if id == client));
}
