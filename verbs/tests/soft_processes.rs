//! Devices of two processes, which are connected by UDP.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use bareverbs::soft::{AddressError, Fabric, SoftDevice};
use bareverbs::values::{AckTimeout, RetryCount};
use bareverbs::{Access, Address, Buffer, Device, Endpoint, Error, Mr, Op, WcStatus};

const ROUNDS: u32 = 200;
const LENGTH: usize = 20_000;
/// Prefix of the line with the child's address.
const PREFIX: &str = "address: ";

type End = Endpoint<Mr<Buffer>>;

/// An endpoint on an address of the loopback network that no other process has.
fn end() -> (End, impl Fn() -> Mr<Buffer>) {
    let first = std::process::id().wrapping_mul(8);
    let device = (first..).find_map(|number| {
        let [_, a, b, c] = number.to_be_bytes();
        match SoftDevice::bind(&Fabric::new(), IpAddr::V4(Ipv4Addr::new(127, a | 1, b, c))) {
            Err(AddressError::InUse { .. } | AddressError::NotLocal { .. }) => None,
            device => Some(device.unwrap()),
        }
    });
    let pd = Device::from(device.unwrap()).open().unwrap().alloc_pd().unwrap();
    let options = Endpoint::options().sends(4).recvs(4);
    // Half a second, for busy machines.
    let options = options.timeout(AckTimeout::new(17).unwrap()).retry_cnt(RetryCount::new(3).unwrap());
    let end = options.build(&pd).unwrap();
    (end, move || pd.register(Buffer::zeroed(LENGTH).unwrap(), Access::LOCAL_WRITE).unwrap())
}

/// The message of a round.
fn message(round: u32) -> Vec<u8> {
    (0..LENGTH as u32).map(|at| (at * 7 + round * 31) as u8).collect()
}

/// Waits for a message.
fn received(end: &mut End) -> Vec<u8> {
    loop {
        let done = end.next().wait().unwrap();
        if let Some(message) = done.message() {
            return message.to_vec();
        }
    }
}

fn send(end: &mut End, mut memory: Mr<Buffer>, message: &[u8]) {
    memory.write(0, message).unwrap();
    end.post(Op::send(memory, ..message.len())).unwrap();
}

#[test]
fn two_processes_exchange_messages_until_one_is_killed() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut end, memory) = end();
    writeln!(child.stdin.as_mut().unwrap(), "{}", end.address()).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let peer: Address = lines
        .find_map(|line| line.unwrap().split_once(PREFIX).map(|(_, address)| address.parse().unwrap()))
        .expect("the child's address");
    end.connect(&peer).unwrap();
    for round in 0..ROUNDS {
        end.post(Op::recv(memory())).unwrap();
        send(&mut end, memory(), &message(round));
        assert_eq!(received(&mut end), message(round), "round {round}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    end.post(Op::send_inline(b"lost")).unwrap();
    let failed = loop {
        if let Err(failed) = end.next().wait() {
            break failed;
        }
    };
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{failed}");
}

#[test]
#[ignore = "the other process of the test above"]
fn other_process() {
    let (mut end, memory) = end();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    end.post(Op::recv(memory())).unwrap();
    end.connect(&line.trim().parse().unwrap()).unwrap();
    println!("{PREFIX}{}", end.address());
    // Ends by a signal.
    loop {
        let message = received(&mut end);
        end.post(Op::recv(memory())).unwrap();
        send(&mut end, memory(), &message);
    }
}

/// A peer rejects a connection of the QPN of one that it still has, with an earlier process on the address.
#[test]
fn first_qpn_on_a_network_is_random() {
    let [one, other] = [(); 2].map(|()| end().0.qp().qp_num());
    assert_ne!(one, other);
    assert!((0x11..0xff_ffff).contains(&one));
    // In the process, it is that of Soft-RoCE.
    let pd = Device::from(SoftDevice::new(&Fabric::new())).open().unwrap().alloc_pd().unwrap();
    assert_eq!(Endpoint::<Mr<Buffer>>::new(&pd, 1, 4).unwrap().qp().qp_num(), 0x11);
}
