//! BAR 0: the initialization segment and the UAR pages with their doorbells.

use crate::engine::doorbell::{ARM_EQ, Doorbell, READ_EQ};
use crate::firmware::{FIRST_UAR, LOG_SLOTS, LOG_STRIDE};

/// Size of the BAR in bytes.
pub(crate) const SIZE: u64 = 32 << 20;
/// Offset of the MSI-X table; that of the pending bits follows. The virtual machine monitor holds
/// both.
pub(crate) const MSIX_TABLE: u32 = 0x4000;
pub(crate) const MSIX_PENDING: u32 = 0x5000;

const UAR_SHIFT: u32 = 12;
const SEGMENT_END: u64 = 0x2010;

/// Firmware version.
const MAJOR: u16 = 16;
const MINOR: u16 = 35;
const SUB: u16 = 4000;
const COMMAND_INTERFACE: u16 = 5;

/// Offsets of the initialization segment.
mod segment {
    pub(super) const FIRMWARE: u64 = 0x00;
    pub(super) const INTERFACE: u64 = 0x04;
    pub(super) const QUEUE_HIGH: u64 = 0x10;
    pub(super) const QUEUE_LOW: u64 = 0x14;
    pub(super) const DOORBELL: u64 = 0x18;
    pub(super) const HEALTH_FIRMWARE: u64 = 0x230;
    pub(super) const TIMER_HIGH: u64 = 0x1000;
    pub(super) const TIMER_LOW: u64 = 0x1004;
    pub(super) const HEALTH_COUNTER: u64 = 0x1010;
}

/// The effect of a write to the BAR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    /// Executes commands: one bit per slot.
    Commands(u32),
    /// A doorbell on a UAR page.
    Doorbell { uar: u32, doorbell: Doorbell },
}

/// NIC interface state "disabled" (`MLX5_INITIAL_SEG_NIC_INTERFACE_DISABLED`).
const DISABLED: u8 = 1;

/// The writable registers.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    queue: u64,
    nic_state: u8,
    /// The first half of a doorbell that is written in two halves.
    half: Option<(u64, [u8; 4])>,
}

impl Registers {
    /// The state after a reset that the driver may not have requested. The interface is disabled
    /// until the driver sets up its command queue. The driver can detect the reset by this state.
    pub(crate) fn after_reset() -> Self {
        Self { nic_state: DISABLED, ..Self::default() }
    }

    /// The command queue's guest address, once the driver has set it.
    pub(crate) fn command_queue(&self) -> Option<u64> {
        (self.queue != 0).then_some(self.queue)
    }

    /// Copies from the BAR.
    pub(crate) fn read(&self, at: u64, to: &mut [u8], now: u64) {
        for (offset, byte) in to.iter_mut().enumerate() {
            let place = at.wrapping_add(offset as u64);
            *byte = self.word(place & !3, now).to_be_bytes()[(place & 3) as usize];
        }
    }

    fn word(&self, at: u64, now: u64) -> u32 {
        match at {
            segment::FIRMWARE => u32::from(MINOR) << 16 | u32::from(MAJOR),
            segment::INTERFACE => u32::from(COMMAND_INTERFACE) << 16 | u32::from(SUB),
            segment::QUEUE_HIGH => (self.queue >> 32) as u32,
            segment::QUEUE_LOW => {
                let sizes = u32::from(LOG_SLOTS) << 4 | u32::from(LOG_STRIDE);
                self.queue as u32 | u32::from(self.nic_state) << 8 | sizes
            }
            segment::HEALTH_FIRMWARE => u32::from(MAJOR) << 24 | u32::from(MINOR) << 16 | u32::from(SUB),
            segment::TIMER_HIGH => (now >> 32) as u32,
            segment::TIMER_LOW => now as u32,
            // The health counter changes between two polls of the driver.
            segment::HEALTH_COUNTER => (now / 10_000_000) as u32 & 0xff_ffff | 1,
            _ => 0,
        }
    }

    /// Applies a write and returns its effect.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Option<Ring> {
        if at < SEGMENT_END {
            return self.write_segment(at, bytes);
        }
        let page = at >> UAR_SHIFT;
        if page < u64::from(FIRST_UAR) || at >= SIZE {
            return None;
        }
        let (page, offset) = (page as u32, (at & ((1 << UAR_SHIFT) - 1)) as u16);
        match *bytes {
            [a, b, c, d] => self.write_half(page, offset, [a, b, c, d]),
            _ => ring(page, offset, bytes),
        }
    }

    fn write_segment(&mut self, at: u64, bytes: &[u8]) -> Option<Ring> {
        const ADDRESS: u32 = 0xffff_f000;
        let [a, b, c, d] = *bytes else { return None };
        let value = u32::from_be_bytes([a, b, c, d]);
        match at {
            segment::QUEUE_HIGH => self.queue = self.queue & u64::from(u32::MAX) | u64::from(value) << 32,
            segment::QUEUE_LOW => {
                self.queue = self.queue >> 32 << 32 | u64::from(value & ADDRESS);
                self.nic_state = (value >> 8 & 0x7) as u8;
            }
            segment::DOORBELL => return Some(Ring::Commands(value)),
            _ => {}
        }
        None
    }

    /// Handles a write of four bytes. EQ doorbells have one word; other doorbells may come in two
    /// halves.
    fn write_half(&mut self, page: u32, offset: u16, bytes: [u8; 4]) -> Option<Ring> {
        if matches!(offset, ARM_EQ | READ_EQ) {
            return ring(page, offset, &bytes);
        }
        let place = u64::from(page) << UAR_SHIFT | u64::from(offset);
        match self.half.take() {
            Some((first, high)) if place == first + 4 => {
                ring(page, offset - 4, [high, bytes].concat().as_slice())
            }
            _ => {
                self.half = offset.is_multiple_of(8).then_some((place, bytes));
                None
            }
        }
    }
}

fn ring(uar: u32, offset: u16, bytes: &[u8]) -> Option<Ring> {
    Doorbell::decode(offset, bytes).map(|doorbell| Ring::Doorbell { uar, doorbell })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_queue_register_keeps_log_sizes() {
        let mut registers = Registers::default();
        registers.write(0x10, &[0, 0, 0, 1]);
        registers.write(0x14, &[0x23, 0x45, 0x60, 0x00]);
        assert_eq!(registers.command_queue(), Some(0x1_2345_6000));
        let mut low = [0; 4];
        registers.read(0x14, &mut low, 0);
        assert_eq!(low, [0x23, 0x45, 0x60, 0x56]);
    }

    #[test]
    fn nic_interface_is_disabled_after_reset() {
        let mut registers = Registers::after_reset();
        let mut low = [0; 4];
        registers.read(0x14, &mut low, 0);
        assert_eq!((low, registers.command_queue()), ([0, 0, 1, 0x56], None));
        registers.write(0x14, &[0x23, 0x45, 0x60, 0x00]);
        registers.read(0x14, &mut low, 0);
        assert_eq!((low, registers.command_queue()), ([0x23, 0x45, 0x60, 0x56], Some(0x2345_6000)));
    }

    #[test]
    fn send_doorbell_accepts_two_32_bit_writes() {
        let mut registers = Registers::default();
        let whole = registers.write(0x9800, &[0, 0, 1, 0x0a, 0, 0, 0x4c, 3]);
        let doorbell = Doorbell::Send { qp: 0x4c, blueflame: None };
        assert_eq!(whole, Some(Ring::Doorbell { uar: 9, doorbell }));
        assert_eq!(registers.write(0x9900, &[0, 0, 1, 0x0a]), None);
        assert_eq!(registers.write(0x9904, &[0, 0, 0x4c, 3]), whole);
        assert_eq!(registers.write(0x9904, &[0, 0, 0x4c, 3]), None);
    }

    #[test]
    fn writes_of_other_sizes_are_ignored() {
        let mut registers = Registers::default();
        for at in [0x3000, 0x4000, 0x7fff, 0x8000, SIZE, u64::MAX] {
            for length in 0..16 {
                if !(at == 0x8000 && length == 8) {
                    assert_eq!(registers.write(at, &vec![0xff; length]), None);
                }
            }
        }
        registers.read(u64::MAX - 1, &mut [0; 8], 0);
    }
}
