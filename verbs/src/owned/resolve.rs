//! The resolution of a peer's Ethernet address, which the kernel does in CREATE_AH and MODIFY_QP.

use std::time::{Duration, Instant};

use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::QpState;
use rustix::io::Errno;

use crate::qp::{ConnectAttr, Qp, Rc};
use crate::{Address, Error, Result};

/// How long the resolution of a peer's Ethernet address is repeated.
///
/// On RoCE the kernel waits one second for the answer of the neighbour (`rdma_addr_find_l2_eth_by_grh`
/// in `addr.c`), and then fails with `ETIMEDOUT`. One lost packet is enough for that, because it sends a
/// solicitation every second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolveTimeout(pub(crate) Duration);

impl Default for ResolveTimeout {
    /// The kernel gives up a neighbour after three solicitations.
    fn default() -> Self {
        Self(Duration::from_secs(3))
    }
}

impl ResolveTimeout {
    pub(crate) fn start(self) -> Resolution {
        Resolution { end: Instant::now().checked_add(self.0) }
    }
}

/// A resolution whose time limit runs.
pub(crate) struct Resolution {
    /// `None` if the limit overflows `Instant`: no limit.
    end: Option<Instant>,
}

impl Resolution {
    /// Whether another try follows one that failed with `error`.
    pub(crate) fn goes_on(&self, error: &Error) -> bool {
        error.errno() == Some(Errno::TIMEDOUT) && self.end.is_none_or(|end| Instant::now() < end)
    }

    /// Whether another try follows one of [`Qp::connect`] that failed with `error`. The kernel
    /// resolves the address in the transition to RTR, whose failure leaves the QP in INIT.
    pub(crate) fn connect_goes_on<P: Provider>(&self, qp: &Qp<Rc, P>, error: &Error) -> bool {
        qp.state() == QpState::INIT && self.goes_on(error)
    }

    /// Repeats `attempt` until it succeeds, fails with another error, or the limit has passed.
    pub(crate) fn run<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match attempt() {
                Err(error) if self.goes_on(&error) => {}
                ended => return ended,
            }
        }
    }
}

/// Connects the QP by [`Qp::connect`], whose resolution of the peer is repeated.
pub(super) fn connect<P: Provider>(
    qp: &mut Qp<Rc, P>,
    local: &Address,
    remote: &Address,
    attr: &ConnectAttr,
    timeout: ResolveTimeout,
) -> Result<()> {
    let resolution = timeout.start();
    loop {
        match qp.connect(local, remote, attr) {
            Err(error) if resolution.connect_goes_on(qp, &error) => {}
            ended => return ended,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use bareverbs_provider::device::IoctlError;

    use super::*;
    use crate::Gid;
    use crate::testing::{Plain, succeed_ioctls};
    use crate::values::Mtu;

    fn failed(errno: Errno) -> Error {
        Error::system("resolving", errno)
    }

    /// The number of tries that end with these errors, one after the other, and then succeed.
    fn tries(timeout: Duration, errors: &[Errno]) -> (usize, Result<()>) {
        let mut tries = 0;
        let ended = ResolveTimeout(timeout).start().run(|| {
            tries += 1;
            errors.get(tries - 1).map_or(Ok(()), |errno| Err(failed(*errno)))
        });
        (tries, ended)
    }

    #[test]
    fn silent_neighbour_is_asked_again_within_the_limit() {
        let late = [Errno::TIMEDOUT, Errno::TIMEDOUT];
        for limit in [Duration::from_secs(600), Duration::MAX] {
            assert!(matches!(tries(limit, &late), (3, Ok(()))));
        }
        let (count, ended) = tries(Duration::ZERO, &late);
        assert_eq!((count, ended.unwrap_err().errno()), (1, Some(Errno::TIMEDOUT)));
    }

    #[test]
    fn peer_without_a_route_is_not_asked_again() {
        for errno in [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::NODEV, Errno::INVAL] {
            let (count, ended) = tries(Duration::from_secs(600), &[errno]);
            assert_eq!((count, ended.unwrap_err().errno()), (1, Some(errno)));
        }
    }

    #[test]
    fn limit_is_that_of_the_kernel_for_a_neighbour() {
        assert_eq!(ResolveTimeout::default().0, Duration::from_secs(3));
    }

    /// The states that [`connect`] sets if the commands end so, the later ones with success, and its
    /// error.
    fn connected(
        state: QpState,
        timeout: Duration,
        answers: &[Result<(), Errno>],
    ) -> (Vec<QpState>, Option<Errno>, usize) {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        qp.assume_state(state);
        let answers = answers.iter().map(|ended| ended.map_err(|errno| IoctlError::new("ModifyQp", errno)));
        plain.log().answers.extend(answers);
        let gid = "fe80::1".parse::<Gid>().unwrap();
        let address = Address { mtu: Mtu::Mtu256, rd_atomic: 0, ..Address::new(gid, 1) };
        let ended = connect(&mut qp, &address, &address, &ConnectAttr::new(1, 0), ResolveTimeout(timeout));
        let mut log = plain.log();
        (std::mem::take(&mut log.states), ended.err().and_then(|error| error.errno()), log.answers.len())
    }

    #[test]
    fn connect_is_repeated_after_a_timeout_that_leaves_the_qp_in_init() {
        let test = || {
            succeed_ioctls();
            let (long, late) = (Duration::from_secs(600), Err(Errno::TIMEDOUT));
            let connects = [QpState::RTR, QpState::RTS];
            assert_eq!(connected(QpState::INIT, long, &[]), (connects.into(), None, 0));
            assert_eq!(connected(QpState::INIT, long, &[late, late]), (connects.into(), None, 0));
            let all = [&[QpState::INIT][..], &connects].concat();
            assert_eq!(connected(QpState::RESET, long, &[Ok(()), late]), (all, None, 0));
            for (state, timeout, answers, states, errno) in [
                // The limit has passed.
                (QpState::INIT, Duration::ZERO, [late, late], vec![], Errno::TIMEDOUT),
                (QpState::INIT, long, [Err(Errno::NETUNREACH), late], vec![], Errno::NETUNREACH),
                // The QP is not in INIT.
                (QpState::RESET, long, [late, late], vec![], Errno::TIMEDOUT),
            ] {
                assert_eq!(connected(state, timeout, &answers), (states, Some(errno), 1));
            }
            let answers = [Ok(()), late, late];
            let ended = (vec![QpState::RTR], Some(Errno::TIMEDOUT), 1);
            assert_eq!(connected(QpState::INIT, long, &answers), ended);
        };
        std::thread::spawn(test).join().unwrap();
    }
}
