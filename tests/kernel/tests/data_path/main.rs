//! The cost of the data path on a real kernel: system calls, as traced, and allocations, as
//! counted.

mod allocations;
mod system_calls;
mod tracer;

use allocations::*;
use bareverbs_kernel_tests::{device, kernel_tests};
use system_calls::*;

kernel_tests! {
    batch_of_64_sends_is_one_system_call,
    deferred_sends_cost_one_system_call_at_flush,
    post_recv_and_poll_take_no_system_call,
    req_notify_cq_is_one_system_call,
    commands_to_the_device_file_are_ioctls,
    commands_of_the_tool_are_ioctls,
    pingpong_of_one_message_takes_few_system_calls if device::not_instrumented,
    ten_thousand_messages_allocate_nothing,
    endpoint_messages_allocate_nothing,
    endpoints_of_tasks_allocate_nothing,
    server_that_echoes_allocates_nothing,
    wait_for_a_complete_operation_takes_no_system_call,
    complete_operations_of_a_hub_take_no_system_call,
    message_that_has_arrived_takes_no_system_call,
}
