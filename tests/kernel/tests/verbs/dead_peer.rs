//! A peer that is killed, with the default retries and timeouts.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::time::{Duration, Instant};

use bareverbs::owned::Endpoint;
use bareverbs::{
    Access, Address, Buffer, ConnectAttr, CqInit, Error, LocalAccess, Mr, Operation, Payload, Pd, QpInit, Rc,
    Remote, WcStatus,
};
use bareverbs_kernel_tests::child;
use bareverbs_kernel_tests::loopback::request;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::pair::{TIMEOUT, open};

/// Much longer than the retries take on any device, and much shorter than a program can hang.
const SECONDS: Duration = Duration::from_secs(20);

/// A process with a connected endpoint and one posted receive.
struct Peer {
    process: Pid,
    address: Address,
    to_peer: PipeWriter,
    from_peer: PipeReader,
}

impl Peer {
    fn start() -> Self {
        let ((mut from_parent, to_peer), (from_peer, mut to_parent)) = (pipe().unwrap(), pipe().unwrap());
        let process = child::start(|| {
            let pd = open().alloc_pd().unwrap();
            let mut endpoint: Endpoint = Endpoint::new(&pd, 1, 4).unwrap();
            to_parent.write_all(&endpoint.address().to_bytes()).unwrap();
            endpoint.connect(&receive(&mut from_parent)).unwrap();
            endpoint.post_recv(buffer(&pd)).unwrap();
            to_parent.write_all(b"!").unwrap();
            assert!(endpoint.wait().is_ok());
            // Until it is killed.
            loop {
                std::thread::park();
            }
        });
        let mut from_peer = from_peer;
        let address = receive(&mut from_peer);
        Self { process, address, to_peer, from_peer }
    }

    /// Sends the peer the address to connect to, and waits until it is connected.
    fn connect(&mut self, own: &Address) {
        self.to_peer.write_all(&own.to_bytes()).unwrap();
        self.from_peer.read_exact(&mut [0]).unwrap();
    }

    fn kill(&self) {
        kill(self.process, Signal::SIGKILL).unwrap();
        waitpid(self.process, None).unwrap();
    }
}

fn receive(pipe: &mut PipeReader) -> Address {
    let mut bytes = [0; Address::LEN];
    pipe.read_exact(&mut bytes).unwrap();
    Address::from_bytes(&bytes).unwrap()
}

fn buffer(pd: &Pd) -> Mr<Buffer> {
    pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap()
}

pub(crate) fn send_to_a_killed_peer_fails_within_seconds() {
    let mut peer = Peer::start();
    let pd = open().alloc_pd().unwrap();
    let context = pd.context();
    let mut cq = context.create_cq(&CqInit::new(16)).unwrap();
    let mut qp = pd.create_qp::<Rc>(&QpInit::new(&cq, &cq)).unwrap();
    let gid = context.default_gid(1).unwrap();
    let own = qp.address(1, gid.index).unwrap();
    qp.connect(&own, &peer.address, &ConnectAttr::new(1, gid.index)).unwrap();
    peer.connect(&own);
    let mut status = |operation| {
        // SAFETY: the request names no memory.
        unsafe { qp.post_send(&[request(1, operation, Payload::Sges(&[]))]) }.unwrap();
        let begin = Instant::now();
        loop {
            match cq.poll_one() {
                Some(completion) => return completion.status,
                None => assert!(begin.elapsed() < SECONDS, "no completion"),
            }
        }
    };
    assert_eq!(status(Operation::Send), WcStatus::SUCCESS);
    peer.kill();
    assert_eq!(status(Operation::Write(Remote { addr: 0, rkey: 0 })), WcStatus::RETRY_EXC_ERR);
}

pub(crate) fn endpoint_of_a_killed_peer_fails_within_seconds() {
    let mut peer = Peer::start();
    let pd = open().alloc_pd().unwrap();
    let mut endpoint: Endpoint = Endpoint::new(&pd, 1, 4).unwrap();
    endpoint.connect(&peer.address).unwrap();
    peer.connect(&endpoint.address());
    endpoint.post_send(buffer(&pd), ..).unwrap();
    assert!(endpoint.wait_timeout(TIMEOUT).unwrap().is_some());
    peer.kill();
    let begin = Instant::now();
    endpoint.post_send(buffer(&pd), ..).unwrap();
    let failed = endpoint.wait().unwrap_err();
    assert!(begin.elapsed() < SECONDS, "{:?}", begin.elapsed());
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{failed}");
}

pub(crate) fn scope_of_a_killed_peer_ends_within_seconds() {
    let mut peer = Peer::start();
    let pd = open().alloc_pd().unwrap();
    let mut endpoint: Endpoint = Endpoint::new(&pd, 1, 4).unwrap();
    endpoint.connect(&peer.address).unwrap();
    peer.connect(&endpoint.address());
    let mut bytes = [0; 64];
    let region = pd.register_borrowed(&mut bytes, LocalAccess::Read).unwrap();
    endpoint.scope(|scope| scope.post_send(&region, .., 1).unwrap()).unwrap();
    peer.kill();
    let begin = Instant::now();
    endpoint.scope(|scope| scope.post_send(&region, .., 2).unwrap()).unwrap();
    assert!(begin.elapsed() < SECONDS, "{:?}", begin.elapsed());
    assert_eq!(endpoint.poll().unwrap().unwrap().tag, 1);
    assert_eq!(endpoint.poll().unwrap().unwrap_err().tag, 2);
}
