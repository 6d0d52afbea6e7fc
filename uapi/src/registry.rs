//! All declared ABI items in one table, for checks and for tools.

use crate::abi::{ConstInfo, EnumInfo, StructInfo, flatten};
use crate::driver::{DriverAttributes, DriverPayload};
use crate::method::{Access, AttributeInfo, AttributeKind, MethodInfo, ObjectInfo};
use crate::uverbs::types::DriverId;
use crate::write::WriteCommandInfo;

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
        name: "mlx5::steering",
        structs: crate::mlx5::steering::STRUCTS,
        enums: crate::mlx5::steering::ENUMS,
        flags: crate::mlx5::steering::FLAGS,
        consts: crate::mlx5::steering::CONSTS,
    },
    Module {
        name: "mlx5::structs",
        structs: crate::mlx5::structs::STRUCTS,
        enums: &[],
        flags: &[],
        consts: &[],
    },
    Module {
        name: "mlx5::values",
        structs: &[],
        enums: crate::mlx5::values::ENUMS,
        flags: crate::mlx5::values::FLAGS,
        consts: crate::mlx5::values::CONSTS,
    },
    Module {
        name: "mlx5::verbs",
        structs: crate::mlx5::verbs::STRUCTS,
        enums: crate::mlx5::verbs::ENUMS,
        flags: crate::mlx5::verbs::FLAGS,
        consts: &[],
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
    Module {
        name: "rdma_cm",
        structs: crate::rdma_cm::STRUCTS,
        enums: crate::rdma_cm::ENUMS,
        flags: crate::rdma_cm::FLAGS,
        consts: crate::rdma_cm::CONSTS,
    },
    Module {
        name: "rdma_cm::address",
        structs: crate::rdma_cm::address::STRUCTS,
        enums: crate::rdma_cm::address::ENUMS,
        flags: &[],
        consts: &[],
    },
    Module {
        name: "rdma_cm::commands",
        structs: &[],
        enums: &[],
        flags: &[],
        consts: crate::rdma_cm::commands::NUMBERS,
    },
    Module {
        name: "rdma_cm::event",
        structs: &[],
        enums: crate::rdma_cm::event::ENUMS,
        flags: &[],
        consts: &[],
    },
    Module {
        name: "rdma_cm::path",
        structs: crate::rdma_cm::path::STRUCTS,
        enums: &[],
        flags: crate::rdma_cm::path::FLAGS,
        consts: &[],
    },
    Module {
        name: "rdma_cm::structs",
        structs: crate::rdma_cm::structs::STRUCTS,
        enums: &[],
        flags: &[],
        consts: &[],
    },
    Module {
        name: "rtnetlink",
        structs: crate::rtnetlink::STRUCTS,
        enums: crate::rtnetlink::ENUMS,
        flags: crate::rtnetlink::FLAGS,
        consts: crate::rtnetlink::CONSTS,
    },
    Module { name: "rxe", structs: crate::rxe::STRUCTS, enums: crate::rxe::ENUMS, flags: &[], consts: &[] },
    Module {
        name: "siw",
        structs: crate::siw::STRUCTS,
        enums: crate::siw::ENUMS,
        flags: crate::siw::FLAGS,
        consts: crate::siw::CONSTS,
    },
    Module {
        name: "uverbs",
        structs: &[],
        enums: crate::uverbs::ENUMS,
        flags: &[],
        consts: crate::uverbs::CONSTS,
    },
    Module {
        name: "uverbs::comp_cntr",
        structs: &[],
        enums: crate::uverbs::comp_cntr::ENUMS,
        flags: crate::uverbs::comp_cntr::FLAGS,
        consts: &[],
    },
    Module { name: "uverbs::dmah", structs: &[], enums: crate::uverbs::dmah::ENUMS, flags: &[], consts: &[] },
    Module {
        name: "uverbs::types",
        structs: crate::uverbs::types::STRUCTS,
        enums: crate::uverbs::types::ENUMS,
        flags: crate::uverbs::types::FLAGS,
        consts: crate::uverbs::types::CONSTS,
    },
    Module {
        name: "verbs_values",
        structs: &[],
        enums: crate::verbs_values::ENUMS,
        flags: crate::verbs_values::FLAGS,
        consts: &[],
    },
    Module {
        name: "write::structs::cq",
        structs: crate::write::structs::cq::STRUCTS,
        enums: &[],
        flags: &[],
        consts: &[],
    },
    Module {
        name: "write::structs::device",
        structs: crate::write::structs::device::STRUCTS,
        enums: &[],
        flags: &[],
        consts: &[],
    },
    Module {
        name: "write::structs::flow",
        structs: crate::write::structs::flow::STRUCTS,
        enums: &[],
        flags: &[],
        consts: &[],
    },
    Module {
        name: "write::structs::memory",
        structs: crate::write::structs::memory::STRUCTS,
        enums: &[],
        flags: &[],
        consts: &[],
    },
    Module {
        name: "write::structs::qp",
        structs: crate::write::structs::qp::STRUCTS,
        enums: &[],
        flags: &[],
        consts: &[],
    },
    Module {
        name: "write::structs::srq",
        structs: crate::write::structs::srq::STRUCTS,
        enums: &[],
        flags: &[],
        consts: &[],
    },
    Module {
        name: "write::structs::wq",
        structs: crate::write::structs::wq::STRUCTS,
        enums: &[],
        flags: &[],
        consts: &[],
    },
    Module {
        name: "write::types",
        structs: &[],
        enums: crate::write::types::ENUMS,
        flags: crate::write::types::FLAGS,
        consts: crate::write::types::CONSTS,
    },
];

/// All object classes of the core, with their methods and attributes.
pub const OBJECTS: [&ObjectInfo; 20] = {
    use crate::uverbs::{comp_cntr, cq, device, dm, dmah, flow, mr, pd, qp, srq, wq};
    flatten(&[
        device::OBJECTS,
        pd::OBJECTS,
        cq::OBJECTS,
        qp::OBJECTS,
        srq::OBJECTS,
        mr::OBJECTS,
        wq::OBJECTS,
        flow::OBJECTS,
        dm::OBJECTS,
        dmah::OBJECTS,
        comp_cntr::OBJECTS,
    ])
};

/// All write commands with a handler: non-extended, then extended.
pub const COMMANDS: [&WriteCommandInfo; 47] = flatten(&[crate::write::COMMANDS, crate::write::ex::COMMANDS]);

/// The write command with that number, including [`EXTENDED`](crate::write::EXTENDED).
#[must_use]
pub fn command(number: u32) -> Option<&'static WriteCommandInfo> {
    COMMANDS.into_iter().find(|command| command.number == number)
}

/// Driver-specific additions to the core.
#[derive(Clone, Copy, Debug, Default)]
pub struct Driver {
    /// Its object classes, and core classes with the methods that it adds.
    pub objects: &'static [&'static ObjectInfo],
    /// The attributes that it adds to core methods.
    pub attributes: &'static [&'static DriverAttributes],
    /// Its payloads of write commands and core methods.
    pub payloads: &'static [&'static DriverPayload],
}

impl Driver {
    /// The object classes of the core, then those of the driver. A core class to which the driver
    /// adds methods occurs twice.
    pub fn objects(self) -> impl Iterator<Item = &'static ObjectInfo> {
        OBJECTS.into_iter().chain(self.objects.iter().copied())
    }

    /// The methods of the core, then those of the driver.
    pub fn methods(self) -> impl Iterator<Item = &'static MethodInfo> {
        self.objects().flat_map(|object| object.methods).copied()
    }

    /// The method with these ids.
    #[must_use]
    pub fn method(self, object: u16, id: u16) -> Option<&'static MethodInfo> {
        self.methods().find(|method| (method.object, method.id) == (object, id))
    }

    /// The attributes of a method: its own, then those that the driver adds.
    pub fn attributes(self, method: &MethodInfo) -> impl Iterator<Item = &'static AttributeInfo> + use<> {
        let (object, id) = (method.object, method.id);
        let is_added_to =
            move |added: &&&DriverAttributes| (added.method.object, added.method.id) == (object, id);
        let added = self.attributes.iter().filter(is_added_to).flat_map(|added| added.attributes);
        method.attributes.iter().chain(added)
    }

    /// The driver payload of a write command.
    #[must_use]
    pub fn command_payload(self, number: u32) -> Option<&'static DriverPayload> {
        let has = |payload: &&DriverPayload| payload.commands.iter().any(|command| command.number == number);
        self.payloads.iter().copied().find(has)
    }

    /// The driver payload of a core method.
    #[must_use]
    pub fn method_payload(self, object: u16, id: u16) -> Option<&'static DriverPayload> {
        let has = |payload: &&DriverPayload| {
            payload.methods.iter().any(|method| (method.object, method.id) == (object, id))
        };
        self.payloads.iter().copied().find(has)
    }

    /// The method that destroys objects of a class, and its attribute for the handle. `None` for
    /// classes whose objects are file descriptors or are not destroyed.
    #[must_use]
    pub fn destructor(self, object: u16) -> Option<(&'static MethodInfo, &'static AttributeInfo)> {
        let destroys = |attribute: &&AttributeInfo| matches!(attribute.kind, AttributeKind::Handle { object: of, access: Access::Destroy } if of == object);
        self.methods()
            .filter(|method| method.object == object)
            .find_map(|method| Some((method, method.attributes.iter().find(destroys)?)))
    }
}

/// The drivers whose additions are declared, sorted by their names.
pub const DRIVERS: [(DriverId, Driver); 3] = [
    (
        DriverId::MLX5,
        Driver {
            objects: &crate::mlx5::OBJECTS,
            attributes: crate::mlx5::ATTRIBUTES,
            payloads: crate::mlx5::PAYLOADS,
        },
    ),
    (DriverId::RXE, Driver { objects: &[], attributes: &[], payloads: crate::rxe::PAYLOADS }),
    (DriverId::SIW, Driver { objects: &[], attributes: &[], payloads: crate::siw::PAYLOADS }),
];

/// The additions of a driver by driver id; empty for most drivers.
#[must_use]
pub fn driver(id: u32) -> Driver {
    DRIVERS.into_iter().find(|(driver, _)| driver.0 == id).map_or_else(Driver::default, |(_, added)| added)
}
