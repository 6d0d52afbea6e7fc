//! Scatter to CQE.

use bareverbs::cq::CqInit;
use bareverbs::error::Feature;
use bareverbs::qp::{Operation, Payload, QpInit, Rc, RecvRequest, Sge};
use bareverbs::{Access, Error, WcStatus};
use bareverbs_kernel_tests::loopback::{Plan, contents, domain, join, region, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

#[kernel_test(device::scatter)]
fn scatter_to_cqe_copies_messages_to_their_memory() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) =
            (side(&pd, Plan::default()), side(&pd, Plan { scatter: true, ..Plan::default() }));
        join(&mut a, &mut b);
        let bytes: Vec<u8> = (1..=100).collect();
        let from = region(&pd, &bytes, Access::LOCAL_WRITE);
        for length in [1, 5, 16, 31, 32, 33, 64, 100] {
            let to = region(&pd, &[0; 128], Access::LOCAL_WRITE);
            let pieces = [to.sge(3..8).unwrap(), to.sge(20..).unwrap()];
            b.recv(&[RecvRequest { wr_id: 7, sges: &pieces }]).unwrap();
            let all = from.sge(..).unwrap();
            let sges = [Sge { length, ..all }];
            a.send(&[request(1, Operation::Send, Payload::Sges(&sges))]).unwrap();
            let done = b.completions(1)[0];
            assert_eq!((done.wr_id, done.status, done.byte_len), (7, WcStatus::SUCCESS, length));
            assert_eq!(a.ends(1), [(1, WcStatus::SUCCESS)]);
            let memory = contents(&to);
            let arrived = [&memory[3..8], &memory[20..]].concat();
            assert_eq!(arrived[..length as usize], bytes[..length as usize]);
            assert!(arrived[length as usize..].iter().all(|byte| *byte == 0), "and no further");
        }
    });
}

#[kernel_test]
fn scatter_to_cqe_is_rejected_where_unsupported() {
    let pd = domain();
    let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
    let init = QpInit { scatter_to_cqe: true, signal_all: true, ..QpInit::new(&cq, &cq) };
    let error = pd.create_qp::<Rc>(&init).map(drop).unwrap_err();
    assert!(matches!(error, Error::Unsupported { feature: Feature::ScatterToCqe, .. }), "{error}");
}
