//! What is asked of a device against what it offers, before anything is made on it.

use bareverbs::{DeviceAttr, Mtu, PortAttr};

use crate::cli::RcPingpong;

const ODP_SUPPORT: u64 = 1 << 0;
const ODP_IMPLICIT: u64 = 1 << 1;
const ODP_SEND: u32 = 1 << 0;
const ODP_RECV: u32 = 1 << 1;

/// What a device and its port offer to a ping-pong.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) max_msg_sz: u32,
    pub(crate) active_mtu: Mtu,
    pub(crate) max_cqe: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) odp_general: u64,
    pub(crate) odp_rc: u32,
    pub(crate) timestamp_mask: u64,
    pub(crate) max_dm_size: u64,
}

/// Why a device can't do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {what}")]
pub(crate) struct Unable {
    device: String,
    what: String,
}

impl Offer {
    pub(crate) fn new(device: &str, attr: &DeviceAttr, port: u8, port_attr: &PortAttr) -> Self {
        Self {
            device: device.into(),
            port,
            max_msg_sz: port_attr.max_msg_sz,
            active_mtu: port_attr.active_mtu,
            max_cqe: attr.max_cqe,
            max_qp_wr: attr.max_qp_wr,
            odp_general: attr.odp_general_caps.bits(),
            odp_rc: attr.rc_odp_caps.bits(),
            timestamp_mask: attr.completion_timestamp_mask,
            max_dm_size: attr.max_dm_size,
        }
    }

    /// Finds the first thing asked for that is not there.
    pub(crate) fn admit(&self, asked: &RcPingpong) -> Result<(), Unable> {
        match self.objection(asked) {
            None => Ok(()),
            Some(what) => Err(Unable { device: self.device.clone(), what }),
        }
    }

    fn objection(&self, asked: &RcPingpong) -> Option<String> {
        let port = self.port;
        if asked.size > self.max_msg_sz {
            return Some(format!(
                "a message of {} bytes (-s) is longer than port {port} carries (max_msg_sz {})",
                asked.size, self.max_msg_sz
            ));
        }
        if asked.mtu > self.active_mtu {
            return Some(format!(
                "a path MTU of {} (-m) is above that of port {port} (active_mtu {})",
                asked.mtu, self.active_mtu
            ));
        }
        if asked.rx_depth > self.max_qp_wr {
            return Some(format!(
                "{} receives (-r) are more than a queue pair holds (max_qp_wr {})",
                asked.rx_depth, self.max_qp_wr
            ));
        }
        if asked.rx_depth >= self.max_cqe {
            return Some(format!(
                "{} receives (-r) and a send complete into more entries than a completion queue has (max_cqe {})",
                asked.rx_depth, self.max_cqe
            ));
        }
        if asked.on_demand() {
            if self.odp_general & ODP_SUPPORT == 0 {
                return Some("no on-demand paging (ODP_SUPPORT), which -o and -O need".into());
            }
            if self.odp_rc & (ODP_SEND | ODP_RECV) != ODP_SEND | ODP_RECV {
                return Some(
                    "no on-demand paging for both send and receive on RC (rc_odp_caps), which -o and -O need"
                        .into(),
                );
            }
        }
        if asked.iodp {
            return Some(match self.odp_general & ODP_IMPLICIT {
                0 => "no implicit on-demand paging (ODP_SUPPORT_IMPLICIT), which -O needs".into(),
                _ => "bareverbs has no implicit on-demand regions yet, which -O needs".into(),
            });
        }
        if asked.ts {
            return Some(match self.timestamp_mask {
                0 => "no completion timestamps (completion_timestamp_mask), which -t needs".into(),
                _ => "bareverbs does not read completion timestamps yet, which -t needs".into(),
            });
        }
        if asked.dm {
            return Some(match self.max_dm_size {
                0 => "no device memory (max_dm_size), which -j needs".into(),
                _ => "bareverbs does not allocate device memory yet, which -j needs".into(),
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command, Pingpong};
    use clap::Parser;

    /// Soft-RoCE of 7.2 over an interface with an MTU of 1500.
    fn rxe() -> Offer {
        Offer {
            device: "rxe0".into(),
            port: 1,
            max_msg_sz: 0x80_0000,
            active_mtu: Mtu::Mtu1024,
            max_cqe: 32767,
            max_qp_wr: 1_048_576,
            odp_general: ODP_SUPPORT,
            odp_rc: ODP_SEND | ODP_RECV,
            timestamp_mask: 0,
            max_dm_size: 0,
        }
    }

    fn verdict(offer: &Offer, args: &[&str]) -> Result<(), String> {
        let line = ["bareverbs", "pingpong", "rc"].iter().chain(args);
        let Command::Pingpong(Pingpong::Rc(asked)) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not a ping-pong")
        };
        offer.admit(&asked).map_err(|unable| unable.to_string())
    }

    #[test]
    fn soft_roce_does_most_of_it() {
        verdict(&rxe(), &["-s", "0x800000", "-m", "1024", "-r", "8000", "-e", "-o", "-P", "-c", "-N"])
            .unwrap();
    }

    #[test]
    fn what_is_missing_is_named_with_the_option() {
        for (option, missing) in [
            ("-O", "rxe0: no implicit on-demand paging (ODP_SUPPORT_IMPLICIT), which -O needs"),
            ("-t", "rxe0: no completion timestamps (completion_timestamp_mask), which -t needs"),
            ("-j", "rxe0: no device memory (max_dm_size), which -j needs"),
        ] {
            assert_eq!(verdict(&rxe(), &[option]).unwrap_err(), missing);
        }
    }

    #[test]
    fn on_demand_paging_follows_the_capabilities() {
        let none = Offer { odp_general: 0, odp_rc: 0, ..rxe() };
        for args in [&["-o"][..], &["-o", "-P"], &["-O"]] {
            assert_eq!(
                verdict(&none, args).unwrap_err(),
                "rxe0: no on-demand paging (ODP_SUPPORT), which -o and -O need"
            );
        }
        let send_only = Offer { odp_rc: ODP_SEND, ..rxe() };
        assert!(verdict(&send_only, &["-o"]).unwrap_err().contains("for both send and receive on RC"));
        verdict(&none, &[]).unwrap();
    }

    #[test]
    fn sizes_beyond_the_port_and_the_device_are_named_with_the_limit() {
        for (args, words) in [
            (["-s", "0x800001"], "longer than port 1 carries (max_msg_sz 8388608)"),
            (["-m", "2048"], "above that of port 1 (active_mtu 1024)"),
            (["-r", "2000000"], "more than a queue pair holds (max_qp_wr 1048576)"),
            (["-r", "32767"], "more entries than a completion queue has (max_cqe 32767)"),
        ] {
            let text = verdict(&rxe(), &args).unwrap_err();
            assert!(text.contains(words), "{text}");
        }
        verdict(&rxe(), &["-r", "32766"]).unwrap();
    }
}
