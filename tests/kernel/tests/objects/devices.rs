//! Attributes of a device and its ports.

use bareverbs::values::Guid;
use bareverbs::{Error, PortNum};
use bareverbs_kernel_tests::loopback::open;
use bareverbs_kernel_tests::{device, kernel_test};

const PAGE: u64 = 4096;

#[kernel_test]
fn query_device_limits_are_plausible() {
    let context = open();
    let attr = context.query_device().unwrap();
    for (what, guid) in [("node", attr.node_guid), ("system", attr.sys_image_guid)] {
        assert!(guid != Guid::default(), "{what}");
    }
    assert!(attr.max_mr_size > PAGE && attr.page_size_cap >= PAGE && attr.page_size_cap & PAGE != 0);
    for (what, limit) in [
        ("vendor_id", attr.vendor_id),
        ("max_qp", attr.max_qp),
        ("max_qp_wr", attr.max_qp_wr),
        ("max_sge", attr.max_sge),
        ("max_cq", attr.max_cq),
        ("max_cqe", attr.max_cqe),
        ("max_mr", attr.max_mr),
        ("max_pd", attr.max_pd),
    ] {
        assert_ne!(limit, 0, "{what}");
    }
    assert_eq!(attr.max_pkeys != 0, device::pkeys().is_ok());
    assert_eq!(attr.phys_port_cnt, context.device().port_count());
    let port = context.query_port(1).unwrap();
    assert!(port.max_msg_sz > 0x1000 && port.active_mtu <= port.max_mtu);
}

#[kernel_test(device::has_device_node, device::pkeys)]
fn get_pkey_index_finds_the_default_pkey() {
    let context = open();
    let kernels = device::read_sysfs("ports/1/pkeys/0");
    let pkey = u16::from_str_radix(kernels.trim().trim_start_matches("0x"), 16).unwrap();
    assert_eq!(context.pkey_index(1, pkey).unwrap(), 0);
    assert_eq!(
        context.pkey_index(1, 0x8001).unwrap_err().to_string(),
        "get_pkey_index: port 1 has no P_Key 0x8001; its P_Keys are 0xffff"
    );
    assert!(matches!(context.pkey_index(2, pkey), Err(Error::NoPort { port: PortNum(2), .. })));
}
