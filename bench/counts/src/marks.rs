//! Marks for callgrind: client requests to the valgrind that runs the program. Without valgrind
//! they do nothing.
//!
//! A request is a sequence of instructions without effect that compilers do not generate
//! (valgrind's `valgrind.h`). The request codes are those of `callgrind.h`.

use std::arch::asm;
use std::ffi::CStr;

const TOOL: u64 = (b'C' as u64) << 24 | (b'T' as u64) << 16;
const ZERO_STATS: u64 = TOOL + 1;
const TOGGLE_COLLECT: u64 = TOOL + 2;
const DUMP_STATS_AT: u64 = TOOL + 3;

static TOGGLE: [u64; 6] = [TOGGLE_COLLECT, 0, 0, 0, 0, 0];

/// The client request that `rax` points to. The rotations have no effect in sum, and the `xchg`
/// exchanges a register with itself. valgrind reads the memory at `rax` and writes `rdx`.
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

/// Starts or stops counting.
///
/// Callgrind counts a basic block when the next one begins. The jump starts a new block, so that
/// the block with the request is separate from the code before it. The jump itself is counted.
#[inline(always)]
fn toggle() {
    // SAFETY: the jump goes to the next instruction; see `request` for the rest.
    unsafe { request!("jmp 2f", "2:", "lea rax, [rip + {toggle}]", ; toggle = sym TOGGLE, out("rax") _,) }
}

fn request(code_and_arguments: &[u64; 6]) {
    // SAFETY: see `request`.
    unsafe { request!(; in("rax") code_and_arguments.as_ptr(),) }
}

/// Counts the instructions of `work`, and one of the marks.
#[inline(always)]
pub fn counted<R>(work: impl FnOnce() -> R) -> R {
    toggle();
    let result = work();
    toggle();
    result
}

/// Resets the counts to 0.
pub fn begin() {
    request(&[ZERO_STATS, 0, 0, 0, 0, 0]);
}

/// Dumps the counts under a name.
pub fn end(name: &CStr) {
    request(&[DUMP_STATS_AT, name.as_ptr().expose_provenance() as u64, 0, 0, 0, 0]);
}
