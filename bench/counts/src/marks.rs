//! Marks that callgrind sees: requests of a client to the valgrind that runs it, which do nothing
//! elsewhere.
//!
//! A request is a sequence of instructions that change nothing and that nobody else writes
//! (valgrind's `valgrind.h`); their codes are those of its `callgrind.h`.

use std::arch::asm;
use std::ffi::CStr;

const TOOL: u64 = (b'C' as u64) << 24 | (b'T' as u64) << 16;
const ZERO_STATS: u64 = TOOL + 1;
const TOGGLE_COLLECT: u64 = TOOL + 2;
const DUMP_STATS_AT: u64 = TOOL + 3;

static TOGGLE: [u64; 6] = [TOGGLE_COLLECT, 0, 0, 0, 0, 0];

/// The request that `rax` points to. The rotations add up to none, and the exchange is one of a
/// register with itself; valgrind reads what `rax` points to and writes `rdx`.
macro_rules! request {
    ($($before:literal,)* ; $($operands:tt)*) => {
        asm!(
            $($before,)*
            "xor edx, edx",
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            $($operands)*
            out("rdx") _,
        )
    };
}

/// Has what follows counted, or no longer.
///
/// Callgrind counts a run of instructions without jumps when the next begins, and so not the one
/// that ends in a request: the jump sets that apart from what stands before it. The jump itself is
/// counted.
#[inline(always)]
fn toggle() {
    // SAFETY: the jump goes to the next instruction; for the rest see `request`.
    unsafe { request!("jmp 2f", "2:", "lea rax, [rip + {toggle}]", ; toggle = sym TOGGLE, out("rax") _,) }
}

fn request(code_and_arguments: &[u64; 6]) {
    // SAFETY: see `request`.
    unsafe { request!(; in("rax") code_and_arguments.as_ptr(),) }
}

/// Has the instructions of `work` counted, and one of the marks' own.
#[inline(always)]
pub fn counted<R>(work: impl FnOnce() -> R) -> R {
    toggle();
    let result = work();
    toggle();
    result
}

/// Begins to count from 0.
pub fn begin() {
    request(&[ZERO_STATS, 0, 0, 0, 0, 0]);
}

/// Has what was counted written out, under a name.
pub fn end(name: &CStr) {
    request(&[DUMP_STATS_AT, name.as_ptr().expose_provenance() as u64, 0, 0, 0, 0]);
}
