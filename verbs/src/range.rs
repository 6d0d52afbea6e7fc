//! Ranges of regions, and their scatter/gather elements.

use std::ops::{Bound, RangeBounds};

use bareverbs_provider::work::Sge;

use crate::error::{Error, Result};

/// Start and length of a range that is within `len` bytes.
#[inline]
pub(crate) fn check_range(
    what: &'static str,
    range: impl RangeBounds<usize>,
    len: usize,
) -> Result<(usize, usize)> {
    let (start, end) = bounds(range, len);
    within(start, end, len).ok_or_else(|| beyond_the_end(what, start, end, len))
}

/// As [`check_range`]. `None` if the range is not within `len` bytes.
#[inline(always)]
pub(crate) fn range_within(range: impl RangeBounds<usize>, len: usize) -> Option<(usize, usize)> {
    let (start, end) = bounds(range, len);
    within(start, end, len)
}

/// Start and end of a range of `len` bytes. `None` for a bound beyond the address space.
#[inline(always)]
fn bounds(range: impl RangeBounds<usize>, len: usize) -> (Option<usize>, Option<usize>) {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(len),
    };
    (start, end)
}

#[inline(always)]
fn within(start: Option<usize>, end: Option<usize>, len: usize) -> Option<(usize, usize)> {
    let (start, end) = (start?, end?);
    (start <= end && end <= len).then(|| (start, end - start))
}

#[cold]
#[inline(never)]
fn beyond_the_end(what: &'static str, start: Option<usize>, end: Option<usize>, len: usize) -> Error {
    let bound = |bound: Option<usize>| bound.map_or_else(String::new, |bound| bound.to_string());
    let (start, end) = (bound(start), bound(end));
    Error::out_of_bounds(what, format!("bytes {start}..{end} exceed the length of {len} bytes"))
}

/// A scatter/gather element for a checked range of a region that starts at `addr`.
#[inline]
pub(crate) fn element(what: &'static str, addr: u64, (start, len): (usize, usize), lkey: u32) -> Result<Sge> {
    match u32::try_from(len) {
        Ok(length) => Ok(Sge { addr: addr.wrapping_add(start as u64), length, lkey }),
        Err(_) => Err(too_long(what, len)),
    }
}

#[cold]
#[inline(never)]
fn too_long(what: &'static str, len: usize) -> Error {
    Error::out_of_bounds(what, format!("an SGE of {len} bytes exceeds the maximum of {}", u32::MAX))
}
