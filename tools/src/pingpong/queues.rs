//! The queue pairs of one side: the differences between the transports.

use anyhow::{Context as _, Result};
use bareverbs::ah::{Ah, AhAttr, GlobalRoute};
use bareverbs::cq::Cq;
use bareverbs::error::PostError;
use bareverbs::qp::{
    Connected, Datagram, GRH_BYTES, InitAttr, Operation, Payload, Qp, QpCap, QpInit, Rc, RecvRequest,
    RtrAttr, RtsAttr, SendFlags, SendRequest, Transport, Uc, UcOperation, UcRtrAttr, Ud, UdInitAttr,
};
use bareverbs::srq::{Srq, SrqInit};
use bareverbs::values::{AckTimeout, Mtu, RnrRetry};
use bareverbs::{Pd, Remote};

use super::state::SEND_ID;
use crate::cli::pingpong::{Config, Kind};
use crate::session::{QKEY, RETRY_CNT};

/// ACK timeout: 4.096 µs × 2^16, which is 0.27 s. With the 14 of ibv_rc_pingpong, a peer whose
/// machine pauses for half a second would count as lost.
pub(crate) const ACK_TIMEOUT: AckTimeout = AckTimeout::new(16).unwrap();
/// The hop limit of UD packets.
const HOP_LIMIT: u8 = 64;

/// An RDMA write of 0 bytes.
const PROBE: SendRequest<'_> = SendRequest {
    wr_id: SEND_ID,
    operation: Operation::Write(Remote { addr: 0, rkey: 0 }),
    flags: SendFlags::SIGNALED,
    payload: Payload::Sges(&[]),
};

/// The path from a queue pair to its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) address: AhAttr,
    pub(crate) mtu: Mtu,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_psn: u32,
    pub(crate) local_psn: u32,
}

/// The queue pairs of one side, identified by index (`place`).
pub(crate) trait Queues: Sized {
    /// Bytes before the message in the memory of a receive.
    const HEADROOM: usize = 0;
    /// Whether the transport reports a lost peer when it sends.
    const DETECTS_PEER_LOSS: bool = false;

    /// Creates the queue pairs and brings them to INIT.
    fn create(config: &Config<'_>, pd: &Pd, cq: &Cq) -> Result<Self>;

    /// The QP numbers, by index.
    fn qp_nums(&self) -> Vec<u32>;

    /// The maximum inline data of a send, in bytes.
    fn max_inline(&self) -> u32;

    /// Whether posted receives complete when the queue pairs fail.
    fn flushes_receives(&self) -> bool {
        true
    }

    /// Brings all queue pairs to RTS; `routes` has a route for each index.
    fn connect(&mut self, routes: &[Route]) -> Result<()>;

    /// Posts receives.
    ///
    /// # Safety
    /// As for [`Qp::post_recv`].
    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError>;

    /// Posts a message.
    ///
    /// # Safety
    /// As for [`Qp::post_send`].
    unsafe fn post_send(&mut self, place: usize, payload: Payload<'_>) -> Result<()>;

    /// Posts a request that the peer must acknowledge, on transports with acknowledgements.
    fn probe(&mut self, place: usize) -> Result<()>;

    /// Brings all queue pairs to ERR.
    fn set_error(&mut self);
}

fn message<T>(operation: T, payload: Payload<'_>) -> SendRequest<'_, T> {
    SendRequest { wr_id: SEND_ID, operation, flags: SendFlags::SIGNALED, payload }
}

fn single<T: Transport>(config: &Config<'_>, pd: &Pd, cq: &Cq) -> bareverbs::Result<Qp<T>> {
    let cap = QpCap { max_send_wr: 1, max_recv_wr: config.common.rx_depth, ..QpCap::default() };
    pd.create_qp(&QpInit { cap, ..QpInit::new(cq, cq) })
}

fn init_qp<T: Connected>(mut qp: Qp<T>, config: &Config<'_>) -> bareverbs::Result<Qp<T>> {
    qp.init(&InitAttr::new(config.common.ib_port))?;
    Ok(qp)
}

/// Brings a queue pair to ERR. An error is ignored: the run has failed already, and the report only
/// lacks the flushed requests.
fn set_error<T: Transport>(qp: &mut Qp<T>) {
    let _ = qp.set_error();
}

/// RC queue pairs: one with its own receive queue, or several on an SRQ.
pub(crate) struct Reliable {
    qps: Vec<Qp<Rc>>,
    srq: Option<Srq>,
    batched: bool,
}

impl Queues for Reliable {
    const DETECTS_PEER_LOSS: bool = true;

    fn create(config: &Config<'_>, pd: &Pd, cq: &Cq) -> Result<Self> {
        let batched = config.new_send;
        if config.kind != Kind::Srq {
            return Ok(Self { qps: vec![init_qp(single(config, pd, cq)?, config)?], srq: None, batched });
        }
        let srq = pd.create_srq(&SrqInit::new(config.common.rx_depth))?;
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 0, ..QpCap::default() };
        let init = QpInit { cap, srq: Some(&srq), ..QpInit::new(cq, cq) };
        let qps = (0..config.num_qp).map(|_| init_qp(pd.create_qp(&init)?, config));
        Ok(Self { qps: qps.collect::<bareverbs::Result<_>>()?, srq: Some(srq), batched })
    }

    fn qp_nums(&self) -> Vec<u32> {
        self.qps.iter().map(Qp::qp_num).collect()
    }

    fn max_inline(&self) -> u32 {
        self.qps.iter().map(|qp| qp.cap().max_inline_data).min().unwrap_or(0)
    }

    fn flushes_receives(&self) -> bool {
        self.srq.is_none()
    }

    fn connect(&mut self, routes: &[Route]) -> Result<()> {
        for (qp, route) in self.qps.iter_mut().zip(routes) {
            qp.ready_to_receive(&RtrAttr {
                rq_psn: route.remote_psn,
                path_mtu: route.mtu,
                max_dest_rd_atomic: 1,
                ..RtrAttr::new(route.address, route.remote_qpn)
            })?;
            qp.ready_to_send(&RtsAttr {
                sq_psn: route.local_psn,
                timeout: ACK_TIMEOUT,
                retry_cnt: RETRY_CNT,
                rnr_retry: RnrRetry::INFINITE,
                max_rd_atomic: 1,
            })?;
        }
        Ok(())
    }

    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        match &mut self.srq {
            // SAFETY: the caller upholds the same contract.
            Some(srq) => unsafe { srq.post_recv(requests) },
            // SAFETY: the caller upholds the same contract.
            None => unsafe { self.qps[0].post_recv(requests) },
        }
    }

    unsafe fn post_send(&mut self, place: usize, payload: Payload<'_>) -> Result<()> {
        let request = message(Operation::Send, payload);
        let qp = &mut self.qps[place];
        if self.batched {
            let mut batch = qp.start_send();
            // SAFETY: the caller upholds the same contract.
            unsafe { batch.push(&request) }?;
            return Ok(batch.ring()?);
        }
        // SAFETY: the caller upholds the same contract.
        Ok(unsafe { qp.post_send(&[request]) }?)
    }

    fn probe(&mut self, place: usize) -> Result<()> {
        // SAFETY: the request has no SGEs.
        unsafe { self.qps[place].post_send(&[PROBE]) }.context("cannot post a send")
    }

    fn set_error(&mut self) {
        self.qps.iter_mut().for_each(set_error);
    }
}

/// A UC queue pair.
pub(crate) struct Unreliable {
    qp: Qp<Uc>,
}

impl Queues for Unreliable {
    fn create(config: &Config<'_>, pd: &Pd, cq: &Cq) -> Result<Self> {
        Ok(Self { qp: init_qp(single(config, pd, cq)?, config)? })
    }

    fn qp_nums(&self) -> Vec<u32> {
        vec![self.qp.qp_num()]
    }

    fn max_inline(&self) -> u32 {
        self.qp.cap().max_inline_data
    }

    fn connect(&mut self, routes: &[Route]) -> Result<()> {
        for route in routes {
            self.qp.ready_to_receive(&UcRtrAttr {
                rq_psn: route.remote_psn,
                path_mtu: route.mtu,
                ..UcRtrAttr::new(route.address, route.remote_qpn)
            })?;
            self.qp.ready_to_send(route.local_psn)?;
        }
        Ok(())
    }

    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.qp.post_recv(requests) }
    }

    unsafe fn post_send(&mut self, _: usize, payload: Payload<'_>) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        Ok(unsafe { self.qp.post_send(&[message(UcOperation::Send, payload)]) }?)
    }

    fn probe(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn set_error(&mut self) {
        set_error(&mut self.qp);
    }
}

/// A UD queue pair that sends to one peer.
pub(crate) struct Datagrams {
    qp: Qp<Ud>,
    /// The peer's address handle and QP number, once known. The field follows the queue pair, which
    /// must be dropped first.
    peer: Option<(Ah, u32)>,
}

impl Queues for Datagrams {
    const HEADROOM: usize = GRH_BYTES;

    fn create(config: &Config<'_>, pd: &Pd, cq: &Cq) -> Result<Self> {
        let mut qp = single::<Ud>(config, pd, cq)?;
        qp.init(&UdInitAttr::new(config.common.ib_port, QKEY))?;
        Ok(Self { qp, peer: None })
    }

    fn qp_nums(&self) -> Vec<u32> {
        vec![self.qp.qp_num()]
    }

    fn max_inline(&self) -> u32 {
        self.qp.cap().max_inline_data
    }

    fn connect(&mut self, routes: &[Route]) -> Result<()> {
        for route in routes {
            self.qp.ready_to_receive()?;
            self.qp.ready_to_send(route.local_psn)?;
            let grh = route.address.grh.map(|grh| GlobalRoute { hop_limit: HOP_LIMIT, ..grh });
            let ah = self.qp.pd().create_ah(&AhAttr { grh, ..route.address })?;
            self.peer = Some((ah, route.remote_qpn));
        }
        Ok(())
    }

    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.qp.post_recv(requests) }
    }

    unsafe fn post_send(&mut self, _: usize, payload: Payload<'_>) -> Result<()> {
        let (ah, qpn) = self.peer.as_ref().context("the address of the peer is unknown")?;
        let request = message(Datagram::new(ah, *qpn, QKEY), payload);
        // SAFETY: the caller upholds the same contract.
        Ok(unsafe { self.qp.post_send(&[request]) }?)
    }

    fn probe(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn set_error(&mut self) {
        set_error(&mut self.qp);
    }
}
