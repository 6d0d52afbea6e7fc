//! What the data path costs on a real kernel: system calls, seen by a tracer, and allocations, counted.

mod allocations;
mod system_calls;
mod tracer;

use allocations::*;
use bareverbs_kernel_tests::{device, kernel_tests};
use system_calls::*;

kernel_tests! {
    a_batch_of_64_sends_is_one_system_call,
    deferring_is_no_system_call_and_the_flush_is_one,
    posting_receives_and_polling_are_no_system_call,
    arming_is_one_system_call_and_an_event_needs_no_acknowledgement,
    nothing_from_opening_to_dropping_writes_or_reads_the_device_file,
    the_tool_never_writes_or_reads_the_device_file,
    a_ping_pong_of_one_message_takes_few_system_calls_as_client_and_as_server if device::not_instrumented,
    ten_thousand_messages_allocate_nothing,
}
