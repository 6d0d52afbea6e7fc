//! The kernel series that the project checks: one line each.

/// A kernel series, and the source of its image, modules and headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSeries {
    /// The series, as in the `since` of ABI items.
    pub since: Since,
    /// The Debian release that ships it, by codename.
    pub debian: &'static str,
}

macro_rules! kernels {
    (
        released { $($(#[doc = $doc:literal])* $since:ident = $name:literal, $debian:literal;)+ }
        next { $(#[doc = $next_doc:literal])* $next:ident = $next_name:literal; }
    ) => {
        /// A kernel series whose headers and behaviour the project checks, oldest first, or the one
        /// after them.
        ///
        /// As the `since` of an item, it is the first of these series that has the item. The oldest
        /// series includes all earlier kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Since {
            $($(#[doc = $doc])* $since,)+
            $(#[doc = $next_doc])* $next,
        }

        impl Since {
            /// The version as text, such as `6.12`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$since => $name,)+
                    Self::$next => $next_name,
                }
            }
        }

        /// The checked series, oldest first.
        pub const KERNELS: [KernelSeries; [$($name),+].len()] =
            [$(KernelSeries { since: Since::$since, debian: $debian }),+];
    };
}

kernels! {
    released {
        /// Linux 6.1.
        V6_1 = "6.1", "bookworm";
        /// Linux 6.12.
        V6_12 = "6.12", "trixie";
        /// Linux 7.2.
        V7_2 = "7.2", "sid";
    }
    next {
        /// Linux 7.3, which no Debian release has yet. The verbs, mlx5 and netlink items of its release
        /// candidate are declared.
        V7_3 = "7.3";
    }
}
