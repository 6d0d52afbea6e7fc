//! Two devices under load, while their drivers destroy, reset and unmap.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Device, PortChange, Setup};
use crate::engine::{Doorbell, Interrupts, Link, State};
use crate::fabric::Fabric;
use crate::firmware::bits::ViewMut;
use crate::firmware::layout::command::{CreateCqIn, CreateEqIn, CreateMkeyIn, CreateQpIn};
use crate::firmware::layout::object::{AddressPath, Cqc, Eqc, Mkc, Qpc};
use crate::firmware::opcode::*;
use crate::memory::ProcessMemory;

const QUEUES: u64 = 0x10_0000;
const CQ: u64 = QUEUES;
const RING: u64 = QUEUES + 0x1_0000;
const EQ: u64 = QUEUES + 0x2_0000;
const DOORBELL: u64 = QUEUES + 0x3_0000;
const CQ_DOORBELL: u64 = QUEUES + 0x3_0040;
/// Address of the data, and its length in bytes.
const DATA: u64 = 0x1000_0000;
const LENGTH: usize = 2 << 20;
const LOG_RING: u8 = 6;
const PAGES: usize = 0x110;

struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&self, _vector: u16) {}
}

/// A device and its driver's state.
struct Host {
    device: Device,
    data: Arc<ProcessMemory>,
    uar: u32,
    key: u32,
    cq: u32,
    qp: u32,
    posted: u16,
}

impl Host {
    fn new(index: u8, fabric: &Arc<Fabric>) -> Self {
        let setup = Setup { link: Link::InfiniBand, index, cqe_version: 1, verbose: false };
        let device = Device::new(setup, fabric, Box::new(NoInterrupts)).unwrap();
        let data = Arc::new(ProcessMemory::new(LENGTH).unwrap());
        device.remap(|memory| memory.map_zeroed(QUEUES, 0x10_0000)).unwrap();
        device.remap(|memory| memory.map_shared_at(DATA, data.clone())).unwrap();
        let mut host = Self { device, data, uar: 0, key: 0, cq: 0, qp: 0, posted: 0 };
        host.set_up();
        host
    }

    /// Creates a connected QP and all its dependencies.
    fn set_up(&mut self) {
        self.number(ENABLE_HCA, vec![0; 16]);
        self.number(INIT_HCA, vec![0; 16]);
        self.uar = self.number(ALLOC_UAR, vec![0; 16]);
        let pd = self.number(ALLOC_PD, vec![0; 16]);

        let mut input = vec![0; PAGES];
        let mut view = ViewMut::<CreateMkeyIn>::new(&mut input).unwrap();
        let mut context = view.part(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
        context.set(Mkc::PD, pd).set(Mkc::QPN, 0xff_ffffu32).set(Mkc::START_ADDR, DATA);
        context.set(Mkc::LEN, LENGTH as u64);
        // All access rights, physical addresses (PA).
        input[18] = 0x7c;
        self.key = self.number(CREATE_MKEY, input) << 8;

        let mut input = with_page(EQ);
        let mut view = ViewMut::<CreateEqIn>::new(&mut input).unwrap();
        view.part(CreateEqIn::EQ_CONTEXT_ENTRY).set(Eqc::LOG_EQ_SIZE, 6u8).set(Eqc::UAR_PAGE, self.uar);
        let eq = self.number(CREATE_EQ, input);

        let mut input = with_page(CQ);
        let mut view = ViewMut::<CreateCqIn>::new(&mut input).unwrap();
        let mut context = view.part(CreateCqIn::CQ_CONTEXT);
        context.set(Cqc::LOG_CQ_SIZE, 6u8).set(Cqc::UAR_PAGE, self.uar).set(Cqc::OI, 1u8);
        context.set(Cqc::C_EQN_OR_APU_ELEMENT, eq).set(Cqc::DBR_ADDR, CQ_DOORBELL);
        self.cq = self.number(CREATE_CQ, input);

        let mut input = with_page(RING);
        let mut view = ViewMut::<CreateQpIn>::new(&mut input).unwrap();
        let mut context = view.part(CreateQpIn::QPC);
        const NO_RECEIVES: u8 = 3;
        context.set(Qpc::PD, pd).set(Qpc::UAR_PAGE, self.uar).set(Qpc::LOG_SQ_SIZE, LOG_RING);
        context.set(Qpc::RQ_TYPE, NO_RECEIVES).set(Qpc::CQN_SND, self.cq).set(Qpc::CQN_RCV, self.cq);
        context.set(Qpc::DBR_ADDR, DOORBELL);
        self.qp = self.number(CREATE_QP, input);
    }

    /// Executes a command and returns the third word of its output.
    fn number(&self, opcode: u16, mut input: Vec<u8>) -> u32 {
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        let mut output = vec![0; 0x200];
        let mut hca = self.device.shared.lock();
        let super::DeviceState { engine, firmware } = &mut *hca;
        firmware
            .execute(engine, &input, &mut output)
            .unwrap_or_else(|status| panic!("{}: {status:?}", name(opcode)));
        u32::from_be_bytes(output[8..12].try_into().unwrap()) & 0xff_ffff
    }

    fn transition(&self, opcode: u16, peer: &Self) {
        let mut input = vec![0; PAGES];
        let mut view = ViewMut::<CreateQpIn>::new(&mut input).unwrap();
        let mut context = view.part(CreateQpIn::QPC);
        const MTU_4096: u8 = 5;
        context.set(Qpc::RRE, 1u8).set(Qpc::RWE, 1u8).set(Qpc::REMOTE_QPN, peer.qp).set(Qpc::MTU, MTU_4096);
        context.set(Qpc::RETRY_COUNT, 7u8).set(Qpc::RNR_RETRY, 7u8);
        let mut path = context.part(Qpc::PRIMARY_ADDRESS_PATH);
        path.set(AddressPath::RLID, u64::from(peer.device.shared.setup.index) + 1);
        // The ACK timeout is seconds long, because the machine may be busy.
        path.set(AddressPath::ACK_TIMEOUT, 20u8);
        input[8..12].copy_from_slice(&self.qp.to_be_bytes());
        self.number(opcode, input);
    }

    fn connect(&self, peer: &Self) {
        for opcode in [RST2INIT_QP, INIT2RTR_QP, RTR2RTS_QP] {
            self.transition(opcode, peer);
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.device.shared.lock().engine.memory().write(at, bytes).unwrap();
    }

    /// Posts a WRITE of all data and rings the doorbell. Returns the duration of the doorbell.
    fn post(&mut self, peer_key: u32) -> Duration {
        let mut wqe = [0; 64];
        wqe[..4].copy_from_slice(&(u32::from(self.posted) << 8 | 0x08).to_be_bytes());
        wqe[4..8].copy_from_slice(&(self.qp << 8 | 3).to_be_bytes());
        wqe[11] = 0x08;
        wqe[16..24].copy_from_slice(&DATA.to_be_bytes());
        wqe[24..28].copy_from_slice(&peer_key.to_be_bytes());
        wqe[32..36].copy_from_slice(&(LENGTH as u32).to_be_bytes());
        wqe[36..40].copy_from_slice(&self.key.to_be_bytes());
        wqe[40..48].copy_from_slice(&DATA.to_be_bytes());
        self.write(RING + u64::from(self.posted % (1 << LOG_RING)) * 64, &wqe);
        self.posted = self.posted.wrapping_add(1);
        self.write(DOORBELL + 4, &u32::from(self.posted).to_be_bytes());
        let before = Instant::now();
        self.device.ring(self.uar, Doorbell::Send { qp: self.qp, blueflame: None });
        before.elapsed()
    }

    fn completions(&self) -> u32 {
        self.device.shared.lock().engine.cq_progress(self.cq).map_or(0, |(producer, _)| producer)
    }

    fn state(&self) -> Option<State> {
        self.device.shared.lock().engine.qp_attributes(self.qp).ok().map(|(state, _)| state)
    }

    fn first(&self) -> u8 {
        let mut byte = [0];
        assert!(self.data.read(0, &mut byte));
        byte[0]
    }

    /// Whether all data stays unchanged for a while.
    fn untouched(&self) -> bool {
        assert!(self.data.write(0, &vec![0xee; LENGTH]));
        std::thread::sleep(Duration::from_millis(20));
        let mut bytes = vec![0; LENGTH];
        assert!(self.data.read(0, &mut bytes));
        bytes.iter().all(|byte| *byte == 0xee)
    }
}

fn with_page(page: u64) -> Vec<u8> {
    let mut input = vec![0; PAGES];
    // Two pages: a ring of 64 entries needs one.
    input.extend_from_slice(&page.to_be_bytes());
    input.extend_from_slice(&(page + 0x1000).to_be_bytes());
    input
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A sender with WRITEs to a receiver in progress.
fn busy() -> (Host, Host) {
    let fabric = Fabric::new();
    let (mut sender, receiver) = (Host::new(0, &fabric), Host::new(1, &fabric));
    receiver.connect(&sender);
    sender.connect(&receiver);
    assert!(sender.data.write(0, &vec![0x55; LENGTH]));
    for _ in 0..30 {
        sender.post(receiver.key);
    }
    eventually("data flows", || receiver.first() == 0x55);
    (sender, receiver)
}

#[test]
fn doorbell_write_returns_before_work_is_done() {
    let (mut sender, receiver) = busy();
    let before = sender.completions();
    let took = sender.post(receiver.key);
    assert!(sender.completions() < u32::from(sender.posted), "nothing left to wait for");
    assert!(took < Duration::from_secs(1), "{took:?}");
    eventually("everything arrives", || sender.completions() == u32::from(sender.posted));
    assert!(sender.completions() > before);
    assert_eq!((sender.state(), receiver.state()), (Some(State::ReadyToSend), Some(State::ReadyToSend)));
}

#[test]
fn no_dma_after_command_completion() {
    type Stop = fn(&Host);
    let stops: [(&str, Stop); 5] = [
        ("2ERR", |host| {
            host.number(QP_2ERR, object(host.qp));
        }),
        ("2RST", |host| {
            host.number(QP_2RST, object(host.qp));
        }),
        ("DESTROY_QP", |host| {
            host.number(DESTROY_QP, object(host.qp));
        }),
        ("DMA unmap", |host| {
            let unmapped = host.device.remap(|memory| Ok(memory.unmap(DATA, LENGTH as u64)));
            assert_eq!(unmapped, Ok(1));
        }),
        ("reset", |host| host.device.reset()),
    ];
    for (what, stop) in stops {
        let (sender, receiver) = busy();
        stop(&receiver);
        assert!(receiver.untouched(), "{what}");
        // The sender fails or retries. In both cases its device keeps responding to commands.
        sender.number(QP_2ERR, object(sender.qp));
        eventually("the rest is flushed", || sender.completions() == u32::from(sender.posted));
    }
}

/// Writes PAOS as `mlx5_set_port_admin_status` of the kernel's `core/port.c` does.
fn set_admin_status(host: &Host, up: bool) {
    const HEADER: usize = 16;
    const PAOS: u16 = 0x5006;
    let mut input = vec![0; HEADER];
    input[10..12].copy_from_slice(&PAOS.to_be_bytes());
    let status = if up { 1 } else { 2 };
    input.extend_from_slice(&[0, 1, status, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    host.number(ACCESS_REG, input);
}

#[test]
fn link_is_up_while_port_is_enabled_and_cable_connected() {
    let fabric = Fabric::new();
    let host = Host::new(0, &fabric);
    let link = || {
        let hca = host.device.shared.lock();
        (hca.engine.port().is_up(), hca.engine.traffic().link_downs)
    };
    assert_eq!(link(), (true, 0));
    set_admin_status(&host, false);
    assert_eq!(link(), (false, 1));
    for cable in [false, true] {
        assert!(host.device.change(PortChange::Link(cable)));
        assert_eq!(link(), (false, 1), "a disabled port stays down");
    }
    host.device.change(PortChange::Link(false));
    set_admin_status(&host, true);
    assert_eq!(link(), (false, 1), "a port without a cable stays down");
    host.device.change(PortChange::Link(true));
    assert_eq!(link(), (true, 1));
    set_admin_status(&host, false);
    host.device.reset();
    assert_eq!(link(), (true, 0), "a reset enables the port and clears its counters");
}

#[test]
fn disabled_port_sends_no_packets() {
    let (mut sender, receiver) = busy();
    set_admin_status(&sender, false);
    sender.post(receiver.key);
    // The receiver may have a queue of packets that were sent before.
    eventually("no more packets arrive", || receiver.untouched());
    assert!(sender.completions() < u32::from(sender.posted));
    set_admin_status(&sender, true);
    eventually("the writes are retried", || sender.completions() == u32::from(sender.posted));
    assert_eq!(sender.state(), Some(State::ReadyToSend));
}

#[test]
fn sender_can_be_reset_or_destroyed_under_traffic() {
    for round in 0..12u64 {
        let (sender, receiver) = busy();
        std::thread::sleep(Duration::from_micros(round * 37));
        match round % 4 {
            0 => drop(sender.number(DESTROY_QP, object(sender.qp))),
            1 => sender.device.reset(),
            2 => sender.device.discard_state(),
            _ => {
                sender.device.remap(|memory| Ok(memory.unmap(0, u64::MAX))).unwrap();
                eventually("the queue pair fails", || sender.state() == Some(State::Error));
            }
        }
        // The receiver waits for packets that never arrive, and can still be destroyed.
        receiver.number(DESTROY_QP, object(receiver.qp));
        assert!(receiver.untouched());
    }
}

fn object(number: u32) -> Vec<u8> {
    let mut input = vec![0; 16];
    input[8..12].copy_from_slice(&number.to_be_bytes());
    input
}
