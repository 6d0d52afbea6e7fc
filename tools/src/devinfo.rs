//! `bareverbs devinfo`.

mod names;
mod text;

use std::net::Ipv6Addr;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use bareverbs::device::{DeviceAttr, DriverId, GidEntry, LinkLayer, NodeType, PortAttr};
use bareverbs::{Context, Device, PortNum};
use rustix::net::netdevice::index_to_name;
use serde::Serialize;

use crate::cli::Devinfo;
use crate::output;
use crate::session::path::gid_type;

/// `bareverbs devinfo`.
pub(crate) fn show(options: &Devinfo) -> Result<()> {
    if options.list {
        return list(options);
    }
    let shown = match &options.ib_dev {
        Some(name) => vec![describe(&Device::find(name)?, options)?],
        None => describe_all(options)?,
    };
    if options.json {
        output::line(&serde_json::to_string_pretty(&shown)?)?;
    } else {
        for info in &shown {
            output::write(&text::render(info, options.verbose))?;
        }
    }
    Ok(())
}

/// Describes each device. One that can't be described is reported, unless no device can.
fn describe_all(options: &Devinfo) -> Result<Vec<Info>> {
    let (mut shown, mut failed) = (Vec::new(), Vec::new());
    for device in bareverbs::devices()? {
        match describe(&device, options) {
            Ok(info) => shown.push(info),
            Err(error) => failed.push(error.to_string()),
        }
    }
    if !shown.is_empty() {
        failed.iter().for_each(|error| output::diagnostic(&format!("bareverbs: {error}")));
        return Ok(shown);
    }
    ensure!(!failed.is_empty(), bareverbs::Error::NoDevice);
    bail!(failed.join("; "))
}

fn list(options: &Devinfo) -> Result<()> {
    let devices = bareverbs::devices()?;
    let names: Vec<&str> = devices.iter().map(Device::name).collect();
    let text = if options.json { serde_json::to_string_pretty(&names)? } else { text::list(&names) };
    Ok(output::line(&text)?)
}

/// Declares a part of the report with the fields of an API type. A field is a number, a flag set
/// (`=> bits`) or a named value (`= .0`).
macro_rules! mirror_attr {
    ($(#[$meta:meta])* $name:ident of $source:ident {
        $($field:ident: $type:ty $(=> $method:ident)? $(= .$part:tt)?,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, Serialize)]
        struct $name { $($field: $type,)* }

        impl From<&$source> for $name {
            fn from(from: &$source) -> Self {
                Self { $($field: from.$field$(.$method())?$(.$part)?,)* }
            }
        }
    };
}

mirror_attr! {
    /// Device limits and capabilities, by the field names of libibverbs.
    Limits of DeviceAttr {
        max_mr_size: u64,
        page_size_cap: u64,
        max_qp: u32,
        max_qp_wr: u32,
        device_cap_flags: u64 => bits,
        max_sge: u32,
        max_sge_rd: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        max_qp_rd_atom: u32,
        max_ee_rd_atom: u32,
        max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32,
        max_ee_init_rd_atom: u32,
        atomic_cap: u32 = .0,
        max_ee: u32,
        max_rdd: u32,
        max_mw: u32,
        max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32,
        max_mcast_grp: u32,
        max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32,
        max_ah: u32,
        max_fmr: u32,
        max_map_per_fmr: u32,
        max_srq: u32,
        max_srq_wr: u32,
        max_srq_sge: u32,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        max_tso: u32,
        tso_supported_qpts: u32,
        rx_hash_function: u8 => bits,
        rx_hash_fields_mask: u64 => bits,
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        rate_limit_supported_qpts: u32,
        rss_supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        max_wq_type_rq: u32,
        raw_packet_caps: u32 => bits,
        tm_max_rndv_hdr_size: u32,
        tm_max_num_tags: u32,
        tm_flags: u32 => bits,
        tm_max_ops: u32,
        tm_max_sge: u32,
        max_cq_count: u16,
        max_cq_period: u16,
        max_dm_size: u64,
    }
}

mirror_attr! {
    /// Operations that work on ODP memory.
    OdpCaps of DeviceAttr {
        odp_general_caps: u64 => bits,
        rc_odp_caps: u32 => bits,
        uc_odp_caps: u32 => bits,
        ud_odp_caps: u32 => bits,
        xrc_odp_caps: u32 => bits,
    }
}

mirror_attr! {
    /// The numeric port attributes.
    PortAttrs of PortAttr {
        sm_lid: u16,
        lid: u16,
        lmc: u8,
        max_msg_sz: u32,
        port_cap_flags: u32 => bits,
        port_cap_flags2: u16,
        max_vl_num: u8,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        sm_sl: u8,
        pkey_tbl_len: u16,
        gid_tbl_len: u32,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8 = .0,
        active_speed: u32 = .0,
    }
}

/// The report of one device.
#[derive(Clone, Debug, Serialize)]
struct Info {
    name: String,
    driver: Option<String>,
    node_type: u8,
    transport: &'static str,
    #[serde(skip)]
    transport_number: i8,
    fw_ver: String,
    node_guid: String,
    sys_image_guid: String,
    vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    board_id: Option<String>,
    phys_port_cnt: u8,
    limits: Limits,
    odp: OdpCaps,
    num_comp_vectors: u32,
    ports: Vec<Port>,
}

/// A value with its name.
#[derive(Clone, Debug, Serialize)]
struct NamedValue {
    name: &'static str,
    value: u8,
}

#[derive(Clone, Debug, Serialize)]
struct Port {
    port: u8,
    state: NamedValue,
    phys_state: NamedValue,
    /// Bytes.
    max_mtu: u32,
    active_mtu: u32,
    link_layer: &'static str,
    #[serde(flatten)]
    numbers: PortAttrs,
    /// In Mbit/s, if kernel and driver report it.
    effective_speed: Option<u64>,
    gids: Vec<GidRow>,
}

#[derive(Clone, Debug, Serialize)]
struct GidRow {
    index: u8,
    gid: Ipv6Addr,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The network interface of the GID.
    netdev: Option<String>,
}

fn describe(device: &Device, options: &Devinfo) -> Result<Info> {
    let context = device.open()?;
    let attr = context.query_device()?;
    let ports = match options.ib_port {
        Some(port) => port..=port,
        None => 1..=attr.phys_port_cnt,
    };
    let gids = context.gid_table()?;
    let ports = ports.map(|port| describe_port(&context, port, &gids)).collect::<Result<_>>()?;
    let (transport, transport_number) = transport(device.node_type());
    Ok(Info {
        name: device.name().into(),
        driver: device.driver_id().and_then(DriverId::name).map(str::to_lowercase),
        node_type: device.node_type().0,
        transport,
        transport_number,
        node_guid: attr.node_guid.to_string(),
        sys_image_guid: attr.sys_image_guid.to_string(),
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        board_id: board_id(device.name()),
        phys_port_cnt: attr.phys_port_cnt,
        limits: (&attr).into(),
        odp: (&attr).into(),
        num_comp_vectors: context.capabilities().num_comp_vectors,
        fw_ver: attr.fw_ver,
        ports,
    })
}

fn describe_port(context: &Context, port: u8, gids: &[GidEntry]) -> Result<Port> {
    let attr = context.query_port(port)?;
    Ok(Port {
        port,
        state: NamedValue { name: names::port_state(attr.state.0), value: attr.state.0 },
        phys_state: NamedValue { name: names::phys_state(attr.phys_state.0), value: attr.phys_state.0 },
        max_mtu: attr.max_mtu.bytes(),
        active_mtu: attr.active_mtu.bytes(),
        link_layer: link_layer(attr.link_layer),
        numbers: (&attr).into(),
        effective_speed: context.port_speed(port).ok(),
        gids: gids
            .iter()
            .filter(|entry| entry.port == PortNum(port))
            .map(|entry| GidRow {
                index: entry.index.into(),
                gid: entry.gid.0.into(),
                kind: gid_type(entry.gid_type),
                netdev: netdev(entry.netdev_ifindex),
            })
            .collect(),
    })
}

/// The transport of a node type, with its number in `enum ibv_transport_type`.
fn transport(node: NodeType) -> (&'static str, i8) {
    match node {
        NodeType::CHANNEL_ADAPTER | NodeType::SWITCH | NodeType::ROUTER => ("InfiniBand", 0),
        NodeType::RNIC => ("iWARP", 1),
        NodeType::USNIC => ("usNIC", 2),
        NodeType::USNIC_UDP => ("usNIC UDP", 3),
        NodeType::UNSPECIFIED => ("unspecified", 4),
        _ => ("invalid transport", -1),
    }
}

fn link_layer(layer: LinkLayer) -> &'static str {
    match layer {
        LinkLayer::UNSPECIFIED => "Unspecified",
        LinkLayer::INFINIBAND => "InfiniBand",
        LinkLayer::ETHERNET => "Ethernet",
        _ => "Unknown",
    }
}

/// The board id from sysfs, which only some drivers report.
fn board_id(device: &str) -> Option<String> {
    let path = Path::new("/sys/class/infiniband").join(device).join("board_id");
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

fn netdev(index: u32) -> Option<String> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    if index == 0 {
        return None;
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    index_to_name(socket, index).ok()
}
