//! A malicious driver of the software ConnectX: commands with wrong bytes, slots and mailboxes with
//! wrong pointers, stores anywhere, memory that is unmapped, resets. Each command gets a status.
//! After a teardown no object is left.

use bareverbs_hca::{FirmwareHarness, Link};

use crate::input::Input;

const TEARDOWN_HCA: u8 = 0x03;
const PAGE_FAULT_RESUME: u16 = 0x204;
const STEPS: usize = 200;
const MEMORY: u64 = FirmwareHarness::MEMORY;

/// An address in or near the device's memory.
fn address(input: &mut Input<'_>) -> u64 {
    MEMORY.wrapping_add(u64::from(input.half()) << 4).wrapping_sub(0x100)
}

/// An example command with some bytes changed.
fn corrupt(input: &mut Input<'_>) -> Vec<u8> {
    let examples = FirmwareHarness::examples();
    // The last choice answers a page fault, which may not exist.
    let which = usize::from(input.byte()) % (examples.len() + 1);
    let mut command = FirmwareHarness::example(examples.get(which).copied().unwrap_or(PAGE_FAULT_RESUME));
    for _ in 0..input.byte() % 6 {
        let (at, byte) = (usize::from(input.half()) % 0x140, input.byte());
        match command.get_mut(at) {
            Some(place) => *place = byte,
            None => command.push(byte),
        }
    }
    command
}

/// Writes a command and its mailboxes to a slot of the command queue, with some bytes changed.
fn slot(hca: &mut FirmwareHarness, input: &mut Input<'_>, command: &[u8]) {
    const QUEUE: u64 = MEMORY + 0xf_0000;
    const BOXES: u64 = MEMORY + 0xe_0000;
    const STEP: u64 = 0x400;
    let (inline, rest) = command.split_at(command.len().min(16));
    let mut slot = [0; 64];
    slot[0] = 7;
    slot[4..8].copy_from_slice(&(command.len() as u32).to_be_bytes());
    slot[8..16].copy_from_slice(&BOXES.to_be_bytes());
    slot[16..16 + inline.len()].copy_from_slice(inline);
    slot[48..56].copy_from_slice(&(BOXES + 0x8000).to_be_bytes());
    slot[56..60].copy_from_slice(&(u32::from(input.half()) % 0x400).to_be_bytes());
    slot[63] = 1;
    for side in [0, 0x8000] {
        for number in 0..4u32 {
            let mut mailbox = [0; 576];
            let part = rest.chunks(512).nth(number as usize).filter(|_| side == 0).unwrap_or_default();
            mailbox[..part.len()].copy_from_slice(part);
            let next = BOXES + side + u64::from(number + 1) * STEP;
            mailbox[560..568].copy_from_slice(&next.to_be_bytes());
            mailbox[568..572].copy_from_slice(&number.to_be_bytes());
            // The memory may be unmapped by now.
            let _ = hca.memory().write(next - STEP, &mailbox);
        }
    }
    for _ in 0..input.byte() % 4 {
        slot[usize::from(input.byte()) % 64] = input.byte();
    }
    for _ in 0..input.byte() % 3 {
        let _ = hca.memory().write(BOXES + u64::from(input.half()), &[input.byte()]);
    }
    let _ = hca.memory().write(QUEUE, &slot);
    hca.slot(QUEUE, 0);
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let link = if input.byte() & 1 == 0 { Link::InfiniBand } else { Link::Ethernet };
    let Ok(mut hca) = FirmwareHarness::new(link) else { return };
    if input.byte() & 1 == 0 {
        for &opcode in FirmwareHarness::examples() {
            hca.command(&FirmwareHarness::example(opcode), &mut [0; 0x400]);
        }
    }
    let mut time = 0;
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 12 {
            0..4 => {
                let command = corrupt(&mut input);
                let mut output = vec![0; usize::from(input.half()) % 0x400];
                let status = hca.command(&command, &mut output);
                assert_eq!(output.first().copied().unwrap_or(status), status);
            }
            4 | 5 => {
                let command = corrupt(&mut input);
                slot(&mut hca, &mut input, &command);
            }
            6 => {
                let length = usize::from(input.half()) % 0x200;
                let (command, mut output) = (input.bytes(length), [0; 0x110]);
                hca.command(&command, &mut output);
            }
            7 => {
                let (uar, offset) = (u32::from(input.byte()) % 16, input.half() % 0x1000);
                let length = [4, 8, 64, 256][usize::from(input.byte()) % 4];
                hca.store(uar, offset, &input.bytes(length));
            }
            8 => {
                let (address, length) = (address(&mut input), usize::from(input.byte()));
                let _ = hca.memory().write(address, &input.bytes(length));
            }
            9 => {
                time += u64::from(input.half()) << (input.byte() % 24);
                hca.run(time);
            }
            10 => {
                let length = usize::from(input.byte());
                hca.frame(&input.bytes(length));
            }
            _ => match input.byte() % 8 {
                0 => drop(hca.memory().unmap(0, u64::MAX)),
                1 => drop(hca.memory().map_zeroed(MEMORY, FirmwareHarness::LENGTH)),
                2 => hca.reset(),
                _ => hca.run(time),
            },
        }
    }
    // The command succeeds, or fails because the device is off already. No object is left either
    // way.
    hca.command(&[0x01, TEARDOWN_HCA, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut [0; 16]);
    assert!(hca.objects().starts_with("eqs 0 cqs 0 qps 0 srqs 0 keys 0 pds 0 uars 0"), "{}", hca.objects());
}
