//! Parsers of input from virtual machine monitors and from the fabrics of other processes, exported
//! for fuzzing.

pub use crate::fabric::testing::{
    Message, decode_frame, decode_message, encode_frame, encode_message, read_inter_switch_link,
};
pub use crate::vfio_user::testing::{Bar, Monitor, MonitorMessage, with_monitor};
