//! Times of posting and polling on this machine, without a device: the software HCA in the same
//! process runs between samples. `cargo bench -p bareverbs-counts`. The doorbell registers are
//! ordinary memory, which is faster than a device's.

use std::cell::RefCell;
use std::hint::black_box;

use bareverbs::AnyProvider;
use bareverbs_mlx5::Mlx5;
use counts::harness::{Harness, WrapMlx5};
use divan::Bencher;

const BYTES: [u8; 8] = [7; 8];

/// Requests of a sample. All are posted, or all are polled, one after the other.
const SIZE: u32 = 100;

fn main() {
    divan::main();
}

/// An inline write of 8 bytes, with its doorbell.
#[divan::bench(types = [Mlx5, AnyProvider], sample_count = 500, sample_size = SIZE)]
fn post_write<P: WrapMlx5>(bencher: Bencher<'_, '_>) {
    let harness = RefCell::new(Harness::<P>::new());
    let remote = harness.borrow().remote;
    let made = RefCell::new(0);
    bencher
        .with_inputs(|| {
            // The inputs of a sample are created before its first request.
            *made.borrow_mut() += 1;
            if *made.borrow() % SIZE == 1 {
                let mut harness = harness.borrow_mut();
                harness.run();
                harness.drain();
            }
        })
        .bench_local_values(|()| {
            assert!(harness.borrow_mut().post_write(1, black_box(remote), black_box(&BYTES)))
        });
}

/// A completion of a send: read in place, then its slot is released.
#[divan::bench(types = [Mlx5, AnyProvider], sample_count = 500, sample_size = SIZE)]
fn poll<P: WrapMlx5>(bencher: Bencher<'_, '_>) {
    let harness = RefCell::new(Harness::<P>::new());
    let remote = harness.borrow().remote;
    bencher
        .with_inputs(|| {
            let mut harness = harness.borrow_mut();
            assert!(harness.post_write(1, remote, &BYTES));
            harness.run();
        })
        .bench_local_values(|()| {
            let found = harness.borrow_mut().poll();
            assert!(found.is_some());
            found
        });
}

/// A poll of an empty CQ.
#[divan::bench(types = [Mlx5, AnyProvider], sample_count = 500, sample_size = SIZE)]
fn poll_nothing<P: WrapMlx5>(bencher: Bencher<'_, '_>) {
    let harness = RefCell::new(Harness::<P>::new());
    bencher.bench_local(|| assert!(harness.borrow_mut().poll().is_none()));
}

/// A receive with one SGE, and its doorbell record.
#[divan::bench(types = [Mlx5, AnyProvider], sample_count = 500, sample_size = SIZE)]
fn post_recv<P: WrapMlx5>(bencher: Bencher<'_, '_>) {
    let harness = RefCell::new(Harness::<P>::new());
    let sge = harness.borrow().sge;
    let made = RefCell::new(0);
    bencher
        .with_inputs(|| {
            *made.borrow_mut() += 1;
            if *made.borrow() % SIZE == 1 && *made.borrow() > 1 {
                let mut harness = harness.borrow_mut();
                harness.receive(SIZE.into());
                harness.drain();
            }
        })
        .bench_local_values(|()| harness.borrow_mut().post_recv(1, black_box(&sge)));
}
