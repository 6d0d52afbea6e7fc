//! Objects of C: a struct of the ABI, and behind it the value of `bareverbs` that it stands for.

use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bareverbs::Errno;
use bareverbs::error::Refused;

use crate::convention::Failure;
use crate::environment::environment;

/// An object on the heap, of which C has a pointer. `A` begins with the struct of the ABI, so a
/// pointer to the one is a pointer to the other.
#[repr(C)]
pub(crate) struct Object<A, T> {
    pub(crate) abi: A,
    pub(crate) inner: T,
}

impl<A, T> Object<A, T> {
    /// Creates an object, of which C has a pointer to a `C`. `make` gets its address, by which the kernel's
    /// events will name it.
    pub(crate) fn create<C>(make: impl FnOnce(u64) -> Result<(A, T), Failure>) -> Result<*mut C, Failure> {
        let memory = Box::<Self>::new_uninit();
        let (abi, inner) = make(memory.as_ptr().expose_provenance() as u64)?;
        Ok(Box::into_raw(Box::write(memory, Self { abi, inner })).cast())
    }

    /// Destroys the object by `destroy`, which returns the value if it fails. Then the object stays as
    /// it is. Else `wait` waits for other users of the struct, before it is freed. An object of a removed
    /// device is freed without waiting, if the environment asks for it.
    ///
    /// # Safety
    ///
    /// [`create`](Self::create) made the object, and it was not destroyed. Nothing uses it during or
    /// after the call, but for what `wait` waits for, which uses `A` only.
    pub(crate) unsafe fn destroy<V, R>(
        object: NonNull<Self>,
        destroy: impl FnOnce(V) -> Result<R, Refused<V>>,
        wait: impl FnOnce(&A, R),
    ) -> Result<(), Failure>
    where
        T: Holder<V>,
    {
        // SAFETY: the object exists, by the contract.
        let value = T::place(unsafe { &raw mut (*object.as_ptr()).inner });
        // SAFETY: as above. The value is read once: it is written back, or freed without its drop.
        match destroy(unsafe { ptr::read(value) }) {
            Ok(result) => {
                // SAFETY: the object exists, and only shared references to `A` are made of it.
                wait(unsafe { &(*object.as_ptr()).abi }, result);
                // SAFETY: `create` made it from a box. `ManuallyDrop` changes no layout.
                drop(unsafe { Box::from_raw(object.as_ptr().cast::<Object<A, ManuallyDrop<T>>>()) });
                Ok(())
            }
            Err(refused) if environment().destroys_removed && refused.error.errno() == Some(Errno::IO) => {
                drop(refused.object);
                // SAFETY: as above.
                drop(unsafe { Box::from_raw(object.as_ptr().cast::<Object<A, ManuallyDrop<T>>>()) });
                Ok(())
            }
            Err(refused) => {
                // SAFETY: the object exists, and its value was read above.
                unsafe { ptr::write(value, refused.object) };
                Err(refused.error.into())
            }
        }
    }

    /// Destroys an object whose value needs its drop only.
    ///
    /// # Safety
    ///
    /// As for [`destroy`](Self::destroy).
    pub(crate) unsafe fn free(object: NonNull<Self>) {
        // SAFETY: `create` made it from a box, by the contract.
        drop(unsafe { Box::from_raw(object.as_ptr()) });
    }
}

/// What an object has of a value `V` of `bareverbs`: the value itself, or with locks. Nothing else of it
/// has a drop.
pub(crate) trait Holder<V> {
    /// The place of the value, for [`Object::destroy`].
    fn place(holder: *mut Self) -> *mut V;
}

impl<V> Holder<V> for V {
    fn place(holder: *mut Self) -> *mut V {
        holder
    }
}

impl<V> Holder<V> for Mutex<V> {
    fn place(holder: *mut Self) -> *mut V {
        // SAFETY: nothing else uses an object that is destroyed.
        ptr::from_mut(unsafe { &mut *holder }.get_mut().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The pointer of C to an object, which is null for none.
pub(crate) fn pointer<A, T, C>(object: Option<&Object<A, T>>) -> *mut C {
    object.map_or(ptr::null_mut(), |object| ptr::from_ref(object).cast_mut().cast())
}

/// The events of an object that the program has acknowledged. An object is not freed before that are
/// all that were read.
#[derive(Default)]
pub(crate) struct Acknowledged {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Acknowledged {
    pub(crate) fn add(&self, count: u32) {
        let mut all = lock(&self.count);
        *all = all.wrapping_add(count);
        self.changed.notify_all();
    }

    /// Waits until `count` events are acknowledged.
    pub(crate) fn wait_for(&self, count: u32) {
        let all = lock(&self.count);
        let done = self.changed.wait_while(all, |all| *all != count);
        drop(done.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A lock is never poisoned: a panic ends the process.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;

    use bareverbs::Error;

    use super::*;

    /// The variable with the errno that a process of the test expects.
    const EXPECTED: &str = "BAREVERBS_DROPIN_TEST_ERRNO";

    #[test]
    fn object_of_a_removed_device_is_destroyed_if_the_environment_asks_for_it() {
        let Ok(expected) = std::env::var(EXPECTED) else {
            // The variables are read once, so each case has a process.
            for (value, errno) in [("0", libc::EIO), ("1", 0)] {
                let mut command = Command::new(std::env::current_exe().unwrap());
                let name =
                    "object::tests::object_of_a_removed_device_is_destroyed_if_the_environment_asks_for_it";
                command.args(["--exact", name]).env("RDMAV_ALLOW_DISASSOC_DESTROY", value);
                let output = command.env(EXPECTED, errno.to_string()).output().unwrap();
                assert!(output.status.success(), "{output:?}");
            }
            return;
        };
        let object: *mut Object<u8, Arc<()>> = Object::create(|_| Ok((0_u8, Arc::<()>::default()))).unwrap();
        // SAFETY: the object exists.
        let holders = Arc::downgrade(unsafe { &(*object).inner });
        let removed =
            |value: Arc<()>| Err::<(), _>(Refused::new(Error::DeviceRemoved { verb: "destroy" }, value));
        let wait = |_: &u8, ()| panic!("no event of a removed device is waited for");
        // SAFETY: the object exists.
        let destroyed = unsafe { Object::destroy(NonNull::new(object).unwrap(), removed, wait) };
        assert_eq!(destroyed.err().map_or(0, Failure::errno).to_string(), expected);
        assert_eq!(holders.strong_count() == 0, destroyed.is_ok());
    }
}
