//! Parsers of what the kernel answers, reachable for fuzzing.

pub use crate::device::testing::{SysfsLine, read_sysfs_line};
pub use crate::ethernet::testing::{RouteAnswer, read_route_answers};
pub use crate::netlink::testing::read_nldev;
