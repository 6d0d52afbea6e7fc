//! RESET to RTS for any transport.

use bareverbs_provider::traits::Provider;

use super::{InitAttr, Qp, RawPacket, Rc, RtrAttr, RtsAttr, Transport, Uc, UcRtrAttr, Ud, UdInitAttr};
use crate::xrc::XrcSend;
use crate::{PortNum, Result};

/// A transport whose QPs go from RESET to RTS by three transitions; see [`Qp::bring_up`].
///
/// The associated types are the attributes that the transport requires for each transition.
pub trait BringUp: Transport + Sized {
    /// Attributes of RESET → INIT.
    type Init;
    /// Attributes of INIT → RTR.
    type Rtr;
    /// Attributes of RTR → RTS.
    type Rts;

    /// RESET → INIT: `init` of the transport's QPs.
    ///
    /// # Errors
    /// The errors of that method.
    fn init<P: Provider>(qp: &mut Qp<Self, P>, attr: &Self::Init) -> Result<()>;

    /// INIT → RTR: `ready_to_receive` of the transport's QPs.
    ///
    /// # Errors
    /// The errors of that method.
    fn ready_to_receive<P: Provider>(qp: &mut Qp<Self, P>, attr: &Self::Rtr) -> Result<()>;

    /// RTR → RTS: `ready_to_send` of the transport's QPs.
    ///
    /// # Errors
    /// The errors of that method.
    fn ready_to_send<P: Provider>(qp: &mut Qp<Self, P>, attr: &Self::Rts) -> Result<()>;
}

/// Implements [`BringUp`]: the attribute types of a transport, and the calls of its three methods.
macro_rules! bring_up {
    ($($transport:ident($init:ty, $rtr:ty, $rts:ty) = |$qp:ident, $attr:ident| {
        $to_init:expr, $to_rtr:expr, $to_rts:expr
    })*) => {$(
        impl BringUp for $transport {
            type Init = $init;
            type Rtr = $rtr;
            type Rts = $rts;

            fn init<P: Provider>($qp: &mut Qp<Self, P>, $attr: &$init) -> Result<()> {
                $to_init
            }

            fn ready_to_receive<P: Provider>($qp: &mut Qp<Self, P>, $attr: &$rtr) -> Result<()> {
                $to_rtr
            }

            fn ready_to_send<P: Provider>($qp: &mut Qp<Self, P>, $attr: &$rts) -> Result<()> {
                $to_rts
            }
        }
    )*};
}

bring_up! {
    Rc(InitAttr, RtrAttr, RtsAttr) = |qp, attr| {
        qp.init(attr), qp.ready_to_receive(attr), qp.ready_to_send(attr)
    }
    Uc(InitAttr, UcRtrAttr, u32) = |qp, attr| {
        qp.init(attr), qp.ready_to_receive(attr), qp.ready_to_send(*attr)
    }
    XrcSend(InitAttr, UcRtrAttr, RtsAttr) = |qp, attr| {
        qp.init(attr), qp.ready_to_receive(attr), qp.ready_to_send(attr)
    }
    Ud(UdInitAttr, (), u32) = |qp, attr| {
        qp.init(attr), { let () = attr; qp.ready_to_receive() }, qp.ready_to_send(*attr)
    }
    RawPacket(PortNum, (), ()) = |qp, attr| {
        qp.init(*attr),
        { let () = attr; qp.ready_to_receive() },
        { let () = attr; qp.ready_to_send() }
    }
}

impl<T: BringUp, P: Provider> Qp<T, P> {
    /// RESET → INIT → RTR → RTS, for code that is generic over the transport. The attributes are
    /// those of the three transitions, and `()` for a transition that has none. A `u32` for RTS is
    /// the PSN of the first packet.
    ///
    /// ```
    /// use bareverbs::qp::{BringUp, Qp, Ud, UdInitAttr};
    ///
    /// fn start<T: BringUp>(qps: &mut [Qp<T>], init: &T::Init, rtr: &T::Rtr, rts: &T::Rts) -> bareverbs::Result<()> {
    ///     qps.iter_mut().try_for_each(|qp| qp.bring_up(init, rtr, rts))
    /// }
    ///
    /// # fn example(qps: &mut [Qp<Ud>]) -> bareverbs::Result<()> {
    /// start(qps, &UdInitAttr::new(1, 0x1234), &(), &0)
    /// # }
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let cq = pd.context().create_cq(&bareverbs::cq::CqInit::new(32))?;
    /// # example(&mut [pd.create_qp(&bareverbs::qp::QpInit::new(&cq, &cq))?])?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the three transitions. After an error the QP is in the state that it reached.
    #[doc(alias = "ibv_modify_qp")]
    pub fn bring_up(&mut self, init: &T::Init, rtr: &T::Rtr, rts: &T::Rts) -> Result<()> {
        T::init(self, init)?;
        T::ready_to_receive(self, rtr)?;
        T::ready_to_send(self, rts)
    }
}
