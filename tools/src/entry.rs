//! The program's `main` for the C library. It bypasses the setup of Rust's runtime, which costs
//! twenty system calls: the runtime measures the stack and installs a handler that reports stack
//! overflow. The parts of the setup that the program needs are done here.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};

/// The entry point that the C library calls.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // The heap grows in one step instead of five, and is not trimmed.
    for (setting, bytes) in [(libc::M_TOP_PAD, 1 << 20), (libc::M_TRIM_THRESHOLD, 16 << 20)] {
        // SAFETY: mallopt changes allocator settings; no other thread uses the allocator yet.
        unsafe { libc::mallopt(setting, bytes) };
    }
    keep_standard_streams_open();
    // SAFETY: ignoring a signal runs no code.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }.expect("SIGPIPE can be ignored");
    let arguments = (0..usize::try_from(argc).unwrap_or(0)).map(|index| {
        // SAFETY: the C library passes `argc` pointers to strings that are valid for the whole run
        // of the process.
        let argument = unsafe { CStr::from_ptr(*argv.add(index)) };
        OsString::from(OsStr::from_bytes(argument.to_bytes()))
    });
    // `exit` flushes standard output.
    std::process::exit(bareverbs_tools::run(arguments).into())
}

/// Opens `/dev/null` in place of a closed standard stream. Otherwise the next file to be opened,
/// for example a device, would get its number, and output would be written to it.
fn keep_standard_streams_open() {
    let mut streams = [0, 1, 2].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
    // SAFETY: the array has the three entries that are passed. poll reports closed descriptors as
    // POLLNVAL.
    if unsafe { libc::poll(streams.as_mut_ptr(), 3, 0) } <= 0 {
        return;
    }
    for stream in streams.iter().filter(|stream| stream.revents & libc::POLLNVAL != 0) {
        // SAFETY: the path is a C string. The file gets the lowest free number, which is this one,
        // and stays open.
        let opened = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        assert_eq!(opened, stream.fd, "the standard streams or /dev/null are open");
    }
}
