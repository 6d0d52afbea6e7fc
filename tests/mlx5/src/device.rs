//! The HCA, and the kernel's part of creating queues.

use std::collections::HashSet;
use std::fmt;

use bareverbs_hca::engine::{CqSetup, QpSetup, ReceiveQueue, RqSetup, Service, SrqSetup};
use bareverbs_hca::{InProcessHca, Link};
use bareverbs_mlx5::testing::{DmaRange, PlainCq, PlainQp, PlainSrq, PlainWq, page_of};

/// The protection domain of all objects.
pub const PD: u32 = 7;

/// The HCA, and the memory that is mapped to it.
pub struct Device {
    /// The HCA.
    pub hca: InProcessHca,
    mapped: HashSet<u64>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("hca", &self.hca).finish_non_exhaustive()
    }
}

impl Device {
    /// Creates an InfiniBand HCA.
    ///
    /// # Panics
    /// If there is not enough memory.
    ///
    /// # Safety
    ///
    /// Memory of queues, and memory that is passed to [`Self::map_memory`], must be valid until
    /// [`Self::take_back`] unmaps it or the device is dropped. While the device runs, other accesses to
    /// it must be volatile or atomic.
    #[must_use]
    pub unsafe fn new() -> Self {
        Self { hca: InProcessHca::new(Link::InfiniBand).expect("a device"), mapped: HashSet::new() }
    }

    /// Maps memory, in whole pages. Mapped memory stays as it is.
    ///
    /// # Panics
    /// If it overlaps other mapped memory.
    pub fn map_memory(&mut self, place: DmaRange) {
        if self.mapped.insert(place.address()) {
            // SAFETY: the caller of `new` keeps the memory until it is unmapped.
            unsafe { self.hca.map_memory(place.start, place.len) }.expect("room in the device's map");
        }
    }

    /// Unmaps memory, which may be freed then.
    pub fn take_back(&mut self, place: DmaRange) {
        self.hca.take_back(place.address(), place.len);
        self.mapped.remove(&place.address());
    }

    /// Maps memory and registers it as an MR. Returns its key.
    ///
    /// # Panics
    /// As [`Self::map_memory`].
    pub fn register(&mut self, place: DmaRange) -> u32 {
        self.map_memory(place);
        self.hca.engine().register(PD, place.address(), place.len as u64).expect("a key")
    }

    /// Creates a CQ with the size and the CQE format of `shape`. Returns its CQN.
    ///
    /// # Panics
    /// If the HCA rejects the CQ.
    pub fn create_cq(&mut self, parts: &PlainCq<'_>, shape: CqSetup) -> u32 {
        let (ring, doorbell) = (parts.ring(), parts.doorbell());
        let cqe_size = if shape.wide { 128 } else { 64 };
        let setup = CqSetup {
            ring: InProcessHca::ring_at(ring.address(), cqe_size << shape.log_size),
            eq: InProcessHca::EVENTS,
            doorbell,
            ..shape
        };
        let number = self.hca.engine().create_cq(setup).expect("a CQ");
        self.map_memory(ring);
        self.map_memory(page_of(doorbell));
        number
    }

    /// Moves a CQ from the ring `old` to `new`, of `1 << log` CQEs of 64 bytes.
    ///
    /// # Panics
    /// If the new ring is too small for the CQEs.
    pub fn resize_cq(&mut self, number: u32, old: DmaRange, new: DmaRange, log: u32) {
        self.map_memory(new);
        let ring = InProcessHca::ring_at(new.address(), 64 << log);
        self.hca.engine().resize_cq(number, ring, log as u8).expect("room for the CQEs");
        self.take_back(old);
    }

    /// Creates an SRQ. Returns its number.
    ///
    /// # Panics
    /// If the HCA rejects the SRQ.
    pub fn create_srq(&mut self, parts: &PlainSrq) -> u32 {
        let setup = SrqSetup {
            ring: InProcessHca::ring_at(parts.ring.address(), (parts.slots as usize) << parts.shift),
            log_size: parts.slots.trailing_zeros() as u8,
            log_stride: parts.shift as u8,
            doorbell: parts.doorbell,
            pd: PD,
            user_index: 0,
            cq: None,
            xrcd: None,
            linked: true,
        };
        let number = self.hca.engine().create_srq(setup, 0).expect("an SRQ");
        parts.number(number);
        self.map_memory(parts.ring);
        self.map_memory(page_of(parts.doorbell));
        number
    }

    /// Creates a WQ in RESET that flushes its receives when it moves to ERR. Returns its number.
    ///
    /// # Panics
    /// If the HCA rejects the WQ.
    pub fn create_wq(&mut self, parts: &PlainWq, cq: u32) -> u32 {
        let (slots, shift) = parts.receives();
        let setup = RqSetup {
            ring: InProcessHca::ring_at(parts.ring.address(), (slots as usize) << shift),
            log_size: slots.trailing_zeros() as u8,
            log_stride: shift as u8,
            linked: false,
            doorbell: parts.doorbell,
            pd: PD,
            cq,
            user_index: parts.user_index(),
            flushes: true,
            strips_vlan: false,
            scatters_fcs: false,
        };
        let number = self.hca.engine().create_rq(setup).expect("a work queue");
        self.map_memory(parts.ring);
        self.map_memory(page_of(parts.doorbell));
        number
    }

    /// Creates a QP with the service, the CQs and the inline receives of `shape`, and receives from the
    /// SRQ if there is one. Returns its QPN.
    ///
    /// # Panics
    /// If the HCA rejects the QP.
    pub fn create_qp(&mut self, parts: &PlainQp, shape: QpSetup, srq: Option<u32>) -> u32 {
        let (slots, shift) = parts.receives();
        let (send_offset, blocks) = parts.sends();
        let (rings, doorbell) = (parts.rings(), parts.doorbell());
        let receive = match srq {
            Some(number) => ReceiveQueue::Shared(number),
            // Frames are received by WQs, and packets of IPoIB too.
            None if matches!(shape.service, Service::Ethernet | Service::Ipoib { .. }) => ReceiveQueue::None,
            None => ReceiveQueue::Own { log_size: slots.trailing_zeros() as u8, log_stride: shift as u8 },
        };
        let setup = QpSetup {
            pd: PD,
            user_index: parts.user_index(),
            ring: InProcessHca::ring_at(rings.address(), rings.len),
            send_offset: send_offset as u64,
            log_send_size: Some(blocks.trailing_zeros() as u8),
            receive,
            doorbell,
            ..shape
        };
        let number = self.hca.engine().create_qp(setup, Default::default()).expect("a queue pair");
        self.map_memory(rings);
        self.map_memory(page_of(doorbell));
        number
    }
}
