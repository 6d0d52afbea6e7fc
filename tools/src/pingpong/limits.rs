//! Compares the requested features with the device's capabilities before any object is created.

use bareverbs::Result;
use bareverbs::device::{DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps};
use bareverbs::values::Mtu;

use crate::cli::pingpong::{Config, Kind, XsrqPingpong};
use crate::session::path::LocalPort;

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
    pub(crate) odp_general: OdpGeneralCaps,
    pub(crate) odp_rc: OdpTransportCaps,
    pub(crate) odp_xrc: OdpTransportCaps,
    pub(crate) xrc: bool,
    pub(crate) timestamp_mask: u64,
    pub(crate) max_dm_size: u64,
    pub(crate) cc_dma_bounce: bool,
}

/// A requested feature that the device does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {what}")]
pub(crate) struct Unsupported {
    device: String,
    what: String,
}

impl DeviceLimits {
    pub(crate) fn query(port: &LocalPort) -> Result<Self> {
        let attr = port.context.query_device()?;
        Ok(Self {
            device: port.context.device().name().into(),
            port: port.number,
            max_msg_sz: port.attr.max_msg_sz,
            active_mtu: port.attr.active_mtu,
            max_cqe: attr.max_cqe,
            max_qp: attr.max_qp,
            max_qp_wr: attr.max_qp_wr,
            max_srq_wr: if attr.max_srq == 0 { 0 } else { attr.max_srq_wr },
            odp_general: attr.odp_general_caps,
            odp_rc: attr.rc_odp_caps,
            odp_xrc: attr.xrc_odp_caps,
            xrc: attr.device_cap_flags.contains(DeviceCapFlags::XRC),
            timestamp_mask: attr.completion_timestamp_mask,
            max_dm_size: attr.max_dm_size,
            cc_dma_bounce: attr.device_cap_flags.contains(DeviceCapFlags::CC_DMA_BOUNCE),
        })
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
                "a datagram of {size} bytes (-s) exceeds the MTU of port {port} (active_mtu {max})"
            ));
        }
        if let Some(problem) = requested.mtu.and_then(|mtu| self.mtu_too_large(mtu)) {
            return Some(problem);
        }
        match (requested.kind, self.max_srq_wr) {
            (Kind::Srq, 0) => return Some("the device has no SRQs (max_srq)".into()),
            (Kind::Srq, max) if depth > max => {
                return Some(format!(
                    "{depth} receives (-r) exceed the capacity of an SRQ (max_srq_wr {max})"
                ));
            }
            (Kind::Srq, _) => {}
            _ if depth > self.max_qp_wr => {
                let max = self.max_qp_wr;
                return Some(format!("{depth} receives (-r) exceed the capacity of a QP (max_qp_wr {max})"));
            }
            _ => {}
        }
        if requested.num_qp > self.max_qp {
            let (qps, max) = (requested.num_qp, self.max_qp);
            return Some(format!("{qps} QPs (-q) exceed the limit of the device (max_qp {max})"));
        }
        if u64::from(depth) + u64::from(requested.num_qp) > self.max_cqe.into() {
            let max = self.max_cqe;
            let sends = if requested.num_qp == 1 {
                "a send".to_owned()
            } else {
                format!("{} sends", requested.num_qp)
            };
            return Some(format!(
                "{depth} receives (-r) and {sends} exceed the capacity of a CQ (max_cqe {max})"
            ));
        }
        None
    }

    fn message_too_long(&self, size: u32) -> Option<String> {
        let (port, max) = (self.port, self.max_msg_sz);
        (size > max).then(|| {
            format!("a message of {size} bytes (-s) exceeds the maximum of port {port} (max_msg_sz {max})")
        })
    }

    fn mtu_too_large(&self, mtu: Mtu) -> Option<String> {
        let (port, max) = (self.port, self.active_mtu);
        (mtu > max).then(|| format!("path MTU {mtu} (-m) exceeds the MTU of port {port} (active_mtu {max})"))
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
        if !self.xrc {
            return Some("xsrq requires XRC, which the device does not support".into());
        }
        let has_odp = self.odp_general.contains(OdpGeneralCaps::SUPPORT)
            && self.odp_xrc.contains(OdpTransportCaps::SEND | OdpTransportCaps::SRQ_RECV);
        if requested.odp && !has_odp {
            return Some(
                "-o requires on-demand paging for sends and SRQ receives on XRC (xrc_odp_caps)".into(),
            );
        }
        (requested.clients > self.max_srq_wr).then(|| {
            let (clients, max) = (requested.clients, self.max_srq_wr);
            format!("{clients} clients (-c) exceed the capacity of an SRQ (max_srq_wr {max})")
        })
    }

    fn missing(&self, requested: &Config<'_>) -> Option<String> {
        if requested.on_demand() {
            if !self.odp_general.contains(OdpGeneralCaps::SUPPORT) {
                return Some("-o and -O require on-demand paging (ODP_SUPPORT)".into());
            }
            let (recv, what) = match requested.kind {
                Kind::Srq => (OdpTransportCaps::SRQ_RECV, "sends and SRQ receives"),
                _ => (OdpTransportCaps::RECV, "sends and receives"),
            };
            if !self.odp_rc.contains(OdpTransportCaps::SEND | recv) {
                return Some(format!("-o and -O require on-demand paging for {what} on RC (rc_odp_caps)"));
            }
        }
        if requested.iodp && !self.odp_general.contains(OdpGeneralCaps::SUPPORT_IMPLICIT) {
            return Some("-O requires implicit on-demand paging (ODP_SUPPORT_IMPLICIT)".into());
        }
        if requested.ts && self.timestamp_mask == 0 {
            return Some("-t requires completion timestamps (completion_timestamp_mask)".into());
        }
        if requested.dm && self.max_dm_size == 0 {
            return Some("-j requires device memory (max_dm_size)".into());
        }
        // Other devices reach all memory. Doorbell records stay in memory of the library.
        if requested.allow_cc_unprotected && self.cc_dma_bounce {
            return Some("-U: doorbell records can't be in unprotected memory (CC_DMA_BOUNCE)".into());
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
            odp_general: OdpGeneralCaps::SUPPORT,
            odp_rc: OdpTransportCaps::SEND | OdpTransportCaps::RECV,
            odp_xrc: OdpTransportCaps::empty(),
            xrc: false,
            timestamp_mask: 0,
            max_dm_size: 0,
            cc_dma_bounce: false,
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
        result_of(&rxe(), &["-U"]).unwrap();
    }

    #[test]
    fn unsupported_features_name_the_option() {
        for (option, missing) in [
            ("-O", "rxe0: -O requires implicit on-demand paging (ODP_SUPPORT_IMPLICIT)"),
            ("-t", "rxe0: -t requires completion timestamps (completion_timestamp_mask)"),
            ("-j", "rxe0: -j requires device memory (max_dm_size)"),
        ] {
            assert_eq!(result_of(&rxe(), &[option]).unwrap_err(), missing);
        }
    }

    #[test]
    fn unprotected_memory_is_refused_where_the_device_needs_it() {
        let confidential = DeviceLimits { cc_dma_bounce: true, ..rxe() };
        let text = result_of(&confidential, &["-U"]).unwrap_err();
        assert_eq!(text, "rxe0: -U: doorbell records can't be in unprotected memory (CC_DMA_BOUNCE)");
    }

    #[test]
    fn odp_follows_the_capabilities() {
        let none =
            DeviceLimits { odp_general: OdpGeneralCaps::empty(), odp_rc: OdpTransportCaps::empty(), ..rxe() };
        for args in [&["-o"][..], &["-o", "-P"], &["-O"]] {
            assert_eq!(
                result_of(&none, args).unwrap_err(),
                "rxe0: -o and -O require on-demand paging (ODP_SUPPORT)"
            );
        }
        let send_only = DeviceLimits { odp_rc: OdpTransportCaps::SEND, ..rxe() };
        assert!(result_of(&send_only, &["-o"]).unwrap_err().contains("for sends and receives on RC"));
        result_of(&none, &[]).unwrap();
        let both = OdpGeneralCaps::SUPPORT | OdpGeneralCaps::SUPPORT_IMPLICIT;
        let implicit = DeviceLimits { odp_general: both, ..rxe() };
        result_of(&implicit, &["-O", "-P"]).unwrap();
    }

    #[test]
    fn sizes_above_the_limits_are_reported_with_the_limit() {
        for (args, words) in [
            (["-s", "0x800001"], "exceeds the maximum of port 1 (max_msg_sz 8388608)"),
            (["-m", "2048"], "exceeds the MTU of port 1 (active_mtu 1024)"),
            (["-r", "2000000"], "exceed the capacity of a QP (max_qp_wr 1048576)"),
            (["-r", "32767"], "exceed the capacity of a CQ (max_cqe 32767)"),
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
            "rxe0: a datagram of 1025 bytes (-s) exceeds the MTU of port 1 (active_mtu 1024)"
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
        assert_eq!(text, "rxe0: xsrq requires XRC, which the device does not support");
        let adapter = DeviceLimits { xrc: true, max_srq_wr: 100, ..rxe() };
        result_of(&adapter, &["-c", "100"]).unwrap();
        for (args, words) in [
            (&["-c", "101"][..], "101 clients (-c) exceed"),
            (&["-o"], "-o requires on-demand paging for sends and SRQ receives on XRC (xrc_odp_caps)"),
            (&["-s", "0x800001"], "exceeds the maximum of port 1"),
            (&["-m", "2048"], "exceeds the MTU of port 1"),
        ] {
            let text = result_of(&adapter, args).unwrap_err();
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn shared_receive_queues_have_limits_of_their_own() {
        let small = DeviceLimits { max_srq_wr: 100, max_qp: 20, ..rxe() };
        let text = result_of_kind("srq", &small, &["-r", "101"]).unwrap_err();
        assert!(text.contains("exceed the capacity of an SRQ (max_srq_wr 100)"), "{text}");
        let text = result_of_kind("srq", &small, &["-r", "100", "-q", "21"]).unwrap_err();
        assert!(text.contains("21 QPs (-q) exceed the limit of the device (max_qp 20)"), "{text}");
        let text = result_of_kind("srq", &rxe(), &["-r", "32752"]).unwrap_err();
        assert!(text.contains("32752 receives (-r) and 16 sends exceed"), "{text}");
        result_of_kind("srq", &rxe(), &["-r", "32751"]).unwrap();
        let none = DeviceLimits { max_srq_wr: 0, ..rxe() };
        assert_eq!(result_of_kind("srq", &none, &[]).unwrap_err(), "rxe0: the device has no SRQs (max_srq)");
        let text = result_of_kind("srq", &rxe(), &["-o"]).unwrap_err();
        assert!(text.contains("for sends and SRQ receives on RC"), "{text}");
        let shared = OdpTransportCaps::SEND | OdpTransportCaps::SRQ_RECV;
        result_of_kind("srq", &DeviceLimits { odp_rc: shared, ..rxe() }, &["-o"]).unwrap();
    }
}
