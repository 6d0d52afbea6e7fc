//! The guest is what the other tests take for granted.

use std::fs;
use std::path::Path;

use bareverbs_kernel_tests::kernel_tests;

kernel_tests! {
    rxe0_is_an_active_device_with_a_device_node,
    rxe0_has_the_gid_of_its_address,
    loopback_carries_tcp,
    the_c_stack_sees_rxe0,
}

fn rxe0_is_an_active_device_with_a_device_node() {
    assert!(Path::new("/dev/infiniband/uverbs0").exists());
    let state = fs::read_to_string("/sys/class/infiniband/rxe0/ports/1/state").unwrap();
    assert_eq!(state.trim(), "4: ACTIVE");
}

fn rxe0_has_the_gid_of_its_address() {
    let gid = fs::read_to_string("/sys/class/infiniband/rxe0/ports/1/gids/1").unwrap();
    assert_eq!(gid.trim(), "0000:0000:0000:0000:0000:ffff:0a01:0001");
}

fn loopback_carries_tcp() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || std::net::TcpStream::connect(address).map(drop));
    listener.accept().unwrap();
    client.join().unwrap().unwrap();
}

fn the_c_stack_sees_rxe0() {
    let output = std::process::Command::new("ibv_devinfo").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("rxe0"), "{text}");
}
