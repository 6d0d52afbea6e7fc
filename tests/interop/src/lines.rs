//! The lines that ping-pongs print, read back strictly: a line counts only if the C program's format gives it again.

use std::net::Ipv6Addr;

/// Where a queue pair can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Local identifier; 0 on RoCE.
    pub lid: u16,
    /// Queue pair number.
    pub qpn: u32,
    /// First packet's number.
    pub psn: u32,
    /// GID.
    pub gid: Ipv6Addr,
}

/// Bytes of an address on the TCP connection.
pub const RECORD: usize = 52;

impl Address {
    /// Reads `  local address:  LID 0x0000, QPN 0x000011, PSN 0x14b5d8, GID ::ffff:10.1.0.1`.
    pub fn read(whose: &str, line: &str) -> Option<Self> {
        let fields = line.strip_prefix(&format!("  {whose} address:"))?.trim_start();
        let mut fields = fields.split(", ").map(|field| field.split_once(' '));
        let mut field =
            |wanted: &str| fields.next()?.filter(|(name, _)| *name == wanted).map(|(_, value)| value);
        let hex = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let address = Self {
            lid: hex(field("LID")?)?.try_into().ok()?,
            qpn: hex(field("QPN")?)?,
            psn: hex(field("PSN")?)?,
            gid: field("GID")?.parse().ok()?,
        };
        (address.line(whose) == line).then_some(address)
    }

    fn line(&self, whose: &str) -> String {
        let Self { lid, qpn, psn, gid } = self;
        let label = format!("  {whose} address:");
        format!("{label:<17} LID {lid:#06x}, QPN {qpn:#08x}, PSN {psn:#08x}, GID {gid}")
    }

    /// The address as both programs write it to the TCP connection: text with a NUL.
    pub fn record(&self) -> [u8; RECORD] {
        let Self { lid, qpn, psn, gid } = self;
        let text = format!("{lid:04x}:{qpn:06x}:{psn:06x}:{:032x}\0", gid.to_bits());
        text.into_bytes().try_into().expect("the fields have fixed widths")
    }
}

/// What one side of a regular run printed.
#[derive(Clone, Copy, Debug)]
pub struct Printed {
    /// Its own address.
    pub local: Address,
    /// The peer's address.
    pub remote: Address,
    /// Bytes moved both ways.
    pub bytes: u64,
    /// Iterations.
    pub iters: u64,
}

impl Printed {
    /// Reads the whole standard output: four lines and nothing else.
    pub fn read(stdout: &str) -> Option<Self> {
        let lines: Vec<&str> = stdout.lines().collect();
        let [local, remote, bytes, iters] = lines[..] else { return None };
        Some(Self {
            local: Address::read("local", local)?,
            remote: Address::read("remote", remote)?,
            bytes: figures(bytes, "bytes", "Mbit/sec")?,
            iters: figures(iters, "iters", "usec/iter")?,
        })
    }
}

/// `COUNT WHAT in 0.01 seconds = 12.34 UNIT`
fn figures(line: &str, what: &str, unit: &str) -> Option<u64> {
    let words: Vec<&str> = line.split(' ').collect();
    let [count, _, _, seconds, _, _, rate, _] = words[..] else { return None };
    let count: u64 = count.parse().ok()?;
    let again = format!(
        "{count} {what} in {:.2} seconds = {:.2} {unit}",
        seconds.parse::<f64>().ok()?,
        rate.parse::<f64>().ok()?
    );
    (again == line).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STDOUT: &str = "  local address:  LID 0x0000, QPN 0x000012, PSN 0xdd9525, GID ::ffff:10.1.0.1\n  \
                          remote address: LID 0x0000, QPN 0x000011, PSN 0x14b5d8, GID ::\n\
                          1638400 bytes in 0.05 seconds = 263.02 Mbit/sec\n\
                          200 iters in 0.05 seconds = 249.16 usec/iter\n";

    #[test]
    fn the_c_programs_lines_are_read() {
        let printed = Printed::read(STDOUT).unwrap();
        assert_eq!((printed.bytes, printed.iters), (1_638_400, 200));
        assert_eq!((printed.local.qpn, printed.remote.psn), (0x12, 0x14_b5d8));
        assert_eq!(printed.local.gid.to_string(), "::ffff:10.1.0.1");
        assert_eq!(&printed.local.record(), b"0000:000012:dd9525:00000000000000000000ffff0a010001\0");
    }

    #[test]
    fn a_line_too_many_or_in_another_shape_is_refused() {
        assert!(Printed::read(&format!("{STDOUT}invalid data in page 0\n")).is_none());
        for (from, to) in
            [("LID 0x0000", "LID 0x000"), ("0.05", "0.050"), ("usec/iter", "us/iter"), ("  l", " l")]
        {
            assert!(Printed::read(&STDOUT.replacen(from, to, 1)).is_none(), "{from}");
        }
    }
}
