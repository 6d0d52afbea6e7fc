//! Missing devices, permissions, ports and addresses, and requests beyond the device's limits.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs::ah::AhAttr;
use bareverbs::cq::CqInit;
use bareverbs::device::PortState;
use bareverbs::qp::{InitAttr, QpCap, QpInit, QpState, Rc, RtrAttr};
use bareverbs::values::GidIndex;
use bareverbs::{Context, Device, Errno, Error, PortNum};
use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::loopback::{Plan, domain, open, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{child, device, kernel_test};
use bareverbs_netlink::RdmaNetlink;

use crate::root_only::RootOnly;
use crate::tool::tool_error;

/// Removes the Soft-RoCE device until it is dropped.
struct Removed {
    netlink: RdmaNetlink,
    netdev: String,
}

impl Removed {
    fn new() -> Self {
        let mut netlink = RdmaNetlink::open().unwrap();
        let device = device::device();
        let port = netlink.ports(device.index().unwrap()).unwrap().remove(0);
        netlink.del_link(device::name()).unwrap();
        Self { netlink, netdev: port.netdev_name.unwrap() }
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        restore_soft_roce(&mut self.netlink, &self.netdev);
    }
}

/// Creates the Soft-RoCE device of the tests again, and waits until it has its addresses.
pub(crate) fn restore_soft_roce(netlink: &mut RdmaNetlink, netdev: &str) {
    netlink.new_link(device::name(), "rxe", netdev).unwrap();
    let begin = Instant::now();
    let is_back = || {
        let context = Device::find(device::name())?.open()?;
        // The IPv4 address comes after the link-local one.
        Ok::<_, Error>(context.query_port(1)?.state == PortState::ACTIVE && context.gid_table()?.len() > 1)
    };
    while !is_back().unwrap_or(false) {
        assert!(begin.elapsed() < TIMEOUT, "the device did not come back");
        sleep(Duration::from_millis(20));
    }
}

#[kernel_test(device::soft_roce)]
fn missing_device_is_reported_by_every_entry_point() {
    let removed = Removed::new();
    assert!(bareverbs::devices().unwrap().is_empty());
    let first = Device::first().unwrap_err();
    assert!(matches!(first, Error::NoDevice), "{first:?}");
    assert!(first.to_string().starts_with("no RDMA device found: load its driver, or create"), "{first}");
    let opened = Context::open_first().map(drop).unwrap_err();
    assert!(matches!(opened, Error::NoDevice), "{opened:?}");
    let named = Device::find(device::name()).unwrap_err();
    assert_eq!(named.to_string(), format!("no RDMA device is named {:?}; no device exists", device::name()));

    for args in [&["pingpong", "rc"][..], &["devinfo"]] {
        let line = tool_error(args);
        assert!(line.contains("no RDMA device found"), "{args:?}: {line}");
    }
    drop(removed);
    drop(open());
}

/// A second device, over the peer of the guest's interface, until it is dropped.
struct Second;

impl Second {
    const NAME: &str = "second0";

    fn new() -> Self {
        RdmaNetlink::open().unwrap().new_link(Self::NAME, "rxe", device::FAR).unwrap();
        let begin = Instant::now();
        while Device::find(Self::NAME).and_then(|device| device.open()).is_err() {
            assert!(begin.elapsed() < TIMEOUT, "the second device can't be opened");
            sleep(Duration::from_millis(10));
        }
        Self
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        RdmaNetlink::open().unwrap().del_link(Self::NAME).unwrap();
    }
}

/// Moves the node of a device out of the folder of nodes, until it is dropped.
struct Hidden {
    node: PathBuf,
    away: PathBuf,
}

impl Hidden {
    fn new(device: &str) -> Self {
        let node = Device::find(device).unwrap().uverbs_path().unwrap().to_owned();
        let away = PathBuf::from(format!("/dev/hidden-{device}"));
        fs::rename(&node, &away).unwrap();
        Self { node, away }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        fs::rename(&self.away, &self.node).unwrap();
    }
}

#[kernel_test(device::has_peer_veth)]
fn device_without_node_is_skipped_unless_it_is_named() {
    let first = device::name();
    let _second = Second::new();
    let hidden = Hidden::new(first);
    assert_eq!(Context::open_first().unwrap().device().name(), Second::NAME);
    let missing = Device::find(first).unwrap().open().map(drop).unwrap_err().to_string();

    let shown = Command::new("bareverbs").args(["devinfo", "--json"]).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.status.success() && text.contains(Second::NAME) && !text.contains(first), "{text}");
    assert_eq!(String::from_utf8(shown.stderr).unwrap(), format!("bareverbs: {missing}\n"));
    // A message of this length is refused after the device was opened.
    let too_long = ["pingpong", "rc", "-s", "0xffffffff"];
    let line = tool_error(&too_long);
    assert!(line.starts_with(&format!("{}: a message of", Second::NAME)), "{line}");
    assert_eq!(tool_error(&["pingpong", "rc", "-d", first]), missing);
    assert_eq!(tool_error(&["devinfo", "-d", first]), missing);

    let both = Hidden::new(Second::NAME);
    let none = Context::open_first().map(drop).unwrap_err();
    assert!(matches!(&none, Error::NoneOpened { reasons } if reasons.len() == 2), "{none:?}");
    assert_eq!(none.errno(), Some(Errno::NOENT));
    let line = tool_error(&too_long);
    assert_eq!(line, none.to_string());
    for node in [&hidden.node, &both.node] {
        assert!(line.contains(&format!("cannot open {}", node.display())), "{line}");
    }
}

#[kernel_test(device::has_device_node)]
fn open_without_permission_names_the_device_node() {
    let root_only = RootOnly::new();
    nothing_leaks(|| {
        child::run(|| {
            child::drop_privileges();
            // Listing devices needs no permission.
            let device = device::device();
            let refused = device.open().map(drop).unwrap_err();
            assert!(matches!(refused, Error::Open { .. }), "{refused:?}");
            let (text, [start, end]) = (refused.to_string(), root_only.words());
            assert!(text.starts_with(&start) && text.ends_with(&end), "{text}");
        });
    });
}

#[kernel_test]
fn every_verb_rejects_invalid_ports() {
    nothing_leaks(|| {
        let pd = domain();
        let mut side = side(&pd, Plan::default());
        let (context, device) = (pd.context(), device::name());
        for port in [0_u8, 2, 3, 255] {
            let verbs = [
                context.query_port(port).map(drop),
                context.port_speed(port).map(drop),
                context.gid(port, 0).map(drop),
                context.default_gid(port).map(drop),
                context.pkey(port, 0).map(drop),
                side.qp.init(&InitAttr::new(port)),
            ];
            for refused in verbs {
                let text = refused.unwrap_err().to_string();
                assert_eq!(text, format!("device {device} has no port {port}: its only port is 1"));
            }
        }
        assert_eq!((side.qp.state(), side.kernel_state()), (QpState::RESET, device::reported_reset()));

        side.qp.init(&InitAttr::new(1)).unwrap();
        let good = side.towards(1);
        for port in [0, 3] {
            let refused = side.qp.ready_to_receive(&RtrAttr {
                address: AhAttr { port: PortNum(port), ..good.address },
                ..good
            });
            assert!(matches!(refused, Err(Error::NoPort { .. })), "{refused:?}");
        }
        assert_eq!((side.qp.state(), side.kernel_state()), (QpState::INIT, QpState::INIT));
    });
}

#[kernel_test]
fn invalid_gid_index_leaves_qp_in_init() {
    nothing_leaks(|| {
        let pd = domain();
        let mut side = side(&pd, Plan::default());
        side.qp.init(&InitAttr::new(1)).unwrap();
        let table = pd.context().gid_table().unwrap();
        let filled: Vec<String> = table.iter().map(|entry| entry.index.to_string()).collect();
        let filled = format!("filled entries: {}", filled.join(", "));
        let length = pd.context().query_port(1).unwrap().gid_tbl_len;
        let device = device::name();
        let good = side.towards(1);

        let empty =
            (0..).map(GidIndex).find(|index| table.iter().all(|entry| entry.index != *index)).unwrap();
        for index in [empty, GidIndex(u8::MAX)] {
            let refused = pd.context().gid(1, index).unwrap_err();
            assert!(matches!(refused, Error::NoGid { .. }), "{refused:?}");
            let text = refused.to_string();
            assert!(text.starts_with(&format!("GID index {index} of port 1 of device {device} ")), "{text}");
            assert!(text.ends_with(&filled), "{text}");
            assert_eq!(
                text.contains(&format!("exceeds the table of {length} entries")),
                u32::from(index) >= length,
                "{text}"
            );
            assert_eq!(text.contains("is empty"), u32::from(index) < length, "{text}");
        }
        let address = AhAttr::global(1, good.address.grh.unwrap().dgid, empty);
        let refused = side.qp.ready_to_receive(&RtrAttr { address, ..good }).unwrap_err();
        assert!(matches!(refused, Error::NoGid { .. }), "{refused:?}");
        assert_eq!((side.qp.state(), side.kernel_state()), (QpState::INIT, QpState::INIT));
        side.qp.ready_to_receive(&good).unwrap();
    });
}

#[kernel_test]
fn queues_above_device_limits_name_the_limit() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let limits = context.query_device().unwrap();
        let max_cqe = limits.max_cqe;
        for entries in [0, max_cqe + 1, 1 << 31, u32::MAX] {
            let refused = context.create_cq(&CqInit::new(entries)).map(drop).unwrap_err().to_string();
            assert_eq!(
                refused,
                match entries {
                    0 => "create_cq: a CQ requires at least 1 entry".to_owned(),
                    _ => format!("create_cq: cqe {entries} is above the maximum of {max_cqe}"),
                }
            );
        }
        let cq = context.create_cq(&CqInit::new(16)).unwrap();
        let create = |cap| pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).map(drop);
        type Field = fn(&mut QpCap) -> &mut u32;
        let fields: [(&str, Field, u32); 4] = [
            ("max_send_wr", |cap| &mut cap.max_send_wr, limits.max_qp_wr),
            ("max_recv_wr", |cap| &mut cap.max_recv_wr, limits.max_qp_wr),
            ("max_send_sge", |cap| &mut cap.max_send_sge, limits.max_sge),
            ("max_recv_sge", |cap| &mut cap.max_recv_sge, limits.max_sge),
        ];
        for (what, field, max) in fields {
            for asked in [max + 1, 1 << 31, u32::MAX] {
                let mut cap = QpCap::default();
                *field(&mut cap) = asked;
                let refused = create(cap).unwrap_err();
                assert!(matches!(refused, Error::Limit { .. }), "{refused:?}");
                let text = format!("create_qp: {what} {asked} is above the maximum of {max}");
                assert_eq!(refused.to_string(), text);
            }
        }
        // The device reports no limit for it; the kernel or the provider has one.
        for max_inline_data in [1 << 20, 1 << 31, u32::MAX] {
            let refused = create(QpCap { max_inline_data, ..QpCap::default() }).unwrap_err();
            let text = refused.to_string();
            if let Error::Limit { max, .. } = refused {
                create(QpCap { max_inline_data: max as u32, ..QpCap::default() })
                    .expect("the limit is possible");
                let start = format!("create_qp: max_inline_data {max_inline_data} is above");
                assert!(text.starts_with(&start), "{text}");
                continue;
            }
            let hint = format!("the device may not support {max_inline_data} inline bytes: request fewer");
            assert!(text.starts_with("create_qp (") && text.ends_with(&hint), "{text}");
        }
        create(QpCap::default()).unwrap();
        // Queues of depth 0 may be rejected or created.
        for cap in [
            QpCap { max_send_wr: 0, ..QpCap::default() },
            QpCap { max_recv_wr: 0, ..QpCap::default() },
            QpCap { max_send_sge: 0, max_recv_sge: 0, ..QpCap::default() },
            QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 },
        ] {
            if let Err(refused) = create(cap) {
                assert!(refused.to_string().starts_with("create_qp"), "{refused}");
            }
        }
    });
}
