//! Scale and endurance on real kernels: a thousand queue pairs at once, a hundred thousand regions,
//! ten thousand connections by IP address, random verbs against a model.
//!
//! `cargo xtask soak` runs the long versions in the lab, `cargo xtask test` the short ones. Random
//! verbs also run on soft devices, by seed and without a lab.

pub mod attempts;
pub mod connections;
pub mod generate;
pub mod iteration;
pub mod model;
pub mod objects;
pub mod op;
pub mod random;
pub mod soft;
pub mod traffic;

use bareverbs::ah::AhAttr;
use bareverbs::qp::{InitAttr, Qp, Rc, RtrAttr, RtsAttr};
use bareverbs::values::{AckTimeout, MinRnrTimer};
use bareverbs::{Context, Result};

/// The port of all queue pairs.
const PORT: u8 = 1;

/// The loopback path of the port.
fn loopback_path(context: &Context) -> Result<AhAttr> {
    let gid = context.default_gid(PORT)?;
    let dlid = context.query_port(PORT)?.lid;
    Ok(AhAttr { dlid, ..AhAttr::global(PORT, gid.gid, gid.index) })
}

/// Connects two queue pairs of one port, with unlimited retries and timeouts long enough for a slow
/// guest.
fn connect(one: &mut Qp<Rc>, other: &mut Qp<Rc>) -> Result<()> {
    let numbers = [other.qp_num(), one.qp_num()];
    for (qp, peer) in [one, other].into_iter().zip(numbers) {
        let address = loopback_path(qp.pd().context())?;
        qp.init(&InitAttr::new(PORT))?;
        qp.ready_to_receive(&RtrAttr {
            min_rnr_timer: MinRnrTimer::new(1).unwrap(),
            ..RtrAttr::new(address, peer)
        })?;
        qp.ready_to_send(&RtsAttr { timeout: AckTimeout::new(18).unwrap(), ..RtsAttr::default() })?;
    }
    Ok(())
}
