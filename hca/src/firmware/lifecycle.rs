//! Initialization states of the device, and the commands that each allows.

use super::opcode;

/// Initialization state of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lifecycle {
    #[default]
    Off,
    Enabled,
    Initialized,
}

impl Lifecycle {
    /// Whether a command is allowed in this state.
    pub(super) fn allows(self, code: u16) -> bool {
        use opcode::*;
        let early = matches!(
            code,
            QUERY_ISSI
                | SET_ISSI
                | QUERY_PAGES
                | MANAGE_PAGES
                | ACCESS_REG
                | QUERY_HCA_CAP
                | SET_HCA_CAP
                | QUERY_ADAPTER
        );
        match self {
            Self::Off => matches!(code, ENABLE_HCA | QUERY_ISSI | NOP | MANAGE_PAGES | QUERY_PAGES),
            Self::Enabled => {
                early || matches!(code, ENABLE_HCA | DISABLE_HCA | INIT_HCA | TEARDOWN_HCA | NOP)
            }
            Self::Initialized => !matches!(code, ENABLE_HCA | INIT_HCA),
        }
    }
}
