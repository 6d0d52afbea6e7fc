//! Attributes of queue pairs and addresses, as the kernel hands them out.

use bareverbs::ah::{AhAttr, GlobalRoute};
use bareverbs::qp::{MigState, QpAttr, QpAttrMask, QpCap, QpState};
use bareverbs::{Gid, PortNum};
use bareverbs_uapi::write::structs;

/// The address vector in the kernel's form.
pub(crate) fn ah_attr(attr: &structs::AhAttr) -> AhAttr {
    let grh = GlobalRoute {
        dgid: Gid(attr.grh.dgid),
        sgid_index: attr.grh.sgid_index.into(),
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
    };
    AhAttr {
        port: PortNum(attr.port_num),
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        grh: (attr.is_global != 0).then_some(grh),
    }
}

/// The attributes and their mask in the kernel's form.
pub(crate) fn qp_attr(attr: &structs::QpAttr) -> bareverbs::Result<(QpAttr, QpAttrMask)> {
    let values = QpAttr {
        qp_state: QpState(attr.qp_state as u8),
        cur_qp_state: QpState(attr.cur_qp_state as u8),
        path_mtu: match attr.path_mtu {
            0 => None,
            mtu => Some(u8::try_from(mtu).unwrap_or(u8::MAX).try_into()?),
        },
        path_mig_state: MigState(attr.path_mig_state as u8),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        access: attr.qp_access_flags,
        cap: QpCap {
            max_send_wr: attr.max_send_wr,
            max_recv_wr: attr.max_recv_wr,
            max_send_sge: attr.max_send_sge,
            max_recv_sge: attr.max_recv_sge,
            max_inline_data: attr.max_inline_data,
        },
        ah_attr: ah_attr(&attr.ah_attr),
        alt_ah_attr: ah_attr(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer.0.try_into()?,
        port_num: PortNum(attr.port_num),
        timeout: attr.timeout.try_into()?,
        retry_cnt: attr.retry_cnt.try_into()?,
        rnr_retry: attr.rnr_retry.try_into()?,
        alt_port_num: PortNum(attr.alt_port_num),
        alt_timeout: attr.alt_timeout.try_into()?,
        rate_limit: 0,
    };
    Ok((values, attr.qp_attr_mask))
}
