//! QPs whose transport is a value, for code that knows it at run time only: a C ABI, a program with
//! the transport as an option, a test of the data path.
//!
//! | with the transport as a type | with the transport as a value |
//! |---|---|
//! | [`Pd::create_qp`](crate::Pd::create_qp) | [`QpCore::create`] |
//! | [`Qp<T>`](crate::qp::Qp), which holds a [`QpCore`] | [`QpCore`] |
//! | the operations of `T` | [`AnyOperation`] |
//! | [`Batch<T>`](crate::qp::Batch), [`SendHalf<T>`](crate::qp::SendHalf), [`RecvHalf<T>`](crate::qp::RecvHalf) | the same of [`AnyTransport`] |
//! | `init`, `ready_to_receive`, `ready_to_send` | [`QpCore::modify`], with the attributes of the transition as a mask |
//!
//! Two threads post to a [`QpCore`] at the same time through halves with a lock each:
//! [`QpCore::send_half`].
//!
//! A [`QpCore`] rejects the operations that its transport lacks with
//! [`PushError::Unsupported`](crate::error::PushError::Unsupported). The caller has these duties,
//! which the types of a [`Qp`](crate::qp::Qp) take over:
//!
//! - [`QpCore::modify`] needs the attributes that the transport requires for the transition. The
//!   kernel rejects it otherwise, and the error names the missing ones.
//! - It takes the address vector as it is. `ready_to_receive` checks it against the port.
//! - Multicast groups are for UD QPs, flows for UD and raw packet QPs, and alternate paths for RC, UC
//!   and XRC initiator QPs. The kernel rejects the others.
//!
//! All other objects have no transport in their types, so they have no core: [`Cq`](crate::cq::Cq),
//! [`Srq`](crate::srq::Srq) and [`XrcSrq`](crate::xrc::XrcSrq),
//! [`XrcTarget`](crate::xrc::XrcTarget), [`Wq`](crate::rss::Wq) and [`RssQp`](crate::rss::RssQp),
//! [`Ah`](crate::ah::Ah), [`Mw`](crate::mw::Mw). An [`Mr`](crate::Mr) of
//! [`RawMemory`](crate::RawMemory) is one type for all memory
//! ([`Pd::register_raw`](crate::Pd::register_raw)).
//!
//! An RC or UC QP sends to itself:
//!
//! ```
//! use bareverbs::Device;
//! use bareverbs::ah::AhAttr;
//! use bareverbs::cq::CqInit;
//! use bareverbs::qp::{
//!     InitAttr, Operation, Payload, QpAttr, QpAttrMask, QpInit, QpState, QpType, RtrAttr, RtsAttr,
//!     SendFlags, SendRequest, UcRtrAttr,
//! };
//! use bareverbs::untyped::QpCore;
//!
//! fn send(qp_type: QpType) -> Result<(), Box<dyn std::error::Error>> {
//!     let context = Device::find("soft0")?.open()?;
//!     let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(16))?);
//!     let mut qp = QpCore::create(&pd, qp_type, &QpInit::new(&cq, &cq))?;
//!     let gid = context.default_gid(1)?;
//!     let to = AhAttr::global(1, gid.gid, gid.index);
//!     let (init, mask) = (&InitAttr::new(1)).into();
//!     qp.modify(&init, mask)?;
//!     let (rtr, mask) = if qp_type == QpType::RC {
//!         (&RtrAttr::new(to, qp.qp_num())).into()
//!     } else {
//!         (&UcRtrAttr::new(to, qp.qp_num())).into()
//!     };
//!     qp.modify(&rtr, mask)?;
//!     let (rts, mask) = if qp_type == QpType::RC {
//!         (&RtsAttr::default()).into()
//!     } else {
//!         (QpAttr { qp_state: QpState::RTS, ..QpAttr::default() }, QpAttrMask::STATE | QpAttrMask::SQ_PSN)
//!     };
//!     qp.modify(&rts, mask)?;
//!     let request = SendRequest {
//!         wr_id: 1,
//!         operation: Operation::Send.into(),
//!         flags: SendFlags::SIGNALED,
//!         payload: Payload::Sges(&[]),
//!     };
//!     // SAFETY: no elements, so no memory that the device could reach.
//!     unsafe { qp.post_send(&[request]) }?;
//!     Ok(())
//! }
//! # send(QpType::RC).unwrap();
//! # send(QpType::UC).unwrap();
//! ```

pub use crate::provider::{AnyCompletion, BuiltIn};
pub use crate::qp::any::{AnyOperation, AnyTransport};
pub use crate::qp::core::QpCore;
