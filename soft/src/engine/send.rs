//! Send queues: the ring, and its WQEs.

use std::mem::{offset_of, size_of};

use bareverbs_provider::Errno;
use bareverbs_transport::packet::Flush;
use bareverbs_transport::{Action, Fence, Fetched, Segment, Service};
use bareverbs_uapi::rxe::{self, AtomicWr, FlushWr, MwWr, RdmaWr, SendWqe, SendWr, UdWr};
use bareverbs_uapi::verbs_values::{SendFlags, WcStatus};
use bareverbs_uapi::write::types::{SelectivityLevel, WcOpcode, WrOpcode};
use zerocopy::{FromZeros, IntoBytes};

use super::address::Addresses;
use super::memory::Bind;
use super::queue::{QueueMemory, Ring};
use super::receive::load_sges;

/// The offset of the SGEs or inline data in a slot.
const DATA: usize = size_of::<SendWqe>();

/// The state of a WQE that failed, which the program reads.
const STATE_ERROR: u32 = 4;

/// A parsed send WQE.
pub(super) type Work = bareverbs_transport::Work<Local>;

/// Operations that the device executes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Local {
    /// Nothing: a datagram above the MTU isn't sent, and no error (InfiniBand specification, C10-93.1.1).
    #[default]
    Nothing,
    Invalidate(u32),
    Bind(Bind),
}

/// A send WQE in execution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SendWqeRef {
    position: u64,
    pub(super) wr_id: u64,
    /// The opcode of a completion.
    pub(super) opcode: WcOpcode,
    pub(super) signaled: bool,
    /// Opcode and length of the request, which must not change while it is executed.
    request: (WrOpcode, u32),
}

impl SendWqeRef {
    /// The length of its data in bytes.
    pub(super) fn length(&self) -> u32 {
        self.request.1
    }
}

/// The ring of a QP's SQ.
#[derive(Debug)]
pub(super) struct SendRing {
    ring: Ring,
    /// The next WQE to begin.
    next: u64,
    /// The WQE that was fetched last.
    fetched: Option<SendWqeRef>,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
    pub(super) all_signaled: bool,
}

impl SendRing {
    pub(super) fn new(max_wr: u32, max_sge: u32, max_inline: u32, all_signaled: bool) -> Result<Self, Errno> {
        let data = (max_sge as usize * size_of::<rxe::Sge>()).max(max_inline as usize);
        let max_sge = (data / size_of::<rxe::Sge>()) as u32;
        // Each slot holds the eight bytes of an ATOMIC WRITE.
        let ring = Ring::new(max_wr, DATA + data.max(8))?;
        Ok(Self { ring, next: 0, fetched: None, max_sge, max_inline: data as u32, all_signaled })
    }

    pub(super) fn memory(&self) -> QueueMemory {
        self.ring.memory()
    }

    pub(super) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Parses the next WQE.
    pub(super) fn fetch(&mut self, service: Service, addresses: &Addresses<'_>, work: &mut Work) -> Fetched {
        if self.ring.posted_from(self.next) == 0 {
            return Fetched::Empty;
        }
        if self.fetched.is_some_and(|wqe_ref| wqe_ref.position == self.next) {
            return Fetched::Work;
        }
        let (wqe_ref, wqe) = self.load(self.next);
        let parsed = self.parse(service, addresses, wqe_ref.position, &wqe, work);
        self.fetched = parsed.map(|()| wqe_ref);
        if parsed.is_some() {
            return Fetched::Work;
        }
        (work.action, work.fence) = (Action::Local(Local::Nothing), Fence::None);
        Fetched::Malformed
    }

    fn load(&self, position: u64) -> (SendWqeRef, SendWqe) {
        let mut wqe = SendWqe::new_zeroed();
        self.ring.load(position, 0, wqe.as_mut_bytes());
        let signaled = self.all_signaled || wqe.wr.send_flags.contains(SendFlags::SIGNALED);
        let request = (wqe.wr.opcode, wqe.dma.length);
        (
            SendWqeRef {
                position,
                wr_id: wqe.wr.wr_id,
                opcode: completed_as(wqe.wr.opcode),
                signaled,
                request,
            },
            wqe,
        )
    }

    pub(super) fn begin(&mut self) -> SendWqeRef {
        let wqe_ref = match self.fetched {
            Some(wqe_ref) if wqe_ref.position == self.next => wqe_ref,
            _ => self.load(self.next).0,
        };
        self.next += 1;
        wqe_ref
    }

    /// Parses a WQE in execution again. Returns `false` if the program has changed it.
    pub(super) fn reload(
        &mut self,
        service: Service,
        addresses: &Addresses<'_>,
        work: &mut Work,
        wqe_ref: SendWqeRef,
    ) -> bool {
        if self.fetched == Some(wqe_ref) {
            return true;
        }
        let (found, wqe) = self.load(wqe_ref.position);
        let parsed = self.parse(service, addresses, wqe_ref.position, &wqe, work);
        self.fetched = parsed.filter(|()| found.request == wqe_ref.request).map(|()| wqe_ref);
        self.fetched.is_some()
    }

    /// Takes the WQEs that have not begun.
    pub(super) fn take_posted(&mut self) -> Vec<SendWqeRef> {
        let first = self.next;
        self.next += u64::from(self.ring.posted_from(first));
        self.fetched = None;
        (first..self.next).map(|position| self.load(position).0).collect()
    }

    pub(super) fn continue_after(&mut self, wqe_ref: SendWqeRef) {
        self.next = wqe_ref.position + 1;
        self.fetched = None;
    }

    /// Releases the slots up to that of a WQE. One that failed shows the program why.
    pub(super) fn release(&self, wqe_ref: SendWqeRef, failure: Option<WcStatus>) {
        if let Some(failure) = failure.filter(|failure| *failure != WcStatus::WR_FLUSH_ERR) {
            self.ring.store(wqe_ref.position, offset_of!(SendWqe, status), failure.0.as_bytes());
            self.ring.store(wqe_ref.position, offset_of!(SendWqe, state), STATE_ERROR.as_bytes());
        }
        self.ring.set_consumer(wqe_ref.position + 1);
    }

    /// Discards all WQEs.
    pub(super) fn reset(&mut self) {
        let posted = self.take_posted();
        drop(posted);
        self.ring.clear();
        self.ring.set_consumer(self.next);
    }

    /// Fills `work`. Returns `None` if the WQE is malformed.
    fn parse(
        &self,
        service: Service,
        addresses: &Addresses<'_>,
        position: u64,
        wqe: &SendWqe,
        work: &mut Work,
    ) -> Option<()> {
        let (wr, flags, dma) = (&wqe.wr, wqe.wr.send_flags, &wqe.dma);
        // All are completed, which releases their slots; the device knows which have a CQE.
        work.signaled = true;
        work.solicited = flags.contains(SendFlags::SOLICITED);
        work.fence = if flags.contains(SendFlags::FENCE) { Fence::Responses } else { Fence::None };
        work.segments.clear();
        work.length = dma.length.into();
        parse_operation(service, wr, work)?;
        let has_data = match work.action {
            Action::Local(_) => {
                work.length = 0;
                false
            }
            Action::Flush(_) => false,
            _ => true,
        };
        if let Service::Datagram(_) = service {
            let form: UdWr = wr.get();
            work.address = addresses.find(&form)?;
            if dma.length > addresses.mtu {
                work.action = Action::Local(Local::Nothing);
                work.length = 0;
                return Some(());
            }
        }
        if !has_data {
            return Some(());
        }
        if dma.cur_sge != 0 || dma.sge_offset != 0 {
            return None;
        }
        let takes_inline = matches!(work.action, Action::Send { .. } | Action::Write { .. });
        let inline = flags.contains(SendFlags::INLINE);
        if inline && !takes_inline || matches!(work.action, Action::Atomic { .. }) && dma.length != 8 {
            return None;
        }
        if inline || matches!(work.action, Action::AtomicWrite) {
            let limit = if inline { self.max_inline } else { 8 };
            if dma.length > limit {
                return None;
            }
            work.bytes.resize(dma.length as usize, 0);
            self.ring.load(position, DATA, &mut work.bytes);
            work.segments.push(Segment::Inline { at: 0, length: dma.length });
            return Some(());
        }
        if dma.num_sge > self.max_sge {
            return None;
        }
        work.segments.extend(load_sges(&self.ring, position, DATA, dma.num_sge).map(Segment::Memory));
        if matches!(work.action, Action::Read | Action::Atomic { .. }) {
            // The response finds out.
            return Some(());
        }
        let room: u64 = work.segments.iter().map(|segment| u64::from(segment.length())).sum();
        (room >= work.length).then_some(())
    }
}

fn completed_as(opcode: WrOpcode) -> WcOpcode {
    match opcode {
        WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM => WcOpcode::RDMA_WRITE,
        WrOpcode::RDMA_READ => WcOpcode::RDMA_READ,
        WrOpcode::ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
        WrOpcode::ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
        WrOpcode::LOCAL_INV => WcOpcode::LOCAL_INV,
        WrOpcode::BIND_MW => WcOpcode::BIND_MW,
        WrOpcode::FLUSH => WcOpcode::FLUSH,
        WrOpcode::ATOMIC_WRITE => WcOpcode::ATOMIC_WRITE,
        _ => WcOpcode::SEND,
    }
}

/// Fills the operation and its parameters. Returns `None` if the service has no such operation.
fn parse_operation(service: Service, wr: &SendWr, work: &mut Work) -> Option<()> {
    use bareverbs_transport::packet::Transport::{Rc, Uc};
    let connected = matches!(service, Service::Connected(_));
    let reliable = service == Service::Connected(Rc);
    let rdma = |work: &mut Work| {
        let form: RdmaWr = wr.get();
        work.remote = (form.remote_addr, form.rkey);
    };
    match wr.opcode {
        WrOpcode::SEND => work.action = Action::Send { immediate: false, invalidate: false },
        WrOpcode::SEND_WITH_IMM => {
            work.action = Action::Send { immediate: true, invalidate: false };
            work.immediate = u32::from_be(wr.ex);
        }
        WrOpcode::SEND_WITH_INV if reliable => {
            work.action = Action::Send { immediate: false, invalidate: true };
            work.immediate = wr.ex;
        }
        WrOpcode::RDMA_WRITE if connected => {
            work.action = Action::Write { immediate: false };
            rdma(work);
        }
        WrOpcode::RDMA_WRITE_WITH_IMM if connected => {
            work.action = Action::Write { immediate: true };
            work.immediate = u32::from_be(wr.ex);
            rdma(work);
        }
        WrOpcode::RDMA_READ if reliable => {
            work.action = Action::Read;
            rdma(work);
        }
        WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD if reliable => {
            let add = wr.opcode == WrOpcode::ATOMIC_FETCH_AND_ADD;
            let form: AtomicWr = wr.get();
            work.action = Action::Atomic { add, masks: None };
            work.remote = (form.remote_addr, form.rkey);
            work.swap_or_add = if add { form.compare_add } else { form.swap };
            work.compare = form.compare_add;
        }
        WrOpcode::FLUSH if reliable => {
            let form: FlushWr = wr.get();
            let whole_key = match form.level {
                SelectivityLevel::RANGE => false,
                SelectivityLevel::MR => true,
                _ => return None,
            };
            work.action = Action::Flush(Flush { placement: form.placement.bits() & 0xf, whole_key });
            work.remote = (form.remote_addr, form.rkey);
            work.length = form.length.into();
        }
        WrOpcode::ATOMIC_WRITE if reliable => {
            work.action = Action::AtomicWrite;
            rdma(work);
        }
        WrOpcode::LOCAL_INV if reliable => {
            work.action = Action::Local(Local::Invalidate(wr.ex));
            work.fence = Fence::Everything;
        }
        WrOpcode::BIND_MW if reliable || service == Service::Connected(Uc) => {
            let form: MwWr = wr.get();
            work.action = Action::Local(Local::Bind(Bind {
                window: form.mw_rkey,
                new_key: form.rkey,
                region: form.mr_lkey,
                address: form.addr,
                length: form.length,
                access: form.access,
            }));
        }
        _ => return None,
    }
    Some(())
}
