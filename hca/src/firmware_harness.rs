//! A device's firmware without a virtual machine: commands go in as bytes.

use crate::device;
use crate::engine::{Doorbell, Engine, Interrupts, Link, Port};
use crate::firmware::{Firmware, example, execute_slot};
use crate::memory::{DmaMap, MapError};

/// Firmware and engine over memory of this process, for tests and fuzzers that lie as a driver
/// might.
///
/// The device has been enabled and initialized. [`example`](Self::example) holds commands that it
/// accepts, so that a liar needs to change little.
pub struct FirmwareHarness {
    firmware: Firmware,
    engine: Engine,
}

/// Interrupts are discarded.
struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&self, _vector: u16) {}
}

impl FirmwareHarness {
    /// Where its memory begins.
    pub const MEMORY: u64 = 0x10_0000;
    /// How much there is.
    pub const LENGTH: u64 = 0x10_0000;

    /// A fresh device, ready for commands about objects.
    pub fn new(link: Link) -> Result<Self, MapError> {
        let mut engine = Engine::new(Port::new(link, 0), Box::new(NoInterrupts));
        engine.memory().map_zeroed(Self::MEMORY, Self::LENGTH)?;
        let mut hca = Self { firmware: Firmware::new(link), engine };
        for command in example::BEGINNING {
            hca.command(&Self::example(command), &mut [0; 16]);
        }
        Ok(hca)
    }

    /// A command that a fresh device accepts, if those before it in [`Self::examples`] were given;
    /// a header alone if there is none.
    pub fn example(opcode: u16) -> Vec<u8> {
        example::command(opcode, Self::MEMORY)
    }

    /// The commands that have an example, in an order in which all of them succeed on a device with
    /// an Ethernet port.
    pub fn examples() -> &'static [u16] {
        &example::OPCODES
    }

    /// Carries out a command; its status, 0 for success.
    pub fn command(&mut self, input: &[u8], output: &mut [u8]) -> u8 {
        self.firmware.execute(&mut self.engine, input, output).map_or_else(|status| status as u8, |()| 0)
    }

    /// Carries out what stands in a slot of a command queue at `queue`, with its mailboxes. `false`
    /// if the slot isn't in memory.
    pub fn slot(&mut self, queue: u64, slot: u8) -> bool {
        execute_slot(&mut self.firmware, &mut self.engine, queue, slot % 32).is_ok()
    }

    /// The device's memory.
    pub fn memory(&mut self) -> &mut DmaMap {
        self.engine.memory()
    }

    /// A store to a UAR page.
    pub fn store(&mut self, uar: u32, offset: u16, bytes: &[u8]) {
        if let Some(doorbell) = Doorbell::decode(offset, bytes)
            && device::may_ring(&self.firmware, uar, &doorbell)
        {
            self.engine.ring(doorbell);
        }
    }

    /// A frame from the wire.
    pub fn frame(&mut self, frame: &[u8]) {
        self.engine.frame_arrived(frame);
        for rq in self.firmware.steer(&self.engine, frame) {
            self.engine.receive_frame(rq, frame);
        }
    }

    /// Does some of the work that is due at this time, in nanoseconds, and loops what it sends back
    /// to itself.
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

    /// A reset of the function.
    pub fn reset(&mut self) {
        self.engine.reset();
        self.firmware = Firmware::new(self.engine.port().link);
    }

    /// How many objects of each kind there are.
    pub fn objects(&self) -> String {
        self.firmware.objects()
    }
}
