//! The measured queue pair, over `AnyProvider` or the provider's own types.

use bareverbs::buffer::Target;
use bareverbs::cq::{Completion, Completions, Cq, CqInit, WorkCompletion};
use bareverbs::qp::{
    Operation, Payload, Qp, QpInit, Rc, RecvHalf, RecvRequest, SendFlags, SendHalf, SendRequest, Sge,
};
use bareverbs::{
    AnyCq, AnyProvider, AnyRq, AnySq, Buffer, Connection, Endpoint, Imm, MemoryOwner, Mr, Pd, PoolBuffer,
    Provider, RegionMut, Remote, WcStatus, testing,
};
use bareverbs_mlx5::testing::DmaRange;
use bareverbs_mlx5::{Mlx5, Mlx5Cq, Mlx5Rq, Mlx5Sq};
use bareverbs_mlx5_testbed::{Testbed, recv, request, send};
use bareverbs_provider::traits::CompletionQueue;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

pub use crate::provider::Given;

/// Bytes of a page.
const PAGE: usize = 0x1000;

/// Minimum depth of the queues.
pub const DEPTH: u32 = 256;

/// A provider that can wrap mlx5 queues.
pub trait WrapMlx5: Provider {
    /// The send queue.
    fn sq(queue: Mlx5Sq) -> Self::Sq;
    /// The receive queue.
    fn rq(queue: Mlx5Rq) -> Self::Rq;
    /// The completion queue.
    fn cq(queue: Mlx5Cq) -> Self::Cq;
}

impl WrapMlx5 for Mlx5 {
    fn sq(queue: Mlx5Sq) -> Mlx5Sq {
        queue
    }

    fn rq(queue: Mlx5Rq) -> Mlx5Rq {
        queue
    }

    fn cq(queue: Mlx5Cq) -> Mlx5Cq {
        queue
    }
}

impl WrapMlx5 for AnyProvider {
    fn sq(queue: Mlx5Sq) -> AnySq {
        AnySq::Mlx5(queue)
    }

    fn rq(queue: Mlx5Rq) -> AnyRq {
        AnyRq::Mlx5(queue)
    }

    fn cq(queue: Mlx5Cq) -> AnyCq {
        AnyCq::Mlx5(queue)
    }
}

/// A buffer of the safe layer.
pub trait SafeBuffer: Target {
    /// The name of its type.
    const NAME: &str;

    /// A buffer of all bytes of a region.
    fn of(region: Mr<Buffer>) -> Self;
}

impl SafeBuffer for RegionMut<Buffer> {
    const NAME: &str = "RegionMut";

    fn of(region: Mr<Buffer>) -> Self {
        Self::new(region).map_err(|refused| refused.error).expect("local rights")
    }
}

impl SafeBuffer for Mr<Buffer> {
    const NAME: &str = "Mr";

    fn of(region: Mr<Buffer>) -> Self {
        region
    }
}

impl SafeBuffer for PoolBuffer {
    const NAME: &str = "PoolBuffer";

    fn of(region: Mr<Buffer>) -> Self {
        testing::pool(region).take().expect("a free buffer")
    }
}

/// The send queue of the peer, its CQ, and the HCA.
struct Sender {
    sq: Mlx5Sq,
    cq: Mlx5Cq,
    testbed: Testbed,
}

impl Sender {
    /// Executes an operation with 8 bytes.
    fn execute(&mut self, operation: Operation) {
        send(&mut self.sq, &request(1, operation, &[self.testbed.sge(0, 8)]));
        self.testbed.run();
        while self.cq.next_value().is_some() {}
    }
}

/// The queue pair and its CQ as objects of the public API.
type Objects<P> = (Qp<Rc, Given<P>>, Cq<Given<P>>);

/// A queue pair, its peer, and the HCA of both.
pub struct Harness<P: WrapMlx5> {
    /// The measured send queue.
    pub sq: P::Sq,
    /// The measured receive queue.
    pub rq: P::Rq,
    /// The CQ of both.
    pub cq: P::Cq,
    /// The target of writes.
    pub remote: Remote,
    /// The memory of receives.
    pub sge: Sge,
    sender: Sender,
}

impl<P: WrapMlx5> Harness<P> {
    /// Sets the queue pair up. Each kind of request has been posted and polled once.
    #[expect(clippy::new_without_default, reason = "creating a device is too costly for `Default`")]
    #[must_use]
    pub fn new() -> Self {
        Self::with_register(true)
    }

    /// The same, with a BlueFlame register or with one that takes plain doorbells only.
    #[must_use]
    pub fn with_register(blue_flame: bool) -> Self {
        let mut testbed = Testbed::new();
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let (cq, peer_cq) = (testbed.cq(10, 64), testbed.cq(10, 64));
        let left = testbed.qp(QpType::RC, &cap, (&cq, &cq), None, blue_flame);
        let right = testbed.qp(QpType::RC, &cap, (&peer_cq, &peer_cq), None, false);
        testbed.hca().connect(left.number, right.number).expect("a connection");
        let mut rq = left.rq.expect("receives");
        let (mut sq, mut peer) = (left.sq, right.sq);
        let (remote, sge) = (testbed.remote(0x1000), testbed.sge(0x2000, 64));
        recv(&mut rq, 1, &[sge]);
        send(&mut sq, &request(2, Operation::Write(remote), &[sge]));
        send(&mut peer, &request(3, Operation::Send, &[testbed.sge(0, 8)]));
        let (sq, rq, cq) = (P::sq(sq), P::rq(rq), P::cq(cq.queue));
        let sender = Sender { sq: peer, cq: peer_cq.queue, testbed };
        let mut harness = Self { sq, rq, cq, remote, sge, sender };
        harness.run();
        assert_eq!(harness.drain(), 2);
        harness
    }

    #[inline(always)]
    fn send(&mut self) -> SendHalf<'_, Rc, P> {
        SendHalf::from_raw_queue(&mut self.sq)
    }

    #[inline(always)]
    fn recv(&mut self) -> RecvHalf<'_, Rc, P> {
        RecvHalf::from_raw_queue(&mut self.rq)
    }

    /// Posts a write of 8 bytes, with its doorbell.
    #[inline(always)]
    pub fn post_write(&mut self, wr_id: u64, remote: Remote, bytes: &[u8; 8]) -> bool {
        let (operation, payload) = (Operation::Write(remote), Payload::Inline(&[bytes]));
        let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload };
        // SAFETY: no SGEs, so the device can't access memory.
        unsafe { self.send().post_send(&[request]) }.is_ok()
    }

    /// Posts a list of requests.
    #[inline(always)]
    pub fn post_list(&mut self, requests: &[SendRequest<'_>]) -> bool {
        // SAFETY: the requests have no SGEs.
        unsafe { self.send().post_send(requests) }.is_ok()
    }

    /// Posts `count` writes of 8 bytes with one doorbell.
    #[inline(always)]
    pub fn post_batch(&mut self, count: u64, remote: Remote, bytes: &[u8; 8]) -> bool {
        let mut send = self.send();
        let mut batch = send.start_send();
        for wr_id in 0..count {
            if batch.write_inline(wr_id, remote, bytes, SendFlags::SIGNALED).is_err() {
                return false;
            }
        }
        batch.ring().is_ok()
    }

    /// Posts a receive.
    #[inline(always)]
    pub fn post_recv(&mut self, wr_id: u64, sge: &Sge) {
        // SAFETY: the region outlives the HCA and is not accessed meanwhile.
        unsafe { self.recv().post_recv(&[RecvRequest { wr_id, sges: std::slice::from_ref(sge) }]) }
            .expect("room")
    }

    /// Posts a list of receives.
    #[inline(always)]
    pub fn post_receives(&mut self, requests: &[RecvRequest<'_>]) -> bool {
        // SAFETY: the region outlives the device and is not accessed meanwhile.
        unsafe { self.recv().post_recv(requests) }.is_ok()
    }

    /// Polls a completion in place and releases its slot.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<(u64, WcStatus, u32)> {
        let mut completions = Completions::<P>::from_raw_queue(&mut self.cq);
        let completion = completions.next()?;
        Some((completion.wr_id(), completion.status(), completion.byte_len()))
    }

    /// As [`Harness::poll`], of a receive with immediate data.
    #[inline(always)]
    pub fn poll_imm(&mut self) -> Option<(u64, WcStatus, u32, Option<Imm>)> {
        let mut completions = Completions::<P>::from_raw_queue(&mut self.cq);
        let completion = completions.next()?;
        Some((completion.wr_id(), completion.status(), completion.byte_len(), completion.imm()))
    }

    /// Polls a completion by value.
    #[inline(always)]
    pub fn poll_one(&mut self) -> Option<WorkCompletion> {
        self.cq.next_value()
    }

    /// Posts a write of one SGE.
    #[inline(always)]
    pub fn post_sge(&mut self, wr_id: u64, sge: Sge, flags: SendFlags) -> bool {
        let (operation, payload) = (Operation::Write(self.remote), Payload::Sges(&[sge]));
        let request = SendRequest { wr_id, operation, flags, payload };
        // SAFETY: the region outlives the HCA and is not accessed meanwhile.
        unsafe { self.send().post_send(&[request]) }.is_ok()
    }

    /// The same queues in an endpoint.
    #[must_use]
    pub fn into_endpoint<B>(self) -> (Endpoint<B, Given<P>>, Peer<P>) {
        let ((qp, cq), peer) = self.into_objects();
        // SAFETY: `into_objects` made the CQ for this QP, whose earlier requests are complete. The device
        // takes requests as in RTS.
        (unsafe { testing::endpoint(qp, cq) }, peer)
    }

    /// The same queues in a connection of a hub.
    #[must_use]
    pub fn into_connection(self) -> (Connection<PoolBuffer, Given<P>>, Peer<P>) {
        let ((qp, cq), peer) = self.into_objects();
        // SAFETY: as in `endpoint`.
        (unsafe { testing::connection(qp, cq) }, peer)
    }

    fn into_objects(self) -> (Objects<P>, Peer<P>) {
        let Self { sq, rq, cq, remote, sender, .. } = self;
        // SAFETY: the QP of the queues is connected. The device runs in methods of `Peer` only, and the
        // safe layer leaks memory of requests that have not completed.
        let provider = unsafe { Given::new(cq, (sq, rq)) };
        let pd = testing::pd(provider, DEPTH);
        let cq = pd.context().create_cq(&CqInit::new(2 * DEPTH)).expect("the given CQ");
        let mut init = QpInit::new(&cq, &cq);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (DEPTH, DEPTH);
        let qp = pd.create_qp(&init).expect("the given QP");
        ((qp, cq), Peer { pd, remote, sender })
    }

    /// Makes the peer send `count` messages of 8 bytes.
    pub fn receive(&mut self, count: u64) {
        (0..count).for_each(|_| self.receive_by(Operation::Send));
    }

    /// Makes the peer execute an operation with 8 bytes.
    pub fn receive_by(&mut self, operation: Operation) {
        self.sender.execute(operation);
    }

    /// Runs the HCA until it is idle.
    pub fn run(&mut self) {
        self.sender.testbed.run();
    }

    /// Polls all completions, which must be successful. Returns their number.
    pub fn drain(&mut self) -> usize {
        let mut taken = 0;
        while let Some((wr_id, status, _)) = self.poll() {
            assert_eq!(status, WcStatus::SUCCESS, "request {wr_id}");
            taken += 1;
        }
        taken
    }
}

/// The peer of an endpoint or a connection, and the HCA of both.
pub struct Peer<P: WrapMlx5> {
    pd: Pd<Given<P>>,
    /// The target of writes.
    pub remote: Remote,
    sender: Sender,
}

impl<P: WrapMlx5> Peer<P> {
    /// A buffer of 64 bytes.
    pub fn buffer<B: SafeBuffer>(&mut self) -> B {
        let mut buffer = Buffer::zeroed(64).expect("memory");
        let (start, len) = (buffer.region().0, PAGE);
        // SAFETY: the buffer has a page of its own. Its region has no kernel object, so it is never freed.
        let lkey = unsafe { self.sender.testbed.register(DmaRange { start, len }) };
        // SAFETY: the device has just registered the page.
        B::of(unsafe { testing::mr(&self.pd, buffer, lkey) })
    }

    /// Executes an operation with 8 bytes.
    pub fn execute(&mut self, operation: Operation) {
        self.sender.execute(operation);
    }

    /// Runs the HCA until it is idle.
    pub fn run(&mut self) {
        self.sender.testbed.run();
    }
}
