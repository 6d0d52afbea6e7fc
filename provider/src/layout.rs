//! Addresses of a queue in memory, for programs that read or write rings directly.

use std::ptr::NonNull;

/// The ring of a queue, its indices and its doorbell.
///
/// The addresses are valid until the queue is destroyed, or resized for a CQ or an SRQ. The device
/// or the kernel accesses the memory at any time, so no Rust reference to it may be created. The
/// queue's owner keeps private copies of its indices: a program that posts or polls by these
/// addresses must not use the owner's methods for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLayout {
    /// The first slot.
    pub ring: NonNull<u8>,
    /// Number of slots, a power of 2. A slot of an mlx5 send queue is a block (WQEBB).
    pub slots: u32,
    /// Bytes from one slot to the next.
    pub stride: u32,
    /// Bytes from the start of a slot to its content: 64 for CQEs of 128 bytes on mlx5, else 0.
    pub content_offset: u32,
    /// The next slot that this process fills or polls. On mlx5 it counts modulo 2^32 (CQs: 2^24);
    /// on rxe it counts modulo the number of slots.
    pub index: u32,
    /// The last slot of the list of an SRQ on mlx5, which the device does not use yet; `None` of
    /// other queues.
    pub tail: Option<u32>,
    /// QPN, CQN or SRQN. `None` if the provider's queue does not store it.
    pub number: Option<u32>,
    /// The shared indices and the doorbell.
    pub doorbell: DoorbellLayout,
    /// The objects behind a raw packet QP, in the layout of its send queue. `None` of other queues, and
    /// where the driver does not report them: mlx5 contexts without DEVX.
    pub raw_packet: Option<RawPacketNumbers>,
}

/// Numbers of the firmware's objects behind a raw packet QP. An object that it lacks has the number 0.
#[doc(alias = "mlx5dv_qp")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawPacketNumbers {
    /// Transport interface of receives (TIR).
    pub tirn: u32,
    /// Transport interface of sends (TIS).
    pub tisn: u32,
    /// Receive queue.
    pub rqn: u32,
    /// Send queue.
    pub sqn: u32,
    /// Address of the TIR in the device's memory, or 0.
    pub tir_icm_addr: u64,
}

impl QueueLayout {
    /// A layout.
    #[must_use]
    pub const fn new(
        ring: NonNull<u8>,
        slots: u32,
        stride: u32,
        index: u32,
        doorbell: DoorbellLayout,
    ) -> Self {
        Self {
            ring,
            slots,
            stride,
            content_offset: 0,
            index,
            tail: None,
            number: None,
            doorbell,
            raw_packet: None,
        }
    }

    /// The same layout with the number of the queue.
    #[must_use]
    pub const fn with_number(self, number: u32) -> Self {
        Self { number: Some(number), ..self }
    }

    /// The same layout with the objects behind a raw packet QP.
    #[must_use]
    pub const fn with_raw_packet(self, raw_packet: Option<RawPacketNumbers>) -> Self {
        Self { raw_packet, ..self }
    }

    /// The same layout with the end of the list.
    #[must_use]
    pub const fn with_tail(self, tail: u32) -> Self {
        Self { tail: Some(tail), ..self }
    }

    /// The same layout with the offset of the content in a slot.
    #[must_use]
    pub const fn with_content_offset(self, content_offset: u32) -> Self {
        Self { content_offset, ..self }
    }

    /// Number of slots less one, a mask for counted indices.
    #[must_use]
    pub const fn mask(&self) -> u32 {
        self.slots - 1
    }
}

/// Shared indices and doorbell of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DoorbellLayout {
    /// Both indices are in shared memory, as on rxe. The doorbell of a send queue is a command.
    Indices {
        /// The producer's index: a word in host byte order, as a slot number.
        producer: NonNull<u32>,
        /// The consumer's index.
        consumer: NonNull<u32>,
    },
    /// A doorbell record, as on mlx5.
    Record {
        /// Its two big-endian words. Of a QP, the first is the producer index of receives and the
        /// second that of sends. Of a CQ, the first is the consumer index and the second the arm
        /// state. Of an SRQ and a WQ, the first counts receives.
        record: NonNull<u32>,
        /// The doorbell register, for send queues and CQs.
        register: Option<RegisterLayout>,
    },
}

/// A doorbell register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisterLayout {
    /// The UAR page, mapped for writing only.
    pub page: NonNull<u8>,
    /// The device's index of the page.
    pub page_id: u32,
    /// Offset of the register in the page, in bytes.
    pub offset: u32,
    /// Bytes of one half of the BlueFlame register; 0 if WQEs are not copied into it.
    pub blueflame: u32,
    /// Offset of the page for `mmap` of the device file, in bytes.
    pub mmap_offset: u64,
}

impl RegisterLayout {
    /// A register without BlueFlame.
    #[must_use]
    pub const fn new(page: NonNull<u8>, page_id: u32, offset: u32) -> Self {
        Self { page, page_id, offset, blueflame: 0, mmap_offset: 0 }
    }

    /// The same register with the offset of its page for `mmap` of the device file.
    #[must_use]
    pub const fn with_mmap_offset(self, mmap_offset: u64) -> Self {
        Self { mmap_offset, ..self }
    }

    /// The same register with BlueFlame halves of that many bytes.
    #[must_use]
    pub const fn with_blueflame(self, blueflame: u32) -> Self {
        Self { blueflame, ..self }
    }
}
