//! Input from a peer of `bareverbs perf`: the messages of perftest's exchange.
//!
//! A record that decodes equals its encoding, except for the case of its digits. A side that reads
//! any bytes ends with what both agreed on or with an error message.

use bareverbs_tools::testing::{perf_preamble, recode_perf_key, recode_perf_version};

use crate::input::Input;

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
            let with_gid = input.byte() % 2 == 0;
            let length = if with_gid { 108 } else { 59 };
            let mut record: Vec<u8> = (0..length)
                .map(|at| match at {
                    at if at == length - 1 => 0,
                    4 | 9 | 16 | 23 | 32 | 49 => b':',
                    at if with_gid && at > 49 && (at < 98 && at % 3 == 1 || at == 106) => b':',
                    _ => b"0123456789abcdefABCDEF"[usize::from(input.byte()) % 22],
                })
                .collect();
            let damaged = input.byte() % 3;
            for _ in 0..damaged {
                let at = usize::from(input.byte()) % length;
                record[at] = input.byte();
            }
            match recode_perf_key(with_gid, &record) {
                Ok(again) => assert!(again.eq_ignore_ascii_case(&record)),
                Err(message) => assert!(damaged > 0 && message.contains("byte "), "{message}"),
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
