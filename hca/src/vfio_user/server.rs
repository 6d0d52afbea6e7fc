//! A vfio-user socket that serves one device to a virtual machine.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bar::{self, Registers, Ring};
use super::interrupts::Vectors;
use super::pci::{self, Config};
use super::protocol::{Errno, Fields, MAX_FDS, MAX_TRANSFER, Message, command, receive, reply};
use crate::device::{Device, PortChange, Setup};
use crate::engine::Recorder;
use crate::engine::limits::VECTORS;
use crate::fabric::Fabric;
use crate::memory::{DEVICE_MEMORY_START, MapError};

/// Indices of regions and interrupt types of VFIO PCI devices (`include/uapi/linux/vfio.h`).
const BAR0: u32 = 0;
const CONFIG: u32 = 7;
const REGIONS: u32 = 9;
const MSIX: u32 = 2;
const INTERRUPT_KINDS: u32 = 5;

/// A device behind a socket.
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
    device: Device,
    vectors: Vectors,
    setup: Setup,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Server {
    /// Creates a device and its socket. A stale socket file is replaced.
    pub fn bind(path: &Path, setup: Setup, fabric: &Arc<Fabric>) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let vectors = Vectors::default();
        let device = Device::new(setup, fabric, Box::new(vectors.clone()))?;
        Ok(Self { path: path.to_owned(), listener, device, vectors, setup })
    }

    /// Serves virtual machines one at a time. Returns only when the socket fails.
    pub fn serve(&self) -> io::Error {
        loop {
            let (socket, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return error,
            };
            if let Err(error) = self.serve_one(&socket)
                && self.setup.verbose
            {
                eprintln!("hca{}: {error}", self.setup.index);
            }
            // The next virtual machine finds the device as after power-on.
            self.vectors.clear();
            self.device.discard_state();
        }
    }

    /// Changes the device's port. Returns `false` if the change doesn't apply to the link layer.
    pub fn change(&self, change: PortChange) -> bool {
        self.device.change(change)
    }

    /// Calls `recorder` for each fetched work request from now on.
    pub fn record(&self, recorder: Recorder) {
        self.device.record(recorder);
    }

    /// The number of the driver's objects of each kind, as `qps 2 cqs 3 …`.
    pub fn objects(&self) -> String {
        self.device.objects()
    }

    fn serve_one(&self, socket: &UnixStream) -> io::Result<()> {
        let mut function = Function {
            config: Config::new(self.setup.link),
            registers: Registers::default(),
            device: &self.device,
            vectors: &self.vectors,
            setup: self.setup,
        };
        while let Some(mut message) = receive(socket)? {
            let answer = function.handle(&mut message);
            reply(socket, &message, answer)?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The file may already be gone.
        let _ = fs::remove_file(&self.path);
    }
}

pub(super) struct Function<'a> {
    pub(super) config: Config,
    pub(super) registers: Registers,
    pub(super) device: &'a Device,
    pub(super) vectors: &'a Vectors,
    pub(super) setup: Setup,
}

pub(super) type Answer = Result<Vec<u8>, Errno>;

impl Function<'_> {
    pub(super) fn handle(&mut self, message: &mut Message) -> Answer {
        let fds = std::mem::take(&mut message.fds);
        let mut fields = Fields(&message.body);
        let answer = match message.command {
            command::VERSION => Some(self.version()),
            command::DMA_MAP => self.map(&mut fields, fds),
            command::DMA_UNMAP => self.unmap(&mut fields, &message.body),
            command::DEVICE_GET_INFO => Some(Ok(words(&[16, 0x3, REGIONS, INTERRUPT_KINDS]))),
            command::DEVICE_GET_REGION_INFO => region_info(&mut fields),
            command::DEVICE_GET_IRQ_INFO => interrupt_info(&mut fields),
            command::DEVICE_SET_IRQS => self.set_interrupts(&mut fields, fds),
            command::REGION_READ => self.read(&mut fields),
            command::REGION_WRITE => self.write(&mut fields),
            command::DEVICE_RESET => Some(self.reset()),
            _ => Some(Err(Errno::NOT_SUPPORTED)),
        };
        answer.unwrap_or(Err(Errno::INVALID))
    }

    fn version(&self) -> Answer {
        // The peer requires a minor version no larger than its own, which is 0.
        let mut body = vec![0; 4];
        let capabilities = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\"max_data_xfer_size\":{MAX_TRANSFER},\"pgsizes\":4096,\
             \"max_dma_maps\":{}}}}}",
            crate::memory::MAX_REGIONS
        );
        body.extend_from_slice(capabilities.as_bytes());
        body.push(0);
        Ok(body)
    }

    fn map(&self, fields: &mut Fields<'_>, fds: Vec<std::os::fd::OwnedFd>) -> Option<Answer> {
        const READABLE: u32 = 1 << 0;
        const WRITABLE: u32 = 1 << 1;
        let (_, flags) = (fields.u32()?, fields.u32()?);
        let (offset, address, length) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let mapped = self.device.remap(|memory| match fds.first() {
            Some(fd) if flags & READABLE != 0 => {
                memory.map_file(address, length, fd, offset, flags & WRITABLE != 0)
            }
            _ => memory.map_absent(address, length),
        });
        if self.setup.verbose {
            eprintln!("hca{}: map {address:#x}+{length:#x} flags {flags:#x}: {mapped:?}", self.setup.index);
        }
        Some(match mapped {
            Ok(()) => Ok(Vec::new()),
            Err(MapError::Overlap) => Err(Errno::EXISTS),
            Err(MapError::Full) => Err(Errno::NO_SPACE),
            Err(_) => Err(Errno::INVALID),
        })
    }

    fn unmap(&self, fields: &mut Fields<'_>, body: &[u8]) -> Option<Answer> {
        const ALL: u32 = 1 << 1;
        let (_, flags) = (fields.u32()?, fields.u32()?);
        let (address, length) = (fields.u64()?, fields.u64()?);
        let unmapped = self.device.remap(|memory| {
            Ok(if flags & ALL != 0 { memory.unmap(0, u64::MAX) } else { memory.unmap(address, length) })
        });
        Some(match unmapped {
            Ok(_) => Ok(body.to_vec()),
            Err(_) => Err(Errno::INVALID),
        })
    }

    fn set_interrupts(&self, fields: &mut Fields<'_>, fds: Vec<std::os::fd::OwnedFd>) -> Option<Answer> {
        const NONE: u32 = 1 << 0;
        const EVENTFD: u32 = 1 << 2;
        let (_, flags, kind) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (start, count) = (fields.u32()?, fields.u32()?);
        if kind != MSIX || count > u32::from(VECTORS) || flags & EVENTFD != 0 && fds.len() > count as usize {
            return Some(if count == 0 { Ok(Vec::new()) } else { Err(Errno::INVALID) });
        }
        if flags & EVENTFD != 0 {
            let mut fds = fds.into_iter();
            for vector in 0..count {
                // Without an eventfd the vector is disabled.
                if !self.vectors.set(start.checked_add(vector)?, fds.next()) {
                    return Some(Err(Errno::INVALID));
                }
            }
        } else if flags & NONE != 0 && count == 0 {
            self.vectors.clear();
        }
        Some(Ok(Vec::new()))
    }

    fn read(&self, fields: &mut Fields<'_>) -> Option<Answer> {
        let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
        if count as usize > MAX_TRANSFER {
            return Some(Err(Errno::INVALID));
        }
        let mut body = transfer(offset, region, count);
        let mut data = vec![0; count as usize];
        let inside = match region {
            CONFIG => self.config.read(offset, &mut data),
            BAR0 if offset >= DEVICE_MEMORY_START => self.device.read_memory(offset, &mut data),
            BAR0 => {
                self.registers.read(offset, &mut data, self.device.now());
                true
            }
            _ => false,
        };
        if !inside {
            return Some(Err(Errno::INVALID));
        }
        body.append(&mut data);
        Some(Ok(body))
    }

    fn write(&mut self, fields: &mut Fields<'_>) -> Option<Answer> {
        let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let data = fields.0.get(..count as usize)?;
        match region {
            CONFIG => {
                if self.config.write(offset, data)? {
                    self.registers = Registers::after_reset();
                    self.device.reset();
                }
            }
            BAR0 if offset >= DEVICE_MEMORY_START => self.device.write_memory(offset, data),
            BAR0 => match self.registers.write(offset, data) {
                None => {}
                Some(Ring::Commands(slots)) => {
                    if let Some(queue) = self.registers.command_queue() {
                        self.device.command(queue, slots);
                    }
                }
                Some(Ring::Doorbell { uar, doorbell }) => self.device.ring(uar, doorbell),
            },
            _ => return Some(Err(Errno::INVALID)),
        }
        Some(Ok(transfer(offset, region, count)))
    }

    fn reset(&mut self) -> Answer {
        self.config = Config::new(self.setup.link);
        self.registers = Registers::default();
        self.device.reset();
        Ok(Vec::new())
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn transfer(offset: u64, region: u32, count: u32) -> Vec<u8> {
    let mut body = offset.to_le_bytes().to_vec();
    body.extend_from_slice(&words(&[region, count]));
    body
}

fn region_info(fields: &mut Fields<'_>) -> Option<Answer> {
    const READ_WRITE: u32 = 0x3;
    let (_, _, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
    if index >= REGIONS {
        return Some(Err(Errno::INVALID));
    }
    let size = match index {
        BAR0 => bar::SIZE,
        CONFIG => pci::SIZE as u64,
        _ => 0,
    };
    let mut body = words(&[32, if size > 0 { READ_WRITE } else { 0 }, index, 0]);
    body.extend_from_slice(&size.to_le_bytes());
    body.extend_from_slice(&0u64.to_le_bytes());
    Some(Ok(body))
}

fn interrupt_info(fields: &mut Fields<'_>) -> Option<Answer> {
    const EVENTFD_WITHOUT_RESIZE: u32 = 1 << 0 | 1 << 3;
    let (_, _, index) = (fields.u32()?, fields.u32()?, fields.u32()?);
    if index >= INTERRUPT_KINDS {
        return Some(Err(Errno::INVALID));
    }
    let count = if index == MSIX { u32::from(VECTORS) } else { 0 };
    Some(Ok(words(&[16, if count > 0 { EVENTFD_WITHOUT_RESIZE } else { 0 }, index, count])))
}
