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
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use bareverbs::cq::WorkCompletion;
    use bareverbs::qp::{Operation, Payload, RecvRequest, SendFlags, SendRequest, Sge};
    use bareverbs::{
        Buffer, Connection, Endpoint, Imm, Mr, Op, Pending, PoolBuffer, RegionMut, Remote, Scope, WcStatus,
    };
    use counts::harness::{Given, Harness, Peer, SafeBuffer, WrapMlx5};
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
        registers::<P>(types);
        safe::<P, PoolBuffer>(types, Harness::new().into_endpoint());
        hub(types, Harness::<P>::new().into_connection());
        endpoint(types, Harness::<P>::new().into_endpoint());
        task(types, Harness::<P>::new().into_endpoint());
        scope(types, Harness::<P>::new().into_endpoint());
        safe::<P, RegionMut<Buffer>>(types, Harness::new().into_endpoint());
        safe::<P, Mr<Buffer>>(types, Harness::new().into_endpoint());
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
        raw_write(harness, wr_id: u64, sge: &Sge) -> bool {
            harness.post_sge(wr_id, *sge, SendFlags::SIGNALED)
        }
        raw_unsignaled(harness, wr_id: u64, sge: &Sge) -> bool {
            harness.post_sge(wr_id, *sge, SendFlags::empty())
        }
        poll_imm(harness) -> Option<(u64, Option<Imm>)> {
            let (wr_id, status, byte_len, imm) = harness.poll_imm()?;
            (status == WcStatus::SUCCESS).then_some((wr_id + u64::from(byte_len), imm))
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

    /// A BlueFlame register beside one of plain doorbells, by the size of a batch.
    fn registers<P: WrapMlx5>(types: &str) {
        for (register, blue_flame) in [("blueflame", true), ("doorbell", false)] {
            let harness = &mut Harness::<P>::with_register(blue_flame);
            begin();
            for wr_id in 0..RUNS {
                let remote = harness.remote;
                assert!(post_write(harness, wr_id, remote, &BYTES));
                harness.run();
                assert_eq!(harness.drain(), 1);
            }
            report(types, &format!("{register} in place"));
            for count in [1, 2, 4, 8, 16, 32] {
                begin();
                for _ in 0..RUNS {
                    let remote = harness.remote;
                    assert!(post_batch(harness, black_box(count), remote, &BYTES));
                    harness.run();
                    assert_eq!(harness.drain(), count as usize);
                }
                report(types, &format!("{register} {count}"));
            }
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

        let (remote, imm) = (harness.remote, Imm::from(7));
        let operations = [Operation::SendImm(imm), Operation::WriteImm(remote, imm)];
        for (name, operation) in ["poll receive imm", "poll write imm"].into_iter().zip(operations) {
            begin();
            for wr_id in 0..RUNS {
                harness.post_recv(wr_id, &harness.sge.clone());
                harness.receive_by(operation);
                assert_eq!(poll_imm(harness), Some((wr_id + 8, Some(imm))));
            }
            report(types, name);
        }

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

        begin();
        for wr_id in 0..RUNS {
            assert!(raw_unsignaled(harness, wr_id, black_box(&sge)));
            assert!(harness.post_write(wr_id, harness.remote, &BYTES));
            harness.run();
            assert_eq!(harness.drain(), 1);
        }
        report(types, "post_send 1 unsignaled");
    }

    type End<P, B = PoolBuffer> = Endpoint<B, Given<P>>;

    /// The counted functions of an endpoint with buffers of type `B`.
    macro_rules! measured_safe {
        ($($name:ident($end:ident $(, $argument:ident: $ty:ty)*) -> $result:ty $work:block)*) => {$(
            #[inline(never)]
            fn $name<P: WrapMlx5, B: SafeBuffer>($end: &mut End<P, B> $(, $argument: $ty)*) -> $result {
                counted(|| $work)
            }
        )*};
    }

    measured_safe! {
        safe_write(end, buffer: B, remote: Remote, tag: u64) -> bool {
            end.post(Op::write(buffer, .., remote).tag(tag)).is_ok()
        }
        safe_recv(end, buffer: B) -> bool { end.post(Op::recv(buffer)).is_ok() }
        safe_poll_send(end) -> Option<(u64, B)> {
            let Some(Ok(done)) = end.poll() else { return None };
            Some((done.tag, done.into_buffer()))
        }
        safe_poll_recv(end) -> Option<(u64, B)> {
            let Some(Ok(done)) = end.poll() else { return None };
            Some((done.tag + u64::from(done.len), done.into_buffer()))
        }
    }

    /// Operations with one buffer of type `B`.
    fn safe<P: WrapMlx5, B: SafeBuffer>(types: &str, (mut end, mut peer): (End<P, B>, Peer<P>)) {
        let report = |name: &str| report(types, &format!("safe {name} {}", B::NAME));
        let (mut buffer, remote) = (peer.buffer(), peer.remote);
        begin();
        for tag in 0..RUNS {
            assert!(safe_write(&mut end, buffer, remote, tag));
            peer.run();
            let done = end.poll().expect("a completion").expect("a success");
            assert_eq!((done.tag, done.len), (tag, 64));
            buffer = done.into_buffer();
        }
        report("post");

        begin();
        for tag in 0..RUNS {
            end.post(Op::write(buffer, .., remote).tag(tag)).expect("room");
            peer.run();
            let (done, again) = safe_poll_send(&mut end).expect("a completion");
            assert_eq!(done, tag);
            buffer = again;
        }
        report("poll send");

        begin();
        for _ in 0..RUNS {
            assert!(safe_recv(&mut end, buffer));
            peer.execute(Operation::Send);
            buffer = end.poll().expect("a completion").expect("a success").into_buffer();
        }
        report("post_recv");

        begin();
        for _ in 0..RUNS {
            end.post(Op::recv(buffer)).expect("room");
            peer.execute(Operation::Send);
            let (len, again) = safe_poll_recv(&mut end).expect("a completion");
            assert_eq!(len, 8);
            buffer = again;
        }
        report("poll receive");
    }

    /// The functions of `End` that are counted.
    macro_rules! measured_end {
        ($($name:ident($end:ident: $of:ty $(, $argument:ident: $ty:ty)*) -> $result:ty $work:block)*) => {$(
            #[inline(never)]
            fn $name<P: WrapMlx5>($end: $of $(, $argument: $ty)*) -> $result {
                counted(|| $work)
            }
        )*};
    }

    measured_end! {
        end_inline(end: &mut End<P>, remote: Remote, bytes: &[u8; 8], tag: u64) -> bool {
            end.post(Op::write_inline(bytes, remote).tag(tag)).is_ok()
        }
        end_unsignaled(end: &mut End<P>, buffer: PoolBuffer, remote: Remote) -> bool {
            end.post(Op::write(buffer, .., remote).unsignaled()).is_ok()
        }
        end_batch(end: &mut End<P>, remote: Remote, bytes: &[u8; 8], count: u64) -> bool {
            let mut batch = end.batch();
            for tag in 0..count {
                if batch.post(Op::write_inline(bytes, remote).tag(tag)).is_err() {
                    return false;
                }
            }
            batch.ring().is_ok()
        }
        end_wait(end: &mut End<P>) -> Option<(u64, PoolBuffer)> {
            let Ok(done) = end.next().wait() else { return None };
            Some((done.tag + u64::from(done.len), done.buffer?))
        }
        end_poll(end: &mut End<P>) -> Option<(u64, Option<Imm>, Option<PoolBuffer>)> {
            let Some(Ok(done)) = end.poll() else { return None };
            Some((done.tag + u64::from(done.len), done.imm, done.buffer))
        }
    }

    /// Operations of an endpoint.
    fn endpoint<P: WrapMlx5>(types: &str, (mut end, mut peer): (End<P>, Peer<P>)) {
        let remote = peer.remote;
        begin();
        for tag in 0..RUNS {
            assert!(end_inline(&mut end, remote, &BYTES, tag));
            peer.run();
            assert_eq!(end.poll().expect("a completion").expect("a success").tag, tag);
        }
        report(types, "end inline");

        let mut buffer = peer.buffer();
        begin();
        for _ in 0..RUNS {
            assert!(end_unsignaled(&mut end, buffer, remote));
            // The next signalled one ends it.
            end.post(Op::write_inline(&BYTES, remote)).expect("room");
            peer.run();
            buffer = end.poll().expect("a completion").expect("a success").into_buffer();
            drop(end.poll().expect("a completion").expect("a success"));
        }
        report(types, "end unsignaled");

        begin();
        for tag in 0..RUNS {
            end.post(Op::write(buffer, .., remote).tag(tag)).expect("room");
            peer.run();
            let (done, again) = end_wait(&mut end).expect("a completion");
            assert_eq!(done, tag + 64);
            buffer = again;
        }
        report(types, "end wait send");

        for (name, count) in [("end batch 1", 1), ("end batch 32", BATCH)] {
            begin();
            for _ in 0..RUNS {
                assert!(end_batch(&mut end, remote, &BYTES, black_box(count)));
                peer.run();
                (0..count).for_each(|_| drop(end.poll().expect("a completion").expect("a success")));
            }
            report(types, name);
        }

        for name in ["end poll imm", "end poll write imm"] {
            begin();
            for number in 0..RUNS as u32 {
                let imm = number.into();
                end.post(Op::recv(buffer)).expect("room");
                peer.execute(match name {
                    "end poll imm" => Operation::SendImm(imm),
                    _ => Operation::WriteImm(remote, imm),
                });
                let (len, received, again) = end_poll(&mut end).expect("a completion");
                assert_eq!((len, received), (8, Some(imm)));
                buffer = again.expect("the buffer");
            }
            report(types, name);
        }
    }

    /// The completion is in the CQ. The first poll of the future returns the operation.
    #[inline(never)]
    fn end_await<P: WrapMlx5>(end: &mut End<P>, cx: &mut Context<'_>) -> Option<(u64, PoolBuffer)> {
        counted(|| {
            let Poll::Ready(Ok(done)) = pin!(end.next()).poll(cx) else { return None };
            Some((done.tag + u64::from(done.len), done.buffer?))
        })
    }

    /// An endpoint that a task of tokio waits on.
    fn task<P: WrapMlx5>(types: &str, (mut end, mut peer): (End<P>, Peer<P>)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        let _entered = runtime.enter();
        end.attach(bareverbs::runtime::Tokio).expect("a task of tokio");
        let mut cx = Context::from_waker(Waker::noop());
        let (mut buffer, remote) = (peer.buffer(), peer.remote);
        for name in ["end await send", "end await receive"] {
            begin();
            for tag in 0..RUNS {
                let expected = if name == "end await send" {
                    end.post(Op::write(buffer, .., remote).tag(tag)).expect("room");
                    peer.run();
                    tag + 64
                } else {
                    end.post(Op::recv(buffer)).expect("room");
                    peer.execute(Operation::Send);
                    8
                };
                let (done, again) = loop {
                    // One poll in 128 lets other tasks run.
                    if let Some(done) = end_await(&mut end, &mut cx) {
                        break done;
                    }
                };
                assert_eq!(done, expected);
                buffer = again;
            }
            report(types, name);
        }
    }

    #[inline(never)]
    fn scope_write<'scope, P: WrapMlx5>(
        scope: &mut Scope<'scope, '_, PoolBuffer, Given<P>>,
        region: &'scope Mr<Buffer>,
        remote: Remote,
    ) -> bool {
        counted(|| scope.post(Op::write(region, .., remote).tag(1)).is_ok())
    }

    /// A post in a scope.
    fn scope<P: WrapMlx5>(types: &str, (mut end, mut peer): (End<P>, Peer<P>)) {
        let (region, remote) = (peer.buffer::<Mr<Buffer>>(), peer.remote);
        begin();
        end.scope(|scope| {
            for _ in 0..RUNS {
                assert!(scope_write(scope, &region, remote));
                peer.run();
                drop(scope.poll().expect("a completion").expect("a success"));
            }
        })
        .expect("all are complete");
        report(types, "scope post");
    }

    #[inline(never)]
    fn hub_write<P: WrapMlx5>(
        connection: &Connection<PoolBuffer, Given<P>>,
        buffer: PoolBuffer,
        remote: Remote,
        tag: u64,
    ) -> Pending<PoolBuffer, Given<P>> {
        counted(|| connection.post(Op::write(buffer, .., remote).tag(tag)))
    }

    /// The completion is in the CQ. The future reaps it and takes the result.
    #[inline(never)]
    #[expect(clippy::result_large_err, reason = "no error: the future of which another poll is needed")]
    fn hub_await<P: WrapMlx5>(
        pending: Pending<PoolBuffer, Given<P>>,
        cx: &mut Context<'_>,
    ) -> Result<(u64, PoolBuffer), Pending<PoolBuffer, Given<P>>> {
        let mut pending = pending;
        let awaited = counted(|| {
            let Poll::Ready(Ok(done)) = Pin::new(&mut pending).poll(cx) else { return None };
            Some((done.tag, done.buffer?))
        });
        awaited.ok_or(pending)
    }

    /// A hub: a post, and a completion that is handed to the future that waits for it.
    fn hub<P: WrapMlx5>(types: &str, (connection, mut peer): (Connection<PoolBuffer, Given<P>>, Peer<P>)) {
        let mut cx = Context::from_waker(Waker::noop());
        let (mut buffer, remote) = (peer.buffer(), peer.remote);
        for name in ["hub post", "hub await"] {
            begin();
            for tag in 0..RUNS {
                let posted = name == "hub post";
                let mut pending = match posted {
                    true => hub_write(&connection, buffer, remote, tag),
                    false => connection.post(Op::write(buffer, .., remote).tag(tag)),
                };
                peer.run();
                let (done, again) = if posted {
                    let done = pending.wait().expect("a success");
                    (done.tag, done.into_buffer())
                } else {
                    loop {
                        // One poll in 128 lets other tasks run.
                        match hub_await(pending, &mut cx) {
                            Ok(awaited) => break awaited,
                            Err(again) => pending = again,
                        }
                    }
                };
                assert_eq!(done, tag);
                buffer = again;
            }
            report(types, name);
        }
    }
}
