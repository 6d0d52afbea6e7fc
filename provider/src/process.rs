//! Which process something belongs to.
//!
//! A forked child has its parent's descriptors, so without care the handles that it inherited would destroy the
//! parent's objects. [`Home`] tells the two apart at the price of one load: it looks at a page that the kernel empties
//! in children.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::io::Errno;

use crate::pages;

/// The page of the process that last asked for one; in a child of it, the page is empty.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The process that something was made in.
///
/// Threads and the children that share its memory (as between `vfork` and `exec`) count as the same process.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    here: &'static AtomicU32,
}

impl Home {
    /// This process.
    ///
    /// # Errors
    ///
    /// The kernel's refusal to give the page, or to empty it in children, which it can since Linux 4.14.
    pub fn here() -> Result<Self, Errno> {
        // SAFETY: the pointer is null or that of a page that is never unmapped.
        let known = unsafe { PAGE.load(Ordering::Acquire).as_ref() }.map(|here| Self { here });
        known.filter(Self::is_here).map_or_else(Self::settle, Ok)
    }

    /// Whether this is the process.
    #[inline]
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.here.load(Ordering::Relaxed) != 0
    }

    /// Makes a page for this process, and makes it the process's page. Where two threads do it, both pages are good.
    fn settle() -> Result<Self, Errno> {
        let here = pages::wiped_in_children()?;
        here.store(1, Ordering::Relaxed);
        PAGE.store(ptr::from_ref(here).cast_mut(), Ordering::Release);
        Ok(Self { here })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_at_home_in_itself_in_all_its_threads() {
        let home = Home::here().unwrap();
        assert!(home.is_here());
        std::thread::spawn(move || assert!(home.is_here())).join().unwrap();
        assert!(Home::here().unwrap().is_here());
    }
}
