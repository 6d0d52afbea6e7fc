//! Requests' numbers that also tell whose they are.

/// A request's number (`wr_id`) in two halves, so that a completion brings back whose request it
/// was beside which.
///
/// Devices hand the number back with each completion, failed and flushed ones included, and make
/// nothing of it. Of the queue pair they tell its [number](crate::Completion::qp_num) only, which a
/// program with many of them would have to look up. What it puts into [`WrId::owner`] instead (an
/// index, say) takes a shift to get at, and costs those nothing that have no need of it.
///
/// ```no_run
/// use bareverbs::{Completion, Cq, Qp, Rc, RecvRequest, Sge, WrId};
///
/// struct Peer {
///     qp: Qp<Rc>,
///     received: u64,
/// }
///
/// # fn example(peers: &mut [Peer], cq: &mut Cq, sges: &[Sge]) -> Result<(), bareverbs::PostError> {
/// for (owner, peer) in (1..).zip(peers.iter_mut()) {
///     let receive = RecvRequest { wr_id: WrId { owner, request: 0 }.into(), sges };
///     // SAFETY: nobody looks at the memory before the receive is complete.
///     unsafe { peer.qp.post_recv(&[receive]) }?;
/// }
/// let mut completions = cq.poll();
/// while let Some(completion) = completions.next() {
///     let WrId { owner, .. } = completion.wr_id().into();
///     peers[owner as usize - 1].received += 1;
/// }
/// # Ok(())
/// # }
/// ```
///
/// A receive of a shared queue is posted to nobody in particular. Its completion's `owner` is the
/// shared queue's, and which queue pair took it only [`qp_num`](crate::Completion::qp_num) tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WrId {
    /// Whose request it is. The upper half of the number.
    pub owner: u32,
    /// Which of the owner's requests it is. The lower half of the number.
    pub request: u32,
}

impl From<WrId> for u64 {
    #[inline]
    fn from(WrId { owner, request }: WrId) -> Self {
        Self::from(owner) << 32 | Self::from(request)
    }
}

impl From<u64> for WrId {
    #[inline]
    fn from(number: u64) -> Self {
        Self { owner: (number >> 32) as u32, request: number as u32 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn wr_id_round_trips(number: u64) {
            let WrId { owner, request } = number.into();
            prop_assert_eq!((u64::from(owner) << 32) + u64::from(request), number);
            prop_assert_eq!(u64::from(WrId { owner, request }), number);
        }
    }
}
