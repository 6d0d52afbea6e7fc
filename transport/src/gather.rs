//! Gathering of the data of send WQEs.

use crate::device::{Access, AccessError, Device, KeyRange};
use crate::work::{Segment, Sge, Work};

/// Copies a part of a message from its segments into `to`, from `offset` on.
pub fn gather<D: Device>(
    device: &D,
    queues: &D::Queues,
    work: &Work<D::Local>,
    offset: u64,
    to: &mut [u8],
) -> Result<(), AccessError> {
    let who = device.accessor(queues, None);
    let (mut skip, mut at) = (offset, 0);
    for segment in &work.segments {
        if at == to.len() {
            return Ok(());
        }
        let length = u64::from(segment.length());
        if skip >= length {
            skip -= length;
            continue;
        }
        let now = ((length - skip) as usize).min(to.len() - at);
        let part = &mut to[at..at + now];
        match *segment {
            Segment::Inline { at: from, .. } => {
                let from = from + skip as usize;
                part.copy_from_slice(work.bytes.get(from..from + now).ok_or(AccessError::Denied)?);
            }
            Segment::Memory(Sge { key, address, .. }) => {
                let address = address.checked_add(skip).ok_or(AccessError::Denied)?;
                device.read(&KeyRange { who, key, address, access: Access::LocalRead }, part)?;
            }
        }
        at += now;
        skip = 0;
    }
    if at == to.len() { Ok(()) } else { Err(AccessError::Denied) }
}

/// The address of a part of a message, if the device sends packets without a copy and the part is of one
/// SGE.
pub(crate) fn zero_copy<D: Device>(
    device: &D,
    queues: &D::Queues,
    work: &Work<D::Local>,
    offset: u64,
    size: u32,
) -> Option<u64> {
    let mut skip = offset;
    for segment in &work.segments {
        let length = u64::from(segment.length());
        if skip >= length {
            skip -= length;
            continue;
        }
        let Segment::Memory(Sge { key, address, .. }) = *segment else { return None };
        if length - skip < u64::from(size) {
            return None;
        }
        let who = device.accessor(queues, None);
        let range = KeyRange { who, key, address: address.checked_add(skip)?, access: Access::LocalRead };
        return device.zero_copy(&range, size);
    }
    None
}
