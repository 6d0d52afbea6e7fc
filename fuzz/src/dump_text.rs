//! Files given to `bareverbs dump`: text of the kernel's log, or raw entries.
//!
//! Hexadecimal text of entries prints the same as the raw entries. The output is at most
//! proportional to the input. Each CQE prints one line.

use std::fmt::Write;

use bareverbs_tools::testing::{dump_cqe, dump_wqe};

/// Bytes of a CQE.
const CQE: usize = 64;
/// Upper bound of the bytes printed for each byte of input.
const PRINTED: usize = 64;

/// The bytes as the kernel prints them.
fn kernel_log(bytes: &[u8]) -> String {
    let mut text = String::from("[   12.345678] infiniband mlx5_0: dump_cqe:273:(pid 0): dump error cqe\n");
    for (line, bytes) in bytes.chunks(16).enumerate() {
        write!(text, "[   12.345679] {:08x}:", line * 16).expect("a string");
        bytes.iter().for_each(|byte| write!(text, " {byte:02x}").expect("a string"));
        text.push('\n');
    }
    text
}

pub(crate) fn run(data: &[u8]) {
    for dump in [dump_cqe, dump_wqe] {
        let printed = dump(data.to_vec());
        let text = printed.as_ref().unwrap_or_else(|message| message);
        assert!(!text.is_empty());
        assert!(text.len() <= PRINTED * (data.len() + CQE), "{} bytes of {}", text.len(), data.len());

        // Raw entries that are valid text are parsed as text.
        let is_text = std::str::from_utf8(data).is_ok_and(|text| !text.contains('\0'));
        if !is_text {
            assert_eq!(dump(kernel_log(data).into_bytes()), printed);
        }
    }
    if let Ok(text) = dump_cqe(data.to_vec())
        && std::str::from_utf8(data).is_err()
    {
        let entries = text.lines().filter(|line| line.starts_with("entry ")).count();
        assert_eq!(entries, data.len() / CQE);
    }
}
