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
    sges_of_several_mrs_are_gathered_and_scattered_in_order if soft_roce,
    inline_data_needs_no_sge_and_no_mr if soft_roce,
    queue_accepts_exactly_its_capacity if soft_roce,
    small_rings_carry_many_messages if soft_roce,
    batch_rejected_before_rts_is_never_sent if soft_roce,
    batch_posted_in_rtr_after_reset_is_never_sent if soft_roce,
    doorbell_flushes_a_qp_in_err if soft_roce,
    doorbell_rings_for_a_thread_with_other_credentials if soft_roce,
    qp_works_after_reset if soft_roce,
    armed_cq_raises_one_event if soft_roce,
    srq_receives_messages_of_a_connection if soft_roce,
    mr_has_the_registered_range if soft_roce,
    query_device_and_query_device_ex_agree if soft_roce,
    lkey_of_another_pd_fails if soft_roce,
    destroyed_objects_leave_no_handles if soft_roce,
}
