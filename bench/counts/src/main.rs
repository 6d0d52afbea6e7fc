//! Runs each operation of the data path under `valgrind --tool=callgrind --collect-atstart=no`. It
//! counts the instructions between marks and dumps them under the names that `cargo xtask counts`
//! reads.

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
    use std::future::Future;
    use std::hint::black_box;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use bareverbs::Mr;
    use bareverbs::owned::measured::Given;
    use bareverbs::owned::{Lease, Part, Pending};
    use bareverbs::{
        Operation, Payload, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcStatus, WorkCompletion,
    };
    use counts::harness::{Harness, HubHarness, Placed, SafeBuffer, WrapMlx5};
    use counts::marks::{begin, counted, end};

    /// Samples of each quantity. All operations of a measurement fit into the queues.
    const RUNS: u64 = 100;
    /// Requests in a batch.
    const BATCH: u64 = 32;
    const BYTES: [u8; 8] = [7; 8];

    /// Dumps the counts of `RUNS` samples.
    fn report(types: &str, name: &str) {
        end(&CString::new(format!("{types}.{name}/{RUNS}")).expect("a name"));
    }

    pub(crate) fn measure<P: WrapMlx5>(types: &str) {
        marks(types, &mut Harness::<P>::new());
        sends(types, &mut Harness::<P>::new());
        polls(types, &mut Harness::<P>::new());
        receives(types, &mut Harness::<P>::new());
        raw(types, &mut Harness::<P>::new());
        safe(types, &mut Harness::<P, Lease>::new());
        hub(types, &mut Harness::<P, Lease>::new().into_hub());
        safe(types, &mut Harness::<P, Part<Placed>>::new());
        safe(types, &mut Harness::<P, Mr<Placed>>::new());
    }

    /// The measured operations. Each is a function of its own, so the compiler can't move code
    /// across a mark.
    macro_rules! measured {
        ($($name:ident($harness:ident $(, $argument:ident: $ty:ty)*) -> $result:ty $work:block)*) => {$(
            #[inline(never)]
            fn $name<P: WrapMlx5>($harness: &mut Harness<P> $(, $argument: $ty)*) -> $result {
                counted(|| $work)
            }
        )*};
    }

    measured! {
        nothing(_stage) -> () {}
        post_write(harness, wr_id: u64, remote: Remote, bytes: &[u8; 8]) -> bool {
            harness.post_write(wr_id, remote, bytes)
        }
        post_list(harness, list: &[SendRequest<'_>]) -> bool { harness.post_list(list) }
        post_batch(harness, count: u64, remote: Remote, bytes: &[u8; 8]) -> bool {
            harness.post_batch(count, remote, bytes)
        }
        poll(harness) -> Option<u64> {
            let (wr_id, status, byte_len) = harness.poll()?;
            (status == WcStatus::SUCCESS).then_some(wr_id + u64::from(byte_len))
        }
        poll_one(harness) -> Option<WorkCompletion> { harness.poll_one() }
        post_recv(harness, wr_id: u64, addr: u64, lkey: u32) -> () {
            harness.post_recv(wr_id, &Sge { addr, length: 64, lkey });
        }
        post_sge(harness, wr_id: u64, sge: &Sge) -> () { harness.post_recv(wr_id, sge) }
        post_receives(harness, list: &[RecvRequest<'_>]) -> bool { harness.post_receives(list) }
        raw_write(harness, wr_id: u64, sge: &Sge) -> bool { harness.post_sge(wr_id, *sge) }
    }

    /// As `measured`, for a type of buffer.
    macro_rules! measured_safe {
        ($($name:ident($harness:ident $(, $argument:ident: $ty:ty)*) -> $result:ty $work:block)*) => {$(
            #[inline(never)]
            fn $name<P: WrapMlx5, B: SafeBuffer>($harness: &mut Harness<P, B> $(, $argument: $ty)*) -> $result {
                counted(|| $work)
            }
        )*};
    }

    measured_safe! {
        safe_write(harness, buffer: B, tag: u64) -> bool { harness.safe_write(buffer, tag) }
        safe_recv(harness, buffer: B) -> bool { harness.safe_recv(buffer) }
        safe_poll_send(harness) -> Option<(u64, B)> {
            let Some(Ok(done)) = harness.safe_poll() else { return None };
            Some((done.tag, done.into_buffer()))
        }
        safe_poll_recv(harness) -> Option<(u64, B)> {
            let Some(Ok(done)) = harness.safe_poll() else { return None };
            Some((done.tag + u64::from(done.len), done.into_buffer()))
        }
    }

    /// Measures the cost of the marks.
    fn marks<P: WrapMlx5>(types: &str, harness: &mut Harness<P>) {
        begin();
        for _ in 0..RUNS {
            nothing(harness);
        }
        report(types, "nothing");
    }

    fn sends<P: WrapMlx5>(types: &str, harness: &mut Harness<P>) {
        begin();
        for wr_id in 0..RUNS {
            let remote = harness.remote;
            assert!(post_write(harness, wr_id, remote, &BYTES));
            harness.run();
            assert_eq!(harness.drain(), 1);
        }
        report(types, "post_send 1 in place");

        let parts = [&BYTES[..]];
        let (operation, payload) = (Operation::Write(harness.remote), Payload::Inline(&parts));
        let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload };
        let list = [request; BATCH as usize];
        for (name, list) in [("post_send 1", &list[..1]), ("post_send 32", &list[..])] {
            begin();
            for _ in 0..RUNS {
                assert!(post_list(harness, black_box(list)));
                harness.run();
                assert_eq!(harness.drain(), list.len());
            }
            report(types, name);
        }

        for (name, count) in [("start_send 1", 1), ("start_send 32", BATCH)] {
            begin();
            for _ in 0..RUNS {
                let remote = harness.remote;
                assert!(post_batch(harness, black_box(count), remote, &BYTES));
                harness.run();
                assert_eq!(harness.drain(), count as usize);
            }
            report(types, name);
        }
    }

    fn polls<P: WrapMlx5>(types: &str, harness: &mut Harness<P>) {
        begin();
        for wr_id in 0..RUNS {
            assert!(harness.post_write(wr_id, harness.remote, &BYTES));
            harness.run();
            assert_eq!(poll(harness), Some(wr_id));
        }
        report(types, "poll send");

        begin();
        for wr_id in 0..RUNS {
            assert!(harness.post_write(wr_id, harness.remote, &BYTES));
            harness.run();
            assert_eq!(poll_one(harness).map(|wc| wc.wr_id), Some(wr_id));
        }
        report(types, "poll_one send");

        begin();
        for wr_id in 0..RUNS {
            harness.post_recv(wr_id, &harness.sge.clone());
            harness.receive(1);
            assert_eq!(poll(harness), Some(wr_id + 8));
        }
        report(types, "poll receive");

        begin();
        for _ in 0..RUNS {
            assert!(poll(harness).is_none());
        }
        report(types, "poll nothing");
    }

    fn receives<P: WrapMlx5>(types: &str, harness: &mut Harness<P>) {
        let sge = harness.sge;
        begin();
        for wr_id in 0..RUNS {
            post_recv(harness, wr_id, sge.addr, sge.lkey);
        }
        report(types, "post_recv 1 in place");
        harness.receive(RUNS);
        assert_eq!(harness.drain() as u64, RUNS);

        begin();
        for wr_id in 0..RUNS {
            post_sge(harness, wr_id, black_box(&sge));
        }
        report(types, "post_recv 1 sge");
        harness.receive(RUNS);
        assert_eq!(harness.drain() as u64, RUNS);

        let sges = [sge];
        let list = [RecvRequest { wr_id: 1, sges: &sges }; BATCH as usize];
        for (name, list) in [("post_recv 1", &list[..1]), ("post_recv 32", &list[..])] {
            begin();
            for _ in 0..RUNS {
                assert!(post_receives(harness, black_box(list)));
                harness.receive(list.len() as u64);
                assert_eq!(harness.drain(), list.len());
            }
            report(types, name);
        }
    }

    /// A raw write that the safe layer is compared with.
    fn raw<P: WrapMlx5>(types: &str, harness: &mut Harness<P>) {
        let sge = harness.sge;
        begin();
        for wr_id in 0..RUNS {
            assert!(raw_write(harness, wr_id, black_box(&sge)));
            harness.run();
            assert_eq!(harness.drain(), 1);
        }
        report(types, "post_send 1 sge");
    }

    /// The safe layer.
    fn safe<P: WrapMlx5, B: SafeBuffer>(types: &str, harness: &mut Harness<P, B>) {
        let report = |name: &str| report(types, &format!("safe {name} {}", B::NAME));
        let mut buffer = harness.buffer();
        begin();
        for tag in 0..RUNS {
            assert!(safe_write(harness, buffer, tag));
            harness.run();
            let done = harness.safe_poll().expect("a completion").expect("a success");
            assert_eq!((done.tag, done.len), (tag, 64));
            buffer = done.into_buffer();
        }
        report("post");

        begin();
        for tag in 0..RUNS {
            assert!(harness.safe_write(buffer, tag));
            harness.run();
            let (done, again) = safe_poll_send(harness).expect("a completion");
            assert_eq!(done, tag);
            buffer = again;
        }
        report("poll send");

        begin();
        for _ in 0..RUNS {
            assert!(safe_recv(harness, buffer));
            harness.receive(1);
            buffer = harness.safe_poll().expect("a completion").expect("a success").into_buffer();
        }
        report("post_recv");

        begin();
        for _ in 0..RUNS {
            assert!(harness.safe_recv(buffer));
            harness.receive(1);
            let (len, again) = safe_poll_recv(harness).expect("a completion");
            assert_eq!(len, 8);
            buffer = again;
        }
        report("poll receive");
    }
    #[inline(never)]
    fn hub_write<P: WrapMlx5>(harness: &HubHarness<P>, buffer: Lease, tag: u64) -> Pending<Lease, Given<P>> {
        counted(|| harness.post(buffer, tag))
    }

    /// The completion is in the CQ. The future reaps it and takes the result.
    #[inline(never)]
    fn hub_await<P: WrapMlx5>(
        pending: Pending<Lease, Given<P>>,
        cx: &mut Context<'_>,
    ) -> Option<(u64, Lease)> {
        let mut pending = pending;
        let polled = counted(|| Pin::new(&mut pending).poll(cx));
        let Poll::Ready(Ok(done)) = polled else { return None };
        Some((done.tag, done.into_buffer()))
    }

    /// A hub: a post, and a completion that is handed to the future that waits for it.
    fn hub<P: WrapMlx5>(types: &str, harness: &mut HubHarness<P>) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut buffer = harness.buffer();
        for name in ["hub post", "hub await"] {
            begin();
            for tag in 0..RUNS {
                let posted = name == "hub post";
                let pending =
                    if posted { hub_write(harness, buffer, tag) } else { harness.post(buffer, tag) };
                harness.run();
                let (done, again) = if posted {
                    let done = pending.wait().expect("a success");
                    (done.tag, done.into_buffer())
                } else {
                    hub_await(pending, &mut cx).expect("a completion")
                };
                assert_eq!(done, tag);
                buffer = again;
            }
            report(types, name);
        }
    }
}
