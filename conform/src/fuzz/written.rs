//! Commands for `write()`.

use bareverbs_uapi::write::structs::{CmdHdr, ExCmdHdr};
use bareverbs_uapi::write::{EXTENDED, WriteCommandInfo};
use zerocopy::{FromZeros, IntoBytes};

use crate::request::position;
use crate::write_buffer::WriteBuffer;

/// A command for `write()`.
#[derive(Clone)]
pub(super) struct Written {
    pub(super) command: &'static WriteCommandInfo,
    /// The request without headers, and the driver's part.
    pub(super) request: Vec<u8>,
    pub(super) driver_request: Vec<u8>,
    /// Room for the response and the driver's part, in bytes.
    pub(super) response: usize,
    pub(super) driver_response: usize,
    /// Whether the address of the response has no memory.
    pub(super) unmapped: bool,
    /// Sizes of request and response in the header instead of the right ones, in words.
    pub(super) words: Option<(u16, u16)>,
}

impl Written {
    /// The request as the kernel reads it: cut or padded to the size in the header, with the bytes
    /// behind it that the kernel reads.
    pub(super) fn sent_request(&self) -> Vec<u8> {
        let buffer = WriteBuffer::new(&self.encode(&mut Vec::new()));
        let bytes = [buffer.command(), buffer.overread()].concat();
        let extended = self.command.number & EXTENDED != 0;
        let headers = size_of::<CmdHdr>() + if extended { size_of::<ExCmdHdr>() } else { 0 };
        bytes.get(headers..).unwrap_or_default().to_vec()
    }

    /// The bytes to write. The response goes to `buffer`, which has room for all that the header
    /// states.
    pub(super) fn encode(&self, buffer: &mut Vec<u8>) -> Vec<u8> {
        let extended = self.command.number & EXTENDED != 0;
        let unit = if extended { 8 } else { 4 };
        let words = |bytes: usize| u16::try_from(bytes.div_ceil(unit)).unwrap_or(u16::MAX);
        let mut request = self.request.clone();
        // The parts of an extended command are in units of 8 bytes.
        request.resize(request.len().next_multiple_of(unit), 0);
        let mut header = CmdHdr::new_zeroed();
        header.command = self.command.number;
        let mut second = ExCmdHdr::new_zeroed();
        if extended {
            (header.in_words, header.out_words) = (words(request.len()), words(self.response));
            second.provider_in_words = words(self.driver_request.len());
            second.provider_out_words = words(self.driver_response);
        } else {
            let all = size_of::<CmdHdr>() + request.len() + self.driver_request.len();
            (header.in_words, header.out_words) = (words(all), words(self.response + self.driver_response));
        }
        if let Some((request, response)) = self.words {
            (header.in_words, header.out_words) = (request, response);
        }
        buffer.resize((usize::from(header.out_words) + usize::from(second.provider_out_words)) * unit, 0);
        let address = match self.unmapped {
            true => crate::call::UNMAPPED,
            false => buffer.as_mut_ptr().expose_provenance() as u64,
        };
        let mut bytes = header.as_bytes().to_vec();
        if extended {
            second.response = address;
            bytes.extend_from_slice(second.as_bytes());
        } else if let Some((at, size)) =
            self.command.request.and_then(|info| position(info.fields, "response", "base"))
            && let Some(field) = request.get_mut(at..at + size)
        {
            field.copy_from_slice(&address.to_ne_bytes());
        }
        bytes.extend_from_slice(&request);
        bytes.extend_from_slice(&self.driver_request);
        let stated = match extended {
            true => bytes.len().next_multiple_of(8),
            false => usize::from(header.in_words) * 4,
        };
        // The size of the write is that of the header, unless that is less than a header.
        bytes.resize(stated.max(size_of::<CmdHdr>()), 0);
        bytes
    }
}
