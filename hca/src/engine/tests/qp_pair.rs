//! Two connected QPs of one engine, and a driver for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::packet::{Route, Transport};
use crate::engine::{
    CqSetup, Engine, EqSetup, Interrupts, Link, Packet, Port, QpAttributes, QpSetup, ReceiveQueue, Ring,
    Service, State,
};

/// Guest memory of the pair: queues below `DATA`, data above.
pub(crate) const DATA: u64 = 0x10_0000;
const PAGES: u64 = 0x20_0000;
const LOG_QUEUE: u8 = 6;
const SLOTS: u64 = 1 << LOG_QUEUE;
const LOG_CQ: u8 = 8;
/// The first allocated page.
const EQ_RING: u64 = 0x1000;

#[derive(Default)]
struct Count(Arc<AtomicU32>);

impl Interrupts for Count {
    fn raise(&self, _vector: u16) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A decoded CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cqe {
    pub(crate) opcode: u8,
    pub(crate) syndrome: u8,
    pub(crate) qp: u32,
    pub(crate) wqe: u16,
    pub(crate) bytes: u32,
    pub(crate) immediate: u32,
}

pub(crate) struct Pair {
    pub(crate) engine: Engine,
    pub(crate) qps: [u32; 2],
    pub(crate) key: u32,
    pub(crate) cq: u32,
    pub(crate) now: u64,
    next_page: u64,
    sent: [u16; 2],
    received: [u16; 2],
    rings: [u64; 2],
    doorbells: [u64; 2],
    cq_ring: u64,
    cqe_size: u64,
    cq_doorbell: u64,
    cq_consumer: u32,
    interrupts: Arc<AtomicU32>,
}

fn attributes(remote_qp: u32) -> QpAttributes {
    QpAttributes {
        mtu: 1024,
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
        qkey: 0x1111,
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: 10,
        send_psn: 0xff_fff0,
        receive_psn: 0xff_fff0,
        ..QpAttributes::default()
    }
}

impl Pair {
    pub(crate) fn new(transport: Transport) -> Self {
        Self::with(transport, |_| {}, |_| {})
    }

    /// Creates a pair with modified parameters.
    pub(crate) fn with(
        transport: Transport,
        tune_cq: impl Fn(&mut CqSetup),
        tune_qp: impl Fn(&mut QpSetup),
    ) -> Self {
        let interrupts = Arc::<AtomicU32>::default();
        let mut engine = Engine::new(Port::new(Link::InfiniBand, 0), Box::new(Count(interrupts.clone())));
        engine.memory().map_zeroed(0, PAGES).unwrap();
        let mut next_page = EQ_RING;
        let mut page = |count: u64| {
            let at = next_page;
            next_page += count * 0x1000;
            (at, (0..count).map(|index| at + index * 0x1000).collect::<Vec<_>>())
        };
        let (_, pages) = page(1);
        let ring = Ring::new(pages, 12, 0, 64 << 6).unwrap();
        let eq = engine.create_eq(EqSetup { ring, log_size: 6, vector: 0, events: [u64::MAX; 4] }).unwrap();
        let (cq_ring, pages) = page(8);
        let (cq_doorbell, _) = page(1);
        let ring = Ring::new(pages, 12, 0, 128 << LOG_CQ).unwrap();
        let mut setup = CqSetup { ring, log_size: LOG_CQ, eq, doorbell: cq_doorbell, ..CqSetup::default() };
        tune_cq(&mut setup);
        let cqe_size = if setup.wide { 128 } else { 64 };
        let cq = engine.create_cq(setup).unwrap();
        let key = engine.register(1, DATA, PAGES - DATA).unwrap();
        let (mut rings, mut doorbells, mut qps) = ([0; 2], [0; 2], [0; 2]);
        for side in 0..2 {
            let (ring, pages) = page(2);
            let (doorbell, _) = page(1);
            (rings[side], doorbells[side]) = (ring, doorbell);
            let mut setup = QpSetup {
                service: Service::Connected(transport),
                pd: 1,
                user_index: side as u32,
                ring: Ring::new(pages, 12, 0, SLOTS * (16 + 64)).unwrap(),
                send_offset: SLOTS * 16,
                log_send_size: Some(LOG_QUEUE),
                receive: ReceiveQueue::Own { log_size: LOG_QUEUE, log_stride: 4 },
                doorbell,
                send_cq: cq,
                receive_cq: cq,
                ..QpSetup::default()
            };
            tune_qp(&mut setup);
            qps[side] = engine.create_qp(setup, attributes(0)).unwrap();
        }
        let mut pair = Self {
            engine,
            qps,
            key,
            cq,
            now: 1,
            next_page,
            sent: [0; 2],
            received: [0; 2],
            rings,
            doorbells,
            cq_ring,
            cqe_size,
            cq_doorbell,
            cq_consumer: 0,
            interrupts,
        };
        pair.connect(|_| {});
        assert!(pair.next_page <= DATA);
        pair
    }

    /// Moves both QPs through RESET to RTS with modified attributes.
    pub(crate) fn connect(&mut self, change: impl Fn(&mut QpAttributes)) {
        for side in 0..2 {
            let mut attributes = attributes(self.qps[1 - side]);
            change(&mut attributes);
            for state in [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend] {
                self.engine.modify_qp(self.qps[side], state, attributes.clone()).unwrap();
            }
            (self.sent[side], self.received[side]) = (0, 0);
            self.write(self.doorbells[side], &[0; 8]);
        }
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        self.engine.memory().write(at, bytes).unwrap();
    }

    pub(crate) fn read(&mut self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.engine.memory().read(at, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn interrupts(&self) -> u32 {
        self.interrupts.load(Ordering::Relaxed)
    }

    /// Posts a WQE; `body` follows the control segment.
    pub(crate) fn post(&mut self, side: usize, opcode: u8, immediate: u32, body: &[u8]) {
        let wqe = self.wqe(side, opcode, immediate, body);
        self.post_raw(side, &wqe);
    }

    /// The next signalled WQE; `body` follows the control segment.
    pub(crate) fn wqe(&self, side: usize, opcode: u8, immediate: u32, body: &[u8]) -> Vec<u8> {
        let units = 1 + body.len().div_ceil(16);
        let mut wqe = vec![0; units * 16];
        let index = self.sent[side];
        wqe[..4].copy_from_slice(&(u32::from(index) << 8 | u32::from(opcode)).to_be_bytes());
        wqe[4..8].copy_from_slice(&(self.qps[side] << 8 | units as u32).to_be_bytes());
        wqe[11] = 0x08;
        wqe[12..16].copy_from_slice(&immediate.to_be_bytes());
        wqe[16..16 + body.len()].copy_from_slice(body);
        wqe
    }

    /// Posts arbitrary bytes as a WQE.
    pub(crate) fn post_raw(&mut self, side: usize, wqe: &[u8]) {
        for (block, bytes) in wqe.chunks(64).enumerate() {
            let slot = (u64::from(self.sent[side]) + block as u64) % SLOTS;
            self.write(self.rings[side] + SLOTS * 16 + slot * 64, bytes);
        }
        self.sent[side] = self.sent[side].wrapping_add(wqe.len().div_ceil(64) as u16);
        let counter = u32::from(self.sent[side]);
        self.write(self.doorbells[side] + 4, &counter.to_be_bytes());
        self.engine.ring_qp(self.qps[side]);
    }

    pub(crate) fn post_receive(&mut self, side: usize, address: u64, length: u32) {
        self.post_receive_with(side, self.key, address, length);
    }

    /// Posts a receive into the memory of another key.
    pub(crate) fn post_receive_with(&mut self, side: usize, key: u32, address: u64, length: u32) {
        let slot = u64::from(self.received[side]) % SLOTS;
        let wqe = data(key, address, length);
        self.write(self.rings[side] + slot * 16, &wqe);
        self.received[side] = self.received[side].wrapping_add(1);
        let counter = u32::from(self.received[side]);
        self.write(self.doorbells[side], &counter.to_be_bytes());
    }

    /// Runs until idle, and passes packets through `wire`.
    pub(crate) fn settle(&mut self, wire: impl FnMut(Vec<Packet>) -> Vec<Packet>) {
        self.settle_over(u64::MAX, wire);
    }

    /// Runs until idle or until `end`.
    pub(crate) fn settle_over(&mut self, end: u64, mut wire: impl FnMut(Vec<Packet>) -> Vec<Packet>) {
        let (mut packets, mut frames) = (Vec::new(), Vec::new());
        for _ in 0..20_000 {
            self.engine.set_time(self.now);
            for packet in wire(std::mem::take(&mut packets)) {
                self.engine.receive(packet);
            }
            let more = self.engine.run(self.now);
            self.engine.take_outgoing(&mut packets, &mut frames);
            if more || !packets.is_empty() {
                continue;
            }
            // QPs in ERR poll for receives without end.
            let quiet = self.qps.iter().any(|qp| self.engine.qp_attributes(*qp).unwrap().0 == State::Error);
            match self.engine.next_timer() {
                Some(deadline) if !quiet && deadline <= end => self.now = self.now.max(deadline),
                _ if end == u64::MAX => return,
                _ => {
                    self.now = self.now.max(end);
                    return;
                }
            }
        }
        panic!("the engine never comes to rest");
    }

    /// All bytes of a CQE.
    pub(crate) fn entry(&mut self, slot: u32) -> Vec<u8> {
        let size = self.cqe_size;
        self.read(self.cq_ring + u64::from(slot) * size, size as usize)
    }

    /// The types of the events so far.
    pub(crate) fn events(&mut self) -> Vec<u8> {
        let count = self.engine.eq_producer(1).unwrap();
        (0..u64::from(count)).map(|slot| self.read(EQ_RING + slot * 64 + 1, 1)[0]).collect()
    }

    /// An EQE.
    pub(crate) fn event(&mut self, slot: usize) -> Vec<u8> {
        self.read(EQ_RING + slot as u64 * 64, 64)
    }

    /// Posts a WQE with these flags in its control segment.
    pub(crate) fn post_flagged(&mut self, side: usize, opcode: u8, flags: u8, body: &[u8]) {
        let mut wqe = self.wqe(side, opcode, 0, body);
        wqe[11] = flags;
        self.post_raw(side, &wqe);
    }

    /// The CQEs since the last call.
    pub(crate) fn poll(&mut self) -> Vec<Cqe> {
        let mut completions = Vec::new();
        loop {
            let size = 1 << LOG_CQ;
            let slot = self.cq_consumer & (size - 1);
            let entry = self.entry(slot);
            let entry = &entry[entry.len() - 64..];
            let owner = (self.cq_consumer >> LOG_CQ & 1) as u8;
            let word = |at: usize| u32::from_be_bytes(entry[at..at + 4].try_into().unwrap());
            if entry[63] & 1 != owner || self.cq_consumer == self.engine.cq_progress(self.cq).unwrap().0 {
                break;
            }
            completions.push(Cqe {
                opcode: entry[63] >> 4,
                syndrome: if entry[63] >> 4 >= 13 { entry[55] } else { 0 },
                qp: word(56) & 0xff_ffff,
                wqe: u16::from_be_bytes([entry[60], entry[61]]),
                bytes: word(44),
                immediate: word(36),
            });
            self.cq_consumer += 1;
        }
        let consumer = self.cq_consumer;
        self.write(self.cq_doorbell, &consumer.to_be_bytes());
        completions
    }
}

/// A data segment.
pub(crate) fn data(key: u32, address: u64, length: u32) -> Vec<u8> {
    let mut segment = length.to_be_bytes().to_vec();
    segment.extend_from_slice(&key.to_be_bytes());
    segment.extend_from_slice(&address.to_be_bytes());
    segment
}

/// A remote address segment.
pub(crate) fn remote(key: u32, address: u64) -> Vec<u8> {
    let mut segment = address.to_be_bytes().to_vec();
    segment.extend_from_slice(&key.to_be_bytes());
    segment.extend_from_slice(&[0; 4]);
    segment
}
