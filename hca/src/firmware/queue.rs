//! The command queue in guest memory: slots of 64 bytes, with chains of mailboxes for longer inputs
//! and outputs.

use super::command::Request;
use super::state::Firmware;
use crate::engine::{Engine, EventKind};
use crate::memory::{DmaFault, DmaMap};

/// Number of slots and slot size in bytes, log2.
pub(crate) const LOG_SLOTS: u8 = 5;
pub(crate) const LOG_STRIDE: u8 = 6;

const SLOT: usize = 64;
const INLINE: usize = 16;
/// Data bytes of a mailbox, and offsets of next pointer, block number and token.
const MAILBOX: usize = 512;
const MAILBOX_SIZE: usize = 576;
const NEXT: usize = 560;
const NUMBER: usize = 568;
const TOKEN: usize = 573;
/// Maximum length of an input or output in bytes, enough to register 16 GiB in 4 KiB pages.
const LONGEST: usize = 36 << 20;

/// Delivery status: why a command could not be read or answered (`MLX5_CMD_DELIVERY_STAT_*` in the
/// driver's `core/cmd.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Delivery {
    Token = 0x02,
    BlockNumber = 0x03,
    OutputPointer = 0x04,
    InputPointer = 0x05,
    InputLength = 0x07,
    OutputLength = 0x08,
    Descriptor = 0x10,
}

struct Slot {
    input_length: usize,
    input_mailbox: u64,
    inline_input: [u8; INLINE],
    output_mailbox: u64,
    output_length: usize,
    token: u8,
}

impl Slot {
    fn parse(bytes: &[u8; SLOT]) -> Result<Self, Delivery> {
        const PCIE: u8 = 7;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let double = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let (input_length, output_length) = (word(4) as usize, word(56) as usize);
        if bytes[0] != PCIE {
            return Err(Delivery::Descriptor);
        }
        if input_length > LONGEST {
            return Err(Delivery::InputLength);
        }
        if output_length > LONGEST {
            return Err(Delivery::OutputLength);
        }
        Ok(Self {
            input_length,
            input_mailbox: double(8),
            inline_input: bytes[16..32].try_into().unwrap_or_default(),
            output_mailbox: double(48),
            output_length,
            token: bytes[60],
        })
    }

    fn read_input(&self, memory: &DmaMap) -> Result<Vec<u8>, Delivery> {
        let mut input = self.inline_input[..self.input_length.min(INLINE)].to_vec();
        let mut chain = Chain { next: self.input_mailbox, number: 0, token: self.token };
        while input.len() < self.input_length {
            let (block, _) = chain.read(memory, Delivery::InputPointer)?;
            input.extend_from_slice(&block[..MAILBOX.min(self.input_length - input.len())]);
        }
        Ok(input)
    }

    /// The addresses of the output mailboxes. They are read before the command runs, so that a bad
    /// chain has no effect.
    fn output_mailboxes(&self, memory: &DmaMap) -> Result<Vec<u64>, Delivery> {
        let count = self.output_length.saturating_sub(INLINE).div_ceil(MAILBOX);
        let mut chain = Chain { next: self.output_mailbox, number: 0, token: self.token };
        let mut mailboxes = Vec::new();
        for _ in 0..count {
            mailboxes.push(chain.read(memory, Delivery::OutputPointer)?.1);
        }
        Ok(mailboxes)
    }
}

/// Iterates over a mailbox chain. Block numbers must count up, so a cyclic chain ends at once.
struct Chain {
    next: u64,
    number: u32,
    token: u8,
}

impl Chain {
    fn read(&mut self, memory: &DmaMap, pointer: Delivery) -> Result<([u8; MAILBOX_SIZE], u64), Delivery> {
        let address = self.next;
        let mut block = [0; MAILBOX_SIZE];
        if address == 0 || !address.is_multiple_of(64) || memory.read(address, &mut block).is_err() {
            return Err(pointer);
        }
        let number = u32::from_be_bytes(block[NUMBER..NUMBER + 4].try_into().unwrap_or_default());
        if number != self.number {
            return Err(Delivery::BlockNumber);
        }
        if block[TOKEN] != self.token {
            return Err(Delivery::Token);
        }
        self.number += 1;
        self.next = u64::from_be_bytes(block[NEXT..NEXT + 8].try_into().unwrap_or_default());
        Ok((block, address))
    }
}

/// The result of a command, for a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) opcode: u16,
    pub(crate) modifier: u16,
    pub(crate) status: u8,
    pub(crate) delivery: Option<Delivery>,
}

/// Executes the command in a slot of the queue at `queue`, writes the output, and posts the command
/// completion event.
pub(crate) fn execute_slot(
    firmware: &mut Firmware,
    engine: &mut Engine,
    queue: u64,
    slot: u8,
) -> Result<Outcome, DmaFault> {
    let address = queue.wrapping_add(u64::from(slot) << LOG_STRIDE);
    let mut bytes = [0; SLOT];
    engine.memory().read(address, &mut bytes)?;
    // The EQ is looked up first: the command that creates the EQ is not reported on it.
    let reports_to = firmware.command_eq();
    let mut outcome = Outcome { opcode: 0, modifier: 0, status: 0, delivery: None };
    if let Err(delivery) = execute(firmware, engine, address, &bytes, &mut outcome) {
        outcome.delivery = Some(delivery);
    }
    // The ownership bit is cleared last, after the output is written.
    let last = outcome.delivery.map_or(0, |delivery| (delivery as u8) << 1);
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    engine.memory().write(address + SLOT as u64 - 1, &[last])?;
    if let Some(eq) = reports_to.filter(|eq| firmware.command_eq() == Some(*eq)) {
        let mut data = [0; 28];
        data[..4].copy_from_slice(&(1u32 << slot).to_be_bytes());
        engine.event_on(eq, EventKind::Command, &data);
    }
    Ok(outcome)
}

fn execute(
    firmware: &mut Firmware,
    engine: &mut Engine,
    address: u64,
    bytes: &[u8; SLOT],
    outcome: &mut Outcome,
) -> Result<(), Delivery> {
    let slot = Slot::parse(bytes)?;
    let input = slot.read_input(engine.memory())?;
    let mailboxes = slot.output_mailboxes(engine.memory())?;
    let mut output = vec![0; slot.output_length];
    let result = firmware.execute(engine, &input, &mut output);
    let header = Request::new(&input);
    outcome.opcode = header.map_or(0, Request::opcode);
    outcome.modifier = header.map_or(0, Request::modifier);
    outcome.status = result.map_or_else(|status| status as u8, |()| 0);

    let memory = engine.memory();
    let (inline, rest) = output.split_at(output.len().min(INLINE));
    let mut head = [0; INLINE];
    head[..inline.len()].copy_from_slice(inline);
    memory.write(address + 32, &head).map_err(|_| Delivery::OutputPointer)?;
    for (block, mailbox) in rest.chunks(MAILBOX).zip(mailboxes) {
        memory.write(mailbox, block).map_err(|_| Delivery::OutputPointer)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Interrupts, Link, Port};
    use crate::firmware::command::Status;
    use crate::firmware::opcode;

    struct NoInterrupts;

    impl Interrupts for NoInterrupts {
        fn raise(&self, _vector: u16) {}
    }

    fn hca() -> (Firmware, Engine) {
        let mut engine = Engine::new(Port::new(Link::InfiniBand, 0), Box::new(NoInterrupts));
        engine.memory().map_zeroed(0x1000, 0x10000).unwrap();
        (Firmware::new(Link::InfiniBand), engine)
    }

    fn slot(input_length: u32, input_mailbox: u64, output_length: u32, output_mailbox: u64) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        bytes[0] = 7;
        bytes[4..8].copy_from_slice(&input_length.to_be_bytes());
        bytes[8..16].copy_from_slice(&input_mailbox.to_be_bytes());
        bytes[16..18].copy_from_slice(&opcode::ENABLE_HCA.to_be_bytes());
        bytes[48..56].copy_from_slice(&output_mailbox.to_be_bytes());
        bytes[56..60].copy_from_slice(&output_length.to_be_bytes());
        bytes[63] = 1;
        bytes
    }

    fn run(slot: [u8; SLOT]) -> (Outcome, u8) {
        let (mut firmware, mut engine) = hca();
        // A mailbox that points to itself.
        engine.memory().write(0x2000 + NEXT as u64, &0x2000u64.to_be_bytes()).unwrap();
        engine.memory().write(0x1000, &slot).unwrap();
        let outcome = execute_slot(&mut firmware, &mut engine, 0x1000, 0).unwrap();
        let mut owner = [0];
        engine.memory().read(0x103f, &mut owner).unwrap();
        (outcome, owner[0])
    }

    #[test]
    fn short_command_uses_inline_output() {
        let (outcome, owner) = run(slot(16, 0, 16, 0));
        assert_eq!((outcome.opcode, outcome.status, owner), (opcode::ENABLE_HCA, 0, 0));
    }

    #[test]
    fn cyclic_mailbox_chain_is_rejected() {
        assert_eq!(run(slot(16 + 1024, 0x2000, 16, 0)).0.delivery, Some(Delivery::BlockNumber));
        assert_eq!(run(slot(16, 0, 16 + 1024, 0x2000)).0.delivery, Some(Delivery::BlockNumber));
    }

    #[test]
    fn command_slot_is_validated_before_execution() {
        assert_eq!(run(slot(u32::MAX, 0x2000, 16, 0)).0.delivery, Some(Delivery::InputLength));
        assert_eq!(run(slot(16, 0, u32::MAX, 0x2000)).0.delivery, Some(Delivery::OutputLength));
        assert_eq!(run(slot(17, 0, 16, 0)).0.delivery, Some(Delivery::InputPointer));
        assert_eq!(run(slot(16, 0, 17, 0xffff_ffff_ffff_ffc0)).0.delivery, Some(Delivery::OutputPointer));
        assert_eq!(run(slot(0, 0, 0, 0)).0.status, Status::BadInputLength as u8);
    }

    #[test]
    fn command_queue_outside_memory_faults() {
        let (mut firmware, mut engine) = hca();
        assert!(execute_slot(&mut firmware, &mut engine, u64::MAX - 7, 3).is_err());
    }
}
