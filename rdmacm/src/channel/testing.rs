//! Channels of tests.

use super::{EventChannel, Inner};
use crate::command::CmFile;

impl EventChannel {
    /// A channel without events, which refuses commands.
    pub(crate) fn for_test() -> Self {
        Self { inner: Inner::new(CmFile::for_test(), true) }
    }

    /// A channel with a simulated kernel.
    pub(crate) fn simulated() -> Self {
        let channel = Self { inner: Inner::new(CmFile::simulated(), false) };
        channel.create_wake().expect("an eventfd");
        channel
    }

    /// A channel of one identifier, with a simulated kernel.
    pub(crate) fn simulated_private() -> Self {
        Self { inner: Inner::new(CmFile::simulated(), true) }
    }
}
