//! Options of objects that only some devices have: each works, or is rejected as unsupported.

use std::time::Duration;

use bareverbs::comp_cntr::CompCntrOps;
use bareverbs::cq::{Cq, CqInit};
use bareverbs::device::EventType;
use bareverbs::error::Feature;
use bareverbs::mr::{Advice, NotReplaced};
use bareverbs::qp::{
    Operation, Payload, QpCap, QpCreateFlags, QpInit, QpState, RateLimit, RawPacket, Rc, Ud,
};
use bareverbs::{Access, AsyncEvent, Buffer, Context, Error};
use bareverbs_kernel_tests::loopback::{
    ALL_REMOTE, Plan, Side, contents, domain, join, open, pair, region, request, side,
};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Outcome, TIMEOUT, device, kernel_test, skip};

/// More sends than a CQ of 4 entries has room for, none of them polled. Returns the QP's state in
/// the kernel, and whether the CQ failed within a time.
fn overrun(
    time: Duration,
    cq: impl Fn(&Context, &CqInit<'_>) -> bareverbs::Result<Cq>,
) -> bareverbs::Result<(QpState, bool)> {
    let pd = domain();
    let own = cq(pd.context(), &CqInit::new(3))?;
    let entries = own.capacity();
    let cap = QpCap { max_send_wr: 64, max_inline_data: 64, ..QpCap::default() };
    let plan = Plan { cap, ..Plan::default() };
    let (mut a, mut b) = (Side::on(&pd, plan, own), side(&pd, plan));
    let target = region(&pd, &[0; 64], ALL_REMOTE);
    join(&mut a, &mut b);
    let write = |wr_id| request(wr_id, Operation::Write(target.remote(0).unwrap()), Payload::Inline(&[b"x"]));
    for wr_id in 0..u64::from(entries) + 8 {
        // The queue pair may be in ERR.
        let _ = a.send(&[write(wr_id)]);
    }
    let begin = std::time::Instant::now();
    let mut failed = false;
    while !failed && begin.elapsed() < time {
        let event =
            pd.context().async_events().next().wait_timeout(Duration::from_millis(100)).transpose()?;
        failed = matches!(event, Some(AsyncEvent::Cq { event: EventType::CQ_ERR, .. }));
    }
    Ok((a.kernel_state(), failed))
}

#[kernel_test]
fn cq_that_ignores_overruns_raises_no_error() -> Outcome {
    nothing_leaks(|| {
        // SAFETY: requests and completions name no memory that is reused, so a completion of
        // another request does no harm.
        match overrun(Duration::from_secs(1), |context, init| unsafe {
            context.create_cq_ignoring_overrun(init)
        }) {
            Err(Error::Unsupported { .. }) => {
                assert!(device::posts_by_call());
                skip("the device checks CQs for overruns always")
            }
            state => {
                assert_eq!(state.unwrap(), (QpState::RTS, false));
                let (_, failed) = overrun(TIMEOUT, Context::create_cq).unwrap();
                assert!(failed, "an ordinary CQ reports its overrun");
                Ok(bareverbs_kernel_tests::Completion::Completed)
            }
        }
    })
}

#[kernel_test]
fn qp_creation_flags_work_or_are_unsupported() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
        let attr = pd.context().query_device().unwrap();
        let init = |flags| QpInit { flags, ..QpInit::new(&cq, &cq) };
        for flags in QpCreateFlags::all().iter() {
            let outcomes = [
                pd.create_qp::<Rc>(&init(flags)).map(drop),
                pd.create_qp::<Ud>(&init(flags)).map(drop),
                pd.create_qp::<RawPacket>(&init(flags)).map(drop),
            ];
            println!("{flags:?}: {outcomes:?}");
            for outcome in &outcomes {
                assert!(matches!(outcome, Ok(()) | Err(Error::Unsupported { .. })), "{flags:?}: {outcome:?}");
            }
            if flags == QpCreateFlags::SQ_SIG_ALL {
                let transports = if device::ib_transports().is_ok() { 2 } else { 1 };
                assert!(outcomes[..transports].iter().all(Result::is_ok), "{outcomes:?}");
            } else if device::posts_by_call() {
                assert!(outcomes.iter().all(Result::is_err), "{flags:?}");
            }
            let frames = [QpCreateFlags::CVLAN_STRIPPING, QpCreateFlags::SCATTER_FCS].contains(&flags);
            if frames {
                assert!(outcomes[..2].iter().all(Result::is_err), "frames only");
                if attr.raw_packet_caps.is_empty() {
                    outcomes[2].as_ref().unwrap_err();
                }
            }
        }
        let unknown = pd.create_qp::<Rc>(&init(QpCreateFlags::from_bits_retain(1 << 30))).map(drop);
        assert!(matches!(unknown, Err(Error::Unsupported { .. })), "{unknown:?}");
        let sourced = QpInit { source_qp_num: Some(1), ..QpInit::new(&cq, &cq) };
        let refused = pd.create_qp::<Rc>(&sourced).map(drop);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        let datagrams = pd.create_qp::<Ud>(&sourced).map(drop);
        if device::is_infiniband() {
            datagrams.unwrap();
        } else {
            assert!(matches!(datagrams, Err(Error::Unsupported { .. })), "{datagrams:?}");
        }
    });
}

#[kernel_test(device::raw_packets)]
fn rate_limit_works_or_is_unsupported() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
        let mut qp = pd.create_qp::<RawPacket>(&QpInit::new(&cq, &cq)).unwrap();
        let limit = RateLimit { rate: 1_000_000, max_burst: 65536, typical_packet: 1500 };
        let early = qp.set_rate_limit(&limit);
        assert!(matches!(early, Err(Error::Invalid { .. })), "{early:?}");
        qp.init(1).unwrap();
        qp.ready_to_receive().unwrap();
        qp.ready_to_send().unwrap();
        let attr = pd.context().query_device().unwrap();
        let limited = qp.set_rate_limit(&limit);
        match attr.qp_rate_limit_max {
            0 => assert!(matches!(limited, Err(Error::Unsupported { .. })), "{limited:?}"),
            _ => limited.unwrap(),
        }
        assert_eq!(qp.state(), QpState::RTS);
    });
}

#[kernel_test]
fn advice_covers_several_regions() -> Outcome {
    if !open().capabilities().advise_mr {
        return skip("the device takes no advice");
    }
    nothing_leaks(|| {
        let pd = domain();
        let odp = Access::LOCAL_WRITE | Access::ON_DEMAND;
        let regions = [0, 1, 2].map(|_| pd.register(Buffer::zeroed(16384).unwrap(), odp).unwrap());
        let [a, b, c] = &regions;
        let list = || pd.advise(Advice::PREFETCH_WRITE).with(a, ..).unwrap().with(b, 4096..8192).unwrap();
        list().with(c, ..1).unwrap().execute().unwrap();
        list().execute_async().unwrap();
        pd.advise(Advice::PREFETCH).execute().unwrap();
        let pinned = region(&pd, &[0; 64], Access::LOCAL_WRITE);
        let refused = list().with(&pinned, ..).unwrap_err();
        assert!(refused.to_string().contains("the MR is pinned"), "{refused}");
        let other = pd.context().alloc_pd().unwrap();
        let refused = other.advise(Advice::PREFETCH).with(a, ..).unwrap_err();
        assert!(refused.to_string().contains("another PD"), "{refused}");
        Ok(bareverbs_kernel_tests::Completion::Completed)
    })
}

#[kernel_test]
fn replaced_memory_of_an_mr_is_used_or_the_mr_is_unchanged() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let target = region(&pd, &[0; 64], ALL_REMOTE);
        let mut first = Buffer::zeroed(4096).unwrap();
        first[..64].fill(1);
        let source = pd.register(first, Access::LOCAL_WRITE).unwrap();
        let mut bytes = Buffer::zeroed(16384).unwrap();
        bytes[..64].fill(2);
        let (source, expected) = match source.replace(bytes) {
            Ok((source, old)) => {
                assert_eq!((old.len(), old[0], source.len()), (4096, 1, 16384));
                assert_eq!(source.query().unwrap().length, 16384);
                (source, 2)
            }
            Err(refused) => {
                assert!(matches!(refused.error, Error::Unsupported { .. }), "{refused}");
                let NotReplaced::Unchanged { region, memory } = refused.object else {
                    panic!("{:?}", refused.object);
                };
                assert!(device::posts_by_call() && memory.len() == 16384);
                (region, 1)
            }
        };
        let remote = target.remote(0).unwrap();
        let sges = [source.sge(..64).unwrap()];
        a.send(&[request(1, Operation::Write(remote), Payload::Sges(&sges))]).unwrap();
        a.ends(1);
        assert_eq!(contents(&target), [expected; 64]);
        if device::moves_qps().is_ok() {
            b.qp.reset().unwrap();
        }

        let window = region(&pd, &[0; 64], Access::LOCAL_WRITE | Access::MW_BIND);
        let refused = window.replace(vec![0; 64]).unwrap_err();
        assert!(refused.to_string().contains("an MW may be bound"), "{refused}");
        drop(refused);
        assert_eq!(source.into_inner().unwrap()[0], expected);

        let (small, large) = (Buffer::zeroed(4096).unwrap(), Buffer::zeroed(8192).unwrap());
        let other = pd.context().alloc_pd().unwrap();
        let wider = Access::LOCAL_WRITE | Access::REMOTE_READ;
        // SAFETY: nothing is posted on the region, and both buffers outlive it.
        let (mr, replaced) = unsafe {
            let start = small.as_ptr().cast_mut();
            let mut mr = pd.register_raw(start, small.len(), None, Access::LOCAL_WRITE).unwrap();
            let start = large.as_ptr().cast_mut();
            let replaced = mr.replace_raw(start, large.len(), None, Some(&other), Some(wider));
            (mr, replaced)
        };
        let info = mr.query().unwrap();
        assert_eq!((info.length, info.lkey, info.iova), (mr.len() as u64, mr.lkey(), mr.addr()));
        match replaced {
            Ok(()) => {
                assert_eq!((mr.as_ptr().cast_const(), mr.len(), mr.access()), (large.as_ptr(), 8192, wider));
                let refused = other.dealloc().unwrap_err();
                assert!(matches!(refused.error, Error::Invalid { .. }), "the MR is of that PD");
            }
            Err(refused) => {
                assert!(device::posts_by_call() && matches!(refused, Error::Unsupported { .. }), "{refused}");
                assert_eq!((mr.len(), mr.access()), (4096, Access::LOCAL_WRITE));
            }
        }
    });
}

#[kernel_test]
fn completion_counters_are_created_or_unsupported() {
    nothing_leaks(|| {
        let mut side = side(&domain(), Plan::default());
        let context = side.qp.pd().context().clone();
        let is_unsupported =
            |error: &Error| matches!(error, Error::Unsupported { feature: Feature::CompCntrs, .. });
        // Linux has them since 7.3, for the driver of EFA.
        match context.create_comp_cntr() {
            Err(refused) => {
                assert!(is_unsupported(&refused), "{refused}");
                let refused = context.query_comp_cntr_caps().unwrap_err();
                assert!(is_unsupported(&refused), "{refused}");
            }
            Ok(counter) => {
                counter.set(7).unwrap();
                counter.add(3).unwrap();
                assert_eq!((counter.read().unwrap(), counter.read_errors().unwrap()), (10, 0));
                side.qp.attach_comp_cntr(&counter, CompCntrOps::SEND).unwrap();
                // The QP keeps it.
                let refused = counter.destroy().unwrap_err();
                assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
            }
        }
    });
}
