//! Memory keys and what they let through.

use super::table::Table;
use crate::memory::{DmaFault, DmaMap};

/// How deep keys may refer to other keys.
const MAX_DEPTH: u8 = 4;

/// The key that reads as zeros and swallows writes.
pub(crate) const NULL_KEY: u32 = 0x200;
/// Ends a scatter list.
pub(crate) const TERMINATE_KEY: u32 = 0x100;
/// All physical memory, for the kernel's queues.
pub(crate) const RESERVED_KEY: u32 = 0x10_0000;

/// Access rights, as bits.
pub(crate) mod access {
    pub(crate) const LOCAL_READ: u8 = 1;
    pub(crate) const LOCAL_WRITE: u8 = 2;
    pub(crate) const REMOTE_READ: u8 = 4;
    pub(crate) const REMOTE_WRITE: u8 = 8;
    pub(crate) const ATOMIC: u8 = 16;
}

/// How a key's addresses become guest addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Addresses are guest addresses.
    Physical,
    /// A table of pages.
    Pages,
    /// A list of other keys' ranges, each with its length.
    Ranges,
    /// A table of other keys' ranges, all of the same size.
    EqualRanges,
    /// Addresses count from a place in the card's own memory.
    OnCard,
}

impl Mode {
    pub(crate) fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Physical,
            1 => Self::Pages,
            2 => Self::Ranges,
            3 => Self::EqualRanges,
            5 => Self::OnCard,
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
    pub(crate) mode: Mode,
    pub(crate) access: u8,
    pub(crate) pd: u32,
    /// The QP it is bound to; all ones for any.
    pub(crate) qp: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// Whether the length is not looked at: all addresses.
    pub(crate) unbounded: bool,
    pub(crate) log_page: u8,
    pub(crate) remote_invalidate: bool,
    pub(crate) umr: bool,
    /// How many 16-byte entries the translation may have.
    pub(crate) capacity: u32,
    /// The translation's 8-byte words; grows as it is written.
    pub(crate) translation: Vec<u64>,
}

/// A key's context as commands and UMR work requests carry it (`struct mlx5_mkey_seg`, `mlx5_ifc_mkc_bits`).
#[derive(Clone, Copy)]
pub(crate) struct Context<'a>(pub(crate) &'a [u8; 64]);

impl Context<'_> {
    fn word(self, at: usize) -> u32 {
        super::wqe::be32(self.0, at)
    }

    pub(crate) fn free(self) -> bool {
        self.0[0] & 0x40 != 0
    }

    pub(crate) fn mode(self) -> Option<Mode> {
        Mode::from_bits((self.0[0] >> 2 & 0x7) << 2 | self.0[2] & 0x3)
    }

    pub(crate) fn umr(self) -> bool {
        self.0[2] & 0x80 != 0
    }

    /// The rights in the order of [`access`].
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

    pub(crate) fn pd(self) -> u32 {
        self.word(12) & 0xff_ffff
    }

    pub(crate) fn start(self) -> u64 {
        super::wqe::be64(self.0, 16)
    }

    pub(crate) fn length(self) -> u64 {
        super::wqe::be64(self.0, 24)
    }

    pub(crate) fn translation_size(self) -> u32 {
        self.word(52)
    }

    pub(crate) fn log_page(self) -> u8 {
        self.0[59] & 0x3f
    }
}

impl Mkey {
    /// A key from its context; `None` for a kind of key that isn't modelled.
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
            umr: context.umr(),
            capacity: context.translation_size(),
            translation: Vec::new(),
        })
    }
}

/// Any QP may use the key.
pub(crate) const ANY_QP: u32 = 0xff_ffff;

/// A refused access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No such key, or it is free, or its variant differs.
    Key,
    /// Another protection domain or QP.
    Domain,
    /// The right is missing.
    Rights,
    /// Outside of the key's range, or of its translation.
    Bounds,
    /// The guest memory isn't there.
    Dma,
}

impl From<DmaFault> for Refusal {
    fn from(_: DmaFault) -> Self {
        Self::Dma
    }
}

/// Who asks: its protection domain, its QP, and its privileges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessor {
    pub(crate) pd: u32,
    pub(crate) qp: u32,
    pub(crate) reserved_key: bool,
    /// The kernel's own queue for keys isn't bound to a protection domain.
    pub(crate) any_pd: bool,
}

impl Accessor {
    fn may_use(self, mkey: &Mkey) -> bool {
        (self.any_pd || mkey.pd == self.pd) && (mkey.qp == ANY_QP || mkey.qp == self.qp)
    }
}

/// Where a piece of a key's range lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Guest(u64),
    /// In the card's own memory.
    Card(u64),
    /// Behind the null key: it reads as zeros and swallows writes.
    Nowhere,
}

/// A piece of a key's range.
pub(crate) type Piece = (Place, usize);

impl Mkey {
    pub(crate) fn covers(&self, address: u64, length: u64) -> bool {
        if self.unbounded {
            return address.checked_add(length).is_some();
        }
        let start = if self.mode == Mode::OnCard { 0 } else { self.start };
        let Some(offset) = address.checked_sub(start) else { return false };
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }

    /// Stores translation words from a byte offset on; `false` if they don't fit the key.
    pub(crate) fn translate_from(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let end = offset.saturating_add(bytes.len() as u64);
        // The card keeps translations in lines of 64 bytes, and drivers write whole ones.
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

/// All keys of a device, and how they are walked.
pub(crate) type Mkeys = Table<Mkey>;

/// Visits the guest memory behind a range of a key, in order.
pub(crate) fn walk(
    keys: &Mkeys,
    who: Accessor,
    key: u32,
    address: u64,
    length: u64,
    rights: u8,
    visit: &mut dyn FnMut(Piece) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    if who.reserved_key && key == RESERVED_KEY {
        return visit((Place::Guest(address), length as usize));
    }
    if key == NULL_KEY {
        return visit((Place::Nowhere, length as usize));
    }
    let mkey = find(keys, key)?;
    if !who.may_use(mkey) {
        return Err(Refusal::Domain);
    }
    if rights & !mkey.access != 0 {
        return Err(Refusal::Rights);
    }
    descend(keys, mkey, address, length, 0, visit)
}

/// Checks key, domain, rights and bounds without touching memory.
pub(crate) fn check(
    keys: &Mkeys,
    who: Accessor,
    key: u32,
    address: u64,
    length: u64,
    rights: u8,
) -> Result<(), Refusal> {
    if who.reserved_key && key == RESERVED_KEY || key == NULL_KEY {
        return Ok(());
    }
    let mkey = find(keys, key)?;
    if !who.may_use(mkey) {
        return Err(Refusal::Domain);
    }
    if rights & !mkey.access != 0 {
        return Err(Refusal::Rights);
    }
    if mkey.covers(address, length) { Ok(()) } else { Err(Refusal::Bounds) }
}

pub(crate) fn find(keys: &Mkeys, key: u32) -> Result<&Mkey, Refusal> {
    keys.get(key >> 8).filter(|mkey| u32::from(mkey.variant) == key & 0xff && !mkey.free).ok_or(Refusal::Key)
}

fn descend(
    keys: &Mkeys,
    mkey: &Mkey,
    address: u64,
    length: u64,
    depth: u8,
    visit: &mut dyn FnMut(Piece) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    if !mkey.covers(address, length) {
        return Err(Refusal::Bounds);
    }
    match mkey.mode {
        Mode::Physical => visit((Place::Guest(address), length as usize)),
        Mode::OnCard => visit((Place::Card(mkey.start.wrapping_add(address)), length as usize)),
        Mode::Pages => walk_pages(mkey, address, length, visit),
        Mode::Ranges | Mode::EqualRanges if depth >= MAX_DEPTH => Err(Refusal::Bounds),
        Mode::Ranges => {
            let (mut skip, mut left) = (address - mkey.start, length);
            let mut entries = mkey.translation.chunks_exact(2);
            while left > 0 {
                let entry = entries.next().ok_or(Refusal::Bounds)?;
                let (size, key) = (entry[0] >> 32, entry[0] as u32);
                if skip >= size {
                    skip -= size;
                    continue;
                }
                let now = left.min(size - skip);
                inner(keys, key, entry[1].wrapping_add(skip), now, depth, visit)?;
                left -= now;
                skip = 0;
            }
            Ok(())
        }
        Mode::EqualRanges => in_blocks(mkey, address, length, |index, inside, now| {
            let entry = mkey.translation.get(2 * index..2 * index + 2).ok_or(Refusal::Bounds)?;
            inner(keys, entry[0] as u32, entry[1].wrapping_add(inside), now, depth, visit)
        }),
    }
}

fn inner(
    keys: &Mkeys,
    key: u32,
    address: u64,
    length: u64,
    depth: u8,
    visit: &mut dyn FnMut(Piece) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    if key == NULL_KEY {
        return visit((Place::Nowhere, length as usize));
    }
    descend(keys, find(keys, key)?, address, length, depth + 1, visit)
}

fn walk_pages(
    mkey: &Mkey,
    address: u64,
    length: u64,
    visit: &mut dyn FnMut(Piece) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    in_blocks(mkey, address, length, |index, inside, now| {
        // The low bits of an entry are flags.
        let page = mkey.translation.get(index).ok_or(Refusal::Bounds)? & !0x7;
        visit((Place::Guest(page.wrapping_add(inside)), now as usize))
    })
}

/// Cuts a range at the key's page size; the first page is the one that `start` lies in.
fn in_blocks(
    mkey: &Mkey,
    address: u64,
    length: u64,
    mut block: impl FnMut(usize, u64, u64) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let shift = u32::from(mkey.log_page);
    let size = 1u64.checked_shl(shift).ok_or(Refusal::Bounds)?;
    let base = mkey.start & !(size - 1);
    let (mut offset, mut left) = (address.checked_sub(base).ok_or(Refusal::Bounds)?, length);
    while left > 0 {
        let inside = offset & (size - 1);
        let now = left.min(size - inside);
        block((offset >> shift) as usize, inside, now)?;
        offset += now;
        left -= now;
    }
    Ok(())
}

/// Reads through a key.
pub(crate) fn read(
    keys: &Mkeys,
    memory: &DmaMap,
    who: Accessor,
    (key, address): (u32, u64),
    rights: u8,
    to: &mut [u8],
) -> Result<(), Refusal> {
    // Nobody is asked for a key to nothing.
    if to.is_empty() {
        return Ok(());
    }
    let mut at = 0;
    let length = to.len() as u64;
    walk(keys, who, key, address, length, rights, &mut |(place, size)| {
        let part = to.get_mut(at..at + size).ok_or(Refusal::Bounds)?;
        match place {
            Place::Guest(guest) => memory.read(guest, part)?,
            Place::Card(offset) => memory.card().read(offset, part)?,
            Place::Nowhere => part.fill(0),
        }
        at += size;
        Ok(())
    })
}

/// Writes through a key.
pub(crate) fn write(
    keys: &Mkeys,
    memory: &DmaMap,
    who: Accessor,
    (key, address): (u32, u64),
    rights: u8,
    from: &[u8],
) -> Result<(), Refusal> {
    let mut at = 0;
    walk(keys, who, key, address, from.len() as u64, rights, &mut |(place, size)| {
        let part = from.get(at..at + size).ok_or(Refusal::Bounds)?;
        match place {
            Place::Guest(guest) => memory.write(guest, part)?,
            Place::Card(offset) => memory.card().write(offset, part)?,
            Place::Nowhere => {}
        }
        at += size;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Accessor = Accessor { pd: 1, qp: 9, reserved_key: false, any_pd: false };

    fn key(mode: Mode, start: u64, length: u64, translation: Vec<u64>) -> Mkey {
        Mkey {
            variant: 7,
            free: false,
            mode,
            access: access::LOCAL_READ,
            pd: 1,
            qp: ANY_QP,
            start,
            length,
            unbounded: false,
            log_page: 12,
            remote_invalidate: false,
            umr: true,
            capacity: 64,
            translation,
        }
    }

    fn pieces(keys: &Mkeys, key: u32, address: u64, length: u64) -> Result<Vec<Piece>, Refusal> {
        let mut pieces = Vec::new();
        walk(keys, WHO, key, address, length, access::LOCAL_READ, &mut |piece| {
            pieces.push(piece);
            Ok(())
        })?;
        Ok(pieces)
    }

    fn with(mkeys: Vec<Mkey>) -> Mkeys {
        let mut keys = Table::new(1, 16);
        for mkey in mkeys {
            keys.insert_with(|_| mkey);
        }
        keys
    }

    #[test]
    fn pages_count_from_the_page_of_the_start() {
        let keys = with(vec![key(Mode::Pages, 0x1234_5800, 0x1000, vec![0xa000, 0xb003])]);
        assert_eq!(
            pieces(&keys, 0x107, 0x1234_5800, 0x1000),
            Ok(vec![(Place::Guest(0xa800), 0x800), (Place::Guest(0xb000), 0x800)])
        );
    }

    #[test]
    fn ranges_of_other_keys_are_followed() {
        let inner = key(Mode::Physical, 0, u64::MAX, vec![]);
        let list =
            key(Mode::Ranges, 0x100, 0x30, vec![0x10 << 32 | 0x107, 0x5000, 0x20 << 32 | 0x107, 0x9000]);
        let keys = with(vec![inner, list]);
        assert_eq!(
            pieces(&keys, 0x207, 0x108, 0x10),
            Ok(vec![(Place::Guest(0x5008), 8), (Place::Guest(0x9000), 8)])
        );
        assert_eq!(pieces(&keys, 0x207, 0x108, 0x29), Err(Refusal::Bounds));
    }

    #[test]
    fn a_key_that_leads_to_itself_ends_in_a_refusal() {
        let keys = with(vec![key(Mode::Ranges, 0, 0x1000, vec![0x1000 << 32 | 0x107, 0])]);
        assert_eq!(pieces(&keys, 0x107, 0, 8), Err(Refusal::Bounds));
    }

    #[test]
    fn refusals_name_their_reason() {
        let keys = with(vec![key(Mode::Physical, 0x1000, 0x1000, vec![])]);
        assert_eq!(pieces(&keys, 0x108, 0x1000, 1), Err(Refusal::Key));
        assert_eq!(pieces(&keys, 0x207, 0x1000, 1), Err(Refusal::Key));
        assert_eq!(pieces(&keys, 0x107, 0xfff, 1), Err(Refusal::Bounds));
        assert_eq!(pieces(&keys, 0x107, 0x1fff, 2), Err(Refusal::Bounds));
        assert_eq!(pieces(&keys, 0x107, u64::MAX, 2), Err(Refusal::Bounds));
        assert_eq!(check(&keys, WHO, 0x107, 0x1000, 1, access::ATOMIC), Err(Refusal::Rights));
        assert_eq!(check(&keys, Accessor { pd: 2, ..WHO }, 0x107, 0x1000, 1, 0), Err(Refusal::Domain));
    }

    #[test]
    fn a_translation_beyond_the_keys_size_is_refused() {
        let mut mkey = key(Mode::Pages, 0, 0x1000, vec![]);
        assert!(!mkey.translate_from(64 * 16 - 8, &[0; 16]));
        assert!(mkey.translate_from(64 * 16 - 16, &[0; 16]));
        assert!(!mkey.translate_from(u64::MAX - 7, &[0; 16]));
    }
}
