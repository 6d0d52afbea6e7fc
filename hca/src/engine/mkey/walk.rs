//! Translation of key ranges to memory.

use super::{
    AccessError, AccessMode, Accessor, DUMP_FILL_MKEY, FLAGS, MAX_DEPTH, Mkey, Mkeys, NULL_MKEY, Piece,
    Place, RESERVED_LKEY, access, present,
};
use crate::memory::DmaMap;

/// Calls `visit` for each piece of memory behind a range of a key, in order.
pub(crate) fn walk(
    keys: &Mkeys,
    who: Accessor,
    key: u32,
    address: u64,
    length: u64,
    rights: u8,
    visit: &mut dyn FnMut(Piece) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    if who.reserved_lkey && key == RESERVED_LKEY {
        return visit((Place::Guest(address), length as usize));
    }
    if key == DUMP_FILL_MKEY {
        return visit((Place::DumpFill, length as usize));
    }
    let mkey = find(keys, key)?;
    if !who.may_use(mkey) {
        return Err(AccessError::Domain);
    }
    if rights & !mkey.access != 0 {
        return Err(AccessError::Rights);
    }
    let needs = if rights & access::CHANGES != 0 { present::TO_WRITE } else { present::TO_READ };
    Walk { keys, needs, visit }.descend(mkey, address, length, 0)
}

/// Checks key, PD, rights and bounds without accessing memory.
pub(crate) fn check(
    keys: &Mkeys,
    who: Accessor,
    key: u32,
    address: u64,
    length: u64,
    rights: u8,
) -> Result<(), AccessError> {
    if who.reserved_lkey && key == RESERVED_LKEY || key == DUMP_FILL_MKEY {
        return Ok(());
    }
    let mkey = find(keys, key)?;
    if !who.may_use(mkey) {
        return Err(AccessError::Domain);
    }
    if rights & !mkey.access != 0 {
        return Err(AccessError::Rights);
    }
    if mkey.covers(address, length) { Ok(()) } else { Err(AccessError::Bounds) }
}

pub(crate) fn find(keys: &Mkeys, key: u32) -> Result<&Mkey, AccessError> {
    keys.get(key >> 8)
        .filter(|mkey| u32::from(mkey.variant) == key & 0xff && !mkey.free)
        .ok_or(AccessError::Key)
}

/// In place of the first key of a list, the operation of an interleaved layout (`struct
/// mlx5_wqe_umr_repeat_block_seg` of libmlx5).
const REPEAT_BLOCK: u32 = 0x400;

/// A recursive translation through KLM and KSM keys.
struct Walk<'a> {
    keys: &'a Mkeys,
    /// The [`present`] bits that a page must have.
    needs: u64,
    visit: &'a mut dyn FnMut(Piece) -> Result<(), AccessError>,
}

impl Walk<'_> {
    fn descend(&mut self, mkey: &Mkey, address: u64, length: u64, depth: u8) -> Result<(), AccessError> {
        if !mkey.covers(address, length) {
            return Err(AccessError::Bounds);
        }
        match mkey.mode {
            AccessMode::Pa => (self.visit)((Place::Guest(address), length as usize)),
            AccessMode::Memic => {
                (self.visit)((Place::DeviceMemory(mkey.start.wrapping_add(address)), length as usize))
            }
            AccessMode::Mtt => in_blocks(mkey, address, length, |index, inside, now| {
                let entry = mkey.entry(index)?;
                if entry & self.needs == 0 {
                    return Err(AccessError::Absent);
                }
                (self.visit)((Place::Guest((entry & !FLAGS).wrapping_add(inside)), now as usize))
            }),
            AccessMode::Klm | AccessMode::Ksm if depth >= MAX_DEPTH => Err(AccessError::Bounds),
            AccessMode::Klm => {
                let offset = address - mkey.start;
                match mkey.translation.first_chunk() {
                    Some([first, second]) if *first as u32 == REPEAT_BLOCK => {
                        let (row, rows, count) = (first >> 32, second >> 32, *second as u16);
                        let entries = &mkey.translation[2..];
                        self.rows(entries, usize::from(count), (row, rows), (offset, length), depth)
                    }
                    _ => {
                        let entry = |entry: &[u64]| (entry[0] >> 32, entry[0] as u32, entry[1]);
                        let entries = mkey.translation.chunks_exact(2).map(entry);
                        let left = self.list(entries, offset, length, depth)?;
                        if left == 0 { Ok(()) } else { Err(AccessError::Bounds) }
                    }
                }
            }
            AccessMode::Ksm => in_blocks(mkey, address, length, |index, inside, now| {
                let entry = mkey.translation.get(2 * index..2 * index + 2).ok_or(AccessError::Bounds)?;
                self.inner(entry[0] as u32, entry[1].wrapping_add(inside), now, depth)
            }),
        }
    }

    /// Follows a list of sizes, keys and addresses from an offset on. Returns the length behind its end.
    fn list(
        &mut self,
        entries: impl Iterator<Item = (u64, u32, u64)>,
        mut skip: u64,
        mut left: u64,
        depth: u8,
    ) -> Result<u64, AccessError> {
        for (size, key, address) in entries {
            if left == 0 {
                break;
            }
            let now = left.min(size.saturating_sub(skip));
            if now > 0 {
                self.inner(key, address.wrapping_add(skip), now, depth)?;
            }
            left -= now;
            skip = skip.saturating_sub(size);
        }
        Ok(left)
    }

    /// Follows an interleaved layout: `rows` rows of `row` bytes, each with the bytes of all entries. From
    /// row to row, the address of an entry grows by its stride.
    fn rows(
        &mut self,
        entries: &[u64],
        count: usize,
        (row, rows): (u64, u64),
        (offset, length): (u64, u64),
        depth: u8,
    ) -> Result<(), AccessError> {
        let mut index = offset.checked_div(row).ok_or(AccessError::Bounds)?;
        let (mut skip, mut left) = (offset % row, length);
        while left > 0 {
            if index >= rows {
                return Err(AccessError::Bounds);
            }
            let entry = |entry: &[u64]| {
                let (stride, size) = (entry[0] >> 48, entry[0] >> 32 & 0xffff);
                (size, entry[0] as u32, entry[1].wrapping_add(index * stride))
            };
            let behind = self.list(entries.chunks_exact(2).take(count).map(entry), skip, left, depth)?;
            if behind == left {
                return Err(AccessError::Bounds);
            }
            (index, skip, left) = (index + 1, 0, behind);
        }
        Ok(())
    }

    fn inner(&mut self, key: u32, address: u64, length: u64, depth: u8) -> Result<(), AccessError> {
        match key {
            DUMP_FILL_MKEY => (self.visit)((Place::DumpFill, length as usize)),
            NULL_MKEY => Err(AccessError::Absent),
            key => self.descend(find(self.keys, key)?, address, length, depth + 1),
        }
    }
}

/// Splits a range at the key's page size. The first page contains the key's `start`.
fn in_blocks(
    mkey: &Mkey,
    address: u64,
    length: u64,
    mut block: impl FnMut(usize, u64, u64) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    let shift = u32::from(mkey.log_page);
    let size = 1u64.checked_shl(shift).ok_or(AccessError::Bounds)?;
    let base = mkey.start & !(size - 1);
    let (mut offset, mut left) = (address.checked_sub(base).ok_or(AccessError::Bounds)?, length);
    while left > 0 {
        let inside = offset & (size - 1);
        let now = left.min(size - inside);
        block((offset >> shift) as usize, inside, now)?;
        offset += now;
        left -= now;
    }
    Ok(())
}

/// Reads from a key's range.
pub(crate) fn read(
    keys: &Mkeys,
    memory: &DmaMap,
    who: Accessor,
    (key, address): (u32, u64),
    rights: u8,
    to: &mut [u8],
) -> Result<(), AccessError> {
    // A read of zero bytes needs no valid key.
    if to.is_empty() {
        return Ok(());
    }
    let mut at = 0;
    let length = to.len() as u64;
    walk(keys, who, key, address, length, rights, &mut |(place, size)| {
        let part = to.get_mut(at..at + size).ok_or(AccessError::Bounds)?;
        match place {
            Place::Guest(guest) => memory.read(guest, part)?,
            Place::DeviceMemory(offset) => memory.device_memory().read(offset, part)?,
            Place::DumpFill => part.fill(0),
        }
        at += size;
        Ok(())
    })
}

/// Writes to a key's range.
pub(crate) fn write(
    keys: &Mkeys,
    memory: &DmaMap,
    who: Accessor,
    (key, address): (u32, u64),
    rights: u8,
    from: &[u8],
) -> Result<(), AccessError> {
    let mut at = 0;
    walk(keys, who, key, address, from.len() as u64, rights, &mut |(place, size)| {
        let part = from.get(at..at + size).ok_or(AccessError::Bounds)?;
        match place {
            Place::Guest(guest) => memory.write(guest, part)?,
            Place::DeviceMemory(offset) => memory.device_memory().write(offset, part)?,
            Place::DumpFill => {}
        }
        at += size;
        Ok(())
    })
}

/// Atomically updates the little-endian operand of eight bytes at an aligned address of a key's
/// range, and returns its old value.
pub(crate) fn update(
    keys: &Mkeys,
    memory: &DmaMap,
    who: Accessor,
    (key, address): (u32, u64),
    rights: u8,
    change: impl Fn(u64) -> u64,
) -> Result<u64, AccessError> {
    const SIZE: usize = size_of::<u64>();
    let mut place = None;
    walk(keys, who, key, address, SIZE as u64, rights, &mut |piece| {
        place = Some(piece);
        Ok(())
    })?;
    let change = |old: u64| change(u64::from_le(old)).to_le();
    let original = match place {
        Some((Place::Guest(address), SIZE)) => memory.update_u64(address, change)?,
        Some((Place::DeviceMemory(offset), SIZE)) => memory.device_memory().update_u64(offset, change)?,
        _ => return Err(AccessError::Bounds),
    };
    Ok(u64::from_le(original))
}
