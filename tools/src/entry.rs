//! The way into the program past the preparations of Rust's runtime, which take twenty system
//! calls: it measures the stack and installs a handler that names its overflow. What the program
//! does need of them is done here.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};

/// Where the C library starts the program.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // The heap grows in one step, not in five, and keeps what it has.
    for (setting, bytes) in [(libc::M_TOP_PAD, 1 << 20), (libc::M_TRIM_THRESHOLD, 16 << 20)] {
        // SAFETY: the setting of an allocator that is not yet in use by any other thread.
        unsafe { libc::mallopt(setting, bytes) };
    }
    keep_standard_streams_open();
    // SAFETY: ignoring a signal runs no code.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }.expect("every process may ignore SIGPIPE");
    let arguments = (0..usize::try_from(argc).unwrap_or(0)).map(|index| {
        // SAFETY: the C library hands over `argc` pointers to strings, which stay for as long as
        // the process.
        let argument = unsafe { CStr::from_ptr(*argv.add(index)) };
        OsString::from(OsStr::from_bytes(argument.to_bytes()))
    });
    // This way out writes what standard output still holds.
    std::process::exit(bareverbs_tools::run(arguments).into())
}

/// Opens `/dev/null` in place of a standard stream that is closed, for else the next file that is
/// opened would take its number, and what is printed would go there: to a device, say.
fn keep_standard_streams_open() {
    let mut streams = [0, 1, 2].map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
    // SAFETY: the array has as many entries as is said. Numbers that are not open are answered as
    // such.
    if unsafe { libc::poll(streams.as_mut_ptr(), 3, 0) } <= 0 {
        return;
    }
    for stream in streams.iter().filter(|stream| stream.revents & libc::POLLNVAL != 0) {
        // SAFETY: the path is a string; the lowest free number, this one, is what the file gets,
        // and it stays open.
        let opened = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        assert_eq!(opened, stream.fd, "the standard streams are open or /dev/null is");
    }
}
