//! Enhanced connection establishment (ECE).

use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::request::Ece;
use bareverbs_uapi::mlx5::{ModifyQpReq as DriverReq, ModifyQpResp};
use bareverbs_uapi::write::structs::ModifyQpReq;
use zerocopy::IntoBytes;

use super::Mlx5Sq;

/// Vendor id of the options.
#[doc(alias = "PCI_VENDOR_ID_MELLANOX")]
const VENDOR: u32 = 0x15b3;

/// ECE options of a create request: version 1, no option selected. The device reports its options
/// in the response.
pub(crate) const ECE_VERSION_1: u32 = 0x1000_0000;

/// The ECE state of a QP, on devices that have ECE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EceState {
    /// Options that the device reported last.
    current: u32,
    /// Options that the next modify requests.
    asked: Option<u32>,
}

impl EceState {
    pub(crate) fn new(current: u32) -> Self {
        Self { current, asked: None }
    }
}

impl Mlx5Sq {
    /// Sets the ECE state that the device reported when the QP was created.
    pub(crate) fn with_ece(self, options: Option<EceState>) -> Self {
        Self { options, ..self }
    }

    pub(super) fn ece_options(&self) -> Option<Ece> {
        self.options.map(|options| Ece { vendor_id: VENDOR, options: options.current })
    }

    pub(super) fn set_ece_options(&mut self, asked: u32) {
        if let Some(options) = &mut self.options {
            *options = EceState { current: 0, asked: Some(asked) };
        }
    }

    /// Modifies the QP. The request includes the ECE options if [`Self::set_ece_options`] was
    /// called.
    ///
    /// # Safety
    ///
    /// As for [`QpControl::modify`](bareverbs_provider::traits::QpControl::modify).
    pub(super) unsafe fn modify_with_ece(
        &mut self,
        file: &DeviceFile,
        request: &ModifyQpReq,
    ) -> Result<(), IoctlError> {
        let Some(asked) = self.options.and_then(|options| options.asked) else {
            // SAFETY: the caller owns the queue pair and resets its queues, as `modify` requires.
            return unsafe { command::modify_qp(file, request) };
        };
        let driver = DriverReq { ece_options: asked, ..DriverReq::zeroed() };
        let mut response = ModifyQpResp::zeroed();
        let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
        // SAFETY: the caller owns the queue pair and resets its queues, as `modify` requires. The
        // payload has no address fields, and the response has its full size.
        unsafe { command::modify_qp_with(file, request, payload) }?;
        self.options = Some(EceState::new(response.ece_options));
        Ok(())
    }
}
