use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bareverbs::device::{DriverId, FoundBy, GidType, LinkLayer, NodeType, PortState};
use bareverbs::error::ObjectClass;
use bareverbs::values::Mtu;
use bareverbs::{Device, Error, PortNum, devices};
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_netlink::RdmaNetlink;
use nix::unistd::{Uid, seteuid};

use crate::pair::{counts, kernel, open};

#[kernel_test(device::is_listed)]
fn netlink_lists_the_device_with_driver_and_node() {
    let found = devices().unwrap();
    assert_eq!(found.iter().map(Device::name).collect::<Vec<_>>(), [device::name()]);
    let device = &found[0];
    assert_eq!(device.found_by(), FoundBy::Netlink);
    let driver = if device::has_rxe_abi() { DriverId::RXE } else { DriverId::MLX5 };
    assert_eq!(device.driver_id(), Some(driver));
    assert_eq!(device.uverbs_path(), Some(Path::new("/dev/infiniband/uverbs0")));
    assert_eq!((device.node_type(), device.port_count()), (NodeType::CHANNEL_ADAPTER, 1));
    let sysfs = device::read_sysfs("node_guid");
    assert_eq!(device.node_guid().to_string(), sysfs.trim());

    let mut netlink = RdmaNetlink::open().unwrap();
    let ports = netlink.ports(device.index().unwrap()).unwrap();
    assert_eq!((ports.len(), ports[0].port, ports[0].state), (1, PortNum(1), PortState::ACTIVE));
    assert_eq!(ports[0].netdev_name.is_some(), device::ethernet().is_ok());
}

#[kernel_test(device::is_listed)]
fn unknown_device_name_lists_the_devices() {
    let error = Device::find("mlx5_7").unwrap_err();
    let expected = format!("no RDMA device is named \"mlx5_7\"; the only device is {}", device::name());
    assert_eq!(error.to_string(), expected);
}

#[kernel_test(device::has_device_node)]
fn open_without_permission_names_the_path() {
    let node = "/dev/infiniband/uverbs0";
    let device = device::device();
    let permissions = std::fs::metadata(node).unwrap().permissions();
    std::fs::set_permissions(node, std::fs::Permissions::from_mode(0o600)).unwrap();
    seteuid(Uid::from_raw(65534)).unwrap();
    let refused = device.open().map(drop);
    seteuid(Uid::from_raw(0)).unwrap();
    std::fs::set_permissions(node, permissions).unwrap();
    let text = refused.unwrap_err().to_string();
    let expected = format!("cannot open {node} of device {}: Permission denied", device::name());
    assert!(text.starts_with(&expected), "{text}");
}

#[kernel_test]
fn capabilities_are_those_of_the_kernel() {
    let context = open();
    let capabilities = context.capabilities();
    assert!(capabilities.num_comp_vectors > 0);
    if device::is_soft_device() {
        assert!(!capabilities.odp && !capabilities.advise_mr);
        assert_eq!(capabilities.num_comp_vectors, 1);
    }
    if device::is_soft_roce() {
        let new = kernel() >= (7, 2);
        assert_eq!((capabilities.odp, capabilities.advise_mr), (new, new));
        // Unsupported by Soft-RoCE on all kernels.
        assert!(!capabilities.port_speed && !capabilities.odp_implicit);
        assert!(!capabilities.completion_timestamps && !capabilities.device_memory);
        let processors = std::thread::available_parallelism().unwrap().get();
        assert_eq!(capabilities.num_comp_vectors as usize, processors);
    }
}

#[kernel_test]
fn query_device_reports_limits() {
    let attr = open().query_device().unwrap();
    assert_eq!(attr.phys_port_cnt, 1);
    if device::has_rxe_abi() {
        assert_eq!((attr.max_sge, attr.max_qp_wr, attr.max_cqe), (32, 1 << 20, 32767));
        assert_eq!((attr.max_qp_rd_atom, attr.completion_timestamp_mask), (128, 0));
    }
    assert_eq!(attr.node_guid, device::device().node_guid());
}

#[kernel_test]
fn port_speed_is_reported_or_unsupported() {
    let context = open();
    match context.port_speed(1) {
        Ok(speed) => assert!(context.capabilities().port_speed && speed > 0, "{speed} Mbit/s"),
        Err(refused) => {
            assert!(matches!(refused, Error::Unsupported { verb: "query_port_speed", .. }), "{refused}");
        }
    }
}

#[kernel_test]
fn query_port_reports_state_and_mtu() {
    let port = open().query_port(1).unwrap();
    assert_eq!((port.state, port.max_mtu), (PortState::ACTIVE, Mtu::Mtu4096));
    if device::is_infiniband() {
        assert_eq!(port.link_layer, LinkLayer::INFINIBAND);
        assert_ne!(port.lid, 0);
    } else {
        assert_eq!((port.link_layer, port.lid), (LinkLayer::ETHERNET, 0));
        // An Ethernet MTU of 1500 bytes allows a path MTU of 1024.
        assert_eq!(port.active_mtu, if device::is_soft_device() { Mtu::Mtu4096 } else { Mtu::Mtu1024 });
    }
    if device::has_device_node().is_ok() {
        let gids = std::fs::read_dir(device::sysfs("ports/1/gids")).unwrap();
        assert_eq!(port.gid_tbl_len as usize, gids.count());
    }
}

#[kernel_test]
fn nonexistent_ports_are_rejected_with_the_valid_range() {
    let (context, device) = (open(), device::name());
    for port in [0, 3, 255] {
        let expected = format!("device {device} has no port {port}: its only port is 1");
        assert_eq!(context.query_port(port).unwrap_err().to_string(), expected);
        assert_eq!(context.gid(port, 0).unwrap_err().to_string(), expected);
        assert_eq!(context.default_gid(port).unwrap_err().to_string(), expected);
    }
}

#[kernel_test(device::ethernet)]
fn gid_table_contains_the_ip_address_and_the_default_is_ipv4() {
    let context = open();
    let table = context.gid_table().unwrap();
    let default = context.default_gid(1).unwrap();
    let address = if device::is_soft_device() { "::ffff:127.0.0.1" } else { "::ffff:10.1.0.1" };
    assert_eq!(default.gid.to_string(), address);
    assert_eq!((default.gid_type, default.port), (GidType::ROCE_V2, PortNum(1)));
    assert!(table.contains(&default), "{table:?}");
    assert!(table.iter().any(|entry| entry.gid.is_link_local()), "{table:?}");
    assert_eq!(context.gid(1, default.index).unwrap(), default);
}

#[kernel_test]
fn empty_and_out_of_range_gid_indices_are_rejected() {
    let (context, device) = (open(), device::name());
    let length = context.query_port(1).unwrap().gid_tbl_len;
    let filled: Vec<_> = context.gid_table().unwrap().iter().map(|entry| entry.index.to_string()).collect();
    let filled = filled.join(", ");
    let last = u8::try_from(length - 1).unwrap_or(u8::MAX);
    for index in [last, u8::MAX] {
        let refused = context.gid(1, index).unwrap_err().to_string();
        let reason = match u32::from(index) < length {
            true => "is empty".to_owned(),
            false => format!("exceeds the table of {length} entries"),
        };
        let expected =
            format!("GID index {index} of port 1 of device {device} {reason}; filled entries: {filled}");
        assert!(refused.starts_with(&expected), "{refused}");
    }
}

#[kernel_test]
fn default_pkey_is_read() {
    let context = open();
    assert_eq!(context.pkey(1, 0).unwrap(), 0xffff);
    let length = context.query_port(1).unwrap().pkey_tbl_len;
    assert!(matches!(context.pkey(1, length), Err(Error::Invalid { .. })));
}

#[kernel_test]
fn netlink_counts_objects_of_a_context() {
    let before = counts();
    let context = open();
    let pds: Vec<_> = (0..3).map(|_| context.alloc_pd().unwrap()).collect();
    let during = counts();
    assert_eq!((during.pd - before.pd, during.ctx - before.ctx), (3, 1));
    assert_eq!(context.object_count(ObjectClass::PD).unwrap(), 3);
    drop(pds);
    assert_eq!(context.object_count(ObjectClass::PD).unwrap(), 0);
    drop(context);
    assert_eq!(counts(), before);
}
