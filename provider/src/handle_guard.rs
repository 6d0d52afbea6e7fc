//! Destroys a kernel object unless its creation succeeds.

use crate::device::DeviceFile;

/// A kernel object whose rings are not mapped yet. Dropping the guard destroys the object, unless
/// it was disarmed.
///
/// ```
/// # use bareverbs_provider::device::DeviceFile;
/// # use bareverbs_provider::handle_guard::HandleGuard;
/// # fn example(file: &DeviceFile, destroy: unsafe fn(&DeviceFile, u32), map: fn() -> Result<(), std::io::Error>)
/// # -> Result<u32, std::io::Error> {
/// // SAFETY: the object was made just now, and nothing else knows its handle.
/// let guard = unsafe { HandleGuard::new(file, 7, destroy) };
/// map()?; // On failure the object goes.
/// # Ok(
/// guard.disarm()
/// # )
/// # }
/// ```
#[derive(Debug)]
pub struct HandleGuard<'a> {
    file: &'a DeviceFile,
    handle: u32,
    destroy: unsafe fn(&DeviceFile, u32),
}

impl<'a> HandleGuard<'a> {
    /// A guard for the object with this handle; `destroy` destroys the object.
    ///
    /// # Safety
    ///
    /// It must be sound to call `destroy` with the file and the handle, once, at any time until
    /// [`HandleGuard::disarm`]: the caller made the object, and nothing else knows its handle.
    #[must_use = "dropping it destroys the object"]
    pub unsafe fn new(file: &'a DeviceFile, handle: u32, destroy: unsafe fn(&DeviceFile, u32)) -> Self {
        Self { file, handle, destroy }
    }

    /// Returns the handle. The caller must destroy the object from now on.
    #[must_use = "the caller must destroy the object"]
    pub fn disarm(self) -> u32 {
        let handle = self.handle;
        std::mem::forget(self);
        handle
    }
}

impl Drop for HandleGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: the caller of `new` promised that `destroy` may be called once before `disarm`,
        // which forgets this value.
        unsafe { (self.destroy)(self.file, self.handle) };
    }
}
