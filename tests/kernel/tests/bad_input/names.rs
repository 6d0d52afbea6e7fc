//! Names and numbers of devices from outside of the program.

use bareverbs::device::DriverId;
use bareverbs::{Device, Error};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_netlink::{Error as NetlinkError, RdmaNetlink};
use bareverbs_provider::device::{DeviceFile, OpenError};

/// A request to netlink that is rejected before it is sent.
#[track_caller]
fn invalid<T>(answer: bareverbs_netlink::Result<T>, text: &str) {
    let refused = answer.map(drop).expect_err(text);
    assert!(matches!(refused, NetlinkError::Invalid { .. }), "{refused:?}");
    assert_eq!(refused.to_string(), text);
}

/// Names that no device has: empty, paths, with special bytes, and very long.
fn invalid_names() -> Vec<String> {
    let name = device::name();
    let words = [
        "",
        " ",
        ".",
        "..",
        "/",
        "../../null",
        "../../dev/null",
        "/dev/infiniband/uverbs0",
        "%s%n%d",
        "-d",
        "*",
    ];
    let (start, number) = name.split_at(name.len() - 1);
    let (first, others) = name.split_at(1);
    let near = [
        format!("{name}\0"),
        format!("\0{name}"),
        format!("{name}\n"),
        format!("{name}/ports/1"),
        format!("{start}%d"),
        name.to_uppercase(),
        start.to_owned(),
        format!("{name}{number}"),
        format!("{first}\u{200b}{others}"),
        format!("\u{feff}{name}"),
        format!("{name} {start}1"),
    ];
    let long = [63, 64, 65, 255, 256, 4096, 1 << 20].map(|length| "r".repeat(length));
    words.map(str::to_owned).into_iter().chain(near).chain(long).collect()
}

#[kernel_test(device::has_device_node)]
fn unknown_device_names_are_rejected() {
    nothing_leaks(|| {
        for name in invalid_names() {
            let refused = Device::find(&name).unwrap_err();
            assert!(matches!(refused, Error::UnknownDevice { .. }), "{refused:?}");
            let text = refused.to_string();
            assert_eq!(
                text,
                format!("no RDMA device is named {name:?}; the only device is {}", device::name())
            );
            let counted = RdmaNetlink::open().unwrap().resources(&name).unwrap_err();
            assert_eq!(counted.to_string(), text);
            let removed = RdmaNetlink::open().unwrap().del_link(&name).unwrap_err();
            assert_eq!(removed.to_string(), text);
        }
    });
}

#[kernel_test(device::has_device_node)]
fn new_link_rejects_invalid_names() {
    nothing_leaks(|| {
        let mut netlink = RdmaNetlink::open().unwrap();
        let devices = netlink.devices().unwrap();
        // Any interface works, because none of these names is accepted.
        let netdev = netlink.ports(devices[0].index).unwrap()[0].netdev_name.clone().unwrap_or("lo".into());
        invalid(netlink.new_link("", "rxe", &netdev), "RdmaNetlink::new_link: the device name is empty");
        invalid(netlink.new_link("rxe1", "", &netdev), "RdmaNetlink::new_link: the type is empty");
        invalid(netlink.new_link("rxe1", "rxe", ""), "RdmaNetlink::new_link: the network interface is empty");
        for name in ["../../null", "..", "a/b", "rxe%d", "rxe 1", "rxe\n1", "rxe:1", "rxe\0"] {
            for (refused, what) in [
                (netlink.new_link(name, "rxe", &netdev), "device name"),
                (netlink.new_link("rxe1", name, &netdev), "type"),
                (netlink.new_link("rxe1", "rxe", name), "network interface"),
            ] {
                let reason = "it must not contain '/', '%', ':', whitespace or NUL, or be '.' or '..'";
                invalid(refused, &format!("RdmaNetlink::new_link: invalid {what} {name:?}: {reason}"));
            }
        }
        let long = "r".repeat(64);
        let text = format!("RdmaNetlink::new_link: device name {long:?} has 64 bytes; the maximum is 63");
        invalid(netlink.new_link(&long, "rxe", &netdev), &text);
        // The kernel would truncate it, and find another interface.
        let cut = format!("{netdev:a<16}");
        let text =
            format!("RdmaNetlink::new_link: network interface {cut:?} has 16 bytes; the maximum is 15");
        invalid(netlink.new_link("rxe1", "rxe", &cut), &text);

        let reported = |refused: bareverbs_netlink::Result<()>, start: &str| {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, NetlinkError::Kernel(_)), "{refused:?}");
            assert!(refused.to_string().starts_with(start), "{refused}");
        };
        reported(netlink.new_link("rxe1", "rxe", "nosuch0"), "creating rxe device rxe1 on nosuch0: ");
        reported(
            netlink.new_link("rxe1", "nosuch", &netdev),
            &format!("creating nosuch device rxe1 on {netdev}: "),
        );
        let name = device::name();
        reported(
            netlink.new_link(name, "rxe", &netdev),
            &format!("creating rxe device {name} on {netdev}: "),
        );
        assert_eq!(netlink.devices().unwrap(), devices);
    });
}

#[kernel_test]
fn open_rejects_non_device_paths() {
    nothing_leaks(|| {
        let long = format!("/dev/{}", "u".repeat(5000));
        for path in [
            "",
            "/",
            "/dev",
            "/dev/infiniband",
            "/dev/infiniband/uverbs9999",
            "/dev/null/uverbs0",
            "/dev/n\0",
            &long,
        ] {
            let OpenError::Ioctl(refused) = DeviceFile::open(path, DriverId::MLX5.0).unwrap_err() else {
                panic!("{path:?} was opened");
            };
            assert_eq!(refused.method, "open", "{path:?}");
            assert!(refused.to_string().starts_with("open was refused by the kernel: "), "{refused}");
        }
    });
}

#[kernel_test(device::has_device_node)]
fn netlink_error_names_the_device_index() {
    nothing_leaks(|| {
        let mut netlink = RdmaNetlink::open().unwrap();
        let index = netlink.devices().unwrap()[0].index;
        for wrong in [index + 1, 1 << 31, u32::MAX] {
            for (refused, start) in [
                (netlink.ports(wrong).map(drop), "listing the ports of"),
                (netlink.char_device(wrong, "uverbs").map(drop), "querying the uverbs character device of"),
            ] {
                // The kernel returns the same error for a missing device and for an unsupported
                // resource type.
                let Err(refused) = refused else { continue };
                assert!(matches!(refused, NetlinkError::Kernel(_)), "{refused:?}");
                let text = refused.to_string();
                assert!(text.starts_with(&format!("{start} device {wrong}: ")), "{text}");
            }
        }
        for kind in ["nosuch", "uverbs0", "UVERBS"] {
            assert_eq!(netlink.char_device(index, kind).unwrap(), None, "{kind}");
        }
        let long = "u".repeat(32);
        invalid(
            netlink.char_device(index, &long),
            &format!("RdmaNetlink::char_device: type {long:?} has 32 bytes; the maximum is 31"),
        );
        invalid(netlink.char_device(index, ""), "RdmaNetlink::char_device: the type is empty");
        let reason = "it must not contain '/', '%', ':', whitespace or NUL, or be '.' or '..'";
        for kind in ["../uverbs", "uverbs\0", "%s"] {
            let text = format!("RdmaNetlink::char_device: invalid type {kind:?}: {reason}");
            invalid(netlink.char_device(index, kind), &text);
        }
        // The connection manager belongs to no device, and uverbs to one.
        assert_eq!(netlink.char_device(index, "rdma_cm").unwrap(), None);
        assert_eq!(netlink.global_char_device("uverbs").unwrap(), None);
        assert_eq!(netlink.global_char_device("nosuch").unwrap(), None);
        let text = "RdmaNetlink::global_char_device: the type is empty";
        invalid(netlink.global_char_device(""), text);
        let found = netlink.global_char_device("rdma_cm").unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.abi, found.driver_id), ("rdma_cm", 4, None));
        // The socket still works.
        assert!(netlink.char_device(index, "uverbs").unwrap().is_some());
    });
}
