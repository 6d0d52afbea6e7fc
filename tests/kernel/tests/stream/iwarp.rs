//! Streams on iWARP, whose words are messages.

use bareverbs_kernel_tests::{device, kernel_test};

use crate::bytes;

#[kernel_test(device::iwarp)]
fn streams_carry_bytes_on_iwarp() {
    bytes::stream_carries_bytes_both_ways();
    bytes::large_transfer_arrives_whole();
    bytes::small_writes_arrive_in_order();
    bytes::both_ends_send_at_once_from_two_threads();
    bytes::full_stream_blocks_its_writer_until_the_peer_reads();
    bytes::mapped_memory_is_written_directly();
    bytes::mappings_are_renewed_more_often_than_there_are_receives();
}
