//! How C functions report failures, and the macros that define them.
//!
//! # Panics
//!
//! A function for C is `extern "C"`: a panic in it prints its message and aborts the process, with
//! each profile. It is not caught. After a panic, the state of a queue that the device reads is
//! unknown, and to go on might send or overwrite memory of the program.

use std::ffi::c_int;
use std::hint::black_box;
use std::marker::PhantomData;
use std::ptr;

use bareverbs::error::{CreateError, InvalidCause, PostReason, PushError, Refused};
use bareverbs::raw::QueryError;
use bareverbs::{Errno, Error};

use crate::abi::values::{IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT};
use crate::environment::environment;
use crate::faults;

/// The errno of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(c_int);

impl Failure {
    pub(crate) const BAD_DESCRIPTOR: Self = Self(libc::EBADF);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    /// An address or a range is outside of memory.
    pub(crate) const FAULT: Self = Self(libc::EFAULT);
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const NO_DATA: Self = Self(libc::ENODATA);
    pub(crate) const NO_DEVICE: Self = Self(libc::ENODEV);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    pub(crate) const NO_SPACE: Self = Self(libc::ENOSPC);
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);

    pub(crate) fn errno(self) -> c_int {
        self.0
    }

    /// A failure with this errno.
    pub(crate) fn of_errno(errno: c_int) -> Self {
        Self(errno)
    }

    /// The errno of this thread.
    pub(crate) fn last_errno() -> c_int {
        // SAFETY: the pointer is that of this thread's errno.
        unsafe { *libc::__errno_location() }
    }

    /// Sets the errno of this thread to one that it had.
    pub(crate) fn restore_errno(errno: c_int) {
        set_errno(Self(errno));
    }

    /// The failure of the last call of the C library.
    pub(crate) fn last() -> Self {
        Self::of(&std::io::Error::last_os_error())
    }

    pub(crate) fn of(error: &std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl From<QueryError> for Failure {
    /// A method that the driver lacks is `EOPNOTSUPP`.
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Kernel(errno) => errno.into(),
            _ => Self::UNSUPPORTED,
        }
    }
}

impl From<PostReason> for Failure {
    fn from(reason: PostReason) -> Self {
        match reason {
            PostReason::Queue(PushError::QueueFull { .. }) => Self::NO_MEMORY,
            reason => reason.errno().map_or(Self::INVALID, Self::from),
        }
    }
}

impl From<Error> for Failure {
    /// The errno of the kernel. That of a request that `bareverbs` rejects is the one by which the
    /// kernel or a C provider rejects it. The text of the error, which C has no place for, goes to the log.
    fn from(error: Error) -> Self {
        environment().log(&error);
        if let Some(errno) = error.errno() {
            return errno.into();
        }
        match error {
            Error::Unsupported { .. }
            | Error::UnsupportedDriver { .. }
            | Error::Provider { reason: CreateError::Unsupported { .. }, .. } => Self::UNSUPPORTED,
            Error::Invalid { cause: InvalidCause::InUse(_), .. } => Self::BUSY,
            Error::NoGid { .. } => Self::NO_DATA,
            Error::NoDevice | Error::UnknownDevice { .. } | Error::NoUverbs { .. } => Self::NO_DEVICE,
            Error::Provider { .. } => Self::NO_MEMORY,
            Error::Post(refused) => refused.reason.into(),
            Error::Rejected(reason) => reason.into(),
            _ => Self::INVALID,
        }
    }
}

impl<T> From<Refused<T>> for Failure {
    fn from(refused: Refused<T>) -> Self {
        refused.error.into()
    }
}

/// How a C function returns a result. A failure sets errno, which is the last thing that the
/// function does: drops and locks may have changed it.
pub(crate) trait Convention {
    /// What the function returns on success.
    type Value;
    /// Its return type in C.
    type C;

    fn answer(result: Result<Self::Value, Failure>) -> Self::C;
}

/// The result of a function's body.
pub(crate) type Called<C> = Result<<C as Convention>::Value, Failure>;

/// `int`: 0, or the errno.
pub(crate) struct OrErrno;

/// `int`, or `ssize_t`: a number that is not negative, or -1.
pub(crate) struct OrMinusOne<T = c_int>(PhantomData<T>);

/// `ssize_t`: a count, or the negative errno.
pub(crate) struct OrNegative;

/// `int` of `ibv_rereg_mr`: 0, or a negative value of `enum ibv_rereg_mr_err_code`. A failure is one of
/// the input; the value is that of the command.
pub(crate) struct OrReregCode;

/// A pointer, or null.
pub(crate) struct OrNull<T>(PhantomData<T>);

/// A value that fails in no other way than by itself, such as `void` or a text.
pub(crate) struct Value<T>(PhantomData<T>);

#[cold]
#[inline(never)]
fn set_errno(failure: Failure) {
    // SAFETY: the pointer is that of this thread's errno.
    unsafe { *libc::__errno_location() = failure.0 };
}

/// Sets errno, and returns `result`: a function that ends with it needs no frame. The compiler may not know
/// the result, or it would not end the function with the call.
#[cold]
#[inline(never)]
fn fail_with(failure: Failure, result: c_int) -> c_int {
    set_errno(failure);
    black_box(result)
}

impl Convention for OrErrno {
    type Value = ();
    type C = c_int;

    #[inline(always)]
    fn answer(result: Result<(), Failure>) -> c_int {
        match result {
            Ok(()) => 0,
            Err(failure) => fail_with(failure, failure.0),
        }
    }
}

impl<T: From<i8>> Convention for OrMinusOne<T> {
    type Value = T;
    type C = T;

    fn answer(result: Result<T, Failure>) -> T {
        result.unwrap_or_else(|failure| {
            set_errno(failure);
            T::from(-1)
        })
    }
}

impl Convention for OrNegative {
    type Value = usize;
    type C = isize;

    fn answer(result: Result<usize, Failure>) -> isize {
        match result {
            Ok(count) => count.cast_signed(),
            Err(failure) => {
                set_errno(failure);
                -(failure.0 as isize)
            }
        }
    }
}

impl Convention for OrReregCode {
    type Value = Result<(), Failure>;
    type C = c_int;

    fn answer(result: Result<Result<(), Failure>, Failure>) -> c_int {
        let (code, failure) = match result {
            Ok(Ok(())) => return 0,
            Ok(Err(failure)) => (IBV_REREG_MR_ERR_CMD, failure),
            Err(failure) => (IBV_REREG_MR_ERR_INPUT, failure),
        };
        set_errno(failure);
        code
    }
}

impl<T> Convention for OrNull<T> {
    type Value = *mut T;
    type C = *mut T;

    fn answer(result: Result<*mut T, Failure>) -> *mut T {
        result.unwrap_or_else(|failure| {
            set_errno(failure);
            ptr::null_mut()
        })
    }
}

impl<T: Default> Convention for Value<T> {
    type Value = T;
    type C = T;

    #[inline(always)]
    /// A failure, as of null for an object, is the default.
    fn answer(result: Result<T, Failure>) -> T {
        result.unwrap_or_else(|failure| {
            set_errno(failure);
            T::default()
        })
    }
}

/// The object of an argument that may be null.
pub(crate) fn required<T>(argument: Option<T>) -> Result<T, Failure> {
    argument.ok_or(Failure::INVALID)
}

/// Fails unless all bits of a mask are known. The flags of the kernel's ABI keep unknown bits.
pub(crate) fn check_mask(mask: u64, known: u64, failure: Failure) -> Result<(), Failure> {
    if mask & !known == 0 { Ok(()) } else { Err(failure) }
}

/// Counts a call, and fails or delays it by the rules of the environment.
pub(crate) fn inject_faults(function: &str) -> Result<(), Failure> {
    faults::before(function).map_err(Failure::of_errno)
}

/// Defines functions that C calls by pointers in structs.
///
/// # Safety
///
/// The caller upholds what rdma-core's manual requires. So pointers to objects are null or those of
/// objects that this library created and has not destroyed, and other pointers are null or valid
/// for the access. That is what the types of the parameters say: `Option<&T>` for a live object or an
/// input, `Option<&mut T>` for an output. `&T` is an object in which C has found the function.
macro_rules! callback {
    ($(
        $(#[$meta:meta])*
        fn $name:ident $(<$generic:ident: $bound:path $(, const $constant:ident: $value:ty)*>)?
            ($($argument:ident: $type:ty),* $(,)?) -> $convention:ty $body:block
    )*) => { $(
        $(#[$meta])*
        pub(crate) unsafe extern "C" fn $name $(<$generic: $bound $(, const $constant: $value)*>)? (
            $($argument: $type),*
        ) -> <$convention as $crate::convention::Convention>::C {
            use $crate::convention::Convention;
            let call = move || -> $crate::convention::Called<$convention> { $body };
            <$convention as Convention>::answer(call())
        }
    )* };
}

/// Defines functions that the library exports, under their names behind a prefix. Their callers have the
/// duties of [`callback`].
macro_rules! export {
    (prefix $prefix:literal; $(
        $(#[$meta:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $convention:ty $body:block
    )*) => {
        $crate::convention::callback! { $(
            $(#[$meta])*
            #[unsafe(export_name = concat!($prefix, stringify!($name)))]
            fn $name($($argument: $type),*) -> $convention {
                $crate::convention::inject_faults(stringify!($name))?;
                $body
            }
        )* }
    };
    ($($functions:tt)*) => {
        $crate::convention::export! { prefix ""; $($functions)* }
    };
}

/// Defines exported functions that refuse each call with `EOPNOTSUPP`, in the way of a convention.
macro_rules! refuse {
    (prefix $prefix:literal; $( $convention:ty: $($name:ident)* ; )*) => {
        $crate::convention::export! { prefix $prefix; $($(
            fn $name() -> $convention { Err($crate::convention::Failure::UNSUPPORTED) }
        )*)* }
    };
    ($($functions:tt)*) => {
        $crate::convention::refuse! { prefix ""; $($functions)* }
    };
}

pub(crate) use {callback, export, refuse};

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap()
    }

    #[test]
    fn failure_is_reported_in_the_way_of_the_function() {
        let failure = || Failure(libc::ENOSPC);
        assert_eq!((OrErrno::answer(Err(failure())), errno()), (libc::ENOSPC, libc::ENOSPC));
        assert_eq!((OrMinusOne::answer(Err(failure())), errno()), (-1, libc::ENOSPC));
        assert_eq!((OrNegative::answer(Err(Failure::BUSY)), errno()), (-16, libc::EBUSY));
        assert_eq!((OrReregCode::answer(Err(Failure::INVALID)), errno()), (-1, libc::EINVAL));
        assert_eq!((OrReregCode::answer(Ok(Err(failure()))), errno()), (-4, libc::ENOSPC));
        assert_eq!(OrReregCode::answer(Ok(Ok(()))), 0);
        assert!(OrNull::<u8>::answer(Err(failure())).is_null());
        assert_eq!(errno(), libc::ENOSPC);
        assert_eq!(
            (OrErrno::answer(Ok(())), OrMinusOne::answer(Ok(7)), OrNegative::answer(Ok(7))),
            (0, 7, 7)
        );
    }

    #[test]
    fn errors_have_the_errno_of_c() {
        for (error, errno) in [
            (Error::NoDevice, libc::ENODEV),
            (Error::Rejected(PushError::QueueFull { capacity: 1 }.into()), libc::ENOMEM),
            (Error::Rejected(PostReason::UsesSrq), libc::EINVAL),
            (Error::DeviceRemoved { verb: "poll" }, libc::EIO),
        ] {
            assert_eq!(Failure::from(error).errno(), errno);
        }
    }

    callback! {
        fn panics() -> OrErrno { panic!("a bug in a call") }
    }

    /// The variable that asks the test's own process to panic.
    const PANIC: &str = "BAREVERBS_DROPIN_TEST_PANIC";

    #[test]
    fn panic_in_a_call_is_printed_and_aborts() {
        use std::os::unix::process::ExitStatusExt;

        if std::env::var_os(PANIC).is_some() {
            // SAFETY: the function has no parameters.
            unsafe { panics() };
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "convention::tests::panic_in_a_call_is_printed_and_aborts", "--nocapture"]);
        let output = command.env(PANIC, "1").output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("a bug in a call"), "{output:?}");
    }
}
