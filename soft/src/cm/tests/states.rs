//! States and messages on a network without faults.

use bareverbs_provider::Errno;

use super::*;
use crate::cm::ack_timeout;

#[test]
fn values_of_requests_and_replies_arrive() {
    let (mut net, listener) = Net::listening();
    let client = net.call(0, |cm, sink| cm.connect(&request(), path(0), sink)).unwrap();
    net.run(0);
    let mut events = net.sides[1].events();
    let (id, event) = events.pop().unwrap();
    assert_eq!((id, events.len()), (listener, 0));
    let CmEvent::Request { connection, request: got, path: back } = event else { panic!("{event:?}") };
    assert_eq!(got, request());
    assert_eq!(back, path(1));
    net.call(1, |cm, _| cm.reply(connection, &reply())).unwrap();
    net.run(0);
    assert_eq!(net.sides[0].event(), (client, CmEvent::Reply(reply())));
}

#[test]
fn connection_ends_after_timewait() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.connected();
    assert_eq!(
        (net.state(0, client), net.state(1, server)),
        (ConnState::Established, ConnState::Established)
    );
    net.call(0, |cm, _| cm.disconnect(client, &[])).unwrap();
    net.run(0);
    assert_eq!(net.sides[1].event(), (server, CmEvent::Disconnected));
    net.call(1, |cm, _| cm.disconnect(server, &[])).unwrap();
    net.run(0);
    assert_eq!(net.sides[0].event(), (client, CmEvent::DisconnectReply));
    assert_eq!((net.state(0, client), net.state(1, server)), (ConnState::Timewait, ConnState::Timewait));
    // The packet life time is 2^16, the time-out of QPs thus 2^17.
    net.run(512 * MS - 1);
    assert!(net.sides[0].events().is_empty() && net.sides[1].events().is_empty());
    net.run(1);
    assert_eq!(net.sides[0].event(), (client, CmEvent::TimewaitExit));
    assert_eq!(net.sides[1].event(), (server, CmEvent::TimewaitExit));
    net.call(0, |cm, _| cm.destroy(client));
    net.call(1, |cm, _| cm.destroy(server));
    net.sides.iter().for_each(Side::assert_empty);
}

#[test]
fn destroyed_connections_are_disconnected() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.connected();
    net.call(0, |cm, _| cm.destroy(client));
    net.run(0);
    assert_eq!(net.sides[0].cm.state(client), None);
    assert_eq!(net.sides[1].event(), (server, CmEvent::Disconnected));
    net.call(1, |cm, _| cm.destroy(server));
    net.run(512 * MS);
    assert!(net.sides[0].events().is_empty() && net.sides[1].events().is_empty());
    assert_eq!(net.count(0, |message| matches!(message, Message::Dreq(_))), 1);
    assert_eq!(net.count(1, |message| matches!(message, Message::Drep(_))), 1);
    net.sides.iter().for_each(Side::assert_empty);
}

#[test]
fn disconnects_of_both_sides_may_cross() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.connected();
    net.call(0, |cm, _| cm.disconnect(client, &[])).unwrap();
    net.call(1, |cm, _| cm.disconnect(server, &[])).unwrap();
    net.run(0);
    assert_eq!(net.sides[0].event(), (client, CmEvent::Disconnected));
    assert_eq!(net.sides[1].event(), (server, CmEvent::Disconnected));
    net.call(0, |cm, _| cm.disconnect(client, &[])).unwrap();
    net.run(0);
    assert_eq!(net.sides[1].event(), (server, CmEvent::DisconnectReply));
    assert_eq!((net.state(0, client), net.state(1, server)), (ConnState::Timewait, ConnState::Timewait));
}

#[test]
fn service_without_listener_is_rejected() {
    let mut net = Net::new();
    let client = net.call(0, |cm, sink| cm.connect(&request(), path(0), sink)).unwrap();
    net.run(0);
    let rejected = CmEvent::Rejected { reason: 8, private_data: vec![0; 148] };
    assert_eq!(net.sides[0].event(), (client, rejected));
    assert_eq!(net.state(0, client), ConnState::Idle);
    net.call(0, |cm, _| cm.destroy(client));
    net.sides.iter().for_each(Side::assert_empty);
}

#[test]
fn both_sides_may_reject() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.requested();
    net.call(1, |cm, _| cm.reject(server, 28, &[], &[7; 148])).unwrap();
    net.run(0);
    let rejected = |byte| CmEvent::Rejected { reason: 28, private_data: vec![byte; 148] };
    assert_eq!(net.sides[0].event(), (client, rejected(7)));
    assert_eq!((net.state(0, client), net.state(1, server)), (ConnState::Idle, ConnState::Idle));

    let (client, server) = net.requested();
    net.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
    net.run(0);
    net.sides[0].events();
    net.call(0, |cm, _| cm.reject(client, 28, &[], &[9; 148])).unwrap();
    net.run(0);
    assert_eq!(net.sides[1].event(), (server, rejected(9)));
    assert_eq!(net.state(1, server), ConnState::Idle);
}

#[test]
fn destruction_before_establishment_rejects() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.requested();
    net.call(0, |cm, _| cm.destroy(client));
    net.run(0);
    let rejected = |reason| CmEvent::Rejected { reason, private_data: vec![0; 148] };
    assert_eq!(net.sides[1].event(), (server, rejected(4)));
    net.call(1, |cm, _| cm.destroy(server));

    let (client, server) = net.requested();
    net.call(1, |cm, _| cm.destroy(server));
    net.run(0);
    assert_eq!(net.sides[0].event(), (client, rejected(28)));
    net.call(0, |cm, _| cm.destroy(client));
    net.sides.iter().for_each(Side::assert_empty);
}

#[test]
fn verdict_on_a_request_counts() {
    let (mut net, _) = Net::listening();
    *net.sides[1].sink.verdict.lock().unwrap() = Verdict::Reject;
    let client = net.call(0, |cm, sink| cm.connect(&request(), path(0), sink)).unwrap();
    net.run(0);
    let rejected = CmEvent::Rejected { reason: 28, private_data: vec![0; 148] };
    assert_eq!(net.sides[0].event(), (client, rejected));
    net.sides[1].assert_empty();

    // A request that was dropped is repeated.
    *net.sides[1].sink.verdict.lock().unwrap() = Verdict::Drop;
    net.call(0, |cm, sink| cm.connect(&request(), path(0), sink)).unwrap();
    net.run(0);
    net.sides[1].assert_empty();
    net.sides[1].events();
    *net.sides[1].sink.verdict.lock().unwrap() = Verdict::Keep;
    net.run(REQUEST_TIME);
    net.sides[1].request();
    assert!(net.sides[0].events().is_empty());
}

#[test]
fn calls_in_other_states_are_refused() {
    let (mut net, listener) = Net::listening();
    assert_eq!(net.call(1, |cm, sink| cm.listen(SERVICE, sink)), Err(Errno::BUSY));
    assert_eq!(net.state(1, listener), ConnState::Listen);
    let (client, server) = net.requested();
    assert_eq!(net.call(0, |cm, _| cm.reply(client, &reply())), Err(Errno::INVAL));
    assert_eq!(net.call(0, |cm, _| cm.establish(client, &[])), Err(Errno::INVAL));
    assert_eq!(net.call(0, |cm, _| cm.disconnect(client, &[])), Err(Errno::INVAL));
    assert_eq!(net.call(1, |cm, _| cm.established(server)), Err(Errno::INVAL));
    let too_long = Reply { private_data: vec![0; 197], ..reply() };
    assert_eq!(net.call(1, |cm, _| cm.reply(server, &too_long)), Err(Errno::INVAL));
    assert_eq!(net.call(1, |cm, _| cm.reject(server, 28, &[0; 73], &[])), Err(Errno::INVAL));
    assert_eq!(net.call(1, |cm, _| cm.reject(server, 28, &[], &[0; 149])), Err(Errno::INVAL));
    assert_eq!(net.state(1, server), ConnState::RequestReceived);
    let too_long = Request { private_data: vec![0; 93], ..request() };
    assert_eq!(net.call(0, |cm, sink| cm.connect(&too_long, path(0), sink)), Err(Errno::INVAL));
    let datagram = Request { transport: Transport::Ud, ..request() };
    assert_eq!(net.call(0, |cm, sink| cm.connect(&datagram, path(0), sink)), Err(Errno::INVAL));
    net.call(1, |cm, _| cm.destroy(listener));
    assert_eq!(net.call(1, |cm, sink| cm.listen(SERVICE, sink)).map(drop), Ok(()));
}

#[test]
fn data_may_establish_a_connection_before_the_rtu() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.requested();
    net.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
    net.run(0);
    net.call(1, |cm, _| cm.established(server)).unwrap();
    assert_eq!(net.sides[1].event(), (server, CmEvent::Established));
    assert_eq!(net.call(1, |cm, _| cm.established(server)), Err(Errno::ISCONN));
    net.call(0, |cm, _| cm.establish(client, &[])).unwrap();
    net.run(60_000 * MS);
    assert!(net.sides[1].events().is_empty());
    assert_eq!(net.count(1, |message| matches!(message, Message::Rep(_))), 1);
}

#[test]
fn datagram_services_are_resolved() {
    let (mut net, listener) = Net::listening();
    let asked = DatagramRequest { service_id: SERVICE, private_data: vec![3; 216] };
    let client = net.call(0, |cm, sink| cm.datagram_request(&asked, 20, 15, path(0), sink)).unwrap();
    net.run(0);
    let (id, event) = net.sides[1].event();
    let CmEvent::DatagramRequest { connection, request, path: back } = event else { panic!("{event:?}") };
    assert_eq!((id, request), (listener, asked.clone()));
    assert_eq!((back.source, back.destination), (gid(1), gid(0)));
    let reply = DatagramReply { status: 0, qpn: 0x33, qkey: 0x0123_4567, private_data: vec![4; 136] };
    net.call(1, |cm, _| cm.datagram_reply(connection, &reply)).unwrap();
    net.run(0);
    assert_eq!(net.sides[0].event(), (client, CmEvent::DatagramReply(reply)));

    // Without a listener, and with one that is destroyed.
    let other = DatagramRequest { service_id: SERVICE + 1, ..asked.clone() };
    let unsupported = net.call(0, |cm, sink| cm.datagram_request(&other, 20, 15, path(0), sink)).unwrap();
    net.run(0);
    let refused = |status| DatagramReply { status, private_data: vec![0; 136], ..DatagramReply::default() };
    assert_eq!(net.sides[0].event(), (unsupported, CmEvent::DatagramReply(refused(1))));
    *net.sides[1].sink.verdict.lock().unwrap() = Verdict::Drop;
    let dropped = net.call(0, |cm, sink| cm.datagram_request(&asked, 20, 15, path(0), sink)).unwrap();
    net.run(0);
    assert_eq!(net.sides[0].event(), (dropped, CmEvent::DatagramReply(refused(2))));
    for id in [client, unsupported, dropped] {
        net.call(0, |cm, _| cm.destroy(id));
    }
    net.call(1, |cm, _| cm.destroy(connection));
    net.sides.iter().for_each(Side::assert_empty);
}

#[test]
fn ack_timeouts_are_those_of_the_kernel() {
    for (delay, life, expected) in [(15, 16, 17), (15, 14, 16), (15, 15, 17), (15, 10, 15), (0, 31, 31)] {
        assert_eq!(ack_timeout(delay, life), expected, "{delay} {life}");
    }
}

#[test]
fn qpn_of_a_connection_in_timewait_is_used_again() {
    let (mut net, _) = Net::listening();
    let (client, server) = net.connected();
    net.call(0, |cm, _| cm.disconnect(client, &[])).unwrap();
    net.run(0);
    net.call(1, |cm, _| cm.disconnect(server, &[])).unwrap();
    net.run(0);
    net.sides.iter().for_each(|side| drop(side.events()));
    assert_eq!((net.state(0, client), net.state(1, server)), (ConnState::Timewait, ConnState::Timewait));
    net.connected();
}
