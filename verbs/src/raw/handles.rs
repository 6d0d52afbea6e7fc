use bareverbs_provider::traits::Provider;

use crate::Pd;
use crate::cq::Cq;
use crate::rss::Wq;
use crate::srq::Srq;

impl<P: Provider> Pd<P> {
    /// Releases the handle, also for all clones: drop no longer deallocates the kernel object. The
    /// kernel deallocates it when the device file is closed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.domain().released.set();
        self.handle()
    }
}

impl<P: Provider> Cq<P> {
    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.shared().handle
    }

    /// Releases the handle: drop no longer destroys the kernel object. The kernel destroys it when
    /// the device file is closed. Its queue and its memory are leaked.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.shared().released.set();
        self.handle()
    }
}

impl<P: Provider> Srq<P> {
    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.shared().handle
    }

    /// Releases the handle: drop no longer destroys the kernel object. The kernel destroys it when
    /// the device file is closed. Its queue and its memory are leaked. Posted requests stay in use
    /// until the object is destroyed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.shared().released.set();
        self.handle()
    }
}

impl<P: Provider> Wq<P> {
    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.shared().handle
    }

    /// Releases the handle, as [`Srq::into_handle`] does.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.shared().released.set();
        self.handle()
    }
}
