//! A device's firmware without a virtual machine. Commands are passed as bytes.

use std::fmt;

use crate::device;
use crate::engine::{Doorbell, Engine, Interrupts, Link, Port};
use crate::firmware::{Firmware, example, execute_slot};
use crate::memory::{DmaMap, MapError};

/// Firmware and engine over memory of this process, for tests and fuzzers that act as a malicious
/// driver.
///
/// The device has executed ENABLE_HCA and INIT_HCA. [`example`](Self::example) returns valid
/// commands that a fuzzer can mutate.
pub struct FirmwareHarness {
    firmware: Firmware,
    engine: Engine,
}

/// An interrupt sink: interrupts are discarded.
struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&self, _vector: u16) {}
}

impl fmt::Debug for FirmwareHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirmwareHarness").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl FirmwareHarness {
    /// Start address of the device's memory.
    pub const MEMORY: u64 = 0x10_0000;
    /// Length of the device's memory in bytes.
    pub const LENGTH: u64 = 0x10_0000;

    /// Creates an initialized device, ready for commands that create objects.
    pub fn new(link: Link) -> Result<Self, MapError> {
        let mut engine = Engine::new(Port::new(link, 0), Box::new(NoInterrupts));
        engine.memory().map_zeroed(Self::MEMORY, Self::LENGTH)?;
        let mut hca = Self { firmware: Firmware::new(link), engine };
        for command in example::BEGINNING {
            hca.command(&Self::example(command), &mut [0; 16]);
        }
        Ok(hca)
    }

    /// A valid command for a new device. Its predecessors in [`Self::examples`] must have been
    /// executed first. An opcode without an example yields a header alone.
    pub fn example(opcode: u16) -> Vec<u8> {
        example::command(opcode, Self::MEMORY)
    }

    /// The opcodes that have an example, in an order in which all succeed on a device with an
    /// Ethernet port.
    pub fn examples() -> &'static [u16] {
        &example::OPCODES
    }

    /// Executes a command and returns its status, 0 for success.
    pub fn command(&mut self, input: &[u8], output: &mut [u8]) -> u8 {
        self.firmware.execute(&mut self.engine, input, output).map_or_else(|status| status as u8, |()| 0)
    }

    /// Executes the command in a slot of the command queue at `queue`, with its mailboxes. Returns
    /// `false` if the slot isn't in mapped memory.
    pub fn slot(&mut self, queue: u64, slot: u8) -> bool {
        execute_slot(&mut self.firmware, &mut self.engine, queue, slot % 32).is_ok()
    }

    /// The device's memory.
    pub fn memory(&mut self) -> &mut DmaMap {
        self.engine.memory()
    }

    /// Stores to a UAR page.
    pub fn store(&mut self, uar: u32, offset: u16, bytes: &[u8]) {
        if let Some(doorbell) = Doorbell::decode(offset, bytes)
            && device::sq_uses_uar(&self.firmware, uar, &doorbell)
        {
            self.engine.ring(doorbell);
        }
    }

    /// Receives a frame from the wire.
    pub fn frame(&mut self, frame: &[u8]) {
        self.engine.frame_arrived(frame);
        for to in self.firmware.steer(&self.engine, frame) {
            self.engine.receive_frame(to.rq, to.tag, frame);
        }
    }

    /// Does some of the work that is due at `now`, in nanoseconds, and loops transmitted packets
    /// back.
    pub fn run(&mut self, now: u64) {
        const PACKETS: usize = 64;
        let (mut packets, mut frames) = (Vec::new(), Vec::new());
        self.engine.run(now);
        device::loop_back(&mut self.engine, &self.firmware);
        self.engine.take_outgoing(&mut packets, &mut frames);
        for packet in packets.into_iter().take(PACKETS) {
            if self.engine.port().answers_to(&packet.route) {
                self.engine.receive(packet);
            }
        }
        for frame in frames.iter().take(PACKETS) {
            self.frame(frame);
        }
    }

    /// Resets the function.
    pub fn reset(&mut self) {
        self.engine.reset();
        self.firmware = Firmware::new(self.engine.port().link);
    }

    /// The number of objects of each kind.
    pub fn objects(&self) -> String {
        self.firmware.objects()
    }
}
