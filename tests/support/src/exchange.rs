//! Two endpoints that exchange messages for many rounds and check the received data.

use bareverbs::ah::{Ah, AhAttr};
use bareverbs::cq::{Cq, CqInit, WcFlags, WorkCompletion};
use bareverbs::qp::{
    Datagram, GRH_BYTES, Operation, Payload, Qp, QpInit, RecvRequest, SendFlags, SendRequest, Sge, Ud,
    UdInitAttr,
};
use bareverbs::values::{AckTimeout, RnrRetry};
use bareverbs::{Access, Buffer, Imm, Mr, Pd, WcStatus};

use crate::loopback::{Plan, Side, contents, pair, region, request, take};

/// Immediate data of all messages with immediate data.
pub const IMM: Imm = Imm(0x8765_4321);

/// The Q_Key of all datagrams.
pub const QKEY: u32 = 0x1357_2468;

/// One of two connected queue pairs, and its memory.
pub struct RcEndpoint {
    /// The queue pair and its CQ.
    pub side: Side,
    /// The memory of sends and receives.
    pub memory: Mr<Buffer>,
}

/// A plan with timeouts that are long enough for a slow guest. Soft-RoCE miscounts reads and
/// atomics that are retried.
pub fn long_timeout_plan() -> Plan {
    Plan { rnr_retry: RnrRetry::INFINITE, timeout: AckTimeout::new(17).unwrap(), ..Plan::default() }
}

/// Two endpoints, each with `len` bytes registered with `access`.
pub fn rc_endpoints(pd: &Pd, len: usize, access: Access) -> [RcEndpoint; 2] {
    let (a, b) = pair(pd, long_timeout_plan());
    [a, b].map(|side| RcEndpoint { side, memory: region(pd, &vec![0; len], access) })
}

/// Each endpoint sends to the other in every round. `turn` is called with the sender, the receiver
/// and the data. The data differs in each turn.
pub fn exchange_rounds<P>(
    rc_endpoints: &mut [P; 2],
    rounds: usize,
    len: usize,
    mut turn: impl FnMut(&mut P, &mut P, &[u8]),
) {
    for round in 0..2 * rounds {
        let text: Vec<u8> = (0..len).map(|i| (i * 7 + round * 31 + 1) as u8).collect();
        let [a, b] = rc_endpoints;
        let (from, to) = if round % 2 == 0 { (a, b) } else { (b, a) };
        turn(from, to, &text);
    }
}

impl RcEndpoint {
    /// Executes one operation and waits for its successful completion.
    #[track_caller]
    pub fn execute(&mut self, operation: Operation, payload: Payload<'_>) -> WorkCompletion {
        self.side.send(&[request(7, operation, payload)]).expect("the send queue takes it");
        let completion = self.side.completions(1)[0];
        assert_eq!((completion.wr_id, completion.status), (7, WcStatus::SUCCESS), "{operation:?}");
        completion
    }

    /// The first `len` bytes of its memory, as an SGE.
    pub fn first(&self, len: usize) -> [Sge; 1] {
        [self.memory.sge(..len).expect("the memory has as many")]
    }

    /// A copy of the first `len` bytes of its memory.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        contents(&self.memory)[..len].to_vec()
    }

    /// Sends `text` with `operation`, which uses a receive of the peer. Returns the receive's
    /// completion.
    #[track_caller]
    pub fn send_to(&mut self, to: &mut Self, operation: Operation, text: &[u8]) -> WorkCompletion {
        to.side.recv_into(8, 1, &to.first(to.memory.len()));
        self.memory.write(0, text).expect("the memory has room");
        let elements = self.first(text.len());
        self.execute(operation, Payload::Sges(&elements));
        let received = to.side.completions(1)[0];
        assert_eq!((received.wr_id, received.status), (8, WcStatus::SUCCESS), "{received:?}");
        assert_eq!(received.byte_len as usize, text.len());
        assert!(to.bytes(text.len()) == text, "other bytes arrived");
        received
    }
}

/// A UD queue pair and its memory.
pub struct UdEndpoint {
    /// The queue pair.
    pub qp: Qp<Ud>,
    /// Its CQ.
    pub cq: Cq,
    /// The memory of sends.
    pub memory: Mr<Buffer>,
    /// The memory of receives, with room for the GRH.
    pub inbox: Mr<Buffer>,
    ah: Ah,
}

/// Two UD endpoints, which send up to `len` bytes from memory registered with `access`.
pub fn ud_endpoints(pd: &Pd, len: usize, access: Access) -> [UdEndpoint; 2] {
    [(); 2].map(|()| UdEndpoint::new(pd, CqInit::new(64), len, access))
}

impl UdEndpoint {
    /// One UD endpoint with a CQ created from `cq`.
    pub fn new(pd: &Pd, cq: CqInit<'_>, len: usize, access: Access) -> Self {
        let context = pd.context();
        let cq = context.create_cq(&cq).expect("a CQ");
        let mut qp = pd.create_qp::<Ud>(&QpInit::new(&cq, &cq)).expect("a queue pair");
        qp.init(&UdInitAttr::new(1, QKEY)).expect("INIT");
        qp.ready_to_receive().expect("RTR");
        qp.ready_to_send(0).expect("RTS");
        let gid = context.default_gid(1).expect("the port has an address");
        let ah = pd.create_ah(&AhAttr::global(1, gid.gid, gid.index)).expect("an address handle");
        let memory = region(pd, &vec![0; len.max(1)], access);
        let inbox = region(pd, &vec![0; GRH_BYTES + len], Access::LOCAL_WRITE);
        Self { qp, cq, memory, inbox, ah }
    }

    /// Posts a receive into [`inbox`](Self::inbox).
    pub fn post_inbox(&mut self) {
        let sges = [self.inbox.sge(..).expect("all of it")];
        // SAFETY: the inbox is only copied from, and is freed after the queue pair.
        unsafe { self.qp.post_recv(&[RecvRequest { wr_id: 8, sges: &sges }]) }.expect("there is room");
    }

    /// Posts `text` to the peer.
    pub fn post(&mut self, to: &Self, imm: Option<Imm>, text: &[u8]) {
        self.memory.write(0, text).expect("the memory has room");
        let sges = [self.memory.sge(..text.len()).expect("the memory has as many")];
        let operation = Datagram { imm, ..Datagram::new(&self.ah, to.qp.qp_num(), QKEY) };
        let payload = Payload::Sges(&sges);
        let request = SendRequest { wr_id: 7, operation, flags: SendFlags::SIGNALED, payload };
        // SAFETY: the memory is only copied from, and is freed after the queue pair.
        unsafe { self.qp.post_send(&[request]) }.expect("the send queue takes it");
    }

    /// The next completion, which must match.
    #[track_caller]
    pub fn expect_completion(&mut self, wr_id: u64) -> WorkCompletion {
        let completion = take(&mut self.cq, 1)[0];
        assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::SUCCESS), "{completion:?}");
        completion
    }

    /// Checks a completed receive.
    #[track_caller]
    pub fn check_received(&self, received: &WorkCompletion, from: &Self, text: &[u8]) {
        assert_eq!(received.byte_len as usize, GRH_BYTES + text.len());
        assert!(received.wc_flags.contains(WcFlags::GRH));
        assert_eq!((received.src_qp, received.qp_num), (from.qp.qp_num(), self.qp.qp_num()));
        assert!(contents(&self.inbox)[GRH_BYTES..][..text.len()] == *text, "other bytes arrived");
    }

    /// Sends `text` and waits for its arrival.
    #[track_caller]
    pub fn send_to(&mut self, to: &mut Self, imm: Option<Imm>, text: &[u8]) -> WorkCompletion {
        to.post_inbox();
        self.post(to, imm, text);
        self.expect_completion(7);
        let received = to.expect_completion(8);
        to.check_received(&received, self, text);
        received
    }
}
