//! What a program can call: the methods of the tables and the write commands, and the objects that
//! each creates or destroys.

use std::collections::BTreeMap;

use bareverbs_uapi::abi::FieldKind;
use bareverbs_uapi::method::{Access, AttributeKind, MethodInfo};
use bareverbs_uapi::registry::{self, Driver};
use bareverbs_uapi::uverbs::{GetContext, InvokeWrite, ObjectClass};
use bareverbs_uapi::write::WriteCommandInfo;
use proptest::prelude::*;
use proptest::sample::select;

/// A method or a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// A method.
    Method(&'static MethodInfo),
    /// A command through `INVOKE_WRITE`.
    Command(&'static WriteCommandInfo),
    /// A command by `write()`.
    Write(&'static WriteCommandInfo),
}

impl Place {
    /// Its name in reports.
    pub(super) fn name(self) -> String {
        let extended = |command: &WriteCommandInfo| match command.number & bareverbs_uapi::write::EXTENDED {
            0 => String::new(),
            _ => "ex::".to_owned(),
        };
        match self {
            Self::Method(method) if method.id & 0x1000 != 0 => format!("driver {}", method.rust),
            Self::Method(method) => method.rust.to_owned(),
            Self::Command(command) => format!("INVOKE_WRITE {}{}", extended(command), command.rust),
            Self::Write(command) => format!("write {}{}", extended(command), command.rust),
        }
    }

    /// The class of the objects that a successful call creates.
    pub(super) fn creates(self) -> Option<u16> {
        match self {
            Self::Method(method) => method.attributes.iter().find_map(|info| match info.kind {
                AttributeKind::Handle { object, access: Access::New }
                | AttributeKind::Descriptor { object, access: Access::New } => Some(object),
                _ => None,
            }),
            Self::Command(command) | Self::Write(command) => created(command)
                .map(|(class, _)| class)
                .or_else(|| (command.rust == "CreateCompChannel").then_some(ObjectClass::COMP_CHANNEL.0)),
        }
    }

    fn destroys(self) -> bool {
        match self {
            Self::Method(method) => method
                .attributes
                .iter()
                .any(|info| matches!(info.kind, AttributeKind::Handle { access: Access::Destroy, .. })),
            Self::Command(command) | Self::Write(command) => destroyed(command).is_some(),
        }
    }
}

/// The class that a field with a handle belongs to.
pub(super) fn class_of(field: &str) -> Option<ObjectClass> {
    Some(match field {
        "pd_handle" => ObjectClass::PD,
        "cq_handle" | "send_cq_handle" | "recv_cq_handle" => ObjectClass::CQ,
        "qp_handle" => ObjectClass::QP,
        "srq_handle" => ObjectClass::SRQ,
        "ah_handle" => ObjectClass::AH,
        "mr_handle" => ObjectClass::MR,
        "mw_handle" => ObjectClass::MW,
        "xrcd_handle" => ObjectClass::XRCD,
        "wq_handle" => ObjectClass::WQ,
        "ind_tbl_handle" | "rwq_ind_tbl_handle" => ObjectClass::RWQ_IND_TBL,
        "flow_handle" => ObjectClass::FLOW,
        _ => return None,
    })
}

/// The class that a command creates an object of, and the position of its handle in the response.
pub(crate) fn created(command: &WriteCommandInfo) -> Option<(u16, usize)> {
    let makes = ["Create", "Alloc", "Reg", "Open"].iter().any(|verb| command.rust.starts_with(verb));
    let fields = command.response.filter(|_| makes)?.fields;
    fields.iter().find_map(|field| match field.kind {
        // The response of an extended command begins with that of the command.
        FieldKind::Struct(base) if field.rust == "base" => {
            base.fields.iter().find_map(|inner| Some((class_of(inner.rust)?.0, field.offset + inner.offset)))
        }
        _ => Some((class_of(field.rust)?.0, field.offset)),
    })
}

/// The class that a command destroys an object of, and the position of the handle in the request.
pub(crate) fn destroyed(command: &WriteCommandInfo) -> Option<(u16, usize)> {
    let destroys = ["Destroy", "Dealloc", "Dereg", "Close"].iter().any(|verb| command.rust.starts_with(verb));
    let fields = command.request.filter(|_| destroys)?.fields;
    fields.iter().find_map(|field| Some((class_of(field.rust)?.0, field.offset)))
}

/// All places of a device.
pub(super) struct Places {
    pub(super) driver: Driver,
    pub(super) all: Vec<Place>,
    /// The place that makes an object of a class, by class.
    makers: BTreeMap<u16, usize>,
}

impl Places {
    /// The methods that a device has, and all commands, also by `write()` if the device has that.
    pub(super) fn new(
        driver_id: u32,
        has_write: bool,
        mut is_known: impl FnMut(&'static MethodInfo) -> bool,
    ) -> Self {
        let driver = registry::driver(driver_id);
        let is_write = |method: &MethodInfo| method.is::<InvokeWrite>();
        let methods =
            driver.methods().filter(|method| !is_write(method) && is_known(method)).map(Place::Method);
        let commands = registry::COMMANDS.into_iter();
        let all: Vec<Place> = methods
            .chain(commands.clone().map(Place::Command))
            .chain(commands.filter(|_| has_write).map(Place::Write))
            .collect();
        let mut makers = BTreeMap::new();
        for (index, place) in all.iter().enumerate() {
            let Some(class) = place.creates() else { continue };
            // Methods of memory regions of older kernels need device memory or a dma-buf.
            let general = class != ObjectClass::MR.0 || matches!(place, Place::Command(_));
            if general {
                makers.entry(class).or_insert(index);
            }
        }
        Self { driver, all, makers }
    }

    /// The place that makes an object of a class.
    pub(super) fn maker(&self, class: u16) -> Option<usize> {
        self.makers.get(&class).copied()
    }

    /// The place that makes the context of a file.
    pub(super) fn context(&self) -> usize {
        let is = |place: &Place| matches!(place, Place::Method(method) if is_get_context(method));
        self.all.iter().position(is).unwrap_or(0)
    }

    /// Indices of places. The life cycle of objects is chosen more often than the rest.
    pub(super) fn strategy(&self) -> impl Strategy<Value = usize> + use<> {
        let of = |wanted: bool| -> Vec<usize> {
            let is_life = |place: &Place| place.creates().is_some() || place.destroys();
            let places = self.all.iter().enumerate();
            places.filter(|(_, place)| is_life(place) == wanted).map(|(index, _)| index).collect()
        };
        prop_oneof![2 => select(of(true)), 1 => select(of(false))]
    }
}

pub(super) fn is_get_context(method: &MethodInfo) -> bool {
    method.is::<GetContext>()
}
