//! The required form of errors.

use bareverbs::{Error, Result};

/// An invalid request that is rejected in user space, with exactly these words.
#[track_caller]
pub(crate) fn invalid<T>(answer: Result<T>, text: &str) {
    let refused = answer.map(drop).expect_err(text);
    assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
    assert_eq!(refused.to_string(), text);
}

/// A request that the kernel rejects: the message starts with the verb, and has the errno and these
/// words at the end.
#[track_caller]
pub(crate) fn refused_by_kernel<T>(answer: Result<T>, verb: &str, errno: i32, hint: &str) {
    let refused = answer.map(drop).expect_err(verb);
    assert!(matches!(refused, Error::Kernel(_)), "{refused:?}");
    let text = refused.to_string();
    assert!(text.starts_with(&format!("{verb} (")) && text.ends_with(hint), "{text}");
    assert_eq!(refused.errno().map(|errno| errno.raw_os_error()), Some(errno), "{text}");
}
