//! What `rcopy` copies and refuses, and errors of the server.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use bareverbs_test_support::kernel_test;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;

/// Bytes that do not fit into the client's memory for files of unknown size.
const PIPED: usize = 700_000;

pub(super) fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
}

fn destination(path: &str) -> String {
    format!("{}:{path}", host())
}

/// Copies with a new client until the server listens.
fn copy(server: &mut Program, client: Origin, from: &str, to: &str) -> Finished {
    run_client(server, client.command("rcopy", &[from, &destination(to)]))
}

fn end(server: Program) {
    server.signal(Signal::SIGTERM);
    server.finish();
}

#[kernel_test(crate::has_ip)]
fn rcopy_copies_pipes_and_pseudo_files() {
    let folder = Folder::new("/tmp/rcopy-pipes");
    let [copied, fifo] = ["copy", "fifo"].map(|name| folder.path(name));
    let bytes = noise(PIPED);
    nix::unistd::mkfifo(&*fifo, nix::sys::stat::Mode::S_IRWXU).expect("the folder is writable");
    nothing_leaks(|| {
        for origin in [Bareverbs, Librdmacm] {
            let mut server = origin.start("rcopy", &[]);
            // Their sizes are 0, 0 and 4096.
            for path in ["/proc/version", "/proc/filesystems", "/sys/class/net/lo/mtu"] {
                copy(&mut server, Bareverbs, path, &copied).expect_success();
                let both = [path, &copied].map(|path| fs::read(path).expect("the file is readable"));
                assert!(!both[0].is_empty() && both[0] == both[1], "{path} to {origin:?}");
            }
            let writer = std::thread::spawn({
                let (fifo, bytes) = (fifo.clone(), bytes.clone());
                move || fs::write(fifo, bytes)
            });
            copy(&mut server, Bareverbs, &fifo, &copied).expect_success();
            writer.join().expect("the writer ends").expect("the FIFO has a reader");
            assert!(fs::read(&copied).expect("the copy exists") == bytes, "FIFO to {origin:?}");

            let mut command = Bareverbs.command("rcopy", &["/dev/stdin", &destination(&copied)]);
            let mut client = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
            std::io::Write::write_all(&mut client.stdin.take().expect("a pipe"), b"hello\n").expect("a pipe");
            assert!(client.wait().expect("it ends").success(), "standard input to {origin:?}");
            assert_eq!(fs::read(&copied).expect("the copy exists"), b"hello\n");
            end(server);
        }
    });
}

#[kernel_test(crate::has_ip)]
fn rcopy_reports_files_that_change_while_they_are_sent() {
    const SIZE: u64 = 32 << 20;
    let folder = Folder::new("/tmp/rcopy-changes");
    let [source, copied] = ["source", "copy"].map(|name| folder.path(name));
    nothing_leaks(|| {
        let mut server = Bareverbs.start("rcopy", &[]);
        for (len, words) in [(SIZE + 1, "has become longer"), (1, "has become shorter")] {
            let file = fs::File::create(&source).expect("the folder is writable");
            file.set_len(SIZE).expect("the file is sparse");
            let deadline = Instant::now() + LIMIT;
            let finished = loop {
                let _ = fs::remove_file(&copied);
                let client = Bareverbs.start("rcopy", &[&source, &destination(&copied)]);
                let is_copying = || fs::metadata(&copied).is_ok_and(|attr| attr.len() > 0);
                while !is_copying() && Instant::now() < deadline {
                    std::thread::yield_now();
                }
                file.set_len(len).expect("the file is writable");
                let finished = client.finish();
                // The server did not listen yet.
                if !was_rejected(&finished) || Instant::now() > deadline {
                    break finished;
                }
                file.set_len(SIZE).expect("the file is sparse");
            };
            finished.expect_failure(words);
        }
        fs::write(&source, b"whole").expect("the file is writable");
        copy(&mut server, Bareverbs, &source, &copied).expect_success();
        end(server);
    });
}

/// A file system of 1 MiB.
struct SmallDisk(&'static str);

impl SmallDisk {
    fn new(path: &'static str) -> Self {
        fs::create_dir_all(path).expect("the guest's /tmp is writable");
        mount(Some("small"), path, Some("tmpfs"), MsFlags::empty(), Some("size=1M"))
            .expect("the test is root");
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        umount2(self.0, MntFlags::MNT_DETACH).expect("it is mounted");
    }
}

#[kernel_test(crate::has_ip)]
fn rcopy_server_errors_reach_the_client() {
    const ENOSPC: i32 = 28;
    let folder = Folder::new("/tmp/rcopy-full");
    let [small, large] = ["small", "large"].map(|name| folder.path(name));
    let disk = SmallDisk::new("/tmp/rcopy-disk");
    let full = format!("{}/copy", disk.0);
    fs::write(&small, b"hello").expect("the file is writable");
    fs::write(&large, vec![1; 8 << 20]).expect("the file is writable");
    let no_space = |path: &str| format!("the server cannot write {path}: No space left on device");
    nothing_leaks(|| {
        let mut server = Bareverbs.start("rcopy", &[]);
        for (from, to) in [(&small, "/dev/full"), (&large, "/dev/full"), (&large, &full)] {
            copy(&mut server, Bareverbs, from, to).expect_failure(&no_space(to));
            let finished = copy(&mut server, Librdmacm, from, to);
            assert_eq!(finished.status.code(), Some(ENOSPC), "{from} to {to}: {finished:#?}");
        }
        // It goes on.
        fs::remove_file(&full).expect("the part that has room");
        copy(&mut server, Bareverbs, &small, &full).expect_success();
        assert_eq!(fs::read(&full).expect("the copy exists"), b"hello");
        end(server);

        // The C server writes to a mapping, and is killed.
        let mut server = Librdmacm.start("rcopy", &[]);
        copy(&mut server, Bareverbs, &large, &full).expect_failure("the server cannot write");
        assert_eq!(server.finish().status.signal(), Some(Signal::SIGBUS as i32));
    });
}

#[kernel_test(crate::has_ip)]
fn rcopy_reports_errors_of_closing() {
    let folder = Folder::new("/tmp/rcopy-close");
    let [source, copied, log] = ["source", "copy", "log"].map(|name| folder.path(name));
    fs::write(&source, b"hello").expect("the file is writable");
    fs::write(&copied, b"").expect("the file is writable");
    // strace is no parent of the server, so that signals and the end are the server's.
    let fault = ["-D", "-o", &log, "-P", &copied, "-e", "inject=close:error=ENOSPC", "bareverbs", "rcopy"];
    let mut server = Program::start(Command::new("strace").args(fault));
    let finished = copy(&mut server, Bareverbs, &source, &copied);
    finished.expect_failure(&format!("the server cannot close {copied}: No space left"));
    end(server);
}
