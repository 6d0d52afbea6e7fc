//! The device from a virtual machine monitor's side: messages on a vfio-user socket.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bareverbs_hca::{Fabric, Link, Server, Setup};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const DEVICE_GET_REGION_INFO: u16 = 5;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const DEVICE_RESET: u16 = 13;
/// Registers of the device and command opcodes.
const QUEUE_HIGH: u64 = 0x10;
const QUEUE_LOW: u64 = 0x14;
const COMMAND_DOORBELL: u64 = 0x18;
const QUERY_ADAPTER: u16 = 0x101;
const ENABLE_HCA: u16 = 0x104;
/// Guest address of the tests' memory.
const GUEST_ADDRESS: u64 = 0x4000_0000;

/// A new device for each test. Its thread runs until the process exits.
fn hca() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("bareverbs-hca-test-{}-{number}", std::process::id()));
    let setup = Setup { link: Link::InfiniBand, index: 0, cqe_version: 1, verbose: false };
    let server = Server::bind(&path, setup, &Fabric::new()).unwrap();
    std::thread::spawn(move || server.serve());
    path
}

fn connect(path: &PathBuf) -> UnixStream {
    let socket = UnixStream::connect(path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// Sends a request and returns the errno and body of its reply.
fn ask(socket: &UnixStream, command: u16, body: &[u8], fd: Option<BorrowedFd<'_>>) -> (u32, Vec<u8>) {
    let mut bytes = vec![7, 0];
    bytes.extend_from_slice(&command.to_le_bytes());
    bytes.extend_from_slice(&(16 + body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(body);
    let fds: Vec<_> = fd.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::empty()).unwrap();
    assert_eq!(sent, bytes.len());
    let mut header = [0; 16];
    (&*socket).read_exact(&mut header).unwrap();
    assert_eq!(header[..2], [7, 0]);
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let mut body = vec![0; word(4) as usize - 16];
    (&*socket).read_exact(&mut body).unwrap();
    (word(12), body)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn transfer(offset: u64, region: u32, count: u32) -> Vec<u8> {
    [offset.to_le_bytes().to_vec(), words(&[region, count])].concat()
}

fn mapping(address: u64, length: u64) -> Vec<u8> {
    [
        words(&[32, 3]),
        0u64.to_le_bytes().to_vec(),
        address.to_le_bytes().to_vec(),
        length.to_le_bytes().to_vec(),
    ]
    .concat()
}

fn memory() -> OwnedFd {
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, 0x10_000).unwrap();
    memory
}

#[test]
fn vfio_user_reports_version_regions_and_ids() {
    let socket = connect(&hca());
    let (errno, body) = ask(&socket, VERSION, b"\0\0\0\0{}\0", None);
    assert_eq!((errno, &body[..4]), (0, &[0; 4][..]));
    let (_, info) = ask(&socket, DEVICE_GET_REGION_INFO, &words(&[32, 0, 0, 0, 0, 0, 0, 0]), None);
    assert_eq!(u64::from_le_bytes(info[16..24].try_into().unwrap()), 32 << 20);
    let (_, identity) = ask(&socket, REGION_READ, &transfer(0, 7, 4), None);
    assert_eq!(identity[16..], [0xb3, 0x15, 0x17, 0x10]);
}

fn store(socket: &UnixStream, at: u64, value: u32) {
    let body = [transfer(at, 0, 4), value.to_be_bytes().to_vec()].concat();
    assert_eq!(ask(socket, REGION_WRITE, &body, None).0, 0);
}

/// Sets the address of the command queue, as a driver does.
fn set_up(socket: &UnixStream) {
    store(socket, QUEUE_HIGH, 0);
    store(socket, QUEUE_LOW, GUEST_ADDRESS as u32);
}

/// Writes a command into the first slot and rings the doorbell. Returns the slot's owner bit and
/// the command's status.
fn command(socket: &UnixStream, memory: &OwnedFd, opcode: u16) -> (u8, u8) {
    let mut slot = [0; 64];
    slot[0] = 7;
    slot[7] = 16;
    slot[16..18].copy_from_slice(&opcode.to_be_bytes());
    slot[59] = 16;
    slot[63] = 1;
    pwrite(memory, &slot, 0).unwrap();
    store(socket, COMMAND_DOORBELL, 1);
    pread(memory, &mut slot, 0).unwrap();
    (slot[63], slot[32])
}

#[test]
fn commands_execute_only_from_mapped_memory() {
    let socket = connect(&hca());
    let memory = memory();
    assert_eq!(ask(&socket, DMA_MAP, &mapping(GUEST_ADDRESS, 0x10_000), Some(memory.as_fd())).0, 0);
    set_up(&socket);
    assert_eq!(command(&socket, &memory, ENABLE_HCA), (0, 0));

    let unmap = [
        mapping(GUEST_ADDRESS, 0x10_000)[..8].to_vec(),
        GUEST_ADDRESS.to_le_bytes().to_vec(),
        0x10_000u64.to_le_bytes().to_vec(),
    ];
    assert_eq!(ask(&socket, DMA_UNMAP, &unmap.concat(), None).0, 0);
    assert_eq!(command(&socket, &memory, ENABLE_HCA).0, 1, "still the device's");
}

#[test]
fn device_reset_restores_power_on_state() {
    const BAD_SYSTEM_STATE: u8 = 4;
    let socket = connect(&hca());
    let memory = memory();
    assert_eq!(ask(&socket, DMA_MAP, &mapping(GUEST_ADDRESS, 0x10_000), Some(memory.as_fd())).0, 0);
    set_up(&socket);
    assert_eq!(command(&socket, &memory, ENABLE_HCA), (0, 0));
    assert_ne!(command(&socket, &memory, QUERY_ADAPTER).1, BAD_SYSTEM_STATE);

    assert_eq!(ask(&socket, DEVICE_RESET, &[], None).0, 0);
    assert_eq!(command(&socket, &memory, ENABLE_HCA).0, 1, "the device forgot where its commands are");
    set_up(&socket);
    assert_eq!(command(&socket, &memory, QUERY_ADAPTER), (0, BAD_SYSTEM_STATE), "and that it was enabled");
    assert_eq!(command(&socket, &memory, ENABLE_HCA), (0, 0));
}

#[test]
fn invalid_dma_maps_are_rejected_without_disconnect() {
    let socket = connect(&hca());
    let memory = memory();
    assert_ne!(ask(&socket, DMA_MAP, &mapping(0, 0x20_000), Some(memory.as_fd())).0, 0);
    assert_ne!(ask(&socket, DMA_MAP, &mapping(0, 0), Some(memory.as_fd())).0, 0);
    assert_ne!(ask(&socket, DMA_MAP, &mapping(u64::MAX, 0x1000), Some(memory.as_fd())).0, 0);
    assert_eq!(ask(&socket, DMA_MAP, &mapping(0, 0x1000), Some(memory.as_fd())).0, 0);
    assert_ne!(ask(&socket, DMA_MAP, &mapping(0x800, 0x1000), Some(memory.as_fd())).0, 0);
    for command in 0..40 {
        for length in [0, 3, 16, 40] {
            ask(&socket, command, &vec![0xff; length], None);
        }
    }
    assert_eq!(ask(&socket, REGION_READ, &transfer(0, 7, 4), None).0, 0);
}

#[test]
fn server_accepts_next_client_after_bad_one() {
    let path = hca();
    let mut socket = connect(&path);
    socket.write_all(&[0xff; 64]).unwrap();
    assert_eq!(socket.read(&mut [0; 16]).unwrap_or(0), 0);
    drop(connect(&path));
    let socket = connect(&path);
    assert_eq!(ask(&socket, VERSION, b"\0\0\0\0{}\0", None).0, 0);
}
