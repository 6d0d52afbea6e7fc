//! The rxe provider on a real kernel: two RC queue pairs of one process, connected to each other.

mod host;
mod objects;
mod operations;
mod pair;
mod queues;
mod states;

use bareverbs_kernel_tests::device::soft_roce;
use bareverbs_kernel_tests::kernel_tests;
use objects::*;
use operations::*;
use queues::*;
use states::*;

kernel_tests! {
    every_operation_moves_its_bytes if soft_roce,
    several_elements_of_several_regions_are_gathered_and_scattered_in_order if soft_roce,
    inline_data_need_no_element_and_no_region if soft_roce,
    queue_accepts_exactly_its_capacity if soft_roce,
    small_rings_carry_many_messages if soft_roce,
    batch_rejected_before_rts_is_never_sent if soft_roce,
    the_doorbell_flushes_a_queue_pair_in_error if soft_roce,
    a_queue_pair_works_again_after_reset if soft_roce,
    an_armed_queue_raises_one_event if soft_roce,
    a_shared_queue_feeds_a_connection if soft_roce,
    a_region_has_the_range_that_was_registered if soft_roce,
    both_queries_of_the_device_agree if soft_roce,
    lkey_of_another_pd_fails if soft_roce,
    destroyed_objects_leave_no_handles if soft_roce,
}
