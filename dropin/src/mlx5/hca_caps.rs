//! Capabilities of the firmware, which the kernel passes on to contexts with and without DEVX.

use bareverbs::raw::RawContext;
use bareverbs::raw::uapi::mlx5::DevxOther;

/// `MLX5_CMD_OP_QUERY_HCA_CAP`.
const QUERY_HCA_CAP: u16 = 0x100;
/// `HCA_CAP_OPMOD_GET_CUR`.
const CURRENT: u16 = 1;
const HEADER: usize = 0x10;
const RESPONSE: usize = HEADER + 0x1000;

/// Groups of capabilities (`MLX5_CAP_*`).
pub(super) mod group {
    pub(in crate::mlx5) const GENERAL: u16 = 0;
    pub(in crate::mlx5) const ODP: u16 = 2;
    pub(in crate::mlx5) const GENERAL_2: u16 = 0x20;
}

/// A capability: its offset and its width in bits.
#[derive(Clone, Copy)]
pub(super) struct Bits(usize, usize);

/// Those of the group [`GENERAL`](group::GENERAL) (`mlx5_ifc_cmd_hca_cap_bits`).
pub(super) const HCA_CAP_2: Bits = Bits(0x20, 1);
pub(super) const LOG_MAX_RA_REQ_DC: Bits = Bits(0x12a, 6);
pub(super) const LOG_MAX_RA_RES_DC: Bits = Bits(0x13a, 6);
pub(super) const RTS2RTS_QP_UDP_SPORT: Bits = Bits(0x151, 1);
pub(super) const RTS2RTS_LAG_TX_PORT_AFFINITY: Bits = Bits(0x152, 1);
pub(super) const LAG_TX_PORT_AFFINITY: Bits = Bits(0x278, 1);
pub(super) const NUM_LAG_PORTS: Bits = Bits(0x27c, 4);
/// The high and the low word of `general_obj_types`.
pub(super) const GENERAL_OBJ_TYPES: [Bits; 2] = [Bits(0x400, 32), Bits(0x420, 32)];
/// That of the group [`GENERAL_2`](group::GENERAL_2).
pub(super) const LOG_RESERVED_QPN_GRANULARITY: Bits = Bits(0x93, 5);

pub(super) struct HcaCaps(Box<[u8; RESPONSE]>);

impl HcaCaps {
    /// The current capabilities. Without them all are 0: kernels and devices without DEVX do not tell.
    pub(super) fn query(raw: &RawContext, of: u16) -> Self {
        let mut command = [0; HEADER];
        command[..2].copy_from_slice(&QUERY_HCA_CAP.to_be_bytes());
        command[6..8].copy_from_slice(&(of << 1 | CURRENT).to_be_bytes());
        let mut response = Box::new([0; RESPONSE]);
        let mut call = raw.call::<DevxOther>();
        call.input_slice(DevxOther::CMD_IN, &command);
        call.output_slice(DevxOther::CMD_OUT, response.as_mut_slice());
        // SAFETY: the buffers exist during the call, and the command changes nothing.
        if unsafe { raw.execute(&mut call) }.is_err() {
            response.fill(0);
        }
        Self(response)
    }

    pub(super) fn get(&self, Bits(offset, width): Bits) -> u32 {
        let at = HEADER + offset / 32 * 4;
        let word = self.0[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
        word << (offset % 32) >> (32 - width)
    }

    pub(super) fn has(&self, bits: Bits) -> bool {
        self.get(bits) != 0
    }

    /// The capabilities of on-demand paging of DC transports, as bits of `ibv_odp_transport_cap_bits`.
    pub(super) fn dc_odp_caps(&self) -> u32 {
        /// `mlx5_ifc_odp_cap_bits.dc_odp_caps`.
        const DC: usize = 0x100;
        // Both have the order: send, receive, write, read, atomic, SRQ receive.
        (0..6).filter(|index| self.has(Bits(DC + index, 1))).fold(0, |bits, index| bits | 1 << index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_bits_of_big_endian_words() {
        let mut response = Box::new([0; RESPONSE]);
        let lag = HEADER + 0x278 / 8;
        response[lag..lag + 1].copy_from_slice(&[0x82]);
        let dc = HEADER + 0x100 / 8;
        response[dc] = 0b1000_0100;
        let caps = HcaCaps(response);
        assert_eq!((caps.get(NUM_LAG_PORTS), caps.has(LAG_TX_PORT_AFFINITY)), (2, true));
        assert_eq!((caps.get(GENERAL_OBJ_TYPES[0]), caps.dc_odp_caps()), (0, 1 << 0 | 1 << 5));
    }
}
