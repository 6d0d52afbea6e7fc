//! What posting and polling take on this machine, without a device: the card in the same process works between samples.
//! `cargo bench -p bareverbs-counts`. The registers are ordinary memory here, which costs less than a device's.

use std::cell::RefCell;
use std::hint::black_box;

use bareverbs::AnyProvider;
use bareverbs_mlx5::Mlx5;
use counts::stage::{Over, Stage};
use divan::Bencher;

const BYTES: [u8; 8] = [7; 8];

/// Requests of a sample: all posted, and all polled, one after the other.
const SIZE: u32 = 100;

fn main() {
    divan::main();
}

/// A write of 8 bytes inline, with its doorbell.
#[divan::bench(types = [Mlx5, AnyProvider], sample_count = 500, sample_size = SIZE)]
fn post_write<P: Over>(bencher: Bencher<'_, '_>) {
    let stage = RefCell::new(Stage::<P>::new());
    let remote = stage.borrow().remote;
    let made = RefCell::new(0);
    bencher
        .with_inputs(|| {
            // The inputs of a sample are made before its first request.
            *made.borrow_mut() += 1;
            if *made.borrow() % SIZE == 1 {
                let mut stage = stage.borrow_mut();
                stage.run();
                stage.drain();
            }
        })
        .bench_local_values(|()| {
            assert!(stage.borrow_mut().post_write(1, black_box(remote), black_box(&BYTES)))
        });
}

/// A completion of a send, read in place, its slot given back.
#[divan::bench(types = [Mlx5, AnyProvider], sample_count = 500, sample_size = SIZE)]
fn poll<P: Over>(bencher: Bencher<'_, '_>) {
    let stage = RefCell::new(Stage::<P>::new());
    let remote = stage.borrow().remote;
    bencher
        .with_inputs(|| {
            let mut stage = stage.borrow_mut();
            assert!(stage.post_write(1, remote, &BYTES));
            stage.run();
        })
        .bench_local_values(|()| {
            let found = stage.borrow_mut().poll();
            assert!(found.is_some());
            found
        });
}

/// Looking in vain.
#[divan::bench(types = [Mlx5, AnyProvider], sample_count = 500, sample_size = SIZE)]
fn poll_nothing<P: Over>(bencher: Bencher<'_, '_>) {
    let stage = RefCell::new(Stage::<P>::new());
    bencher.bench_local(|| assert!(stage.borrow_mut().poll().is_none()));
}

/// A receive of one element, with its doorbell record.
#[divan::bench(types = [Mlx5, AnyProvider], sample_count = 500, sample_size = SIZE)]
fn post_recv<P: Over>(bencher: Bencher<'_, '_>) {
    let stage = RefCell::new(Stage::<P>::new());
    let sge = stage.borrow().sge;
    let made = RefCell::new(0);
    bencher
        .with_inputs(|| {
            *made.borrow_mut() += 1;
            if *made.borrow() % SIZE == 1 && *made.borrow() > 1 {
                let mut stage = stage.borrow_mut();
                stage.receive(SIZE.into());
                stage.drain();
            }
        })
        .bench_local_values(|()| stage.borrow_mut().post_recv(1, black_box(&sge)));
}
