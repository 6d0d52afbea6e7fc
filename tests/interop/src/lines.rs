//! Parses the lines of ping-pongs strictly: a line is valid only if formatting it again, as the C
//! program does, gives the same line.

use std::net::Ipv6Addr;

/// The transport of a ping-pong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RC.
    Rc,
    /// UC.
    Uc,
    /// UD.
    Ud,
    /// RC with an SRQ.
    Srq,
}

/// The address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Local identifier; 0 on RoCE.
    pub lid: u16,
    /// Queue pair number.
    pub qpn: u32,
    /// First PSN.
    pub psn: u32,
    /// GID.
    pub gid: Ipv6Addr,
}

/// Bytes of an address record on the TCP connection.
pub const RECORD: usize = 52;

impl Address {
    /// Reads `  local address:  LID 0x0000, QPN 0x000011, PSN 0x14b5d8, GID ::ffff:10.1.0.1`.
    pub fn read(whose: &str, line: &str) -> Option<Self> {
        Self::read_of(Kind::Rc, whose, line)
    }

    /// Parses a line of the ping-pong of `kind`. UD prints its own address as
    /// `PSN 0x14b5d8: GID ::`.
    pub fn read_of(kind: Kind, whose: &str, line: &str) -> Option<Self> {
        let line = match (kind, whose) {
            (Kind::Ud, "local") if !line.contains(", GID") => line.replacen(": GID", ", GID", 1),
            (Kind::Ud, "local") => return None,
            _ => line.to_owned(),
        };
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

/// The output of one side of a successful run.
#[derive(Clone, Debug)]
pub struct Printed {
    /// The side's own addresses, one for each queue pair.
    pub local: Vec<Address>,
    /// The peer's addresses.
    pub remote: Vec<Address>,
    /// Bytes transferred in both directions.
    pub bytes: u64,
    /// Iterations.
    pub iters: u64,
}

impl Printed {
    /// Parses the whole standard output: the same number of address lines for each side, two lines
    /// with figures, and no other lines.
    pub fn read(kind: Kind, stdout: &str) -> Option<Self> {
        let lines: Vec<&str> = stdout.lines().collect();
        let [addresses @ .., bytes, iters] = &lines[..] else { return None };
        let (local, remote) = addresses.split_at(addresses.len() / 2);
        if local.len() != remote.len() || local.is_empty() || kind != Kind::Srq && local.len() != 1 {
            return None;
        }
        let read = |whose, lines: &[&str]| {
            lines.iter().map(|line| Address::read_of(kind, whose, line)).collect::<Option<Vec<_>>>()
        };
        Some(Self {
            local: read("local", local)?,
            remote: read("remote", remote)?,
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
    fn lines_of_the_c_program_are_parsed() {
        let printed = Printed::read(Kind::Rc, STDOUT).unwrap();
        assert_eq!((printed.bytes, printed.iters), (1_638_400, 200));
        assert_eq!((printed.local[0].qpn, printed.remote[0].psn), (0x12, 0x14_b5d8));
        assert_eq!(printed.local[0].gid.to_string(), "::ffff:10.1.0.1");
        assert_eq!(&printed.local[0].record(), b"0000:000012:dd9525:00000000000000000000ffff0a010001\0");
    }

    #[test]
    fn extra_or_malformed_lines_are_rejected() {
        assert!(Printed::read(Kind::Rc, &format!("{STDOUT}invalid data in page 0\n")).is_none());
        for (from, to) in
            [("LID 0x0000", "LID 0x000"), ("0.05", "0.050"), ("usec/iter", "us/iter"), ("  l", " l")]
        {
            assert!(Printed::read(Kind::Rc, &STDOUT.replacen(from, to, 1)).is_none(), "{from}");
        }
    }

    #[test]
    fn lines_of_the_other_c_programs_are_parsed() {
        assert!(Printed::read(Kind::Ud, STDOUT).is_none());
        let datagrams = STDOUT.replacen(", GID", ": GID", 1);
        assert_eq!(Printed::read(Kind::Ud, &datagrams).unwrap().local[0].qpn, 0x12);
        assert!(Printed::read(Kind::Uc, &datagrams).is_none());
        let [local, remote, rest @ ..] = &STDOUT.lines().collect::<Vec<_>>()[..] else {
            panic!("four lines")
        };
        let several = [&[*local, local, remote, remote], rest].concat().join("\n");
        assert_eq!(Printed::read(Kind::Srq, &several).unwrap().remote.len(), 2);
        assert!(Printed::read(Kind::Rc, &several).is_none());
        let uneven = [&[*local, local, remote], rest].concat().join("\n");
        assert!(Printed::read(Kind::Srq, &uneven).is_none());
    }
}
