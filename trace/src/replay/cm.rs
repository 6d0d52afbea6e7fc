//! Replay of commands of the connection manager.
//!
//! Commands that need no peer are replayed: identifiers, addresses, listening, the resolution of
//! addresses and routes, queries. Only their results are compared, since addresses differ between
//! machines.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use bareverbs_netlink::RdmaNetlink;
use bareverbs_uapi::abi::StructInfo;
use bareverbs_uapi::print::native;
use bareverbs_uapi::rdma_cm::{Header, decode};
use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Unsupported;
use crate::trace::Record;

/// The open files of the connection manager.
#[derive(Default)]
pub(super) struct Cm {
    files: HashMap<(i32, i32), File>,
    /// Identifiers of a recorded file, and what they are here.
    ids: HashMap<(i32, i32, u32), u32>,
    /// Recorded identifiers whose state depends on commands that were not replayed.
    diverged: HashSet<(i32, i32, u32)>,
}

/// The commands that need no peer.
const REPLAYED: [&str; 11] = [
    "CreateId",
    "DestroyId",
    "BindIp",
    "Bind",
    "Listen",
    "ResolveIp",
    "ResolveAddr",
    "ResolveRoute",
    "QueryRoute",
    "Query",
    "InitQpAttr",
];

/// Timeout of the event that ends a resolution, in seconds.
const RESOLVED: i64 = 5;

impl Cm {
    /// Makes a recorded command. The result is a record of this run.
    pub(super) fn write(&mut self, record: &Record) -> Result<Record, Unsupported> {
        let decoded = decode(&record.request);
        let (Some(header), Some(command)) = (decoded.header(), decoded.command()) else {
            return Err(Unsupported::Undeclared);
        };
        let (process, fd) = (record.process, record.fd);
        let start = size_of::<Header>();
        let mut bytes = record.request.clone();
        let id =
            position(command.request, "id").and_then(|at| bytes.get(start + at..start + at + 4)).map(native);
        let id = id.map(|id| (process, fd, id as u32));
        if command.rust == "GetEvent" {
            return Err(Unsupported::Time);
        }
        if !REPLAYED.contains(&command.rust) {
            self.diverged.extend(id);
            return Err(Unsupported::Peer);
        }
        if command.rust != "CreateId" {
            let recorded = id.ok_or(Unsupported::Undeclared)?;
            let here = self.ids.get(&recorded).ok_or(Unsupported::Peer)?;
            if self.diverged.contains(&recorded) && command.rust != "DestroyId" {
                return Err(Unsupported::Peer);
            }
            let at = start + position(command.request, "id").unwrap_or(0);
            bytes[at..at + 4].copy_from_slice(&here.to_ne_bytes());
        }
        let mut response = vec![0; header.output.into()];
        if let Some(at) = position(command.request, "response") {
            let address = response.as_mut_ptr().expose_provenance() as u64;
            let target = bytes.get_mut(start + at..start + at + 8).ok_or(Unsupported::Undeclared)?;
            target.copy_from_slice(&address.to_ne_bytes());
        }
        // Sent as it is: the size in the header decides what the kernel reads.
        let file = self.file(process, fd)?;
        let result = match file.write(&bytes) {
            Ok(count) => i64::try_from(count).unwrap_or(i64::MAX),
            Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        if result >= 0 && command.rust.starts_with("Resolve") {
            wait(file);
        }
        if result >= 0 && command.rust == "CreateId" {
            let recorded = record.answer.get(..4).map(native).ok_or(Unsupported::Undeclared)?;
            let here = native(response.get(..4).unwrap_or_default());
            self.ids.insert((process, fd, recorded as u32), here as u32);
        }
        Ok(Record { result: Some(result), request: bytes, answer: Vec::new(), ..record.clone() })
    }

    fn file(&mut self, process: i32, fd: i32) -> Result<&mut File, Unsupported> {
        let entry = self.files.entry((process, fd));
        match entry {
            std::collections::hash_map::Entry::Occupied(open) => Ok(open.into_mut()),
            std::collections::hash_map::Entry::Vacant(place) => {
                // The query loads the kernel's module.
                let _ = RdmaNetlink::open().and_then(|mut netlink| netlink.global_char_device("rdma_cm"));
                let mut options = OpenOptions::new();
                options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
                let file =
                    options.open("/dev/infiniband/rdma_cm").map_err(|_| Unsupported::NoConnectionManager)?;
                Ok(place.insert(file))
            }
        }
    }
}

/// Waits for an event, which is not read.
fn wait(file: &File) {
    let timeout = Timespec { tv_sec: RESOLVED, tv_nsec: 0 };
    // Without an event in time, the next command shows it.
    let _ = poll(&mut [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)], Some(&timeout));
}

/// The position of a field.
fn position(info: &StructInfo, name: &str) -> Option<usize> {
    info.fields.iter().find(|field| field.rust == name).map(|field| field.offset)
}
