//! Scale and endurance on real kernels: a thousand queue pairs at once, a hundred thousand regions, random verbs against a
//! model.
//!
//! `cargo xtask soak` runs the long versions in the lab, `cargo xtask test` the short ones.

pub mod generate;
pub mod model;
pub mod objects;
pub mod op;
pub mod random;
pub mod traffic;
pub mod world;

use bareverbs::{AhAttr, InitAttr, Qp, Rc, Result, RtrAttr, RtsAttr};

/// Connects two queue pairs of one port to each other, with retries that never end and waits that a slow guest needs not.
fn connect(one: &mut Qp<Rc>, other: &mut Qp<Rc>) -> Result<()> {
    let numbers = [other.qp_num(), one.qp_num()];
    for (qp, peer) in [one, other].into_iter().zip(numbers) {
        let gid = qp.pd().context().default_gid(1)?;
        let address = AhAttr::global(1, gid.gid, gid.index as u8);
        qp.init(&InitAttr::new(1))?;
        qp.ready_to_receive(&RtrAttr { min_rnr_timer: 1, ..RtrAttr::new(address, peer) })?;
        qp.ready_to_send(&RtsAttr { timeout: 18, ..RtsAttr::default() })?;
    }
    Ok(())
}
