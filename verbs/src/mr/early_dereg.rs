//! Writes that a driver does not wait for when it deregisters an MR.

use std::thread;
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

/// Longer than the kernel copies one packet.
const LONGEST: Duration = Duration::from_millis(100);

/// Waits until no write is in progress that the kernel began before the call and executes in an RCU
/// read-side critical section: the system call waits for a grace period.
pub(super) fn wait_for_writes() {
    #[cfg(test)]
    tests::WAITS.set(tests::WAITS.get() + 1);
    if membarrier(MembarrierCommand::Global).is_err() {
        // Kernels that run CPUs without timer ticks (`nohz_full`) have no such call, and a filter may refuse it.
        thread::sleep(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bareverbs_provider::caps::MrQuirks;

    use crate::Access;
    use crate::mr::Registration;
    use crate::testing::Plain;

    thread_local! {
        pub(super) static WAITS: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn writes_of_peers_end_before_the_memory_is_given_back() {
        let remote = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        for (dereg_is_early, access, waits) in [
            (false, remote, 0),
            (true, Access::LOCAL_WRITE, 0),
            (true, Access::REMOTE_READ, 0),
            (true, remote, 1),
        ] {
            let plain = Plain::with(MrQuirks { dereg_is_early, ..MrQuirks::default() });
            let pd = plain.domain();
            crate::testing::succeed_ioctls();
            WAITS.set(0);
            let registration = Registration::for_test(pd.domain(), access);
            // SAFETY: there is no device, and the registration is not used afterwards.
            unsafe { registration.dereg() }.unwrap();
            assert_eq!(WAITS.get(), waits, "{access:?}");
        }
    }
}
