//! States of QPs that the kernel's connection manager moves.

use bareverbs_provider::traits::{Provider, QpControl};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};

use super::QpCore;
use crate::error::{Error, Result};
use crate::qp::attr::QpAttr;

const VERB: &str = "Qp::set_cm_state";

impl<P: Provider> QpCore<P> {
    /// As [`Qp::set_cm_state`](crate::qp::Qp::set_cm_state).
    ///
    /// # Errors
    /// As for [`Qp::set_cm_state`](crate::qp::Qp::set_cm_state).
    pub fn set_cm_state(&mut self, state: QpState) -> Result<()> {
        if !self.pd.context().capabilities().iwarp {
            let reason = "the connection manager moves QPs of iWARP devices only: use `Qp::modify`";
            return Err(Error::wrong_state(VERB, reason));
        }
        let from = self.state();
        let allowed = match state {
            // The kernel needs no move to INIT before.
            QpState::RTS => {
                matches!(from, QpState::RESET | QpState::INIT | QpState::RTR | QpState::RTS)
            }
            QpState::ERR => from != QpState::RESET,
            _ => false,
        };
        if !allowed {
            let reason = format!("the connection manager moves no QP from {from:?} to {state:?}");
            return Err(Error::wrong_state(VERB, reason));
        }
        self.kernel.state = state;
        if state == QpState::ERR {
            let attr = QpAttr { qp_state: state, ..QpAttr::default() };
            let request = attr.to_kernel(self.handle(), QpAttrMask::STATE).base;
            self.sq.modified(&request);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plain;

    #[test]
    fn connection_manager_moves_qps_of_iwarp_to_rts_and_err() {
        use QpState as S;
        let plain = Plain::default();
        plain.log().iwarp = true;
        let pd = plain.domain();
        for (from, to, allowed) in [
            (S::RESET, S::RTS, true),
            (S::INIT, S::RTS, true),
            (S::RTR, S::RTS, true),
            (S::RTS, S::RTS, true),
            (S::ERR, S::RTS, false),
            (S::RESET, S::ERR, false),
            (S::INIT, S::ERR, true),
            (S::RTS, S::ERR, true),
            (S::ERR, S::ERR, true),
            (S::RTS, S::RESET, false),
            (S::RESET, S::INIT, false),
        ] {
            let mut qp = plain.queue_pair(&pd);
            qp.assume_state(from);
            plain.log().notified.clear();
            let moved = qp.set_cm_state(to);
            assert_eq!(moved.is_ok(), allowed, "{from:?} to {to:?}: {moved:?}");
            assert_eq!(qp.state(), if allowed { to } else { from });
            let notified = allowed && to == S::ERR;
            assert_eq!(plain.log().notified, if notified { vec![S::ERR] } else { vec![] });
        }
        assert_eq!(plain.log().states, [], "no command was sent");
    }

    #[test]
    fn state_of_another_transport_is_not_the_connection_managers() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        let refused = qp.set_cm_state(QpState::ERR).unwrap_err().to_string();
        assert!(refused.contains("iWARP devices only"), "{refused}");
        assert_eq!(qp.state(), QpState::RTS);
    }

    #[test]
    fn drain_that_would_close_the_connection_is_rejected() {
        let plain = Plain::default();
        plain.log().iwarp = true;
        let mut qp = plain.queue_pair(&plain.domain());
        let refused = qp.drain().unwrap_err().to_string();
        assert!(refused.contains("closes a connection of iWARP"), "{refused}");
        assert_eq!(plain.log().states, []);
    }

    #[test]
    fn query_reports_the_known_state_if_an_iwarp_driver_reports_none() {
        let plain = Plain::default();
        plain.log().iwarp = true;
        let qp = plain.queue_pair(&plain.domain());
        crate::testing::succeed_ioctls();
        // The kernel's response stays zero, which is RESET.
        assert_eq!(qp.query().unwrap().0.qp_state, QpState::RTS);
    }
}
