//! Differences of the number of objects of a device.

use std::fmt;

use bareverbs_netlink::ResourceSummary;

/// The change of a device's number of objects, before and after. `Display` has the classes that
/// differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceChange(pub ResourceSummary, pub ResourceSummary);

impl fmt::Display for ResourceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(before, after) = self;
        let pairs = [
            ("pd", before.pd, after.pd),
            ("cq", before.cq, after.cq),
            ("qp", before.qp, after.qp),
            ("cm_id", before.cm_id, after.cm_id),
            ("mr", before.mr, after.mr),
            ("ctx", before.ctx, after.ctx),
            ("srq", before.srq, after.srq),
        ];
        let mut separator = "";
        for (class, before, after) in pairs.into_iter().filter(|(_, before, after)| before != after) {
            write!(f, "{separator}{class} {before} before, {after} after")?;
            separator = ", ";
        }
        Ok(())
    }
}
