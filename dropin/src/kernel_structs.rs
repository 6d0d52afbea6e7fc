//! Structs of the kernel's connection manager as those of C. librdmacm calls these.

use bareverbs::raw::uapi::abi::{Be16, Be32};
use bareverbs::raw::uapi::rdma_cm::path::PathRec;
use bareverbs::raw::uapi::write::structs::{AhAttr, QpAttr};

use crate::abi::gid::ibv_gid;
use crate::abi::path::{ibv_ah_attr, ibv_global_route, ibv_sa_path_rec};
use crate::abi::qp::{ibv_qp_attr, ibv_qp_cap};
use crate::convention::{Value, export, required};

fn address(attr: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid(attr.grh.dgid),
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate.0,
        is_global: attr.is_global,
        port_num: attr.port_num,
    }
}

export! {
    fn ibv_copy_ah_attr_from_kern(into: Option<&mut ibv_ah_attr>, from: Option<&AhAttr>) -> Value<()> {
        *required(into)? = address(required(from)?);
        Ok(())
    }

    /// The state stays, and so does the rate.
    fn ibv_copy_qp_attr_from_kern(into: Option<&mut ibv_qp_attr>, from: Option<&QpAttr>) -> Value<()> {
        let (into, from) = (required(into)?, required(from)?);
        *into = ibv_qp_attr {
            qp_state: into.qp_state,
            cur_qp_state: from.cur_qp_state,
            path_mtu: from.path_mtu,
            path_mig_state: from.path_mig_state,
            qkey: from.qkey,
            rq_psn: from.rq_psn,
            sq_psn: from.sq_psn,
            dest_qp_num: from.dest_qp_num,
            qp_access_flags: from.qp_access_flags.bits(),
            cap: ibv_qp_cap {
                max_send_wr: from.max_send_wr,
                max_recv_wr: from.max_recv_wr,
                max_send_sge: from.max_send_sge,
                max_recv_sge: from.max_recv_sge,
                max_inline_data: from.max_inline_data,
            },
            ah_attr: address(&from.ah_attr),
            alt_ah_attr: address(&from.alt_ah_attr),
            pkey_index: from.pkey_index,
            alt_pkey_index: from.alt_pkey_index,
            en_sqd_async_notify: from.en_sqd_async_notify,
            sq_draining: from.sq_draining,
            max_rd_atomic: from.max_rd_atomic,
            max_dest_rd_atomic: from.max_dest_rd_atomic,
            min_rnr_timer: from.min_rnr_timer.0,
            port_num: from.port_num,
            timeout: from.timeout,
            retry_cnt: from.retry_cnt,
            rnr_retry: from.rnr_retry,
            alt_port_num: from.alt_port_num,
            alt_timeout: from.alt_timeout,
            rate_limit: into.rate_limit,
        };
        Ok(())
    }

    fn ibv_copy_path_rec_from_kern(
        into: Option<&mut ibv_sa_path_rec>,
        from: Option<&PathRec>,
    ) -> Value<()> {
        let from = required(from)?;
        *required(into)? = ibv_sa_path_rec {
            dgid: ibv_gid(from.dgid),
            sgid: ibv_gid(from.sgid),
            dlid: from.dlid.get().to_be(),
            slid: from.slid.get().to_be(),
            raw_traffic: from.raw_traffic.cast_signed(),
            flow_label: from.flow_label.get().to_be(),
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            reversible: from.reversible.cast_signed(),
            numb_path: from.numb_path,
            pkey: from.pkey.get().to_be(),
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            mtu: from.mtu as u8,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
        Ok(())
    }

    fn ibv_copy_path_rec_to_kern(
        into: Option<&mut PathRec>,
        from: Option<&ibv_sa_path_rec>,
    ) -> Value<()> {
        let from = required(from)?;
        *required(into)? = PathRec {
            dgid: from.dgid.0,
            sgid: from.sgid.0,
            dlid: Be16::new(u16::from_be(from.dlid)),
            slid: Be16::new(u16::from_be(from.slid)),
            raw_traffic: from.raw_traffic.cast_unsigned(),
            flow_label: Be32::new(u32::from_be(from.flow_label)),
            reversible: from.reversible.cast_unsigned(),
            mtu: from.mtu.into(),
            pkey: Be16::new(u16::from_be(from.pkey)),
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            numb_path: from.numb_path,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
        Ok(())
    }
}
