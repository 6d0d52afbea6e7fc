//! A process without free descriptors.

use std::fs::File;

use bareverbs::{Device, Error};
use bareverbs_kernel_tests::loopback::open;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{child, device, kernel_test};
use nix::libc::EMFILE;
use nix::sys::resource::{Resource, setrlimit};

/// Opens all free descriptors of the process. Lower ones are unchanged.
fn take_all_descriptors() -> Vec<File> {
    setrlimit(Resource::RLIMIT_NOFILE, 64, 64).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[kernel_test(device::has_device_node)]
fn open_without_free_descriptors_reports_emfile() {
    nothing_leaks(|| {
        child::run(|| {
            let context = open();
            let device = device::device();
            let mut taken = take_all_descriptors();
            assert!(!taken.is_empty());
            let remedy = "close some descriptors or raise the limit with `ulimit -n`";
            let verbs = [
                ("opening an RDMA netlink socket: ", bareverbs::devices().map(drop)),
                ("opening an RDMA netlink socket: ", Device::find(device::name()).map(drop)),
                ("cannot open /dev/infiniband/uverbs", device.open().map(drop)),
                ("create_comp_channel (a completion channel): ", context.create_comp_channel().map(drop)),
            ];
            for (start, refused) in verbs {
                let refused = refused.expect_err(start);
                assert_eq!(refused.errno().map(|errno| errno.raw_os_error()), Some(EMFILE), "{refused:?}");
                let text = refused.to_string();
                assert!(text.starts_with(start) && text.contains(remedy), "{text}");
            }
            // One descriptor is not enough for a device and its events.
            taken.pop();
            let refused = device.open().map(drop).unwrap_err();
            assert!(matches!(refused, Error::Kernel(_)), "{refused:?}");
            assert!(refused.to_string().contains(remedy), "{refused}");
            taken.clear();
            device.open().unwrap();
            context.create_comp_channel().unwrap();
        });
    });
}
