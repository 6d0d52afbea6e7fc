//! Why a request is invalid.

use std::borrow::Cow;
use std::fmt;

use bareverbs_uapi::verbs_values::QpState;

/// Why a request is [invalid](crate::Error::Invalid). `Display` is the reason for people.
///
/// ```
/// use bareverbs::Error;
/// use bareverbs::error::InvalidCause;
///
/// fn is_a_wrong_order_of_drops(error: &Error) -> bool {
///     matches!(error, Error::Invalid { cause: InvalidCause::InUse(_), .. })
/// }
/// # assert!(!is_a_wrong_order_of_drops(&Error::NoDevice));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidCause {
    /// An object belongs to another context, PD or QP than the request.
    ForeignObject(Cow<'static, str>),
    /// Other objects or clones of this process still use the object.
    InUse(Cow<'static, str>),
    /// The QP is in another state than the request requires.
    QpState {
        /// The state of the QP.
        state: QpState,
        /// The required state.
        required: QpState,
        /// Whether the QP moved itself to `state` after an error.
        moved_itself: bool,
    },
    /// Another object, or one with several possible states, is in the wrong state.
    WrongState(Cow<'static, str>),
    /// A number is above the maximum of its field or type.
    OutOfRange {
        /// The name of the field.
        field: &'static str,
        /// The requested value.
        value: u64,
        /// The maximum.
        max: u64,
    },
    /// A range or an index exceeds a memory region, the address space or a table.
    OutOfBounds(Cow<'static, str>),
    /// A length, a capacity or a set is zero or empty.
    Empty(Cow<'static, str>),
    /// Any other cause.
    Other(Cow<'static, str>),
}

impl fmt::Display for InvalidCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignObject(text)
            | Self::InUse(text)
            | Self::WrongState(text)
            | Self::OutOfBounds(text)
            | Self::Empty(text)
            | Self::Other(text) => f.write_str(text),
            Self::QpState { state, required, moved_itself } => {
                let itself = if *moved_itself { ", where it moved itself after an error" } else { "" };
                write!(f, "the QP is in {state:?}{itself}, not in {required:?}")
            }
            // Fields of packets: QPNs, PSNs, flow labels, VLAN ids.
            Self::OutOfRange { field, value, max }
                if *max >= 0xfff && max.trailing_ones() == max.count_ones() =>
            {
                write!(f, "{field} {value:#x} has more than {} bits", max.count_ones())
            }
            Self::OutOfRange { field, value, max } => write!(f, "{field} {value} is above {max}"),
        }
    }
}

impl From<String> for InvalidCause {
    fn from(text: String) -> Self {
        Self::Other(text.into())
    }
}

impl From<&'static str> for InvalidCause {
    fn from(text: &'static str) -> Self {
        Self::Other(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_print_their_values() {
        let range = |field, value, max| InvalidCause::OutOfRange { field, value, max }.to_string();
        assert_eq!(range("service level", 16, 15), "service level 16 is above 15");
        assert_eq!(range("rq_psn", 1 << 24, 0xff_ffff), "rq_psn 0x1000000 has more than 24 bits");
        assert_eq!(
            range("value", u64::MAX, u64::MAX - 1),
            format!("value {} is above {}", u64::MAX, u64::MAX - 1)
        );
        let (state, required) = (QpState::ERR, QpState::RTS);
        let text = |moved_itself| InvalidCause::QpState { state, required, moved_itself }.to_string();
        assert_eq!(text(false), "the QP is in ERR, not in RTS");
        assert_eq!(text(true), "the QP is in ERR, where it moved itself after an error, not in RTS");
    }
}
