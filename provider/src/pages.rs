//! Pages from the kernel. Under Miri they come from the heap, because Miri does not support `mmap`
//! and `madvise` as used here.

pub(crate) use self::imp::{map_file, map_private, map_wiped_on_fork, set_dont_fork, unmap};

#[cfg(not(miri))]
mod imp {
    use std::ptr::{self, NonNull};
    use std::sync::atomic::AtomicU32;

    use rustix::fd::AsFd;
    use rustix::io::Errno;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

    /// Maps `len` bytes of `file` from `offset` on (`MAP_SHARED`).
    pub(crate) fn map_file(
        file: impl AsFd,
        offset: u64,
        len: usize,
        protection: ProtFlags,
    ) -> Result<NonNull<u8>, Errno> {
        // SAFETY: with a null hint and without MAP_FIXED the kernel picks an unused range, so no
        // existing memory changes.
        let start =
            unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file.as_fd(), offset) }?;
        NonNull::new(start.cast()).ok_or(Errno::NOMEM)
    }

    /// Maps `len` zeroed bytes of this process, in huge pages of 2 MiB if requested.
    pub(crate) fn map_private(len: usize, is_huge: bool) -> Result<NonNull<u8>, Errno> {
        let pages = if is_huge { MapFlags::HUGETLB | MapFlags::HUGE_2MB } else { MapFlags::empty() };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: with a null hint and without MAP_FIXED the kernel picks an unused range, so no
        // existing memory changes.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE | pages) }?;
        NonNull::new(start.cast()).ok_or(Errno::NOMEM)
    }

    /// Keeps forked children from inheriting a range (`MADV_DONTFORK`).
    ///
    /// # Safety
    ///
    /// The caller must own the range, and a function of this module must have mapped it.
    pub(crate) unsafe fn set_dont_fork(start: NonNull<u8>, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller owns the range, and the advice changes nothing in this process.
        unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontFork) }
    }

    /// Unmaps a range. An error leaves the pages mapped.
    ///
    /// # Safety
    ///
    /// The range must be a whole range that a function of this module has mapped, and nothing may
    /// access it any more.
    pub(crate) unsafe fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: this function's contract.
        let _ = unsafe { munmap(start.as_ptr().cast(), len) };
    }

    /// A word that is 0 and that the kernel zeroes in forked children (`MADV_WIPEONFORK`). It is
    /// never unmapped.
    pub(crate) fn map_wiped_on_fork() -> Result<&'static AtomicU32, Errno> {
        /// Not larger than a page on any architecture.
        const BYTES: usize = 4096;
        let page = map_private(BYTES, false)?;
        // SAFETY: the page was mapped here, and a child may find it zeroed.
        if let Err(errno) = unsafe { madvise(page.as_ptr().cast(), BYTES, Advice::LinuxWipeOnFork) } {
            // SAFETY: the page was mapped here, and nothing refers to it.
            unsafe { unmap(page, BYTES) };
            return Err(errno);
        }
        // SAFETY: a page begins aligned and zeroed, is never unmapped from here on, and is accessed
        // by atomics only.
        Ok(unsafe { page.cast::<AtomicU32>().as_ref() })
    }
}

#[cfg(miri)]
mod imp {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;
    use std::sync::atomic::AtomicU32;

    use rustix::fd::AsFd;
    use rustix::io::Errno;
    use rustix::mm::ProtFlags;

    const PAGE: usize = 4096;

    fn layout(len: usize) -> Result<Layout, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        Layout::from_size_align(len, PAGE).map_err(|_| Errno::NOMEM)
    }

    /// Miri has no device.
    pub(crate) fn map_file(_: impl AsFd, _: u64, _: usize, _: ProtFlags) -> Result<NonNull<u8>, Errno> {
        Err(Errno::NODEV)
    }

    /// Zeroed bytes, aligned to 4096.
    pub(crate) fn map_private(len: usize, is_huge: bool) -> Result<NonNull<u8>, Errno> {
        let layout = layout(len)?;
        if is_huge {
            return Err(Errno::NOMEM);
        }
        // SAFETY: the layout has bytes.
        NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::NOMEM)
    }

    /// Miri does not fork.
    ///
    /// # Safety
    ///
    /// No requirement.
    pub(crate) unsafe fn set_dont_fork(_: NonNull<u8>, _: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// # Safety
    ///
    /// The range must be a whole range that [`map_private`] has allocated, and nothing may access
    /// it any more.
    pub(crate) unsafe fn unmap(start: NonNull<u8>, len: usize) {
        let layout = layout(len).expect("the layout that the range was made with");
        // SAFETY: the range was allocated with this layout, by this function's contract.
        unsafe { dealloc(start.as_ptr(), layout) };
    }

    /// A word that is 0. It is never freed.
    pub(crate) fn map_wiped_on_fork() -> Result<&'static AtomicU32, Errno> {
        Ok(Box::leak(Box::new(AtomicU32::new(0))))
    }
}
