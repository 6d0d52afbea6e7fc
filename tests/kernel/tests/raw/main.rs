//! The raw level: every declared method, invalid calls, adopted handles and addresses of queues.

mod buffers;
mod calls;
mod handles;
mod layouts;

#[path = "../../../../verbs/examples/raw_level.rs"]
mod raw_level;

use bareverbs_kernel_tests::{device, kernel_tests};
use buffers::*;
use calls::*;
use handles::*;
use layouts::*;

kernel_tests! {
    every_declared_method_is_answered_by_the_kernel,
    queries_match_the_verbs,
    write_commands_match_the_verbs,
    invalid_calls_get_the_kernels_errno,
    unknown_attributes_are_rejected_if_mandatory,
    created_objects_are_destroyed_by_their_class,

    cq_ring_is_named_by_an_attribute,
    adopted_handles_work_and_are_destroyed,
    given_up_objects_stay_until_they_are_destroyed,
    adopted_channels_deliver_events,
    adopted_device_memory_is_freed if device::device_memory,

    raw_level_example_runs,
    layout_of_queues_matches_their_memory,
    address_vector_names_the_peer,
}
