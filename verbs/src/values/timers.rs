//! Timers and retry counts of reliable connections.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{ParseValueError, ValueError};

/// Local ACK timeout: how long a requester waits for an acknowledgement before it retries.
///
/// The encoding has 31 finite times, 4.096 µs × 2^n for n of 1 to 31, from 8.192 µs to 2.4 hours. A
/// device may wait up to four times as long (IBTA C9-141), and may have a longer minimum.
///
/// ```
/// use bareverbs::values::AckTimeout;
/// use std::time::Duration;
///
/// // Rounded up to the next time that the encoding has.
/// let timeout = AckTimeout::try_from(Duration::from_millis(100))?;
/// assert_eq!(timeout.duration(), Some(Duration::from_nanos(134_217_728)));
/// assert_eq!(timeout, AckTimeout::new(15).unwrap());
/// # Ok::<(), bareverbs::values::ValueError>(())
/// ```
#[doc(alias = "timeout")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// No timeout: a request whose acknowledgement is lost is never retried and never completes.
    pub const INFINITE: Self = Self(0);

    /// The time 4.096 µs × 2^`exponent`; 0 is [`INFINITE`](Self::INFINITE). `None` above 31.
    #[must_use]
    pub const fn new(exponent: u8) -> Option<Self> {
        if exponent <= 31 { Some(Self(exponent)) } else { None }
    }

    /// The time; `None` if it is infinite.
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            exponent => Some(Duration::from_nanos(4096 << exponent)),
        }
    }
}

impl Default for AckTimeout {
    /// 537 ms (n = 17). With the default of 6 retries, a dead peer is noticed after 3.8 s. A peer
    /// that stalls for a shorter time, such as a paused virtual machine, is not reported as dead.
    fn default() -> Self {
        Self(17)
    }
}

impl TryFrom<Duration> for AckTimeout {
    type Error = ValueError;

    /// The shortest time that is not below `duration`, at least 8.192 µs. Fails above 4.096 µs ×
    /// 2^31 (2.4 hours).
    fn try_from(duration: Duration) -> Result<Self, ValueError> {
        (1..=31)
            .map(Self)
            .find(|timeout| timeout.duration() >= Some(duration))
            .ok_or_else(|| ValueError::longer("ACK timeout", duration, Duration::from_nanos(4096 << 31)))
    }
}

impl fmt::Display for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.duration() {
            Some(duration) => fmt::Debug::fmt(&duration, f),
            None => f.pad("infinite"),
        }
    }
}

/// Times of the RNR NAK timer in units of 10 µs, by code.
const RNR_TIMES: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Minimum RNR NAK timer: how long the requester waits after an RNR NAK before it retries.
///
/// The encoding has 32 times from 10 µs to 655.36 ms. A device may wait longer.
///
/// ```
/// use bareverbs::values::MinRnrTimer;
/// use std::time::Duration;
///
/// // Rounded up to the next time that the encoding has.
/// let timer = MinRnrTimer::try_from(Duration::from_millis(1))?;
/// assert_eq!(timer.duration(), Duration::from_micros(1280));
/// # Ok::<(), bareverbs::values::ValueError>(())
/// ```
#[doc(alias = "ib_rnr_timeout")]
#[doc(alias = "min_rnr_timer")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MinRnrTimer(u8);

impl MinRnrTimer {
    /// The shortest time, 10 µs.
    pub const MIN: Self = Self(1);
    /// The longest time, 655.36 ms.
    pub const MAX: Self = Self(0);

    /// The time with this code (IBTA, "Encoding for RNR NAK Timer Field"): 0 is 655.36 ms, 1 is 10
    /// µs, 31 is 491.52 ms. `None` above 31.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code <= 31 { Some(Self(code)) } else { None }
    }

    /// The time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(10 * RNR_TIMES[self.0 as usize])
    }
}

impl Default for MinRnrTimer {
    /// 0.64 ms (code 12).
    fn default() -> Self {
        Self(12)
    }
}

impl TryFrom<Duration> for MinRnrTimer {
    type Error = ValueError;

    /// The shortest time that is not below `duration`. Fails above 655.36 ms.
    fn try_from(duration: Duration) -> Result<Self, ValueError> {
        // Code 0 is the longest time.
        (1..=31)
            .chain([0])
            .map(Self)
            .find(|timer| timer.duration() >= duration)
            .ok_or_else(|| ValueError::longer("RNR NAK timer", duration, Self::MAX.duration()))
    }
}

impl fmt::Display for MinRnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.duration(), f)
    }
}

/// Number of retries after an [`AckTimeout`], 0 to 7.
///
/// Soft-RoCE retries without limit if it is 7. With up to 6 retries the request ends on every
/// device, with [`WcStatus::RETRY_EXC_ERR`](crate::WcStatus::RETRY_EXC_ERR).
#[doc(alias = "retry_cnt")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RetryCount(u8);

impl RetryCount {
    /// No retry.
    pub const ZERO: Self = Self(0);
    /// 7 retries; without limit on Soft-RoCE.
    pub const MAX: Self = Self(7);
    /// 6 retries: the most that end on every device.
    pub const DEFAULT: Self = Self(6);

    /// `count` retries. `None` above 7.
    #[must_use]
    pub const fn new(count: u8) -> Option<Self> {
        if count <= 7 { Some(Self(count)) } else { None }
    }
}

impl Default for RetryCount {
    /// [`RetryCount::DEFAULT`].
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for RetryCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Number of retries after an RNR NAK: 0 to 6, or unlimited. The peer's [`MinRnrTimer`] is the
/// minimum delay before each retry.
///
/// After finite retries the request ends with
/// [`WcStatus::RNR_RETRY_EXC_ERR`](crate::WcStatus::RNR_RETRY_EXC_ERR).
#[doc(alias = "rnr_retry")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RnrRetry(u8);

impl RnrRetry {
    /// No retry.
    pub const ZERO: Self = Self(0);
    /// Retries without limit. A peer that stops responding is detected by the [`AckTimeout`].
    pub const INFINITE: Self = Self(7);

    /// `count` retries; 7 is [`INFINITE`](Self::INFINITE). `None` above 7.
    #[must_use]
    pub const fn new(count: u8) -> Option<Self> {
        if count <= 7 { Some(Self(count)) } else { None }
    }
}

impl Default for RnrRetry {
    /// [`RnrRetry::INFINITE`].
    fn default() -> Self {
        Self::INFINITE
    }
}

impl fmt::Display for RnrRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            7 => f.pad("infinite"),
            count => fmt::Display::fmt(&count, f),
        }
    }
}

impl FromStr for RetryCount {
    type Err = ParseValueError;

    /// A decimal number from 0 to 7.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        digit(text).and_then(Self::new).ok_or(ParseValueError::expected("a retry count: 0 to 7"))
    }
}

impl FromStr for RnrRetry {
    type Err = ParseValueError;

    /// A decimal number from 0 to 7, or `infinite`.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        if text == "infinite" {
            return Ok(Self::INFINITE);
        }
        let expected = "an RNR retry count: 0 to 7, or infinite";
        digit(text).and_then(Self::new).ok_or(ParseValueError::expected(expected))
    }
}

/// The number that a text of one digit is.
fn digit(text: &str) -> Option<u8> {
    let &[digit @ b'0'..=b'9'] = text.as_bytes() else { return None };
    Some(digit - b'0')
}

macro_rules! encoded {
    ($($name:ident, $what:literal, $max:literal;)*) => {$(
        impl TryFrom<u8> for $name {
            type Error = ValueError;

            /// The value with this encoding; fails above the maximum.
            fn try_from(encoded: u8) -> Result<Self, ValueError> {
                Self::new(encoded).ok_or_else(|| ValueError::above($what, encoded.into(), $max))
            }
        }

        impl From<$name> for u8 {
            /// The encoding of the IB specification and the kernel.
            fn from(value: $name) -> Self {
                value.0
            }
        }
    )*};
}

encoded! {
    AckTimeout, "ACK timeout", 31;
    MinRnrTimer, "RNR NAK timer", 31;
    RetryCount, "retry count", 7;
    RnrRetry, "RNR retry count", 7;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn encodings_have_the_times_of_the_specification() {
        let times = |code| (AckTimeout(code).to_string(), MinRnrTimer(code).to_string());
        assert_eq!(times(0), ("infinite".into(), "655.36ms".into()));
        assert_eq!(times(1), ("8.192µs".into(), "10µs".into()));
        assert_eq!(times(12), ("16.777216ms".into(), "640µs".into()));
        assert_eq!(times(14), ("67.108864ms".into(), "1.28ms".into()));
        assert_eq!(times(31), ("8796.093022208s".into(), "491.52ms".into()));
        assert_eq!((RnrRetry(6).to_string(), RnrRetry(7).to_string()), ("6".into(), "infinite".into()));
    }

    #[test]
    fn out_of_range_encodings_are_rejected() {
        let text = |error: ValueError| error.to_string();
        assert_eq!(text(AckTimeout::try_from(32).unwrap_err()), "ACK timeout 32 is above the maximum of 31");
        assert_eq!(
            text(MinRnrTimer::try_from(255).unwrap_err()),
            "RNR NAK timer 255 is above the maximum of 31"
        );
        assert_eq!(text(RetryCount::try_from(8).unwrap_err()), "retry count 8 is above the maximum of 7");
        assert_eq!(text(RnrRetry::try_from(8).unwrap_err()), "RNR retry count 8 is above the maximum of 7");
        for encoded in 0..=7 {
            assert_eq!(RetryCount::try_from(encoded).map(u8::from), Ok(encoded));
            assert_eq!(RnrRetry::try_from(encoded).map(u8::from), Ok(encoded));
        }
    }

    #[test]
    fn texts_of_retry_counts_are_parsed() {
        for encoded in 0..=7 {
            let (retries, rnr) = (RetryCount(encoded), RnrRetry(encoded));
            assert_eq!((retries.to_string().parse(), rnr.to_string().parse()), (Ok(retries), Ok(rnr)));
            assert_eq!(encoded.to_string().parse(), Ok(rnr));
        }
        for text in ["", "8", "-1", "+1", "07", "never"] {
            assert_eq!(text.parse::<RetryCount>().unwrap_err().to_string(), "not a retry count: 0 to 7");
            let refused = text.parse::<RnrRetry>().unwrap_err();
            assert_eq!(refused.to_string(), "not an RNR retry count: 0 to 7, or infinite");
        }
    }

    #[test]
    fn too_long_times_are_rejected() {
        let error = MinRnrTimer::try_from(Duration::from_millis(656)).unwrap_err();
        assert_eq!(error.to_string(), "RNR NAK timer 656ms is above the maximum of 655.36ms");
        assert!(AckTimeout::try_from(Duration::from_secs(8797)).is_err());
        assert_eq!(AckTimeout::try_from(Duration::from_secs(8796)), Ok(AckTimeout(31)));
    }

    proptest! {
        #[test]
        fn durations_round_up_to_the_next_encoding(nanos in 0..655_360_000_u64) {
            let asked = Duration::from_nanos(nanos);
            let timeout = AckTimeout::try_from(asked).unwrap();
            prop_assert!(timeout.duration().unwrap() >= asked);
            if timeout.0 > 1 {
                prop_assert!(AckTimeout(timeout.0 - 1).duration().unwrap() < asked);
            }
            let timer = MinRnrTimer::try_from(asked).unwrap();
            prop_assert!(timer.duration() >= asked);
            for code in 0..32 {
                let other = MinRnrTimer(code).duration();
                prop_assert!(other < asked || other >= timer.duration());
            }
        }

        #[test]
        fn encodable_durations_are_unchanged(code in 0..32_u8) {
            let timer = MinRnrTimer(code);
            prop_assert_eq!(MinRnrTimer::try_from(timer.duration()), Ok(timer));
            if let Some(duration) = AckTimeout(code).duration() {
                prop_assert_eq!(AckTimeout::try_from(duration), Ok(AckTimeout(code)));
            }
        }
    }
}
