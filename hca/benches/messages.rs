//! Message rate of the engine in-process: 8-byte RDMA WRITEs between two QPs of one device. The
//! unit is messages per second of this thread's CPU time, which is independent of other load.

use std::time::Duration;

use bareverbs_hca::engine::packet::{Route, Transport};
use bareverbs_hca::engine::{
    CqSetup, Engine, EqSetup, Interrupts, Link, Port, QpAttributes, QpSetup, ReceiveQueue, Ring, Service,
    State,
};

const LOG_QUEUE: u8 = 10;
const LOG_CQ: u8 = 12;
const BATCH: u16 = 64;
const MESSAGES: u64 = 4_000_000;
const DATA: u64 = 0x10_0000;
const SEND_RING: u64 = 0x2_0000;
const CQ_RING: u64 = 0x4_0000;
const DOORBELLS: u64 = 0x1000;
const CQ_DOORBELL: u64 = 0x1100;

struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&self, _vector: u16) {}
}

fn pages(at: u64, length: u64) -> Vec<u64> {
    (0..length.div_ceil(0x1000)).map(|page| at + page * 0x1000).collect()
}

fn attributes(remote_qp: u32) -> QpAttributes {
    QpAttributes {
        mtu: 4096,
        remote_qp,
        route: Route {
            source_lid: 1,
            destination_lid: 1,
            service_level: 0,
            source_mac: [0; 6],
            destination_mac: [0; 6],
            udp_source: 0,
            global: None,
        },
        pkey: 0xffff,
        qkey: 0,
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: 14,
        send_psn: 0,
        receive_psn: 0,
        ..QpAttributes::default()
    }
}

/// CPU time of this thread.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn main() {
    let mut engine = Engine::new(Port::new(Link::InfiniBand, 0), Box::new(NoInterrupts));
    engine.memory().map_zeroed(0, 0x20_0000).expect("memory");
    let ring = |at, length| Ring::new(pages(at, length), 12, 0, length).expect("the pages hold the ring");
    let eq = EqSetup { ring: ring(0x2000, 64 << 6), log_size: 6, vector: 0, events: [0; 4] };
    let eq = engine.create_eq(eq).expect("an event queue");
    let cq = CqSetup {
        ring: ring(CQ_RING, 64 << LOG_CQ),
        log_size: LOG_CQ,
        eq,
        doorbell: CQ_DOORBELL,
        ..CqSetup::default()
    };
    let cq = engine.create_cq(cq).expect("a CQ");
    let key = engine.register(1, DATA, 0x10_0000).expect("a key");
    let mut make = |send_ring: u64, doorbell: u64| {
        let setup = QpSetup {
            service: Service::Connected(Transport::Rc),
            pd: 1,
            user_index: 0,
            ring: ring(send_ring, 64 << LOG_QUEUE),
            send_offset: 0,
            log_send_size: Some(LOG_QUEUE),
            receive: ReceiveQueue::None,
            doorbell,
            send_cq: cq,
            receive_cq: cq,
            ..QpSetup::default()
        };
        engine.create_qp(setup, attributes(0)).expect("a queue pair")
    };
    let (sender, receiver) = (make(SEND_RING, DOORBELLS), make(0x8_0000, DOORBELLS + 64));
    for (qp, peer) in [(sender, receiver), (receiver, sender)] {
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            engine.modify_qp(qp, state, attributes(peer)).expect("a legal move");
        }
    }

    let (mut posted, mut sent, mut now) = (0u16, 0u64, 0);
    let (mut packets, mut frames) = (Vec::new(), Vec::new());
    let start = processor_time();
    while sent < MESSAGES {
        for index in 0..BATCH {
            let counter = posted.wrapping_add(index);
            let mut wqe = [0; 64];
            wqe[..4].copy_from_slice(&(u32::from(counter) << 8 | 0x08).to_be_bytes());
            wqe[4..8].copy_from_slice(&(sender << 8 | 3).to_be_bytes());
            // The last WRITE of a batch is signalled.
            wqe[11] = if index + 1 == BATCH { 0x08 } else { 0 };
            wqe[16..24].copy_from_slice(&(DATA + 0x1000).to_be_bytes());
            wqe[24..28].copy_from_slice(&key.to_be_bytes());
            wqe[32..36].copy_from_slice(&8u32.to_be_bytes());
            wqe[36..40].copy_from_slice(&key.to_be_bytes());
            wqe[40..48].copy_from_slice(&DATA.to_be_bytes());
            let slot = u64::from(counter) & ((1 << LOG_QUEUE) - 1);
            engine.memory().write(SEND_RING + slot * 64, &wqe).expect("ring memory");
        }
        posted = posted.wrapping_add(BATCH);
        engine.memory().write(DOORBELLS + 4, &u32::from(posted).to_be_bytes()).expect("doorbell memory");
        engine.ring_qp(sender);
        sent += u64::from(BATCH);
        loop {
            now += 1;
            let more = engine.run(now);
            engine.take_outgoing(&mut packets, &mut frames);
            if !more && packets.is_empty() {
                break;
            }
            for packet in packets.drain(..) {
                engine.receive(packet);
            }
        }
        let completions = sent / u64::from(BATCH);
        engine
            .memory()
            .write(CQ_DOORBELL, &(completions as u32 & 0xff_ffff).to_be_bytes())
            .expect("doorbell memory");
    }
    let (state, _) = engine.qp_attributes(sender).expect("the sender");
    assert_eq!(state, State::ReadyToSend, "the sender failed on its way");
    let rate = MESSAGES as f64 / (processor_time() - start).as_secs_f64();
    println!("{:.2} million 8-byte writes a second", rate / 1e6);
}
