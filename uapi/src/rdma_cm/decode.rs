use core::fmt;

use zerocopy::FromBytes;

use super::structs::{
    ConnParam, Ece, EventResp, QueryIbServiceResp, QueryPathResp, QueryReq, SetOptionReq, UdParam,
};
use super::{
    Command, CommandInfo, DecodedOption, EventType, GET_OPTION, Header, ParamKind, Query, QueryOption,
    SetOption, commands, option_name,
};
use crate::abi::{AbiStruct, FieldKind, StructInfo};
use crate::print::{DebugAsDisplay, Hex, Struct, Value};
use crate::uverbs::types::QpType;

/// Decodes a write to the connection manager, for printing with names and values.
#[must_use]
pub const fn decode(bytes: &[u8]) -> Decoded<'_> {
    Decoded { bytes }
}

/// The result of [`decode`]. Printing never fails; malformed bytes are marked as such.
#[derive(Clone, Copy, Debug)]
pub struct Decoded<'a> {
    bytes: &'a [u8],
}

impl<'a> Decoded<'a> {
    /// The header, if there are enough bytes.
    #[must_use]
    pub fn header(&self) -> Option<Header> {
        Header::read_from_prefix(self.bytes).ok().map(|(header, _)| header)
    }

    /// The command, if its number is known.
    #[must_use]
    pub fn command(&self) -> Option<&'static CommandInfo> {
        commands::find(self.header()?.command)
    }

    /// The response to this command, for printing.
    #[must_use]
    pub fn response<'b>(&self, bytes: &'b [u8]) -> DecodedResponse<'b> {
        DecodedResponse { info: self.response_info(), bytes, qp_type: None }
    }

    /// The value of the option that this command sets, for printing; `None` for other commands. The
    /// value is at the address in the request.
    #[must_use]
    pub fn option<'b>(&self, bytes: &'b [u8]) -> Option<DecodedOption<'b>> {
        let request = self.option_request()?;
        Some(DecodedOption { level: request.level, option: request.optname, bytes })
    }

    fn option_request(&self) -> Option<SetOptionReq> {
        if self.command()?.number != SetOption::INFO.number {
            return None;
        }
        let (_, request) = self.bytes.split_at_checked(size_of::<Header>())?;
        SetOptionReq::read_from_prefix(request).ok().map(|(request, _)| request)
    }

    /// The struct of the response to this command, if it has one.
    #[must_use]
    pub fn response_info(&self) -> Option<&'static StructInfo> {
        let command = self.command()?;
        if command.number == Query::INFO.number {
            let (_, request) = self.bytes.split_at_checked(size_of::<Header>())?;
            let (request, _) = QueryReq::read_from_prefix(request).ok()?;
            match request.option {
                QueryOption::PATH => return Some(&QueryPathResp::INFO),
                QueryOption::IB_SERVICE => return Some(&QueryIbServiceResp::INFO),
                _ => {}
            }
        }
        command.response
    }
}

impl fmt::Display for Decoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok((header, rest)) = Header::read_from_prefix(self.bytes) else {
            return write!(
                f,
                "<malformed: {} bytes where the head has {}>",
                self.bytes.len(),
                size_of::<Header>()
            );
        };
        let input = usize::from(header.input);
        let request = rest.get(..input).unwrap_or(rest);
        match commands::find(header.command) {
            Some(command) => {
                let info = command.request;
                write!(f, "{}: {}", command.rust, Struct { info, bytes: request })?;
                let option = self.option_request().filter(|_| request.len() >= size_of::<SetOptionReq>());
                if let Some(name) = option.and_then(|option| option_name(option.level, option.optname)) {
                    write!(f, " ({name})")?;
                }
                if let Some(beyond) = request.get(info.size..).filter(|beyond| !beyond.is_empty()) {
                    write!(f, " and {}", Hex(beyond))?;
                }
            }
            None if header.command == GET_OPTION => write!(f, "GET_OPTION (no handler): {}", Hex(request))?,
            None => write!(f, "command {}: {}", header.command, Hex(request))?,
        }
        if rest.len() < input {
            write!(f, " <malformed: {} of {input} bytes>", rest.len())?;
        }
        if header.output > 0 {
            write!(f, " room {}", header.output)?;
        }
        Ok(())
    }
}

/// The result of [`Decoded::response`].
#[derive(Clone, Copy, Debug)]
pub struct DecodedResponse<'a> {
    info: Option<&'static StructInfo>,
    bytes: &'a [u8],
    qp_type: Option<QpType>,
}

impl DecodedResponse<'_> {
    /// Sets the QP type of the identifier that an event belongs to. It decides how the parameters
    /// of the event are printed. Without it, they decide: [`EventResp::likely_qp_type`].
    #[must_use]
    pub fn with_qp_type(mut self, qp_type: QpType) -> Self {
        self.qp_type = Some(qp_type);
        self
    }
}

impl fmt::Display for DecodedResponse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info {
            Some(info) if info.rust == EventResp::INFO.rust => fmt_event(self, f),
            Some(info) => Struct { info, bytes: self.bytes }.fmt(f),
            None => Hex(self.bytes).fmt(f),
        }
    }
}

/// Prints an event with the member of the union that its type selects.
fn fmt_event(response: &DecodedResponse<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const PARAM: usize = core::mem::offset_of!(EventResp, ud);
    const AFTER: usize = core::mem::offset_of!(EventResp, reserved);
    let bytes = response.bytes;
    let Some((_, after)) = bytes.split_at_checked(AFTER) else {
        return fmt::Display::fmt(&Struct { info: &EventResp::INFO, bytes }, f);
    };
    // The kernel accepts a buffer without the ECE options.
    let mut whole = [0; size_of::<EventResp>()];
    let length = bytes.len().min(whole.len());
    whole[..length].copy_from_slice(&bytes[..length]);
    let Ok(event) = EventResp::read_from_bytes(&whole) else {
        return fmt::Display::fmt(&Struct { info: &EventResp::INFO, bytes }, f);
    };

    let mut out = f.debug_struct(EventResp::INFO.rust);
    Struct { info: &EventResp::INFO, bytes: &bytes[..PARAM] }.add_fields(&mut out);
    let param = &bytes[PARAM..AFTER];
    match ParamKind::of(event.event, response.qp_type.unwrap_or_else(|| event.likely_qp_type())) {
        ParamKind::None => {}
        // Only on iWARP does it have parameters.
        ParamKind::Conn if event.event == EventType::ESTABLISHED && param.iter().all(|byte| *byte == 0) => {}
        ParamKind::Conn => {
            out.field("conn", &DebugAsDisplay(Struct { info: &ConnParam::INFO, bytes: param }));
        }
        ParamKind::Ud => {
            out.field("ud", &DebugAsDisplay(Struct { info: &UdParam::INFO, bytes: param }));
        }
        ParamKind::Arg => {
            out.field("arg", &event.arg());
        }
    }
    if let Some(ece) =
        after.get(core::mem::offset_of!(EventResp, ece) - AFTER..).filter(|ece| !ece.is_empty())
    {
        let kind = FieldKind::Struct(&Ece::INFO);
        out.field(
            "ece",
            &DebugAsDisplay(Value { kind: &kind, bytes: &ece[..ece.len().min(size_of::<Ece>())] }),
        );
    }
    out.finish()
}
