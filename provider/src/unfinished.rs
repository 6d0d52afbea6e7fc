//! Kernel objects on their way to an owner.

use crate::device::DeviceFile;

/// A kernel object that is made while its rings are not yet mapped: dropping it destroys the object, unless it was
/// finished.
///
/// ```
/// # use bareverbs_provider::device::DeviceFile;
/// # use bareverbs_provider::unfinished::Unfinished;
/// # fn example(file: &DeviceFile, destroy: unsafe fn(&DeviceFile, u32), map: fn() -> Result<(), std::io::Error>)
/// # -> Result<u32, std::io::Error> {
/// // SAFETY: the object was made just now, and nothing else knows its handle.
/// let made = unsafe { Unfinished::new(file, 7, destroy) };
/// map()?; // On failure the object goes.
/// # Ok(
/// made.finished()
/// # )
/// # }
/// ```
#[derive(Debug)]
pub struct Unfinished<'a> {
    file: &'a DeviceFile,
    handle: u32,
    destroy: unsafe fn(&DeviceFile, u32),
}

impl<'a> Unfinished<'a> {
    /// Watches over the object with this handle, which `destroy` destroys.
    ///
    /// # Safety
    ///
    /// It must be sound to call `destroy` with the file and the handle, once, at any time until
    /// [`Unfinished::finished`]: the caller made the object, and nothing else knows its handle.
    #[must_use = "what is dropped is destroyed"]
    pub unsafe fn new(file: &'a DeviceFile, handle: u32, destroy: unsafe fn(&DeviceFile, u32)) -> Self {
        Self { file, handle, destroy }
    }

    /// Hands the object over to whoever destroys it from now on.
    #[must_use = "somebody has to destroy it"]
    pub fn finished(self) -> u32 {
        let handle = self.handle;
        std::mem::forget(self);
        handle
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // SAFETY: who called `new` promised that it may be called once before `finished`, which
        // forgets this value.
        unsafe { (self.destroy)(self.file, self.handle) };
    }
}
