//! Commands of the firmware of ConnectX devices, and the QPNs that it reserves.

use bareverbs::Errno;
use bareverbs::raw::uapi::mlx5::{DevxObj, DevxObjCreate};
use bareverbs::raw::{RawContext, RawObject};

use crate::convention::Failure;
use crate::driver_object::make;

/// Bytes of a response without results.
pub(crate) const RESPONSE: usize = 0x10;
/// `MLX5_CMD_OP_CREATE_GENERAL_OBJECT`.
const CREATE_GENERAL_OBJECT: u16 = 0xa00;

/// A command about the object of a number.
pub(crate) fn command<const N: usize>(opcode: u16, number: u32) -> [u8; N] {
    let mut command = [0; N];
    command[..2].copy_from_slice(&opcode.to_be_bytes());
    command[8..12].copy_from_slice(&number.to_be_bytes());
    command
}

/// The errno of a command: libmlx5's for the firmware's status, if the firmware has refused it.
pub(crate) fn refusal(failure: Failure, response: &[u8]) -> Failure {
    /// `MLX5_CMD_STAT_*`.
    const BUSY: u8 = 0x06;
    const LIMIT: u8 = 0x08;
    const NO_RESOURCES: u8 = 0x0f;
    if failure != Errno::REMOTEIO.into() {
        return failure;
    }
    Failure::of_errno(match response[0] {
        BUSY => libc::EBUSY,
        LIMIT => libc::ENOMEM,
        NO_RESOURCES => libc::EAGAIN,
        // Opcode, parameter, resource, state of a resource, index; state of a QP, packet, size.
        0x02 | 0x03 | 0x05 | 0x09 | 0x0a | 0x10 | 0x30 | 0x40 => libc::EINVAL,
        _ => libc::EIO,
    })
}

/// An object of the firmware, which reserves consecutive QPNs.
pub(crate) struct ReservedQpns {
    _object: RawObject,
    first: u32,
    /// The numbers after the first that were handed out, each with whether it is in use. They are handed
    /// out once.
    used: Vec<bool>,
    count: usize,
}

impl ReservedQpns {
    pub(crate) fn new(raw: &RawContext, log_count: u32) -> Result<Self, Failure> {
        /// `MLX5_OBJ_TYPE_RESERVED_QPN`, and the offset of the number of QPNs as log2.
        const RESERVED_QPN: u16 = 0x2c;
        const RANGE: usize = 0xc;
        let mut input: [u8; 0x20] = command(CREATE_GENERAL_OBJECT, 0);
        input[6..8].copy_from_slice(&RESERVED_QPN.to_be_bytes());
        input[RANGE] = (log_count & 0x1f) as u8;
        let mut response = [0; RESPONSE];
        let mut call = raw.call::<DevxObjCreate>();
        call.make(DevxObjCreate::HANDLE);
        call.input_slice(DevxObjCreate::CMD_IN, &input).output_slice(DevxObjCreate::CMD_OUT, &mut response);
        // SAFETY: the buffers exist during the call.
        let made = unsafe { make::<_, DevxObj>(raw, &mut call, DevxObjCreate::HANDLE) };
        let object = made.map_err(|failure| refusal(failure, &response))?;
        let first = u32::from_be_bytes([response[8], response[9], response[10], response[11]]);
        Ok(Self { _object: object, first, used: Vec::new(), count: 1 << log_count })
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.used.len() == self.count {
            return None;
        }
        self.used.push(true);
        Some(self.first + self.used.len() as u32 - 1)
    }

    pub(crate) fn slot(&mut self, number: u32) -> Option<&mut bool> {
        self.used.get_mut(number.checked_sub(self.first)? as usize)
    }

    /// Whether all numbers were handed out and are free again.
    pub(crate) fn is_done(&self) -> bool {
        self.used.len() == self.count && !self.used.contains(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_commands_have_the_errno_of_libmlx5() {
        let of = |status: u8| refusal(Errno::REMOTEIO.into(), &[status]).errno();
        assert_eq!(
            [of(2), of(6), of(8), of(0xf), of(4)],
            [libc::EINVAL, libc::EBUSY, libc::ENOMEM, libc::EAGAIN, libc::EIO]
        );
        assert_eq!(refusal(Failure::INVALID, &[8]), Failure::INVALID);
    }

    #[test]
    fn commands_name_their_object() {
        let bytes: [u8; 16] = command(0x50b, 0x12_3456);
        assert_eq!(bytes, [5, 0xb, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56, 0, 0, 0, 0]);
    }
}
