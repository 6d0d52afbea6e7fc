//! The recording of a program, in the format of `bareverbs replay`.
//!
//! The file has the program that runs: a call is written without its result before it is made, and
//! again with its result afterwards. If the kernel kills the process, the last line is the call that
//! did it.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use bareverbs_trace::replay::Header;
use bareverbs_trace::trace::{CallKind, Chunk, Interface, Record};
use rustix::io::Errno;

use crate::call::{Call, Payload};
use crate::target::Target;
use crate::write_buffer::WriteBuffer;

/// Records the calls of one program.
pub(super) struct Recorder {
    file: Option<File>,
    /// Whether calls are recorded at all.
    enabled: bool,
    records: Vec<Record>,
    start: Instant,
    /// The first error of the file.
    error: Option<io::Error>,
}

/// A call that is recorded without its result.
pub(super) struct Pending {
    record: Record,
    begin: Instant,
}

impl Recorder {
    /// Records programs to a file, each instead of the last one. Without a file, nothing is recorded.
    pub(super) fn new(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(File::create).transpose()?;
        Ok(Self { enabled: file.is_some(), file, records: Vec::new(), start: Instant::now(), error: None })
    }

    /// Records the following programs, also without a file.
    pub(super) fn enable(&mut self) {
        self.enabled = true;
    }

    /// The calls of the last program.
    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// The first error of the file.
    pub(super) fn error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Begins a program.
    pub(super) fn begin(&mut self) {
        self.records.clear();
        self.start = Instant::now();
        self.change_file(|file| {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            write_line(file, &Header::of_this_kernel())
        });
    }

    fn change_file(&mut self, change: impl FnOnce(&mut File) -> io::Result<()>) {
        if let Some(Err(error)) = self.file.as_mut().map(change) {
            self.error.get_or_insert(error);
        }
    }

    fn record(&self, call: CallKind, fd: i32, target: &dyn Target, request: &[u8]) -> Record {
        let process = std::process::id().cast_signed();
        Record {
            time: self.start.elapsed().as_nanos() as u64,
            duration: 0,
            process,
            thread: process,
            call,
            fd,
            interface: Interface::Uverbs { device: target.name(), driver: target.driver_id() },
            result: None,
            request: request.to_vec(),
            overread: Vec::new(),
            inputs: Vec::new(),
            answer: Vec::new(),
            outputs: Vec::new(),
        }
    }

    fn begin_call(&mut self, record: Record) -> Pending {
        // The position stays at the begin of the line, which the complete record replaces.
        self.change_file(|file| {
            let position = file.stream_position()?;
            write_line(file, &record)?;
            file.seek(SeekFrom::Start(position)).map(drop)
        });
        Pending { record, begin: Instant::now() }
    }

    fn end_call(&mut self, pending: Pending) {
        let Pending { mut record, begin } = pending;
        record.duration = begin.elapsed().as_nanos() as u64;
        self.change_file(|file| {
            write_line(file, &record)?;
            let end = file.stream_position()?;
            file.set_len(end)
        });
        self.records.push(record);
    }

    /// Records an ioctl before it is made. `call` is the call that `bytes` encode.
    pub(super) fn ioctl(
        &mut self,
        fd: i32,
        target: &dyn Target,
        call: &Call,
        bytes: &[u8],
    ) -> Option<Pending> {
        if !self.enabled {
            return None;
        }
        let mut record = self.record(CallKind::Ioctl, fd, target, bytes);
        let inputs = call.slots.iter().filter_map(|slot| match &slot.payload {
            Payload::Input(bytes) if slot.raw.len > 8 => {
                Some(Chunk { address: slot.raw.data, bytes: bytes[..slot.raw.len.into()].to_vec() })
            }
            _ => None,
        });
        record.inputs = inputs.collect();
        Some(self.begin_call(record))
    }

    /// Records the answer of an ioctl.
    pub(super) fn answered(
        &mut self,
        pending: Option<Pending>,
        result: &Result<(), Errno>,
        call: &Call,
        bytes: &[u8],
    ) {
        let Some(mut pending) = pending else { return };
        pending.record.result = Some(result.map_or_else(|errno| -i64::from(errno.raw_os_error()), |()| 0));
        if result.is_ok() {
            pending.record.answer = bytes.to_vec();
            let outputs = call.slots.iter().filter_map(|slot| match &slot.payload {
                Payload::Output(bytes) if slot.is_written() => {
                    Some(Chunk { address: slot.raw.data, bytes: bytes[..slot.raw.len.into()].to_vec() })
                }
                _ => None,
            });
            pending.record.outputs = outputs.collect();
        }
        self.end_call(pending);
    }

    /// Records a command before it is written.
    pub(super) fn write(&mut self, fd: i32, target: &dyn Target, command: &WriteBuffer) -> Option<Pending> {
        if !self.enabled {
            return None;
        }
        let mut record = self.record(CallKind::Write, fd, target, command.command());
        record.overread = command.overread().to_vec();
        Some(self.begin_call(record))
    }

    /// Records the result of a command.
    pub(super) fn written(
        &mut self,
        pending: Option<Pending>,
        result: &Result<usize, Errno>,
        response: &[u8],
    ) {
        let Some(mut pending) = pending else { return };
        pending.record.result =
            Some(result.map_or_else(|errno| -i64::from(errno.raw_os_error()), |written| written as i64));
        if result.is_ok() {
            pending.record.answer = response.to_vec();
        }
        self.end_call(pending);
    }

    /// Records that a descriptor was closed.
    pub(super) fn closed(&mut self, fd: i32, target: &dyn Target) {
        if self.enabled {
            let mut record = self.record(CallKind::Close, fd, target, &[]);
            record.result = Some(0);
            let pending = self.begin_call(record);
            self.end_call(pending);
        }
    }
}

fn write_line(file: &mut File, value: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    file.write_all(line.as_bytes())
}
