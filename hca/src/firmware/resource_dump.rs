//! The resource dump register: the state of an object, written to the driver's memory as a chain of
//! segments. The kernel reports it for RDMA netlink's raw resources.

use super::bits::{Layout, ViewMut};
use super::command::{Reply, Request, Result, Status};
use super::layout::dump::{
    CommandSegment, InfoSegment, MenuRecord, MenuSegment, ResourceDump, ResourceSegment, SegmentHeader,
};
use super::opcode::{QUERY_CQ, QUERY_MKEY, QUERY_QP};
use super::state::Firmware;
use crate::engine::Engine;

/// Offset of the register in ACCESS_REG.
const REGISTER: usize = 16;
/// Length of a query's input and of its output in bytes. The output has room for each context.
const QUERY_INPUT: usize = 16;
const QUERY_OUTPUT: usize = 0x110;

/// Segment types of every dump.
mod segment {
    pub(super) const COMMAND: u16 = 0xfffa;
    pub(super) const TERMINATE: u16 = 0xfffb;
    pub(super) const INFO: u16 = 0xfffe;
    pub(super) const MENU: u16 = 0xffff;
}

/// The segment types of objects: number (chosen by the model), name, and the query command whose
/// output is the payload.
const OBJECTS: [(u16, &[u8], u16); 3] = [
    (0x1001, b"PRM_QUERY_QP", QUERY_QP),
    (0x1002, b"PRM_QUERY_CQ", QUERY_CQ),
    (0x1003, b"PRM_QUERY_MKEY", QUERY_MKEY),
];

impl Firmware {
    /// Writes the dump of an object, or the menu of segment types, to the driver's memory.
    pub(super) fn dump_resource(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let asked = request.view_at::<ResourceDump>(REGISTER)?;
        let kind = asked.get(ResourceDump::SEGMENT_TYPE) as u16;
        let index = asked.get32(ResourceDump::INDEX1);
        let mut dump = Vec::new();
        append::<InfoSegment>(&mut dump, segment::INFO, |info| {
            info.set(InfoSegment::DUMP_VERSION, 1u8);
        });
        append::<CommandSegment>(&mut dump, segment::COMMAND, |command| {
            command.set(CommandSegment::SEGMENT_CALLED, kind).set(CommandSegment::INDEX1, index);
        });
        match OBJECTS.into_iter().find(|(known, ..)| *known == kind) {
            Some((_, _, query)) => {
                let payload = self.query_object(engine, query, index)?;
                let at = dump.len();
                append::<ResourceSegment>(&mut dump, kind, |resource| {
                    resource.set(ResourceSegment::INDEX1, index);
                });
                dump.extend_from_slice(&payload);
                set_length(&mut dump, at);
            }
            None if kind == segment::MENU => append_menu(&mut dump),
            None => return Err(Status::BadParameter),
        }
        append::<SegmentHeader>(&mut dump, segment::TERMINATE, |_| ());
        if dump.len() > asked.get(ResourceDump::SIZE) as usize {
            return Err(Status::BadParameter);
        }
        let key = asked.get32(ResourceDump::MKEY);
        engine.write_by_key(key, asked.get(ResourceDump::ADDRESS), &dump)?;
        reply
            .view_at::<ResourceDump>(REGISTER)?
            .fill(asked.raw())
            .set(ResourceDump::MORE_DUMP, 0u8)
            .set(ResourceDump::SEQ_NUM, asked.get(ResourceDump::SEQ_NUM) + 1)
            .set(ResourceDump::SIZE, dump.len() as u64);
        Ok(())
    }

    /// The output of a query command.
    fn query_object(&self, engine: &Engine, query: u16, index: u32) -> Result<[u8; QUERY_OUTPUT]> {
        let (mut input, mut output) = ([0; QUERY_INPUT], [0; QUERY_OUTPUT]);
        input[..2].copy_from_slice(&query.to_be_bytes());
        input[8..12].copy_from_slice(&index.to_be_bytes());
        let request = Request::new(&input).ok_or(Status::BadInputLength)?;
        let mut reply = Reply { output: &mut output };
        match query {
            QUERY_QP => self.query_qp(engine, request, &mut reply)?,
            QUERY_CQ => self.query_cq(engine, request, &mut reply)?,
            _ => self.query_mkey(engine, request, &mut reply)?,
        }
        Ok(output)
    }
}

fn append_menu(dump: &mut Vec<u8>) {
    let at = dump.len();
    append::<MenuSegment>(dump, segment::MENU, |menu| {
        menu.set(MenuSegment::NUM_OF_RECORDS, OBJECTS.len() as u64);
    });
    for (kind, name, _) in OBJECTS {
        extend::<MenuRecord>(dump, |record| {
            record
                .set(MenuRecord::SUPPORT_INDEX1, 1u8)
                .set(MenuRecord::MUST_HAVE_INDEX1, 1u8)
                .set(MenuRecord::SEGMENT_TYPE, kind)
                .set_bytes(MenuRecord::SEGMENT_NAME, name)
                .set_bytes(MenuRecord::INDEX1_NAME, b"number");
        });
    }
    set_length(dump, at);
}

/// Appends a segment with its header.
fn append<L: Layout>(dump: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut ViewMut<'_, L>)) {
    let at = dump.len();
    extend(dump, fill);
    if let Some(mut header) = ViewMut::<SegmentHeader>::new(&mut dump[at..]) {
        header.set(SegmentHeader::SEGMENT_TYPE, kind);
    }
    set_length(dump, at);
}

/// Appends a structure.
fn extend<L: Layout>(dump: &mut Vec<u8>, fill: impl FnOnce(&mut ViewMut<'_, L>)) {
    let at = dump.len();
    dump.resize(at + L::SIZE, 0);
    if let Some(mut view) = ViewMut::new(&mut dump[at..]) {
        fill(&mut view);
    }
}

/// Sets the length of the segment at `at`, which extends to the end.
fn set_length(dump: &mut [u8], at: usize) {
    let words = dump[at..].len() / 4;
    if let Some(mut header) = ViewMut::<SegmentHeader>::new(&mut dump[at..]) {
        header.set(SegmentHeader::LENGTH_DW, words as u64);
    }
}
