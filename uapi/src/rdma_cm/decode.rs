use core::fmt;

use zerocopy::FromBytes;

use super::structs::{QueryIbServiceResp, QueryPathResp, QueryReq};
use super::{Command, CommandInfo, GET_OPTION, Header, Query, QueryOption, commands};
use crate::abi::{AbiStruct, StructInfo};
use crate::print::{Hex, Struct};

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
        DecodedResponse { info: self.response_info(), bytes }
    }

    fn response_info(&self) -> Option<&'static StructInfo> {
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
}

impl fmt::Display for DecodedResponse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info {
            Some(info) => Struct { info, bytes: self.bytes }.fmt(f),
            None => Hex(self.bytes).fmt(f),
        }
    }
}
