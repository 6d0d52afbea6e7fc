use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::uapi::decode::{Memory, decode};

/// The bytes of a call, printed by [`display_call`].
#[derive(Clone, Copy, Debug)]
pub struct DisplayCall<'a>(&'a [u8]);

/// Prints the bytes of a call with the names and values of its method and attributes. `{:#}` prints
/// one line for each attribute and field. Invalid bytes are printed with the reason.
///
/// Payloads are read by the kernel (`/proc/self/mem`), so an address that is not mapped is printed
/// as an address.
///
/// ```
/// use bareverbs::raw::display_call;
/// use bareverbs::raw::uapi::method::Call;
/// use bareverbs::raw::uapi::uverbs::{PdDestroy, types::DriverId};
///
/// let mut call = Call::<PdDestroy>::new(DriverId::RXE.0);
/// call.destroy(PdDestroy::HANDLE, 7);
/// assert_eq!(display_call(call.as_bytes()).to_string(), "PdDestroy on RXE {HANDLE: destroy Pd 7}");
/// ```
#[must_use]
pub fn display_call(call: &[u8]) -> DisplayCall<'_> {
    DisplayCall(call)
}

impl fmt::Display for DisplayCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = OwnMemory(File::open("/proc/self/mem").ok());
        match decode(self.0, &memory) {
            Ok(call) => fmt::Display::fmt(&call, f),
            Err(error) => write!(f, "invalid call: {error}"),
        }
    }
}

/// The memory of this process, read by the kernel. No reference to it is created.
struct OwnMemory(Option<File>);

impl Memory for OwnMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        self.0.as_ref().is_some_and(|memory| memory.read_exact_at(buffer, address).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::uapi::method::Call;
    use crate::raw::uapi::uverbs::QueryGidTable;
    use crate::raw::uapi::uverbs::types::{DriverId, GidEntry};

    #[test]
    fn display_call_reads_payloads_from_memory() {
        let mut entries = [GidEntry::zeroed()];
        entries[0].gid_index = 77;
        let mut call = Call::<QueryGidTable>::new(DriverId::RXE.0);
        call.output_slice(QueryGidTable::RESP_ENTRIES, &mut entries);
        // Mark the output as written, as the kernel does.
        let flags = size_of::<super::super::uapi::ioctl::Header>() + 4;
        call.as_mut_bytes()[flags] |= 2;
        let text = display_call(call.as_bytes()).to_string();
        assert!(text.contains("gid_index: 77"), "{text}");
    }

    #[test]
    fn display_call_names_the_reason_of_invalid_bytes() {
        assert_eq!(
            display_call(&[0; 3]).to_string(),
            "invalid call: 3 bytes are shorter than an ioctl header of 24 bytes"
        );
    }
}
