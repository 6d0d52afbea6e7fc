//! Input from a peer of `bareverbs perf`: the messages of perftest's exchange.
//!
//! A record that decodes equals its encoding, except for the case of its digits. A side that reads
//! any bytes ends with what both agreed on or with an error message.

use std::ops::Range;

use bareverbs_tools::testing::{PerfKeyForm, perf_preamble, recode_perf_key, recode_perf_version};

use crate::input::Input;

/// Bytes of a binary record, and those that no side reads.
const BINARY_LEN: usize = 56;
const UNREAD: [Range<usize>; 2] = [20..24, 52..56];

/// A record of `length` characters: digits, separators and a NUL.
fn text_key(input: &mut Input<'_>, length: usize, with_gid: bool) -> Vec<u8> {
    let byte = |at: usize| match at {
        at if at == length - 1 => 0,
        4 | 9 | 16 | 23 | 32 | 49 => b':',
        at if with_gid && at > 49 && (at < 98 && at % 3 == 1 || at == 106) => b':',
        _ => b"0123456789abcdefABCDEF"[usize::from(input.byte()) % 22],
    };
    (0..length).map(byte).collect()
}

/// A binary record whose LID and number of outstanding reads have 16 bits.
fn binary_key(input: &mut Input<'_>) -> Vec<u8> {
    let mut record = input.bytes(BINARY_LEN);
    [0, 1, 4, 5].into_iter().for_each(|at| record[at] = 0);
    record
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 4 {
        0 => {
            let bytes = std::array::from_fn(|_| input.byte());
            match recode_perf_version(&bytes) {
                Ok(again) => assert_eq!(recode_perf_version(&again), Ok(again)),
                Err(message) => assert!(!message.is_empty()),
            }
        }
        1 | 2 => {
            let form = [PerfKeyForm::Gid, PerfKeyForm::Lid, PerfKeyForm::Binary][input.below(3)];
            let mut record = match form {
                PerfKeyForm::Lid => text_key(&mut input, 59, false),
                PerfKeyForm::Gid => text_key(&mut input, 108, true),
                PerfKeyForm::Binary => binary_key(&mut input),
            };
            let damaged = input.byte() % 3;
            for _ in 0..damaged {
                let at = input.below(record.len());
                record[at] = input.byte();
            }
            match (recode_perf_key(form, &record), form) {
                (Ok(again), PerfKeyForm::Binary) => {
                    UNREAD.into_iter().flatten().for_each(|at| record[at] = 0);
                    assert_eq!(again, record);
                }
                (Ok(again), _) => assert!(again.eq_ignore_ascii_case(&record)),
                (Err(message), _) => assert!(damaged > 0 && message.contains("byte "), "{message}"),
            }
            // A record over the connection manager has the length of the peer's message.
            if form == PerfKeyForm::Binary {
                let length = input.below(BINARY_LEN);
                assert!(recode_perf_key(form, &record[..length]).unwrap_err().contains("bytes instead of"));
            }
        }
        _ => {
            let server = input.byte() % 2 == 0;
            match perf_preamble(server, input.0) {
                Ok(agreed) => assert!(agreed.contains("mtu")),
                Err(message) => assert!(!message.is_empty()),
            }
        }
    }
}
