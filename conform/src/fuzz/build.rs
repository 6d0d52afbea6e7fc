//! Valid calls, with values of a program's choices.

use bareverbs_uapi::abi::{FieldKind, StructInfo};
use bareverbs_uapi::driver::DriverPayload;
use bareverbs_uapi::method::{
    Access, AttributeInfo, AttributeKind, MethodInfo, PayloadSize, UHW_IN, UHW_OUT,
};
use bareverbs_uapi::uverbs::InvokeWrite;
use bareverbs_uapi::write::WriteCommandInfo;

use crate::call::{Call, Slot};
use crate::request::position;

use super::facts::ANY_CLASS;
use super::machine::{Machine, Step};
use super::places::class_of;
use super::program::Choices;
use super::values::{fill, plausible, transition};
use super::written::Written;

/// The number of bytes that a payload has.
fn length(size: PayloadSize, choices: &mut Choices<'_>) -> usize {
    match size {
        PayloadSize::Exact(len) => len,
        PayloadSize::AtLeast(least) => least.max(choices.among(&[0, 16, 64, 512]).unwrap_or(0)),
        PayloadSize::Within { minimum, maximum } => choices.among(&[maximum, minimum]).unwrap_or(maximum),
        PayloadSize::Extensible { minimum, known } => choices.among(&[known, minimum]).unwrap_or(known),
    }
}

/// Attributes that the tables declare as optional and handlers need.
fn is_needed(method: &MethodInfo, info: &AttributeInfo) -> bool {
    let needed: &[&str] = match method.rust {
        "QpCreate" => &["PD_HANDLE", "SEND_CQ_HANDLE", "RECV_CQ_HANDLE"],
        "RegMr" => &["ADDR"],
        "InfoHandles" => &["TOTAL_HANDLES", "HANDLES_LIST"],
        "WqCreate" => &["CQ_HANDLE"],
        _ => &[],
    };
    info.mandatory || needed.contains(&info.rust)
}

/// Commands of the device that DEVX methods accept: queries and small objects.
const MAILBOXES: [u16; 10] = [
    // QUERY_HCA_CAP, ALLOC_FLOW_COUNTER, CREATE_RMP, ALLOC_TRANSPORT_DOMAIN, CREATE_TIS, CREATE_TIR,
    // CREATE_GENERAL_OBJECT, CREATE_MKEY, ALLOC_PD, QUERY_Q_COUNTER.
    0x100, 0x939, 0x90c, 0x816, 0x912, 0x900, 0xa00, 0x200, 0x800, 0x773,
];

impl Machine<'_> {
    /// A valid call of a method on a file.
    pub(super) fn method_call(
        &mut self,
        file: usize,
        method: &'static MethodInfo,
        choices: &mut Choices<'_>,
        depth: usize,
    ) -> Step<Call> {
        let driver = self.places.driver;
        let mut call = Call::of(self.target.driver_id(), method);
        for info in driver.attributes(method) {
            // Of older kernels: the attribute is unknown, and the call fails.
            let known = info.since <= self.series;
            if is_needed(method, info) && known || choices.rarely(1) {
                let slot = self.slot(file, method, info, choices, depth)?;
                call.slots.extend(slot);
            }
        }
        if method.driver_payload {
            let payload = driver.method_payload(method.object, method.id);
            self.add_driver_payload(&mut call, payload, choices);
        }
        Ok(call)
    }

    fn add_driver_payload(
        &self,
        call: &mut Call,
        payload: Option<&DriverPayload>,
        choices: &mut Choices<'_>,
    ) {
        let Some(payload) = payload else { return };
        if let Some(info) = payload.request {
            let bytes = fill(info, choices, &self.environment, &mut |_, _| None);
            call.slots.push(Slot::input(UHW_IN, &bytes));
        }
        if let Some(info) = payload.response {
            call.slots.push(Slot::output(UHW_OUT, info.size));
        }
    }

    /// A valid value of an attribute; `None` if an optional one has none.
    fn slot(
        &mut self,
        file: usize,
        method: &'static MethodInfo,
        info: &'static AttributeInfo,
        choices: &mut Choices<'_>,
        depth: usize,
    ) -> Step<Option<Slot>> {
        let id = info.id;
        let environment = self.environment;
        let number = |kind: Option<FieldKind>, choices: &mut Choices<'_>| {
            plausible(method.rust, info.rust, kind, choices, &environment)
        };
        Ok(Some(match info.kind {
            AttributeKind::Handle { access: Access::New, .. }
            | AttributeKind::Descriptor { access: Access::New, .. } => Slot::word(id, 0),
            AttributeKind::Handle { object, .. } => {
                let Some(handle) = self.object(file, object, choices, depth)? else { return Ok(None) };
                Slot::word(id, handle)
            }
            AttributeKind::Descriptor { object, .. } => {
                let Some(fd) = self.descriptor(file, object, choices, depth)? else { return Ok(None) };
                Slot::word(id, i64::from(fd).cast_unsigned())
            }
            AttributeKind::Handles { object, minimum, maximum, .. } => {
                let count = choices.among(&[minimum, maximum.min(8)]).unwrap_or(minimum);
                let mut bytes = Vec::new();
                for _ in 0..count {
                    let handle = self.object(file, object, choices, depth)?.unwrap_or(u64::MAX);
                    bytes.extend_from_slice(&(handle as u32).to_ne_bytes());
                }
                Slot::input(id, &bytes)
            }
            AttributeKind::RawDescriptor => {
                let [own, other] = self.other_fds(file);
                let fd = choices.among(&[other, own, -1]).unwrap_or(-1);
                Slot::word(id, i64::from(fd).cast_unsigned())
            }
            AttributeKind::Constant { names, .. } | AttributeKind::Flags { names, .. } => {
                Slot::number(id, number(names.map(FieldKind::Named), choices))
            }
            AttributeKind::Enumeration { names } => {
                let element = choices.among(names.map_or(&[][..], |info| info.values));
                let mut slot = Slot::number(id, choices.next().into());
                slot.raw.attr_data = element.map_or(0, |element| element.value as u16);
                slot.set_len(choices.among(&[0, 1, 2, 4, 8]).unwrap_or(0));
                slot
            }
            AttributeKind::Output { size, .. } => {
                let len = match method.rust {
                    "InfoHandles" | "QueryGidTable" => length(size, choices).max(8),
                    _ => length(size, choices),
                };
                Slot::output(id, len)
            }
            AttributeKind::Input { size, payload } => {
                let len = length(size, choices);
                let mut bytes = match payload {
                    Some(FieldKind::Struct(info)) => fill(info, choices, &environment, &mut |_, _| None),
                    Some(FieldKind::Array(..) | FieldKind::Unsigned(1)) if info.rust == "CMD_IN" => {
                        let opcode = choices.among(&MAILBOXES).unwrap_or(0);
                        let mut bytes = opcode.to_be_bytes().to_vec();
                        bytes.resize(choices.among(&[16, 64, 256, 512]).unwrap_or(16), 0);
                        bytes
                    }
                    kind => number(kind, choices).to_ne_bytes().to_vec(),
                };
                bytes.resize(if info.rust == "CMD_IN" { bytes.len() } else { len }, 0);
                Slot::input(id, &bytes)
            }
        }))
    }

    /// A valid request of a command on a file.
    fn request(
        &mut self,
        file: usize,
        command: &'static WriteCommandInfo,
        choices: &mut Choices<'_>,
        depth: usize,
    ) -> Step<Vec<u8>> {
        let Some(info) = command.request else { return Ok(Vec::new()) };
        // The objects first: they need the machine.
        let mut handles = Vec::new();
        let mut names = Vec::new();
        super::values::leaves(info, 0, &mut |_, field, _| names.push(field.rust));
        for name in names {
            let Some(class) = class_of(name) else { continue };
            // An object that is seldom needed is not made for it.
            let wanted = match name {
                "srq_handle" if command.rust == "CreateQp" => choices.rarely(1),
                "rwq_ind_tbl_handle" | "xrcd_handle" if !command.rust.contains("Xrcd") => choices.rarely(1),
                "cq_handle" if command.rust == "CreateXsrq" => choices.rarely(2),
                _ => true,
            };
            let handle = if wanted { self.object(file, class.0, choices, depth)? } else { None };
            handles.push((name, handle));
        }
        let environment = self.environment;
        let mut bytes = fill(info, choices, &environment, &mut |name, _| {
            handles.iter().find(|(of, _)| *of == name).map(|(_, handle)| handle.unwrap_or(0))
        });
        self.complete(file, command, info, &mut bytes, &handles, choices, depth)?;
        Ok(bytes)
    }

    /// Values that depend on each other, and what follows the struct of a request.
    #[expect(clippy::too_many_arguments, reason = "the parts of one request")]
    fn complete(
        &mut self,
        file: usize,
        command: &'static WriteCommandInfo,
        info: &'static StructInfo,
        bytes: &mut Vec<u8>,
        handles: &[(&'static str, Option<u64>)],
        choices: &mut Choices<'_>,
        depth: usize,
    ) -> Step<()> {
        let set = |bytes: &mut Vec<u8>, name: &str, value: u64| {
            if let Some((at, size)) = position(info.fields, name, "base") {
                bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
            }
        };
        let has = |name: &str| handles.iter().any(|(of, handle)| *of == name && handle.is_some());
        match command.rust {
            "ModifyQp" => {
                let (mask, state) = transition(choices);
                set(bytes, "attr_mask", mask);
                set(bytes, "qp_state", state);
            }
            "CreateQp" => {
                set(bytes, "is_srq", has("srq_handle").into());
                set(bytes, "comp_mask", has("rwq_ind_tbl_handle").into());
            }
            "AttachMcast" | "DetachMcast" => bytes[..2].copy_from_slice(&[0xff, 0x0e]),
            "CreateRwqIndTbl" => {
                let table = self.object(file, bareverbs_uapi::uverbs::ObjectClass::WQ.0, choices, depth)?;
                let handle = table.unwrap_or(u64::MAX) as u32;
                // An entry for each of 2^log_ind_tbl_size, and padding to 8 bytes.
                bytes.extend_from_slice(&handle.to_ne_bytes());
                bytes.extend_from_slice(&handle.to_ne_bytes());
            }
            _ => {}
        }
        if choices.rarely(1) {
            bytes.resize(bytes.len() + 8, 0);
        }
        Ok(())
    }

    /// A valid command through `INVOKE_WRITE`.
    pub(super) fn command_call(
        &mut self,
        file: usize,
        command: &'static WriteCommandInfo,
        choices: &mut Choices<'_>,
        depth: usize,
    ) -> Step<Call> {
        use bareverbs_uapi::method::Method;
        let request = self.request(file, command, choices, depth)?;
        let mut call = Call::of(self.target.driver_id(), &InvokeWrite::INFO)
            .with(Slot::number(InvokeWrite::WRITE_CMD.id(), command.number.into()));
        if !request.is_empty() {
            call = call.with(Slot::input(InvokeWrite::CORE_IN.id(), &request));
        }
        if let Some(info) = command.response {
            call = call.with(Slot::output(InvokeWrite::CORE_OUT.id(), info.size));
        }
        let payload = self.places.driver.command_payload(command.number);
        self.add_driver_payload(&mut call, payload, choices);
        Ok(call)
    }

    /// A valid command for `write()`.
    pub(super) fn written(
        &mut self,
        file: usize,
        command: &'static WriteCommandInfo,
        choices: &mut Choices<'_>,
        depth: usize,
    ) -> Step<Written> {
        let request = self.request(file, command, choices, depth)?;
        let payload = self.places.driver.command_payload(command.number);
        let info = payload.and_then(|payload| payload.request);
        let driver_request =
            info.map_or_else(Vec::new, |info| fill(info, choices, &self.environment, &mut |_, _| None));
        Ok(Written {
            command,
            request,
            driver_request,
            response: command.response.map_or(0, |info| info.size),
            driver_response: payload.and_then(|payload| payload.response).map_or(0, |info| info.size),
            unmapped: false,
            words: None,
        })
    }

    /// A live object of a class, the newest for choice 0; a new one if there is none.
    fn object(
        &mut self,
        file: usize,
        class: u16,
        choices: &mut Choices<'_>,
        depth: usize,
    ) -> Step<Option<u64>> {
        let live = self.live(file, class);
        if live.is_empty() && class != ANY_CLASS && depth < MAX_DEPTH {
            self.make(file, class, depth + 1)?;
        }
        let live = self.live(file, class);
        let choice = usize::from(choices.next()) % live.len().max(1);
        Ok(live.iter().rev().nth(choice).copied())
    }

    /// An open descriptor of a class.
    fn descriptor(
        &mut self,
        file: usize,
        class: u16,
        choices: &mut Choices<'_>,
        depth: usize,
    ) -> Step<Option<i32>> {
        if self.descriptors(file, class).is_empty() && depth < MAX_DEPTH {
            self.make(file, class, depth + 1)?;
        }
        let open = self.descriptors(file, class);
        let choice = usize::from(choices.next()) % open.len().max(1);
        Ok(open.iter().rev().nth(choice).copied())
    }
}

/// How deep objects are made for objects: an indirection table of a WQ of a CQ and a PD of a context.
const MAX_DEPTH: usize = 5;

#[cfg(test)]
mod tests {
    use bareverbs_uapi::registry;
    use bareverbs_uapi::uverbs::ObjectClass;

    use super::*;
    use crate::fuzz::facts::Facts;

    /// The kernel reads the handle of a `DESTROY_CQ` of 16 bytes from behind it. That handle must not
    /// depend on chance: 0xffff_ffff is no object.
    #[test]
    fn short_destroy_cq_names_no_cq() {
        let command = registry::command(20).unwrap();
        let mut request = vec![0; command.request.unwrap().size];
        request[8] = 1;
        let mut written = Written {
            command,
            request,
            driver_request: Vec::new(),
            response: 8,
            driver_response: 0,
            unmapped: false,
            words: None,
        };
        let destroys = |written: &Written| Facts::of_command(command, written.sent_request()).destroys;
        assert_eq!(destroys(&written), Some((ObjectClass::CQ.0, 1)));
        written.words = Some((4, 2));
        assert_eq!(destroys(&written), Some((ObjectClass::CQ.0, 0xffff_ffff)));
        written.words = Some((5, 2));
        assert_eq!(destroys(&written), Some((ObjectClass::CQ.0, 1)));
        written.words = Some((3, 2));
        assert_eq!(destroys(&written), None);
    }
}
