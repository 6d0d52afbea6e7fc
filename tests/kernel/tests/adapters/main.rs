//! What adapters have beyond Soft-RoCE, through the public API; and that it is refused in so many words elsewhere.

mod xrc;

use bareverbs_kernel_tests::{device, kernel_tests};
use xrc::*;

kernel_tests! {
    an_extended_connection_reaches_the_queues_that_it_names if device::xrc,
    an_extended_connection_carries_every_operation_of_a_reliable_one if device::xrc,
    a_domain_is_shared_by_its_file if device::xrc,
    a_domain_joined_or_made_is_told_from_the_other if device::xrc,
    a_queue_of_an_extended_domain_tells_once_that_it_runs_low if device::xrc,
    an_extended_request_to_nobody_fails if device::xrc,
    an_extended_connection_refuses_what_it_does_not_carry if device::xrc,
    an_extended_domain_goes_after_all_that_is_in_it if device::xrc,
    extended_objects_of_another_context_are_refused if device::xrc,
    without_extended_connections_their_verbs_say_so if device::no_xrc,
}
