//! The option of all examples that names the device.

use bareverbs::{Context, Device, Result};

/// The device of an example.
#[derive(clap::Parser, Clone, Debug)]
pub(crate) struct DeviceOption {
    /// The RDMA device, such as rxe0, soft0 or soft:127.0.0.2. Default: the first one.
    #[arg(short, long)]
    device: Option<String>,
}

impl DeviceOption {
    /// Opens the RDMA device.
    pub(crate) fn open(&self) -> Result<Context> {
        match &self.device {
            Some(name) => Device::find(name)?.open(),
            None => Context::open_first(),
        }
    }
}
