//! Measurements; run by name, in release.

use super::*;

#[test]
#[ignore = "a measurement"]
fn latency_and_bandwidth() {
    const ROUNDS: u32 = 100_000;
    let mut pair = Pair::on(&Fabric::new(), QpType::RC, |attributes| attributes.mtu = 4096);
    let (sa, sb) = ([pair.a.sge(0, 64)], [pair.b.sge(0, 64)]);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        pair.qb.receive(1, &sb);
        pair.qa.post(1, Operation::Send, &sa);
        assert!(pair.b.poll().is_some() && pair.a.poll().is_some());
        pair.qa.receive(1, &sa);
        pair.qb.post(1, Operation::Send, &sb);
        assert!(pair.a.poll().is_some() && pair.b.poll().is_some());
    }
    println!("64-byte ping-pong: {:?} each", start.elapsed() / ROUNDS);

    let (ra, rb) = (pair.a.sge(0, MEMORY), pair.b.remote(0));
    let rounds = 2000u32;
    let start = Instant::now();
    for _ in 0..rounds {
        pair.qa.post(1, Operation::Write(rb), &[ra]);
        assert!(pair.a.poll().is_some());
    }
    let each = start.elapsed() / rounds;
    let start = Instant::now();
    for _ in 0..rounds {
        // SAFETY: within the mappings.
        unsafe {
            pair.b.memory.as_ptr().as_ptr().copy_from_nonoverlapping(pair.a.memory.as_ptr().as_ptr(), MEMORY)
        };
    }
    let copy = start.elapsed() / rounds;
    println!("1 MiB write {each:?}, memcpy {copy:?}: {:.2}", copy.as_secs_f64() / each.as_secs_f64());
}
