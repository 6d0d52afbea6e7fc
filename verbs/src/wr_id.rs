//! A `wr_id` that also names the owner of the request.

/// A `wr_id` in two halves: the owner of the request, and the request.
///
/// The device returns the `wr_id` with each completion, failed and flushed ones included, and does
/// not interpret it. Apart from it, a completion names its QP only by
/// [QPN](crate::cq::Completion::qp_num), which a program with many QPs must look up. A program can
/// store an index in [`WrId::owner`] instead. The index costs one shift to extract, and nothing if
/// unused.
///
/// ```
/// use bareverbs::cq::{Completion, Cq};
/// use bareverbs::qp::{Qp, Rc, RecvRequest, Sge, WrId};
///
/// struct Peer {
///     qp: Qp<Rc>,
///     received: u64,
/// }
///
/// # fn example(peers: &mut [Peer], cq: &mut Cq, sges: &[Sge]) -> Result<(), bareverbs::error::PostError> {
/// for (owner, peer) in (1..).zip(peers.iter_mut()) {
///     let receive = RecvRequest { wr_id: WrId { owner, request: 0 }.into(), sges };
///     // SAFETY: no code accesses the memory before the receive completes.
///     unsafe { peer.qp.post_recv(&[receive]) }?;
/// }
/// let mut completions = cq.poll();
/// while let Some(completion) = completions.next() {
///     let WrId { owner, .. } = completion.wr_id().into();
///     peers[owner as usize - 1].received += 1;
/// }
/// # Ok(())
/// # }
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let [(qp, mut cq), (other, _cq)] = example::qps(&pd)?;
/// # let mut peers = [qp, other].map(|qp| Peer { qp, received: 0 });
/// # let buffer = pd.register(bareverbs::Buffer::zeroed(64)?, bareverbs::Access::LOCAL_WRITE)?;
/// # example(&mut peers, &mut cq, &[buffer.sge(..)?])?;
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// A receive of an SRQ belongs to no QP. Its `owner` names the SRQ. The QP that consumed it is in
/// [`qp_num`](crate::cq::Completion::qp_num).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WrId {
    /// The owner of the request. Upper half of the `wr_id`.
    pub owner: u32,
    /// The request of that owner. Lower half of the `wr_id`.
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
