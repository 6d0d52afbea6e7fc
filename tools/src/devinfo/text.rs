//! The report in the layout of ibv_devinfo.

use std::fmt::{Display, Write as _};

use super::names::{
    DEVICE_CAPS, DEVICE_CAPS_EX, Flags, ODP_GENERAL, ODP_TRANSPORT, PACED_QP_TYPES, QP_TYPES, RAW_PACKET,
    speed, virtual_lanes, width,
};
use super::{GidRow, Info, Limits, OdpCaps, Port};

/// Columns of a tab stop.
const TAB: usize = 8;
/// The column of a device's values.
const DEVICE_COLUMN: usize = 5 * TAB;
/// The column of a port's values.
const PORT_COLUMN: usize = 6 * TAB;

/// The names of devices.
pub(super) fn list(names: &[&str]) -> String {
    let mut text = format!("{} HCA{} found:\n", names.len(), if names.len() == 1 { "" } else { "s" });
    for name in names {
        text += &format!("\t{name}\n");
    }
    text
}

/// A device, with its ports.
pub(super) fn render(info: &Info, verbose: bool) -> String {
    let mut page = Page { text: format!("hca_id:\t{}\n", info.name) };
    page.device("transport", format_args!("{} ({})", info.transport, info.transport_number));
    if !info.fw_ver.is_empty() {
        page.device("fw_ver", &info.fw_ver);
    }
    page.device("node_guid", &info.node_guid);
    page.device("sys_image_guid", &info.sys_image_guid);
    page.device("vendor_id", format_args!("{:#06x}", info.vendor_id));
    page.device("vendor_part_id", info.vendor_part_id);
    page.device("hw_ver", format_args!("0x{:X}", info.hw_ver));
    if let Some(board) = &info.board_id {
        page.device("board_id", board);
    }
    page.device("phys_port_cnt", info.phys_port_cnt);
    if verbose {
        page.limits(&info.limits);
        page.odp(&info.odp);
        page.offloads(&info.limits);
        page.device("num_comp_vectors", info.num_comp_vectors);
    }
    for port in &info.ports {
        page.port(port, verbose, info.transport_number == 0);
    }
    page.text
}

struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, indent: usize, text: impl Display) {
        self.text.extend(std::iter::repeat_n('\t', indent));
        let _ = writeln!(self.text, "{text}");
    }

    /// `name:`, tabs up to the column, the value.
    fn field(&mut self, indent: usize, column: usize, name: &str, value: impl Display) {
        let end = indent * TAB + name.len() + 1;
        let tabs = "\t".repeat((column.saturating_sub(end)).div_ceil(TAB).max(1));
        self.line(indent, format_args!("{name}:{tabs}{value}"));
    }

    fn device(&mut self, name: &str, value: impl Display) {
        self.field(1, DEVICE_COLUMN, name, value);
    }

    fn flag_names(&mut self, bits: u64, names: Flags) {
        let mut rest = bits;
        for (bit, name) in names {
            if bits & 1 << bit != 0 {
                self.line(5, name);
                rest &= !(1 << bit);
            }
        }
        if rest != 0 {
            self.line(5, format_args!("Unknown flags: 0x{rest:X}"));
        }
    }

    fn limits(&mut self, limits: &Limits) {
        self.device("max_mr_size", format_args!("{:#x}", limits.max_mr_size));
        self.device("page_size_cap", format_args!("{:#x}", limits.page_size_cap));
        self.device("max_qp", limits.max_qp);
        self.device("max_qp_wr", limits.max_qp_wr);
        self.device("device_cap_flags", format_args!("{:#010x}", limits.device_cap_flags as u32));
        self.flag_names(limits.device_cap_flags & u64::from(u32::MAX), DEVICE_CAPS);
        self.device("max_sge", limits.max_sge);
        self.device("max_sge_rd", limits.max_sge_rd);
        self.device("max_cq", limits.max_cq);
        self.device("max_cqe", limits.max_cqe);
        self.device("max_mr", limits.max_mr);
        self.device("max_pd", limits.max_pd);
        self.device("max_qp_rd_atom", limits.max_qp_rd_atom);
        self.device("max_ee_rd_atom", limits.max_ee_rd_atom);
        self.device("max_res_rd_atom", limits.max_res_rd_atom);
        self.device("max_qp_init_rd_atom", limits.max_qp_init_rd_atom);
        self.device("max_ee_init_rd_atom", limits.max_ee_init_rd_atom);
        let atomic = match limits.atomic_cap {
            0 => "ATOMIC_NONE",
            1 => "ATOMIC_HCA",
            2 => "ATOMIC_GLOB",
            _ => "invalid atomic capability",
        };
        self.device("atomic_cap", format_args!("{atomic} ({})", limits.atomic_cap));
        self.device("max_ee", limits.max_ee);
        self.device("max_rdd", limits.max_rdd);
        self.device("max_mw", limits.max_mw);
        self.device("max_raw_ipv6_qp", limits.max_raw_ipv6_qp);
        self.device("max_raw_ethy_qp", limits.max_raw_ethy_qp);
        self.device("max_mcast_grp", limits.max_mcast_grp);
        self.device("max_mcast_qp_attach", limits.max_mcast_qp_attach);
        self.device("max_total_mcast_qp_attach", limits.max_total_mcast_qp_attach);
        self.device("max_ah", limits.max_ah);
        self.device("max_fmr", limits.max_fmr);
        if limits.max_fmr != 0 {
            self.device("max_map_per_fmr", limits.max_map_per_fmr);
        }
        self.device("max_srq", limits.max_srq);
        if limits.max_srq != 0 {
            self.device("max_srq_wr", limits.max_srq_wr);
            self.device("max_srq_sge", limits.max_srq_sge);
        }
        self.device("max_pkeys", limits.max_pkeys);
        self.device("local_ca_ack_delay", limits.local_ca_ack_delay);
    }

    fn odp(&mut self, odp: &OdpCaps) {
        self.line(1, "general_odp_caps:");
        self.flag_names(odp.odp_general_caps, ODP_GENERAL);
        for (name, bits) in [
            ("rc_odp_caps:", odp.rc_odp_caps),
            ("uc_odp_caps:", odp.uc_odp_caps),
            ("ud_odp_caps:", odp.ud_odp_caps),
            ("xrc_odp_caps:", odp.xrc_odp_caps),
        ] {
            self.line(1, name);
            if bits == 0 {
                self.line(5, "NO SUPPORT");
            }
            self.flag_names(bits.into(), ODP_TRANSPORT);
        }
    }

    fn offloads(&mut self, limits: &Limits) {
        match limits.completion_timestamp_mask {
            0 => self.line(1, "completion_timestamp_mask not supported"),
            mask => self.line(1, format_args!("completion timestamp_mask:\t\t\t{mask:#018x}")),
        }
        match limits.hca_core_clock {
            0 => self.line(1, "core clock not supported"),
            clock => self.device("hca_core_clock", format_args!("{clock}kHZ")),
        }
        if limits.raw_packet_caps != 0 {
            self.line(1, "raw packet caps:");
            self.flag_names(limits.raw_packet_caps.into(), RAW_PACKET);
        }
        self.device("device_cap_flags_ex", format_args!("0x{:X}", limits.device_cap_flags));
        self.flag_names(limits.device_cap_flags & !u64::from(u32::MAX), DEVICE_CAPS_EX);
        self.line(1, "tso_caps:");
        self.line(2, format_args!("max_tso:\t\t\t{}", limits.max_tso));
        if limits.max_tso != 0 {
            self.supported(limits.tso_supported_qpts, QP_TYPES);
        }
        self.line(1, "rss_caps:");
        for (name, value) in [
            ("max_rwq_indirection_tables:\t\t", limits.max_rwq_indirection_tables.to_string()),
            ("max_rwq_indirection_table_size:\t\t", limits.max_rwq_indirection_table_size.to_string()),
            ("rx_hash_function:\t\t\t", format!("{:#x}", limits.rx_hash_function)),
            ("rx_hash_fields_mask:\t\t\t", format!("0x{:X}", limits.rx_hash_fields_mask)),
        ] {
            self.line(2, format_args!("{name}\t{value}"));
        }
        if limits.rss_supported_qpts != 0 {
            self.supported(limits.rss_supported_qpts, QP_TYPES);
        }
        self.device("max_wq_type_rq", limits.max_wq_type_rq);
        self.line(1, "packet_pacing_caps:");
        self.line(2, format_args!("qp_rate_limit_min:\t{}kbps", limits.qp_rate_limit_min));
        self.line(2, format_args!("qp_rate_limit_max:\t{}kbps", limits.qp_rate_limit_max));
        if limits.qp_rate_limit_max != 0 {
            self.supported(limits.rate_limit_supported_qpts, PACED_QP_TYPES);
        }
        if limits.tm_max_num_tags == 0 {
            self.line(1, "tag matching not supported");
        } else {
            self.device("max_rndv_hdr_size", limits.tm_max_rndv_hdr_size);
            self.device("max_num_tags", limits.tm_max_num_tags);
            self.device("max_ops", limits.tm_max_ops);
            self.device("max_sge", limits.tm_max_sge);
            self.line(1, "flags:");
            self.flag_names(limits.tm_flags.into(), &[(0, "IBV_TM_CAP_RC")]);
        }
        if limits.max_cq_count != 0 && limits.max_cq_period != 0 {
            self.line(0, "");
            self.line(1, "cq moderation caps:");
            self.line(2, format_args!("max_cq_count:\t{}", limits.max_cq_count));
            self.line(2, format_args!("max_cq_period:\t{} us\n", limits.max_cq_period));
        }
        if limits.max_dm_size != 0 {
            self.line(1, format_args!("maximum available device memory:\t{}Bytes\n", limits.max_dm_size));
        }
    }

    fn supported(&mut self, qp_types: u32, names: Flags) {
        self.line(2, "supported_qp:");
        self.flag_names(qp_types.into(), names);
    }

    fn port(&mut self, port: &Port, verbose: bool, infiniband: bool) {
        let numbers = &port.numbers;
        self.line(2, format_args!("port:\t{}", port.port));
        let mut field = |name: &str, value: String| self.field(3, PORT_COLUMN, name, value);
        field("state", format!("{} ({})", port.state.name, port.state.value));
        field("max_mtu", mtu(port.max_mtu));
        field("active_mtu", mtu(port.active_mtu));
        field("sm_lid", numbers.sm_lid.to_string());
        field("port_lid", numbers.lid.to_string());
        field("port_lmc", format!("{:#04x}", numbers.lmc));
        field("link_layer", port.link_layer.into());
        if verbose {
            field("max_msg_sz", format!("{:#x}", numbers.max_msg_sz));
            field("port_cap_flags", format!("{:#010x}", numbers.port_cap_flags));
            field("port_cap_flags2", format!("{:#06x}", numbers.port_cap_flags2));
            field("max_vl_num", format!("{} ({})", virtual_lanes(numbers.max_vl_num), numbers.max_vl_num));
            field("bad_pkey_cntr", format!("{:#x}", numbers.bad_pkey_cntr));
            field("qkey_viol_cntr", format!("{:#x}", numbers.qkey_viol_cntr));
            field("sm_sl", numbers.sm_sl.to_string());
            field("pkey_tbl_len", numbers.pkey_tbl_len.to_string());
            field("gid_tbl_len", numbers.gid_tbl_len.to_string());
            field("subnet_timeout", numbers.subnet_timeout.to_string());
            field("init_type_reply", numbers.init_type_reply.to_string());
            field("active_width", format!("{}X ({})", width(numbers.active_width), numbers.active_width));
            field("active_speed", format!("{} ({})", speed(numbers.active_speed), numbers.active_speed));
            if let Some(speed) = port.effective_speed {
                field("effective_speed", format!("{:.1} Gbps", speed as f64 / 1000.0));
            }
            if infiniband {
                field("phys_state", format!("{} ({})", port.phys_state.name, port.phys_state.value));
            }
            for row in &port.gids {
                field(&format!("GID[{:3}]", row.index), gid(row, port.link_layer));
            }
        }
        self.line(0, "");
    }
}

/// An MTU in bytes, with its number in `enum ibv_mtu`.
fn mtu(bytes: u32) -> String {
    format!("{bytes} ({})", bytes.ilog2().saturating_sub(7))
}

/// A GID with its type and network interface. An IP address (RoCE v2) is printed in short form,
/// other GIDs in full.
fn gid(row: &GidRow, link_layer: &str) -> String {
    let mut text = match row.kind {
        "RoCE v2" => row.gid.to_string(),
        _ => row.gid.segments().map(|group| format!("{group:04x}")).join(":"),
    };
    if link_layer == "Ethernet" {
        text += &format!(", {}", row.kind);
    }
    if let Some(netdev) = &row.netdev {
        text += &format!(", {netdev}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::names::{phys_state, port_state};
    use super::super::{NamedValue, PortAttrs};
    use super::*;

    /// Soft-RoCE as Linux 7.2 reports it.
    fn rxe() -> Info {
        Info {
            name: "rxe0".into(),
            driver: Some("rxe".into()),
            node_type: 1,
            transport: "InfiniBand",
            transport_number: 0,
            fw_ver: String::new(),
            node_guid: "b04a:90ff:fe5d:1c63".into(),
            sys_image_guid: "b04a:90ff:fe5d:1c63".into(),
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            hw_ver: 0,
            board_id: None,
            phys_port_cnt: 1,
            limits: Limits {
                max_mr_size: u64::MAX,
                page_size_cap: 0xffff_f000,
                max_qp: 1_048_560,
                device_cap_flags: 1 << 1 | 1 << 21 | 1 << 31,
                atomic_cap: 1,
                max_total_mcast_qp_attach: 458_752,
                ..Limits::default()
            },
            odp: OdpCaps { odp_general_caps: 1, rc_odp_caps: 0b11, ..OdpCaps::default() },
            num_comp_vectors: 2,
            ports: vec![Port {
                port: 1,
                state: NamedValue { name: port_state(4), value: 4 },
                phys_state: NamedValue { name: phys_state(5), value: 5 },
                max_mtu: 4096,
                active_mtu: 1024,
                link_layer: "Ethernet",
                numbers: PortAttrs {
                    max_msg_sz: 0x80_0000,
                    port_cap_flags: 0x0401_0000,
                    max_vl_num: 1,
                    pkey_tbl_len: 1,
                    gid_tbl_len: 1024,
                    active_width: 1,
                    active_speed: 1,
                    ..PortAttrs::default()
                },
                effective_speed: None,
                gids: vec![GidRow {
                    index: 1,
                    gid: "::ffff:10.1.0.1".parse().unwrap(),
                    kind: "RoCE v2",
                    netdev: Some("v0".into()),
                }],
            }],
        }
    }

    const BRIEF: &str = "\
hca_id:\trxe0
\ttransport:\t\t\tInfiniBand (0)
\tnode_guid:\t\t\tb04a:90ff:fe5d:1c63
\tsys_image_guid:\t\t\tb04a:90ff:fe5d:1c63
\tvendor_id:\t\t\t0xffffff
\tvendor_part_id:\t\t\t0
\thw_ver:\t\t\t\t0x0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tsm_lid:\t\t\t0
\t\t\tport_lid:\t\t0
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tEthernet

";

    #[test]
    fn brief_output_matches_ibv_devinfo() {
        assert_eq!(render(&rxe(), false), BRIEF);
    }

    #[test]
    fn verbose_output_contains_limits_flags_and_gids() {
        let text = render(&rxe(), true);
        for lines in [
            "\tmax_mr_size:\t\t\t0xffffffffffffffff\n\tpage_size_cap:\t\t\t0xfffff000\n\tmax_qp:\t\t\t\t1048560\n",
            "\tdevice_cap_flags:\t\t0x80200002\n\t\t\t\t\tBAD_PKEY_CNTR\n\t\t\t\t\tMEM_MGT_EXTENSIONS\n\
             \t\t\t\t\tUnknown flags: 0x80000000\n\tmax_sge:\t\t\t0\n",
            "\tatomic_cap:\t\t\tATOMIC_HCA (1)\n",
            "\tmax_total_mcast_qp_attach:\t458752\n",
            "\tgeneral_odp_caps:\n\t\t\t\t\tODP_SUPPORT\n\trc_odp_caps:\n\t\t\t\t\tSUPPORT_SEND\n\
             \t\t\t\t\tSUPPORT_RECV\n\tuc_odp_caps:\n\t\t\t\t\tNO SUPPORT\n",
            "\tcompletion_timestamp_mask not supported\n\tcore clock not supported\n\tdevice_cap_flags_ex:\t\t0x80200002\n",
            "\ttag matching not supported\n\tnum_comp_vectors:\t\t2\n\t\tport:\t1\n",
            "\t\t\tmax_msg_sz:\t\t0x800000\n\t\t\tport_cap_flags:\t\t0x04010000\n\t\t\tport_cap_flags2:\t0x0000\n\
             \t\t\tmax_vl_num:\t\t1 (1)\n",
            "\t\t\tactive_width:\t\t1X (1)\n\t\t\tactive_speed:\t\t2.5 Gbps (1)\n\t\t\tphys_state:\t\tLINK_UP (5)\n\
             \t\t\tGID[  1]:\t\t::ffff:10.1.0.1, RoCE v2, v0\n\n",
        ] {
            assert!(text.contains(lines), "no {lines:?} in\n{text}");
        }
    }

    #[test]
    fn non_ip_gid_is_printed_in_full() {
        let mut row = rxe().ports[0].gids[0].clone();
        (row.gid, row.kind) = ("fe80::1".parse().unwrap(), "IB");
        row.netdev = None;
        assert_eq!(gid(&row, "InfiniBand"), "fe80:0000:0000:0000:0000:0000:0000:0001");
        row.kind = "RoCE v1";
        assert_eq!(gid(&row, "Ethernet"), "fe80:0000:0000:0000:0000:0000:0000:0001, RoCE v1");
    }

    #[test]
    fn names_are_listed_under_their_number() {
        assert_eq!(list(&["rxe0"]), "1 HCA found:\n\trxe0\n");
        assert_eq!(list(&[]), "0 HCAs found:\n");
    }

    #[test]
    fn json_names_values_and_keeps_numbers() {
        let json = serde_json::to_value(rxe()).unwrap();
        assert_eq!(json["transport"], "InfiniBand");
        assert_eq!(json["limits"]["max_qp"], 1_048_560);
        assert_eq!(json["odp"]["rc_odp_caps"], 3);
        let port = &json["ports"][0];
        assert_eq!(port["state"], serde_json::json!({ "name": "PORT_ACTIVE", "value": 4 }));
        assert_eq!(port["gid_tbl_len"], 1024);
        assert_eq!(
            port["gids"][0],
            serde_json::json!({ "index": 1, "gid": "::ffff:10.1.0.1", "type": "RoCE v2", "netdev": "v0" })
        );
    }
}
