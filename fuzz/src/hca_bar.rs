//! Accesses to the registers and the configuration space of the software ConnectX.
//!
//! A long read equals the reads of its bytes. The command queue is at the address that was written.
//! Only existing command slots and doorbell pages are rung. No write changes the identity of the
//! device or makes the capability list endless.

use bareverbs_hca::Link;
use bareverbs_hca::testing::Bar;

use crate::input::Input;

const BAR: u64 = 32 << 20;
const CONFIG: u64 = 4096;
const QUEUE_HIGH: u64 = 0x10;
const QUEUE_LOW: u64 = 0x14;
const IDENTITY: [u8; 4] = [0xb3, 0x15, 0x17, 0x10];

/// An offset: near the registers, on a doorbell page, or anywhere.
fn place(input: &mut Input<'_>) -> u64 {
    match input.byte() % 4 {
        0 => u64::from(input.byte()),
        1 => u64::from(input.half()),
        2 => u64::from(input.word()) % BAR,
        _ => input.long(),
    }
}

fn capabilities_end(bar: &Bar) {
    let byte = |at: u8| {
        let mut byte = [0];
        assert!(bar.read_config(at.into(), &mut byte));
        byte[0]
    };
    let (mut at, mut seen) = (byte(0x34), 0);
    while at != 0 {
        seen += 1;
        assert!(seen < 10, "the list ends");
        at = byte(at + 1);
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let link = if input.byte() & 1 == 0 { Link::InfiniBand } else { Link::Ethernet };
    let mut bar = Bar::new(link);
    while !input.is_empty() {
        match input.byte() % 6 {
            0 => {
                let (at, now) = (place(&mut input), input.long());
                let mut whole = vec![0; usize::from(input.byte())];
                bar.read(at, &mut whole, now);
                for (offset, byte) in whole.iter().enumerate() {
                    let mut one = [0];
                    bar.read(at.wrapping_add(offset as u64), &mut one, now);
                    assert_eq!(one[0], *byte);
                }
            }
            1 | 2 => {
                let at = place(&mut input);
                let length = input.one_of(&[1, 2, 4, 8, 16, 64, 256]);
                let rung = bar.write(at, &input.bytes(length));
                if let Some(Err(page)) = rung {
                    assert_eq!(u64::from(page), at >> 12, "the page that was written");
                }
            }
            3 => {
                let queue = u64::from(input.word()) << 32 | u64::from(input.word()) & 0xffff_f000;
                bar.write(QUEUE_HIGH, &((queue >> 32) as u32).to_be_bytes());
                bar.write(QUEUE_LOW, &(queue as u32 | u32::from(input.half()) & 0xfff).to_be_bytes());
                assert_eq!(bar.command_queue(), Some(queue).filter(|queue| *queue != 0));
            }
            4 => {
                let at = if input.one_in(4) { place(&mut input) } else { u64::from(input.half()) % CONFIG };
                let length = usize::from(input.byte()) % 16;
                let written = bar.write_config(at, &input.bytes(length));
                let inside = at.checked_add(length as u64).is_some_and(|end| end <= CONFIG);
                assert_eq!(written.is_some(), inside);
            }
            _ => {
                let (at, length) = (place(&mut input), usize::from(input.byte()));
                let inside = at.checked_add(length as u64).is_some_and(|end| end <= CONFIG);
                assert_eq!(bar.read_config(at, &mut vec![0; length]), inside);
            }
        }
        let mut identity = [0; 4];
        assert!(bar.read_config(0, &mut identity));
        assert_eq!(identity, IDENTITY);
        capabilities_end(&bar);
    }
}
