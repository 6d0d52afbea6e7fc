//! PCI configuration space of a ConnectX-5 physical function.

use crate::engine::Link;
use crate::engine::limits::VECTORS;

/// Size of the configuration space in bytes.
pub(crate) const SIZE: usize = 4096;

const VENDOR: u16 = 0x15b3;
const CONNECTX_5: u16 = 0x1017;
const SUBSYSTEM: u16 = 0x0020;

const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const INTERRUPT_LINE: usize = 0x3c;
const POWER: usize = 0x40;
const EXPRESS: usize = 0x60;
const MSIX: usize = 0x9c;
const DEVICE_CONTROL: usize = EXPRESS + 8;
const FUNCTION_RESET: u8 = 0x80;
/// The first extended capability: TPH Requester.
const TPH: usize = 0x100;
const TPH_CONTROL: usize = TPH + 8;

/// The configuration space.
pub(crate) struct Config {
    bytes: [u8; SIZE],
}

impl Config {
    pub(crate) fn new(link: Link) -> Self {
        let mut config = Self { bytes: [0; SIZE] };
        let class: [u8; 4] = match link {
            Link::InfiniBand => [0, 0, 0x07, 0x02],
            Link::Ethernet => [0, 0, 0x00, 0x02],
        };
        config.put(0x00, &VENDOR.to_le_bytes());
        config.put(0x02, &CONNECTX_5.to_le_bytes());
        // Status: capability list.
        config.put(0x06, &0x0010u16.to_le_bytes());
        config.put(0x08, &class);
        // 64-bit, prefetchable.
        config.put(BAR0, &0x0cu32.to_le_bytes());
        config.put(0x2c, &VENDOR.to_le_bytes());
        config.put(0x2e, &SUBSYSTEM.to_le_bytes());
        config.put(0x34, &[POWER as u8]);
        // Power management, version 3; no soft reset on the transition from D3hot.
        config.put(POWER, &[0x01, EXPRESS as u8, 0x03, 0x00, 0x08, 0x00, 0x00, 0x00]);
        // PCI Express endpoint, version 2, with function level reset; 16 lanes of 8 GT/s.
        config.put(EXPRESS, &[0x10, MSIX as u8, 0x02, 0x00]);
        config.put(EXPRESS + 4, &(1u32 << 28 | 1 << 15 | 0x2).to_le_bytes());
        // Device control: relaxed ordering and no snoop enabled, reads of at most 512 bytes.
        config.put(DEVICE_CONTROL, &0x2810u16.to_le_bytes());
        config.put(EXPRESS + 12, &0x103u32.to_le_bytes());
        config.put(EXPRESS + 18, &0x103u16.to_le_bytes());
        // MSI-X: table and pending bits in BAR 0.
        config.put(MSIX, &[0x11, 0x00]);
        config.put(MSIX + 2, &(VECTORS - 1).to_le_bytes());
        config.put(MSIX + 4, &super::bar::MSIX_TABLE.to_le_bytes());
        config.put(MSIX + 8, &super::bar::MSIX_PENDING.to_le_bytes());
        // TPH Requester, version 1, the last extended capability. Without steering tags or in device
        // specific mode; the mkeys hold the tags, so there is no table of them.
        config.put(TPH, &(1u32 << 16 | 0x17).to_le_bytes());
        config.put(TPH + 4, &(1u32 << 2 | 1).to_le_bytes());
        config
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Copies from the configuration space. Returns `false` for a range outside of it.
    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let Some(bytes) =
            usize::try_from(at).ok().and_then(|at| self.bytes.get(at..at.checked_add(to.len())?))
        else {
            return false;
        };
        to.copy_from_slice(bytes);
        true
    }

    /// Writes the writable bits. Returns whether the write requests a function level reset, or
    /// `None` for a range outside of the space.
    pub(crate) fn write(&mut self, at: u64, from: &[u8]) -> Option<bool> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(from.len()).filter(|end| *end <= SIZE)?;
        let mut reset = false;
        for (place, byte) in (at..end).zip(from) {
            if place == DEVICE_CONTROL + 1 && byte & FUNCTION_RESET != 0 {
                reset = true;
            }
            let mask = writable(place);
            self.bytes[place] = self.bytes[place] & !mask | byte & mask;
        }
        if reset {
            self.put(COMMAND, &[0, 0]);
            self.put(TPH_CONTROL, &[0, 0]);
        }
        Some(reset)
    }
}

/// Writable bits of a byte. The virtual machine monitor implements BARs and MSI-X control itself
/// and forwards the writes.
fn writable(at: usize) -> u8 {
    const EXPRESS_LINK_CONTROL: usize = EXPRESS + 16;
    match at {
        COMMAND => 0x07,
        0x05 => 0x05,
        0x0c | INTERRUPT_LINE => 0xff,
        // The low 25 bits of an address within a BAR of 32 MiB are fixed.
        0x13 => 0xfe,
        0x14..=0x17 => 0xff,
        0x44 => 0x03,
        DEVICE_CONTROL => 0xff,
        0x69 => !FUNCTION_RESET,
        EXPRESS_LINK_CONTROL => 0xff,
        0x9f => 0xc0,
        // Steering tag mode; requester enable.
        TPH_CONTROL => 0x07,
        0x109 => 0x03,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::new(Link::InfiniBand)
    }

    #[test]
    fn pci_capability_list_terminates() {
        let config = config();
        let mut at = config.bytes[0x34] as usize;
        let mut ids = Vec::new();
        while at != 0 {
            ids.push(config.bytes[at]);
            at = config.bytes[at + 1] as usize;
            assert!(ids.len() < 10);
        }
        assert_eq!(ids, [0x01, 0x10, 0x11]);
    }

    #[test]
    fn tph_requester_is_the_only_extended_capability() {
        let config = config();
        let word = |at: usize| u32::from_le_bytes(config.bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(TPH) & 0xffff, word(TPH) >> 20), (0x17, 0));
        // No steering tag table (bits 9 and 10); device specific mode (bit 2).
        assert_eq!((word(TPH + 4) >> 9 & 0x3, word(TPH + 4) >> 2 & 0x1), (0, 1));
    }

    #[test]
    fn function_level_reset_disables_tph() {
        let mut config = config();
        let mut control = [0; 4];
        config.write(TPH_CONTROL as u64, &[0xff; 4]).unwrap();
        assert!(config.read(TPH_CONTROL as u64, &mut control));
        assert_eq!(control, [0x07, 0x03, 0, 0]);
        config.write(DEVICE_CONTROL as u64, &[0x10, 0xa8]).unwrap();
        assert!(config.read(TPH_CONTROL as u64, &mut control));
        assert_eq!(control, [0; 4]);
    }

    #[test]
    fn bar0_size_is_32_mib() {
        let mut config = config();
        config.write(0x10, &[0xff; 8]).unwrap();
        let mut bar = [0; 8];
        assert!(config.read(0x10, &mut bar));
        assert_eq!(!(u64::from_le_bytes(bar) & !0xf) + 1, super::super::bar::SIZE);
    }

    #[test]
    fn config_space_ids_are_read_only() {
        let mut config = config();
        config.write(0, &[0; 4]).unwrap();
        let mut id = [0; 2];
        assert!(config.read(0, &mut id));
        assert_eq!(id, VENDOR.to_le_bytes());
        assert!(config.write(4090, &[0; 8]).is_none());
        assert!(config.write(u64::MAX, &[0; 8]).is_none());
        assert!(!config.read(u64::MAX, &mut id));
    }

    #[test]
    fn function_level_reset_is_detected() {
        let mut config = config();
        assert_eq!(config.write(DEVICE_CONTROL as u64, &[0x10, 0x28]), Some(false));
        assert_eq!(config.write(DEVICE_CONTROL as u64, &[0x10, 0xa8]), Some(true));
    }
}
