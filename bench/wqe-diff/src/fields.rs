//! Queue entries as fields. Values that always differ between two programs are replaced by names:
//! addresses by the region's name and an offset, QP numbers and window keys likewise.

use crate::record::{ProgramValues, Queue};

/// The name of a field, and its value.
pub type Field = (String, String);

const SEGMENT: usize = 16;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_be_bytes(word.try_into().expect("four bytes")))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 4))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The fields of an entry, in order.
struct Fields<'a> {
    bytes: &'a [u8],
    program: &'a ProgramValues,
    at: usize,
    fields: Vec<Field>,
    /// SGEs with 0 bytes.
    empty: usize,
}

impl Fields<'_> {
    fn push(&mut self, name: &str, value: impl Into<String>) {
        self.fields.push((name.to_owned(), value.into()));
    }

    /// Consecutive numbers, each with its width in bytes.
    fn numbers(&mut self, segment: &str, fields: &[(&str, usize)]) {
        for (name, width) in fields {
            let end = (self.at + width).min(self.bytes.len());
            let value = hex(&self.bytes[self.at.min(end)..end]);
            self.push(&format!("{segment}.{name}"), value);
            self.at += width;
        }
    }

    fn word(&mut self) -> u32 {
        self.at += 4;
        word(self.bytes, self.at - 4)
    }

    fn long(&mut self) -> u64 {
        self.at += 8;
        long(self.bytes, self.at - 8)
    }

    fn address(&mut self, name: &str) {
        let address = self.long();
        let value = match address.wrapping_sub(self.program.base) {
            // A bind may have the address of the end.
            offset if offset <= u64::from(crate::request::REGION) => format!("region+{offset:#x}"),
            _ => format!("{address:#x}"),
        };
        self.push(name, value);
    }

    fn key(&mut self, name: &str) {
        let key = self.word();
        let value = self.named_key(key);
        self.push(name, value);
    }

    fn named_key(&self, key: u32) -> String {
        let program = self.program;
        if let Some(which) = program.windows.iter().position(|window| window >> 8 == key >> 8) {
            return format!(
                "window {which}, {} later",
                (key as u8).wrapping_sub(program.windows[which] as u8)
            );
        }
        match key {
            _ if key == program.lkey && key == program.rkey => "the region's".into(),
            _ if key == program.lkey => "the region's lkey".into(),
            _ if key == program.rkey => "the region's rkey".into(),
            key => format!("{key:#x}"),
        }
    }

    fn named_qp(&self, number: u32) -> String {
        self.program.queue_pairs.get(&number).cloned().unwrap_or_else(|| format!("{number:#x}"))
    }

    /// On InfiniBand the LID. On RoCE the UDP source port, which is computed from the flow label.
    /// Without a flow label it is any RoCE source port, because rdma-core chooses it at random.
    fn lid(&mut self) {
        let (at, lid) = (self.at, word(self.bytes, self.at) >> 16);
        let is_roce = word(self.bytes, at + 6) | word(self.bytes, at + 8) != 0;
        let label = word(self.bytes, at + 14) & 0xf_ffff;
        self.at += 2;
        let value = match (is_roce && label == 0, lid) {
            (true, 0xc000..) => "a port of RoCE's".into(),
            _ => format!("{lid:#x}"),
        };
        self.push("av.rlid", value);
    }

    /// A data segment: a memory pointer or inline data.
    fn data(&mut self) {
        let length = self.word();
        if length == 0 {
            self.empty += 1;
            self.at += SEGMENT - 4;
            return;
        }
        if length >> 31 == 0 {
            self.push("data.byte_count", format!("{length}"));
            self.key("data.lkey");
            self.address("data.addr");
            return;
        }
        let length = (length & 0x7fff_ffff) as usize;
        self.push("inline.byte_count", format!("{length}"));
        self.copied("inline.data", "inline.padding", length);
    }

    /// `length` bytes that were copied into the entry, and the padding of their last segment.
    fn copied(&mut self, data: &str, padding: &str, length: usize) {
        let end = (self.at + length).min(self.bytes.len());
        self.push(data, hex(&self.bytes[self.at.min(end)..end]));
        let padded = end.next_multiple_of(SEGMENT).min(self.bytes.len());
        self.push(padding, hex(&self.bytes[end..padded]));
        self.at = padded;
    }

    /// The Ethernet segment, with the first bytes of the frame.
    fn ethernet(&mut self) {
        self.numbers(
            "eth",
            &[("reserved0", 4), ("cs_flags", 1), ("reserved1", 1), ("mss", 2), ("reserved2", 4)],
        );
        let length = word(self.bytes, self.at) >> 16;
        self.numbers("eth", &[("inline_hdr_sz", 2)]);
        self.copied("eth.inline_hdr", "eth.padding", length as usize);
    }

    fn send(&mut self, to: &str) {
        let (place, owner) = (self.word(), self.word());
        self.push("ctrl.opmod", format!("{:#x}", place >> 24));
        self.push("ctrl.wqe_index", format!("{}", place >> 8 & 0xffff));
        self.push("ctrl.opcode", format!("{:#x}", place as u8));
        let qp = self.named_qp(owner >> 8);
        self.push("ctrl.qpn", qp);
        self.push("ctrl.ds", format!("{}", owner as u8));
        self.numbers("ctrl", &[("signature", 1), ("reserved", 2), ("fm_ce_se", 1)]);
        let opcode = place as u8;
        match opcode {
            0x01 | 0x25 => self.key("ctrl.imm"),
            _ => self.numbers("ctrl", &[("imm", 4)]),
        }
        if opcode == 0x25 {
            self.key_change();
            return;
        }
        if to.starts_with("ud") {
            self.numbers("av", &[("qkey", 4), ("reserved0", 4)]);
            let to = self.word();
            let qp = self.named_qp(to & 0xff_ffff);
            self.push("av.dqp", format!("{:#x}, {qp}", to >> 24));
            self.numbers("av", &[("stat_rate_sl", 1), ("fl_mlid", 1)]);
            self.lid();
            self.numbers(
                "av",
                &[
                    ("reserved1", 4),
                    ("rmac", 6),
                    ("tclass", 1),
                    ("hop_limit", 1),
                    ("grh_gid_fl", 4),
                    ("rgid", 16),
                ],
            );
        }
        if to == "ud-sourced" {
            self.numbers("pad", &[("reserved", 16)]);
            self.ethernet();
        } else if to.starts_with("frames") || to.starts_with("large") {
            self.ethernet();
        } else if matches!(opcode, 0x08..=0x12) && !matches!(opcode, 0x0a | 0x0b) {
            self.address("raddr.addr");
            self.key("raddr.rkey");
            self.numbers("raddr", &[("reserved", 4)]);
        }
        match opcode {
            0x11 => self.numbers("atomic", &[("swap", 8), ("compare", 8)]),
            0x12 => self.numbers("atomic", &[("add", 8), ("unused", 8)]),
            _ => {}
        }
        while self.at < self.bytes.len() {
            self.data();
        }
    }

    /// A UMR: its control segment, the mkey context, and the data segment.
    fn key_change(&mut self) {
        self.numbers(
            "umr",
            &[("flags", 1), ("reserved0", 3), ("klm_octowords", 2), ("translation_offset", 2)],
        );
        self.numbers("umr", &[("mkey_mask", 8), ("reserved1", 32)]);
        // Without a range it is an invalidation, for which the device reads few fields of the
        // context.
        let bound = self.bytes.len() > 128;
        let ranged = if bound { "mkey" } else { "unchanged" };
        self.numbers("mkey", &[("free", 1)]);
        self.numbers("unchanged", &[("reserved0", 1)]);
        self.numbers(ranged, &[("access", 1)]);
        self.numbers("unchanged", &[("sf", 1)]);
        let user = self.word();
        let qp = match user >> 8 {
            0xff_ffff => "any".into(),
            number => self.named_qp(number),
        };
        self.push("mkey.qpn", qp);
        if bound {
            // The low byte is the variable part of the key.
            let window =
                self.program.windows.into_iter().find(|window| window >> 8 == word(self.bytes, 12) >> 8);
            let later = (user as u8).wrapping_sub(window.unwrap_or_default() as u8);
            self.push("mkey.key", format!("{later} later"));
        } else {
            self.push("mkey.key", format!("{:#x}", user as u8));
        }
        self.numbers("unchanged", &[("reserved1", 4), ("flags_pd", 4)]);
        self.address(&format!("{ranged}.start_addr"));
        self.numbers(ranged, &[("len", 8)]);
        self.numbers(
            "unchanged",
            &[("bsf_octowords", 4), ("reserved2", 16), ("translations", 4), ("rest", 8)],
        );
        while self.at < self.bytes.len() {
            self.numbers("klm", &[("byte_count", 4)]);
            self.key("klm.mkey");
            self.address("klm.addr");
        }
    }

    /// Data segments up to the terminating one, if there is one.
    fn receive(&mut self) {
        const END: u32 = 0x100;
        while self.at < self.bytes.len() {
            if word(self.bytes, self.at) == 0 && word(self.bytes, self.at + 4) == END {
                self.at += 8;
                self.numbers("end", &[("addr", 8)]);
                return;
            }
            self.data();
        }
    }
}

/// The fields of an entry, in order.
#[must_use]
pub fn fields(queue: &Queue, bytes: &[u8], program: &ProgramValues) -> Vec<Field> {
    let mut fields = Fields { bytes, program, at: 0, fields: Vec::new(), empty: 0 };
    match queue {
        Queue::Send(name) => fields.send(name),
        Queue::Receive(_) => fields.receive(),
        Queue::Shared => {
            fields.numbers(
                "next",
                &[("reserved0", 2), ("next_wqe_index", 2), ("signature", 1), ("reserved1", 11)],
            );
            fields.receive();
        }
    }
    let empty = fields.empty.to_string();
    fields.push("elements of no bytes", empty);
    fields.fields
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn program() -> ProgramValues {
        ProgramValues::parse("qp rc 0x4c\nqp ud 0x4e\nregion 0x700000 0x11 0x11\nwindows 0x1300 0x1401\n")
            .unwrap()
    }

    fn value(fields: &[Field], name: &str) -> String {
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }

    #[test]
    fn write_wqe_has_ctrl_raddr_and_data_segments() {
        let mut bytes = vec![0, 0, 7, 8, 0, 0, 0x4c, 3, 0, 0, 0, 8, 0, 0, 0, 0];
        bytes.extend([0, 0, 0, 0, 0, 0x70, 0x80, 0, 0, 0, 0, 0x11, 0, 0, 0, 0]);
        bytes.extend([0, 0, 0, 64, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 0x70, 0, 16]);
        let fields = fields(&Queue::Send("rc".into()), &bytes, &program());
        for (name, expected) in [
            ("ctrl.wqe_index", "7"),
            ("ctrl.qpn", "rc"),
            ("ctrl.fm_ce_se", "08"),
            ("raddr.addr", "region+0x8000"),
            ("raddr.rkey", "the region's"),
            ("data.byte_count", "64"),
            ("data.addr", "region+0x10"),
        ] {
            assert_eq!(value(&fields, name), expected, "{name} of {fields:?}");
        }
    }

    #[test]
    fn inline_padding_is_reported_apart() {
        let mut bytes = vec![0, 0, 0, 10, 0, 0, 0x4c, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([0x80, 0, 0, 2, b'h', b'i', 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
        let fields = fields(&Queue::Send("rc".into()), &bytes, &program());
        assert_eq!(
            (value(&fields, "inline.data"), value(&fields, "inline.padding")),
            ("6869".into(), "09".repeat(10))
        );
    }

    #[test]
    fn udp_source_port_is_arbitrary_without_flow_label() {
        let rlid = |port: u16, mac: u8, label: u8| {
            let mut bytes = [0; 64];
            bytes[3] = 10;
            bytes[30..32].copy_from_slice(&port.to_be_bytes());
            (bytes[36], bytes[47]) = (mac, label);
            value(&fields(&Queue::Send("ud".into()), &bytes, &program()), "av.rlid")
        };
        assert_eq!(rlid(0xc000, 2, 0), rlid(0xffff, 2, 0));
        assert_ne!(rlid(0xc000, 2, 1), rlid(0xffff, 2, 1), "the label says which");
        assert_eq!((rlid(7, 2, 0), rlid(0xc007, 0, 0)), ("0x7".into(), "0xc007".into()), "RoCE's only");
    }

    #[test]
    fn raw_packet_wqe_fields_are_decoded() {
        let mut bytes = vec![0, 0, 0, 10, 0, 0, 0x4c, 4, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 18]);
        bytes.extend(1..=18);
        bytes.extend([0, 0, 0, 64, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 0x70, 0, 16]);
        let fields = fields(&Queue::Send("frames".into()), &bytes, &program());
        for (name, expected) in [
            ("eth.cs_flags", "c0"),
            ("eth.mss", "0000"),
            ("eth.inline_hdr_sz", "0012"),
            ("eth.inline_hdr", "0102030405060708090a0b0c0d0e0f101112"),
            ("eth.padding", ""),
            ("data.byte_count", "64"),
            ("data.addr", "region+0x10"),
        ] {
            assert_eq!(value(&fields, name), expected, "{name} of {fields:?}");
        }
    }

    #[test]
    fn receive_list_ends_with_terminate_key() {
        let mut bytes = vec![0, 0, 0, 64, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 0x70, 0, 0];
        bytes.extend([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0xff; 32]);
        let fields = fields(&Queue::Receive("rc".into()), &bytes, &program());
        assert_eq!(fields.len(), 5, "{fields:?}");
        assert_eq!(fields[3], ("end.addr".into(), "0000000000000000".into()));
    }

    proptest! {
        #[test]
        fn arbitrary_wqe_bytes_do_not_panic_in_fields(bytes in vec(any::<u8>(), 0..300)) {
            let sends = ["rc", "ud", "frames"].map(|name| Queue::Send(name.into()));
            for queue in sends.into_iter().chain([Queue::Receive("rc".into()), Queue::Shared]) {
                let value = fields(&queue, &bytes, &program());
                prop_assert!(value.len() < 1000);
            }
        }
    }
}
