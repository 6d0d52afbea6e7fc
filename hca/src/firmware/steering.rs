//! Flow tables, which steer received frames to receive queues.

use std::collections::BTreeMap;

use super::command::{Reply, Request, Result, Status};
use super::headers::{OUTER, parameters};
use super::layout::command::{
    CreateFlowGroupIn, CreateFlowTableIn, FlowContext, SetFlowTableRootIn, SetFteIn,
};
use super::limits::LOG_FLOW_TABLES;
use super::nic::Nic;
use crate::engine::Engine;
use crate::engine::table::Table;

/// Table type of NIC receive. Tables of other types are stored and never evaluated, because sends
/// are not steered.
const RECEIVE: u8 = 0;
/// Length of the match parameters. Only their outer headers are modelled.
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
    mask: [u8; OUTER],
}

#[derive(Clone, Debug)]
struct Entry {
    group: u32,
    value: [u8; OUTER],
    forwards: bool,
    destinations: Vec<Destination>,
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
    root: Option<u32>,
}

impl Default for Steering {
    fn default() -> Self {
        Self { tables: Table::new(1, 1 << LOG_FLOW_TABLES), root: None }
    }
}

impl Steering {
    pub(super) fn set_root(&mut self, request: Request<'_>) -> Result<()> {
        let view = request.view::<SetFlowTableRootIn>()?;
        let table = view.get32(SetFlowTableRootIn::TABLE_ID);
        match (view.get8(SetFlowTableRootIn::TABLE_TYPE), request.modifier()) {
            (RECEIVE, 0) => {
                self.tables.get(table).ok_or(Status::BadResource)?;
                self.root = Some(table);
                Ok(())
            }
            (RECEIVE, 1) => {
                self.root = None;
                Ok(())
            }
            (RECEIVE, _) => Err(Status::BadParameter),
            _ => Ok(()),
        }
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
        if self.root == Some(number) {
            self.root = None;
        }
        self.tables.remove(number).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn create_group(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        const MASK: usize = 0x40;
        let view = request.view::<CreateFlowGroupIn>()?;
        let table =
            self.tables.get_mut(view.get32(CreateFlowGroupIn::TABLE_ID)).ok_or(Status::BadResource)?;
        let mask = request.bytes(MASK, PARAMETERS)?;
        // A receive table can match outer headers only.
        if table.kind == RECEIVE && mask[OUTER..].iter().any(|byte| *byte != 0) {
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
        let list = request.bytes(DESTINATIONS, count.checked_mul(8).ok_or(Status::BadParameter)?)?;
        let entry = Entry {
            group,
            value: front(request.bytes(VALUE, PARAMETERS)?),
            forwards,
            destinations: list.chunks_exact(8).map(destination).collect(),
        };
        table.entries.insert(index, entry);
        Ok(())
    }

    pub(super) fn delete_entry(&mut self, request: Request<'_>) -> Result<()> {
        let table = self.tables.get_mut(request.word(0x14)? & 0xff_ffff).ok_or(Status::BadResource)?;
        table.entries.remove(&request.word(0x20)?).map(drop).ok_or(Status::BadResource)
    }

    /// The receive queues that a frame is steered to. `from` is the transport domain of a sender on
    /// the same port.
    pub(super) fn find(&self, nic: &Nic, engine: &Engine, from: Option<u32>, frame: &[u8]) -> Vec<u32> {
        let (headers, mut tirs) = (parameters(frame), Vec::new());
        if let Some(root) = self.root {
            self.follow(root, &headers, DEEPEST, &mut tirs);
        }
        let tirs = tirs.into_iter().filter_map(|tir| nic.tirs.get(tir)).filter(|tir| tir.takes(from, frame));
        let queues = tirs.filter_map(|tir| tir.queue(&nic.rqts, &headers));
        queues.filter(|rq| engine.rq_ready(*rq)).collect()
    }

    /// Collects the TIRs that a frame is forwarded to.
    fn follow(&self, table: u32, frame: &[u8; OUTER], depth: usize, tirs: &mut Vec<u32>) {
        let Some(table) = self.tables.get(table).filter(|_| depth > 0 && tirs.len() < DEEPEST) else {
            return;
        };
        let hit = table.entries.values().find(|entry| {
            table.groups.get(&entry.group).is_some_and(|group| group.matches(&entry.value, frame))
        });
        match hit {
            None => {
                if let Some(miss) = table.miss {
                    self.follow(miss, frame, depth - 1, tirs);
                }
            }
            Some(entry) if entry.forwards => {
                for destination in &entry.destinations {
                    match *destination {
                        Destination::Table(next) => self.follow(next, frame, depth - 1, tirs),
                        Destination::Tir(tir) => tirs.push(tir),
                        Destination::Drop => {}
                    }
                }
            }
            Some(_) => {}
        }
    }
}

impl Group {
    fn matches(&self, value: &[u8; OUTER], frame: &[u8; OUTER]) -> bool {
        self.mask.iter().zip(value).zip(frame).all(|((mask, value), frame)| (value ^ frame) & mask == 0)
    }
}

/// The miss table of a flow table, if any.
fn miss(request: Request<'_>) -> Result<Option<u32>> {
    const TO_TABLE: u32 = 1;
    let action = request.word(0x18)? >> 24 & 0xf;
    Ok(if action == TO_TABLE { Some(request.word(0x1c)? & 0xff_ffff) } else { None })
}

fn front(parameters: &[u8]) -> [u8; OUTER] {
    let mut front = [0; OUTER];
    front.copy_from_slice(&parameters[..OUTER]);
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
