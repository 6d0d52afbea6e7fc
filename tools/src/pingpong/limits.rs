//! Compares the requested features with the device's capabilities before any object is created.

use bareverbs::{DeviceAttr, Mtu, PortAttr};

use crate::cli::pingpong::{Config, Kind, XsrqPingpong};

const ODP_SUPPORT: u64 = 1 << 0;
const ODP_IMPLICIT: u64 = 1 << 1;
const ODP_SEND: u32 = 1 << 0;
const ODP_RECV: u32 = 1 << 1;
const ODP_SRQ_RECV: u32 = 1 << 5;
const XRC: u64 = 1 << 20;

/// The capabilities of a device and its port that a ping-pong uses.
#[derive(Clone, Debug)]
pub(crate) struct DeviceLimits {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) max_msg_sz: u32,
    pub(crate) active_mtu: Mtu,
    pub(crate) max_cqe: u32,
    pub(crate) max_qp: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_srq_wr: u32,
    pub(crate) odp_general: u64,
    pub(crate) odp_rc: u32,
    pub(crate) odp_xrc: u32,
    pub(crate) xrc: bool,
    pub(crate) timestamp_mask: u64,
    pub(crate) max_dm_size: u64,
}

/// A requested feature that the device does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {what}")]
pub(crate) struct Unsupported {
    device: String,
    what: String,
}

impl DeviceLimits {
    pub(crate) fn new(device: &str, attr: &DeviceAttr, port: u8, port_attr: &PortAttr) -> Self {
        Self {
            device: device.into(),
            port,
            max_msg_sz: port_attr.max_msg_sz,
            active_mtu: port_attr.active_mtu,
            max_cqe: attr.max_cqe,
            max_qp: attr.max_qp,
            max_qp_wr: attr.max_qp_wr,
            max_srq_wr: if attr.max_srq == 0 { 0 } else { attr.max_srq_wr },
            odp_general: attr.odp_general_caps.bits(),
            odp_rc: attr.rc_odp_caps.bits(),
            odp_xrc: attr.xrc_odp_caps.bits(),
            xrc: attr.device_cap_flags.bits() & XRC != 0,
            timestamp_mask: attr.completion_timestamp_mask,
            max_dm_size: attr.max_dm_size,
        }
    }

    /// Returns the first requested feature that is unsupported.
    pub(crate) fn check(&self, requested: &Config<'_>) -> Result<(), Unsupported> {
        match self.find_unsupported(requested) {
            None => Ok(()),
            Some(what) => Err(Unsupported { device: self.device.clone(), what }),
        }
    }

    fn find_unsupported(&self, requested: &Config<'_>) -> Option<String> {
        self.over_limit(requested).or_else(|| self.missing(requested))
    }

    fn over_limit(&self, requested: &Config<'_>) -> Option<String> {
        let port = self.port;
        let (size, depth) = (requested.size, requested.common.rx_depth);
        if let Some(problem) = self.message_too_long(size) {
            return Some(problem);
        }
        if requested.kind == Kind::Ud && size > self.active_mtu.bytes() {
            let max = self.active_mtu;
            return Some(format!(
                "a datagram of {size} bytes (-s) is longer than a packet of port {port} (active_mtu {max})"
            ));
        }
        if let Some(problem) = requested.mtu.and_then(|mtu| self.mtu_too_large(mtu)) {
            return Some(problem);
        }
        match (requested.kind, self.max_srq_wr) {
            (Kind::Srq, 0) => return Some("no SRQs (max_srq)".into()),
            (Kind::Srq, max) if depth > max => {
                return Some(format!("{depth} receives (-r) are more than an SRQ holds (max_srq_wr {max})"));
            }
            (Kind::Srq, _) => {}
            _ if depth > self.max_qp_wr => {
                let max = self.max_qp_wr;
                return Some(format!(
                    "{depth} receives (-r) are more than a queue pair holds (max_qp_wr {max})"
                ));
            }
            _ => {}
        }
        if requested.num_qp > self.max_qp {
            let (qps, max) = (requested.num_qp, self.max_qp);
            return Some(format!("{qps} queue pairs (-q) are more than there can be (max_qp {max})"));
        }
        if u64::from(depth) + u64::from(requested.num_qp) > self.max_cqe.into() {
            let max = self.max_cqe;
            let sends = if requested.num_qp == 1 {
                "a send".to_owned()
            } else {
                format!("{} sends", requested.num_qp)
            };
            return Some(format!(
                "{depth} receives (-r) and {sends} complete into more entries than a CQ has (max_cqe {max})"
            ));
        }
        None
    }

    fn message_too_long(&self, size: u32) -> Option<String> {
        let (port, max) = (self.port, self.max_msg_sz);
        (size > max).then(|| {
            format!("a message of {size} bytes (-s) is longer than port {port} carries (max_msg_sz {max})")
        })
    }

    fn mtu_too_large(&self, mtu: Mtu) -> Option<String> {
        let (port, max) = (self.port, self.active_mtu);
        (mtu > max)
            .then(|| format!("a path MTU of {mtu} (-m) is above that of port {port} (active_mtu {max})"))
    }

    /// Returns the first unsupported feature that an XRC run requests.
    pub(crate) fn check_xrc(&self, requested: &XsrqPingpong) -> Result<(), Unsupported> {
        let problem = self.missing_xrc(requested).or_else(|| self.message_too_long(requested.size));
        match problem.or_else(|| self.mtu_too_large(requested.mtu)) {
            None => Ok(()),
            Some(what) => Err(Unsupported { device: self.device.clone(), what }),
        }
    }

    fn missing_xrc(&self, requested: &XsrqPingpong) -> Option<String> {
        const NEEDED: u32 = ODP_SEND | ODP_SRQ_RECV;
        if !self.xrc {
            return Some("no extended reliable connections (XRC), which xsrq needs".into());
        }
        if requested.odp && (self.odp_general & ODP_SUPPORT == 0 || self.odp_xrc & NEEDED != NEEDED) {
            return Some(
                "no on-demand paging for send and shared receive on XRC (xrc_odp_caps), which -o needs"
                    .into(),
            );
        }
        (requested.clients > self.max_srq_wr).then(|| {
            let (clients, max) = (requested.clients, self.max_srq_wr);
            format!("{clients} clients (-c) are more than an SRQ has receives (max_srq_wr {max})")
        })
    }

    fn missing(&self, requested: &Config<'_>) -> Option<String> {
        if requested.on_demand() {
            if self.odp_general & ODP_SUPPORT == 0 {
                return Some("no on-demand paging (ODP_SUPPORT), which -o and -O need".into());
            }
            let (needed, what) = match requested.kind {
                Kind::Srq => (ODP_SEND | ODP_SRQ_RECV, "send and shared receive"),
                _ => (ODP_SEND | ODP_RECV, "send and receive"),
            };
            if self.odp_rc & needed != needed {
                return Some(format!(
                    "no on-demand paging for both {what} on RC (rc_odp_caps), which -o and -O need"
                ));
            }
        }
        if requested.iodp && self.odp_general & ODP_IMPLICIT == 0 {
            return Some("no implicit on-demand paging (ODP_SUPPORT_IMPLICIT), which -O needs".into());
        }
        if requested.ts && self.timestamp_mask == 0 {
            return Some("no completion timestamps (completion_timestamp_mask), which -t needs".into());
        }
        if requested.dm && self.max_dm_size == 0 {
            return Some("no device memory (max_dm_size), which -j needs".into());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::pingpong::Pingpong;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    /// Soft-RoCE of Linux 7.2 over an interface with an MTU of 1500 bytes.
    fn rxe() -> DeviceLimits {
        DeviceLimits {
            device: "rxe0".into(),
            port: 1,
            max_msg_sz: 0x80_0000,
            active_mtu: Mtu::Mtu1024,
            max_cqe: 32767,
            max_qp: 1_048_560,
            max_qp_wr: 1_048_576,
            max_srq_wr: 1_048_576,
            odp_general: ODP_SUPPORT,
            odp_rc: ODP_SEND | ODP_RECV,
            odp_xrc: 0,
            xrc: false,
            timestamp_mask: 0,
            max_dm_size: 0,
        }
    }

    fn result_of(limits: &DeviceLimits, args: &[&str]) -> Result<(), String> {
        result_of_kind("rc", limits, args)
    }

    fn result_of_kind(kind: &str, limits: &DeviceLimits, args: &[&str]) -> Result<(), String> {
        let line = ["bareverbs", "pingpong", kind].into_iter().chain(args.iter().copied());
        let Command::Pingpong(Pingpong::SingleClient(requested)) = Cli::try_parse_from(line).unwrap().command
        else {
            panic!("not a ping-pong")
        };
        limits.check(&requested.config()).map_err(|unsupported| unsupported.to_string())
    }

    #[test]
    fn rxe_supports_the_common_options() {
        result_of(&rxe(), &["-s", "0x800000", "-m", "1024", "-r", "8000", "-e", "-o", "-P", "-c", "-N"])
            .unwrap();
    }

    #[test]
    fn unsupported_features_name_the_option() {
        for (option, missing) in [
            ("-O", "rxe0: no implicit on-demand paging (ODP_SUPPORT_IMPLICIT), which -O needs"),
            ("-t", "rxe0: no completion timestamps (completion_timestamp_mask), which -t needs"),
            ("-j", "rxe0: no device memory (max_dm_size), which -j needs"),
        ] {
            assert_eq!(result_of(&rxe(), &[option]).unwrap_err(), missing);
        }
    }

    #[test]
    fn odp_follows_the_capabilities() {
        let none = DeviceLimits { odp_general: 0, odp_rc: 0, ..rxe() };
        for args in [&["-o"][..], &["-o", "-P"], &["-O"]] {
            assert_eq!(
                result_of(&none, args).unwrap_err(),
                "rxe0: no on-demand paging (ODP_SUPPORT), which -o and -O need"
            );
        }
        let send_only = DeviceLimits { odp_rc: ODP_SEND, ..rxe() };
        assert!(result_of(&send_only, &["-o"]).unwrap_err().contains("for both send and receive on RC"));
        result_of(&none, &[]).unwrap();
        let implicit = DeviceLimits { odp_general: ODP_SUPPORT | ODP_IMPLICIT, ..rxe() };
        result_of(&implicit, &["-O", "-P"]).unwrap();
    }

    #[test]
    fn sizes_above_the_limits_are_reported_with_the_limit() {
        for (args, words) in [
            (["-s", "0x800001"], "longer than port 1 carries (max_msg_sz 8388608)"),
            (["-m", "2048"], "above that of port 1 (active_mtu 1024)"),
            (["-r", "2000000"], "more than a queue pair holds (max_qp_wr 1048576)"),
            (["-r", "32767"], "more entries than a CQ has (max_cqe 32767)"),
        ] {
            let text = result_of(&rxe(), &args).unwrap_err();
            assert!(text.contains(words), "{text}");
        }
        result_of(&rxe(), &["-r", "32766"]).unwrap();
    }

    #[test]
    fn datagram_is_one_packet() {
        result_of_kind("ud", &rxe(), &["-s", "1024"]).unwrap();
        assert_eq!(
            result_of_kind("ud", &rxe(), &["-s", "1025"]).unwrap_err(),
            "rxe0: a datagram of 1025 bytes (-s) is longer than a packet of port 1 (active_mtu 1024)"
        );
    }

    #[test]
    fn xrc_requires_device_support() {
        let result_of = |limits: &DeviceLimits, args: &[&str]| {
            let line = ["bareverbs", "pingpong", "xsrq"].into_iter().chain(args.iter().copied());
            let Command::Pingpong(Pingpong::Xsrq(requested)) = Cli::try_parse_from(line).unwrap().command
            else {
                panic!("not a ping-pong over XRC")
            };
            limits.check_xrc(&requested).map_err(|unsupported| unsupported.to_string())
        };
        let text = result_of(&rxe(), &[]).unwrap_err();
        assert_eq!(text, "rxe0: no extended reliable connections (XRC), which xsrq needs");
        let adapter = DeviceLimits { xrc: true, max_srq_wr: 100, ..rxe() };
        result_of(&adapter, &["-c", "100"]).unwrap();
        for (args, words) in [
            (&["-c", "101"][..], "101 clients (-c) are more"),
            (&["-o"], "no on-demand paging for send and shared receive on XRC (xrc_odp_caps)"),
            (&["-s", "0x800001"], "longer than port 1 carries"),
            (&["-m", "2048"], "above that of port 1"),
        ] {
            let text = result_of(&adapter, args).unwrap_err();
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn shared_receive_queues_have_limits_of_their_own() {
        let small = DeviceLimits { max_srq_wr: 100, max_qp: 20, ..rxe() };
        let text = result_of_kind("srq", &small, &["-r", "101"]).unwrap_err();
        assert!(text.contains("more than an SRQ holds (max_srq_wr 100)"), "{text}");
        let text = result_of_kind("srq", &small, &["-r", "100", "-q", "21"]).unwrap_err();
        assert!(text.contains("21 queue pairs (-q) are more than there can be (max_qp 20)"), "{text}");
        let text = result_of_kind("srq", &rxe(), &["-r", "32752"]).unwrap_err();
        assert!(text.contains("32752 receives (-r) and 16 sends complete into more entries"), "{text}");
        result_of_kind("srq", &rxe(), &["-r", "32751"]).unwrap();
        let none = DeviceLimits { max_srq_wr: 0, ..rxe() };
        assert_eq!(result_of_kind("srq", &none, &[]).unwrap_err(), "rxe0: no SRQs (max_srq)");
        let text = result_of_kind("srq", &rxe(), &["-o"]).unwrap_err();
        assert!(text.contains("for both send and shared receive on RC"), "{text}");
        result_of_kind("srq", &DeviceLimits { odp_rc: ODP_SEND | ODP_SRQ_RECV, ..rxe() }, &["-o"]).unwrap();
    }
}
