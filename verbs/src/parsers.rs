//! Parsers of kernel responses, public for fuzzing.

pub use crate::device::testing::{SysfsLine, read_sysfs_line};
pub use crate::ethernet::testing::{RouteAnswer, read_route_answers};
