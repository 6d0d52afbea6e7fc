//! A malicious driver and a malicious peer of the software ConnectX's engine: WQEs, doorbells,
//! receive queues and packets with wrong bytes, for queue pairs of every type in every state, while
//! memory is unmapped. The engine becomes idle, and other queue pairs still work.

use bareverbs_hca::engine::packet::{Global, Network, Packet, Route, Transport};
use bareverbs_hca::engine::{CqSetup, KeyKind, MiniFormat, QpSetup, ReceiveQueue, Service, SrqSetup, State};
use bareverbs_hca::{Link, Memory, InProcessHca};

use crate::input::Input;

const STEPS: usize = 300;
const PAGE: usize = 0x1000;
const LOG_RING: u8 = 5;
const PD: u32 = 1;

/// Offsets in the driver's memory.
const CQS: usize = 0;
const QUEUES: usize = 0x1_0000;
const QUEUE: usize = 0x2000;
const DOORBELLS: usize = 0x3_0000;
const DATA: usize = 0x4_0000;
const LENGTH: usize = 0x8_0000;

struct Driver {
    hca: InProcessHca,
    memory: Memory,
    mapped: bool,
    cq: u32,
    qps: Vec<u32>,
    keys: Vec<u32>,
    posted: [u16; 8],
}

impl Driver {
    fn new(input: &mut Input<'_>) -> Option<Self> {
        let mut hca = InProcessHca::new(Link::InfiniBand).ok()?;
        let memory = hca.allocate(LENGTH).ok()?;
        let flags = input.byte();
        let base = memory.address();
        let wide = flags & 1 != 0;
        let cq = CqSetup {
            ring: memory.ring(CQS, 128 << 8),
            log_size: 8,
            wide,
            eq: InProcessHca::EVENTS,
            doorbell: base + DOORBELLS as u64,
            ignore_overrun: flags & 2 != 0,
            compression: (!wide && flags & 4 != 0).then_some(MiniFormat::Checksum),
        };
        let cq = hca.engine().create_cq(cq).ok()?;
        let srq = SrqSetup {
            ring: memory.ring(QUEUES + 8 * QUEUE, 32 << LOG_RING),
            log_size: LOG_RING,
            log_stride: 5,
            doorbell: base + DOORBELLS as u64 + 0x800,
            pd: PD,
            user_index: 0,
            cq: Some(cq),
            xrcd: Some(1),
            linked: true,
        };
        let srq = hca.engine().create_srq(srq, 3).ok()?;
        let kinds = [Transport::Rc, Transport::Uc, Transport::Xrc].map(Service::Connected);
        let kinds = [
            kinds[0],
            kinds[0],
            kinds[1],
            kinds[1],
            kinds[2],
            kinds[2],
            Service::Datagram(None),
            Service::RegUmr,
        ];
        let mut qps = Vec::new();
        for (index, service) in kinds.into_iter().enumerate() {
            let receive = match index {
                4 | 5 | 7 => ReceiveQueue::None,
                1 if flags & 8 != 0 => ReceiveQueue::Shared(srq),
                _ => ReceiveQueue::Own { log_size: LOG_RING, log_stride: 5 },
            };
            let setup = QpSetup {
                service,
                pd: PD,
                user_index: index as u32,
                ring: memory.ring(QUEUES + index * QUEUE, (32 + 64) << LOG_RING),
                send_offset: 32 << LOG_RING,
                log_send_size: Some(LOG_RING),
                receive,
                doorbell: base + (DOORBELLS + 0x40 * (index + 1)) as u64,
                send_cq: cq,
                receive_cq: cq,
                xrcd: (4..6).contains(&index).then_some(1),
                inline_responses: if flags & 16 != 0 { 32 } else { 0 },
                inline_receives: if flags & 16 != 0 { 32 } else { 0 },
                ..QpSetup::default()
            };
            qps.push(hca.engine().create_qp(setup, Default::default()).ok()?);
        }
        for (left, right) in [(0, 1), (2, 3), (4, 5), (6, 7)] {
            hca.connect(qps[left], qps[right]).ok()?;
        }
        let data = base + DATA as u64;
        let mut keys = vec![hca.engine().register(PD, data, (LENGTH - DATA) as u64).ok()?];
        for kind in [KeyKind::Mtt, KeyKind::Klm, KeyKind::Ksm] {
            keys.push(hca.engine().create_mkey_free(PD, kind, 64).ok()?);
        }
        keys.extend([0x200, 0x300, 0x100, 0x10_0000]);
        Some(Self { hca, memory, mapped: true, cq, qps, keys, posted: [0; 8] })
    }

    fn key(&self, input: &mut Input<'_>) -> u32 {
        let which = usize::from(input.byte());
        self.keys.get(which % (self.keys.len() + 1)).copied().unwrap_or(which as u32)
    }

    fn address(&self, input: &mut Input<'_>) -> u64 {
        let far = input.byte() & 15 == 0;
        if far {
            u64::from(input.word()) << 33
        } else {
            self.memory.address() + DATA as u64 + u64::from(input.half())
        }
    }

    /// Posts a WQE. Mostly its control segment is valid and its doorbell is rung.
    fn post(&mut self, input: &mut Input<'_>) {
        const OPCODES: [u8; 14] =
            [0x00, 0x01, 0x08, 0x09, 0x0a, 0x0b, 0x0e, 0x10, 0x11, 0x12, 0x14, 0x15, 0x25, 0x3e];
        let which = usize::from(input.byte()) % self.qps.len();
        let index = self.posted[which];
        let opcode = OPCODES[usize::from(input.byte()) % OPCODES.len()];
        let units = input.byte() % 20;
        let mut wqe = vec![0; (usize::from(units) * 16).next_multiple_of(64).max(64)];
        wqe[..4].copy_from_slice(&(u32::from(index) << 8 | u32::from(opcode)).to_be_bytes());
        wqe[4..8].copy_from_slice(&(self.qps[which] << 8 | u32::from(units)).to_be_bytes());
        wqe[11] = input.byte() & 0xee;
        let key = self.key(input);
        wqe[12..16].copy_from_slice(&key.to_be_bytes());
        for segment in 1..wqe.len() / 16 {
            let (length, key, address) = (input.half(), self.key(input), self.address(input));
            let bytes = match input.byte() % 4 {
                0 => input.bytes(16),
                1 => [&address.to_be_bytes()[..], &key.to_be_bytes(), &[0; 4]].concat(),
                2 => [&(0x8000_0000 | u32::from(length & 0x3f)).to_be_bytes()[..], &[1; 12]].concat(),
                _ => [&u32::from(length).to_be_bytes()[..], &key.to_be_bytes(), &address.to_be_bytes()]
                    .concat(),
            };
            wqe[segment * 16..][..16].copy_from_slice(&bytes);
        }
        let ring = QUEUES + which * QUEUE + (32 << LOG_RING);
        for (block, bytes) in wqe.chunks(64).enumerate() {
            let slot = (usize::from(index) + block) % (1 << LOG_RING);
            self.memory.write(ring + slot * 64, bytes);
        }
        self.posted[which] = index.wrapping_add((wqe.len() / 64) as u16);
        let record = u32::from(self.posted[which]).to_be_bytes();
        self.memory.write(DOORBELLS + 0x40 * (which + 1) + 4, &record);
        match input.byte() % 8 {
            0 => {}
            1 => self.hca.store(0x800, &wqe[..wqe.len().min(256)]),
            _ => self.hca.store(0x900, &wqe[..8]),
        }
    }

    /// Posts a receive WQE, to a queue pair or to the SRQ.
    fn post_receive(&mut self, input: &mut Input<'_>) {
        let which = usize::from(input.byte()) % 9;
        let (slot, length) = (usize::from(input.byte()) % (1 << LOG_RING), u32::from(input.half()));
        let (key, address) = (self.key(input), self.address(input));
        let scatter = [&length.to_be_bytes()[..], &key.to_be_bytes(), &address.to_be_bytes()].concat();
        let link = [0, 0, input.byte(), input.byte(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let wqe = if which == 8 {
            [link.to_vec(), scatter].concat()
        } else {
            [scatter, vec![0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat()
        };
        self.memory.write(QUEUES + which * QUEUE + slot * 32, &wqe);
        let record = if which == 8 { DOORBELLS + 0x800 } else { DOORBELLS + 0x40 * (which + 1) };
        self.memory.write(record, &u32::from(input.byte()).to_be_bytes());
    }

    /// Delivers bytes from the wire, if they decode as a packet.
    fn packet(&mut self, input: &mut Input<'_>) {
        let length = usize::from(input.byte());
        let mut bytes = input.bytes(length.max(24));
        bytes[1] = bytes[1] & 0xb0 | 0x40;
        if input.byte() & 7 != 0 {
            bytes[2..4].copy_from_slice(&[0xff, 0xff]);
            let to = self.qps[usize::from(input.byte()) % self.qps.len()];
            bytes[4..8].copy_from_slice(&to.to_be_bytes());
            let psn = u32::from(input.byte()) | u32::from(input.byte() & 0x80) << 24;
            bytes[8..12].copy_from_slice(&psn.to_be_bytes());
        }
        let mut route = Route { source_lid: 1, destination_lid: 1, ..Route::default() };
        if input.byte() & 15 == 0 {
            let address: [u8; 16] = input.bytes(16).try_into().unwrap_or_default();
            let network = [Network::Grh, Network::Ipv4, Network::Ipv6][usize::from(input.byte()) % 3];
            route.global = Some(Global {
                source: address,
                destination: address,
                flow_label: 0,
                traffic_class: 0,
                hop_limit: 1,
                network,
            });
        }
        if let Some(packet) = Packet::parse(route, &bytes) {
            self.hca.engine().receive(packet);
        }
    }

    fn change(&mut self, input: &mut Input<'_>) {
        let which = usize::from(input.byte()) % self.qps.len();
        let (qp, peer) = (self.qps[which], self.qps[which ^ 1]);
        let states = [
            State::Reset,
            State::Init,
            State::ReadyToReceive,
            State::ReadyToSend,
            State::SendQueueDrained,
            State::Error,
        ];
        match input.byte() % 11 {
            0 if self.mapped => {
                self.hca.revoke(&self.memory);
                self.mapped = false;
            }
            1 => drop(self.hca.engine().destroy_qp(qp)),
            2 => {
                let _ = self.hca.connect(qp, peer);
            }
            3 => {
                let (consumer, sequence) = (u32::from(input.byte()), input.byte() & 3);
                self.hca.engine().arm_cq(self.cq, consumer, input.byte() & 1 != 0, sequence);
            }
            4 => self.memory.write(DOORBELLS, &input.word().to_be_bytes()),
            5 => {
                let (at, length) = (usize::from(input.half()), usize::from(input.byte()));
                self.memory.write(QUEUES + at, &input.bytes(length));
            }
            6 => {
                let at = usize::from(input.byte()) * 8;
                self.hca.store(at % PAGE, &input.bytes(8));
            }
            // A response to a page fault, right or wrong.
            7 => {
                let (token, kind) = (u32::from(input.byte() & 7) + 1, input.byte() & 7);
                let queue = [qp, token, u32::from(input.byte())][usize::from(input.byte()) % 3];
                let _ = self.hca.engine().resume(token, kind, queue, input.byte() & 1 != 0);
            }
            _ => {
                let state = states[usize::from(input.byte()) % states.len()];
                let mut attributes = self.hca.attributes(peer);
                attributes.mtu = 256 << (input.byte() % 5);
                attributes.max_rd_atomic = input.byte() % 5;
                attributes.max_dest_rd_atomic = input.byte() % 5;
                let _ = self.hca.engine().modify_qp(qp, state, attributes);
            }
        }
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let Some(mut driver) = Driver::new(&mut input) else { return };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 10 {
            0..4 => driver.post(&mut input),
            4 | 5 => driver.post_receive(&mut input),
            6 | 7 => driver.packet(&mut input),
            8 => driver.change(&mut input),
            _ => driver.hca.pass(u64::from(input.half()) << (input.byte() % 12)),
        }
        driver.hca.run();
    }
    driver.hca.pass(10_000_000);
    // Untouched queues still work.
    let mut fresh = Driver::new(&mut Input(&[])).expect("another device");
    fresh.post(&mut Input(&[0, 0, 1, 8]));
    fresh.hca.run();
}
