//! Does everything that the data path can do under `valgrind --tool=callgrind --collect-atstart=no`, which counts the
//! instructions between marks and writes them out under the names that `cargo xtask counts` knows.

#[cfg(target_arch = "x86_64")]
fn main() {
    x86_64::measure::<bareverbs::AnyProvider>("any");
    x86_64::measure::<bareverbs_mlx5::Mlx5>("own");
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("counts marks its code for valgrind on x86-64");
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::ffi::CString;
    use std::hint::black_box;

    use bareverbs::{
        Operation, Payload, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcStatus, WorkCompletion,
    };
    use counts::marks::{begin, counted, end};
    use counts::stage::{Over, Stage};

    /// Samples of each quantity; with all that is done in one, fewer than the queues hold.
    const RUNS: u64 = 100;
    /// Requests of a batch.
    const BATCH: u64 = 32;
    const BYTES: [u8; 8] = [7; 8];

    /// Writes out what was counted of `RUNS` samples.
    fn report(types: &str, name: &str) {
        end(&CString::new(format!("{types}.{name}/{RUNS}")).expect("a name"));
    }

    pub(crate) fn measure<P: Over>(types: &str) {
        marks(types, &mut Stage::<P>::new());
        sends(types, &mut Stage::<P>::new());
        polls(types, &mut Stage::<P>::new());
        receives(types, &mut Stage::<P>::new());
    }

    /// What is measured, each in a function of its own: nothing of it can move behind a mark.
    macro_rules! measured {
        ($($name:ident($stage:ident $(, $argument:ident: $ty:ty)*) -> $result:ty $work:block)*) => {$(
            #[inline(never)]
            fn $name<P: Over>($stage: &mut Stage<P> $(, $argument: $ty)*) -> $result {
                counted(|| $work)
            }
        )*};
    }

    measured! {
        nothing(_stage) -> () {}
        post_write(stage, wr_id: u64, remote: Remote, bytes: &[u8; 8]) -> bool {
            stage.post_write(wr_id, remote, bytes)
        }
        post_list(stage, list: &[SendRequest<'_>]) -> bool { stage.post_list(list) }
        post_batch(stage, count: u64, remote: Remote, bytes: &[u8; 8]) -> bool {
            stage.post_batch(count, remote, bytes)
        }
        poll(stage) -> Option<u64> {
            let (wr_id, status, byte_len) = stage.poll()?;
            (status == WcStatus::SUCCESS).then_some(wr_id + u64::from(byte_len))
        }
        poll_one(stage) -> Option<WorkCompletion> { stage.poll_one() }
        post_recv(stage, wr_id: u64, addr: u64, lkey: u32) -> () {
            stage.post_recv(wr_id, &Sge { addr, length: 64, lkey });
        }
        post_sge(stage, wr_id: u64, sge: &Sge) -> () { stage.post_recv(wr_id, sge) }
        post_receives(stage, list: &[RecvRequest<'_>]) -> bool { stage.post_receives(list) }
    }

    /// What the marks cost.
    fn marks<P: Over>(types: &str, stage: &mut Stage<P>) {
        begin();
        for _ in 0..RUNS {
            nothing(stage);
        }
        report(types, "nothing");
    }

    fn sends<P: Over>(types: &str, stage: &mut Stage<P>) {
        begin();
        for wr_id in 0..RUNS {
            let remote = stage.remote;
            assert!(post_write(stage, wr_id, remote, &BYTES));
            stage.run();
            assert_eq!(stage.drain(), 1);
        }
        report(types, "post_send 1 in place");

        let parts = [&BYTES[..]];
        let (operation, payload) = (Operation::Write(stage.remote), Payload::Inline(&parts));
        let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload };
        let list = [request; BATCH as usize];
        for (name, list) in [("post_send 1", &list[..1]), ("post_send 32", &list[..])] {
            begin();
            for _ in 0..RUNS {
                assert!(post_list(stage, black_box(list)));
                stage.run();
                assert_eq!(stage.drain(), list.len());
            }
            report(types, name);
        }

        for (name, count) in [("start_send 1", 1), ("start_send 32", BATCH)] {
            begin();
            for _ in 0..RUNS {
                let remote = stage.remote;
                assert!(post_batch(stage, black_box(count), remote, &BYTES));
                stage.run();
                assert_eq!(stage.drain(), count as usize);
            }
            report(types, name);
        }
    }

    fn polls<P: Over>(types: &str, stage: &mut Stage<P>) {
        begin();
        for wr_id in 0..RUNS {
            assert!(stage.post_write(wr_id, stage.remote, &BYTES));
            stage.run();
            assert_eq!(poll(stage), Some(wr_id));
        }
        report(types, "poll send");

        begin();
        for wr_id in 0..RUNS {
            assert!(stage.post_write(wr_id, stage.remote, &BYTES));
            stage.run();
            assert_eq!(poll_one(stage).map(|wc| wc.wr_id), Some(wr_id));
        }
        report(types, "poll_one send");

        begin();
        for wr_id in 0..RUNS {
            stage.post_recv(wr_id, &stage.sge.clone());
            stage.receive(1);
            assert_eq!(poll(stage), Some(wr_id + 8));
        }
        report(types, "poll receive");

        begin();
        for _ in 0..RUNS {
            assert!(poll(stage).is_none());
        }
        report(types, "poll nothing");
    }

    fn receives<P: Over>(types: &str, stage: &mut Stage<P>) {
        let sge = stage.sge;
        begin();
        for wr_id in 0..RUNS {
            post_recv(stage, wr_id, sge.addr, sge.lkey);
        }
        report(types, "post_recv 1 in place");
        stage.receive(RUNS);
        assert_eq!(stage.drain() as u64, RUNS);

        begin();
        for wr_id in 0..RUNS {
            post_sge(stage, wr_id, black_box(&sge));
        }
        report(types, "post_recv 1 sge");
        stage.receive(RUNS);
        assert_eq!(stage.drain() as u64, RUNS);

        let sges = [sge];
        let list = [RecvRequest { wr_id: 1, sges: &sges }; BATCH as usize];
        for (name, list) in [("post_recv 1", &list[..1]), ("post_recv 32", &list[..])] {
            begin();
            for _ in 0..RUNS {
                assert!(post_receives(stage, black_box(list)));
                stage.receive(list.len() as u64);
                assert_eq!(stage.drain(), list.len());
            }
            report(types, name);
        }
    }
}
