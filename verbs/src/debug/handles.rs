//! `Debug` of the handles: the numbers that name an object in the kernel's reports.

use bareverbs_provider::traits::{Completion, Provider};

use super::debug;
use crate::ah::Ah;
use crate::cq::{Completions, Cq, CqRef};
use crate::dm::{Dm, DmMr};
use crate::mr::{DmabufMr, Dmah, ImportedMr};
use crate::provider::{AnyAh, AnyCompletion, AnyCq, AnyRq, AnySq, AnySrq};
use crate::qp::core::QpCore;
use crate::qp::{Batch, Datagram, Operations, Qp, QpInit, RecvHalf, SendHalf, Transport};
use crate::rss::{IndirectionTable, RssInit, RssQp, Wq, WqInit};
use crate::srq::Srq;
use crate::xrc::{XrcSrq, XrcSrqInit, XrcTarget, Xrcd};
use crate::{AnyProvider, Context, Pd};
debug! {
    it: "Context" [P: Provider] Context<P> { device = it.device().name() }
    it: "Pd" [P: Provider] Pd<P> { handle = it.handle() }
    it: "Ah" [P: Provider] Ah<P> { handle = it.handle(), attr = it.attr() }
    it: "Cq" [P: Provider] Cq<P> { capacity = it.capacity(), user_data = it.user_data() }
    it: "CqRef" [P: Provider] CqRef<P> { handle = it.handle(), user_data = it.user_data() }
    it: "Completions" [P: Provider] Completions<'_, P> {}
    it: "Dm" [] Dm { handle = it.handle(), len = it.len() }
    it: "Dmah" [] Dmah { handle = it.handle() }
    it: "DmMr" [] DmMr { handle = it.handle() }
    it: "DmabufMr" [] DmabufMr { handle = it.handle() }
    it: "ImportedMr" [] ImportedMr {}
    it: "Qp" [T: Transport, P: Provider] Qp<T, P> {
        qp_type = T::QP_TYPE, qp_num = format_args!("{:#x}", it.qp_num()), state = it.state(), cap = it.cap()
    }
    it: "QpCore" [P: Provider] QpCore<P> {
        qp_type = it.qp_type(), qp_num = format_args!("{:#x}", it.qp_num()), state = it.state(), cap = it.cap()
    }
    it: "QpInit" [P: Provider] QpInit<'_, P> {
        send_cq = it.send_cq, recv_cq = it.recv_cq, srq = it.srq, cap = it.cap,
        max_tso_header = it.max_tso_header, signal_all = it.signal_all, flags = it.flags,
        source_qp_num = it.source_qp_num,
        scatter_to_cqe = it.scatter_to_cqe, user_data = it.user_data, doorbell = it.doorbell,
        memory = it.memory
    }
    it: "SendHalf" [T: Operations, P: Provider] SendHalf<'_, T, P> {
        capacity = it.capacity(), deferred = it.deferred()
    }
    it: "RecvHalf" [T: Operations, P: Provider] RecvHalf<'_, T, P> { capacity = it.capacity() }
    it: "Batch" [T: Operations, P: Provider] Batch<'_, T, P> { len = it.len() }
    it: "Datagram" [P: Provider] Datagram<'_, P> {
        ah = it.ah, qp_num = format_args!("{:#x}", it.qp_num), qkey = format_args!("{:#x}", it.qkey),
        imm = it.imm
    }
    it: "Srq" [P: Provider] Srq<P> { capacity = it.capacity(), user_data = it.user_data() }
    it: "Wq" [P: Provider] Wq<P> { wq_num = it.wq_num(), state = it.state(), capacity = it.capacity() }
    it: "WqInit" [P: Provider] WqInit<'_, P> {
        cq = it.cq, max_recv_wr = it.max_recv_wr, max_recv_sge = it.max_recv_sge, flags = it.flags,
        memory = it.memory, user_data = it.user_data
    }
    it: "IndirectionTable" [P: Provider] IndirectionTable<P> { handle = it.handle(), entries = it.entries() }
    it: "RssInit" [P: Provider] RssInit<'_, P> {
        table = it.table, hash = it.hash, user_data = it.user_data
    }
    it: "RssQp" [P: Provider] RssQp<P> { handle = it.handle(), user_data = it.user_data() }
    it: "Xrcd" [P: Provider] Xrcd<P> { handle = it.handle() }
    it: "XrcSrq" [P: Provider] XrcSrq<P> { srq_num = it.srq_num(), capacity = it.capacity() }
    it: "XrcSrqInit" [P: Provider] XrcSrqInit<'_, P> { srq = it.srq, xrcd = it.xrcd, cq = it.cq }
    it: "XrcTarget" [P: Provider] XrcTarget<P> {
        qp_num = format_args!("{:#x}", it.qp_num()), state = it.state()
    }
    it: "AnyProvider" [] AnyProvider {}
    it: "AnyCq" [] AnyCq {}
    it: "AnySq" [] AnySq {}
    it: "AnyRq" [] AnyRq {}
    it: "AnySrq" [] AnySrq {}
    it: "AnyAh" [] AnyAh {}
    it: "AnyCompletion" [] AnyCompletion<'_> { wr_id = it.wr_id(), status = it.status() }
}

#[cfg(test)]
mod tests {
    use crate::cq::CqInit;
    use crate::qp::{QpCap, QpCreateFlags, QpInit};
    use crate::testing::Plain;

    #[test]
    fn handles_print_their_numbers() {
        let plain = Plain::default();
        let pd = plain.domain();
        let qp = plain.queue_pair(&pd);
        let text = format!("{qp:?}");
        assert!(
            text.starts_with(&format!("Qp {{ qp_type: RC, qp_num: {:#x}, state: RTS, ", qp.qp_num())),
            "{text}"
        );
        let cq = pd.context().create_cq(&CqInit { user_data: 7, ..CqInit::new(8) }).unwrap();
        let (flags, source_qp_num) = (QpCreateFlags::SCATTER_FCS, Some(9));
        let init = QpInit { cap: QpCap::default(), flags, source_qp_num, ..QpInit::new(&cq, &cq) };
        let text = format!("{init:?}");
        assert!(text.contains("send_cq: CqRef {") && text.contains("user_data: 7"), "{text}");
        assert!(text.contains("flags: SCATTER_FCS, source_qp_num: Some(9)"), "{text}");
        assert!(format!("{:?} {:?}", pd, pd.context()).starts_with("Pd { handle: "));
    }
}
