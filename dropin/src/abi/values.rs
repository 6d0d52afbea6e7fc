//! Values of `infiniband/verbs.h` that differ from those of the kernel, or that it lacks.
//!
//! The other enumerations of the header have the values of the kernel's, for which `bareverbs` has
//! types. They pass through this library as numbers. The tests compare them too.

macro_rules! values {
    ($( $name:ident = $value:expr; )*) => {
        $( pub(crate) const $name: std::ffi::c_int = $value; )*

        /// What the tests compare with the header.
        #[cfg(test)]
        pub(super) const VALUES: &[(&str, i64)] = &[ $( (stringify!($name), $name as i64), )* ];
    };
}

values! {
    IBV_TRANSPORT_UNKNOWN = -1;
    IBV_TRANSPORT_IB = 0;
    IBV_TRANSPORT_IWARP = 1;
    IBV_TRANSPORT_USNIC = 2;
    IBV_TRANSPORT_USNIC_UDP = 3;
    IBV_TRANSPORT_UNSPECIFIED = 4;

    IBV_WC_GRH = 1 << 0;
    IBV_WC_WITH_IMM = 1 << 1;
    IBV_WC_IP_CSUM_OK = 1 << 2;
    IBV_WC_WITH_INV = 1 << 3;

    IBV_FORK_DISABLED = 0;
    IBV_FORK_UNNEEDED = 2;
}
