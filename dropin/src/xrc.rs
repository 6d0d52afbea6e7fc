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

callback! {
    /// `ibv_open_xrcd`. The descriptor -1 is that of no file: the domain is private.
    fn open_xrcd(context: ContextArgument<'_>, attr: Option<&ibv_xrcd_init_attr>) -> OrNull<ibv_xrcd> {
        let (found, attr) = (&context.required()?.context, required(attr)?);
        let needed = (IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS).cast_unsigned();
        if attr.comp_mask & !needed != 0 {
            return Err(Failure::UNSUPPORTED);
        }
        if attr.comp_mask != needed {
            return Err(Failure::INVALID);
        }
        let share = if attr.fd == -1 {
            XrcdShare::Private
        } else {
            // SAFETY: the descriptor is one of the program. The kernel checks that it is open.
            let file = unsafe { BorrowedFd::borrow_raw(attr.fd) };
            match (attr.oflags & libc::O_CREAT != 0, attr.oflags & libc::O_EXCL != 0) {
                (false, false) => XrcdShare::Join(file),
                (true, false) => XrcdShare::JoinOrCreate(file),
                (true, true) => XrcdShare::Create(file),
                (false, true) => return Err(Failure::INVALID),
            }
        };
        Object::create(|_| Ok((ibv_xrcd { context: context.pointer() }, found.open_xrcd(share)?)))
    }

    /// `ibv_close_xrcd`.
    fn close_xrcd(xrcd: Option<NonNull<XrcdObject>>) -> OrErrno {
        // SAFETY: the argument is a live domain, which the program uses no longer.
        unsafe { Object::destroy(required(xrcd)?, Xrcd::close, |_, ()| ()) }
    }
}
