//! Attributes of QPs.

mod bring_up;

use bareverbs_uapi::uverbs::types;
use bareverbs_uapi::verbs_values::{self as values, MigState, QpAttrMask, QpState, RnrTimeout};
use bareverbs_uapi::write::structs::{ExModifyQp, ModifyQpReq, QueryQpResp};

use crate::ah_attr::AhAttr;
pub use bring_up::{InitAttr, RtrAttr, RtsAttr, UcRtrAttr, UdInitAttr};

use crate::values::{AckTimeout, MinRnrTimer, Mtu, RetryCount, RnrRetry, ValueError};
use crate::{Access, PortNum};

/// Depths and widths of the queues of a QP.
///
/// Devices round depths up: Soft-RoCE grants 127 for 64. A program that posts until the queue is
/// full has as many requests outstanding as [`Qp::cap`](crate::qp::Qp::cap) says, and each may occupy
/// an entry of the CQ. A CQ that overflows loses completions. So such a program sizes the CQ for
/// the granted depths. It also counts what was posted and not polled, because Soft-RoCE frees the
/// slot of a request before its completion is polled:
///
/// ```
/// # let pd = bareverbs_test_support::example::pd()?;
/// # let context = pd.context();
/// # let mut cq = context.create_cq(&bareverbs::cq::CqInit::new(16))?;
/// use bareverbs::qp::{QpInit, Rc};
///
/// let qp = pd.create_qp::<Rc>(&QpInit::new(&cq, &cq))?;
/// // The sum over all QPs of the CQ.
/// let entries = qp.cap().max_send_wr + qp.cap().max_recv_wr;
/// if cq.capacity() < entries {
///     cq.resize(entries)?;
/// }
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Sends that can be outstanding.
    pub max_send_wr: u32,
    /// Receives that can be outstanding.
    pub max_recv_wr: u32,
    /// SGEs of a send.
    pub max_send_sge: u32,
    /// SGEs of a receive.
    pub max_recv_sge: u32,
    /// Bytes that a send can carry inline.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    /// 16 sends and 16 receives of one SGE each, no inline data.
    fn default() -> Self {
        Self { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 }
    }
}

impl From<QpCap> for types::QpCap {
    fn from(cap: QpCap) -> Self {
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = cap;
        Self { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }
}

impl From<types::QpCap> for QpCap {
    fn from(cap: types::QpCap) -> Self {
        let types::QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = cap;
        Self { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }
}

/// All attributes of a QP. [`Qp::query`](crate::qp::Qp::query) returns them and
/// [`Qp::modify`](crate::qp::Qp::modify) takes them.
///
/// [`InitAttr`], [`RtrAttr`] and [`RtsAttr`] document the meaning. A test of a kernel that needs
/// encodings without a type, such as a path MTU of 77, sends them by the raw level:
///
/// ```
/// use bareverbs::Errno;
/// use bareverbs::qp::{Qp, QpAttrMask, Rc};
/// use bareverbs::raw::uapi::verbs_values::Mtu;
/// use bareverbs::raw::uapi::write::ModifyQp;
/// use bareverbs::raw::uapi::write::structs::ModifyQpReq;
///
/// fn probe(qp: &Qp<Rc>) -> Result<(), Errno> {
///     let request = ModifyQpReq {
///         qp_handle: qp.handle(),
///         attr_mask: QpAttrMask::PATH_MTU,
///         path_mtu: Mtu(77),
///         ..ModifyQpReq::zeroed()
///     };
///     // SAFETY: the request does not change the state of the QP.
///     unsafe { qp.pd().context().raw().invoke::<ModifyQp>(&request, &mut ()) }
/// }
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let [(qp, _cq), _peer] = example::qps(&pd)?;
/// # assert_eq!(probe(&qp), Err(Errno::INVAL));
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// Current state for a query; target state for a modify.
    pub qp_state: QpState,
    /// Assumed current state.
    pub cur_qp_state: QpState,
    /// Path MTU; `None` if none is set.
    pub path_mtu: Option<Mtu>,
    /// Path migration state.
    pub path_mig_state: MigState,
    /// Q_Key of datagrams.
    pub qkey: u32,
    /// PSN of the next packet expected, 24 bits.
    pub rq_psn: u32,
    /// PSN of the next packet sent, 24 bits.
    pub sq_psn: u32,
    /// QPN of the peer, 24 bits.
    pub dest_qp_num: u32,
    /// Access rights of the peer, such as RDMA reads, writes and atomics.
    #[doc(alias = "qp_access_flags")]
    pub access: Access,
    /// Depths and widths of the queues.
    pub cap: QpCap,
    /// Primary path.
    pub ah_attr: AhAttr,
    /// Alternate path.
    pub alt_ah_attr: AhAttr,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// P_Key index of the alternate path.
    pub alt_pkey_index: u16,
    /// Whether to raise an event when the send queue has drained.
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is draining.
    pub sq_draining: bool,
    /// Outstanding reads and atomics as requester.
    pub max_rd_atomic: u8,
    /// Outstanding reads and atomics of the peer, as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer.
    pub min_rnr_timer: MinRnrTimer,
    /// Local port.
    pub port_num: PortNum,
    /// Local ACK timeout.
    pub timeout: AckTimeout,
    /// Retries after a timeout.
    pub retry_cnt: RetryCount,
    /// RNR retries.
    pub rnr_retry: RnrRetry,
    /// Port of the alternate path.
    pub alt_port_num: PortNum,
    /// Timeout of the alternate path.
    pub alt_timeout: AckTimeout,
    /// Packet pacing rate in kbit/s; a query does not report it.
    pub rate_limit: u32,
}

impl Default for QpAttr {
    /// All fields have the encoding 0: no path MTU, [`AckTimeout::INFINITE`],
    /// [`MinRnrTimer::MAX`], no retries. The caller fills in the fields of the mask.
    fn default() -> Self {
        Self {
            qp_state: QpState::RESET,
            cur_qp_state: QpState::RESET,
            path_mtu: None,
            path_mig_state: MigState::MIGRATED,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qp_num: 0,
            access: Access::empty(),
            cap: QpCap {
                max_send_wr: 0,
                max_recv_wr: 0,
                max_send_sge: 0,
                max_recv_sge: 0,
                max_inline_data: 0,
            },
            ah_attr: AhAttr::default(),
            alt_ah_attr: AhAttr::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: MinRnrTimer::MAX,
            port_num: PortNum(0),
            timeout: AckTimeout::INFINITE,
            retry_cnt: RetryCount::ZERO,
            rnr_retry: RnrRetry::ZERO,
            alt_port_num: PortNum(0),
            alt_timeout: AckTimeout::INFINITE,
            rate_limit: 0,
        }
    }
}

impl QpAttr {
    /// Fails if a value has an encoding that its type lacks.
    pub(crate) fn from_kernel(resp: &QueryQpResp) -> Result<Self, ValueError> {
        Ok(Self {
            qp_state: resp.qp_state,
            cur_qp_state: resp.cur_qp_state,
            path_mtu: match resp.path_mtu.0 {
                0 => None,
                mtu => Some(mtu.try_into()?),
            },
            path_mig_state: resp.path_mig_state,
            qkey: resp.qkey,
            rq_psn: resp.rq_psn,
            sq_psn: resp.sq_psn,
            dest_qp_num: resp.dest_qp_num,
            access: resp.qp_access_flags,
            cap: QpCap {
                max_send_wr: resp.max_send_wr,
                max_recv_wr: resp.max_recv_wr,
                max_send_sge: resp.max_send_sge,
                max_recv_sge: resp.max_recv_sge,
                max_inline_data: resp.max_inline_data,
            },
            ah_attr: AhAttr::from_kernel(&resp.dest),
            alt_ah_attr: AhAttr::from_kernel(&resp.alt_dest),
            pkey_index: resp.pkey_index,
            alt_pkey_index: resp.alt_pkey_index,
            en_sqd_async_notify: false,
            sq_draining: resp.sq_draining != 0,
            max_rd_atomic: resp.max_rd_atomic,
            max_dest_rd_atomic: resp.max_dest_rd_atomic,
            min_rnr_timer: resp.min_rnr_timer.0.try_into()?,
            port_num: PortNum(resp.port_num),
            timeout: resp.timeout.try_into()?,
            retry_cnt: resp.retry_cnt.try_into()?,
            rnr_retry: resp.rnr_retry.try_into()?,
            alt_port_num: PortNum(resp.alt_port_num),
            alt_timeout: resp.alt_timeout.try_into()?,
            rate_limit: 0,
        })
    }

    /// Encodes the request for the kernel without validation.
    pub(crate) fn to_kernel(self, qp_handle: u32, attr_mask: QpAttrMask) -> ExModifyQp {
        ExModifyQp {
            base: ModifyQpReq {
                dest: self.ah_attr.to_kernel(),
                alt_dest: self.alt_ah_attr.to_kernel(),
                qp_handle,
                attr_mask,
                qkey: self.qkey,
                rq_psn: self.rq_psn,
                sq_psn: self.sq_psn,
                dest_qp_num: self.dest_qp_num,
                qp_access_flags: self.access,
                pkey_index: self.pkey_index,
                alt_pkey_index: self.alt_pkey_index,
                qp_state: self.qp_state,
                cur_qp_state: self.cur_qp_state,
                path_mtu: values::Mtu(self.path_mtu.map_or(0, |mtu| mtu as u8)),
                path_mig_state: self.path_mig_state,
                en_sqd_async_notify: self.en_sqd_async_notify.into(),
                max_rd_atomic: self.max_rd_atomic,
                max_dest_rd_atomic: self.max_dest_rd_atomic,
                min_rnr_timer: RnrTimeout(self.min_rnr_timer.into()),
                port_num: self.port_num.0,
                timeout: self.timeout.into(),
                retry_cnt: self.retry_cnt.into(),
                rnr_retry: self.rnr_retry.into(),
                alt_port_num: self.alt_port_num.0,
                alt_timeout: self.alt_timeout.into(),
                ..ModifyQpReq::zeroed()
            },
            rate_limit: self.rate_limit,
            reserved: 0,
        }
    }
}

/// Creation attributes of a QP, as reported by the kernel.
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpInitAttr {
    /// Depths and widths of the queues.
    pub cap: QpCap,
    /// Whether every send generates a completion.
    pub signal_all: bool,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn queried_encodings_are_sent_unchanged_or_named_in_an_error(
            path_mtu: u8, path_mig_state: u8, min_rnr_timer: u8, timeout: u8, retry_cnt: u8,
            rnr_retry: u8, alt_timeout: u8, rate: u8,
        ) {
            let mut resp = QueryQpResp::zeroed();
            resp.path_mtu = values::Mtu(path_mtu);
            resp.path_mig_state = MigState(path_mig_state);
            resp.min_rnr_timer = RnrTimeout(min_rnr_timer);
            (resp.timeout, resp.retry_cnt, resp.rnr_retry) = (timeout, retry_cnt, rnr_retry);
            resp.alt_timeout = alt_timeout;
            resp.dest.static_rate = values::Rate(rate);
            let in_range = path_mtu <= 5
                && min_rnr_timer <= 31
                && timeout <= 31
                && retry_cnt <= 7
                && rnr_retry <= 7
                && alt_timeout <= 31;
            match QpAttr::from_kernel(&resp) {
                Ok(attr) => {
                    prop_assert!(in_range);
                    let sent = attr.to_kernel(42, QpAttrMask::all()).base;
                    prop_assert_eq!((sent.path_mtu, sent.path_mig_state), (resp.path_mtu, resp.path_mig_state));
                    prop_assert_eq!((sent.timeout, sent.alt_timeout), (timeout, alt_timeout));
                    prop_assert_eq!((sent.retry_cnt, sent.rnr_retry), (retry_cnt, rnr_retry));
                    prop_assert_eq!((sent.min_rnr_timer, sent.dest.static_rate), (resp.min_rnr_timer, values::Rate(rate)));
                }
                Err(error) => prop_assert!(!in_range, "{error}"),
            }
        }
    }

    #[test]
    fn queried_encoding_without_a_type_is_named() {
        let mut resp = QueryQpResp::zeroed();
        assert_eq!(QpAttr::from_kernel(&resp), Ok(QpAttr::default()));
        resp.path_mtu = values::Mtu(77);
        let error = QpAttr::from_kernel(&resp).unwrap_err();
        assert_eq!(error.to_string(), "encoding of an MTU 77 is above the maximum of 5");
    }

    #[test]
    fn modify_attributes_are_encoded() {
        let attr =
            QpAttr { qp_state: QpState(9), path_mtu: Some(Mtu::Mtu4096), rate_limit: 5, ..QpAttr::default() };
        let request = attr.to_kernel(42, QpAttrMask::all());
        assert_eq!((request.base.qp_handle, request.base.attr_mask), (42, QpAttrMask::all()));
        assert_eq!((request.base.qp_state.0, request.base.path_mtu.0, request.rate_limit), (9, 5, 5));
    }
}
