//! UC and UD: messages of 0 bytes, too long messages, missing targets, too short receives.

use std::time::Duration;

use bareverbs::ah::{AhAttr, Grh};
use bareverbs::cq::{Cq, CqInit, WcFlags, WorkCompletion};
use bareverbs::error::{PostReason, PushError};
use bareverbs::qp::{
    Datagram, GRH_BYTES, InitAttr, Payload, Qp, QpCap, QpInit, QpState, RecvRequest, SendFlags, SendRequest,
    Transport, Uc, UcOperation, UcRtrAttr, Ud, UdInitAttr,
};
use bareverbs::{Buffer, Error, Imm, Mr, Pd, WcStatus};
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::kernel_test;
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, contents, domain, next, region};
use bareverbs_kernel_tests::resources::nothing_leaks;

use crate::refusals::invalid;

const QKEY: u32 = 0x0707_0707;
/// Time without an event after which none is expected.
const QUIET: Duration = Duration::from_millis(200);

struct End<T: Transport> {
    qp: Qp<T>,
    cq: Cq,
}

impl<T: Transport> End<T> {
    fn new(pd: &Pd) -> Self {
        let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64, ..QpCap::default() };
        let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let qp = pd.create_qp::<T>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).unwrap();
        Self { qp, cq }
    }

    fn recv(&mut self, wr_id: u64, memory: &Mr<Buffer>, len: usize) {
        let sges = [memory.sge(..len).unwrap()];
        // SAFETY: the memory outlives the queue pair, and its bytes are only copied.
        unsafe { self.qp.post_recv(&[RecvRequest { wr_id, sges: &sges }]) }.unwrap();
    }

    fn done(&mut self) -> WorkCompletion {
        let completion = next(&mut self.cq);
        assert_eq!(completion.status, WcStatus::SUCCESS, "{completion:?}");
        completion
    }

    fn quiet(&mut self) {
        std::thread::sleep(QUIET);
        assert_eq!(self.cq.poll_one(), None);
    }
}

fn here(pd: &Pd) -> AhAttr {
    let gid = pd.context().default_gid(1).unwrap();
    AhAttr::global(1, gid.gid, gid.index)
}

fn datagrams(pd: &Pd) -> End<Ud> {
    let mut end = End::<Ud>::new(pd);
    end.qp.init(&UdInitAttr::new(1, QKEY)).unwrap();
    end.qp.ready_to_receive().unwrap();
    end.qp.ready_to_send(0).unwrap();
    end
}

fn connection(pd: &Pd) -> [End<Uc>; 2] {
    let mut ends = [End::<Uc>::new(pd), End::<Uc>::new(pd)];
    let numbers = [ends[1].qp.qp_num(), ends[0].qp.qp_num()];
    for (end, peer) in ends.iter_mut().zip(numbers) {
        end.qp.init(&InitAttr { access: ALL_REMOTE, ..InitAttr::new(1) }).unwrap();
        end.qp.ready_to_receive(&UcRtrAttr::new(here(pd), peer)).unwrap();
        end.qp.ready_to_send(0).unwrap();
    }
    ends
}

fn send_to(
    end: &mut End<Ud>,
    to: Datagram<'_>,
    payload: Payload<'_>,
) -> Result<(), bareverbs::error::PostError> {
    let request = SendRequest { wr_id: 1, operation: to, flags: SendFlags::SIGNALED, payload };
    // SAFETY: the memory outlives the queue pair, and its bytes are only copied.
    unsafe { end.qp.post_send(&[request]) }
}

fn send(end: &mut End<Uc>, operation: UcOperation, payload: Payload<'_>) {
    let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload };
    // SAFETY: the memory outlives the queue pair, and its bytes are only copied.
    unsafe { end.qp.post_send(&[request]) }.unwrap();
}

#[kernel_test(device::ib_transports)]
fn empty_datagram_arrives_with_its_grh() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[0; 128], ALL_REMOTE);
        let ah = pd.create_ah(&here(&pd)).unwrap();
        let (mut a, mut b) = (datagrams(&pd), datagrams(&pd));
        let to = Datagram::new(&ah, b.qp.qp_num(), QKEY);
        let nothing = [memory.sge(..0).unwrap()];
        for payload in
            [Payload::Sges(&[]), Payload::Sges(&nothing), Payload::Inline(&[]), Payload::Inline(&[b""])]
        {
            b.recv(2, &memory, 64);
            send_to(&mut a, to, payload).unwrap();
            assert_eq!(a.done().wr_id, 1);
            let received = b.done();
            assert_eq!((received.wr_id, received.byte_len as usize), (2, GRH_BYTES));
        }
    });
}

#[kernel_test(device::ib_transports)]
fn datagram_above_the_mtu_is_rejected() {
    nothing_leaks(|| {
        let pd = domain();
        let mtu = pd.context().query_port(1).unwrap().active_mtu as usize;
        let bytes = 128 << mtu;
        let memory = region(&pd, &vec![7; 2 * 4096], ALL_REMOTE);
        let ah = pd.create_ah(&here(&pd)).unwrap();
        let (mut a, mut b) = (datagrams(&pd), datagrams(&pd));
        let to = Datagram::new(&ah, b.qp.qp_num(), QKEY);
        b.recv(2, &memory, 8192);
        let refuses = |a: &mut End<Ud>, to: Datagram<'_>, payload: Payload<'_>, expected: PushError| {
            let refused = send_to(a, to, payload).unwrap_err();
            assert_eq!((refused.accepted, refused.reason), (0, PostReason::Queue(expected)));
        };
        let long = [memory.sge(..bytes + 1).unwrap()];
        let parts = [memory.sge(..bytes).unwrap(), memory.sge(..1).unwrap()];
        for payload in [Payload::Sges(&long), Payload::Sges(&parts)] {
            let given = bytes as u64 + 1;
            refuses(&mut a, to, payload, PushError::DatagramTooLong { given, max: bytes as u32 });
        }
        for qp_num in [1 << 24, 1 << 31, u32::MAX] {
            let to = Datagram { qp_num, ..to };
            refuses(&mut a, to, Payload::Inline(&[b"x"]), PushError::QpNumber { qp_num });
        }
        let max = a.qp.cap().max_inline_data as usize;
        let inline = vec![0; max + 1];
        refuses(&mut a, to, Payload::Inline(&[&inline]), PushError::InlineTooLong { given: max + 1, max });
        let max = a.qp.cap().max_send_sge as usize;
        let many = vec![memory.sge(..1).unwrap(); max + 1];
        refuses(&mut a, to, Payload::Sges(&many), PushError::TooManySges { given: max + 1, max });
        b.quiet();
        // The longest datagram is sent.
        send_to(&mut a, to, Payload::Sges(&[memory.sge(..bytes).unwrap()])).unwrap();
        assert_eq!(a.done().wr_id, 1);
        assert_eq!(b.done().byte_len as usize, bytes + GRH_BYTES);
    });
}

#[kernel_test(device::ib_transports)]
fn undeliverable_datagrams_are_dropped() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[0; 256], ALL_REMOTE);
        let ah = pd.create_ah(&here(&pd)).unwrap();
        let (mut a, mut b) = (datagrams(&pd), datagrams(&pd));
        let gone = datagrams(&pd).qp.qp_num();
        let to = Datagram::new(&ah, b.qp.qp_num(), QKEY);
        let hello = Payload::Inline(&[b"hello, whoever it is"]);
        b.recv(2, &memory, 128);
        for lost in [
            Datagram { qkey: QKEY ^ 1, ..to },
            Datagram { qkey: 0, ..to },
            Datagram { qp_num: gone, ..to },
            Datagram { qp_num: 0xff_fffe, ..to },
            Datagram { qp_num: 0, ..to },
        ] {
            send_to(&mut a, lost, hello).unwrap();
            assert_eq!(a.done().wr_id, 1, "the sender is not told");
        }
        b.quiet();
        send_to(&mut a, to, hello).unwrap();
        assert_eq!((a.done().wr_id, b.done().wr_id), (1, 2));

        // Without a receive, and with one too short for the GRH or the data.
        send_to(&mut a, to, hello).unwrap();
        assert_eq!(a.done().wr_id, 1);
        b.quiet();
        for len in [0, 39, GRH_BYTES + 5] {
            let before = contents(&memory);
            b = datagrams(&pd);
            let to = Datagram { qp_num: b.qp.qp_num(), ..to };
            b.recv(3, &memory, len);
            send_to(&mut a, to, hello).unwrap();
            assert_eq!(a.done().wr_id, 1);
            std::thread::sleep(QUIET);
            // A device may complete the receive with an error, or keep it for the next datagram.
            let ended = b.cq.poll_one();
            if let Some(received) = ended {
                assert!(received.wr_id == 3 && received.status != WcStatus::SUCCESS, "{received:?}");
            }
            assert_eq!(contents(&memory)[len..], before[len..], "written beyond the receive");
        }
        drop((a, b));
    });
}

#[kernel_test(device::ib_transports)]
fn ah_attr_from_wc_validates_the_grh() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let memory = region(&pd, &[0; 128], ALL_REMOTE);
        let ah = pd.create_ah(&here(&pd)).unwrap();
        let (mut a, mut b) = (datagrams(&pd), datagrams(&pd));
        b.recv(2, &memory, 64);
        send_to(&mut a, Datagram::new(&ah, b.qp.qp_num(), QKEY), Payload::Inline(&[b"who?"])).unwrap();
        let received = b.done();
        let header: [u8; GRH_BYTES] = contents(&memory)[..GRH_BYTES].try_into().unwrap();
        for port in [0, 2, 255] {
            let refused = context.ah_attr_from_wc(port, &received, &header).unwrap_err();
            assert!(matches!(refused, Error::NoPort { .. }), "{refused:?}");
        }
        let verb = "init_ah_from_wc";
        for strange in [[0; GRH_BYTES], [0xff; GRH_BYTES], [0x77; GRH_BYTES]] {
            let words = "the 40 bytes of the GRH are neither an IPv4 nor an IPv6 header";
            invalid(context.ah_attr_from_wc(1, &received, &strange), &format!("{verb}: {words}"));
        }
        let bare = WorkCompletion { wc_flags: WcFlags::empty(), ..received };
        if device::is_infiniband() {
            let by_lid = context.ah_attr_from_wc(1, &bare, &header).unwrap();
            assert_eq!((by_lid.dlid, by_lid.grh), (received.slid, None));
        } else {
            let words = "RoCE addresses require a global route: set `grh`";
            invalid(context.ah_attr_from_wc(1, &bare, &header), &format!("{verb}: {words}"));
        }
        // To the address of another host. The last four bytes are those of an IPv4 header, and of a
        // longer one.
        let mut foreign = header;
        foreign[36..].copy_from_slice(&[203, 0, 113, 9]);
        let receiver = Grh::parse(&foreign).unwrap().dgid;
        let words = format!("its destination {receiver} is not in the GID table of port 1");
        invalid(context.ah_attr_from_wc(1, &received, &foreign), &format!("{verb}: {words}"));
        context.ah_attr_from_wc(1, &received, &header).unwrap();
    });
}

#[kernel_test(device::ib_transports)]
fn zero_byte_uc_messages_and_writes_arrive() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[7; 64], ALL_REMOTE);
        let [mut a, mut b] = connection(&pd);
        let nowhere = bareverbs::Remote { addr: 0, rkey: 0 };
        let nothing = [memory.sge(..0).unwrap()];
        for payload in [Payload::Sges(&[]), Payload::Sges(&nothing), Payload::Inline(&[])] {
            for operation in
                [UcOperation::Send, UcOperation::SendImm(Imm(7)), UcOperation::WriteImm(nowhere, Imm(7))]
            {
                b.recv(2, &memory, 64);
                send(&mut a, operation, payload);
                assert_eq!(a.done().wr_id, 1);
                let received = b.done();
                assert_eq!((received.wr_id, received.byte_len), (2, 0), "{operation:?}");
            }
            send(&mut a, UcOperation::Write(nowhere), payload);
            assert_eq!(a.done().wr_id, 1);
        }
        assert_eq!(contents(&memory), [7; 64]);
    });
}

#[kernel_test(device::ib_transports)]
fn uc_message_too_long_writes_nothing_out_of_bounds() {
    nothing_leaks(|| {
        let pd = domain();
        let target = region(&pd, &[0; 64], ALL_REMOTE);
        let closed = region(&pd, &[0; 64], bareverbs::Access::LOCAL_WRITE);
        let hello: Payload<'_> = Payload::Inline(&[b"twenty bytes, or so."]);
        let [mut a, mut b] = connection(&pd);
        send(&mut a, UcOperation::Send, hello);
        assert_eq!(a.done().wr_id, 1, "without a receive it is lost");
        b.quiet();

        b.recv(2, &target, 19);
        send(&mut a, UcOperation::Send, hello);
        assert_eq!(a.done().wr_id, 1);
        std::thread::sleep(QUIET);
        if let Some(received) = b.cq.poll_one() {
            assert!(received.wr_id == 2 && received.status != WcStatus::SUCCESS, "{received:?}");
        }
        assert_eq!(contents(&target)[19..], [0; 45]);

        let [mut a, mut b] = connection(&pd);
        for remote in [
            closed.remote(0).unwrap(),
            bareverbs::Remote { rkey: 0xdead_be00, ..closed.remote(0).unwrap() },
            target.remote(60).unwrap(),
        ] {
            send(&mut a, UcOperation::Write(remote), hello);
            assert_eq!(a.done().wr_id, 1);
        }
        b.quiet();
        assert_eq!((contents(&closed), contents(&target)[20..].to_vec()), (vec![0; 64], vec![0; 44]));
        assert_eq!(a.qp.query().unwrap().0.qp_state, QpState::RTS);
    });
}
