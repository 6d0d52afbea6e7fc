//! Options of a connection beyond the standard.

use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::contract::Ece;
use bareverbs_provider::device::{DeviceFile, Refused};
use bareverbs_uapi::mlx5::{ModifyQpReq as DriverReq, ModifyQpResp};
use bareverbs_uapi::write::structs::ModifyQpReq;
use zerocopy::IntoBytes;

use super::Mlx5Sq;

/// The vendor of the options.
#[doc(alias = "PCI_VENDOR_ID_MELLANOX")]
const VENDOR: u32 = 0x15b3;

/// What a queue pair is made with, to learn what the device has: options of the first version, none of which is chosen.
pub(crate) const FIRST_VERSION: u32 = 0x1000_0000;

/// A queue pair's options, on devices that have such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// What the device told last.
    has: u32,
    /// What the next change asks for.
    asked: Option<u32>,
}

impl Options {
    pub(crate) fn new(has: u32) -> Self {
        Self { has, asked: None }
    }
}

impl Mlx5Sq {
    /// Has the queue pair's options, of which the device told so when it was made.
    pub(crate) fn with_options(self, options: Option<Options>) -> Self {
        Self { options, ..self }
    }

    pub(super) fn told_ece(&self) -> Option<Ece> {
        self.options.map(|options| Ece { vendor_id: VENDOR, options: options.has })
    }

    pub(super) fn ask_options(&mut self, asked: u32) {
        if let Some(options) = &mut self.options {
            *options = Options { has: 0, asked: Some(asked) };
        }
    }

    /// Asks the kernel for a change, and the device for options where some are wished for.
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::change`](bareverbs_provider::contract::SendQueue::change).
    pub(super) unsafe fn change_with_options(
        &mut self,
        file: &DeviceFile,
        change: &ModifyQpReq,
    ) -> Result<(), Refused> {
        let Some(asked) = self.options.and_then(|options| options.asked) else {
            // SAFETY: the caller owns the queue pair and resets its queues, as `change` asks.
            return unsafe { command::modify_qp(file, change) };
        };
        let driver = DriverReq { ece_options: asked, ..DriverReq::zeroed() };
        let mut response = ModifyQpResp::zeroed();
        let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
        // SAFETY: the caller owns the queue pair and resets its queues, as `change` asks. The
        // payload holds no addresses, and the response has its full size.
        unsafe { command::modify_qp_with(file, change, payload) }?;
        self.options = Some(Options::new(response.ece_options));
        Ok(())
    }
}
