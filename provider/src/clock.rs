//! Conversion of a device clock to nanoseconds.

use std::time::Duration;

/// The state of a device clock and its conversion to nanoseconds, as the kernel last updated it.
///
/// The kernel keeps the time of the device clock as a PTP hardware clock: at first the system's
/// time, later what a PTP daemon sets.
#[doc(alias = "mlx5dv_clock_info")]
#[doc(alias = "mlx5_ib_clock_info")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockInfo {
    /// Nanoseconds since the epoch at `cycles`.
    pub nsec: u64,
    /// Ticks of the device clock at the last update.
    pub cycles: u64,
    /// Fractions of a nanosecond at `cycles`, in units of 2^-`shift`.
    pub frac: u64,
    /// Nanoseconds of a tick, in units of 2^-`shift`.
    pub mult: u32,
    /// See `mult`.
    pub shift: u32,
    /// Mask of the low bits of the device clock that the conversion uses. mlx5 uses 41.
    pub mask: u64,
}

impl ClockInfo {
    /// The time at which the device clock had the value `ticks`, since the epoch of the clock. A
    /// value up to half a wrap before or after the last update is converted right.
    #[must_use]
    #[doc(alias = "mlx5dv_ts_to_ns")]
    pub fn time(&self, ticks: u64) -> Duration {
        let after = ticks.wrapping_sub(self.cycles) & self.mask;
        // A product of 64 and 32 bits does not wrap here.
        let scaled = |delta: u64| u128::from(delta) * u128::from(self.mult);
        let nanos =
            |scaled: u128| u64::try_from(scaled.checked_shr(self.shift).unwrap_or(0)).unwrap_or(u64::MAX);
        Duration::from_nanos(if after > self.mask / 2 {
            let before = self.cycles.wrapping_sub(ticks) & self.mask;
            self.nsec.saturating_sub(nanos(scaled(before).saturating_sub(self.frac.into())))
        } else {
            self.nsec.saturating_add(nanos(scaled(after) + u128::from(self.frac)))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 156.25 MHz: 6.4 ns for each tick.
    const CLOCK: ClockInfo = ClockInfo {
        nsec: 1_000_000_000,
        cycles: 500,
        frac: 0,
        mult: 0x6666_6666,
        shift: 28,
        mask: (1 << 41) - 1,
    };

    #[test]
    fn ticks_before_and_after_the_update_are_converted() {
        let nanos = |clock: &ClockInfo, ticks| clock.time(ticks).as_nanos();
        assert_eq!(nanos(&CLOCK, 500), 1_000_000_000);
        // The multiplier is rounded down.
        assert_eq!(nanos(&CLOCK, 510), 1_000_000_063);
        assert_eq!(nanos(&ClockInfo { frac: 1 << 27, ..CLOCK }, 510), 1_000_000_064);
        assert_eq!(nanos(&CLOCK, 490), 1_000_000_000 - 63);
        // The clock wrapped around after the update, and before it.
        assert_eq!(nanos(&ClockInfo { cycles: CLOCK.mask - 4, ..CLOCK }, 5), 1_000_000_063);
        assert_eq!(nanos(&ClockInfo { cycles: 5, ..CLOCK }, CLOCK.mask - 4), 1_000_000_000 - 63);
    }

    proptest! {
        #[test]
        fn any_clock_page_is_converted_without_a_panic(
            (nsec, cycles, frac, mask, ticks) in any::<(u64, u64, u64, u64, u64)>(),
            (mult, shift) in any::<(u32, u32)>(),
        ) {
            let _ = ClockInfo { nsec, cycles, frac, mult, shift, mask }.time(ticks);
        }

        #[test]
        fn later_ticks_are_not_earlier(ticks in 0..1u64 << 40, more in 0..1u64 << 20) {
            prop_assert!(CLOCK.time(ticks) <= CLOCK.time(ticks + more));
        }
    }
}
