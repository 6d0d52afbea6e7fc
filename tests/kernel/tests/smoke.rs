//! The guest has the properties on which the other tests rely.

use std::path::Path;

use bareverbs_kernel_tests::{device, kernel_test};

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}

#[kernel_test(device::has_device_node)]
fn device_is_active_and_has_a_device_node() {
    assert!(Path::new("/dev/infiniband/uverbs0").exists());
    let state = device::read_sysfs("ports/1/state");
    assert_eq!(state, "4: ACTIVE");
}

#[kernel_test(device::ethernet, device::has_device_node, device::gid_table)]
fn device_has_the_gid_of_its_ip_address() {
    let gid = device::read_sysfs(&format!("ports/1/gids/{}", device::gid_index()));
    assert_eq!(gid, "0000:0000:0000:0000:0000:ffff:0a01:0001");
}

#[kernel_test]
fn loopback_carries_tcp() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || std::net::TcpStream::connect(address).map(drop));
    listener.accept().unwrap();
    client.join().unwrap().unwrap();
}

#[kernel_test(device::shared_between_processes)]
fn rdma_core_sees_the_device() {
    let output = std::process::Command::new("ibv_devinfo").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(device::name()), "{text}");
}
