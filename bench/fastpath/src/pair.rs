//! Two connected queue pairs in one process; one of them sends.

use anyhow::Result;
use bareverbs::ah::AhAttr;
use bareverbs::cq::{Cq, CqInit};
use bareverbs::qp::{InitAttr, Qp, QpCap, QpInit, Rc, RtrAttr, RtsAttr};
use bareverbs::{Access, Buffer, Context, Mr, Provider, Remote};

/// Minimum depth of a queue pair's queues.
const DEPTH: u32 = 255;

/// Bytes of the region. Its first half is sent from, its second half is written to.
const BYTES: usize = 8192;

pub(crate) struct Pair<P: Provider> {
    /// The measured queue pair.
    pub(crate) qp: Qp<Rc, P>,
    /// The CQ of its sends.
    pub(crate) cq: Cq<P>,
    pub(crate) memory: Mr<Buffer>,
    /// The target of writes.
    pub(crate) remote: Remote,
    _peer: Qp<Rc, P>,
    _peer_cq: Cq<P>,
}

impl<P: Provider> Pair<P> {
    pub(crate) fn new(context: &Context<P>) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let memory = pd.register(Buffer::zeroed(BYTES)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let cq = context.create_cq(&CqInit::new(1024))?;
        let peer_cq = context.create_cq(&CqInit::new(1024))?;
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let mut qp = pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &peer_cq) })?;
        let mut peer = pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&peer_cq, &peer_cq) })?;
        connect_both(context, &mut qp, &mut peer)?;
        let remote = Remote { addr: memory.sge(BYTES / 2..)?.addr, rkey: memory.rkey() };
        Ok(Self { qp, cq, memory, remote, _peer: peer, _peer_cq: peer_cq })
    }
}

fn connect_both<P: Provider>(context: &Context<P>, qp: &mut Qp<Rc, P>, peer: &mut Qp<Rc, P>) -> Result<()> {
    #[cfg(feature = "siw")]
    if context.capabilities().iwarp {
        bareverbs_test_support::cm::connect(qp, peer, 1);
        return Ok(());
    }
    let numbers = (qp.qp_num(), peer.qp_num());
    connect(context, qp, numbers.1)?;
    connect(context, peer, numbers.0)
}

fn connect<P: Provider>(context: &Context<P>, qp: &mut Qp<Rc, P>, peer: u32) -> Result<()> {
    let gid = context.default_gid(1)?;
    let dlid = context.query_port(1)?.lid;
    let address = AhAttr { dlid, ..AhAttr::global(1, gid.gid, gid.index) };
    qp.init(&InitAttr { access: Access::REMOTE_WRITE, ..InitAttr::new(1) })?;
    qp.ready_to_receive(&RtrAttr::new(address, peer))?;
    qp.ready_to_send(&RtsAttr::default())?;
    Ok(())
}
