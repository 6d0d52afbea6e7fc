//! Input from a ping-pong peer: address records of both formats, and closing items.
//!
//! A decoded record equals the record that was sent, except for the case of its digits. An error
//! has the index of the wrong byte. A record needs exactly its number of bytes, then the end.

use bareverbs_tools::testing::{RECORD_LEN, Read, XRC_RECORD_LEN, receive, recode, recode_xrc};

use crate::input::Input;

/// A valid record with some bytes replaced.
fn record<const N: usize>(input: &mut Input<'_>, separators: &[usize]) -> [u8; N] {
    let mut record = std::array::from_fn(|at| match separators.binary_search(&at) {
        Ok(_) if at == N - 1 => 0,
        Ok(_) => b':',
        Err(_) => b"0123456789abcdefABCDEF"[usize::from(input.byte()) % 22],
    });
    for _ in 0..input.byte() % 3 {
        record[usize::from(input.byte()) % N] = input.byte();
    }
    record
}

fn check<const N: usize>(
    record: [u8; N],
    recode: impl Fn(&[u8; N]) -> Result<[u8; N], (String, usize)>,
) -> Option<[u8; N]> {
    match recode(&record) {
        Ok(again) => {
            assert!(again.eq_ignore_ascii_case(&record));
            assert_eq!(recode(&again), Ok(again));
            Some(again)
        }
        Err((message, at)) => {
            assert!(at < N && message.starts_with(&format!("byte {at} is {:#04x}", record[at])));
            None
        }
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let read = match input.byte() % 8 {
        0 => {
            check(record::<RECORD_LEN>(&mut input, &[4, 11, 18, 51]), recode);
            check(record::<XRC_RECORD_LEN>(&mut input, &[4, 11, 18, 25, 32, 65]), recode_xrc);
            return;
        }
        1 => Read::Done,
        2 => Read::End,
        3 => Read::XrcRecord,
        4 => Read::Records { ours: usize::from(input.byte()), places: 256 },
        _ => Read::Records { ours: 1, places: 1 },
    };
    let mut said = Vec::new();
    while !input.is_empty() {
        match input.byte() % 8 {
            0 => said.extend(record::<RECORD_LEN>(&mut input, &[4, 11, 18, 51])),
            1 => said.extend(record::<XRC_RECORD_LEN>(&mut input, &[4, 11, 18, 25, 32, 65])),
            2 => said.extend(b"done\0"),
            3 => said.extend(b"END\0"),
            4 => {
                let one = record::<RECORD_LEN>(&mut input, &[4, 11, 18, 51]);
                (0..input.byte()).for_each(|_| said.extend(one));
            }
            _ => {
                let length = input.byte().into();
                said.extend(input.slice(length));
            }
        }
    }
    match (read, receive(read, &said)) {
        (_, Err(message)) => assert!(!message.is_empty()),
        (Read::Done, Ok(_)) => assert_eq!(said, b"done\0"),
        (Read::End, Ok(_)) => assert_eq!(said, b"END\0"),
        (Read::XrcRecord, Ok(records)) => assert!(said.eq_ignore_ascii_case(&records.concat())),
        (Read::Records { ours, places }, Ok(records)) => {
            assert_eq!((records.len(), said.len()), (ours.min(places), places * RECORD_LEN));
            assert!(said[..ours.min(places) * RECORD_LEN].eq_ignore_ascii_case(&records.concat()));
        }
    }
}
