//! Writes to the RDMA connection manager and its responses and events, printed with names and
//! values.
//!
//! The text is at most proportional to the bytes. Malformed bytes are printed as malformed.

use bareverbs_uapi::rdma_cm::{self, COMMANDS, Header};
use zerocopy::IntoBytes;

use crate::input::Input;

/// Upper bound of the bytes printed for each byte of input; covers the names of the longest struct.
const PRINTED: usize = 32;
const NAMES: usize = 16 << 10;

fn check(request: &[u8], response: &[u8]) {
    let decoded = rdma_cm::decode(request);
    for text in [decoded.to_string(), decoded.response(response).to_string()] {
        assert!(text.len() <= PRINTED * (request.len() + response.len()) + NAMES, "{} bytes", text.len());
    }
    assert_eq!(decoded.header().is_some(), request.len() >= size_of::<Header>());
    let known = decoded.header().is_some_and(|header| {
        COMMANDS.iter().any(|command| command.number == header.command)
    });
    assert_eq!(decoded.command().is_some(), known);
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let raw = usize::from(input.byte());
    let raw = input.slice(raw);
    check(raw, input.0);

    // A known command, with as many bytes as its request or with another number, and its response.
    let command = input.one_of(COMMANDS);
    let length = match input.byte() % 4 {
        0 => usize::from(input.byte()),
        _ => command.request.size,
    };
    let stated = if input.one_in(4) { input.half() } else { length as u16 };
    let header = Header { command: command.number, input: stated, output: input.half() };
    let request = [header.as_bytes(), &input.bytes(length)].concat();
    check(&request, input.0);
}
