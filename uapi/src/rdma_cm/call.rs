use core::marker::PhantomData;

use zerocopy::IntoBytes;

use super::{Command, Header};

/// Size of the largest request, that of [`super::WriteCmEvent`], and its header.
const MAX_BYTES: usize = size_of::<Header>() + size_of::<super::structs::WriteCmEventReq>();

/// A command for a `write` to the file, built on the stack.
///
/// It borrows the response buffer, to which the kernel writes during the `write`.
#[derive(Debug)]
pub struct Call<'a, C> {
    bytes: [u8; MAX_BYTES],
    length: usize,
    _response: PhantomData<(&'a mut [u8], C)>,
}

impl<'a, C: Command> Call<'a, C> {
    /// The command with this request and response buffer.
    #[must_use]
    pub fn new(request: C::Request, response: &'a mut C::Response) -> Self {
        Self::with_room(request, response.as_mut_bytes())
    }

    /// The command with this request and response buffer, for responses of variable or
    /// kernel-dependent length. At most 65,535 bytes of the buffer are used.
    #[must_use]
    pub fn with_room(mut request: C::Request, response: &'a mut [u8]) -> Self {
        const { assert!(size_of::<Header>() + size_of::<C::Request>() <= MAX_BYTES) };
        let output = response.len().min(usize::from(u16::MAX)) as u16;
        C::set_response(&mut request, response.as_mut_ptr().expose_provenance() as u64);
        let input = size_of::<C::Request>() as u16;
        let header = Header { command: C::INFO.number, input, output };
        let mut call = Self { bytes: [0; MAX_BYTES], length: 0, _response: PhantomData };
        for part in [header.as_bytes(), request.as_bytes()] {
            call.bytes[call.length..call.length + part.len()].copy_from_slice(part);
            call.length += part.len();
        }
        call
    }

    /// The bytes for one write.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
