//! XRC domains.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use bareverbs::xrc::{Xrcd, XrcdShare};

use crate::abi::srq::{ibv_xrcd, ibv_xrcd_init_attr};
use crate::abi::values::{IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, callback, required};
use crate::object::Object;

pub(crate) type XrcdObject = Object<ibv_xrcd, Xrcd>;

/// How the attributes share the domain. The descriptor -1 is that of no file: the domain is private.
fn share(attr: &ibv_xrcd_init_attr) -> Result<XrcdShare<'_>, Failure> {
    let needed = (IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS).cast_unsigned();
    if attr.comp_mask & !needed != 0 {
        return Err(Failure::UNSUPPORTED);
    }
    if attr.comp_mask != needed {
        return Err(Failure::INVALID);
    }
    if attr.fd == -1 {
        return Ok(XrcdShare::Private);
    }
    // SAFETY: the descriptor is one of the program. The kernel checks that it is open.
    let file = unsafe { BorrowedFd::borrow_raw(attr.fd) };
    match (attr.oflags & libc::O_CREAT != 0, attr.oflags & libc::O_EXCL != 0) {
        (false, false) => Ok(XrcdShare::Join(file)),
        (true, false) => Ok(XrcdShare::JoinOrCreate(file)),
        (true, true) => Ok(XrcdShare::Create(file)),
        (false, true) => Err(Failure::INVALID),
    }
}

callback! {
    /// `ibv_open_xrcd`.
    fn open_xrcd(context: ContextArgument<'_>, attr: Option<&ibv_xrcd_init_attr>) -> OrNull<ibv_xrcd> {
        let (found, attr) = (&context.required()?.context, required(attr)?);
        let share = share(attr)?;
        Object::create(|_| Ok((ibv_xrcd { context: context.pointer() }, found.open_xrcd(share)?)))
    }

    /// `ibv_close_xrcd`.
    fn close_xrcd(xrcd: Option<NonNull<XrcdObject>>) -> OrErrno {
        // SAFETY: the argument is a live domain, which the program uses no longer.
        unsafe { Object::destroy(required(xrcd)?, Xrcd::close, |_, ()| ()) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn flags_of_the_file_decide_whether_the_domain_exists() {
        let file = File::open("/dev/null").unwrap();
        let of = |oflags| ibv_xrcd_init_attr { comp_mask: 3, fd: file.as_raw_fd(), oflags };
        assert!(matches!(share(&of(0)), Ok(XrcdShare::Join(_))));
        assert!(matches!(share(&of(libc::O_CREAT)), Ok(XrcdShare::JoinOrCreate(_))));
        assert!(matches!(share(&of(libc::O_CREAT | libc::O_EXCL)), Ok(XrcdShare::Create(_))));
        assert_eq!(share(&of(libc::O_EXCL)).err(), Some(Failure::INVALID));
        let none = ibv_xrcd_init_attr { fd: -1, ..of(0) };
        assert!(matches!(share(&none), Ok(XrcdShare::Private)));
    }
}
