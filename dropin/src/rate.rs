//! Conversions of static rates. Unlike the kernel, C knows a multiple of some rates only.

use std::ffi::c_int;

use crate::convention::{Value, export};

/// A rate: its value in `enum ibv_rate`, its multiple of 2.5 Gbit/s, if C knows it, and its Mbit/s.
struct Rate {
    value: c_int,
    multiple: Option<c_int>,
    mbps: c_int,
}

const fn rate(value: c_int, multiple: Option<c_int>, mbps: c_int) -> Rate {
    Rate { value, multiple, mbps }
}

/// The rate of the port, for numbers that are no rate.
const IBV_RATE_MAX: c_int = 0;

const RATES: [Rate; 23] = [
    rate(2, Some(1), 2_500),
    rate(3, Some(4), 10_000),
    rate(4, Some(12), 30_000),
    rate(5, Some(2), 5_000),
    rate(6, Some(8), 20_000),
    rate(7, Some(16), 40_000),
    rate(8, Some(24), 60_000),
    rate(9, Some(32), 80_000),
    rate(10, Some(48), 120_000),
    rate(11, None, 14_062),
    rate(12, None, 56_250),
    rate(13, None, 112_500),
    rate(14, None, 168_750),
    rate(15, None, 25_781),
    rate(16, None, 103_125),
    rate(17, None, 206_250),
    rate(18, None, 309_375),
    rate(19, Some(11), 28_125),
    rate(20, Some(20), 53_125),
    rate(21, Some(160), 425_000),
    rate(22, Some(240), 637_500),
    rate(23, Some(320), 850_000),
    rate(24, Some(480), 1_275_000),
];

fn find(is_it: impl Fn(&&Rate) -> bool) -> Option<&'static Rate> {
    RATES.iter().find(is_it)
}

export! {
    /// -1: no rate.
    fn ibv_rate_to_mult(value: c_int) -> Value<c_int> {
        Ok(find(|rate| rate.value == value).and_then(|rate| rate.multiple).unwrap_or(-1))
    }

    fn mult_to_ibv_rate(multiple: c_int) -> Value<c_int> {
        Ok(find(|rate| rate.multiple == Some(multiple)).map_or(IBV_RATE_MAX, |rate| rate.value))
    }

    /// -1: no rate.
    fn ibv_rate_to_mbps(value: c_int) -> Value<c_int> {
        Ok(find(|rate| rate.value == value).map_or(-1, |rate| rate.mbps))
    }

    fn mbps_to_ibv_rate(mbps: c_int) -> Value<c_int> {
        Ok(find(|rate| rate.mbps == mbps).map_or(IBV_RATE_MAX, |rate| rate.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_converted_both_ways() {
        for rate in &RATES {
            // SAFETY: the functions have no pointers.
            unsafe {
                assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate.value)), rate.value);
                match rate.multiple {
                    Some(multiple) => assert_eq!(mult_to_ibv_rate(multiple), rate.value),
                    None => assert_eq!(ibv_rate_to_mult(rate.value), -1),
                }
            }
        }
    }

    #[test]
    fn other_numbers_are_no_rates() {
        // SAFETY: the functions have no pointers.
        unsafe {
            assert_eq!((ibv_rate_to_mult(0), ibv_rate_to_mbps(25)), (-1, -1));
            assert_eq!((mult_to_ibv_rate(3), mbps_to_ibv_rate(-1)), (IBV_RATE_MAX, IBV_RATE_MAX));
        }
    }
}
