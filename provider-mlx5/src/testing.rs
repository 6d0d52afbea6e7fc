//! Queues without a kernel, for tests, benches and fuzzing.
//!
//! [`Mlx5`](crate::Mlx5) creates a queue in two steps, before and after a command to the kernel.
//! This module has the same two steps around the setup of a device model. The first step allocates
//! the memory, because the device needs the addresses. The second step creates the queue from the
//! device's number for it.

pub mod malicious_device;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::mapping::Mapping;
use bareverbs_uapi::mlx5::CqeCompressionFormats;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

use crate::cq::Mlx5Cq;
use crate::cq_ring::Ring;
use crate::cq_ring::mini_cqe::MiniCqeFormat;
use crate::cqe::CQE;
use crate::doorbell::{BlueFlame, DoorbellRecord, DoorbellRecords, PAGE, SendRegister, Uar};
use crate::provider::wq::WqMemory;
use crate::qp_memory::{Layout, Limits, QpMemory, ReceiveLayout};
use crate::rq::Mlx5Rq;
use crate::sq::{Datagrams, Mlx5Ah, Mlx5Sq, SendLimits};
use crate::srq::Mlx5Srq;
use crate::uidx_table::clean::CqShared;
use crate::uidx_table::{QueueRecord, QueueRecordRef, RqTracker, Source, SqTracker, UidxTable};
use crate::wqe::{AddressVector, SEGMENT};

/// Bytes of a BlueFlame register.
const REGISTER: u32 = 512;

/// The limits of a ConnectX.
const LIMITS: Limits = Limits { send_bytes: 1024, recv_bytes: 512, send_blocks: 1 << 15, receives: 1 << 15 };

/// The shared objects of a context without a kernel.
#[derive(Debug)]
pub struct Plain {
    table: Arc<UidxTable>,
    records: DoorbellRecords,
    uar: Arc<Uar>,
}

/// A range of memory that the device accesses.
#[derive(Clone, Copy, Debug)]
pub struct DmaRange {
    /// The first byte.
    pub start: NonNull<u8>,
    /// Length in bytes.
    pub len: usize,
}

impl DmaRange {
    fn of(memory: &Mapping) -> Self {
        Self { start: memory.as_ptr(), len: memory.len() }
    }

    /// The address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }
}

impl Plain {
    /// Creates a context for queues with user indices below `queues`.
    ///
    /// # Errors
    /// The memory can't be allocated.
    pub fn new(queues: u32) -> Result<Self, Errno> {
        Self::with_version(queues, 1)
    }

    /// Creates a context for a device with this CQE version: 0, where CQEs contain QPN and SRQN, or
    /// 1.
    ///
    /// # Errors
    /// The memory can't be allocated.
    pub fn with_version(queues: u32, cqe_version: u8) -> Result<Self, Errno> {
        let table = Arc::new(UidxTable::new(queues, cqe_version)?);
        Ok(Self { table, records: DoorbellRecords::default(), uar: Arc::new(Uar::plain()?) })
    }

    /// The doorbell page that the queues share.
    #[must_use]
    pub fn uar(&self) -> NonNull<u8> {
        self.uar.as_ptr()
    }

    /// Allocates memory for a CQ of `1 << log` CQEs of `cqe_size` bytes, 64 or 128.
    ///
    /// # Errors
    /// The memory can't be allocated.
    pub fn cq(&self, log: u32, cqe_size: usize) -> Result<PlainCq<'_>, Errno> {
        let ring = Ring::new(Mapping::anonymous(cqe_size << log)?, log, cqe_size);
        Ok(PlainCq { context: self, ring, doorbell: self.records.take()? })
    }

    /// Allocates memory for a queue pair that completes to `send_cq` and `recv_cq`.
    ///
    /// # Errors
    /// There is no memory or no free user index, or `cap` exceeds the limits of a ConnectX.
    pub fn qp(
        &self,
        qp_type: QpType,
        cap: &QpCap,
        send_cq: &Mlx5Cq,
        recv_cq: &Mlx5Cq,
        srq: Option<&Mlx5Srq>,
    ) -> Result<PlainQp, CreateError> {
        let cqs = [CqRef::of(send_cq), CqRef::of(recv_cq)];
        let layout = Layout::new(qp_type, cap, 0, srq.is_some(), LIMITS)?;
        self.qp_of(qp_type, layout, 0, cqs, srq, |slots, _| Ok(RqTracker::new(slots)))
    }

    /// Like [`Plain::qp`], for CQs that other threads poll. `scatters` enables scatter to CQE.
    ///
    /// # Errors
    /// As for [`Plain::qp`].
    pub fn qp_beside_pollers(
        &self,
        qp_type: QpType,
        cap: &QpCap,
        cqs: [&CqRef; 2],
        srq: Option<&Mlx5Srq>,
        scatters: bool,
    ) -> Result<PlainQp, CreateError> {
        let receives = |slots, width| {
            if scatters { RqTracker::with_scatter_to_cqe(slots, width) } else { Ok(RqTracker::new(slots)) }
        };
        let layout = Layout::new(qp_type, cap, 0, srq.is_some(), LIMITS)?;
        self.qp_of(qp_type, layout, 0, cqs.map(CqRef::clone), srq, receives)
    }

    /// Like [`Plain::qp`], for raw packets. TSO requests have headers of at most `tso_header`
    /// bytes.
    ///
    /// # Errors
    /// As for [`Plain::qp`].
    pub fn qp_of_frames(&self, cap: &QpCap, tso_header: u16, cq: &Mlx5Cq) -> Result<PlainQp, CreateError> {
        let cqs = [CqRef::of(cq), CqRef::of(cq)];
        let layout = Layout::new(QpType::RAW_PACKET, cap, tso_header, false, LIMITS)?;
        self.qp_of(QpType::RAW_PACKET, layout, tso_header, cqs, None, |slots, _| Ok(RqTracker::new(slots)))
    }

    /// Like [`Plain::qp`], for a UD QP with a source QPN.
    ///
    /// # Errors
    /// As for [`Plain::qp`].
    pub fn ipoib_qp(&self, cap: &QpCap, cq: &Mlx5Cq) -> Result<PlainQp, CreateError> {
        let cqs = [CqRef::of(cq), CqRef::of(cq)];
        let layout = Layout::ipoib(cap, false, LIMITS)?;
        self.qp_of(QpType::UD, layout, 0, cqs, None, |slots, _| Ok(RqTracker::new(slots)))
    }

    /// Like [`Plain::qp`], with scatter to CQE for receives.
    ///
    /// # Errors
    /// As for [`Plain::qp`].
    pub fn scattering_qp(
        &self,
        qp_type: QpType,
        cap: &QpCap,
        send_cq: &Mlx5Cq,
        recv_cq: &Mlx5Cq,
    ) -> Result<PlainQp, CreateError> {
        let cqs = [CqRef::of(send_cq), CqRef::of(recv_cq)];
        let layout = Layout::new(qp_type, cap, 0, false, LIMITS)?;
        self.qp_of(qp_type, layout, 0, cqs, None, RqTracker::with_scatter_to_cqe)
    }

    fn qp_of(
        &self,
        qp_type: QpType,
        layout: Layout,
        tso_header: u16,
        cqs: [CqRef; 2],
        srq: Option<&Mlx5Srq>,
        receives: impl FnOnce(u32, u32) -> Result<RqTracker, Errno>,
    ) -> Result<PlainQp, CreateError> {
        let ioctl_error = |errno| bareverbs_provider::device::IoctlError::new("mmap", errno);
        let source = match srq {
            Some(srq) => Source::Shared(Arc::clone(srq.shared())),
            None => Source::Own(receives(layout.recv_slots, layout.recv_sge).map_err(ioctl_error)?),
        };
        let cqs = cqs.map(|CqRef(shared)| shared);
        let record = QueueRecord::new(&self.table, cqs, SqTracker::new(layout.send_blocks), source)
            .ok_or_else(|| ioctl_error(Errno::NOMEM))?;
        let rings = Mapping::anonymous(layout.bytes()).map_err(ioctl_error)?;
        let doorbell = self.records.take().map_err(ioctl_error)?;
        let places = (DmaRange::of(&rings), doorbell.address());
        let memory = Arc::new(QpMemory::new(rings, doorbell, record.clone()));
        Ok(PlainQp {
            qp_type,
            layout,
            tso_header,
            has_srq: srq.is_some(),
            record,
            memory,
            places,
            uar: Arc::clone(&self.uar),
        })
    }

    /// Creates an SRQ of at least `max_wr` receives of `max_sge` SGEs.
    ///
    /// # Errors
    /// The memory can't be allocated.
    pub fn srq(&self, max_wr: u32, max_sge: u32) -> Result<PlainSrq, Errno> {
        let (shift, slots) = (Mlx5Srq::shift(max_sge), (max_wr + 1).next_power_of_two().max(2));
        let memory = Mapping::anonymous((slots as usize) << shift)?;
        let doorbell = self.records.take()?;
        let (ring, record) = (DmaRange::of(&memory), doorbell.address());
        let max_sge = (1 << shift) / SEGMENT as u32 - 1;
        let queue = Mlx5Srq::new(memory, slots, shift, max_sge, doorbell);
        Ok(PlainSrq { ring, doorbell: record, slots, shift, queue })
    }

    /// Allocates memory for a WQ of at least `max_wr` receives of `max_sge` SGEs that completes to
    /// `cq`.
    ///
    /// # Errors
    /// There is no memory or no free user index, or the arguments exceed the limits of a ConnectX.
    pub fn wq(&self, max_wr: u32, max_sge: u32, cq: &Mlx5Cq) -> Result<PlainWq, CreateError> {
        let layout = ReceiveLayout::new(max_wr, max_sge, LIMITS)?;
        let ioctl_error = |errno| bareverbs_provider::device::IoctlError::new("mmap", errno);
        let ring = Mapping::anonymous(layout.bytes()).map_err(ioctl_error)?;
        let doorbell = self.records.take().map_err(ioctl_error)?;
        let record = doorbell.address();
        let memory = WqMemory::new(&self.table, Arc::clone(cq.shared()), ring, doorbell, layout)?;
        let start = memory.memory.ring(layout.bytes());
        Ok(PlainWq {
            ring: DmaRange { start, len: layout.bytes().next_multiple_of(PAGE) },
            doorbell: record,
            memory,
        })
    }

    /// Creates an address handle with an arbitrary address vector.
    #[must_use]
    pub fn ah(vector: AddressVector) -> Mlx5Ah {
        Mlx5Ah { vector }
    }
}

/// The shared part of a CQ, for QPs that complete to a CQ of another thread.
#[derive(Clone, Debug)]
pub struct CqRef(Arc<CqShared>);

impl CqRef {
    /// The shared part of `cq`.
    #[must_use]
    pub fn of(cq: &Mlx5Cq) -> Self {
        Self(Arc::clone(cq.shared()))
    }
}

/// The page that contains an address.
#[must_use]
pub fn page_of(address: u64) -> DmaRange {
    let start = std::ptr::with_exposed_provenance_mut::<u8>((address & !0xfff) as usize);
    DmaRange { start: NonNull::new(start).expect("a page that is mapped"), len: 0x1000 }
}

/// A CQ whose memory is allocated and that has no number yet.
#[derive(Debug)]
pub struct PlainCq<'a> {
    context: &'a Plain,
    ring: Ring,
    doorbell: DoorbellRecord,
}

impl PlainCq<'_> {
    /// The ring of CQEs.
    #[must_use]
    pub fn ring(&self) -> DmaRange {
        self.ring.place()
    }

    /// Enables compressed CQEs of the best format in `format`.
    ///
    /// # Panics
    /// If `format` contains no known format.
    #[must_use]
    pub fn compressed(self, format: CqeCompressionFormats) -> Self {
        let (mini_cqe_format, _) = MiniCqeFormat::best(format).expect("a format");
        Self { ring: self.ring.compressed(Some(mini_cqe_format)), ..self }
    }

    /// The address of the doorbell record.
    #[must_use]
    pub fn doorbell(&self) -> u64 {
        self.doorbell.address()
    }

    /// Creates the CQ with the device's number for it.
    #[must_use]
    pub fn finish(self, cqn: u32) -> Mlx5Cq {
        Mlx5Cq::new(self.ring, cqn, &self.context.table, self.doorbell, &self.context.uar)
    }
}

impl Ring {
    fn place(&self) -> DmaRange {
        DmaRange::of(self.memory())
    }
}

/// Resizes a CQ to a new ring of `1 << log` CQEs of 64 bytes, as the kernel does. `announce` passes
/// the ring to the device.
///
/// # Errors
/// The memory can't be allocated.
pub fn resize(cq: &mut Mlx5Cq, log: u32, announce: impl FnOnce(DmaRange)) -> Result<(), Errno> {
    let ring = Ring::new(Mapping::anonymous(CQE << log)?, log, CQE);
    cq.resize_by(ring, |ring| {
        announce(ring.place());
        Ok(())
    })
}

/// An SRQ and the addresses that the device needs.
#[derive(Debug)]
pub struct PlainSrq {
    /// The slots.
    pub ring: DmaRange,
    /// The address of the doorbell record.
    pub doorbell: u64,
    /// The number of slots.
    pub slots: u32,
    /// Log2 of the bytes of a slot.
    pub shift: u32,
    /// The SRQ.
    pub queue: Mlx5Srq,
}

impl PlainSrq {
    /// Sets the SRQN.
    pub fn number(&self, number: u32) {
        self.queue.shared().set_number(number);
    }

    /// Makes the completions come to `cq`, as those of an XRC SRQ do. Returns the user index by
    /// which they name it, or `None` if all are in use.
    pub fn attach(&mut self, context: &Plain, cq: &Mlx5Cq) -> Option<u32> {
        let cqs = [Arc::clone(cq.shared()), Arc::clone(cq.shared())];
        let source = Source::Shared(Arc::clone(self.queue.shared()));
        let record = QueueRecord::new(&context.table, cqs, SqTracker::new(1), source)?;
        let user_index = record.user_index();
        self.queue.attach_record(record);
        Some(user_index)
    }
}

/// A WQ whose memory is allocated.
pub struct PlainWq {
    /// The pages that contain the ring.
    pub ring: DmaRange,
    /// The address of the doorbell record.
    pub doorbell: u64,
    memory: WqMemory,
}

impl fmt::Debug for PlainWq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ring, doorbell, .. } = self;
        f.debug_struct("PlainWq").field("ring", ring).field("doorbell", doorbell).finish_non_exhaustive()
    }
}

impl PlainWq {
    /// The user index in its CQEs.
    #[must_use]
    pub fn user_index(&self) -> u32 {
        self.memory.record.user_index()
    }

    /// The number of slots, and log2 of the bytes of a slot.
    #[must_use]
    pub fn receives(&self) -> (u32, u32) {
        (self.memory.layout.slots, self.memory.layout.shift)
    }

    /// Creates the WQ.
    #[must_use]
    pub fn finish(self) -> Mlx5Rq {
        self.memory.finish()
    }
}

/// A queue pair whose memory is allocated and that has no number yet.
#[derive(Debug)]
pub struct PlainQp {
    qp_type: QpType,
    layout: Layout,
    tso_header: u16,
    has_srq: bool,
    record: QueueRecordRef,
    memory: Arc<QpMemory>,
    places: (DmaRange, u64),
    uar: Arc<Uar>,
}

impl PlainQp {
    /// The memory of both rings.
    #[must_use]
    pub fn rings(&self) -> DmaRange {
        self.places.0
    }

    /// The address of the doorbell record.
    #[must_use]
    pub fn doorbell(&self) -> u64 {
        self.places.1
    }

    /// The user index in its CQEs.
    #[must_use]
    pub fn user_index(&self) -> u32 {
        self.record.user_index()
    }

    /// The number of slots of the receive ring, 0 if there is none, and log2 of the bytes of a
    /// slot.
    #[must_use]
    pub fn receives(&self) -> (u32, u32) {
        (self.layout.recv_slots, self.layout.recv_shift)
    }

    /// The offset of the send ring in [`PlainQp::rings`] in bytes, and its number of WQEBBs.
    #[must_use]
    pub fn sends(&self) -> (usize, u32) {
        (self.layout.send_offset(), self.layout.send_blocks)
    }

    /// The numbers of requests and SGEs, and the inline size.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.layout.cap()
    }

    /// Creates the queues with the device's QPN. The returned address is that of the page of the
    /// doorbell register. With `blue_flame` the send queue has a register of its own in a page of
    /// its own.
    ///
    /// # Errors
    /// The memory can't be allocated.
    pub fn finish(
        self,
        qp_num: u32,
        blue_flame: bool,
    ) -> Result<(Mlx5Sq, Option<Mlx5Rq>, NonNull<u8>), Errno> {
        let limits = SendLimits {
            qp_type: self.qp_type,
            datagrams: Datagrams::new(self.qp_type, self.layout.is_separate()),
            requests: self.layout.sends,
            max_sge: self.layout.send_sge,
            max_inline: self.layout.inline,
            max_message: if self.qp_type == QpType::UD { 4096 } else { 1 << 30 },
            frame_header: 0,
            tso_header: self.tso_header.into(),
            max_tso: 1 << 16,
            signal_all: false,
        };
        let (page, register) = if blue_flame {
            let uar = Uar::plain()?;
            (uar.as_ptr(), SendRegister::Exclusive(BlueFlame::new(uar, REGISTER).map_err(|_| Errno::INVAL)?))
        } else {
            (self.uar.as_ptr(), SendRegister::Shared(self.uar))
        };
        let rq = (!self.has_srq).then(|| {
            let shift = self.layout.recv_shift - SEGMENT.trailing_zeros();
            let (record, memory) = (self.record.clone(), Arc::clone(&self.memory));
            Mlx5Rq::new(record, memory, self.layout.recv_slots.max(1), shift, self.layout.recv_sge)
        });
        let place = (self.layout.send_offset(), self.layout.send_blocks);
        let sq = Mlx5Sq::new(self.record.clone(), self.memory, register, place, qp_num, limits);
        let srq_num = match &self.record.source {
            Source::Shared(srq) => srq.number(),
            Source::Own(_) => 0,
        };
        QueueRecord::store(&self.record, qp_num, srq_num);
        Ok((sq, rq, page))
    }
}
