use std::sync::Mutex;

use super::*;
use crate::cm::{CmEvent, CmSink, ConnId, ConnState, Path, Reply, Request, Verdict};

const SERVICE: u64 = 0x0106_0001;

#[derive(Debug, Default)]
struct Events(Mutex<Vec<(ConnId, CmEvent)>>);

impl CmSink for Events {
    fn event(&self, id: ConnId, event: CmEvent) -> Verdict {
        self.0.lock().unwrap().push((id, event));
        Verdict::Keep
    }
}

impl Events {
    fn take(&self) -> Vec<CmEvent> {
        self.0.lock().unwrap().drain(..).map(|(_, event)| event).collect()
    }
}

fn device(fabric: &Fabric, last: u8) -> u32 {
    fabric.add_device(vec![gid(last)], [2, 0, 0, 0, 0, last]).expect("a free address")
}

fn path(from: u8, to: u8) -> Path {
    Path {
        source: gid(from),
        destination: gid(to),
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
        service_level: 0,
        mtu: 5,
        rate: 2,
        packet_life: 16,
        pkey: 0xffff,
    }
}

fn request() -> Request {
    Request {
        service_id: SERVICE,
        transport: bareverbs_transport::packet::Transport::Rc,
        qpn: 0x11,
        starting_psn: 1,
        responder_resources: 1,
        initiator_depth: 1,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        max_retries: 15,
        srq: false,
        ece: crate::cm::Ece::default(),
        private_data: vec![5],
    }
}

fn connect(fabric: &Fabric, device: u32, path: Path, events: &Arc<Events>) -> Result<ConnId, Errno> {
    fabric.with(device, |engine| engine.cm_connect(request(), path, Arc::<Events>::clone(events)))
}

fn listen(fabric: &Fabric, device: u32, events: &Arc<Events>) {
    fabric.with(device, |engine| engine.cm_listen(SERVICE, Arc::<Events>::clone(events))).unwrap();
}

#[test]
fn devices_of_a_fabric_connect() {
    let fabric = Fabric::new();
    let devices = [device(&fabric, 2), device(&fabric, 3)];
    // With another device, and with itself.
    for (client, to) in [(devices[0], 3), (devices[1], 3)] {
        let from = if client == devices[0] { 2 } else { 3 };
        let events: [Arc<Events>; 2] = Default::default();
        let listener = fabric
            .with(devices[1], |engine| engine.cm_listen(SERVICE, Arc::<Events>::clone(&events[1])))
            .unwrap();
        let id = connect(&fabric, client, path(from, to), &events[0]).unwrap();
        let got = events[1].take();
        let [CmEvent::Request { connection, request, path: back }] = &got[..] else { panic!("{got:?}") };
        assert_eq!((request.private_data[0], *back), (5, path(to, from)));
        let reply = Reply { qpn: 0x12, ..Reply::default() };
        fabric.with(devices[1], |engine| engine.cm_reply(*connection, reply)).unwrap();
        assert!(matches!(events[0].take()[..], [CmEvent::Reply(Reply { qpn: 0x12, .. })]));
        fabric.with(client, |engine| engine.cm_establish(id, &[])).unwrap();
        assert_eq!(events[1].take(), [CmEvent::Established]);
        let state = fabric.with(client, |engine| Ok(engine.cm_state(id)));
        assert_eq!(state, Ok(Some(ConnState::Established)));
        let destroy = |device, id| {
            let destroyed = fabric.with(device, |engine| {
                engine.cm_destroy(id);
                Ok(())
            });
            destroyed.unwrap();
        };
        destroy(client, id);
        assert_eq!(events[1].take(), [CmEvent::Disconnected]);
        destroy(devices[1], *connection);
        destroy(devices[1], listener);
    }
}

#[test]
fn unanswered_request_sets_a_timer() {
    let fabric = Fabric::new();
    let client = device(&fabric, 2);
    let events = Arc::default();
    assert_eq!(connect(&fabric, client, path(9, 3), &events), Err(Errno::INVAL));
    assert_eq!(fabric.with(client, |engine| Ok(engine.next_timer())), Ok(None));
    connect(&fabric, client, path(2, 3), &events).unwrap();
    let timer = fabric.with(client, |engine| Ok(engine.next_timer())).unwrap();
    assert!(timer.is_some_and(|timer| timer >= 4_608_000_000), "{timer:?}");
}

#[test]
fn reused_address_has_other_connection_ids() {
    let fabric = Fabric::new();
    let server = device(&fabric, 3);
    let events: [Arc<Events>; 2] = Default::default();
    listen(&fabric, server, &events[1]);
    for _ in 0..2 {
        let client = device(&fabric, 2);
        connect(&fabric, client, path(2, 3), &events[0]).unwrap();
        // The request of a new device is no repetition. Its QPN is that of a stale connection.
        let was_heard = !events[1].take().is_empty() || !events[0].take().is_empty();
        assert!(was_heard);
        fabric.remove_device(client, &AtomicBool::new(false));
    }
}

#[test]
fn packets_that_are_no_mads_of_the_cm_are_dropped() {
    use bareverbs_transport::packet::{Datagram, Operation, Packet};
    let fabric = Fabric::new();
    let (client, server) = (device(&fabric, 2), device(&fabric, 3));
    let events: [Arc<Events>; 2] = Default::default();
    listen(&fabric, server, &events[1]);
    let packet = fabric
        .with(client, |engine| {
            engine.cm_connect(request(), path(2, 3), Arc::<Events>::clone(&events[0]))?;
            Ok(engine.take_packets(Vec::new()).remove(0))
        })
        .unwrap();
    let receive = |packet: &Packet| {
        let received = fabric.with(server, |engine| {
            engine.receive(packet);
            Ok(())
        });
        received.unwrap();
        events[1].take().len()
    };
    let with = |change: &dyn Fn(&mut Packet)| {
        let mut packet = packet.clone();
        change(&mut packet);
        packet
    };
    let wrong_key = Some(Datagram { qkey: 0x8001_0001, source_qp: 1 });
    let wrong = [
        with(&|packet| packet.headers.datagram = wrong_key),
        with(&|packet| packet.headers.datagram = None),
        with(&|packet| packet.operation = Operation::SendFirst),
        with(&|packet| packet.transport = bareverbs_transport::packet::Transport::Rc),
        with(&|packet| packet.pkey = 1),
        with(&|packet| packet.route.global = None),
        with(&|packet| packet.route.global.as_mut().unwrap().destination = gid(7)),
        // Subnet administration, and a short MAD.
        with(&|packet| packet.payload[1] = 3),
        with(&|packet| packet.payload.truncate(255)),
    ];
    for packet in &wrong {
        assert_eq!(receive(packet), 0, "{packet:?}");
    }
    assert_eq!(receive(&packet), 1);
}
