//! Buffers on loan: their lender gets them back, and not the pool.

use std::sync::{Arc, OnceLock, Weak};

use super::slots::Slots;
use super::{Inner, Pool, PoolBuffer};

/// The owner of buffers that it lends.
pub(crate) trait Lender: Send + Sync {
    /// A buffer that was lent is no longer used. It is called where the buffer is dropped, without
    /// locks.
    fn returned(&self, buffer: PoolBuffer);
}

/// Lends buffers of a pool.
///
/// A buffer on loan belongs to a second `Inner` of the pool, whose list of free slots refuses all of
/// them. So other buffers pay nothing for it.
pub(crate) struct Loans(Arc<Inner>);

/// The additional state of an `Inner` of buffers on loan.
pub(super) struct Loan {
    pool: Arc<Inner>,
    lender: OnceLock<Weak<dyn Lender>>,
}

impl Loans {
    /// Until [`set_lender`](Self::set_lender), the pool gets the buffers back.
    pub(crate) fn new(pool: &Pool) -> Self {
        let pool = Arc::clone(&pool.inner);
        let Inner { size, stride, addr, lkey, verified_pd, .. } = *pool;
        let (region, slots) = (Arc::clone(&pool.region), Slots::refusing(pool.slots.capacity()));
        let loan = Some(Loan { pool, lender: OnceLock::new() });
        Self(Arc::new(Inner { region, slots, size, stride, addr, lkey, verified_pd, loan }))
    }

    /// Sets the lender, once. If it no longer exists, the pool gets the buffers back.
    pub(crate) fn set_lender(&self, lender: Weak<dyn Lender>) {
        if let Some(loan) = &self.0.loan {
            let set = loan.lender.set(lender);
            debug_assert!(set.is_ok(), "it has no lender");
        }
    }

    /// Lends the buffer of a buffer of the pool.
    pub(crate) fn lend(&self, mut buffer: PoolBuffer) -> PoolBuffer {
        buffer.pool = Arc::clone(&self.0);
        buffer
    }
}

impl Loan {
    /// A buffer on loan was dropped.
    pub(super) fn end(&self, slot: u32) {
        let buffer = PoolBuffer::new(&self.pool, slot);
        match self.lender.get().and_then(Weak::upgrade) {
            Some(lender) => lender.returned(buffer),
            None => drop(buffer),
        }
    }
}
