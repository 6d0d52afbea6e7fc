//! Replay of a recorded control path: the calls of a program on this kernel.
//!
//! A recording is a file of JSON lines, as [`trace`](crate::trace) makes it: a [`Header`], then a
//! [`Record`] in each line. `replay` makes the same calls in the same order. It maps handles,
//! descriptors, QP numbers and addresses of memory to those of this run, and compares the answers:
//! the result, which outputs the kernel wrote, and their values. Values that name objects, ports or
//! machines are not compared: handles, descriptors, keys, numbers of QPs and SRQs, GUIDs and GIDs, counts
//! of events, and the driver's part.
//!
//! Of rdma_cm, the commands that need no peer are replayed; of RDMA netlink, the requests that only
//! read. Their results are compared. Calls that can't be replayed are counted by reason
//! ([`Unsupported`]). The device must be of the recorded driver.
//!
//! At the end, all files are closed. Objects that the device still has are reported as a leak.

mod cm;
mod compare;
mod map;
mod netlink;

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use bareverbs::Device;
use bareverbs_netlink::{RdmaNetlink, ResourceSummary};
use bareverbs_uapi::abi::{FieldKind, StructInfo};
use bareverbs_uapi::decode::{DecodedCall, DecodedValue, Layout, Memory, decode};
use bareverbs_uapi::ioctl::{Attribute, Header as CallHeader, VERBS_IOCTL};
use bareverbs_uapi::method::Access;
use bareverbs_uapi::print::native;
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::write::EXTENDED;
use bareverbs_uapi::write::structs::{CmdHdr, ExCmdHdr};
use nix::libc;
use serde::{Deserialize, Serialize};
use zerocopy::FromBytes;

use crate::trace::{CallKind, Chunk, Interface, Record};
use crate::{OVERREAD, ResourceChange};
use map::Names;

/// The first line of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// `bareverbs-trace`.
    pub format: String,
    /// The version of the format: [`VERSION`].
    pub version: u32,
    /// The release of the recorded kernel.
    pub kernel: String,
}

/// The version of recordings that this crate writes and reads.
pub const VERSION: u32 = 1;

const FORMAT: &str = "bareverbs-trace";

/// Bytes behind a command that are no valid handle.
const NO_HANDLE: [u8; OVERREAD] = [0xff; OVERREAD];

impl Header {
    /// The header of a recording on the running kernel.
    #[must_use]
    pub fn of_this_kernel() -> Self {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        Self { format: FORMAT.to_owned(), version: VERSION, kernel }
    }
}

/// A recording can't be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file can't be read.
    #[error("cannot read the recording: {0}")]
    Read(#[from] io::Error),
    /// A line is not valid in a recording.
    #[error("line {line} is not valid in a recording of `bareverbs trace --record`: {reason}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// There is no device to replay on.
    #[error(transparent)]
    Device(#[from] bareverbs::Error),
    /// RDMA netlink is unavailable.
    #[error(transparent)]
    Netlink(#[from] bareverbs_netlink::Error),
    /// The recorded calls are of another driver than the device's, or of one whose requests are
    /// unknown.
    #[error(
        "calls of driver {recorded} can't be replayed on {device}, whose driver is {driver}: use a \
             device of the recorded driver, {}",
        registry::DRIVERS.map(|(driver, _)| driver.to_string()).join(" or ")
    )]
    Driver {
        /// The device.
        device: String,
        /// Its driver.
        driver: DriverId,
        /// The driver of the recorded calls.
        recorded: DriverId,
    },
    /// The device file can't be opened.
    #[error("cannot open the device file of {device}: {source}")]
    Open {
        /// The device.
        device: String,
        /// The error.
        source: io::Error,
    },
}

/// Reads a recording.
///
/// # Errors
/// [`ReplayError::Read`], [`ReplayError::Line`].
pub fn read(recording: impl BufRead) -> Result<Vec<Record>, ReplayError> {
    let mut records = Vec::new();
    for (line, text) in (1..).zip(recording.lines()) {
        let text = text?;
        let failed = |reason: String| ReplayError::Line { line, reason };
        if line > 1 {
            records.push(serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?);
            continue;
        }
        let header: Header = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        if header.format != FORMAT || header.version != VERSION {
            let Header { format, version, .. } = header;
            return Err(failed(format!(
                "its format is {format:?} version {version}, not {FORMAT:?} version {VERSION}"
            )));
        }
    }
    Ok(records)
}

/// Writes a recording that [`read`] reads.
///
/// # Errors
/// The errors of the writer.
pub fn write(records: &[Record], recording: &mut impl Write) -> io::Result<()> {
    writeln!(recording, "{}", serde_json::to_string(&Header::of_this_kernel())?)?;
    records.iter().try_for_each(|record| writeln!(recording, "{}", serde_json::to_string(record)?))
}

/// Why a call is not replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Unsupported {
    /// A read of events, or an answer without its request.
    #[error("events depend on time")]
    Time,
    /// A command of rdma_cm that needs a peer, or an identifier whose state depends on one.
    #[error("a command of rdma_cm depends on a peer")]
    Peer,
    /// A request to RDMA netlink that changes the machine.
    #[error("a request to RDMA netlink changes the machine")]
    Changes,
    /// A method, an attribute or a command that `bareverbs-uapi` does not declare.
    #[error("the call is not declared, and may have addresses")]
    Undeclared,
    /// A command of the device in a DEVX method. It names objects by numbers of the device.
    #[error("a command of the device names objects of the recorded device")]
    Mailbox,
    /// This machine has no `/dev/infiniband/rdma_cm`.
    #[error("/dev/infiniband/rdma_cm can't be opened")]
    NoConnectionManager,
    /// RDMA netlink does not respond.
    #[error("RDMA netlink does not respond")]
    NoNetlink,
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replay {
    /// Calls with the same answer.
    pub same: usize,
    /// Calls without a recorded answer, because the program ended. They were made.
    pub unanswered: usize,
    /// Calls that were not made, by reason.
    pub skipped: BTreeMap<Unsupported, usize>,
    /// The first different answer. The replay ends there.
    pub difference: Option<Difference>,
    /// Objects that the device has after the replay and did not have before.
    pub leak: Option<String>,
}

impl Replay {
    /// Whether this kernel's answers are the recorded ones, and nothing is left behind.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.difference.is_none() && self.leak.is_none()
    }
}

/// A different answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The line of the recording, from 1.
    pub line: usize,
    /// The recorded call, as text.
    pub call: String,
    /// Where the answers differ.
    pub place: String,
    /// The recorded answer there.
    pub recorded: String,
    /// The answer of this kernel.
    pub here: String,
}

/// Replays records on a device, up to the first different answer.
///
/// # Errors
/// [`ReplayError`]. Errors of the replayed calls are answers.
pub fn replay(records: &[Record], device: &Device) -> Result<Replay, ReplayError> {
    let name = device.name().to_owned();
    let driver = device.driver_id().unwrap_or(DriverId(0));
    let uverbs = records.iter().filter_map(|record| match &record.interface {
        Interface::Uverbs { driver, .. } => Some(DriverId(*driver)),
        _ => None,
    });
    for recorded in uverbs {
        if recorded != driver || !registry::DRIVERS.iter().any(|(known, _)| *known == driver) {
            return Err(ReplayError::Driver { device: name, driver, recorded });
        }
    }
    let mut netlink = RdmaNetlink::open()?;
    let before = netlink.resources(&name)?;
    let index = netlink.devices()?.iter().find(|found| found.name == name).map_or(0, |found| found.index);
    let mut replay = Replay::default();
    {
        let mut replayer = Replayer {
            device,
            index,
            files: HashMap::new(),
            descriptors: HashMap::new(),
            owned: HashMap::new(),
            cm: cm::Cm::default(),
            netlink: netlink::Netlink::default(),
        };
        // The header is line 1.
        for (line, record) in (2..).zip(records) {
            let answered = match replayer.call(record)? {
                Ok(Some(answered)) => answered,
                Ok(None) => continue,
                Err(reason) => {
                    *replay.skipped.entry(reason).or_default() += 1;
                    continue;
                }
            };
            let (recorded, here) = answered;
            if recorded.result.is_none() {
                replay.unanswered += 1;
                continue;
            }
            if let Some(different) = compare::first_difference(&recorded, &here) {
                let compare::Different { place, recorded, here } = different;
                replay.difference = Some(Difference { line, call: record.text(), place, recorded, here });
                break;
            }
            replayer.learn(record, &here);
            replay.same += 1;
        }
    }
    replay.leak = leak(&mut netlink, &name, before)?;
    Ok(replay)
}

/// Timeout of the release of objects after a replay. Drivers release some of them in a worker.
const SETTLE: Duration = Duration::from_secs(5);

/// The objects that a device has in addition, after a while.
fn leak(
    netlink: &mut RdmaNetlink,
    device: &str,
    before: ResourceSummary,
) -> Result<Option<String>, ReplayError> {
    let begin = Instant::now();
    loop {
        let now = netlink.resources(device)?;
        if now == before {
            return Ok(None);
        }
        if begin.elapsed() > SETTLE {
            return Ok(Some(ResourceChange(before, now).to_string()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An open device file and what its objects were called in the recording.
struct Open {
    file: File,
    names: Names,
}

struct Replayer<'d> {
    device: &'d Device,
    /// The device's index in RDMA netlink.
    index: u32,
    files: HashMap<(i32, i32), Open>,
    /// Descriptors of a recorded process and what they are here.
    descriptors: HashMap<(i32, i32), i32>,
    /// Descriptors that calls made, by number. Closed at the end of the replay.
    owned: HashMap<i32, OwnedFd>,
    cm: cm::Cm,
    netlink: netlink::Netlink,
}

/// A recorded call and that of this run, to be compared; `None` if there is nothing to compare.
type Made = Result<Option<(Record, Record)>, Unsupported>;

/// The payloads of a record, by address.
struct Recorded<'a>(&'a Record);

impl Memory for Recorded<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        let chunks = self.0.outputs.iter().chain(&self.0.inputs);
        let mut fitting =
            chunks.filter(|chunk| chunk.address == address && chunk.bytes.len() >= buffer.len());
        fitting.next().is_some_and(|chunk| {
            buffer.copy_from_slice(&chunk.bytes[..buffer.len()]);
            true
        })
    }
}

/// An address without memory: below `vm.mmap_min_addr`.
const UNMAPPED: u64 = 0x10;

impl Replayer<'_> {
    /// Makes a recorded call.
    fn call(&mut self, record: &Record) -> Result<Made, ReplayError> {
        let made = |here: Record| Some((record.clone(), here));
        let only_result = |here: Record| Some((Record { answer: Vec::new(), ..record.clone() }, here));
        Ok(match (&record.interface, record.call) {
            (_, CallKind::Close) => {
                self.close(record);
                Ok(None)
            }
            (Interface::RdmaCm, CallKind::Write) => self.cm.write(record).map(only_result),
            (Interface::Netlink, _) => self.netlink.call(record, self.index),
            (Interface::Uverbs { .. }, CallKind::Ioctl | CallKind::Write) => {
                self.open(record)?;
                match record.call {
                    CallKind::Ioctl if is_mailbox(record) => Err(Unsupported::Mailbox),
                    CallKind::Ioctl => self.ioctl(record).map(made).ok_or(Unsupported::Undeclared),
                    _ => self.write(record).map(made).ok_or(Unsupported::Undeclared),
                }
            }
            _ => Err(Unsupported::Time),
        })
    }

    /// Opens the device for a recorded file. Each context has a file of its own: recordings of traces
    /// have no open and close.
    fn open(&mut self, record: &Record) -> Result<(), ReplayError> {
        let key = (record.process, record.fd);
        let is_new = record.name() == "GetContext" && record.result.is_some_and(|result| result >= 0);
        if !is_new && self.files.contains_key(&key) {
            return Ok(());
        }
        let failed = |source| ReplayError::Open { device: self.device.name().to_owned(), source };
        let path = self.device.uverbs_path().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        self.files.insert(key, Open { file, names: Names::default() });
        Ok(())
    }

    /// Closes a file or a descriptor.
    fn close(&mut self, record: &Record) {
        let key = (record.process, record.fd);
        match self.descriptors.remove(&key) {
            Some(fd) => drop(self.owned.remove(&fd)),
            None => drop(self.files.remove(&key)),
        }
    }

    /// Makes a recorded ioctl; the answer is a record of this run. `None` for methods and attributes
    /// that are not declared, whose payloads could have addresses.
    fn ioctl(&mut self, record: &Record) -> Option<Record> {
        let memory = Recorded(record);
        let call = decode(&record.request, &memory).ok()?;
        call.method()?;
        let open = self.files.get_mut(&(record.process, record.fd))?;
        let descriptors = &self.descriptors;
        let lengths = numbers_of(&call);
        let mut bytes = record.request.clone();
        // The buffers of the payloads, which live until the call has ended, and whether it writes them.
        let mut buffers: Vec<(Vec<u8>, bool)> = Vec::new();
        for (i, attribute) in call.attributes().enumerate() {
            let at = size_of::<CallHeader>() + i * size_of::<Attribute>();
            let raw = *attribute.raw();
            let Some(name) = attribute.name() else {
                // Kernels that do not know the attribute do not read its value.
                let unknown = if raw.len <= 8 && raw.data < UNMAPPED { raw.data } else { UNMAPPED };
                bytes.get_mut(at + 8..at + 16)?.copy_from_slice(&unknown.to_ne_bytes());
                continue;
            };
            let data = match attribute.value() {
                DecodedValue::Handle { access: Access::New, .. } | DecodedValue::Number { .. } => raw.data,
                DecodedValue::Command { info, .. } => {
                    info?;
                    raw.data
                }
                DecodedValue::Handle { handle, .. } => open.names.handle(handle),
                DecodedValue::Descriptor { access: Access::New, .. } => raw.data,
                DecodedValue::Descriptor { fd, .. } | DecodedValue::RawDescriptor(fd) => {
                    let fd = i32::try_from(fd).unwrap_or(-1);
                    let here = descriptors.get(&(record.process, fd)).copied().unwrap_or(-1);
                    i64::from(here).cast_unsigned()
                }
                DecodedValue::Input(payload) | DecodedValue::Element { payload, .. } => {
                    let mut copy = vec![0; payload.len()];
                    if payload.read(&mut copy).is_none() {
                        UNMAPPED
                    } else {
                        let descriptor = |fd| descriptors.get(&(record.process, fd)).copied();
                        match payload.layout() {
                            Layout::One(FieldKind::Struct(info)) => {
                                open.names.translate(info, &mut copy, &descriptor);
                            }
                            Layout::Elements(FieldKind::Struct(info)) => {
                                for element in copy.chunks_mut(info.size.max(1)) {
                                    open.names.translate(info, element, &descriptor);
                                }
                            }
                            Layout::One(FieldKind::Unsigned(8)) if ["ADDR", "BUFFER_VA"].contains(&name) => {
                                let length = lengths.get("LENGTH").or(lengths.get("BUFFER_LENGTH"));
                                open.names.memory(&mut copy, length.copied().unwrap_or(0));
                            }
                            Layout::One(FieldKind::Unsigned(8)) if name == "IOVA" => {
                                let start =
                                    lengths.get("ADDR").copied().filter(|start| *start == native(&copy));
                                if let (Some(_), Some(length)) = (start, lengths.get("LENGTH")) {
                                    open.names.memory(&mut copy, *length);
                                }
                            }
                            // Handles and numbers.
                            Layout::Elements(FieldKind::Unsigned(4)) => open.names.handles(&mut copy),
                            // The layout of a driver's part is unknown.
                            Layout::Bytes if name == "UHW_IN" && !is_zero(&copy) => return None,
                            _ => {}
                        }
                        match payload.address() {
                            None => {
                                let mut inline = [0; 8];
                                inline[..copy.len()].copy_from_slice(&copy);
                                u64::from_ne_bytes(inline)
                            }
                            Some(_) => {
                                let address = copy.as_mut_ptr().expose_provenance() as u64;
                                buffers.push((copy, false));
                                address
                            }
                        }
                    }
                }
                DecodedValue::Output { payload, .. } => match payload.address() {
                    Some(0) | None => 0,
                    // The kernel could not write there.
                    Some(_) if record.result == Some(-i64::from(libc::EFAULT)) => UNMAPPED,
                    Some(_) => {
                        let mut buffer = vec![0; payload.len()];
                        let address = buffer.as_mut_ptr().expose_provenance() as u64;
                        buffers.push((buffer, true));
                        address
                    }
                },
                _ => return None,
            };
            bytes.get_mut(at + 8..at + 16)?.copy_from_slice(&data.to_ne_bytes());
        }
        // SAFETY: the call has no address but those of `buffers`, which have the stated lengths, of
        // memory that `Names` maps for it and keeps until the file is closed, and `UNMAPPED`. All
        // attributes are declared, and those whose payload could have another address ended the
        // function. The kernel writes at most the length of the header to `bytes`.
        let result = unsafe { libc::ioctl(open.file.as_raw_fd(), VERBS_IOCTL as _, bytes.as_mut_ptr()) };
        let result = answer(result.into());
        let outputs = buffers.into_iter().filter(|(_, output)| *output).map(|(bytes, _)| bytes);
        Some(finished(record, result, bytes, outputs))
    }

    /// Makes a recorded write command. `None` for commands that are not declared.
    fn write(&mut self, record: &Record) -> Option<Record> {
        let (header, rest) = CmdHdr::read_from_prefix(&record.request).ok()?;
        let command = registry::command(header.command)?;
        let open = self.files.get_mut(&(record.process, record.fd))?;
        let descriptors = &self.descriptors;
        let descriptor = |fd| descriptors.get(&(record.process, fd)).copied();
        let mut bytes = record.request.clone();
        let extended = header.command & EXTENDED != 0;
        let start = size_of::<CmdHdr>() + if extended { size_of::<ExCmdHdr>() } else { 0 };
        let request = bytes.get_mut(start..)?;
        let info = command.request?;
        open.names.translate(info, request, &descriptor);
        let driver = record.driver().command_payload(command.number).and_then(|payload| payload.request);
        let core = if extended { usize::from(header.in_words) * 8 } else { info.size };
        match (driver, request.get_mut(core..)) {
            (Some(info), Some(driver)) => open.names.translate(info, driver, &descriptor),
            (None, Some(driver)) if command.driver_input && !is_zero(driver) => return None,
            _ => {}
        }
        let room = if extended {
            let (extra, _) = ExCmdHdr::read_from_prefix(rest).ok()?;
            8 * (usize::from(header.out_words) + usize::from(extra.provider_out_words))
        } else {
            4 * usize::from(header.out_words)
        };
        let mut response = vec![0; room];
        let place = match record.result {
            // The kernel could not write there.
            Some(result) if result == -i64::from(libc::EFAULT) => UNMAPPED,
            _ => response.as_mut_ptr().expose_provenance() as u64,
        };
        // In the second header, or in the request of a command that has a response.
        if extended || command.response.is_some() {
            bytes.get_mut(8..16)?.copy_from_slice(&place.to_ne_bytes());
        }
        // Recordings of older versions do not have the bytes behind the command.
        let tail = match <[u8; OVERREAD]>::try_from(&record.overread[..]) {
            Ok(mut tail) => {
                if let Some(info) = command.request {
                    let mut whole = [&bytes[start..], &tail].concat();
                    open.names.translate(info, &mut whole, &descriptor);
                    tail.copy_from_slice(&whole[whole.len() - OVERREAD..]);
                }
                tail
            }
            Err(_) => NO_HANDLE,
        };
        let buffer = [&bytes[..], &tail].concat();
        let result = match (&open.file).write(&buffer[..bytes.len()]) {
            Ok(count) => i64::try_from(count).unwrap_or(i64::MAX),
            Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        let answer = if result >= 0 && !record.answer.is_empty() { response } else { Vec::new() };
        Some(Record { result: Some(result), request: bytes, answer, ..record.clone() })
    }

    /// Notes what the objects of a call are called here.
    fn learn(&mut self, recorded: &Record, here: &Record) {
        if recorded.result.is_none_or(|result| result < 0) {
            return;
        }
        let Some(open) = self.files.get_mut(&(recorded.process, recorded.fd)) else { return };
        let mut made = Vec::new();
        match recorded.call {
            CallKind::Ioctl => learn_ioctl(&mut open.names, recorded, here, &mut made),
            _ => {
                let command = CmdHdr::read_from_prefix(&recorded.request)
                    .ok()
                    .and_then(|(header, _)| registry::command(header.command));
                if let Some(info) = command.and_then(|command| command.response) {
                    open.names.learn(info, &recorded.answer, &here.answer, &mut made);
                }
            }
        }
        for (recorded_fd, fd) in made {
            self.descriptors.insert((recorded.process, recorded_fd), fd);
            // SAFETY: the call has just made this descriptor for the replay, and only it owns it.
            self.owned.insert(fd, unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

/// Zeros are not addresses.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Whether an ioctl carries a command of the device.
fn is_mailbox(record: &Record) -> bool {
    let memory = Recorded(record);
    decode(&record.request, &memory)
        .is_ok_and(|call| call.attributes().any(|attribute| attribute.name() == Some("CMD_IN")))
}

fn answer(result: i64) -> i64 {
    match result {
        ..0 => -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        _ => result,
    }
}

/// The 64-bit inputs of a call by name.
fn numbers_of(call: &DecodedCall<'_>) -> HashMap<&'static str, u64> {
    let inputs = call.attributes().filter_map(|attribute| match attribute.value() {
        DecodedValue::Input(payload) if payload.len() == 8 => {
            let mut bytes = [0; 8];
            payload.read(&mut bytes)?;
            Some((attribute.name()?, u64::from_ne_bytes(bytes)))
        }
        DecodedValue::Number { value, .. } => Some((attribute.name()?, value)),
        _ => None,
    });
    inputs.collect()
}

/// The record of a call that was made: its attributes after the call, and its outputs in order.
fn finished(record: &Record, result: i64, bytes: Vec<u8>, outputs: impl Iterator<Item = Vec<u8>>) -> Record {
    let outputs = outputs.map(|bytes| Chunk { address: bytes.as_ptr().expose_provenance() as u64, bytes });
    let outputs: Vec<_> = outputs.collect();
    let answer = if result >= 0 { bytes.clone() } else { Vec::new() };
    Record { result: Some(result), request: bytes, inputs: Vec::new(), answer, outputs, ..record.clone() }
}

fn learn_ioctl(names: &mut Names, recorded: &Record, here: &Record, made: &mut Vec<(i32, i32)>) {
    let (before, now) = (Recorded(recorded), Recorded(here));
    let (Ok(before), Ok(now)) = (decode(&recorded.answer, &before), decode(&here.answer, &now)) else {
        return;
    };
    for (old, new) in before.attributes().zip(now.attributes()) {
        let name = old.name();
        match (old.value(), new.value()) {
            (
                DecodedValue::Handle { access: Access::New, handle: old, .. },
                DecodedValue::Handle { handle: new, .. },
            ) => names.learn_handle(old, new),
            (
                DecodedValue::Descriptor { access: Access::New, fd: old, .. },
                DecodedValue::Descriptor { fd: new, .. },
            ) => {
                if let (Ok(old), Ok(new)) = (i32::try_from(old), i32::try_from(new)) {
                    made.push((old, new));
                }
            }
            (
                DecodedValue::Output { payload: old, written: true },
                DecodedValue::Output { payload: new, written: true },
            ) => {
                let (mut was, mut is) = (vec![0; old.len()], vec![0; new.len()]);
                if old.read(&mut was).is_none() || new.read(&mut is).is_none() {
                    continue;
                }
                match old.layout() {
                    Layout::One(FieldKind::Struct(info)) => names.learn(info, &was, &is, made),
                    Layout::One(FieldKind::Unsigned(_)) if name == Some("PAGE_ID") => {
                        names.learn_uar(native(&was), native(&is));
                    }
                    Layout::One(FieldKind::Unsigned(_)) => names.learn_number(native(&was), native(&is)),
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

/// The fields of a struct that its bytes have entirely, with the bytes, nested ones included.
fn fields(info: &'static StructInfo, at: usize, each: &mut dyn FnMut(&'static str, usize, usize)) {
    for field in info.fields {
        let at = at + field.offset;
        match field.kind {
            FieldKind::Struct(nested) => fields(nested, at, each),
            FieldKind::Array(..) => {}
            _ => each(field.rust, at, field.size),
        }
    }
}

#[cfg(test)]
mod tests;
