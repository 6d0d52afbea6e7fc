//! The size of the global route header.

/// Bytes before the payload of a datagram in the receive's memory, reserved for the [global route
/// header](crate::ah::Grh).
pub const GRH_BYTES: usize = 40;
