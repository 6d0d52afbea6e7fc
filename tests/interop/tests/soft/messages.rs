//! Numbered messages from one peer to the other.

use bareverbs::WcStatus;
use bareverbs::qp::Operation;

use crate::host::Peer;

/// Messages that are posted at once.
const WINDOW: usize = 16;
/// Bytes of the place of a message in the memory. The messages have one packet to four with an MTU of
/// 1024 bytes.
const SLOT: usize = 4096;
/// Bytes of memory that each peer needs: for what it sends, and for what it receives.
pub(crate) const MEMORY: usize = 3 * WINDOW * SLOT;

/// The bytes of a message, `most` at most: its number, then bytes that depend on it.
pub(crate) fn message(number: usize, most: usize) -> Vec<u8> {
    let mut bytes = (number as u64).to_le_bytes().to_vec();
    let length = 8 + number * 397 % (most - 8);
    bytes.extend((8..length).map(|at| (number.wrapping_mul(31) + at * 7) as u8));
    bytes
}

fn slot(index: usize, len: usize) -> std::ops::Range<usize> {
    index * SLOT..index * SLOT + len
}

/// Sends messages in a window, and asserts that all arrive once, complete and in order.
#[track_caller]
pub(crate) fn send_in_order(from: &mut Peer, to: &mut Peer, count: usize) {
    // The first part of the memory is for sends, the rest for receives: twice as many, so that none is
    // missing.
    let place = |number: usize| WINDOW + number % (2 * WINDOW);
    let receive = |to: &mut Peer, number: usize| to.receive(number as u64, slot(place(number), SLOT));
    (0..count.min(2 * WINDOW)).for_each(|number| receive(to, number));
    let (mut posted, mut completed, mut received) = (0, 0, 0);
    let mut bytes = vec![0; SLOT];
    while completed < count || received < count {
        while posted < count && posted < completed + WINDOW {
            let text = message(posted, SLOT);
            from.memory.write(slot(posted % WINDOW, 0).start, &text).expect("the memory has the slot");
            from.post(posted as u64, Operation::Send, slot(posted % WINDOW, text.len()));
            posted += 1;
        }
        if received < posted {
            let completion = to.completion();
            assert_eq!((completion.wr_id, completion.status), (received as u64, WcStatus::SUCCESS));
            let text = message(received, SLOT);
            assert_eq!(completion.byte_len as usize, text.len(), "message {received}");
            let found = &mut bytes[..text.len()];
            to.memory.read(slot(place(received), 0).start, found).expect("the memory has the slot");
            assert!(*found == text[..], "message {received} has other bytes");
            if received + 2 * WINDOW < count {
                receive(to, received + 2 * WINDOW);
            }
            received += 1;
        }
        if completed < posted {
            let sent = from.completion();
            assert_eq!((sent.wr_id, sent.status), (completed as u64, WcStatus::SUCCESS), "{sent:?}");
            completed += 1;
        }
    }
    // No message has arrived twice.
    assert_eq!(to.cq.poll_one(), None);
}
