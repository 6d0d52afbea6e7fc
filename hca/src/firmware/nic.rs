//! The netdev's objects: RQs, SQs, TIRs, RQTs, TISes.

use std::collections::BTreeMap;

use super::bits::View;
use super::headers::OUTER;
use super::layout::object::Sqc;
use super::limits;
use super::rss::Hash;
use bareverbs_transport::Table;

const MTU: u16 = 9978;

/// The destination of a TIR's frames.
#[derive(Clone, Debug)]
pub(super) enum Dispatch {
    Direct(u32),
    Table { table: u32, hash: Hash },
}

/// A TIR.
#[derive(Clone, Debug)]
pub(super) struct Tir {
    pub(super) dispatch: Dispatch,
    /// The transport domain.
    pub(super) domain: u32,
    /// The self-loopback setting: kinds of frames of its own transport domain that it receives.
    pub(super) self_loopback: u8,
}

/// A TIS.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tis {
    /// The transport domain.
    pub(super) domain: u32,
    /// The QP whose number the datagrams of its SQs have (IPoIB).
    pub(super) underlay_qp: Option<u32>,
}

/// An RQT.
#[derive(Clone, Debug)]
pub(super) struct Rqt {
    /// The RQs.
    pub(super) queues: Vec<u32>,
    /// Its maximum size.
    pub(super) room: usize,
}

impl Tir {
    /// Whether a frame from the wire, or from a send queue of the same port, reaches the TIR.
    pub(super) fn takes(&self, from: Option<u32>, frame: &[u8]) -> bool {
        const UNICAST: u8 = 1 << 0;
        const MULTICAST: u8 = 1 << 1;
        let multicast = frame.first().is_some_and(|first| first & 1 != 0);
        let wanted = if multicast { MULTICAST } else { UNICAST };
        from.is_none_or(|domain| domain != self.domain || self.self_loopback & wanted != 0)
    }

    /// The RQ for a frame with these headers.
    pub(super) fn queue(&self, rqts: &Table<Rqt>, headers: &[u8; OUTER]) -> Option<u32> {
        match &self.dispatch {
            Dispatch::Direct(rq) => Some(*rq),
            Dispatch::Table { table, hash } => {
                let queues = &rqts.get(*table)?.queues;
                queues.get(hash.of(headers) as usize % queues.len().max(1)).copied()
            }
        }
    }
}

/// The netdev's objects.
pub(super) struct Nic {
    pub(super) roce: bool,
    pub(super) mtu: u16,
    /// Contexts of RQs.
    pub(super) rqs: BTreeMap<u32, Vec<u8>>,
    /// Context, state and UAR page of SQs.
    pub(super) sqs: BTreeMap<u32, (Vec<u8>, u8, u32)>,
    pub(super) tirs: Table<Tir>,
    pub(super) rqts: Table<Rqt>,
    pub(super) tises: Table<Tis>,
}

impl Default for Nic {
    fn default() -> Self {
        Self {
            roce: false,
            mtu: MTU,
            rqs: BTreeMap::new(),
            sqs: BTreeMap::new(),
            tirs: Table::new(1, 1 << limits::LOG_TIRS),
            rqts: Table::new(1, 1 << limits::LOG_RQTS),
            tises: Table::new(1, 1 << limits::LOG_TISES),
        }
    }
}

impl Nic {
    #[cfg(test)]
    pub(super) fn first_sq(&self) -> Option<u32> {
        self.sqs.keys().next().copied()
    }

    /// The transport domain of a send queue.
    pub(super) fn domain_of(&self, sq: u32) -> Option<u32> {
        self.tises.get(tis_of(&self.sqs.get(&sq)?.0)?).map(|tis| tis.domain)
    }

    pub(super) fn uses_uar(&self, uar: u32) -> bool {
        self.sqs.values().any(|(_, _, page)| *page == uar)
    }

    pub(super) fn sq_uses_uar(&self, sq: u32, uar: u32) -> bool {
        self.sqs.get(&sq).is_some_and(|(_, _, page)| *page == uar)
    }

    /// Whether a send queue has a TIS.
    pub(super) fn references_tis(&self, tis: u32) -> bool {
        self.sqs.values().any(|(context, ..)| tis_of(context) == Some(tis))
    }

    /// Whether an RQT or a TIR refers to an RQ.
    pub(super) fn references_rq(&self, rq: u32) -> bool {
        self.rqts.iter().any(|rqt| rqt.queues.contains(&rq))
            || self.tirs.iter().any(|tir| matches!(tir.dispatch, Dispatch::Direct(direct) if direct == rq))
    }
}

/// The TIS in the context of an SQ.
fn tis_of(context: &[u8]) -> Option<u32> {
    let context = View::<Sqc>::new(context)?;
    (context.get(Sqc::TIS_LST_SZ) > 0).then(|| context.get32(Sqc::TIS_NUM_0))
}
