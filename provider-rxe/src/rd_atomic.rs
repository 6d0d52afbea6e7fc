//! Outstanding RDMA reads and atomics (`max_rd_atomic`, `max_dest_rd_atomic`).

use bareverbs_uapi::verbs_values::QpAttrMask;
use bareverbs_uapi::write::structs::ModifyQpReq;
use bareverbs_uapi::write::types::WrOpcode;

/// Operations that count as outstanding reads and atomics (`check_init_depth` of `rxe_req.c`).
const RD_ATOMIC_OPS: u32 = bits(&[
    WrOpcode::RDMA_READ,
    WrOpcode::ATOMIC_CMP_AND_SWP,
    WrOpcode::ATOMIC_FETCH_AND_ADD,
    WrOpcode::ATOMIC_WRITE,
]);

/// A mask with one bit per opcode.
pub(crate) const fn bits(opcodes: &[WrOpcode]) -> u32 {
    let (mut bits, mut i) = (0, 0);
    while i < opcodes.len() {
        bits |= 1 << opcodes[i].0;
        i += 1;
    }
    bits
}

/// The limits on outstanding reads and atomics of a QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RdAtomic {
    /// Operations of the QP among [`RD_ATOMIC_OPS`], including while `max_rd_atomic` is 0.
    own: u32,
    /// Responder resources in the kernel (`max_dest_rd_atomic`); `None` before the first set.
    resources: Option<u8>,
}

impl RdAtomic {
    /// The initial state of a new QP with these operations.
    pub(crate) fn new(operations: u32) -> Self {
        Self { own: operations & RD_ATOMIC_OPS, resources: None }
    }

    /// Whether the QP supports the operation when `max_rd_atomic` is above 0.
    pub(crate) fn has(&self, opcode: WrOpcode) -> bool {
        self.own & 1 << opcode.0 != 0
    }

    /// Rejects a larger `max_dest_rd_atomic` than before. Kernels before 7.2 clear the new number
    /// of responder resources in an array of the old size, even after a reset (`rxe_qp_from_attr`
    /// and `free_rd_atomic_resources` in `rxe_qp.c`).
    pub(crate) fn validate_modify(&self, request: &ModifyQpReq) -> Result<(), &'static str> {
        match (self.resources, resources(request)) {
            (Some(has), Some(asked)) if asked > has => {
                Err("Soft-RoCE cannot increase max_dest_rd_atomic of a QP safely: create a new QP, or \
                 request the maximum at first")
            }
            _ => Ok(()),
        }
    }

    /// Applies a successful modify, also to `operations`: with `max_rd_atomic` 0, the kernel would
    /// never start a read or atomic.
    pub(crate) fn modified(&mut self, request: &ModifyQpReq, operations: &mut u32) {
        self.resources = resources(request).or(self.resources);
        if request.attr_mask.contains(QpAttrMask::MAX_QP_RD_ATOMIC) {
            let possible = if request.max_rd_atomic == 0 { 0 } else { self.own };
            *operations = *operations & !RD_ATOMIC_OPS | possible;
        }
    }
}

/// The responder resources that a modify allocates, if any. The kernel rounds up to a power of 2.
fn resources(request: &ModifyQpReq) -> Option<u8> {
    let asked = request.max_dest_rd_atomic;
    request.attr_mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC).then(|| match asked {
        0 => 0,
        _ => asked.checked_next_power_of_two().unwrap_or(u8::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(max_dest_rd_atomic: u8) -> ModifyQpReq {
        let attr_mask = QpAttrMask::MAX_DEST_RD_ATOMIC;
        ModifyQpReq { attr_mask, max_dest_rd_atomic, ..ModifyQpReq::zeroed() }
    }

    #[test]
    fn max_dest_rd_atomic_may_shrink_but_not_grow() {
        let mut operations = RD_ATOMIC_OPS;
        let mut rd_atomic = RdAtomic::new(operations);
        for (asked, possible) in
            [(3, true), (4, true), (5, false), (255, false), (1, true), (2, false), (0, true)]
        {
            assert_eq!(rd_atomic.validate_modify(&peers(asked)).is_ok(), possible, "{asked}");
            if possible {
                rd_atomic.modified(&peers(asked), &mut operations);
            }
        }
        assert!(rd_atomic.validate_modify(&peers(1)).is_err(), "there are no places at all");
        let other = ModifyQpReq { attr_mask: QpAttrMask::STATE, ..peers(9) };
        assert!(rd_atomic.validate_modify(&other).is_ok(), "what the mask leaves out is not asked for");
    }

    #[test]
    fn max_rd_atomic_zero_disables_reads_until_raised() {
        let others = bits(&[WrOpcode::SEND, WrOpcode::RDMA_WRITE]);
        let read = bits(&[WrOpcode::RDMA_READ]);
        let mut operations = others | read;
        let mut rd_atomic = RdAtomic::new(operations);
        let own = |max_rd_atomic| {
            let attr_mask = QpAttrMask::MAX_QP_RD_ATOMIC;
            ModifyQpReq { attr_mask, max_rd_atomic, ..ModifyQpReq::zeroed() }
        };
        rd_atomic.modified(&own(0), &mut operations);
        assert_eq!(operations, others);
        assert!(rd_atomic.has(WrOpcode::RDMA_READ) && !rd_atomic.has(WrOpcode::ATOMIC_WRITE));
        rd_atomic.modified(&own(1), &mut operations);
        assert_eq!(operations, others | read, "and no more than there were");
    }
}
