//! Streams over the connection manager, within this host.

mod bytes;
mod ends;
mod hostile;
#[path = "../../../../rdmacm/examples/http2.rs"]
#[expect(dead_code, reason = "its `main`")]
mod http2;
mod impaired;
mod tasks;

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::wire::lossy_wire;
use bareverbs_kernel_tests::{TIMEOUT, kernel_tests};
use bareverbs_rdmacm::stream::{RdmaListener, RdmaStream, StreamOptions};
use bytes::*;
use ends::*;
use hostile::*;
use impaired::*;
use tasks::*;

/// For tests with an IP address of the device.
///
/// # Errors
/// If the port is InfiniBand and the kernel has no IPoIB.
fn has_ip() -> Requirement {
    let there = !device::is_infiniband() || std::path::Path::new("/sys/class/net/ib0").exists();
    if there { Ok(()) } else { Err("this kernel has no IPoIB, so the device has no IP address".into()) }
}

/// The IP address of the device, with any port.
fn any_port() -> SocketAddr {
    let number = if device::is_infiniband() { 2 } else { 1 };
    (Ipv4Addr::new(10, number, 0, 1), 0).into()
}

/// Both ends of a stream.
fn pair_with(options: &StreamOptions) -> (RdmaStream, RdmaStream) {
    pair_of(options, options)
}

/// Both ends of a stream whose listener has other options than the connecting side.
fn pair_of(passive: &StreamOptions, active: &StreamOptions) -> (RdmaStream, RdmaStream) {
    let listener = passive.listen(any_port()).unwrap();
    let addr = listener.local_addr();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept().wait().unwrap());
        let connected = active.connect(addr).wait().unwrap();
        let accepted = accepted.join().unwrap();
        // The accepting side grants all of its receive buffer when it is used first after the peer's
        // confirmation.
        let start = Instant::now();
        while !accepted.is_writable().unwrap() {
            assert!(start.elapsed() < TIMEOUT, "the peer does not confirm");
            thread::sleep(Duration::from_millis(1));
        }
        (connected, accepted)
    })
}

fn pair() -> (RdmaStream, RdmaStream) {
    pair_with(&StreamOptions::default())
}

/// `len` bytes that differ by position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn listener() -> (RdmaListener, SocketAddr) {
    let listener = RdmaListener::bind(any_port()).unwrap();
    let addr = listener.local_addr();
    (listener, addr)
}

kernel_tests! {
    stream_carries_bytes_both_ways if has_ip,
    large_transfer_arrives_whole if has_ip,
    small_writes_arrive_in_order if has_ip,
    small_buffers_carry_large_transfers if has_ip,
    both_ends_send_at_once_from_two_threads if has_ip,
    reader_is_woken_when_another_thread_handles_its_completion if has_ip,
    full_stream_blocks_its_writer_until_the_peer_reads if has_ip,
    descriptor_tells_when_a_call_is_worthwhile if has_ip,
    mapped_memory_is_written_directly if has_ip,
    mappings_are_renewed_more_often_than_there_are_receives if has_ip,
    streams_share_the_open_device_of_the_process if has_ip,
    stream_has_the_options_of_its_identifier if has_ip,
    fifty_streams_share_a_listener if has_ip,
    accepting_side_sends_nothing_before_its_peer_can_receive if device::soft_roce,
    ipv6_streams_carry_bytes if device::ethernet,

    shutdown_ends_one_direction if has_ip,
    writes_after_an_own_shutdown_name_this_side if has_ip,
    dropped_stream_delivers_its_bytes if has_ip,
    reader_gets_all_bytes_wherever_the_end_of_the_connection_finds_it if has_ip,
    bytes_are_acknowledged_before_a_stream_that_both_sides_ended_is_dropped if has_ip,
    shutdown_of_reads_ends_a_read_that_waits if has_ip,
    reads_and_writes_have_time_limits if has_ip,
    connect_errors_name_their_cause if has_ip,
    invalid_options_are_rejected,
    stream_dropped_in_a_forked_child_writes_nothing if has_ip,

    vanished_peer_is_noticed if has_ip,
    reader_is_woken_when_another_thread_reads_the_end_of_the_connection if has_ip,
    request_of_another_protocol_is_rejected if has_ip,
    peer_that_breaks_the_protocol_ends_its_stream if has_ip,
    announced_buffer_without_room_ends_the_stream if has_ip,
    messages_beyond_the_credits_end_the_stream if has_ip,
    message_without_immediate_data_ends_the_stream if has_ip,
    flood_of_words_is_handled_in_bounded_steps if has_ip,
    answer_of_another_protocol_is_an_error_of_connect if has_ip,
    peer_that_ends_during_the_handshake_has_rejected if has_ip,
    peer_that_gives_up_before_it_is_accepted_is_skipped if has_ip,

    keepalive_notices_a_peer_that_is_cut_off if lossy_wire,
    close_of_a_stream_ends_at_its_time_limit if lossy_wire,
    streams_lose_nothing_when_packets_are_lost if lossy_wire,
    streams_lose_nothing_when_packets_are_late if lossy_wire,
    streams_lose_nothing_when_packets_overtake_each_other if lossy_wire,

    tokio_tasks_copy_in_both_directions if has_ip,
    async_io_tasks_copy_in_both_directions if has_ip,
    cancelled_read_loses_no_byte if has_ip,
    waker_may_use_its_stream if has_ip,
    panic_of_a_waker_loses_no_byte if has_ip,
    thread_that_handles_completions_wakes_the_task_of_its_own_direction if has_ip,
    tokio_tasks_connect_and_accept if has_ip,
    stream_of_tasks_that_lingers_delivers_its_bytes_when_dropped if has_ip,
    stream_outside_of_a_runtime_is_refused if has_ip,
    async_io_tasks_connect_and_accept if has_ip,
    http2_server_of_hyper_runs_over_streams if has_ip,
}
