//! Ports whose link is down, as the cause of a failed operation.

use std::fmt;
use std::fs;

use bareverbs_provider::command;
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::{PortState, WcStatus};

use crate::context::{Context, ContextInner};
use crate::error::{Error, describe};
use crate::provider;
use crate::values::PortNum;

/// A port whose link is down, as [`Context::link_down`] found it. `Display` names the port, the state
/// and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkDown {
    /// The name of the device.
    pub device: String,
    /// The port.
    pub port: PortNum,
    /// The state of the port. It may still be ACTIVE just after the network interface was set down.
    pub state: PortState,
    /// The network interface of the port, if it has one.
    pub netdev: Option<String>,
}

impl fmt::Display for LinkDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, port, state, netdev } = self;
        // An interface that is down takes its port down.
        let state = if *state == PortState::ACTIVE { PortState::DOWN } else { *state };
        write!(f, "the link is down: port {port} of {device} is {state:?}: ")?;
        match (state, netdev) {
            (PortState::INIT | PortState::ARMED, _) => {
                f.write_str("no subnet manager has configured it: start opensm, or check the switch's")
            }
            (_, Some(netdev)) => write!(
                f,
                "set its network interface up (`ip link set up dev {netdev}`); if it is, check the cable and \
                 the port of the switch"
            ),
            (_, None) => f.write_str("check the cable and the port of the switch"),
        }
    }
}

impl<P: Provider> Context<P> {
    /// Whether the link of a port is down: its state is not ACTIVE, or its network interface is set
    /// down. An operation that failed may have failed for this reason.
    ///
    /// `None` if the link is up, or the state of the port can't be queried.
    ///
    /// ```
    /// # let context = bareverbs_test_support::example::context()?;
    /// # let error = context.pkey_index(1, 0x7000).unwrap_err();
    /// match context.link_down(1) {
    ///     Some(down) => eprintln!("{error}: {down}"),
    ///     None => eprintln!("{error}"),
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    #[must_use]
    pub fn link_down(&self, port: impl Into<PortNum>) -> Option<LinkDown> {
        look(self.inner(), self.check_port(port).ok()?)
    }

    /// The error of a completion that has failed: [`Error::Completion`] with the driver of the device,
    /// and with the port whose link is down if this may be the cause. `verb` names the operation. On
    /// Soft-RoCE, `status` is that of [`Qp::failure`](crate::qp::Qp::failure), if the QP has one:
    /// since Linux 6.4 the completion of the request that failed says `WR_FLUSH_ERR`.
    #[must_use]
    pub fn completion_error(&self, verb: &'static str, status: WcStatus, vendor_err: u32) -> Error {
        let (driver, link_down) = (self.driver(), cause(self.inner(), status));
        Error::Completion { verb, status, vendor_err, driver, link_down }
    }

    /// Describes the status of a completion and its causes on this device, the most likely first. If
    /// the link of the port is down and this may be the cause, it is the only one.
    ///
    /// ```
    /// # let context = bareverbs::Device::find("soft0")?.open()?;
    /// println!("{}", context.explain(bareverbs::WcStatus::WR_FLUSH_ERR));
    /// # Ok::<(), bareverbs::Error>(())
    /// ```
    #[doc(alias = "ibv_wc_status_str")]
    #[must_use]
    pub fn explain(&self, status: WcStatus) -> String {
        // `AnyProvider` has no causes of its own.
        let of_driver = P::explain(status).or_else(|| provider::explain(self.driver(), status));
        describe(status, of_driver, cause(self.inner(), status))
    }
}

/// The port that is down, if this may be the cause of a completion with `status`. On a device with
/// several ports only if the links of all are down, because the port of the QP is not known.
pub(crate) fn cause(context: &ContextInner, status: WcStatus) -> Option<PortNum> {
    let is_possible = status == WcStatus::RETRY_EXC_ERR || context.link_down_statuses.contains(&status);
    let ports = || (1..=context.device_attr.base.phys_port_cnt).map(PortNum);
    if is_possible && ports().all(|port| look(context, port).is_some()) { ports().next() } else { None }
}

fn look(context: &ContextInner, port: PortNum) -> Option<LinkDown> {
    let state = command::query_port(&context.file, port.0).ok()?.legacy_resp.state;
    let device = context.device.name();
    let netdev = netdev(device, port);
    // rxe reports ACTIVE for a moment after the interface was set down.
    if state == PortState::ACTIVE && !netdev.as_deref().is_some_and(is_set_down) {
        return None;
    }
    Some(LinkDown { device: device.to_owned(), port, state, netdev })
}

/// The network interface of a RoCE port: that of its default GID.
fn netdev(device: &str, port: PortNum) -> Option<String> {
    let file = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/0");
    Some(fs::read_to_string(file).ok()?.trim_end().to_owned())
}

fn is_set_down(netdev: &str) -> bool {
    lacks_up(&fs::read_to_string(format!("/sys/class/net/{netdev}/flags")).unwrap_or_default())
}

/// Whether the flags of a network interface, as in sysfs, are known and lack `IFF_UP`.
fn lacks_up(flags: &str) -> bool {
    const IFF_UP: u32 = 1;
    let flags = flags.trim().strip_prefix("0x").map(|digits| u32::from_str_radix(digits, 16));
    matches!(flags, Some(Ok(flags)) if flags & IFF_UP == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plain;

    #[test]
    fn context_of_any_provider_explains_by_its_causes() {
        let domain = Plain::default().domain();
        let text = domain.context().explain(WcStatus::FATAL_ERR);
        assert_eq!(text, "the device failed; on plain memory also: never");
    }

    #[test]
    fn text_names_the_port_and_the_remedy() {
        let text = |state, netdev: Option<&str>| {
            let netdev = netdev.map(str::to_owned);
            LinkDown { device: "rxe0".into(), port: PortNum(1), state, netdev }.to_string()
        };
        let down = "the link is down: port 1 of rxe0 is DOWN: set its network interface up (`ip link set up dev \
                    veth0`); if it is, check the cable and the port of the switch";
        assert_eq!(text(PortState::DOWN, Some("veth0")), down);
        assert_eq!(text(PortState::ACTIVE, Some("veth0")), down);
        assert!(text(PortState::DOWN, None).ends_with("DOWN: check the cable and the port of the switch"));
        assert!(text(PortState::INIT, None).contains("is INIT: no subnet manager"));
    }

    #[test]
    fn flags_of_interfaces_are_read() {
        assert!(!is_set_down("lo"));
        assert!(!is_set_down("no-such-interface"));
        assert!(lacks_up("0x1002\n") && lacks_up("0x0\n"));
        for flags in ["0x1003\n", "0x1\n", "", "0x\n", "1002\n", "down"] {
            assert!(!lacks_up(flags), "{flags:?}");
        }
    }
}
