//! Fabrics: joined, recorded, slow, and with malicious peers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::engine::packet::{Headers, Operation, Route, Transport};
use bareverbs_transport::{Fault, roce};

fn addresses(lid: u16) -> Addresses {
    Addresses { lid, gids: Vec::new(), mac: [2, 0, 0, 0, 0, lid as u8] }
}

fn packet(to: u16, psn: u32) -> Packet {
    Packet {
        route: Route { source_lid: 9, destination_lid: to, ..Route::default() },
        transport: Transport::Rc,
        operation: Operation::SendOnly,
        solicited: false,
        migrated: true,
        ack_request: true,
        pkey: 0xffff,
        destination: 0x48,
        psn,
        headers: Headers::default(),
        payload: vec![psn as u8; 100],
        zero_copy: None,
    }
}

fn port(fabric: &Fabric, lid: u16) -> (usize, Arc<SharedInbox>) {
    let shared_inbox = Arc::<SharedInbox>::default();
    (fabric.add_port(addresses(lid), shared_inbox.clone()), shared_inbox)
}

fn send(fabric: &Fabric, from: usize, packets: impl IntoIterator<Item = Packet>) {
    let mut packets = packets.into_iter().collect();
    fabric.send(from, Link::InfiniBand, &mut packets, &mut Vec::new());
}

/// The PSNs that a port has received, once there are `count` or after a timeout.
fn received(shared_inbox: &SharedInbox, count: usize) -> Vec<u32> {
    let (end, mut psns) = (Instant::now() + Duration::from_secs(20), Vec::new());
    while psns.len() < count && Instant::now() < end {
        let mut inbox = Inbox::default();
        shared_inbox.take(Some(Duration::from_millis(50)), &mut inbox);
        psns.extend(inbox.packets.iter().map(|packet| packet.psn));
    }
    psns
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn path(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("bareverbs-fabric-{name}-{}-{number}", std::process::id()))
}

#[test]
fn packets_cross_a_tree_of_three_fabrics() {
    let [root, left, right] = [(); 3].map(|()| Fabric::new());
    let socket = path("tree");
    root.listen(&socket, Link::InfiniBand).unwrap();
    for leaf in [&left, &right] {
        leaf.join(&socket, Link::InfiniBand).unwrap();
    }
    std::fs::remove_file(&socket).unwrap();
    eventually("both have joined", || root.inter_switch_links() == 2);
    let ((from, _), (_, shared_inbox)) = (port(&left, 1), port(&right, 2));
    send(&left, from, (0..500).map(|psn| packet(2, psn)));
    assert_eq!(received(&shared_inbox, 500), (0..500).collect::<Vec<_>>());

    // Frames to an unknown address and to the broadcast address.
    let (_, group) = port(&root, 3);
    let (mut known, mut all) = (vec![0; 60], vec![0; 60]);
    known[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    all[..6].fill(0xff);
    left.send(from, Link::InfiniBand, &mut Vec::new(), &mut vec![known, all]);
    let frames = |shared_inbox: &SharedInbox| shared_inbox.lock().frames.len();
    eventually("the group's frame", || frames(&group) == 1);
    eventually("both frames", || frames(&shared_inbox) == 2);
}

#[test]
fn only_the_malformed_peer_is_disconnected() {
    let fabric = Fabric::new();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (good, other_end) = UnixStream::pair().unwrap();
    let other = Fabric::new();
    std::thread::scope(|scope| {
        scope.spawn(|| fabric.join_over(&good, Link::InfiniBand).unwrap());
        scope.spawn(|| other.join_over(&other_end, Link::InfiniBand).unwrap());
        scope.spawn(|| fabric.join_over(&ours, Link::InfiniBand).unwrap());
        theirs.write_all(b"bvf\x01\x00").unwrap();
    });
    eventually("both have joined", || fabric.inter_switch_links() == 2);
    theirs.write_all(&[0, 0, 0, 3, 1, 2, 3]).unwrap();
    eventually("the malicious switch is disconnected", || fabric.inter_switch_links() == 1);
    let mut rest = Vec::new();
    theirs.read_to_end(&mut rest).unwrap();
    let ((from, _), (_, shared_inbox)) = (port(&other, 1), port(&fabric, 2));
    send(&other, from, [packet(2, 7)]);
    assert_eq!(received(&shared_inbox, 1), [7]);
}

#[test]
fn peer_with_other_link_or_protocol_is_rejected() {
    for greeting in [b"bvf\x01\x01", b"bvf\x02\x00", b"GET /"] {
        let fabric = Fabric::new();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(greeting).unwrap();
        assert!(fabric.join_over(&ours, Link::InfiniBand).is_err());
        assert_eq!(fabric.inter_switch_links(), 0);
    }
}

#[test]
fn delayed_packets_arrive_late_and_reordered() {
    let longest_delay = Duration::from_millis(30);
    let mut faults = FaultInjector::new(3);
    faults.inject(Fault::jitter(longest_delay).probability(0.5));
    let fabric = Fabric::with(faults, None).unwrap();
    let ((from, _), (_, shared_inbox)) = (port(&fabric, 1), port(&fabric, 2));
    send(&fabric, from, (0..200).map(|psn| packet(2, psn)));
    let mut psns = received(&shared_inbox, 200);
    assert!(!psns.is_sorted(), "nothing was delayed");
    psns.sort_unstable();
    assert_eq!(psns, (0..200).collect::<Vec<_>>());
}

#[test]
fn pcap_matches_sent_packets() {
    let file = path("pcap");
    let fabric = Fabric::with(FaultInjector::new(0), Some(&file)).unwrap();
    let (from, _) = port(&fabric, 1);
    let sent: Vec<_> = (0..20).map(|psn| packet(2, psn)).collect();
    send(&fabric, from, sent.clone());
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (0xa1b2_3c4d, 1), "nanoseconds, Ethernet");
    let (mut at, mut read) = (24, Vec::new());
    while at < bytes.len() {
        let length = word(at + 8) as usize;
        assert_eq!(word(at + 12) as usize, length);
        read.push(roce::decode(&bytes[at + 16..][..length]).expect("a sound RoCE v2 frame"));
        at += 16 + length;
    }
    assert_eq!(read.len(), sent.len());
    for (read, sent) in read.iter().zip(&sent) {
        // The recording has IPv4 addresses in place of LIDs.
        assert_eq!(read.route.global.unwrap().destination[12..], [10, 0, 0, 2]);
        assert_eq!(Packet { route: sent.route, ..read.clone() }, *sent);
    }
}
