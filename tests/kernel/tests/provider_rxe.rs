//! The Soft-RoCE provider on a real kernel: two reliable connections of one process, joined to each other.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bareverbs_kernel_tests::device::soft_roce;
use bareverbs_kernel_tests::kernel_tests;
use bareverbs_provider::Errno;
use bareverbs_provider::command::{self, CreatedMr, DriverPayload, MrRequest, RegMrMethod};
use bareverbs_provider::contract::{
    Completion as _, CompletionQueue, CqRequest, CreatedCq, CreatedQp, DoorbellChoice, DoorbellError,
    Provider, QpRequest, QueueMemory, RecvQueue, SendQueue, SrqRequest,
};
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::work::{
    Operation, Payload, RecvRequest, Refusal, Remote, SendFlags, SendRequest, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};
use bareverbs_rxe::Rxe;
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::{AccessFlags, DriverId, QpCap, QpCreateFlags, QpType};
use bareverbs_uapi::verbs_values::{Mtu, QpAttrMask, QpState, RnrTimeout};
use bareverbs_uapi::write::structs::{ModifyQpReq, QpDest};

kernel_tests! {
    every_operation_moves_its_bytes if soft_roce,
    several_elements_of_several_regions_are_gathered_and_scattered_in_order if soft_roce,
    inline_data_need_no_element_and_no_region if soft_roce,
    a_queue_takes_exactly_as_many_requests_as_it_says if soft_roce,
    small_rings_carry_many_messages if soft_roce,
    a_batch_refused_below_rts_is_never_sent if soft_roce,
    the_doorbell_flushes_a_queue_pair_in_error if soft_roce,
    a_queue_pair_works_again_after_reset if soft_roce,
    an_armed_queue_raises_one_event if soft_roce,
    a_shared_queue_feeds_a_connection if soft_roce,
    a_region_has_the_range_that_was_registered if soft_roce,
    a_foreign_key_fails_with_its_status if soft_roce,
    destroyed_objects_leave_no_handles if soft_roce,
}

/// Registered memory, touched through raw pointers only.
struct Memory {
    start: *mut u8,
    layout: Layout,
    mr: CreatedMr,
}

impl Memory {
    fn new(host: &Host, len: usize) -> Self {
        let layout = Layout::from_size_align(len, 4096).unwrap();
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_ATOMIC;
        let addr = start.expose_provenance() as u64;
        let request = MrRequest { pd: host.pd, addr, length: len as u64, iova: addr, access };
        // SAFETY: the memory is given back only after the file is closed or the region is gone.
        let mr = unsafe { host.reg_mr.register(&host.file, &request) }.unwrap();
        Self { start, layout, mr }
    }

    fn addr(&self, offset: usize) -> u64 {
        self.start.expose_provenance() as u64 + offset as u64
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: self.addr(offset), length, lkey: self.mr.lkey }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.addr(offset), rkey: self.mr.rkey }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.layout.size());
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the allocation.
            unsafe { self.start.add(offset + i).write_volatile(*byte) };
        }
    }

    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.layout.size());
        // SAFETY: inside the allocation.
        (0..len).map(|i| unsafe { self.start.add(offset + i).read_volatile() }).collect()
    }

    fn give_back(self, host: &Host) {
        command::dereg_mr(&host.file, self.mr.handle).unwrap();
        // SAFETY: allocated with this layout, and no longer registered.
        unsafe { dealloc(self.start, self.layout) };
    }
}

struct Host {
    file: Arc<DeviceFile>,
    rxe: Rxe,
    pd: u32,
    reg_mr: RegMrMethod,
}

impl Host {
    fn new() -> Self {
        let file = Arc::new(DeviceFile::open("/dev/infiniband/uverbs0", DriverId::RXE.0).unwrap());
        let rxe = Rxe::open(file.clone()).unwrap();
        assert!(rxe.context_info().num_comp_vectors > 0);
        // SAFETY: rxe has no payload for protection domains.
        let pd = unsafe { command::alloc_pd(&file, DriverPayload::default()) }.unwrap();
        Self { file, rxe, pd, reg_mr: RegMrMethod::default() }
    }

    fn cq(&self, entries: u32) -> CreatedCq<Rxe> {
        self.rxe
            .create_cq(&CqRequest {
                entries,
                user_handle: 0,
                channel: None,
                vector: 0,
                compressed: false,
                memory: QueueMemory::Ordinary,
            })
            .unwrap()
    }

    fn qp(&self, cq: &CreatedCq<Rxe>, srq: Option<u32>, cap: QpCap) -> CreatedQp<Rxe> {
        let request = QpRequest {
            pd: self.pd,
            send_cq: cq.handle,
            recv_cq: cq.handle,
            srq,
            qp_type: QpType::RC,
            cap,
            max_tso_header: 0,
            flags: QpCreateFlags::empty(),
            scatter_to_cqe: false,
            user_handle: 0,
            doorbell: DoorbellChoice::Any,
            memory: QueueMemory::Ordinary,
        };
        self.rxe.create_qp(&request).unwrap()
    }

    fn modify(&self, qp: &CreatedQp<Rxe>, mask: QpAttrMask, request: ModifyQpReq) {
        let request = ModifyQpReq { qp_handle: qp.handle, attr_mask: mask | QpAttrMask::STATE, ..request };
        command::modify_qp(&self.file, &request).unwrap();
    }

    fn state(&self, qp: &CreatedQp<Rxe>, state: QpState) {
        self.modify(qp, QpAttrMask::empty(), ModifyQpReq { qp_state: state, ..ModifyQpReq::zeroed() });
    }

    fn init(&self, qp: &CreatedQp<Rxe>) {
        let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        self.modify(
            qp,
            QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS,
            ModifyQpReq {
                qp_state: QpState::INIT,
                port_num: 1,
                qp_access_flags: access,
                ..ModifyQpReq::zeroed()
            },
        );
    }

    fn ready_to_receive(&self, qp: &CreatedQp<Rxe>, peer: &CreatedQp<Rxe>) {
        let gid = command::query_gid_entry(&self.file, 1, 1).unwrap();
        let dest = QpDest {
            dgid: gid.gid,
            sgid_index: 1,
            hop_limit: 1,
            is_global: 1,
            port_num: 1,
            ..QpDest::zeroed()
        };
        self.modify(
            qp,
            QpAttrMask::AV
                | QpAttrMask::PATH_MTU
                | QpAttrMask::DEST_QPN
                | QpAttrMask::RQ_PSN
                | QpAttrMask::MAX_DEST_RD_ATOMIC
                | QpAttrMask::MIN_RNR_TIMER,
            ModifyQpReq {
                dest,
                qp_state: QpState::RTR,
                path_mtu: Mtu::MTU_1024,
                dest_qp_num: peer.qp_num,
                rq_psn: 0,
                max_dest_rd_atomic: 1,
                min_rnr_timer: RnrTimeout(12),
                ..ModifyQpReq::zeroed()
            },
        );
    }

    fn ready_to_send(&self, qp: &CreatedQp<Rxe>) {
        self.modify(
            qp,
            QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::SQ_PSN
                | QpAttrMask::MAX_QP_RD_ATOMIC,
            ModifyQpReq {
                qp_state: QpState::RTS,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                sq_psn: 0,
                max_rd_atomic: 1,
                ..ModifyQpReq::zeroed()
            },
        );
    }

    fn connect(&self, one: &CreatedQp<Rxe>, other: &CreatedQp<Rxe>) {
        for (qp, peer) in [(one, other), (other, one)] {
            self.init(qp);
            self.ready_to_receive(qp, peer);
            self.ready_to_send(qp);
        }
    }

    fn destroy(
        &self,
        qps: impl IntoIterator<Item = CreatedQp<Rxe>>,
        cqs: impl IntoIterator<Item = CreatedCq<Rxe>>,
    ) {
        for qp in qps {
            command::destroy_qp(&self.file, qp.handle).unwrap();
        }
        for cq in cqs {
            command::destroy_cq(&self.file, cq.handle).unwrap();
        }
    }
}

const CAP: QpCap =
    QpCap { max_send_wr: 10, max_recv_wr: 10, max_send_sge: 2, max_recv_sge: 3, max_inline_data: 64 };

/// Two connected queue pairs, each with a completion queue of its own.
struct Pair {
    host: Host,
    client: CreatedQp<Rxe>,
    client_cq: CreatedCq<Rxe>,
    server: CreatedQp<Rxe>,
    server_cq: CreatedCq<Rxe>,
}

impl Pair {
    fn unconnected(cap: QpCap) -> Self {
        let host = Host::new();
        let (client_cq, server_cq) = (host.cq(100), host.cq(100));
        let (client, server) = (host.qp(&client_cq, None, cap), host.qp(&server_cq, None, cap));
        Self { host, client, client_cq, server, server_cq }
    }

    fn new(cap: QpCap) -> Self {
        let pair = Self::unconnected(cap);
        pair.host.connect(&pair.client, &pair.server);
        pair
    }

    fn receive(&mut self, wr_id: u64, sges: &[Sge]) {
        let queue = self.server.rq.as_mut().unwrap();
        // SAFETY: the memory stays registered until the completion is seen.
        unsafe { queue.push(&RecvRequest { wr_id, sges }) }.unwrap();
        queue.ring();
    }

    fn send(&mut self, wr_id: u64, operation: Operation, payload: Payload<'_>) {
        push(&mut self.client, wr_id, operation, payload).unwrap();
        self.client.sq.ring().unwrap();
    }
}

fn push(
    qp: &mut CreatedQp<Rxe>,
    wr_id: u64,
    operation: Operation,
    payload: Payload<'_>,
) -> Result<(), Refusal> {
    // SAFETY: the memory stays registered until the completion is seen.
    unsafe { qp.sq.push(&SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload }) }
}

fn try_poll(cq: &mut CreatedCq<Rxe>) -> Option<WorkCompletion> {
    let completion = cq.queue.next().map(|completion| completion.to_value());
    cq.queue.release();
    completion
}

fn poll(cq: &mut CreatedCq<Rxe>) -> WorkCompletion {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(completion) = try_poll(cq) {
            return completion;
        }
        assert!(Instant::now() < deadline, "no completion came");
        std::thread::yield_now();
    }
}

#[track_caller]
fn succeeds(cq: &mut CreatedCq<Rxe>, wr_id: u64, opcode: WcOpcode) -> WorkCompletion {
    let completion = poll(cq);
    assert_eq!((completion.wr_id, completion.status, completion.opcode), (wr_id, WcStatus::SUCCESS, opcode));
    completion
}

fn every_operation_moves_its_bytes() {
    let mut pair = Pair::new(CAP);
    let (local, remote) = (Memory::new(&pair.host, 8192), Memory::new(&pair.host, 8192));
    local.write(0, b"from the client");
    remote.write(4096, b"from the server");
    let bytes = [local.sge(0, 15)];

    pair.receive(100, &[remote.sge(0, 64)]);
    pair.send(1, Operation::Send, Payload::Sges(&bytes));
    succeeds(&mut pair.client_cq, 1, WcOpcode::SEND);
    let received = succeeds(&mut pair.server_cq, 100, WcOpcode::RECV);
    assert_eq!((received.byte_len, received.qp_num), (15, pair.server.qp_num));
    assert_eq!(remote.read(0, 16), b"from the client\0");

    pair.receive(101, &[remote.sge(64, 64)]);
    pair.send(2, Operation::SendImm(0x0102_0304u32.to_be()), Payload::Inline(&[b"with ", b"data"]));
    succeeds(&mut pair.client_cq, 2, WcOpcode::SEND);
    pair.server_cq.queue.release();
    let received = succeeds(&mut pair.server_cq, 101, WcOpcode::RECV);
    assert_eq!((received.byte_len, u32::from_be(received.imm_data)), (9, 0x0102_0304));
    assert_eq!(remote.read(64, 9), b"with data");

    pair.send(3, Operation::Write(remote.remote(128)), Payload::Sges(&bytes));
    succeeds(&mut pair.client_cq, 3, WcOpcode::RDMA_WRITE);
    assert_eq!(remote.read(128, 15), b"from the client");

    pair.receive(102, &[]);
    pair.send(4, Operation::WriteImm(remote.remote(192), 7u32.to_be()), Payload::Sges(&bytes));
    succeeds(&mut pair.client_cq, 4, WcOpcode::RDMA_WRITE);
    let received = succeeds(&mut pair.server_cq, 102, WcOpcode::RECV_RDMA_WITH_IMM);
    assert_eq!((received.byte_len, u32::from_be(received.imm_data)), (15, 7));
    assert_eq!(remote.read(192, 15), b"from the client");

    pair.send(
        5,
        Operation::Read(remote.remote(4096)),
        Payload::Sges(&[local.sge(1024, 5), local.sge(2048, 10)]),
    );
    let read = succeeds(&mut pair.client_cq, 5, WcOpcode::RDMA_READ);
    assert_eq!(read.byte_len, 15);
    assert_eq!((local.read(1024, 5), local.read(2048, 10)), (b"from ".to_vec(), b"the server".to_vec()));

    remote.write(512, &40u64.to_ne_bytes());
    let old = [local.sge(3072, 8)];
    pair.send(6, Operation::FetchAdd { remote: remote.remote(512), add: 2 }, Payload::Sges(&old));
    succeeds(&mut pair.client_cq, 6, WcOpcode::FETCH_ADD);
    assert_eq!(
        (local.read(3072, 8), remote.read(512, 8)),
        (40u64.to_ne_bytes().into(), 42u64.to_ne_bytes().into())
    );

    for (wr_id, compare, expected) in [(7, 41, 42u64), (8, 42, 99)] {
        let swap = Operation::CmpSwp { remote: remote.remote(512), compare, swap: 99 };
        pair.send(wr_id, swap, Payload::Sges(&old));
        succeeds(&mut pair.client_cq, wr_id, WcOpcode::COMP_SWAP);
        assert_eq!(local.read(3072, 8), 42u64.to_ne_bytes());
        assert_eq!(remote.read(512, 8), expected.to_ne_bytes());
    }
}

fn several_elements_of_several_regions_are_gathered_and_scattered_in_order() {
    let mut pair = Pair::new(QpCap { max_send_sge: 3, ..CAP });
    let (one, other) = (Memory::new(&pair.host, 8192), Memory::new(&pair.host, 8192));
    let bytes: Vec<u8> = (0..3000u32).map(|i| (i * 7) as u8).collect();
    one.write(10, &bytes[..1000]);
    other.write(20, &bytes[1000..1001]);
    one.write(5000, &bytes[1001..]);
    pair.receive(2, &[other.sge(4096, 2500), one.sge(2048, 600)]);
    let gather = [one.sge(10, 1000), other.sge(20, 1), one.sge(5000, 1999)];
    pair.send(1, Operation::Send, Payload::Sges(&gather));
    succeeds(&mut pair.client_cq, 1, WcOpcode::SEND);
    assert_eq!(succeeds(&mut pair.server_cq, 2, WcOpcode::RECV).byte_len, 3000);
    assert_eq!(other.read(4096, 2500), bytes[..2500]);
    assert_eq!(one.read(2048, 500), bytes[2500..]);
}

fn inline_data_need_no_element_and_no_region() {
    // Kernels that check the element in work refuse inline data on a queue of width 0; ours has one at least.
    let mut pair = Pair::new(QpCap { max_send_sge: 0, max_inline_data: 8, ..CAP });
    let memory = Memory::new(&pair.host, 4096);
    assert!(pair.client.cap.max_inline_data >= 8);
    pair.receive(2, &[memory.sge(0, 64)]);
    pair.send(1, Operation::Send, Payload::Inline(&[b"8 bytes."]));
    succeeds(&mut pair.client_cq, 1, WcOpcode::SEND);
    succeeds(&mut pair.server_cq, 2, WcOpcode::RECV);
    assert_eq!(memory.read(0, 8), b"8 bytes.");
}

fn a_queue_takes_exactly_as_many_requests_as_it_says() {
    let mut pair = Pair::new(CAP);
    let memory = Memory::new(&pair.host, 4096);
    assert_eq!((pair.client.cap.max_send_wr, pair.client.cap.max_recv_wr), (15, 15));
    assert_eq!(pair.client_cq.entries, 127);

    let recv = pair.server.rq.as_mut().unwrap();
    for wr_id in 0..15 {
        // SAFETY: the memory stays registered.
        unsafe { recv.push(&RecvRequest { wr_id, sges: &[memory.sge(0, 8)] }) }.unwrap();
    }
    // SAFETY: as above.
    let refusal = unsafe { recv.push(&RecvRequest { wr_id: 15, sges: &[] }) };
    assert_eq!(refusal, Err(Refusal::QueueFull { capacity: 15 }));
    recv.ring();

    for wr_id in 0..15 {
        push(&mut pair.client, wr_id, Operation::Send, Payload::Inline(&[b"12345678"])).unwrap();
    }
    let refusal = push(&mut pair.client, 15, Operation::Send, Payload::Inline(&[]));
    assert_eq!(refusal, Err(Refusal::QueueFull { capacity: 15 }));
    pair.client.sq.ring().unwrap();
    for wr_id in 0..15 {
        succeeds(&mut pair.client_cq, wr_id, WcOpcode::SEND);
        succeeds(&mut pair.server_cq, wr_id, WcOpcode::RECV);
    }
    for wr_id in 15..30 {
        push(&mut pair.client, wr_id, Operation::Send, Payload::Inline(&[]))
            .expect("all of it is free again");
    }
    pair.client.sq.abort();
}

fn small_rings_carry_many_messages() {
    let mut pair = Pair::new(QpCap { max_send_wr: 3, max_recv_wr: 3, ..CAP });
    let memory = Memory::new(&pair.host, 4096);
    let (mut sent, mut received, mut posted) = (0u64, 0u64, 0u64);
    while received < 500 {
        while posted < 500 && posted < received + 3 {
            pair.receive(posted, &[memory.sge(8 * (posted % 4) as usize, 8)]);
            posted += 1;
        }
        let from = sent;
        while sent < posted {
            push(&mut pair.client, sent, Operation::Send, Payload::Inline(&[&sent.to_ne_bytes()])).unwrap();
            sent += 1;
        }
        pair.client.sq.ring().unwrap();
        for wr_id in from..sent {
            succeeds(&mut pair.client_cq, wr_id, WcOpcode::SEND);
            succeeds(&mut pair.server_cq, wr_id, WcOpcode::RECV);
            assert_eq!(memory.read(8 * (wr_id % 4) as usize, 8), wr_id.to_ne_bytes());
            received += 1;
        }
    }
}

fn a_batch_refused_below_rts_is_never_sent() {
    let mut pair = Pair::unconnected(CAP);
    let memory = Memory::new(&pair.host, 4096);
    let refused = |qp: &mut CreatedQp<Rxe>| {
        for wr_id in [901, 902] {
            push(qp, wr_id, Operation::Send, Payload::Inline(&[b"lost"])).unwrap();
        }
        match qp.sq.ring() {
            Err(DoorbellError::TakenBack(refused)) => assert_eq!(refused.errno, Errno::INVAL),
            other => panic!("{other:?}"),
        }
    };
    refused(&mut pair.client);
    for qp in [&pair.client, &pair.server] {
        pair.host.init(qp);
    }
    refused(&mut pair.client);
    pair.host.ready_to_receive(&pair.client, &pair.server);
    pair.host.ready_to_receive(&pair.server, &pair.client);
    refused(&mut pair.client);
    pair.host.ready_to_send(&pair.client);

    pair.receive(1, &[memory.sge(0, 8)]);
    pair.receive(2, &[memory.sge(8, 8)]);
    pair.send(1, Operation::Send, Payload::Inline(&[b"found"]));
    succeeds(&mut pair.client_cq, 1, WcOpcode::SEND);
    succeeds(&mut pair.server_cq, 1, WcOpcode::RECV);
    assert_eq!(memory.read(0, 5), b"found");
    pair.send(2, Operation::Send, Payload::Inline(&[b"too"]));
    succeeds(&mut pair.client_cq, 2, WcOpcode::SEND);
    succeeds(&mut pair.server_cq, 2, WcOpcode::RECV);
    assert_eq!(try_poll(&mut pair.client_cq), None);
}

fn flushed(pair: &mut Pair) {
    for wr_id in 1..=3 {
        push(&mut pair.client, wr_id, Operation::Send, Payload::Inline(&[b"x"])).unwrap();
    }
    pair.client.sq.ring().expect("the doorbell is answered in the error state");
    for wr_id in 1..=3 {
        let completion = poll(&mut pair.client_cq);
        assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::WR_FLUSH_ERR));
    }
}

fn the_doorbell_flushes_a_queue_pair_in_error() {
    let mut pair = Pair::new(CAP);
    pair.receive(50, &[]);
    for qp in [&pair.client, &pair.server] {
        pair.host.state(qp, QpState::ERR);
    }
    let completion = poll(&mut pair.server_cq);
    assert_eq!((completion.wr_id, completion.status), (50, WcStatus::WR_FLUSH_ERR));
    flushed(&mut pair);
    flushed(&mut pair);
}

fn a_queue_pair_works_again_after_reset() {
    let mut pair = Pair::new(CAP);
    let memory = Memory::new(&pair.host, 4096);
    for round in 0..5 {
        pair.receive(round, &[memory.sge(0, 8)]);
        pair.receive(99, &[memory.sge(0, 8)]);
        pair.send(round, Operation::Send, Payload::Inline(&[b"again"]));
        succeeds(&mut pair.client_cq, round, WcOpcode::SEND);
        succeeds(&mut pair.server_cq, round, WcOpcode::RECV);
        if round % 2 == 0 {
            pair.host.state(&pair.client, QpState::ERR);
            flushed(&mut pair);
        }
        for qp in [&pair.client, &pair.server] {
            pair.host.state(qp, QpState::RESET);
        }
        while try_poll(&mut pair.server_cq).is_some() {}
        pair.host.connect(&pair.client, &pair.server);
    }
}

fn an_armed_queue_raises_one_event() {
    let mut pair = Pair::unconnected(CAP);
    let channel = command::create_comp_channel(&pair.host.file).unwrap();
    let request = CqRequest {
        entries: 10,
        user_handle: 0x1234,
        channel: Some(channel.as_raw_fd()),
        vector: 0,
        compressed: false,
        memory: QueueMemory::Ordinary,
    };
    pair.server_cq = pair.host.rxe.create_cq(&request).unwrap();
    pair.server = pair.host.qp(&pair.server_cq, None, CAP);
    pair.host.connect(&pair.client, &pair.server);

    pair.server_cq.queue.arm(false).unwrap();
    for wr_id in 0..2 {
        pair.receive(wr_id, &[]);
        pair.send(wr_id, Operation::Send, Payload::Inline(&[]));
        succeeds(&mut pair.client_cq, wr_id, WcOpcode::SEND);
        succeeds(&mut pair.server_cq, wr_id, WcOpcode::RECV);
    }
    let mut event = [0; 64];
    let read = std::fs::File::from(channel).read(&mut event).unwrap();
    assert_eq!((read, &event[..8]), (8, &0x1234u64.to_ne_bytes()[..]), "one event, with the queue's number");
}

fn a_shared_queue_feeds_a_connection() {
    let mut pair = Pair::unconnected(CAP);
    let memory = Memory::new(&pair.host, 4096);
    let request = SrqRequest {
        pd: pair.host.pd,
        max_wr: 20,
        max_sge: 2,
        limit: 0,
        memory: QueueMemory::Ordinary,
        user_handle: 0,
        xrc: None,
    };
    let mut srq = pair.host.rxe.create_srq(&request).unwrap();
    assert_eq!((srq.max_wr, srq.max_sge), (31, 2));
    pair.server = pair.host.qp(&pair.server_cq, Some(srq.handle), CAP);
    assert!(pair.server.rq.is_none() && pair.server.cap.max_recv_wr == 0);
    pair.host.connect(&pair.client, &pair.server);
    for wr_id in 0..31 {
        let sges = [memory.sge(0, 2), memory.sge(16, 8)];
        // SAFETY: the memory stays registered.
        unsafe { srq.queue.push(&RecvRequest { wr_id, sges: &sges }) }.unwrap();
    }
    // SAFETY: as above.
    let refusal = unsafe { srq.queue.push(&RecvRequest { wr_id: 31, sges: &[] }) };
    assert_eq!(refusal, Err(Refusal::QueueFull { capacity: 31 }));
    srq.queue.ring();
    for wr_id in 0..31 {
        pair.send(wr_id, Operation::Send, Payload::Inline(&[b"shared"]));
        succeeds(&mut pair.client_cq, wr_id, WcOpcode::SEND);
        succeeds(&mut pair.server_cq, wr_id, WcOpcode::RECV);
        assert_eq!((memory.read(0, 2), memory.read(16, 4)), (b"sh".to_vec(), b"ared".to_vec()));
    }
}

fn a_region_has_the_range_that_was_registered() {
    let host = Host::new();
    let memory = Memory::new(&host, 8192);
    let info = command::query_mr(&host.file, memory.mr.handle).unwrap();
    assert_eq!((info.lkey, info.rkey), (memory.mr.lkey, memory.mr.rkey));
    assert_eq!((info.length, info.iova), (8192, memory.addr(0)));
}

fn a_foreign_key_fails_with_its_status() {
    let mut pair = Pair::new(CAP);
    let memory = Memory::new(&pair.host, 4096);
    let wrong = Sge { lkey: memory.mr.lkey ^ 0x5500, ..memory.sge(0, 8) };
    pair.send(1, Operation::Write(memory.remote(64)), Payload::Sges(&[wrong]));
    let completion = poll(&mut pair.client_cq);
    assert_eq!(completion.wr_id, 1);
    // Newer kernels put the queue pair into the error state first, and then flush the request that caused it.
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let expected = if release.starts_with("6.1.") { WcStatus::LOC_QP_OP_ERR } else { WcStatus::WR_FLUSH_ERR };
    assert_eq!(completion.status, expected);
}

fn destroyed_objects_leave_no_handles() {
    let count = |host: &Host, class| command::info_handles(&host.file, class, &mut [0; 64]).unwrap();
    let pair = Pair::new(CAP);
    let memory = Memory::new(&pair.host, 4096);
    let classes = [ObjectClass::QP, ObjectClass::CQ, ObjectClass::MR, ObjectClass::PD];
    assert_eq!(classes.map(|class| count(&pair.host, class)), [2, 2, 1, 1]);

    // Depths that the device does not have are refused, and leave nothing.
    let request = CqRequest {
        entries: 1 << 31,
        user_handle: 0,
        channel: None,
        vector: 0,
        compressed: false,
        memory: QueueMemory::Ordinary,
    };
    assert!(pair.host.rxe.create_cq(&request).is_err());
    assert_eq!(count(&pair.host, ObjectClass::CQ), 2);

    let Pair { host, client, client_cq, server, server_cq } = pair;
    host.destroy([client, server], [client_cq, server_cq]);
    memory.give_back(&host);
    command::dealloc_pd(&host.file, host.pd).unwrap();
    assert_eq!(classes.map(|class| count(&host, class)), [0; 4]);
}
