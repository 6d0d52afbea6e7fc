//! Every declared ABI item in one table, for checks and for tools that print.

use crate::abi::{ConstInfo, EnumInfo, StructInfo};

/// The items of one module of this crate.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// Path of the module in this crate.
    pub name: &'static str,
    /// The structs.
    pub structs: &'static [&'static StructInfo],
    /// The enumerations.
    pub enums: &'static [&'static EnumInfo],
    /// The flag sets.
    pub flags: &'static [&'static EnumInfo],
    /// The single constants.
    pub consts: &'static [ConstInfo],
}

/// Every module that declares ABI items.
pub const MODULES: &[Module] = &[
    Module {
        name: "ioctl",
        structs: crate::ioctl::STRUCTS,
        enums: &[],
        flags: crate::ioctl::FLAGS,
        consts: crate::ioctl::CONSTS,
    },
    Module {
        name: "netlink",
        structs: crate::netlink::STRUCTS,
        enums: crate::netlink::ENUMS,
        flags: crate::netlink::FLAGS,
        consts: crate::netlink::CONSTS,
    },
    Module {
        name: "nldev",
        structs: &[],
        enums: crate::nldev::ENUMS,
        flags: crate::nldev::FLAGS,
        consts: &[],
    },
    Module {
        name: "nldev::attribute",
        structs: &[],
        enums: crate::nldev::attribute::ENUMS,
        flags: &[],
        consts: &[],
    },
];
