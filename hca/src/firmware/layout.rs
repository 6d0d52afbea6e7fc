//! Offsets and widths of the fields in the firmware interface that this model uses: one declaration
//! per structure of `include/linux/mlx5/mlx5_ifc.h`.

pub(crate) mod caps;
pub(crate) mod command;
pub(crate) mod dump;
pub(crate) mod object;
pub(crate) mod port;
pub(crate) mod traffic;
