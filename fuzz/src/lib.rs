//! The fuzz targets: one function of bytes for each parser of untrusted input.
//!
//! A function returns for any bytes, or panics if its property does not hold; its module states the
//! property. The crate in `libfuzzer` builds a program of each target, `cargo xtask fuzz` runs
//! them, and the test `replay` runs each function on its corpus.

mod input;
mod soft_program;

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(
            mod $name;
            #[doc = concat!("Target `", stringify!($name), "`.")]
            pub fn $name(data: &[u8]) {
                $name::run(data);
            }
        )*

        /// All targets by name.
        pub const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name)),*];
    };
}

targets! {
    cm_events,
    cmtime_peers,
    dump_text,
    fabric_packets,
    grh_header,
    hca_bar,
    hca_commands,
    hca_engine,
    hca_vfio_user,
    malicious_device,
    netlink_messages,
    nldev_answers,
    perf_exchange,
    pingpong_exchange,
    rdma_cm_text,
    route_answers,
    rxe_rings,
    soft_calls,
    soft_cm,
    soft_packets,
    soft_rings,
    sysfs_text,
    uapi_calls,
}
