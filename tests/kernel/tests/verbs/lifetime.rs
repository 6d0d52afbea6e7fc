use std::time::{Duration, Instant};

use bareverbs::Access;
use bareverbs::cq::CqInit;
use bareverbs::qp::{Payload, QpCap, QpInit, Rc};
use bareverbs_kernel_tests::kernel_test;
use bareverbs_netlink::ResourceSummary;

use crate::pair::{TIMEOUT, counts, message, open, pair, pair_in, region};

/// The kernel destroys referenced objects by itself, but may need a moment to release the last of
/// them.
fn settles_at(expected: ResourceSummary) {
    let begin = Instant::now();
    while counts() != expected {
        assert!(begin.elapsed() < TIMEOUT, "{:?} in place of {expected:?}", counts());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every order of `0..count`, by Heap's method.
fn orders(count: usize) -> Vec<Vec<usize>> {
    fn permute(rest: usize, order: &mut Vec<usize>, orders: &mut Vec<Vec<usize>>) {
        if rest <= 1 {
            orders.push(order.clone());
            return;
        }
        for i in 0..rest {
            permute(rest - 1, order, orders);
            order.swap(if rest.is_multiple_of(2) { i } else { 0 }, rest - 1);
        }
    }
    let mut all = Vec::new();
    permute(count, &mut (0..count).collect(), &mut all);
    all
}

#[kernel_test]
fn every_drop_order_frees_all_objects() {
    let before = counts();
    let orders = orders(5);
    assert_eq!(orders.len(), 120);
    for order in orders {
        let context = open();
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(8) }).unwrap();
        let mr = pd.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
        let qp = pd.create_qp::<Rc>(&QpInit::new(&cq, &cq)).unwrap();
        let mut handles: [Option<Box<dyn std::any::Any>>; 5] = [
            Some(Box::new((context, channel))),
            Some(Box::new(pd)),
            Some(Box::new(cq)),
            Some(Box::new(mr)),
            Some(Box::new(qp)),
        ];
        for handle in order {
            handles[handle] = None;
        }
        settles_at(before);
    }
}

#[kernel_test]
fn failed_creates_leak_no_objects() {
    let before = counts();
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(8)).unwrap();
    let opened = counts();
    for _ in 0..20 {
        assert!(context.create_cq(&CqInit::new(0)).is_err());
        assert!(context.create_cq(&CqInit::new(1 << 31)).is_err());
        let cap = QpCap { max_inline_data: 1 << 20, ..QpCap::default() };
        assert!(pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).is_err());
        assert!(pd.register(vec![0; 8], Access::REMOTE_WRITE).is_err());
        assert!(pd.register(Vec::new(), Access::LOCAL_WRITE).is_err());
    }
    assert_eq!(counts(), opened);
    drop((context, pd, cq));
    settles_at(before);
}

#[kernel_test]
fn rejected_accept_returns_the_qp_with_posted_work() {
    let before = counts();
    for _ in 0..10 {
        let (pd, mut a, mut b) = pair();
        let target = region(&pd, &[0; 8]);
        for wr_id in 0..8 {
            b.recv(wr_id, &target);
            a.send(&message(wr_id, Payload::Inline(&[b"going"])));
        }
        // Some requests are outstanding, some complete, none polled.
        drop((a, b));
    }
    settles_at(before);
    let pd = open().alloc_pd().unwrap();
    let (a, b) = pair_in(&pd, QpCap::default());
    drop(pd);
    drop((b, a));
    settles_at(before);
}
