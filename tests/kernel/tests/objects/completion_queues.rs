//! Completion queues of any depth, on any vector, with and without a channel.

use std::time::Duration;

use bareverbs::cq::{Arm, CqInit};
use bareverbs::device::DeviceAttr;
use bareverbs::error::ObjectClass;
use bareverbs::{Context, Error};
use bareverbs_kernel_tests::loopback::open;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Completion, Outcome, kernel_test, skip};

/// The minimum, a medium and the maximum depth.
fn depths(context: &Context) -> [u32; 3] {
    let max = context.query_device().unwrap().max_cqe;
    [1, max / 2, max]
}

#[kernel_test]
fn cqs_accept_any_depth_and_vector() {
    nothing_leaks(|| {
        let context = open();
        let vectors = context.capabilities().num_comp_vectors;
        for vector in 0..vectors {
            for entries in depths(&context) {
                let mut cq = context.create_cq(&CqInit { vector, ..CqInit::new(entries) }).unwrap();
                assert!(cq.capacity() >= entries);
                assert!(cq.poll_one().is_none());
                assert_eq!(context.object_count(ObjectClass::CQ).unwrap(), 1);
            }
        }
        for vector in [vectors, vectors + 1, u32::MAX] {
            let refused = context.create_cq(&CqInit { vector, ..CqInit::new(1) }).map(drop).unwrap_err();
            assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        }
        let beyond = depths(&context)[2] + 1;
        assert!(matches!(context.create_cq(&CqInit::new(beyond)).map(drop), Err(Error::Limit { .. })));
        assert_eq!(context.object_count(ObjectClass::CQ).unwrap(), 0);
    });
}

#[kernel_test]
fn cqs_of_any_depth_share_a_channel() {
    nothing_leaks(|| {
        let context = open();
        let channel = context.create_comp_channel().unwrap();
        let mut queues = depths(&context).map(|entries| {
            let init = CqInit { channel: Some(&channel), ..CqInit::new(entries) };
            let cq = context.create_cq(&init).unwrap();
            assert!(cq.capacity() >= entries);
            cq
        });
        queues.iter_mut().for_each(|cq| cq.arm(Arm::Any).unwrap());
        assert_eq!(channel.try_wait().unwrap(), None);
        // The channel may be dropped before its CQs.
        drop(channel);
        queues.iter_mut().for_each(|cq| cq.arm(Arm::Any).unwrap());
    });
}

#[kernel_test]
fn cq_moderation_is_limited_by_the_device() -> Outcome {
    let context = open();
    let DeviceAttr { max_cq_count, max_cq_period, .. } = context.query_device().unwrap();
    let cq = context.create_cq(&CqInit::new(16)).unwrap();
    if max_cq_count == 0 {
        assert!(matches!(cq.moderate(1, Duration::ZERO), Err(Error::Unsupported { .. })));
        return skip("the device does not moderate events");
    }
    let longest = Duration::from_micros(max_cq_period.into());
    cq.moderate(16, Duration::from_nanos(1)).unwrap();
    cq.moderate(max_cq_count, longest).unwrap();
    cq.moderate(0, Duration::ZERO).unwrap();
    let refused = cq.moderate(1, longest + Duration::from_nanos(1)).unwrap_err().to_string();
    let long = u32::from(max_cq_period) + 1;
    assert_eq!(
        refused,
        format!("modify_cq: cq_period in microseconds {long} is above the maximum of {max_cq_period}")
    );
    assert!(matches!(cq.moderate(1, Duration::MAX), Err(Error::Limit { .. })));
    Ok(Completion::Completed)
}
