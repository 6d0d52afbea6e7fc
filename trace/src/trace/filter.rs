//! The seccomp filter by which only calls that can be of an RDMA interface stop.

use std::io;

use nix::libc::{self, c_long, sock_filter, sock_fprog};

/// The number of this architecture in seccomp's data (`AUDIT_ARCH_…` of `linux/audit.h`).
pub(super) const ARCHITECTURE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

/// The calls that stop, whatever their arguments.
const CALLS: [c_long; 6] = [
    libc::SYS_write,
    libc::SYS_read,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
];

/// Offsets in `struct seccomp_data`: the architecture, the call, the low half of argument 1.
const ARCH_AT: u32 = 4;
const CALL_AT: u32 = 0;
const REQUEST_AT: u32 = 16 + 8 + if cfg!(target_endian = "big") { 4 } else { 0 };

/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K`, `BPF_RET | BPF_K`.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Whether the kernel can stop a call for a tracer.
pub(super) fn is_supported() -> bool {
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    ARCHITECTURE.is_some()
        && actions.is_ok_and(|actions| actions.split_whitespace().any(|one| one == "trace"))
}

/// The filter; `None` on an architecture whose number is unknown here.
pub(super) fn program() -> Option<Vec<sock_filter>> {
    let architecture = ARCHITECTURE?;
    let step = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let calls = CALLS.len() as u8;
    // The last instructions are: allow, trace.
    let mut program = vec![
        step(LOAD, ARCH_AT, 0, 0),
        step(JUMP_IF_EQUAL, architecture, 0, calls + 4),
        step(LOAD, CALL_AT, 0, 0),
    ];
    for (i, call) in (0..).zip(CALLS) {
        program.push(step(JUMP_IF_EQUAL, call as u32, calls - i + 3, 0));
    }
    program.extend([
        step(JUMP_IF_EQUAL, libc::SYS_ioctl as u32, 0, 2),
        step(LOAD, REQUEST_AT, 0, 0),
        step(JUMP_IF_EQUAL, bareverbs_uapi::ioctl::VERBS_IOCTL, 1, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
        step(RETURN, libc::SECCOMP_RET_TRACE, 0, 0),
    ]);
    Some(program)
}

/// Installs the filter for this process and what it starts. Without `CAP_SYS_ADMIN`, programs that it
/// starts get no privileges by set-user-id.
pub(super) fn install(program: &[sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let filter = sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let set = || {
        // SAFETY: `filter` has `len` instructions, which the kernel copies and does not change.
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) }
    };
    if set() == 0 {
        return Ok(());
    }
    // SAFETY: this request has numbers as arguments.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if set() == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's interpretation of the filter.
    fn run(program: &[sock_filter], architecture: u32, call: c_long, request: u32) -> u32 {
        let (mut accumulator, mut at) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match (step.code, step.k) {
                (LOAD, ARCH_AT) => accumulator = architecture,
                (LOAD, CALL_AT) => accumulator = call as u32,
                (LOAD, REQUEST_AT) => accumulator = request,
                (JUMP_IF_EQUAL, k) => at += usize::from(if accumulator == k { step.jt } else { step.jf }),
                (RETURN, k) => return k,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn filter_stops_calls_of_rdma_interfaces_only() {
        let Some(program) = program() else { return };
        let native = ARCHITECTURE.unwrap();
        let verbs = bareverbs_uapi::ioctl::VERBS_IOCTL;
        let traced = |architecture, call, request| match run(&program, architecture, call, request) {
            libc::SECCOMP_RET_TRACE => true,
            libc::SECCOMP_RET_ALLOW => false,
            other => panic!("{other:#x}"),
        };
        for call in CALLS {
            assert!(traced(native, call, 0));
            assert!(!traced(native ^ 1, call, 0));
        }
        assert!(traced(native, libc::SYS_ioctl, verbs));
        assert!(!traced(native, libc::SYS_ioctl, verbs + 1));
        assert!(!traced(native ^ 1, libc::SYS_ioctl, verbs));
        for call in [libc::SYS_openat, libc::SYS_mmap, libc::SYS_close, libc::SYS_futex] {
            assert!(!traced(native, call, verbs));
        }
    }
}
