//! Delayed packets.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::{Fabric, Origin};
use crate::engine::packet::{Link, Packet};

/// Most delayed packets; above it, packets are delivered at once.
const MOST: usize = 1 << 16;

/// A packet and its delivery time.
pub(super) struct Delayed {
    pub(super) due: Instant,
    pub(super) link: Link,
    pub(super) from: usize,
    pub(super) packet: Packet,
}

/// Starts the thread that delivers delayed packets. It ends with the fabric.
pub(super) fn start(fabric: Weak<Fabric>) -> std::io::Result<Sender<Delayed>> {
    let (sender, receiver) = channel();
    std::thread::Builder::new().name("late".into()).spawn(move || deliver(&fabric, &receiver))?;
    Ok(sender)
}

fn deliver(fabric: &Weak<Fabric>, receiver: &Receiver<Delayed>) {
    let mut waiting: BinaryHeap<Reverse<(Instant, u64)>> = BinaryHeap::new();
    let mut packets = std::collections::HashMap::new();
    let mut next = 0u64;
    loop {
        let timeout = waiting.peek().map_or(Duration::from_secs(3600), |Reverse((due, _))| {
            due.saturating_duration_since(Instant::now())
        });
        match receiver.recv_timeout(timeout) {
            Ok(delayed) => {
                waiting.push(Reverse((delayed.due, next)));
                packets.insert(next, delayed);
                next += 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while waiting.len() > MOST || waiting.peek().is_some_and(|Reverse((due, _))| *due <= Instant::now()) {
            let Some(Reverse((_, number))) = waiting.pop() else { break };
            let Some(Delayed { link, from, packet, .. }) = packets.remove(&number) else { continue };
            let Some(fabric) = fabric.upgrade() else { return };
            fabric.forward(Origin::Port(from), link, &mut vec![packet], &mut Vec::new());
        }
    }
}
