//! Queues of a driver's provider, for devices whose data path is not in the kernel.
//!
//! Checks describe requests by the WQEs of Soft-RoCE. Here they become requests of the provider.

use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::Arc;

use bareverbs::AnyProvider;
use bareverbs_provider::command;
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::request::{
    AhRequest, CqRequest, CqeSize, DoorbellChoice, QpRequest, QueueMemory, SrqRequest,
};
use bareverbs_provider::traits::{CompletionQueue, Provider, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    self, Datagram, Imm, MwBind, MwType, Operation, Payload, PushError, RecvRequest, Remote, SendRequest,
};
use bareverbs_uapi::rxe::{AtomicWr, MwWr, RdmaWr, RecvWqe, SendWqe, Sge, UdWr};
use bareverbs_uapi::uverbs::types::{QpCap, QpCreateFlags, QpType};
use bareverbs_uapi::verbs_values::SendFlags;
use bareverbs_uapi::write::structs::{AhAttr, Wc};
use bareverbs_uapi::write::types::{CqCreateFlags, WrOpcode};
use zerocopy::{FromZeros, IntoBytes};

use crate::answer::Answer;
use crate::step::{Step, fail, skip};
use crate::target::UverbsFile;

type Cq = <AnyProvider as Provider>::Cq;
type Sq = <AnyProvider as Provider>::Sq;
type Rq = <AnyProvider as Provider>::Rq;
type Srq = <AnyProvider as Provider>::Srq;
type Ah = <AnyProvider as Provider>::Ah;

/// A provider on the file of a session.
pub(crate) struct Provided {
    file: Arc<DeviceFile>,
    provider: AnyProvider,
}

/// The result of a step of the provider that prepares a check.
fn prepared<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Step<T> {
    result.or_else(|error| fail(format!("{what} of the provider failed: {error}")))
}

/// Entries of the queues that checks make.
const ENTRIES: u32 = 16;

impl Provided {
    /// Opens the provider, which makes the context of the file.
    pub(crate) fn open(file: &dyn UverbsFile, driver_id: u32) -> Step<Self> {
        let fd = file.duplicate().or_else(|errno| {
            skip(format!("the file has no duplicate for a provider: {}", Answer::errno(errno)))
        })?;
        let file = Arc::new(prepared("the device file", DeviceFile::from_fd(fd, driver_id))?);
        let provider = prepared("GET_CONTEXT", AnyProvider::open(Arc::clone(&file)))?;
        Ok(Self { file, provider })
    }

    /// Makes an address handle. Returns its handle too.
    pub(crate) fn address(&self, pd: u32, attr: AhAttr) -> Step<(u32, Ah)> {
        let created = prepared("CREATE_AH", self.provider.create_ah(&AhRequest { pd, attr }))?;
        Ok((created.handle, created.ah))
    }
}

/// A CQ of the provider, destroyed when dropped.
pub(crate) struct ProvidedCq {
    owner: Rc<Provided>,
    pub(crate) handle: u32,
    queue: ManuallyDrop<Cq>,
}

impl ProvidedCq {
    pub(crate) fn new(owner: &Rc<Provided>) -> Step<Self> {
        let request = CqRequest {
            entries: ENTRIES,
            user_handle: 0x1234,
            channel: None,
            vector: 0,
            compressed: false,
            cqe_size: CqeSize::Bytes64,
            flags: CqCreateFlags::empty(),
            memory: QueueMemory::BasePages,
        };
        // SAFETY: `drop` keeps the queue until the kernel has destroyed the object.
        let created = prepared("CQ_CREATE", unsafe { owner.provider.create_cq(&request) })?;
        Ok(Self { owner: Rc::clone(owner), handle: created.handle, queue: ManuallyDrop::new(created.queue) })
    }

    /// Takes the next completion.
    pub(crate) fn pop(&mut self) -> Option<Wc> {
        let from = self.queue.next_value()?;
        let mut wc = Wc::new_zeroed();
        (wc.wr_id, wc.status, wc.opcode) = (from.wr_id, from.status, from.opcode);
        (wc.vendor_err, wc.byte_len, wc.ex) = (from.vendor_err, from.byte_len, from.ex);
        (wc.qp_num, wc.src_qp, wc.wc_flags) = (from.qp_num, from.src_qp, from.wc_flags);
        Some(wc)
    }
}

impl Drop for ProvidedCq {
    fn drop(&mut self) {
        // SAFETY: the object is this value's own. Pairs drop their QPs before.
        if unsafe { command::destroy_cq(&self.owner.file, self.handle) }.is_ok() {
            // SAFETY: the kernel has destroyed the object, and the queue is not used again.
            unsafe { ManuallyDrop::drop(&mut self.queue) };
        }
    }
}

/// Where a QP takes its receives from.
enum Receives {
    Own(Rq),
    Shared { handle: u32, queue: Srq },
}

/// The queues of a QP of the provider; the QP is destroyed when they are dropped.
pub(crate) struct ProvidedQp {
    owner: Rc<Provided>,
    pub(crate) handle: u32,
    pub(crate) number: u32,
    qp_type: QpType,
    send: ManuallyDrop<Sq>,
    recv: ManuallyDrop<Receives>,
    /// Address handles, which requests name by their position.
    addresses: Vec<Ah>,
}

impl ProvidedQp {
    pub(crate) fn new(owner: &Rc<Provided>, qp_type: QpType, pd: u32, cq: u32, srq: bool) -> Step<Self> {
        let shared = if srq {
            let request = SrqRequest {
                pd,
                max_wr: ENTRIES,
                max_sge: 1,
                limit: 0,
                user_handle: 0x9abc,
                memory: QueueMemory::BasePages,
                xrc: None,
            };
            // SAFETY: `drop` keeps the queue until the kernel has destroyed the object. If the
            // creation of the QP fails, the queue is leaked.
            let created = prepared("SRQ_CREATE", unsafe { owner.provider.create_srq(&request) })?;
            Some((created.handle, ManuallyDrop::new(created.queue)))
        } else {
            None
        };
        let request = QpRequest {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: shared.as_ref().map(|(handle, _)| *handle),
            qp_type,
            cap: QpCap {
                max_send_wr: 4,
                max_recv_wr: if srq { 0 } else { 4 },
                max_send_sge: 1,
                max_recv_sge: u32::from(!srq),
                max_inline_data: 16,
            },
            max_tso_header: 0,
            flags: QpCreateFlags::empty(),
            source_qpn: None,
            scatter_to_cqe: false,
            user_handle: 0x5678,
            doorbell: DoorbellChoice::Any,
            memory: QueueMemory::BasePages,
        };
        // SAFETY: `drop` keeps the queues until the kernel has destroyed the object.
        let created = prepared("QP_CREATE", unsafe { owner.provider.create_qp(&request) })?;
        // Also if the creation ends below: the kernel has the QP then.
        let send = ManuallyDrop::new(created.sq);
        let recv = match (shared, created.rq) {
            (Some((handle, queue)), _) => Receives::Shared { handle, queue: ManuallyDrop::into_inner(queue) },
            (None, Some(queue)) => Receives::Own(queue),
            (None, None) => return fail("the QP has no receive queue"),
        };
        Ok(Self {
            owner: Rc::clone(owner),
            handle: created.handle,
            number: created.qp_num,
            qp_type,
            send,
            recv: ManuallyDrop::new(recv),
            addresses: Vec::new(),
        })
    }

    /// The handle of the SRQ that the QP takes its receives from.
    pub(crate) fn srq(&self) -> Option<u32> {
        match &*self.recv {
            Receives::Own(_) => None,
            Receives::Shared { handle, .. } => Some(*handle),
        }
    }

    /// Keeps an address handle. Returns the number that requests name it by.
    pub(crate) fn keep_address(&mut self, ah: Ah) -> u32 {
        self.addresses.push(ah);
        self.addresses.len() as u32 - 1
    }

    /// Writes a send into the queue.
    pub(crate) fn push_send(&mut self, wqe: &SendWqe, sge: &Sge) -> Step<()> {
        let inline = wqe.wr.send_flags.contains(SendFlags::INLINE);
        let length = wqe.dma.length as usize;
        let sges = [element(sge)];
        let Some(bytes) = sge.as_bytes().get(..if inline { length } else { 0 }) else {
            return fail("the inline data is longer than that of a check");
        };
        let bytes = [bytes];
        let payload = match (inline, wqe.dma.num_sge) {
            (true, _) => Payload::Inline(&bytes),
            (false, 0) => Payload::Sges(&[]),
            (false, _) => Payload::Sges(&sges),
        };
        let Some(operation) = operation(wqe) else {
            return fail(format!("the provider has no {}", wqe.wr.opcode));
        };
        let mut flags = work::SendFlags::empty();
        flags.set(work::SendFlags::SIGNALED, wqe.wr.send_flags.contains(SendFlags::SIGNALED));
        flags.set(work::SendFlags::FENCE, wqe.wr.send_flags.contains(SendFlags::FENCE));
        let request = SendRequest { wr_id: wqe.wr.wr_id, operation, flags, payload };
        let pushed = if self.qp_type == QpType::UD {
            let form: UdWr = wqe.wr.get();
            let Some(ah) = self.addresses.get(form.ah_num as usize) else {
                return fail("the request names no address handle");
            };
            let imm = match operation {
                Operation::SendImm(imm) => Some(imm),
                _ => None,
            };
            let datagram = Datagram { ah, qp_num: form.remote_qpn, qkey: form.remote_qkey, imm, header: &[] };
            // SAFETY: requests name the session's memory, which outlives the file, or no memory.
            unsafe { self.send.push_datagram(&request.with(datagram)) }
        } else {
            // SAFETY: as above.
            unsafe { self.send.push(&request) }
        };
        refused(pushed)
    }

    /// Rings the doorbell of the send queue.
    pub(crate) fn ring(&mut self) -> Step<()> {
        prepared("the doorbell", self.send.ring())
    }

    /// Posts a receive.
    pub(crate) fn post_recv(&mut self, wqe: &RecvWqe, sge: &Sge) -> Step<()> {
        let sges = [element(sge)];
        let sges = if wqe.dma.num_sge == 0 { &[][..] } else { &sges };
        let request = RecvRequest { wr_id: wqe.wr_id, sges };
        let pushed = match &mut *self.recv {
            // SAFETY: requests name the session's memory, which outlives the file, or no memory.
            Receives::Own(queue) => unsafe { queue.push(&request) },
            // SAFETY: as above.
            Receives::Shared { queue, .. } => unsafe { queue.push(&request) },
        };
        refused(pushed)?;
        match &mut *self.recv {
            Receives::Own(queue) => queue.ring(),
            Receives::Shared { queue, .. } => queue.ring(),
        }
        Ok(())
    }
}

impl Drop for ProvidedQp {
    fn drop(&mut self) {
        let file = &self.owner.file;
        // SAFETY: the object is this value's own.
        if unsafe { command::destroy_qp(file, self.handle) }.is_err() {
            return;
        }
        // SAFETY: the kernel has destroyed the object, and the queue is not used again.
        unsafe { ManuallyDrop::drop(&mut self.send) };
        if let Receives::Shared { handle, .. } = &*self.recv
            // SAFETY: the object is this value's own, and its only QP is destroyed.
            && unsafe { command::destroy_srq(file, *handle) }.is_err()
        {
            return;
        }
        // SAFETY: the kernel has destroyed the queue's object, and the queue is not used again.
        unsafe { ManuallyDrop::drop(&mut self.recv) };
    }
}

fn refused(pushed: Result<(), PushError>) -> Step<()> {
    pushed.or_else(|error| fail(format!("the provider refuses the request: {error}")))
}

fn element(sge: &Sge) -> work::Sge {
    work::Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }
}

/// The operation of a WQE; `None` if providers have none.
fn operation(wqe: &SendWqe) -> Option<Operation> {
    let remote = || {
        let form: RdmaWr = wqe.wr.get();
        Remote { addr: form.remote_addr, rkey: form.rkey }
    };
    let atomic = || {
        let form: AtomicWr = wqe.wr.get();
        (Remote { addr: form.remote_addr, rkey: form.rkey }, form.compare_add, form.swap)
    };
    let imm = Imm::from_be(wqe.wr.ex);
    Some(match wqe.wr.opcode {
        WrOpcode::SEND => Operation::Send,
        WrOpcode::SEND_WITH_IMM => Operation::SendImm(imm),
        WrOpcode::SEND_WITH_INV => Operation::SendInv(wqe.wr.ex),
        WrOpcode::RDMA_WRITE => Operation::Write(remote()),
        WrOpcode::RDMA_WRITE_WITH_IMM => Operation::WriteImm(remote(), imm),
        WrOpcode::RDMA_READ => Operation::Read(remote()),
        WrOpcode::ATOMIC_FETCH_AND_ADD => {
            let (remote, add, _) = atomic();
            Operation::FetchAdd { remote, add }
        }
        WrOpcode::ATOMIC_CMP_AND_SWP => {
            let (remote, compare, swap) = atomic();
            Operation::CmpSwp { remote, compare, swap }
        }
        WrOpcode::LOCAL_INV => Operation::LocalInv(wqe.wr.ex),
        WrOpcode::BIND_MW => {
            let MwWr { addr, length, mr_lkey, mw_rkey, rkey, access } = wqe.wr.get();
            Operation::BindMw(MwBind {
                mw_type: MwType::TYPE_2,
                mw_rkey,
                rkey,
                mr_lkey,
                addr,
                length,
                access,
            })
        }
        _ => return None,
    })
}
