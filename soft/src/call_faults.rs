//! Calls that fail by fault injection.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use bareverbs_provider::Errno;
use bareverbs_uapi::rules::MethodRules;
use bareverbs_uapi::uverbs;
use bareverbs_uapi::verbs_values::{EventType, WcStatus};
use bareverbs_uapi::write::{self, WriteCommand, ex};

use crate::sys::lock;

/// Defines [`Method`]: the methods, their ioctls and write commands, and the errnos that they may return.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident: [$($ioctl:ty),*], [$($command:ty),*], $errnos:expr;)*) => {
        /// A call to a device, for [`SoftDevice::fail_call`](crate::SoftDevice::fail_call).
        ///
        /// A failed call has no effect. The errors are restricted to those that a program, its
        /// provider and the kernel agree about:
        ///
        /// | methods | errnos | reason |
        /// |---|---|---|
        /// | `Open`, those that create, `QueryDevice`, `QueryPort`, `QueryGid`, `QueryQp`, `QuerySrq` | `ENOMEM`, `EIO`, `EAGAIN` | nothing was created. `EAGAIN` is the limit of an RDMA cgroup |
        /// | `RegMr`, `ReregMr` | also `EPERM`, `EFAULT` (`RegMr`) | `EFAULT` of `ReregMr` would mean that the region is invalid |
        /// | `ModifyQp`, `ModifySrq`, `ResizeCq` | `ENOMEM`, `EIO`, `ETIMEDOUT` | the object is as before. `EINVAL` would blame the arguments |
        /// | `ReqNotifyCq`, `AttachMcast` | `ENOMEM`, `EIO` | `EIO` hints at the removal of the device, which the library verifies |
        /// | `PostSend` | `ENOMEM` | requests count as posted. `EINVAL` would mean that the QP is below RTS and that the ring was not read; `EACCES` and `EPERM` make the provider use another call |
        /// | `DetachMcast`, those that destroy | `EBUSY` | the object stays, and so does its memory |
        ///
        /// Methods that fail with `EINTR`, `ENOTTY`, `EPROTONOSUPPORT` or `EOPNOTSUPP` are repeated in
        /// another way or are unsupported, so these can't be injected.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Method {
            $($(#[$doc])* $name,)*
        }

        impl Method {
            /// All methods.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The errnos that the method may return by fault injection.
            #[must_use]
            pub const fn errnos(self) -> &'static [Errno] {
                match self {
                    $(Self::$name => $errnos,)*
                }
            }

            /// The method that an ioctl executes.
            pub(crate) fn of_ioctl(method: &MethodRules) -> Option<Self> {
                $($(if method.is::<$ioctl>() {
                    return Some(Self::$name);
                })*)*
                None
            }

            /// The method that a write command executes.
            pub(crate) fn of_command(number: u32) -> Option<Self> {
                $($(if number == <$command as WriteCommand>::INFO.number {
                    return Some(Self::$name);
                })*)*
                None
            }
        }
    };
}

const CREATION: &[Errno] = &[Errno::NOMEM, Errno::IO, Errno::AGAIN];
const CHANGE: &[Errno] = &[Errno::NOMEM, Errno::IO, Errno::TIMEDOUT];
const DESTRUCTION: &[Errno] = &[Errno::BUSY];

methods! {
    /// Creates the context of an open device.
    Open: [uverbs::GetContext], [write::GetContext], CREATION;
    /// Queries the attributes of the device.
    QueryDevice: [], [write::QueryDevice, ex::QueryDevice], CREATION;
    /// Queries the attributes of a port.
    QueryPort: [uverbs::QueryPort], [write::QueryPort], CREATION;
    /// Queries GIDs.
    QueryGid: [uverbs::QueryGidTable, uverbs::QueryGidEntry], [], CREATION;
    /// Creates a completion channel.
    CreateCompChannel: [], [write::CreateCompChannel], CREATION;
    /// Allocates a PD.
    AllocPd: [], [write::AllocPd], CREATION;
    /// Deallocates a PD.
    DeallocPd: [uverbs::PdDestroy], [write::DeallocPd], DESTRUCTION;
    /// Registers memory.
    RegMr: [uverbs::RegMr], [write::RegMr], &[Errno::NOMEM, Errno::IO, Errno::AGAIN, Errno::PERM, Errno::FAULT];
    /// Changes a memory region.
    ReregMr: [], [write::ReregMr], &[Errno::NOMEM, Errno::IO, Errno::AGAIN, Errno::PERM];
    /// Deregisters memory.
    DeregMr: [uverbs::MrDestroy], [write::DeregMr], DESTRUCTION;
    /// Allocates a memory window.
    AllocMw: [], [write::AllocMw], CREATION;
    /// Deallocates a memory window.
    DeallocMw: [uverbs::MwDestroy], [write::DeallocMw], DESTRUCTION;
    /// Creates a CQ.
    CreateCq: [uverbs::CqCreate], [write::CreateCq, ex::CreateCq], CREATION;
    /// Resizes a CQ.
    ResizeCq: [], [write::ResizeCq], CHANGE;
    /// Arms a CQ.
    ReqNotifyCq: [], [write::ReqNotifyCq], &[Errno::NOMEM, Errno::IO];
    /// Destroys a CQ.
    DestroyCq: [uverbs::CqDestroy], [write::DestroyCq], DESTRUCTION;
    /// Creates an SRQ.
    CreateSrq: [uverbs::SrqCreate], [write::CreateSrq, write::CreateXsrq], CREATION;
    /// Changes an SRQ.
    ModifySrq: [], [write::ModifySrq], CHANGE;
    /// Queries an SRQ.
    QuerySrq: [], [write::QuerySrq], CREATION;
    /// Destroys an SRQ.
    DestroySrq: [uverbs::SrqDestroy], [write::DestroySrq], DESTRUCTION;
    /// Creates a QP.
    CreateQp: [uverbs::QpCreate], [write::CreateQp, ex::CreateQp], CREATION;
    /// Changes the state or the attributes of a QP.
    ModifyQp: [], [write::ModifyQp, ex::ModifyQp], CHANGE;
    /// Queries a QP.
    QueryQp: [], [write::QueryQp], CREATION;
    /// Destroys a QP.
    DestroyQp: [uverbs::QpDestroy], [write::DestroyQp], DESTRUCTION;
    /// The doorbell of a send queue.
    PostSend: [], [write::PostSend], &[Errno::NOMEM];
    /// Creates an address handle.
    CreateAh: [], [write::CreateAh], CREATION;
    /// Destroys an address handle.
    DestroyAh: [uverbs::AhDestroy], [write::DestroyAh], DESTRUCTION;
    /// Attaches a QP to a multicast group.
    AttachMcast: [], [write::AttachMcast], &[Errno::NOMEM, Errno::IO];
    /// Detaches a QP from a multicast group.
    DetachMcast: [], [write::DetachMcast], DESTRUCTION;
}

/// A device fault that can't be injected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// The method doesn't return this errno, see [`Method`].
    #[error("{method:?} can't fail with {errno}; it can with {}", List(method.errnos()))]
    Errno {
        /// The method.
        method: Method,
        /// The errno.
        errno: Errno,
    },
    /// The event is not one of the device or a port
    /// ([`SoftDevice::raise_event`](crate::SoftDevice::raise_event)) or of a QP
    /// ([`SoftDevice::raise_qp_event`](crate::SoftDevice::raise_qp_event)).
    #[error("{0:?} is an event of another kind of object")]
    Event(EventType),
    /// The status is no first failure of a QP.
    #[error("a completion can't be made to fail with {0:?}")]
    Status(WcStatus),
    /// The device has no QP with this number.
    #[error("there is no QP {0:#x}")]
    NoQp(u32),
}

struct List(&'static [Errno]);

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, errno) in self.0.iter().enumerate() {
            write!(f, "{}{errno}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// The calls of a device that fail.
#[derive(Debug, Default)]
pub(crate) struct CallFaults {
    /// Whether there are faults. Calls look at nothing else without them.
    some: AtomicBool,
    /// Methods, the number of calls until each fails, and the errno.
    faults: Mutex<Vec<(Method, u64, Errno)>>,
}

impl CallFaults {
    /// Makes the n-th call from now on fail. The first is 1; 0 is none.
    pub(crate) fn add(&self, method: Method, nth: u64, errno: Errno) -> Result<(), FaultError> {
        if !method.errnos().contains(&errno) {
            return Err(FaultError::Errno { method, errno });
        }
        if nth > 0 {
            lock(&self.faults).push((method, nth, errno));
            self.some.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Counts a call.
    ///
    /// # Errors
    ///
    /// That of the first fault that is due.
    pub(crate) fn call(&self, method: impl FnOnce() -> Option<Method>) -> Result<(), Errno> {
        if !self.some.load(Ordering::Acquire) {
            return Ok(());
        }
        let Some(method) = method() else { return Ok(()) };
        let mut faults = lock(&self.faults);
        let mut due = None;
        faults.retain_mut(|(of, left, errno)| {
            if *of != method {
                return true;
            }
            *left -= 1;
            if *left == 0 {
                due = due.or(Some(*errno));
            }
            *left > 0
        });
        self.some.store(!faults.is_empty(), Ordering::Release);
        due.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nth_call_of_a_method_fails_once() {
        let faults = CallFaults::default();
        faults.add(Method::RegMr, 2, Errno::NOMEM).unwrap();
        faults.add(Method::CreateQp, 1, Errno::AGAIN).unwrap();
        let call = |method| faults.call(|| Some(method));
        assert_eq!([call(Method::RegMr), call(Method::AllocPd)], [Ok(()), Ok(())]);
        assert_eq!([call(Method::RegMr), call(Method::RegMr)], [Err(Errno::NOMEM), Ok(())]);
        assert_eq!([call(Method::CreateQp), call(Method::CreateQp)], [Err(Errno::AGAIN), Ok(())]);
        assert!(!faults.some.load(Ordering::Relaxed));
        faults.add(Method::RegMr, 0, Errno::NOMEM).unwrap();
        assert_eq!(call(Method::RegMr), Ok(()));
    }

    #[test]
    fn errnos_that_mislead_a_provider_are_refused() {
        let faults = CallFaults::default();
        let (method, errno) = (Method::PostSend, Errno::INVAL);
        assert_eq!(faults.add(method, 1, errno), Err(FaultError::Errno { method, errno }));
        for method in Method::ALL.iter().filter(|method| method.errnos() == DESTRUCTION) {
            let errno = Errno::IO;
            assert_eq!(faults.add(*method, 1, errno), Err(FaultError::Errno { method: *method, errno }));
        }
        for method in Method::ALL {
            for errno in [Errno::INTR, Errno::NOTTY, Errno::PROTONOSUPPORT, Errno::OPNOTSUPP, Errno::ACCESS] {
                assert!(faults.add(*method, 1, errno).is_err(), "{method:?}, {errno}");
            }
        }
    }
}
