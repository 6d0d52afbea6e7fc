//! Values on the command line, parsed as the C programs parse them.

use std::fmt::Display;

use bareverbs::Gid;
use bareverbs::values::Mtu;

/// A whole number in the syntax of C's `strtol(…, 0)`: decimal, `0x` hexadecimal or `0` octal.
fn integer(text: &str) -> Result<i64, String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let (radix, digits) = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        (16, hex)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (8, &digits[1..])
    } else {
        (10, digits)
    };
    if !digits.chars().all(|c| c.is_digit(radix)) || digits.is_empty() {
        return Err("not a whole number".into());
    }
    i64::from_str_radix(digits, radix).map(|value| sign * value).map_err(|_| "far too large".into())
}

pub(super) fn number<T>(min: T, max: T) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<i64> + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| {
        let value = T::try_from(integer(text)?).ok().filter(|value| (min..=max).contains(value));
        value.ok_or_else(|| format!("must be between {min} and {max}"))
    }
}

pub(super) fn mtu(text: &str) -> Result<Mtu, String> {
    let bytes = integer(text)?;
    let mtu = u32::try_from(bytes).ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| "must be 256, 512, 1024, 2048 or 4096".into())
}

pub(super) fn gid_index(text: &str) -> Result<i32, String> {
    i32::try_from(integer(text)?).map_err(|_| "far too large".into())
}

/// The GID of a multicast group: an IP address, or 16 numbers as perftest takes them.
pub(super) fn multicast_gid(text: &str) -> Result<Gid, String> {
    let byte = |text: &str| integer(text).ok().and_then(|byte| u8::try_from(byte).ok());
    let bytes = || text.split(':').map(byte).collect::<Option<Vec<_>>>()?.try_into().ok().map(Gid);
    let gid = text.parse().ok().or_else(bytes);
    let gid = gid.ok_or("must be an IP address, or 16 numbers from 0 to 255 with colons between them")?;
    if gid.is_multicast() {
        Ok(gid)
    } else {
        Err(format!("{gid} is not a multicast address: use one of 224.0.0.0/4 or ff00::/8"))
    }
}

/// The interval between two snapshots, in seconds.
pub(super) fn period(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86400.0).contains(seconds));
    seconds.ok_or_else(|| "must be between 0.01 and 86400".into())
}

/// A rate in messages per second: a number, with `k` or `M`, and with `/s`.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    let (number, factor) = match number.as_bytes() {
        [.., b'k' | b'K'] => (&number[..number.len() - 1], 1e3),
        [.., b'M'] => (&number[..number.len() - 1], 1e6),
        _ => (number, 1.0),
    };
    let rate =
        number.parse().ok().map(|number: f64| number * factor).filter(|rate| (1.0..=1e9).contains(rate));
    rate.ok_or_else(|| "must be between 1 and 1000M messages per second".into())
}

/// A time limit, in seconds.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=86400.0).contains(seconds));
    seconds.ok_or_else(|| "must be between 0 and 86400".into())
}
