//! Faults of the network, in virtual time: no test sleeps, and each run is the same.

use std::env;
use std::time::Duration;

use bareverbs::soft::{Fabric, Fault, SoftDevice};
use bareverbs::{Device, Report};
use bareverbs_testing_example::{CHUNK, Transfer, WINDOW};

/// Two connected ends on a fabric.
fn connected(fabric: &Fabric) -> Result<[Transfer; 2], Report> {
    let end = || Transfer::new(&Device::from(SoftDevice::new(fabric)).open()?.alloc_pd()?);
    let (mut sender, mut receiver) = (end()?, end()?);
    sender.connect(&receiver.address())?;
    receiver.connect(&sender.address())?;
    Ok([sender, receiver])
}

/// A file that the receiver's receives hold: one thread runs both ends, one after the other.
fn file() -> Vec<u8> {
    (0..CHUNK * WINDOW as usize - 1).map(|at| at as u8).collect()
}

#[test]
fn lost_message_is_sent_again_after_a_timeout() -> Result<(), Report> {
    let fabric = Fabric::seeded(1);
    let [mut sender, mut receiver] = connected(&fabric)?;
    // Nothing follows the only message: the ACK timer alone notices the loss.
    let lost = fabric.inject(Fault::drop().nth(1));
    let begin = fabric.now();
    sender.send(b"short")?;
    assert!(receiver.receive()? == b"short");
    assert_eq!(lost.count(), 1);
    // By default, the timer expires after 537 ms.
    assert!(fabric.now() - begin > Duration::from_millis(500), "{:?}", fabric.now() - begin);
    Ok(())
}

#[test]
fn files_arrive_over_a_bad_network_for_each_seed() -> Result<(), Report> {
    // `SEED=17 cargo test` replays the run of a seed.
    let only = env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..100, |seed: u64| seed..seed + 1) {
        let fabric = Fabric::seeded(seed);
        // A failed assertion prints the last packets, retries and completions.
        let _print = fabric.log(100).print_on_panic();
        let [mut sender, mut receiver] = connected(&fabric)?;
        fabric.inject(Fault::drop().probability(0.05));
        fabric.inject(Fault::duplicate().probability(0.05));
        fabric.inject(Fault::reorder().probability(0.05));
        fabric.inject(Fault::corrupt().probability(0.05));
        sender.send(&file()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let received = receiver.receive().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(received == file(), "seed {seed}");
    }
    Ok(())
}

#[test]
fn slow_receiver_delays_the_sender() -> Result<(), Report> {
    let fabric = Fabric::seeded(1);
    let [mut sender, mut receiver] = connected(&fabric)?;
    // The receiver has no receive for each fifth message.
    let rnr = fabric.inject(Fault::rnr().every(5));
    sender.send(&file())?;
    assert!(rnr.count() > 0);
    assert!(receiver.receive()? == file());
    Ok(())
}

#[test]
fn same_seed_gives_the_same_run() -> Result<(), Report> {
    let run = || -> Result<_, Report> {
        let fabric = Fabric::seeded(7);
        let [mut sender, mut receiver] = connected(&fabric)?;
        let lost = fabric.inject(Fault::drop().probability(0.2));
        sender.send(&file())?;
        receiver.receive()?;
        Ok((lost.count(), fabric.now()))
    };
    assert_eq!(run()?, run()?);
    Ok(())
}
