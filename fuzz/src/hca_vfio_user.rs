//! vfio-user messages of a virtual machine monitor to the software ConnectX: raw socket bytes, and
//! valid messages with some fields changed.
//!
//! Each message gets a reply with its id and the reply's own length, which is bounded. The device
//! still answers after any message.

use std::os::fd::OwnedFd;

use bareverbs_hca::Link;
use bareverbs_hca::testing::{Monitor, MonitorMessage, with_monitor};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::input::Input;

const HEADER: usize = 16;
/// Bytes of the longest reply: the longest read and the fields before it.
const LONGEST: usize = HEADER + 16 + (1 << 20);
const MEMORY: u64 = 0x1_0000;
const STEPS: usize = 100;

fn memory() -> OwnedFd {
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&memory, MEMORY).expect("a length");
    memory
}

fn check_reply(reply: &[u8], id: u16, command: u16) {
    let half = |at: usize| u16::from_le_bytes([reply[at], reply[at + 1]]);
    let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
    assert_eq!((half(0), half(2)), (id, command));
    assert_eq!(word(4) as usize, reply.len());
    assert!((HEADER..=LONGEST).contains(&reply.len()));
    assert_eq!(word(8) & 0xf, 1, "a reply");
    assert_eq!(word(8) & 1 << 5 != 0, word(12) != 0, "an error has a number");
}

fn send(monitor: &mut Monitor<'_>, command: u16, body: Vec<u8>, fds: Vec<OwnedFd>) {
    let reply = monitor.send(MonitorMessage { id: 7, command, body, fds });
    check_reply(&reply, 7, command);
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Guest memory addresses. They often repeat, so that ranges overlap.
fn address(input: &mut Input<'_>) -> u64 {
    match input.byte() % 8 {
        0 => input.long(),
        _ => u64::from(input.byte()) << 12,
    }
}

fn message(monitor: &mut Monitor<'_>, input: &mut Input<'_>) {
    const DMA_MAP: u16 = 2;
    const DMA_UNMAP: u16 = 3;
    const SET_IRQS: u16 = 8;
    const REGION_READ: u16 = 9;
    const REGION_WRITE: u16 = 10;
    match input.byte() % 8 {
        0 => {
            let (flags, offset) = (u32::from(input.byte() & 7), address(input));
            let range = [address(input), u64::from(input.byte()) << 12];
            let fds = (0..input.byte() % 3).map(|_| memory()).collect();
            let body = [words(&[32, flags]), offset.to_le_bytes().to_vec(), longs(&range)].concat();
            send(monitor, DMA_MAP, body, fds);
        }
        1 => {
            let flags = u32::from(input.byte() & 3);
            let range = [address(input), u64::from(input.byte()) << 12];
            send(monitor, DMA_UNMAP, [words(&[24, flags]), longs(&range)].concat(), Vec::new());
        }
        2 => {
            let head = [20, u32::from(input.byte() & 0x3f), u32::from(input.byte() % 5)];
            let range = [input.byte().into(), input.byte().into()];
            let fds = (0..input.byte() % 4).map(|_| memory()).collect();
            send(monitor, SET_IRQS, words(&[&head[..], &range].concat()), fds);
        }
        3 => {
            let (offset, region) = (place(input), u32::from(input.byte() % 10));
            let count = if input.one_in(8) { input.word() } else { u32::from(input.byte()) };
            send(monitor, REGION_READ, [longs(&[offset]), words(&[region, count])].concat(), Vec::new());
        }
        4 | 5 => {
            let (offset, region) = (place(input), u32::from(input.byte() % 10));
            let length = input.one_of(&[1, 2, 4, 8, 64]);
            let count = if input.one_in(8) { input.word() } else { length as u32 };
            let body = [longs(&[offset]), words(&[region, count]), input.bytes(length)].concat();
            send(monitor, REGION_WRITE, body, Vec::new());
        }
        6 => {
            let (command, length) = (u16::from(input.byte()) % 20, input.byte());
            send(monitor, command, input.slice(length.into()).to_vec(), Vec::new());
        }
        _ => {
            let length = usize::from(input.half());
            // Bytes that are not a message end the connection, but not the device.
            if let Ok(replies) = monitor.send_bytes(input.slice(length)) {
                replies.iter().for_each(|reply| assert!(reply.len() <= LONGEST));
            }
        }
    }
}

fn place(input: &mut Input<'_>) -> u64 {
    match input.byte() % 4 {
        0 => u64::from(input.byte()),
        1 => u64::from(input.half()),
        2 => u64::from(input.word()) % (64 << 20),
        _ => input.long(),
    }
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let link = if input.byte() & 1 == 0 { Link::InfiniBand } else { Link::Ethernet };
    let device = with_monitor(link, |monitor| {
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            message(monitor, &mut input);
        }
        // Reads the vendor and device ID.
        let body = [longs(&[0]), words(&[7, 4])].concat();
        let reply = monitor.send(MonitorMessage { id: 1, command: 9, body, fds: Vec::new() });
        assert_eq!(reply[HEADER + 16..], [0xb3, 0x15, 0x17, 0x10]);
    });
    device.expect("a device");
}
