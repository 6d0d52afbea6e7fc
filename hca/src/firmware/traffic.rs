//! Port counters: those of the vport, and those of the PPCNT register.

use super::bits::{Field, Layout, Part, View};
use super::command::{Reply, Request, Result, Status};
use super::layout::traffic::{
    Ieee8023Counters, InfiniBandCounters, PhysicalCounters, PpcntReg, PriorityCounters, QueryVportCounterIn,
    QueryVportCounterOut, Rfc2819Counters, Rfc2863Counters, TrafficCounter,
};
use super::state::Firmware;
use crate::engine::{Engine, Link, Tally, Traffic};

/// Counter groups of PPCNT (`MLX5_*_COUNTERS_GROUP` in `include/linux/mlx5/device.h`).
mod group {
    pub(super) const IEEE_802_3: u8 = 0x00;
    pub(super) const RFC_2863: u8 = 0x01;
    pub(super) const RFC_2819: u8 = 0x02;
    pub(super) const PER_PRIORITY: u8 = 0x10;
    pub(super) const PHYSICAL: u8 = 0x12;
    pub(super) const INFINIBAND: u8 = 0x20;
}

/// The upper of a counter's two words, and its value.
type Count<L> = (Field<L>, u64);

impl Firmware {
    pub(super) fn query_vport_counter(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let query = request.view::<QueryVportCounterIn>()?;
        // There are no other vports, and only a reset clears these counters.
        if query.flag(QueryVportCounterIn::OTHER_VPORT) || query.flag(QueryVportCounterIn::CLEAR) {
            return Err(Status::BadParameter);
        }
        let Traffic { sent, received, .. } = *engine.traffic();
        let counters: [(Part<_, TrafficCounter>, Tally); 10] = [
            (QueryVportCounterOut::RECEIVED_IB_UNICAST, received.rdma_unicast),
            (QueryVportCounterOut::TRANSMITTED_IB_UNICAST, sent.rdma_unicast),
            (QueryVportCounterOut::RECEIVED_IB_MULTICAST, received.rdma_multicast),
            (QueryVportCounterOut::TRANSMITTED_IB_MULTICAST, sent.rdma_multicast),
            (QueryVportCounterOut::RECEIVED_ETH_BROADCAST, received.broadcast),
            (QueryVportCounterOut::TRANSMITTED_ETH_BROADCAST, sent.broadcast),
            (QueryVportCounterOut::RECEIVED_ETH_UNICAST, received.unicast),
            (QueryVportCounterOut::TRANSMITTED_ETH_UNICAST, sent.unicast),
            (QueryVportCounterOut::RECEIVED_ETH_MULTICAST, received.multicast),
            (QueryVportCounterOut::TRANSMITTED_ETH_MULTICAST, sent.multicast),
        ];
        let mut answer = reply.view::<QueryVportCounterOut>()?;
        for (part, tally) in counters {
            answer
                .part(part)
                .set(TrafficCounter::PACKETS, tally.packets)
                .set(TrafficCounter::OCTETS, tally.octets);
        }
        Ok(())
    }

    /// PPCNT, at offset `from` of the output.
    pub(super) fn port_counters(
        &self,
        engine: &Engine,
        register: &[u8],
        reply: &mut Reply<'_>,
        from: usize,
    ) -> Result<()> {
        let register = View::<PpcntReg>::new(register).ok_or(Status::BadInputLength)?;
        if register.flag(PpcntReg::CLR) {
            return Err(Status::BadParameter);
        }
        let Traffic { sent, received, link_downs } = engine.traffic();
        let group = register.get8(PpcntReg::GRP);
        let from = from + PpcntReg::SIZE;
        match group {
            // Most counters of this group count wire errors, which are always zero.
            group::PHYSICAL => {
                reply.view_at(from)?.set(PhysicalCounters::LINK_DOWN_EVENTS, *link_downs);
                Ok(())
            }
            group::INFINIBAND => {
                let downs = u8::try_from(*link_downs).unwrap_or(u8::MAX);
                reply.view_at(from)?.set(InfiniBandCounters::LINK_DOWNED_COUNTER, downs);
                Ok(())
            }
            _ if self.link == Link::InfiniBand => Err(Status::BadParameter),
            group::IEEE_802_3 => {
                use Ieee8023Counters as Group;
                put(
                    reply,
                    from,
                    &[
                        (Group::A_FRAMES_TRANSMITTED_OK_HIGH, sent.all().packets),
                        (Group::A_FRAMES_RECEIVED_OK_HIGH, received.all().packets),
                        (Group::A_OCTETS_TRANSMITTED_OK_HIGH, sent.all().octets),
                        (Group::A_OCTETS_RECEIVED_OK_HIGH, received.all().octets),
                        (Group::A_MULTICAST_FRAMES_XMITTED_OK_HIGH, sent.all_multicast().packets),
                        (Group::A_BROADCAST_FRAMES_XMITTED_OK_HIGH, sent.broadcast.packets),
                        (Group::A_MULTICAST_FRAMES_RECEIVED_OK_HIGH, received.all_multicast().packets),
                        (Group::A_BROADCAST_FRAMES_RECEIVED_OK_HIGH, received.broadcast.packets),
                    ],
                )
            }
            group::RFC_2863 => {
                use Rfc2863Counters as Group;
                put(
                    reply,
                    from,
                    &[
                        (Group::IF_IN_OCTETS_HIGH, received.all().octets),
                        (Group::IF_IN_UCAST_PKTS_HIGH, received.all_unicast().packets),
                        (Group::IF_OUT_OCTETS_HIGH, sent.all().octets),
                        (Group::IF_OUT_UCAST_PKTS_HIGH, sent.all_unicast().packets),
                        (Group::IF_IN_MULTICAST_PKTS_HIGH, received.all_multicast().packets),
                        (Group::IF_IN_BROADCAST_PKTS_HIGH, received.broadcast.packets),
                        (Group::IF_OUT_MULTICAST_PKTS_HIGH, sent.all_multicast().packets),
                        (Group::IF_OUT_BROADCAST_PKTS_HIGH, sent.broadcast.packets),
                    ],
                )
            }
            group::RFC_2819 => {
                use Rfc2819Counters as Group;
                put(
                    reply,
                    from,
                    &[
                        (Group::ETHER_STATS_OCTETS_HIGH, received.all().octets),
                        (Group::ETHER_STATS_PKTS_HIGH, received.all().packets),
                        (Group::ETHER_STATS_BROADCAST_PKTS_HIGH, received.broadcast.packets),
                        (Group::ETHER_STATS_MULTICAST_PKTS_HIGH, received.all_multicast().packets),
                    ],
                )?;
                let lengths = [
                    Group::ETHER_STATS_PKTS64OCTETS_HIGH,
                    Group::ETHER_STATS_PKTS65TO127OCTETS_HIGH,
                    Group::ETHER_STATS_PKTS128TO255OCTETS_HIGH,
                    Group::ETHER_STATS_PKTS256TO511OCTETS_HIGH,
                    Group::ETHER_STATS_PKTS512TO1023OCTETS_HIGH,
                    Group::ETHER_STATS_PKTS1024TO1518OCTETS_HIGH,
                    Group::ETHER_STATS_PKTS1519TO2047OCTETS_HIGH,
                    Group::ETHER_STATS_PKTS2048TO4095OCTETS_HIGH,
                    Group::ETHER_STATS_PKTS4096TO8191OCTETS_HIGH,
                    Group::ETHER_STATS_PKTS8192TO10239OCTETS_HIGH,
                ];
                let counts: Vec<_> = lengths.into_iter().zip(received.by_length).collect();
                put(reply, from, &counts)
            }
            // All traffic has the lowest priority.
            group::PER_PRIORITY if register.get8(PpcntReg::PRIO_TC) != 0 => Ok(()),
            group::PER_PRIORITY => {
                use PriorityCounters as Group;
                put(
                    reply,
                    from,
                    &[
                        (Group::RX_OCTETS_HIGH, received.all().octets),
                        (Group::RX_FRAMES_HIGH, received.all().packets),
                        (Group::TX_OCTETS_HIGH, sent.all().octets),
                        (Group::TX_FRAMES_HIGH, sent.all().packets),
                    ],
                )
            }
            _ => Err(Status::BadParameter),
        }
    }
}

fn put<L: Layout>(reply: &mut Reply<'_>, from: usize, counts: &[Count<L>]) -> Result<()> {
    let mut group = reply.view_at::<L>(from)?;
    for (first, count) in counts {
        group.set_both_words(*first, *count);
    }
    Ok(())
}
