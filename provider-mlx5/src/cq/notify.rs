//! Arming of CQs.

use bareverbs_provider::barrier;

use super::Mlx5Cq;
use crate::cq_ring::COUNT;
use crate::cq_ring::mini_cqe::is_title;
use crate::cqe::CqeOpcode;
use crate::doorbell::Word;

/// Bit of `op_own`: the sender requested a solicited event.
const SOLICITED: u8 = 1 << 1;

/// The condition that the CQ is armed for: any completion, or a solicited one or an error.
#[doc(alias = "MLX5_CQ_DB_REQ_NOT")]
const ARM_ANY: u32 = 0;
#[doc(alias = "MLX5_CQ_DB_REQ_NOT_SOL")]
const ARM_SOLICITED: u32 = 1 << 24;

/// The condition that the CQ was last armed for, until the event is known to have been raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Armed {
    Not,
    /// Any CQE from this index on.
    Any(u32),
    /// A solicited CQE or an error CQE from this index on.
    Solicited(u32),
}

impl Mlx5Cq {
    /// Counts the event that the CQ is armed for, if one of the CQEs before `end` has raised it.
    /// All of these CQEs are written and still in the ring.
    pub(super) fn count_event(&mut self, end: u32) {
        let raised = match self.armed {
            Armed::Not => false,
            Armed::Any(first) => first != end,
            Armed::Solicited(first) => (0..end.wrapping_sub(first) & COUNT).any(|count| {
                let op_own = self.ring.entry(first.wrapping_add(count)).op_own();
                op_own & SOLICITED != 0 || op_own >> 4 >= CqeOpcode::REQ_ERR.0
            }),
        };
        if raised {
            self.events = self.events.wrapping_add(1);
            self.armed = Armed::Not;
        } else if let Armed::Solicited(first) = &mut self.armed {
            *first = end;
        }
    }

    /// Expands the compressed CQEs in the ring; returns the index of the first CQE that the device
    /// has not written.
    pub(super) fn expand_all(&mut self) -> u32 {
        let mut end = self.consumer;
        while end.wrapping_sub(self.consumer) < self.ring.entries() {
            let op_own = self.ring.entry(end).op_own();
            if !self.ring.written(end, op_own) {
                break;
            }
            barrier::after_device_wrote();
            if is_title(op_own) {
                self.ring.expand(end);
            }
            end = end.wrapping_add(1);
        }
        end & COUNT
    }

    /// Arms the CQ for the next completion, or the next solicited one or failure.
    pub(super) fn req_notify(&mut self, solicited_only: bool) {
        // An event that the device raises from here on makes this arm command outdated. The CQE of
        // that event is not polled yet, so the caller finds it.
        let end = self.expand_all();
        self.count_event(end);
        let what = if solicited_only { ARM_SOLICITED } else { ARM_ANY };
        let command = (self.events & 3) << 28 | what | self.consumer;
        self.armed = if solicited_only { Armed::Solicited(self.consumer) } else { Armed::Any(self.consumer) };
        // If only some CQEs raise the event, each CQE must be checked on the slow path.
        self.clear_cached_records();
        self.shared.doorbell.set(Word::Second, command);
        self.uar.arm(u64::from(command) << 32 | u64::from(self.shared.cqn));
    }
}
