//! Atomic operations of the PCI bus, which the firmware reports.

use bareverbs_provider::Errno;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::pci_atomic::{PciAtomicCaps, PciAtomicSizes};
use bareverbs_uapi::method::Call;
use bareverbs_uapi::mlx5::DevxOther;

/// `MLX5_CMD_OP_QUERY_HCA_CAP`.
const QUERY_HCA_CAP: u16 = 0x100;
/// The current values (`HCA_CAP_OPMOD_GET_CUR`) of the atomic capabilities (`MLX5_CAP_ATOMIC`).
const ATOMIC: u16 = 3 << 1 | 1;
/// The header of a response, and the capabilities.
const RESPONSE: usize = 0x10 + 0x1000;

/// Queries the capabilities (`get_pci_atomic_caps` of libmlx5). A device without firmware commands of
/// user space has none.
pub(super) fn query(file: &DeviceFile) -> Result<PciAtomicCaps, IoctlError> {
    let mut response = [0; RESPONSE];
    let request = command();
    let mut call = Call::<DevxOther>::new(file.driver_id());
    call.input_slice(DevxOther::CMD_IN, &request);
    call.output_slice(DevxOther::CMD_OUT, &mut response);
    // SAFETY: the call borrows its memory, and the command changes nothing.
    match unsafe { file.execute(&mut call) } {
        Ok(()) => Ok(decode(&response)),
        // No user context of the firmware (`devx_get_uid` of mlx5's `devx.c`); or the driver has no
        // such method.
        Err(IoctlError { errno: Errno::OPNOTSUPP | Errno::PROTONOSUPPORT, .. }) => {
            Ok(PciAtomicCaps::default())
        }
        Err(refused) => Err(refused),
    }
}

/// `mlx5_ifc_query_hca_cap_in_bits`.
fn command() -> [u8; 16] {
    let mut command = [0; 16];
    command[..2].copy_from_slice(&QUERY_HCA_CAP.to_be_bytes());
    command[6..8].copy_from_slice(&ATOMIC.to_be_bytes());
    command
}

/// `mlx5_ifc_atomic_caps_bits`, behind the header.
fn decode(response: &[u8; RESPONSE]) -> PciAtomicCaps {
    const FETCH_ADD: usize = 0x10 + 0x50;
    let sizes =
        |at: usize| PciAtomicSizes::from_bits_retain(u16::from_be_bytes([response[at], response[at + 1]]));
    PciAtomicCaps::new(sizes(FETCH_ADD), sizes(FETCH_ADD + 2), sizes(FETCH_ADD + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_asks_for_the_current_atomic_capabilities() {
        assert_eq!(command(), [0x01, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn capabilities_are_those_of_the_pci_bus() {
        let mut response = [0; RESPONSE];
        response[0x60..0x66].copy_from_slice(&[0, 3, 0, 4, 0, 2]);
        let (four, eight, sixteen) =
            (PciAtomicSizes::BYTES_4, PciAtomicSizes::BYTES_8, PciAtomicSizes::BYTES_16);
        assert_eq!(decode(&response), PciAtomicCaps::new(four | eight, sixteen, eight));
    }
}
