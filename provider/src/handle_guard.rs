//! Destroys a kernel object unless its creation succeeds.

use crate::device::{DeviceFile, IoctlError};

/// A kernel object whose creation is not complete. Dropping the guard destroys the object, unless
/// it was disarmed.
///
/// The guard owns the memory of this process that the object uses, if any. It drops the memory
/// after the object was destroyed. If the kernel refuses to destroy the object, the memory is
/// leaked, because the device may still access it.
///
/// ```
/// # use bareverbs_provider::device::{DeviceFile, IoctlError};
/// # use bareverbs_provider::handle_guard::HandleGuard;
/// # fn example(
/// #     file: &DeviceFile,
/// #     destroy: unsafe fn(&DeviceFile, u32) -> Result<(), IoctlError>,
/// #     ring: Vec<u8>,
/// #     arm: fn() -> Result<(), std::io::Error>,
/// # ) -> Result<(u32, Vec<u8>), std::io::Error> {
/// // SAFETY: the object was made just now, and nothing else knows its handle.
/// let guard = unsafe { HandleGuard::new(file, 7, destroy, ring) };
/// arm()?; // If this fails, the object is destroyed.
/// # Ok(
/// guard.disarm()
/// # )
/// # }
/// ```
#[derive(Debug)]
pub struct HandleGuard<'a, M, R = ()> {
    file: &'a DeviceFile,
    handle: u32,
    destroy: unsafe fn(&DeviceFile, u32) -> Result<R, IoctlError>,
    /// `None` once the guard was disarmed.
    memory: Option<M>,
}

impl<'a, M, R> HandleGuard<'a, M, R> {
    /// A guard for the object with this handle, which uses `memory`. `destroy` destroys the object; its
    /// answer is ignored.
    ///
    /// # Safety
    ///
    /// It must be sound to call `destroy` with the file and the handle, once, at any time until
    /// [`HandleGuard::disarm`]: the caller made the object, and nothing else knows its handle.
    #[must_use = "dropping it destroys the object"]
    pub unsafe fn new(
        file: &'a DeviceFile,
        handle: u32,
        destroy: unsafe fn(&DeviceFile, u32) -> Result<R, IoctlError>,
        memory: M,
    ) -> Self {
        Self { file, handle, destroy, memory: Some(memory) }
    }

    /// Returns the handle and the memory. The caller must destroy the object from now on.
    #[must_use = "the caller must destroy the object"]
    pub fn disarm(mut self) -> (u32, M) {
        (self.handle, self.memory.take().expect("the guard is armed"))
    }
}

impl<M, R> Drop for HandleGuard<'_, M, R> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        // SAFETY: the caller of `new` promised that `destroy` may be called once before `disarm`,
        // which takes the memory.
        if unsafe { (self.destroy)(self.file, self.handle) }.is_err() {
            std::mem::forget(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use rustix::io::Errno;

    use super::*;

    fn null() -> DeviceFile {
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        unsafe { DeviceFile::from_fd_unchecked(file.into(), 0) }.unwrap()
    }

    /// Whether the memory was dropped after `end` of a guard with this destroy command.
    fn drops(
        destroy: unsafe fn(&DeviceFile, u32) -> Result<(), IoctlError>,
        end: fn(HandleGuard<'_, Rc<()>>),
    ) -> bool {
        let (file, memory) = (null(), Rc::new(()));
        // SAFETY: the commands of these tests destroy nothing.
        end(unsafe { HandleGuard::new(&file, 7, destroy, Rc::clone(&memory)) });
        Rc::strong_count(&memory) == 1
    }

    #[test]
    fn memory_of_a_destroyed_object_is_dropped() {
        let destroy = |_: &DeviceFile, handle| {
            assert_eq!(handle, 7);
            Ok(())
        };
        assert!(drops(destroy, |guard| drop(guard)));
    }

    #[test]
    fn memory_is_leaked_if_the_kernel_refuses_to_destroy_the_object() {
        assert!(!drops(|_, _| Err(IoctlError::new("SrqDestroy", Errno::BUSY)), |guard| drop(guard)));
    }

    #[test]
    fn disarmed_guard_returns_the_memory_and_destroys_nothing() {
        let destroy = |_: &DeviceFile, _| panic!("the object is not destroyed");
        assert!(drops(destroy, |guard| assert_eq!(guard.disarm().0, 7)));
    }
}
