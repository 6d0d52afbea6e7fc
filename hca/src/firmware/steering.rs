//! Flow tables, which steer received frames to receive queues.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::command::{Reply, Request, Result, Status};
use super::headers::{self, MATCHED, parameters};
use super::layout::command::{
    AllocFlowCounterIn, CreateFlowGroupIn, CreateFlowTableIn, FlowContext, QueryFlowCounterIn,
    SetFlowTableRootIn, SetFteIn,
};
use super::layout::traffic::TrafficCounter;
use super::limits::{LOG_FLOW_COUNTERS, LOG_FLOW_TABLES};
use super::nic::Nic;
use crate::engine::Engine;
use bareverbs_transport::Table;

/// Table type of NIC receive.
const RECEIVE: u8 = 0;
/// Table types of sniffers, which copy received and sent frames.
const RECEIVE_SNIFFER: u8 = 5;
const TRANSMIT_SNIFFER: u8 = 6;
/// The types that are evaluated. Tables of other types are stored only, because sends are not
/// steered.
const EVALUATED: [u8; 3] = [RECEIVE, RECEIVE_SNIFFER, TRANSMIT_SNIFFER];

/// How a frame reached the port.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// From the wire.
    Wire,
    /// From a send queue of the same port with this transport domain, which loops it back.
    Loopback(u32),
    /// From a send queue of the same port, to the wire.
    Sent,
}

impl Origin {
    /// The table types that the frame passes.
    fn tables(self) -> &'static [u8] {
        match self {
            Self::Wire => &[RECEIVE, RECEIVE_SNIFFER],
            Self::Loopback(_) => &[RECEIVE],
            Self::Sent => &[TRANSMIT_SNIFFER],
        }
    }

    /// The transport domain of the sender, for the loopback settings of TIRs.
    fn domain(self) -> Option<u32> {
        match self {
            Self::Loopback(domain) => Some(domain),
            Self::Wire | Self::Sent => None,
        }
    }
}
/// Length of the match parameters. Only the first [`MATCHED`] bytes are modelled.
const PARAMETERS: usize = 0x200;
/// Maximum number of tables that a frame passes.
const DEEPEST: usize = 64;
const MOST_ENTRIES: usize = 1 << 16;

#[derive(Clone, Debug, Default)]
struct FlowTable {
    kind: u8,
    /// The table for frames without a match.
    miss: Option<u32>,
    groups: BTreeMap<u32, Group>,
    entries: BTreeMap<u32, Entry>,
    next_group: u32,
}

#[derive(Clone, Debug)]
struct Group {
    first: u32,
    last: u32,
    mask: [u8; MATCHED],
}

#[derive(Clone, Debug)]
struct Entry {
    group: u32,
    value: [u8; MATCHED],
    destinations: Vec<Destination>,
    /// The flow counter that counts the frames of the entry.
    counter: Option<u32>,
    /// The tag of the frames' CQEs; 0 for none.
    tag: u32,
}

/// Frames and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    packets: u64,
    octets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Table(u32),
    Tir(u32),
    Drop,
}

/// All flow tables.
pub(super) struct Steering {
    tables: Table<FlowTable>,
    /// The root table of each evaluated type.
    roots: BTreeMap<u8, u32>,
    counters: Table<Cell<Count>>,
}

impl Default for Steering {
    fn default() -> Self {
        Self {
            tables: Table::new(1, 1 << LOG_FLOW_TABLES),
            roots: BTreeMap::new(),
            counters: Table::new(1, 1 << LOG_FLOW_COUNTERS),
        }
    }
}

impl Steering {
    pub(super) fn set_root(&mut self, request: Request<'_>) -> Result<()> {
        let view = request.view::<SetFlowTableRootIn>()?;
        let table = view.get32(SetFlowTableRootIn::TABLE_ID);
        let kind = view.get8(SetFlowTableRootIn::TABLE_TYPE);
        match request.modifier() {
            _ if !EVALUATED.contains(&kind) => {}
            0 => {
                self.tables.get(table).ok_or(Status::BadResource)?;
                self.roots.insert(kind, table);
            }
            1 => drop(self.roots.remove(&kind)),
            _ => return Err(Status::BadParameter),
        }
        Ok(())
    }

    pub(super) fn create_table(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        let kind = request.view::<CreateFlowTableIn>()?.get8(CreateFlowTableIn::TABLE_TYPE);
        let miss = miss(request)?;
        let table = FlowTable { kind, miss, ..FlowTable::default() };
        reply.object(self.tables.insert_with(|_| table).ok_or(Status::Limit)?)
    }

    pub(super) fn modify_table(&mut self, request: Request<'_>) -> Result<()> {
        const MISS_TABLE: u32 = 1 << 0;
        let selected = request.word(0x0c)?;
        let miss = miss(request)?;
        let table = self.tables.get_mut(request.word(0x14)? & 0xff_ffff).ok_or(Status::BadResource)?;
        if selected & MISS_TABLE != 0 {
            table.miss = miss;
        }
        Ok(())
    }

    pub(super) fn destroy_table(&mut self, request: Request<'_>) -> Result<()> {
        let number = request.word(0x14)? & 0xff_ffff;
        self.roots.retain(|_, root| *root != number);
        self.tables.remove(number).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn create_group(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        const MASK: usize = 0x40;
        let view = request.view::<CreateFlowGroupIn>()?;
        let table =
            self.tables.get_mut(view.get32(CreateFlowGroupIn::TABLE_ID)).ok_or(Status::BadResource)?;
        let mask = request.bytes(MASK, PARAMETERS)?;
        // An evaluated table can match the modelled headers only.
        if EVALUATED.contains(&table.kind) && mask[MATCHED..].iter().any(|byte| *byte != 0) {
            return Err(Status::BadParameter);
        }
        let group = Group {
            first: view.get32(CreateFlowGroupIn::START_FLOW_INDEX),
            last: view.get32(CreateFlowGroupIn::END_FLOW_INDEX),
            mask: front(mask),
        };
        let overlaps = table.groups.values().any(|old| group.first <= old.last && old.first <= group.last);
        if group.first > group.last || overlaps {
            return Err(Status::BadParameter);
        }
        table.next_group += 1;
        let number = table.next_group;
        table.groups.insert(number, group);
        reply.object(number)
    }

    pub(super) fn destroy_group(&mut self, request: Request<'_>) -> Result<()> {
        let table = self.tables.get_mut(request.word(0x14)? & 0xff_ffff).ok_or(Status::BadResource)?;
        table.groups.remove(&request.word(0x18)?).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn set_entry(&mut self, request: Request<'_>) -> Result<()> {
        const CONTEXT: usize = 0x40;
        const VALUE: usize = CONTEXT + 0x40;
        const DESTINATIONS: usize = CONTEXT + 0x300;
        const FORWARD: u32 = 1 << 2;
        const COUNT: u32 = 1 << 3;
        const EACH: usize = 8;
        let view = request.view::<SetFteIn>()?;
        let context = request.view_at::<FlowContext>(CONTEXT)?;
        let table = self.tables.get_mut(view.get32(SetFteIn::TABLE_ID)).ok_or(Status::BadResource)?;
        let (index, group) = (view.get32(SetFteIn::FLOW_INDEX), context.get32(FlowContext::GROUP_ID));
        let range = table.groups.get(&group).ok_or(Status::BadResource)?;
        if !(range.first..=range.last).contains(&index) || table.entries.len() >= MOST_ENTRIES {
            return Err(Status::BadParameter);
        }
        let forwards = context.get32(FlowContext::ACTION) & FORWARD != 0;
        let count = if forwards { context.get(FlowContext::DESTINATION_LIST_SIZE) as usize } else { 0 };
        let length = count.checked_mul(EACH).ok_or(Status::BadParameter)?;
        let list = request.bytes(DESTINATIONS, length)?;
        let counts = context.get32(FlowContext::ACTION) & COUNT != 0;
        let counter = match (counts, context.get(FlowContext::FLOW_COUNTER_LIST_SIZE)) {
            (false, _) => None,
            // The list of counters follows the list of destinations.
            (true, 1) => Some(request.word(DESTINATIONS + length)?),
            (true, _) => return Err(Status::BadParameter),
        };
        if counter.is_some_and(|counter| self.counters.get(counter).is_none()) {
            return Err(Status::BadResource);
        }
        let entry = Entry {
            group,
            value: front(request.bytes(VALUE, PARAMETERS)?),
            destinations: list.chunks_exact(EACH).map(destination).collect(),
            counter,
            tag: context.get32(FlowContext::FLOW_TAG),
        };
        table.entries.insert(index, entry);
        Ok(())
    }

    pub(super) fn delete_entry(&mut self, request: Request<'_>) -> Result<()> {
        let table = self.tables.get_mut(request.word(0x14)? & 0xff_ffff).ok_or(Status::BadResource)?;
        table.entries.remove(&request.word(0x20)?).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn alloc_counter(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        // Bulks are not reported as supported.
        if request.view::<AllocFlowCounterIn>()?.get8(AllocFlowCounterIn::FLOW_COUNTER_BULK) != 0 {
            return Err(Status::BadParameter);
        }
        reply.object(self.counters.insert_with(|_| Cell::default()).ok_or(Status::Limit)?)
    }

    pub(super) fn dealloc_counter(&mut self, request: Request<'_>) -> Result<()> {
        let number = request.word(8)?;
        let mut entries = self.tables.iter().flat_map(|table| table.entries.values());
        if entries.any(|entry| entry.counter == Some(number)) {
            return Err(Status::BadResourceState);
        }
        self.counters.remove(number).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn query_counter(&self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        const STATISTICS: usize = 0x10;
        let view = request.view::<QueryFlowCounterIn>()?;
        let counter =
            self.counters.get(view.get32(QueryFlowCounterIn::FLOW_COUNTER_ID)).ok_or(Status::BadResource)?;
        if view.get(QueryFlowCounterIn::NUM_OF_COUNTERS) > 1 {
            return Err(Status::BadParameter);
        }
        let Count { packets, octets } = counter.get();
        reply
            .view_at::<TrafficCounter>(STATISTICS)?
            .set(TrafficCounter::PACKETS, packets)
            .set(TrafficCounter::OCTETS, octets);
        if view.flag(QueryFlowCounterIn::CLEAR) {
            counter.take();
        }
        Ok(())
    }

    /// The receive queues that a frame is steered to, which it counts.
    pub(super) fn find(&self, nic: &Nic, engine: &Engine, origin: Origin, frame: &[u8]) -> Vec<Steered> {
        let (headers, mut found) = (parameters(frame), Found::default());
        for root in origin.tables().iter().filter_map(|kind| self.roots.get(kind)) {
            self.follow(*root, &headers, (DEEPEST, 0), &mut found);
        }
        let Found { tirs, counters } = found;
        for counter in counters.into_iter().filter_map(|counter| self.counters.get(counter)) {
            let Count { packets, octets } = counter.get();
            counter.set(Count { packets: packets + 1, octets: octets + frame.len() as u64 });
        }
        let tirs = tirs.into_iter().filter_map(|(tir, tag)| Some((nic.tirs.get(tir)?, tag)));
        let tirs = tirs.filter(|(tir, _)| tir.takes(origin.domain(), frame));
        let outer = headers::outer(&headers);
        let queues = tirs.filter_map(|(tir, tag)| Some(Steered { rq: tir.queue(&nic.rqts, outer)?, tag }));
        queues.filter(|to| engine.rq_ready(to.rq)).collect()
    }

    /// Collects the TIRs that a frame is forwarded to, and the counters of its entries. `tag` is that
    /// of the entries so far.
    fn follow(&self, table: u32, frame: &[u8; MATCHED], (depth, tag): (usize, u32), found: &mut Found) {
        let Some(table) = self.tables.get(table).filter(|_| depth > 0 && found.tirs.len() < DEEPEST) else {
            return;
        };
        let hit = table.entries.values().find(|entry| {
            table.groups.get(&entry.group).is_some_and(|group| group.matches(&entry.value, frame))
        });
        match hit {
            None => {
                if let Some(miss) = table.miss {
                    self.follow(miss, frame, (depth - 1, tag), found);
                }
            }
            Some(entry) => {
                found.counters.extend(entry.counter);
                let tag = if entry.tag == 0 { tag } else { entry.tag };
                for destination in &entry.destinations {
                    match *destination {
                        Destination::Table(next) => self.follow(next, frame, (depth - 1, tag), found),
                        Destination::Tir(tir) => found.tirs.push((tir, tag)),
                        Destination::Drop => {}
                    }
                }
            }
        }
    }
}

/// A receive queue that a frame is steered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steered {
    pub(crate) rq: u32,
    /// The tag of the CQE.
    pub(crate) tag: u32,
}

/// Where a frame goes.
#[derive(Default)]
struct Found {
    /// Each with the tag of the frame.
    tirs: Vec<(u32, u32)>,
    /// The counters of the entries that it matched.
    counters: Vec<u32>,
}

impl Group {
    fn matches(&self, value: &[u8; MATCHED], frame: &[u8; MATCHED]) -> bool {
        self.mask.iter().zip(value).zip(frame).all(|((mask, value), frame)| (value ^ frame) & mask == 0)
    }
}

/// The miss table of a flow table, if any.
fn miss(request: Request<'_>) -> Result<Option<u32>> {
    const TO_TABLE: u32 = 1;
    let action = request.word(0x18)? >> 24 & 0xf;
    Ok(if action == TO_TABLE { Some(request.word(0x1c)? & 0xff_ffff) } else { None })
}

fn front(parameters: &[u8]) -> [u8; MATCHED] {
    let mut front = [0; MATCHED];
    front.copy_from_slice(&parameters[..MATCHED]);
    front
}

fn destination(entry: &[u8]) -> Destination {
    let number = u32::from_be_bytes([0, entry[1], entry[2], entry[3]]);
    match entry[0] {
        1 => Destination::Table(number),
        2 => Destination::Tir(number),
        _ => Destination::Drop,
    }
}
