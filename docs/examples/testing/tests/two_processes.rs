//! Two processes, each with a soft device on an address of 127.0.0.0/8: packets of RoCE v2 over UDP.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{self, Command, Stdio};

/// A device whose address no other process has: tests of other programs run at the same time.
fn device(number: u8) -> String {
    let [_, _, a, b] = process::id().to_be_bytes();
    let mut addresses = (1..=u8::MAX).map(|high| Ipv4Addr::new(127, high, a ^ number, b));
    let free = addresses.find(|address| UdpSocket::bind((*address, 4791)).is_ok());
    format!("soft:{}", free.expect("a free address of 127.0.0.0/8"))
}

#[test]
fn file_goes_from_one_process_to_another() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let [original, copy] = ["original", "copy"].map(|name| format!("{folder}/{name}-{}", process::id()));
    fs::write(&original, vec![7; 100_000]).expect("a file");
    let transfer = || Command::new(env!("CARGO_BIN_EXE_transfer"));

    let mut receiver = transfer();
    receiver.args([&device(1), "receive", &copy]).stdout(Stdio::piped());
    let mut receiver = receiver.spawn().expect("the program starts");
    let mut address = String::new();
    BufReader::new(receiver.stdout.take().expect("a pipe")).read_line(&mut address).expect("a line");

    let sent = transfer().args([&device(2), "send", &original, address.trim()]).status();
    assert!(sent.expect("the program starts").success());
    assert!(receiver.wait().expect("a child").success());
    assert!(fs::read(&copy).expect("a file") == fs::read(&original).expect("a file"));
    for file in [original, copy] {
        fs::remove_file(file).expect("a file");
    }
}
