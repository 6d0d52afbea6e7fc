//! Names of error numbers.

/// The error numbers that the checks expect or that kernels return instead.
const NAMES: [(i32, &str); 35] = [
    (1, "EPERM"),
    (2, "ENOENT"),
    (4, "EINTR"),
    (5, "EIO"),
    (6, "ENXIO"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (16, "EBUSY"),
    (17, "EEXIST"),
    (19, "ENODEV"),
    (20, "ENOTDIR"),
    (22, "EINVAL"),
    (24, "EMFILE"),
    (25, "ENOTTY"),
    (28, "ENOSPC"),
    (32, "EPIPE"),
    (33, "EDOM"),
    (34, "ERANGE"),
    (38, "ENOSYS"),
    (42, "ENOMSG"),
    (61, "ENODATA"),
    (71, "EPROTO"),
    (75, "EOVERFLOW"),
    (7, "E2BIG"),
    (90, "EMSGSIZE"),
    (93, "EPROTONOSUPPORT"),
    (95, "EOPNOTSUPP"),
    (98, "EADDRINUSE"),
    (99, "EADDRNOTAVAIL"),
    (107, "ENOTCONN"),
    (110, "ETIMEDOUT"),
    (116, "ESTALE"),
];

/// The name of an error number, if it is in the table.
pub(crate) fn name(errno: i32) -> Option<&'static str> {
    NAMES.iter().find(|(number, _)| *number == errno).map(|(_, name)| *name)
}
