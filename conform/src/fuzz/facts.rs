//! What a call says about objects: which it names, creates and destroys. Derived from the bytes that
//! are sent, so it holds for invalid calls too.

use bareverbs_uapi::abi::FieldKind;
use bareverbs_uapi::method::{Access, AttributeKind, MethodInfo};
use bareverbs_uapi::print::native;
use bareverbs_uapi::registry::{self, Driver};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::uverbs::{InvokeWrite, ObjectClass, QpCreate, SrqCreate};
use bareverbs_uapi::write::WriteCommandInfo;

use crate::call::{Call, Payload, Slot};

use super::places::{class_of, created, destroyed, is_get_context};

/// Class of attributes that name an object of any class.
pub(super) const ANY_CLASS: u16 = u16::MAX;

/// An object by class and handle.
pub(super) type Name = (u16, u64);

/// What a call says about objects.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Objects without which the call fails.
    pub(super) needs: Vec<Name>,
    /// Objects that a created object uses until it is destroyed.
    pub(super) uses: Vec<Name>,
    /// Handles of objects that a created object may use. Handles of all classes share one space.
    pub(super) mentions: Vec<u64>,
    /// The destroyed object.
    pub(super) destroys: Option<Name>,
    /// The class of the created object.
    pub(super) creates: Option<u16>,
    /// Whether the created object is a descriptor.
    pub(super) descriptor: bool,
    /// Whether the call makes the context of the file.
    pub(super) context: bool,
    /// The command, if it is one.
    pub(super) command: Option<&'static WriteCommandInfo>,
    /// The request of the command.
    pub(super) request: Vec<u8>,
}

impl Facts {
    /// The facts of an ioctl.
    pub(super) fn of_call(call: &Call, driver: Driver) -> Self {
        let Some(method) = driver.method(call.header.object_id, call.header.method_id) else {
            return Self::default();
        };
        if method.is::<InvokeWrite>() {
            let number = call.slot(InvokeWrite::WRITE_CMD.id()).map_or(0, input_number);
            let request = call.slot(InvokeWrite::CORE_IN.id()).map(sent).unwrap_or_default();
            return match registry::command(u32::try_from(number).unwrap_or(0)) {
                Some(command) => Self::of_command(command, request),
                None => Self::default(),
            };
        }
        let mut facts = Self { context: is_get_context(method), ..Self::default() };
        for slot in &call.slots {
            let Some(info) = driver.attributes(method).find(|info| info.id == slot.raw.attr_id) else {
                continue;
            };
            match info.kind {
                AttributeKind::Handle { object, access: Access::New } => facts.creates = Some(object),
                AttributeKind::Descriptor { object, access: Access::New } => {
                    (facts.creates, facts.descriptor) = (Some(object), true);
                }
                AttributeKind::Handle { object, access } => {
                    facts.needs.push((object, slot.raw.data));
                    match access {
                        Access::Destroy => facts.destroys = Some((object, slot.raw.data)),
                        _ => facts.uses.push((object, slot.raw.data)),
                    }
                }
                _ => {}
            }
        }
        facts.mentions = facts.uses.iter().map(|(_, handle)| *handle).collect();
        for slot in &call.slots {
            let kind =
                driver.attributes(method).find(|info| info.id == slot.raw.attr_id).map(|info| info.kind);
            if let Some(AttributeKind::Handles { .. }) = kind {
                facts.mentions.extend(sent(slot).chunks_exact(4).map(native));
            }
        }
        facts.restrict_uses(method, call);
        facts
    }

    /// Attributes may name objects that a handler does not use for some types. Only the PD is certain.
    fn restrict_uses(&mut self, method: &'static MethodInfo, call: &Call) {
        let number = |id: u16| call.slot(id).map_or(0, input_number);
        let common = match method {
            _ if method.is::<QpCreate>() => {
                let types = [QpType::RC, QpType::UC, QpType::UD].map(|known| u64::from(known.0));
                types.contains(&number(QpCreate::TYPE.id()))
                    && call.slot(QpCreate::IND_TABLE_HANDLE.id()).is_none()
            }
            _ if method.is::<SrqCreate>() => number(SrqCreate::TYPE.id()) != 0,
            // Methods of drivers keep what they use in ways of their own.
            _ => (method.id | method.object) & 0x1000 == 0,
        };
        if !common {
            self.uses.retain(|(class, _)| *class == ObjectClass::PD.0 && method.object < 0x1000);
        }
        if method.is::<QpCreate>() && number(QpCreate::TYPE.id()) == u64::from(QpType::XRC_TGT.0) {
            self.uses.clear();
        }
    }

    /// The facts of a command.
    pub(super) fn of_command(command: &'static WriteCommandInfo, request: Vec<u8>) -> Self {
        let mut facts = Self { command: Some(command), ..Self::default() };
        facts.destroys = destroyed(command).and_then(|(class, at)| Some((class, word(&request, at)?)));
        facts.needs.extend(facts.destroys);
        facts.context = command.rust == "GetContext";
        if command.rust == "CreateCompChannel" {
            (facts.creates, facts.descriptor) = (Some(ObjectClass::COMP_CHANNEL.0), true);
        }
        if let Some((class, _)) = created(command) {
            facts.creates = Some(class);
            facts.uses = uses_of(command, &request);
            let fields = command.request.map_or(&[][..], |info| info.fields).iter();
            let handles = fields.filter(|field| class_of(field.rust).is_some());
            facts.mentions = handles.filter_map(|field| word(&request, field.offset)).collect();
            // The handles of the WQs follow the struct.
            if command.rust == "CreateRwqIndTbl" {
                let rest = command.request.map_or(0, |info| info.size);
                let more = request.get(rest..).unwrap_or_default().chunks_exact(4).map(native);
                facts.mentions.extend(more);
            }
        } else if facts.destroys.is_none() {
            facts.needs.extend(needs_of(command, &request));
        }
        facts.request = request;
        facts
    }

    /// A number in a field of the request; 0 if the request ends before it.
    pub(super) fn field(&self, name: &str) -> u64 {
        let fields = self.command.and_then(|command| command.request).map_or(&[][..], |info| info.fields);
        number(fields, &self.request, name)
    }
}

/// The bytes of an input that are sent.
fn sent(slot: &Slot) -> Vec<u8> {
    let len = usize::from(slot.raw.len);
    match &slot.payload {
        Payload::Input(bytes) => bytes[..len.min(bytes.len())].to_vec(),
        _ => Vec::new(),
    }
}

/// The number of an attribute that is stored in the attribute itself.
fn input_number(slot: &Slot) -> u64 {
    match &slot.payload {
        Payload::Input(bytes) => native(&bytes[..bytes.len().min(8)]),
        _ => slot.raw.data,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 4).map(native)
}

/// The number in a field of a struct, or of the struct in its field `base`.
fn number(fields: &[bareverbs_uapi::abi::FieldInfo], bytes: &[u8], name: &str) -> u64 {
    let found = crate::request::position(fields, name, "base");
    found.and_then(|(at, size)| bytes.get(at..at + size.min(8))).map_or(0, native)
}

/// The objects that a created object uses. Fields that other fields disable do not count.
fn uses_of(command: &'static WriteCommandInfo, request: &[u8]) -> Vec<Name> {
    let fields = command.request.map_or(&[][..], |info| info.fields);
    let get = |name: &str| number(fields, request, name);
    let has = |name: &str| fields.iter().any(|field| field.rust == name);
    let queues = !has("qp_type")
        || [QpType::RC, QpType::UC, QpType::UD].iter().any(|known| u64::from(known.0) == get("qp_type"))
            && get("comp_mask") == 0;
    let mut uses = Vec::new();
    for field in fields {
        let FieldKind::Unsigned(4) = field.kind else { continue };
        let Some(class) = class_of(field.rust) else { continue };
        let used = match field.rust {
            "pd_handle" => get("qp_type") != u64::from(QpType::XRC_TGT.0),
            "srq_handle" => queues && get("is_srq") != 0,
            // The CQ of an SRQ is that of types other than basic.
            "cq_handle" if has("srq_type") => get("srq_type") != 0,
            "recv_cq_handle" => queues && get("is_srq") == 0,
            "rwq_ind_tbl_handle" | "xrcd_handle" => false,
            _ => queues,
        };
        if used && let Some(handle) = word(request, field.offset) {
            uses.push((class.0, handle));
        }
    }
    uses
}

/// The objects that a command needs which creates and destroys none.
fn needs_of(command: &'static WriteCommandInfo, request: &[u8]) -> Vec<Name> {
    let fields = command.request.map_or(&[][..], |info| info.fields);
    let named = fields.iter().flat_map(|field| match field.kind {
        FieldKind::Struct(base) if field.rust == "base" => base.fields,
        _ => std::slice::from_ref(field),
    });
    // The PD of REREG_MR is read only if a flag says so.
    let certain = named.filter(|field| field.rust != "pd_handle");
    certain
        .filter_map(|field| {
            Some((class_of(field.rust)?.0, crate::request::position(fields, field.rust, "base")?.0))
        })
        .filter_map(|(class, at)| Some((class, word(request, at)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::method::Method;
    use bareverbs_uapi::uverbs::types::DriverId;
    use bareverbs_uapi::uverbs::{CqDestroy, PdDestroy};
    use bareverbs_uapi::write::structs::{CreateQpReq, ModifyQpReq};
    use bareverbs_uapi::write::{self, WriteCommand, ex};
    use zerocopy::IntoBytes;

    use super::*;

    const PD: u16 = ObjectClass::PD.0;
    const CQ: u16 = ObjectClass::CQ.0;
    const QP: u16 = ObjectClass::QP.0;

    #[test]
    fn methods_name_the_objects_of_their_attributes() {
        let driver = registry::driver(DriverId::RXE.0);
        let call = Call::of(DriverId::RXE.0, &CqDestroy::INFO).with(Slot::word(CqDestroy::HANDLE.id(), 7));
        let facts = Facts::of_call(&call, driver);
        assert_eq!((facts.destroys, facts.needs), (Some((CQ, 7)), vec![(CQ, 7)]));
        // The header decides, not the method that the call was built for.
        let mut call = call;
        call.header.object_id = PdDestroy::INFO.object;
        call.header.method_id = PdDestroy::INFO.id;
        assert_eq!(Facts::of_call(&call, driver).destroys, Some((PD, 7)));
    }

    #[test]
    fn commands_name_the_objects_of_their_fields() {
        let mut request =
            CreateQpReq { pd_handle: 1, send_cq_handle: 2, recv_cq_handle: 3, ..CreateQpReq::zeroed() };
        request.qp_type = QpType::RC.0 as u8;
        let facts = Facts::of_command(registry::command(24).unwrap(), request.as_bytes().to_vec());
        assert_eq!(facts.creates, Some(QP));
        assert_eq!(facts.uses, [(PD, 1), (CQ, 2), (CQ, 3)]);
        request.is_srq = 1;
        let facts = Facts::of_command(registry::command(24).unwrap(), request.as_bytes().to_vec());
        assert_eq!(facts.uses, [(PD, 1), (CQ, 2), (ObjectClass::SRQ.0, 0)]);

        let request = ModifyQpReq { qp_handle: 9, ..ModifyQpReq::zeroed() };
        let modify = registry::command(write::ModifyQp::INFO.number).unwrap();
        assert_eq!(Facts::of_command(modify, request.as_bytes().to_vec()).needs, [(QP, 9)]);
        let modify = registry::command(ex::ModifyQp::INFO.number).unwrap();
        let facts = Facts::of_command(modify, [request.as_bytes(), &[0; 8]].concat());
        assert_eq!(facts.needs, [(QP, 9)]);
        // A request that ends before the field.
        assert!(Facts::of_command(modify, vec![0; 8]).needs.is_empty());
    }
}
