//! INIT_QP_ATTR: the attributes of a QP for its next state.

use bareverbs_provider::Errno;
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState, Rate};
use bareverbs_uapi::write::structs::{AhAttr, GlobalRoute, QpAttr};

use super::id::{Id, IdState, PORT, UDP_QKEY, psn};
use super::namespace::Namespace;
use crate::cm::{ConnState, Path};

impl Namespace {
    /// # Errors
    ///
    /// `EINVAL` if the connection has no attributes for this state.
    pub(super) fn qp_attributes(&self, file: u64, number: u32, qp_state: u32) -> Result<QpAttr, Errno> {
        if qp_state > u32::from(QpState::ERR.0) {
            return Err(Errno::INVAL);
        }
        self.on_device(file, number, |engine, port| {
            let mut state = self.lock();
            let id = state.id(file, number)?;
            let connection = id.connection.filter(|_| !id.is_datagram());
            let mut attributes = match connection {
                None if id.state == IdState::Listening => return Err(Errno::INVAL),
                None => unconnected(id),
                Some(connection) => {
                    let state = engine.cm_state(connection).ok_or(Errno::INVAL)?;
                    connected(number, id, QpState(qp_state as u8), state, port.gid_index())?
                }
            };
            attributes.qp_state = qp_state;
            Ok(attributes)
        })
    }
}

/// The attributes for INIT, which don't depend on a peer.
fn unconnected(id: &mut Id) -> QpAttr {
    let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    let attributes = QpAttr { port_num: PORT, ..QpAttr::zeroed() };
    if id.is_datagram() {
        id.qkey = if id.qkey == 0 { UDP_QKEY } else { id.qkey };
        QpAttr { qp_attr_mask: mask | QpAttrMask::QKEY, qkey: id.qkey, ..attributes }
    } else {
        QpAttr { qp_attr_mask: mask | QpAttrMask::ACCESS_FLAGS, ..attributes }
    }
}

/// The attributes of a connection in a state.
fn connected(
    number: u32,
    id: &Id,
    qp_state: QpState,
    state: ConnState,
    gid_index: u8,
) -> Result<QpAttr, Errno> {
    use ConnState as S;
    let has_peer = matches!(
        state,
        S::RequestReceived
            | S::RequestDelayed
            | S::ReplySent
            | S::ReplyProlonged
            | S::ReplyReceived
            | S::ReplyDelayed
            | S::Established
    );
    let is_asking = matches!(state, S::RequestSent | S::RequestProlonged);
    let parameters = id.parameters;
    let is_reliable = id.qp_type == QpType::RC;
    match qp_state {
        QpState::INIT if has_peer || is_asking => {
            let mut access = AccessFlags::REMOTE_WRITE;
            if parameters.responder_resources > 0 {
                access |= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
                access |= AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT;
            }
            Ok(QpAttr {
                qp_attr_mask: QpAttrMask::STATE
                    | QpAttrMask::PKEY_INDEX
                    | QpAttrMask::PORT
                    | QpAttrMask::ACCESS_FLAGS,
                qp_access_flags: access,
                port_num: PORT,
                ..QpAttr::zeroed()
            })
        }
        QpState::RTR if has_peer => {
            let path = id.path.ok_or(Errno::INVAL)?;
            let mut mask = QpAttrMask::STATE
                | QpAttrMask::AV
                | QpAttrMask::PATH_MTU
                | QpAttrMask::DEST_QPN
                | QpAttrMask::RQ_PSN;
            if is_reliable {
                mask |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
            }
            Ok(QpAttr {
                qp_attr_mask: mask,
                ah_attr: ah_attr(&path, gid_index),
                path_mtu: path.mtu.into(),
                dest_qp_num: parameters.peer_qpn,
                rq_psn: psn(number),
                max_dest_rd_atomic: parameters.responder_resources,
                ..QpAttr::zeroed()
            })
        }
        QpState::RTS if has_peer => {
            let mut mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
            if is_reliable {
                mask |= QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY;
                mask |= QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::TIMEOUT;
            }
            Ok(QpAttr {
                qp_attr_mask: mask,
                sq_psn: parameters.send_psn,
                retry_cnt: parameters.retry_count,
                rnr_retry: parameters.rnr_retry_count,
                max_rd_atomic: parameters.initiator_depth,
                timeout: id.ack_timeout.unwrap_or(parameters.timeout),
                ..QpAttr::zeroed()
            })
        }
        _ => Err(Errno::INVAL),
    }
}

/// The address vector of a path from the GID with an index.
pub(super) fn ah_attr(path: &Path, gid_index: u8) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: path.destination,
            flow_label: path.flow_label,
            sgid_index: gid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            ..GlobalRoute::zeroed()
        },
        sl: path.service_level,
        static_rate: Rate(path.rate),
        is_global: 1,
        port_num: PORT,
        ..AhAttr::zeroed()
    }
}
