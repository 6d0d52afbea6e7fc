//! The command `stat`.

use std::str::FromStr;

use bareverbs_netlink::CounterMask;
use clap::{Args, Subcommand};

use super::device::{LinkName, Switch};

#[derive(Debug, Args)]
pub(crate) struct Stat {
    #[command(subcommand)]
    pub(crate) action: Option<StatAction>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StatAction {
    /// Show the counters of ports
    #[command(visible_alias = "list")]
    Show {
        #[command(subcommand)]
        scope: Option<Scope>,
    },
    /// Show optional counters: the enabled ones, or all that the driver supports
    Mode {
        #[command(subcommand)]
        which: Option<Mode>,
    },
    /// Enable optional counters of a port, and disable its others
    #[command(override_usage = "bareverbs stat set link DEV/PORT optional-counters COUNTER[,COUNTER...]")]
    Set {
        #[command(flatten)]
        link: OptionalCounters,
        /// The counters, separated by commas
        #[arg(value_name = "COUNTER", value_delimiter = ',', num_args = 1, required = true)]
        counters: Vec<String>,
    },
    /// Disable all optional counters of a port
    #[command(override_usage = "bareverbs stat unset link DEV/PORT optional-counters")]
    Unset {
        #[command(flatten)]
        link: OptionalCounters,
    },
    /// Show QP counters, and bind QPs to them
    Qp {
        #[command(subcommand)]
        action: Option<QpAction>,
    },
    /// Show the counters of MRs
    Mr,
}

/// Ports to show.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Scope {
    /// Of one device or port
    Link {
        /// The device or port
        #[arg(value_name = "DEV[/PORT]")]
        link: LinkName,
    },
}

impl Scope {
    pub(crate) fn link(scope: &Option<Self>) -> Option<&LinkName> {
        scope.as_ref().map(|Self::Link { link }| link)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Mode {
    /// All that the driver supports
    Supported {
        #[command(subcommand)]
        scope: Option<Scope>,
    },
    /// The enabled ones of one device or port
    Link {
        /// The device or port
        #[arg(value_name = "DEV[/PORT]")]
        link: LinkName,
    },
}

/// `link DEV/PORT optional-counters`.
#[derive(Debug, Args)]
pub(crate) struct OptionalCounters {
    /// The word `link`
    #[arg(value_name = "link", value_parser = ["link"], hide_possible_values = true)]
    link_word: String,
    /// The port
    #[arg(value_name = "DEV/PORT")]
    pub(crate) link: LinkName,
    /// The words `optional-counters`
    #[arg(value_name = "optional-counters", value_parser = ["optional-counters"], hide_possible_values = true)]
    counters_word: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QpAction {
    /// Show QP counters with their values and QPs
    #[command(visible_alias = "list")]
    Show {
        #[command(subcommand)]
        scope: Option<Scope>,
    },
    /// Show how QPs are bound to counters
    Mode {
        #[command(subcommand)]
        scope: Option<Scope>,
    },
    /// Bind all QPs of a port automatically, or stop it
    #[command(override_usage = "bareverbs stat qp set link DEV/PORT auto CRITERIA on [OPTIONS]\n       \
                          bareverbs stat qp set link DEV/PORT auto off")]
    Set {
        /// The word `link`
        #[arg(value_name = "link", value_parser = ["link"], hide_possible_values = true)]
        link_word: String,
        /// The port
        #[arg(value_name = "DEV/PORT")]
        link: LinkName,
        /// The word `auto`
        #[arg(value_name = "auto", value_parser = ["auto"], hide_possible_values = true)]
        auto_word: String,
        /// Criteria by which QPs share a counter: type, pid or type,pid; or `off`
        #[arg(value_name = "CRITERIA")]
        criteria: Criteria,
        /// The word `on`
        #[arg(value_name = "on", value_parser = ["on"], hide_possible_values = true)]
        on: Option<String>,
        /// Include optional counters (Linux 7.2 and later)
        #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
        optional_counters: Option<Switch>,
    },
    /// Bind a QP to a counter
    #[command(override_usage = "bareverbs stat qp bind link DEV/PORT lqpn QPN [cntn COUNTER]")]
    Bind {
        #[command(flatten)]
        port: OnPort,
        /// The word `lqpn`
        #[arg(value_name = "lqpn", value_parser = ["lqpn"], hide_possible_values = true)]
        lqpn_word: String,
        /// The QPN
        #[arg(value_name = "QPN")]
        qp_num: u32,
        /// The word `cntn`
        #[arg(value_name = "cntn", value_parser = ["cntn"], hide_possible_values = true, requires = "counter")]
        cntn_word: Option<String>,
        /// The counter (default: a new one)
        #[arg(value_name = "COUNTER")]
        counter: Option<u32>,
    },
    /// Unbind a QP, or all QPs, from a counter
    #[command(override_usage = "bareverbs stat qp unbind link DEV/PORT cntn COUNTER [lqpn QPN]")]
    Unbind {
        #[command(flatten)]
        port: OnPort,
        /// The word `cntn`
        #[arg(value_name = "cntn", value_parser = ["cntn"], hide_possible_values = true)]
        cntn_word: String,
        /// The counter
        #[arg(value_name = "COUNTER")]
        counter: u32,
        /// The word `lqpn`
        #[arg(value_name = "lqpn", value_parser = ["lqpn"], hide_possible_values = true, requires = "qp_num")]
        lqpn_word: Option<String>,
        /// The QPN (default: all QPs of the counter)
        #[arg(value_name = "QPN")]
        qp_num: Option<u32>,
    },
}

/// `link DEV/PORT`.
#[derive(Debug, Args)]
pub(crate) struct OnPort {
    /// The word `link`
    #[arg(value_name = "link", value_parser = ["link"], hide_possible_values = true)]
    link_word: String,
    /// The port
    #[arg(value_name = "DEV/PORT")]
    pub(crate) link: LinkName,
}

/// Properties that the QPs of an automatic counter have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Criteria {
    /// No automatic counters.
    Off,
    Common(CounterMask),
}

impl FromStr for Criteria {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let mut mask = CounterMask::empty();
        for word in text.split(',') {
            mask |= match word {
                "type" => CounterMask::QP_TYPE,
                "pid" => CounterMask::PID,
                _ => return Err(format!("{word:?} is not `type`, `pid` or `off`")),
            };
        }
        Ok(Self::Common(mask))
    }
}
