//! Parameters of connections and datagram QPs.

use bareverbs::Endpoint;
use bareverbs::ah::AhAttr;
use bareverbs::qp::{Ece, QpType};
use bareverbs::values::{RetryCount, RnrRetry};
use bareverbs_uapi::rdma_cm::structs::{self, UdParam};

use crate::attr::ah_attr;
use crate::{Error, PrivateData, Result};

/// A message that carries private data of the caller.
#[doc(alias = "ib_cm_data_size")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A connection request: [`CmId::connect`](crate::CmId::connect).
    Connect,
    /// Its acceptance: [`ConnectRequest::accept`](crate::ConnectRequest::accept).
    Accept,
    /// Its rejection: [`ConnectRequest::reject`](crate::ConnectRequest::reject).
    Reject,
}

impl Message {
    /// The most private data that any message carries on iWARP, in bytes. siw counts the data and 4 bytes
    /// of MPA in one byte: a message of 252 bytes would have none (`siw_send_mpareqrep` of `siw_cm.c`).
    pub const MAX_ON_IWARP: usize = 251;

    /// The most private data that the message carries, in bytes. Longer data is rejected with
    /// [`Error::PrivateData`] before the kernel sees it.
    ///
    /// | | RC, IP | RC, IB address | UD, IP | UD, IB address |
    /// |---|---|---|---|---|
    /// | connect | 56 | 92 | 180 | 216 |
    /// | accept | 196 | 196 | 136 | 136 |
    /// | reject | 148 | 148 | 136 | 136 |
    ///
    /// On iWARP, each message carries [`Message::MAX_ON_IWARP`] bytes.
    ///
    /// In a request to an IB address, the kernel sets the first byte of the data to 0. The peer takes
    /// such a request for one of an IP address if the upper half of the second byte is 4 or 6.
    ///
    /// ```
    /// use bareverbs::qp::QpType;
    /// use bareverbs_rdmacm::Message;
    ///
    /// assert_eq!(Message::Connect.max_private_data(QpType::RC, false), 56);
    /// ```
    #[must_use]
    pub const fn max_private_data(self, qp_type: QpType, is_ib_addr: bool) -> usize {
        let is_datagram = qp_type.0 == QpType::UD.0;
        match (self, is_datagram, is_ib_addr) {
            (Self::Connect, false, false) => 56,
            (Self::Connect, false, true) => 92,
            (Self::Connect, true, false) => 180,
            (Self::Connect, true, true) => 216,
            (Self::Accept, false, _) => 196,
            (Self::Reject, false, _) => 148,
            (Self::Accept | Self::Reject, true, _) => 136,
        }
    }

    /// Rejects data that is too long. `is_iwarp` is asked for data that other transports do not carry.
    pub(crate) fn check(
        self,
        verb: &'static str,
        data: &[u8],
        qp_type: QpType,
        is_ib_addr: bool,
        is_iwarp: impl FnOnce() -> Result<bool>,
    ) -> Result<()> {
        let max = self.max_private_data(qp_type, is_ib_addr);
        if data.len() > max {
            let max = if is_iwarp()? { Self::MAX_ON_IWARP } else { max };
            if data.len() <= max {
                return Ok(());
            }
            return Err(Error::PrivateData { verb, length: data.len(), max });
        }
        Ok(())
    }
}

/// Parameters that one side sends when it connects or accepts.
///
/// For a datagram QP only the QPN (when it accepts) and the private data are sent.
///
/// ```
/// use bareverbs_rdmacm::ConnParam;
///
/// let param = ConnParam { private_data: b"hello", ..ConnParam::new(0x11) };
/// assert_eq!(param.retry_count, bareverbs::values::RetryCount::DEFAULT);
/// ```
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnParam<'a> {
    /// QPN of the QP of this side, 24 bits.
    pub qp_num: u32,
    /// Whether the QP receives from an SRQ.
    pub srq: bool,
    /// Data for the application of the peer; at most [`Message::max_private_data`] bytes.
    pub private_data: &'a [u8],
    /// RDMA READs and atomics of the peer that this side executes at a time, 0 to 255; at most the
    /// device's `max_qp_rd_atom`.
    pub responder_resources: u8,
    /// RDMA READs and atomics that this side has outstanding at a time, 0 to 255; at most the device's
    /// `max_qp_init_rd_atom`.
    pub initiator_depth: u8,
    /// Whether the hardware has end-to-end flow control.
    pub flow_control: bool,
    /// Retries after a timeout, of the QPs of both sides. Only that of a request is sent.
    pub retry_count: RetryCount,
    /// RNR retries of the QP of the peer.
    pub rnr_retry_count: RnrRetry,
    /// ECE options of this side; [`Ece::default`] for none.
    pub ece: Ece,
}

impl ConnParam<'_> {
    /// Parameters of the QP `qp_num`: no private data, one read or atomic in each direction, 6
    /// retries, RNR retries without limit.
    ///
    /// librdmacm's zeroed parameters mean no reads, no atomics and no retries.
    #[must_use]
    pub const fn new(qp_num: u32) -> Self {
        Self {
            qp_num,
            srq: false,
            private_data: &[],
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: RetryCount::DEFAULT,
            rnr_retry_count: RnrRetry::INFINITE,
            ece: Ece { vendor_id: 0, options: 0 },
        }
    }

    /// The kernel's form. The caller has checked the length of the private data.
    pub(crate) fn to_kernel(self) -> structs::ConnParam {
        let mut param = structs::ConnParam {
            qp_num: self.qp_num,
            srq: self.srq.into(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count.into(),
            rnr_retry_count: self.rnr_retry_count.into(),
            valid: 1,
            private_data_len: self.private_data.len() as u8,
            ..structs::ConnParam::zeroed()
        };
        param.private_data[..self.private_data.len()].copy_from_slice(self.private_data);
        param
    }

    pub(crate) fn kernel_ece(&self) -> structs::Ece {
        structs::Ece { vendor_id: self.ece.vendor_id, attr_mod: self.ece.options }
    }
}

/// Parameters of the peer's connected QP, from its request or its response.
///
/// The kernel has swapped the two depths of the peer's message: `responder_resources` is for this
/// side's QP as responder, `initiator_depth` for it as requester.
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerParam {
    /// QPN of the peer's QP.
    pub qp_num: u32,
    /// Whether the peer's QP receives from an SRQ.
    pub srq: bool,
    /// The most reads and atomics that the peer will have outstanding. A larger
    /// [`ConnParam::responder_resources`] has no use.
    pub responder_resources: u8,
    /// The most reads and atomics that the peer executes at a time: the limit of
    /// [`ConnParam::initiator_depth`].
    pub initiator_depth: u8,
    /// Whether the hardware has end-to-end flow control.
    pub flow_control: bool,
    /// Retries after a timeout, 0 to 7. 0 in a response, which does not carry it.
    pub retry_count: u8,
    /// RNR retries that the QP of this side should use, 0 to 7. 7 is no limit.
    pub rnr_retry_count: u8,
    /// Data from the application of the peer.
    pub private_data: PrivateData,
    /// ECE options of the peer; all zero for none.
    #[doc(alias = "rdma_get_remote_ece")]
    pub ece: Ece,
    /// What the probes of an endpoint read, on iWARP. The peer's library has sent it as private data.
    pub(crate) probe_offer: Option<[u8; 20]>,
}

impl PeerParam {
    pub(crate) fn from_kernel(param: &structs::ConnParam, ece: structs::Ece) -> Self {
        let private_data = PrivateData::new(param.private_data, param.private_data_len);
        let probe_offer = Endpoint::probe_offer_of(&private_data);
        Self {
            qp_num: param.qp_num,
            srq: param.srq != 0,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            private_data: if probe_offer.is_some() { PrivateData::EMPTY } else { private_data },
            probe_offer,
            ece: Ece { vendor_id: ece.vendor_id, options: ece.attr_mod },
        }
    }
}

/// Address of a datagram QP or of a multicast group.
#[doc(alias = "rdma_ud_param")]
#[doc(alias = "rdma_post_ud_send")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdPeer {
    /// QPN; 0xffffff for a multicast group.
    pub qp_num: u32,
    /// Q_Key.
    pub qkey: u32,
    /// The address for [`Pd::create_ah`](bareverbs::Pd::create_ah). For a multicast group its GID is
    /// the group, and its LID on InfiniBand the MLID.
    pub address: AhAttr,
    /// Data from the application of the peer; empty for a multicast group.
    pub private_data: PrivateData,
}

impl UdPeer {
    pub(crate) fn from_kernel(param: &UdParam) -> Self {
        Self {
            qp_num: param.qp_num,
            qkey: param.qkey,
            address: ah_attr(&param.ah_attr),
            private_data: PrivateData::new(param.private_data, param.private_data_len),
        }
    }
}

/// Parameters of a connection request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestParam {
    /// A peer asks to connect a QP.
    Connection(PeerParam),
    /// A peer asks for the address of a datagram QP.
    Datagram(PrivateData),
}

impl RequestParam {
    /// The private data of the peer's application.
    #[must_use]
    pub fn private_data(&self) -> &PrivateData {
        match self {
            Self::Connection(param) => &param.private_data,
            Self::Datagram(data) => data,
        }
    }
}

/// Parameters of [`EventKind::Established`](crate::event::EventKind::Established).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EstablishedParam {
    /// Of a connected QP. On iWARP, they are those of the peer's response at the active side, except the
    /// QPN, which MPA does not carry. On InfiniBand and RoCE all of them are 0.
    ///
    /// The two depths are those that both sides have agreed on.
    Connection(PeerParam),
    /// Of a datagram QP: the address of the peer's QP.
    Datagram(UdPeer),
}

#[cfg(test)]
mod tests {
    use bareverbs::Remote;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parameters_round_trip_through_the_kernels_form(
            (qp_num, srq, flow_control) in (0_u32..1 << 24, any::<bool>(), any::<bool>()),
            (responder_resources, initiator_depth) in any::<(u8, u8)>(),
            (retry, rnr) in (0_u8..8, 0_u8..8),
            (vendor_id, options) in any::<(u32, u32)>(),
            data in proptest::collection::vec(any::<u8>(), 0..216),
        ) {
            let ece = Ece { vendor_id, options };
            let sent = ConnParam {
                qp_num, srq, flow_control, responder_resources, initiator_depth, ece,
                retry_count: RetryCount::new(retry).unwrap(),
                rnr_retry_count: RnrRetry::new(rnr).unwrap(),
                private_data: &data,
            };
            let kernel = sent.to_kernel();
            prop_assert_eq!(kernel.valid, 1);
            let received = PeerParam::from_kernel(&kernel, sent.kernel_ece());
            prop_assert_eq!(&*received.private_data, &data[..]);
            prop_assert_eq!(received, PeerParam {
                qp_num, srq, flow_control, responder_resources, initiator_depth, ece,
                retry_count: retry, rnr_retry_count: rnr, private_data: received.private_data,
                probe_offer: None,
            });
        }

        #[test]
        fn memory_of_probes_is_no_private_data_of_the_application(
            addr: u64, rkey: u32, more in proptest::collection::vec(any::<u8>(), 0..3),
        ) {
            let data = [&b"PRB1"[..], &Remote { addr, rkey }.to_bytes(), &more].concat();
            let sent = ConnParam { private_data: &data, ..ConnParam::new(17) };
            let received = PeerParam::from_kernel(&sent.to_kernel(), sent.kernel_ece());
            if more.is_empty() {
                prop_assert_eq!((&*received.private_data, &received.probe_offer.unwrap()[..]), (&[][..], &data[..]));
            } else {
                prop_assert_eq!((&*received.private_data, received.probe_offer), (&data[..], None));
            }
        }

        #[test]
        fn private_data_above_the_limit_is_refused(length in 0_usize..300, ud: bool, ib: bool, iwarp: bool) {
            let qp_type = if ud { QpType::UD } else { QpType::RC };
            let data = vec![0; length];
            for message in [Message::Connect, Message::Accept, Message::Reject] {
                let max = if iwarp { Message::MAX_ON_IWARP } else { message.max_private_data(qp_type, ib) };
                match message.check("connect", &data, qp_type, ib, || Ok(iwarp)) {
                    Ok(()) => prop_assert!(length <= max),
                    Err(Error::PrivateData { length: of, max: limit, .. }) => {
                        prop_assert!(length > max);
                        prop_assert_eq!((of, limit), (length, max));
                    }
                    Err(other) => prop_assert!(false, "{}", other),
                }
            }
        }
    }
}
