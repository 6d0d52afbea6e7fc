//! Memory keys (mkeys) and their access checks.

mod walk;

#[cfg(test)]
mod tests;

use super::layout::{be32, be64};
use crate::memory::DmaFault;
use bareverbs_transport::Table;
#[cfg(test)]
use walk::walk;
pub(crate) use walk::{check, read, update, write};

/// Flag bits of an MTT entry.
const FLAGS: u64 = 0x7;

/// Maximum nesting depth of KLM and KSM keys.
const MAX_DEPTH: u8 = 4;

/// Reads return zeros, writes are discarded (`dump_fill_mkey`).
pub(crate) const DUMP_FILL_MKEY: u32 = 0x200;
/// The null mkey: an absent entry of a KLM or KSM table. An access through it takes a page fault.
pub(crate) const NULL_MKEY: u32 = 0x300;
/// L_Key that terminates a scatter list.
pub(crate) const TERMINATE_SCATTER_LIST_MKEY: u32 = 0x100;
/// The reserved L_Key: all physical memory, for the kernel's queues.
pub(crate) const RESERVED_LKEY: u32 = 0x10_0000;

/// Access rights, as bits.
pub(crate) mod access {
    pub(crate) const LOCAL_READ: u8 = 1;
    pub(crate) const LOCAL_WRITE: u8 = 2;
    pub(crate) const REMOTE_READ: u8 = 4;
    pub(crate) const REMOTE_WRITE: u8 = 8;
    pub(crate) const ATOMIC: u8 = 16;
    /// Rights that modify memory.
    pub(crate) const CHANGES: u8 = LOCAL_WRITE | REMOTE_WRITE | ATOMIC;
}

/// Presence bits of an MTT entry: the page can be read, or written. Without the bit the access
/// takes a page fault.
pub(crate) mod present {
    pub(crate) const TO_READ: u64 = 1;
    pub(crate) const TO_WRITE: u64 = 2;
    pub(crate) const WHOLLY: u64 = TO_READ | TO_WRITE;
}

/// How a key translates addresses to guest addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessMode {
    /// Addresses are guest addresses.
    Pa,
    /// MTT: a table of pages.
    Mtt,
    /// KLM: a list of ranges of other keys, each with its length.
    Klm,
    /// KSM: a table of ranges of other keys, all of the same size.
    Ksm,
    /// MEMIC: offsets into device memory.
    Memic,
}

/// Translation type of a key whose contents a UMR sets later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// MTT: a table of pages.
    Mtt,
    /// KLM: a list of ranges of other keys.
    Klm,
    /// KSM: a table of ranges of other keys, all of the same size.
    Ksm,
}

impl AccessMode {
    pub(crate) fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Pa,
            1 => Self::Mtt,
            2 => Self::Klm,
            3 => Self::Ksm,
            5 => Self::Memic,
            _ => return None,
        })
    }
}

/// A memory key.
#[derive(Clone, Debug)]
pub(crate) struct Mkey {
    /// The low eight bits of the key.
    pub(crate) variant: u8,
    pub(crate) free: bool,
    pub(crate) mode: AccessMode,
    pub(crate) access: u8,
    pub(crate) pd: u32,
    /// The QPN that the key is bound to; all ones for any QP.
    pub(crate) qp: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// Whether the key covers all addresses (`length64`).
    pub(crate) unbounded: bool,
    pub(crate) log_page: u8,
    pub(crate) remote_invalidate: bool,
    /// Whether writes may pass each other on the bus. The engine writes in order; it only keeps the
    /// bit, as it does the next.
    pub(crate) relaxed_ordering_write: bool,
    /// Whether reads may pass writes on the bus.
    pub(crate) relaxed_ordering_read: bool,
    pub(crate) umr: bool,
    /// Capacity of the translation in 16-byte entries (octowords).
    pub(crate) capacity: u32,
    /// The 8-byte words of the translation. The vector grows as they are written.
    pub(crate) translation: Vec<u64>,
}

/// An mkey context, as commands and UMR WQEs contain it (`struct mlx5_mkey_seg`,
/// `mlx5_ifc_mkc_bits`).
#[derive(Clone, Copy)]
pub(crate) struct Context<'a>(pub(crate) &'a [u8; 64]);

impl Context<'_> {
    fn word(self, at: usize) -> u32 {
        be32(self.0, at)
    }

    pub(crate) fn free(self) -> bool {
        self.0[0] & 0x40 != 0
    }

    pub(crate) fn mode(self) -> Option<AccessMode> {
        AccessMode::from_bits((self.0[0] >> 2 & 0x7) << 2 | self.0[2] & 0x3)
    }

    pub(crate) fn umr(self) -> bool {
        self.0[2] & 0x80 != 0
    }

    /// The access rights, in the bit order of [`access`].
    pub(crate) fn access(self) -> u8 {
        self.0[2] >> 2 & 0x1f
    }

    pub(crate) fn qp(self) -> u32 {
        self.word(4) >> 8
    }

    pub(crate) fn variant(self) -> u8 {
        self.0[7]
    }

    pub(crate) fn unbounded(self) -> bool {
        self.0[12] & 0x80 != 0
    }

    pub(crate) fn remote_invalidate(self) -> bool {
        self.0[12] & 0x01 != 0
    }

    pub(crate) fn relaxed_ordering_write(self) -> bool {
        self.0[1] & 0x04 != 0
    }

    pub(crate) fn relaxed_ordering_read(self) -> bool {
        self.0[59] & 0x40 != 0
    }

    pub(crate) fn pd(self) -> u32 {
        self.word(12) & 0xff_ffff
    }

    pub(crate) fn start(self) -> u64 {
        be64(self.0, 16)
    }

    pub(crate) fn length(self) -> u64 {
        be64(self.0, 24)
    }

    pub(crate) fn translation_size(self) -> u32 {
        self.word(52)
    }

    pub(crate) fn log_page(self) -> u8 {
        self.0[59] & 0x3f
    }
}

impl Mkey {
    /// Creates a key from its context. Returns `None` for a key type that is not modelled.
    pub(crate) fn from_context(context: Context<'_>) -> Option<Self> {
        Some(Self {
            variant: context.variant(),
            free: context.free(),
            mode: context.mode()?,
            access: context.access(),
            pd: context.pd(),
            qp: context.qp(),
            start: context.start(),
            length: context.length(),
            unbounded: context.unbounded(),
            log_page: context.log_page(),
            remote_invalidate: context.remote_invalidate(),
            relaxed_ordering_write: context.relaxed_ordering_write(),
            relaxed_ordering_read: context.relaxed_ordering_read(),
            umr: context.umr(),
            capacity: context.translation_size(),
            translation: Vec::new(),
        })
    }
}

/// QPN of a key that any QP may use.
pub(crate) const ANY_QP: u32 = 0xff_ffff;

/// Why an access fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessError {
    /// The key doesn't exist, is free, or has another variant.
    Key,
    /// The key belongs to another PD or QP.
    Domain,
    /// The key lacks the access right.
    Rights,
    /// The range exceeds the key or its translation.
    Bounds,
    /// The guest memory is not mapped.
    Dma,
    /// The page is not present. The driver may fault it in.
    Absent,
}

impl From<DmaFault> for AccessError {
    fn from(_: DmaFault) -> Self {
        Self::Dma
    }
}

/// The context of an access: PD, QP and privileges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessor {
    pub(crate) pd: u32,
    pub(crate) qp: u32,
    pub(crate) reserved_lkey: bool,
    /// Whether the PD is not checked, as for the kernel's UMR QP.
    pub(crate) any_pd: bool,
}

impl Accessor {
    fn may_use(self, mkey: &Mkey) -> bool {
        (self.any_pd || mkey.pd == self.pd) && (mkey.qp == ANY_QP || mkey.qp == self.qp)
    }
}

/// Memory behind a part of a key's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Guest(u64),
    /// Offset in device memory (MEMIC).
    DeviceMemory(u64),
    /// The dump-fill key: reads return zeros, writes are discarded.
    DumpFill,
}

/// A contiguous part of a key's range, with its length in bytes.
pub(crate) type Piece = (Place, usize);

impl Mkey {
    /// An MTT entry. An entry that was never written has no page.
    fn entry(&self, index: usize) -> Result<u64, AccessError> {
        match self.translation.get(index) {
            Some(entry) => Ok(*entry),
            None if index < self.capacity as usize * 2 => Ok(0),
            None => Err(AccessError::Bounds),
        }
    }

    pub(crate) fn covers(&self, address: u64, length: u64) -> bool {
        if self.unbounded {
            return address.checked_add(length).is_some();
        }
        let start = if self.mode == AccessMode::Memic { 0 } else { self.start };
        let Some(offset) = address.checked_sub(start) else { return false };
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }

    /// Writes translation words from a byte offset on. Returns `false` if they exceed the key's
    /// capacity.
    pub(crate) fn translate_from(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let end = offset.saturating_add(bytes.len() as u64);
        // The device keeps translations in lines of 64 bytes, and drivers write whole lines.
        if end > (u64::from(self.capacity) * 16).next_multiple_of(64) || !offset.is_multiple_of(8) {
            return false;
        }
        let first = (offset / 8) as usize;
        let words = bytes.chunks_exact(8).map(|word| u64::from_be_bytes(word.try_into().unwrap_or_default()));
        let needed = first + bytes.len() / 8;
        if self.translation.len() < needed {
            self.translation.resize(needed, 0);
        }
        for (slot, word) in self.translation[first..].iter_mut().zip(words) {
            *slot = word;
        }
        true
    }
}

/// Invalidates a key on request of the peer (SEND with invalidate). Returns `false` if the peer may
/// not.
pub(crate) fn invalidate(keys: &mut Mkeys, who: Accessor, key: u32) -> bool {
    match keys.get_mut(key >> 8) {
        Some(mkey)
            if u32::from(mkey.variant) == key & 0xff
                && !mkey.free
                && mkey.remote_invalidate
                && mkey.pd == who.pd
                && (mkey.qp == ANY_QP || mkey.qp == who.qp) =>
        {
            mkey.free = true;
            true
        }
        _ => false,
    }
}

/// All mkeys of a device.
pub(crate) type Mkeys = Table<Mkey>;
