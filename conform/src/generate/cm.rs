//! The commands of the connection manager, `/dev/infiniband/rdma_cm`.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::rdma_cm::{CommandInfo, decode, find as command};
use rustix::io::Errno;

use super::NOWHERE;
use crate::answer::{Answer, Change, Expect};
use crate::call::UNMAPPED;
use crate::check::{Check, Row, row};
use crate::request::position;
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail, skip};
use crate::target::CmFile;

static NEW_COMMANDS: Change = Change {
    name: "rdma-cm-ib-service",
    since: Since::V7_2,
    why: "the commands RESOLVE_IB_SERVICE and WRITE_CM_EVENT exist since 7.2 (core/ucma.c)",
};

static QUERY_SERVICE: Change = Change {
    name: "rdma-cm-query-ib-service",
    since: Since::V7_2,
    why: "QUERY knows the option IB_SERVICE since 7.2 (core/ucma.c: ucma_query_ib_service)",
};

/// Room for any response.
const ROOM: usize = 4096;

/// A command with its request. The buffers that it names are its own.
#[derive(Clone)]
struct Message {
    info: &'static CommandInfo,
    request: Vec<u8>,
    /// Length of the response in the header.
    output: u16,
    /// Length of the request in the header; `None` for its own.
    input: Option<u16>,
    /// The value of an option.
    option: Vec<u8>,
    /// Whether the response has no memory.
    unmapped: bool,
}

impl Message {
    fn new(number: u32) -> Step<Self> {
        let Some(info) = command(number) else { return fail("the table has no such command") };
        Ok(Self {
            info,
            request: vec![0; info.request.size],
            output: info.response.map_or(0, |response| response.size as u16),
            input: None,
            option: Vec::new(),
            unmapped: false,
        })
    }

    /// Sets a field of the request or of its connection parameters.
    ///
    /// # Panics
    /// If the request has no such field: a mistake in the suite.
    fn set(mut self, field: &str, value: u64) -> Self {
        self.put(field, &value.to_le_bytes());
        self
    }

    fn has(&self, field: &str) -> bool {
        position(self.info.request.fields, field, "conn_param").is_some()
    }

    fn put(&mut self, field: &str, bytes: &[u8]) {
        let found = position(self.info.request.fields, field, "conn_param");
        let (offset, size) = found.unwrap_or_else(|| panic!("{}: {field}", self.info.rust));
        let len = size.min(bytes.len());
        self.request[offset..offset + len].copy_from_slice(&bytes[..len]);
    }

    /// An IPv4 address in a field for addresses.
    fn address(mut self, field: &str, address: [u8; 4]) -> Self {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&2_u16.to_ne_bytes());
        bytes[4..8].copy_from_slice(&address);
        self.put(field, &bytes);
        self
    }

    /// Writes the command to a file. Returns the first word of the response.
    fn write(&mut self, file: &dyn CmFile) -> (Answer, u32) {
        let mut response = vec![0_u8; ROOM];
        if self.has("response") {
            let address =
                if self.unmapped { UNMAPPED } else { response.as_mut_ptr().expose_provenance() as u64 };
            self.put("response", &address.to_ne_bytes());
        }
        if self.has("optval") {
            let address = self.option.as_mut_ptr().expose_provenance() as u64;
            self.put("optval", &address.to_ne_bytes());
        }
        let bytes = self.encode();
        // SAFETY: the addresses in the request are those of the response, which has room for any
        // response, of the option, whose length the request states at most, or have no memory.
        let result = unsafe { file.write(&bytes) };
        let word = response.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
        (Answer::of(&result), word)
    }

    fn encode(&self) -> Vec<u8> {
        let input = self.input.unwrap_or(self.request.len() as u16);
        let mut bytes = self.info.number.to_ne_bytes().to_vec();
        bytes.extend(input.to_ne_bytes());
        bytes.extend(self.output.to_ne_bytes());
        bytes.extend(&self.request);
        bytes
    }
}

/// Opens the connection manager.
fn open<'t>(session: &Session<'t>) -> Step<Box<dyn CmFile + 't>> {
    match session.target.open_cm() {
        Ok(file) => Ok(file),
        Err(errno @ (Errno::NOSYS | Errno::NOENT | Errno::ACCESS)) => {
            skip(format!("rdma_cm can't be opened: {}", Answer::errno(errno)))
        }
        Err(errno) => fail(format!("rdma_cm can't be opened: {}", Answer::errno(errno))),
    }
}

/// Executes a command that prepares a check.
fn prepare(file: &dyn CmFile, mut message: Message) -> Step<u32> {
    match message.write(file) {
        (Answer::Ok, word) => Ok(word),
        (got, _) => fail(format!("a command that prepares the check failed with {got}: {}", text(&message))),
    }
}

fn text(message: &Message) -> String {
    decode(&message.encode()).to_string()
}

/// Writes the judged command.
fn judge(session: &mut Session<'_>, file: &dyn CmFile, mut message: Message, expected: Answer) -> Step<u32> {
    let (got, word) = message.write(file);
    session.compare(&text(&message), expected, got)?;
    Ok(word)
}

/// The port space TCP.
const TCP: u64 = 0x0106;
/// The port space UDP.
const UDP: u64 = 0x0111;

fn create(file: &dyn CmFile, space: u64) -> Step<u32> {
    prepare(file, Message::new(0)?.set("uid", 7).set("ps", space))
}

/// The state of the identifier of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Made in the port space TCP.
    Idle,
    /// Bound to the wildcard address: without a device.
    Bound,
    /// Bound to the address of the device's port.
    OnDevice,
    /// Made in the port space UDP, and bound to the address of the device's port.
    Datagram,
    /// Listens at the wildcard address.
    Listening,
}

impl State {
    fn make(self, session: &mut Session<'_>, file: &dyn CmFile) -> Step<u32> {
        let id = create(file, if self == Self::Datagram { UDP } else { TCP })?;
        let address = match self {
            Self::Idle => return Ok(id),
            Self::Bound | Self::Listening => [0; 4],
            Self::OnDevice | Self::Datagram => {
                let (_, gid) = session.ipv4_gid()?;
                [gid[12], gid[13], gid[14], gid[15]]
            }
        };
        prepare(file, Message::new(20)?.set("id", id.into()).set("addr_size", 16).address("addr", address))?;
        if self == Self::Listening {
            prepare(file, Message::new(7)?.set("id", id.into()))?;
        }
        Ok(id)
    }
}

/// A command whose fields are valid except for the identifier.
fn plausible(number: u32, descriptor: i32) -> Step<Message> {
    let local = [127, 0, 0, 1];
    let message = Message::new(number)?;
    Ok(match number {
        0 => message.set("uid", 7).set("ps", TCP),
        2 => message.address("addr", [0; 4]),
        3 => message.address("dst_addr", local).set("timeout_ms", 1000),
        4 => message.set("timeout_ms", 1000),
        6 | 8 => message.set("valid", 1),
        14 => {
            let mut message = message.set("optlen", 1);
            message.option = vec![0; 8];
            message
        }
        15 => message.set("event", 4),
        16 => message.address("addr", [224, 0, 0, 99]),
        18 => message.set("fd", u64::from(descriptor.cast_unsigned())),
        20 => message.set("addr_size", 16).address("addr", [0; 4]),
        21 => message.set("dst_size", 16).address("dst_addr", local).set("timeout_ms", 1000),
        22 => message.set("addr_size", 16).address("addr", [224, 0, 0, 99]),
        24 => message.set("event", 18),
        _ => message,
    })
}

/// The commands with an identifier.
const WITH_ID: [u32; 22] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24];

fn expect(number: u32, answer: Answer) -> Expect {
    // Kernels without a command refuse its number.
    match number {
        23 | 24 if answer != Answer::INVAL => {
            Expect::Changed { change: &NEW_COMMANDS, before: Answer::INVAL, after: answer }
        }
        _ => answer.into(),
    }
}

fn title(number: u32) -> &'static str {
    command(number).map_or("unknown", |info| info.rust)
}

/// Opens the file, makes an identifier in a state, and a plausible message with it.
fn begin<'t>(session: &mut Session<'t>, number: u32, state: State) -> Step<(Box<dyn CmFile + 't>, Message)> {
    let file = open(session)?;
    let id = state.make(session, &*file)?;
    let mut message = plausible(number, file.descriptor())?;
    if message.has("id") {
        message = message.set("id", id.into());
    }
    Ok((file, message))
}

/// A change of a plausible message.
#[derive(Clone, Copy)]
enum Mutation {
    /// The length of the response in the header.
    Output(u16),
    /// The length of the request in the header.
    Input(u16),
    /// The same, this much above its own length.
    InputBeyond(u16),
    /// The response has no memory.
    Unmapped,
    /// The request.
    Request(fn(Message) -> Message),
}

impl Mutation {
    fn apply(self, mut message: Message) -> Message {
        match self {
            Self::Output(len) => message.output = len,
            Self::Input(len) => message.input = Some(len),
            Self::InputBeyond(more) => {
                message.input = Some((message.request.len() as u16).saturating_add(more));
            }
            Self::Unmapped => message.unmapped = true,
            Self::Request(change) => return change(message),
        }
        message
    }
}

/// The check of a plausible message with a change.
fn changed(
    number: u32,
    place: &str,
    rule: Rule,
    suffix: &str,
    state: State,
    expect: impl Into<Expect>,
    mutation: Mutation,
) -> Check {
    let name = format!("cm::{}::{place}::{}-{suffix}", title(number), rule.id());
    let expect = expect.into();
    Check::new(name, rule, expect, move |session| {
        let (file, message) = begin(session, number, state)?;
        judge(session, &*file, mutation.apply(message), expect.on(session.series)).map(drop)
    })
}

/// An identifier that the file does not have: a suffix, the answer, and what makes it.
type NoId = (&'static str, Answer, fn(&dyn CmFile, &dyn CmFile) -> Step<u32>);

const NO_IDS: [NoId; 4] = [
    ("unknown", Answer::NOENT, |_, _| Ok(NOWHERE)),
    ("maximum", Answer::NOENT, |_, _| Ok(u32::MAX)),
    ("destroyed", Answer::NOENT, |file, _| {
        let id = create(file, TCP)?;
        prepare(file, Message::new(1)?.set("id", id.into()))?;
        Ok(id)
    }),
    ("other-file", Answer::INVAL, |_, other| create(other, TCP)),
];

fn of_ids(checks: &mut Vec<Check>) {
    let rule = Rule::CmId;
    for number in WITH_ID {
        for (suffix, answer, make) in NO_IDS {
            // Multicast groups have handles of their own.
            if number == 17 && ["destroyed", "other-file"].contains(&suffix) {
                continue;
            }
            let expect = expect(number, answer);
            let name = format!("cm::{}::id::{}-{suffix}", title(number), rule.id());
            checks.push(Check::new(name, rule, expect, move |session| {
                let (file, other) = (open(session)?, open(session)?);
                let id = make(&*file, &*other)?;
                let message = plausible(number, file.descriptor())?.set("id", id.into());
                judge(session, &*file, message, expect.on(session.series)).map(drop)
            }));
        }
    }
}

/// Shortest responses that the kernel accepts.
const RESPONSES: [(u32, u16); 8] =
    [(0, 4), (1, 4), (5, 200), (11, 144), (12, 324), (16, 4), (19, 272), (22, 4)];

/// Responses that the kernel accepts: command, suffix, length and answer.
const ACCEPTED: [(u32, &str, u16, Answer); 7] = [
    (5, "least", 200, Answer::Ok),
    (19, "least", 272, Answer::Ok),
    (12, "least", 324, Answer::AGAIN),
    (12, "whole", 336, Answer::AGAIN),
    (18, "unchecked", 0, Answer::Ok),
    (19, "longer", 4096, Answer::Ok),
    (0, "longer", 4096, Answer::Ok),
];

fn of_responses(checks: &mut Vec<Check>) {
    let rule = Rule::CmResponse;
    let refused = RESPONSES.into_iter().flat_map(|(number, least)| {
        [(number, "absent", 0, Answer::NOSPC), (number, "one-less", least - 1, Answer::NOSPC)]
    });
    for (number, suffix, len, answer) in refused.chain(ACCEPTED) {
        let (state, mutation) = (State::Idle, Mutation::Output(len));
        checks.push(changed(number, "response", rule, suffix, state, answer, mutation));
    }
    for number in [0, 1, 5, 18, 19] {
        let name = format!("cm::{}::response::{}-unmapped", title(number), rule.id());
        checks.push(Check::new(name, rule, Answer::FAULT, move |session| {
            let file = open(session)?;
            let id = create(&*file, TCP)?;
            let mut message = plausible(number, file.descriptor())?;
            if message.has("id") {
                message = message.set("id", id.into());
            }
            message.unmapped = true;
            judge(session, &*file, message, Answer::FAULT)?;
            // The identifier is destroyed before the response is written. Other commands leave it.
            let mut destroy = Message::new(1)?.set("id", id.into());
            let expected = if number == 1 { Answer::NOENT } else { Answer::Ok };
            match destroy.write(&*file) {
                (got, _) if got == expected => Ok(()),
                (got, _) => fail(format!("DESTROY_ID after EFAULT: {got}, expected {expected}")),
            }
        }));
    }
    let unmapped = Mutation::Request(|message| Mutation::Unmapped.apply(message.set("qp_state", 1)));
    checks.push(changed(11, "response", rule, "unmapped", State::OnDevice, Answer::FAULT, unmapped));
}

/// Writes bytes as the judged command.
fn judge_bytes(session: &mut Session<'_>, file: &dyn CmFile, bytes: &[u8], expected: Answer) -> Step<()> {
    // SAFETY: the kernel refuses the command before it reads an address, or the command has none.
    let result = unsafe { file.write(bytes) };
    let text = format!("write() of {} bytes to rdma_cm: {bytes:02x?}", bytes.len());
    session.compare(&text, expected, Answer::of(&result)).map(drop)
}

/// Headers without a request: a suffix, the rule, the answer, and the bytes.
type Head = (&'static str, Rule, Answer, [u16; 4]);

const HEADS: [Head; 6] = [
    ("number-hole", Rule::CmHeader, Answer::NOSYS, [13, 0, 0, 0]),
    ("number-25", Rule::CmHeader, Answer::INVAL, [25, 0, 0, 0]),
    ("number-255", Rule::CmHeader, Answer::INVAL, [255, 0, 0, 0]),
    ("number-bit-31", Rule::CmHeader, Answer::INVAL, [0, 1 << 15, 0, 0]),
    ("number-maximum", Rule::CmHeader, Answer::INVAL, [u16::MAX, u16::MAX, 0, 0]),
    // The length is tested before the number's handler is looked for.
    ("length-then-hole", Rule::CheckOrder, Answer::INVAL, [13, 0, 1, 0]),
];

/// Commands whose handlers copy their whole request, whatever length the header states.
const UNCHECKED: [u32; 8] = [0, 1, 5, 7, 14, 18, 19, 20];

/// Lengths of requests that handlers check: command, suffix, length and answer. With an unknown
/// identifier, a request that is long enough fails with ENOENT.
const CHECKED: [(u32, &str, u16, Answer); 6] = [
    (6, "one-less", 279, Answer::INVAL),
    (6, "least", 280, Answer::NOENT),
    (6, "0", 0, Answer::INVAL),
    (8, "one-less", 287, Answer::INVAL),
    (8, "least", 288, Answer::NOENT),
    (8, "0", 0, Answer::INVAL),
];

fn of_headers(checks: &mut Vec<Check>) {
    for (suffix, len) in [("empty", 0), ("7-bytes", 7)] {
        let rule = Rule::CmHeader;
        let name = format!("cm::all::header::{}-{suffix}", rule.id());
        checks.push(Check::new(name, rule, Answer::INVAL, move |session| {
            let file = open(session)?;
            let bytes = plausible(0, file.descriptor())?.encode();
            judge_bytes(session, &*file, &bytes[..len], Answer::INVAL)
        }));
    }
    for (suffix, rule, answer, words) in HEADS {
        let name = format!("cm::all::header::{}-{suffix}", rule.id());
        checks.push(Check::new(name, rule, answer, move |session| {
            let file = open(session)?;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            judge_bytes(session, &*file, &bytes, answer)
        }));
    }
    of_lengths(checks);
}

fn of_lengths(checks: &mut Vec<Check>) {
    let rule = Rule::CmHeader;
    let mut add = |number: u32, suffix: &str, answer: Answer, mutation: Mutation| {
        checks.push(changed(number, "header", rule, suffix, State::Idle, answer, mutation));
    };
    for number in (0..13).chain(14..25) {
        add(number, "input-one-more", Answer::INVAL, Mutation::InputBeyond(1));
        add(number, "input-maximum", Answer::INVAL, Mutation::InputBeyond(u16::MAX));
    }
    for number in UNCHECKED {
        add(number, "input-0", Answer::Ok, Mutation::Input(0));
    }
    for (number, suffix, len, answer) in CHECKED {
        let name = format!("cm::{}::header::{}-{suffix}", title(number), rule.id());
        checks.push(Check::new(name, rule, answer, move |session| {
            let file = open(session)?;
            let message = plausible(number, file.descriptor())?.set("id", NOWHERE.into());
            judge(session, &*file, Mutation::Input(len).apply(message), answer).map(drop)
        }));
    }
}

/// The commands that a state does not allow, or does.
const STATES: [(State, &[(u32, Answer)]); 5] = {
    use Answer as A;
    const NO: Answer = Answer::INVAL;
    [
        (
            State::Idle,
            &[
                (2, A::Ok),
                (4, NO),
                (5, A::Ok),
                (6, NO),
                (7, A::Ok),
                (8, NO),
                (9, NO),
                (10, NO),
                (11, NO),
                (14, A::Ok),
                (15, NO),
                (16, NO),
                (18, A::Ok),
                (19, A::Ok),
                (20, A::Ok),
                (22, NO),
                (23, NO),
                (24, A::Ok),
            ],
        ),
        (
            State::Bound,
            &[
                (2, NO),
                (4, NO),
                (5, A::Ok),
                (6, NO),
                (7, A::Ok),
                (8, NO),
                (9, NO),
                (10, NO),
                (11, NO),
                (15, NO),
                (16, NO),
                (18, A::Ok),
                (19, A::Ok),
                (20, NO),
                (22, NO),
                (23, NO),
            ],
        ),
        (
            State::OnDevice,
            &[
                (2, NO),
                (4, NO),
                (5, A::Ok),
                (6, NO),
                (7, A::Ok),
                (8, NO),
                (9, NO),
                (10, NO),
                (11, A::Ok),
                (15, NO),
                (16, NO),
                (19, A::Ok),
                (20, NO),
                (22, NO),
                (23, A::OPNOTSUPP),
            ],
        ),
        (
            State::Datagram,
            &[(2, NO), (4, NO), (6, NO), (8, NO), (9, NO), (10, NO), (11, A::Ok), (15, NO), (20, NO)],
        ),
        (
            State::Listening,
            &[
                (2, NO),
                (3, NO),
                (4, NO),
                (6, NO),
                (7, NO),
                (8, NO),
                (9, NO),
                (10, NO),
                (11, NO),
                (15, NO),
                (20, NO),
                (21, NO),
                (22, NO),
            ],
        ),
    ]
};

fn of_states(checks: &mut Vec<Check>) {
    let rule = Rule::CmState;
    for (state, commands) in STATES {
        for &(number, answer) in commands {
            let expect = expect(number, answer);
            let name = format!("cm::{}::{state:?}::{}", title(number), rule.id());
            checks.push(Check::new(name, rule, expect, move |session| {
                let file = open(session)?;
                let id = state.make(session, &*file)?;
                let message = plausible(number, file.descriptor())?.set("id", id.into());
                judge(session, &*file, message, expect.on(session.series))?;
                // WRITE_CM_EVENT queues an event; a refused command does not.
                let wanted = number == 24 && session.series >= Since::V7_2;
                match file.is_readable() {
                    Ok(readable) if readable == wanted => Ok(()),
                    Ok(readable) => {
                        fail(format!("whether an event is queued: {readable}, expected {wanted}"))
                    }
                    Err(errno) => fail(format!("poll() failed: {}", Answer::errno(errno))),
                }
            }));
        }
    }
}

/// A field out of range: command, suffix, state, answer, and the change of a valid request.
type Field = (u32, &'static str, State, Expect, fn(Message) -> Message);

fn option(mut message: Message, level: u64, name: u64, len: u64) -> Message {
    message.option = vec![0; 256];
    message.set("level", level).set("optname", name).set("optlen", len)
}

const fn is(answer: Answer) -> Expect {
    Expect::Is(answer)
}

const FIELDS: [Field; 62] = {
    use State::{Idle, OnDevice};
    [
        (0, "port-space-0", Idle, is(Answer::INVAL), |m| m.set("ps", 0)),
        (0, "port-space-unknown", Idle, is(Answer::INVAL), |m| m.set("ps", 0x0107)),
        (0, "port-space-UDP", Idle, is(Answer::Ok), |m| m.set("ps", UDP)),
        (0, "port-space-IPoIB", Idle, is(Answer::Ok), |m| m.set("ps", 2)),
        (0, "port-space-IB", Idle, is(Answer::Ok), |m| m.set("ps", 0x013f).set("qp_type", 2)),
        (0, "port-space-wide", Idle, is(Answer::INVAL), |m| m.set("ps", 0xffff)),
        (2, "family-0", Idle, is(Answer::INVAL), |mut m| {
            m.put("addr", &[0; 28]);
            m
        }),
        (2, "family-IB", Idle, is(Answer::INVAL), |mut m| {
            m.put("addr", &[27, 0]);
            m
        }),
        (20, "reserved", Idle, is(Answer::INVAL), |m| m.set("reserved", 1)),
        (20, "size-0", Idle, is(Answer::INVAL), |m| m.set("addr_size", 0)),
        (20, "size-15", Idle, is(Answer::INVAL), |m| m.set("addr_size", 15)),
        (20, "size-28", Idle, is(Answer::INVAL), |m| m.set("addr_size", 28)),
        (20, "family-0", Idle, is(Answer::INVAL), |m| m.set("addr_size", 16).address_family(0)),
        (20, "not-local", Idle, is(Answer::ADDRNOTAVAIL), |m| m.address("addr", [192, 0, 2, 77])),
        (21, "reserved", Idle, is(Answer::INVAL), |m| m.set("reserved", 1)),
        (21, "destination-size-0", Idle, is(Answer::INVAL), |m| m.set("dst_size", 0)),
        (21, "destination-size-28", Idle, is(Answer::INVAL), |m| m.set("dst_size", 28)),
        (21, "source-size-16", Idle, is(Answer::INVAL), |m| m.set("src_size", 16)),
        (3, "destination-family-0", Idle, is(Answer::INVAL), |mut m| {
            m.put("dst_addr", &[0; 28]);
            m
        }),
        (3, "source-family-unknown", Idle, is(Answer::INVAL), |mut m| {
            m.put("src_addr", &[99, 0]);
            m
        }),
        (6, "not-valid", Idle, is(Answer::INVAL), |m| m.set("valid", 0)),
        (9, "reason-1", OnDevice, is(Answer::INVAL), |m| m.set("reason", 1)),
        (9, "reason-255", OnDevice, is(Answer::INVAL), |m| m.set("reason", 255)),
        (11, "state-7", OnDevice, is(Answer::INVAL), |m| m.set("qp_state", 7)),
        (11, "state-maximum", OnDevice, is(Answer::INVAL), |m| m.set("qp_state", 0xffff_ffff)),
        (11, "state-RTS", OnDevice, is(Answer::Ok), |m| m.set("qp_state", 3)),
        (14, "TOS", Idle, is(Answer::Ok), |m| option(m, 0, 0, 1)),
        (14, "TOS-length-0", Idle, is(Answer::INVAL), |m| option(m, 0, 0, 0)),
        (14, "TOS-length-2", Idle, is(Answer::INVAL), |m| option(m, 0, 0, 2)),
        (14, "REUSEADDR", Idle, is(Answer::Ok), |m| option(m, 0, 1, 4)),
        (14, "REUSEADDR-length-1", Idle, is(Answer::INVAL), |m| option(m, 0, 1, 1)),
        (14, "REUSEADDR-length-8", Idle, is(Answer::INVAL), |m| option(m, 0, 1, 8)),
        (14, "REUSEADDR-off-when-bound", State::Bound, is(Answer::INVAL), |m| option(m, 0, 1, 4)),
        (14, "AFONLY", Idle, is(Answer::Ok), |m| option(m, 0, 2, 4)),
        (14, "AFONLY-length-1", Idle, is(Answer::INVAL), |m| option(m, 0, 2, 1)),
        (14, "AFONLY-when-listening", State::Listening, is(Answer::INVAL), |m| option(m, 0, 2, 4)),
        (14, "ACK_TIMEOUT", Idle, is(Answer::Ok), |m| option(m, 0, 3, 1)),
        (14, "ACK_TIMEOUT-length-4", Idle, is(Answer::INVAL), |m| option(m, 0, 3, 4)),
        (14, "ACK_TIMEOUT-of-datagrams", State::Datagram, is(Answer::INVAL), |m| option(m, 0, 3, 1)),
        (14, "option-4", Idle, is(Answer::NOSYS), |m| option(m, 0, 4, 1)),
        (14, "option-maximum", Idle, is(Answer::NOSYS), |m| option(m, 0, 0xffff_ffff, 1)),
        (14, "level-2", Idle, is(Answer::NOSYS), |m| option(m, 2, 0, 1)),
        (14, "IB-option-0", Idle, is(Answer::NOSYS), |m| option(m, 1, 0, 1)),
        (14, "IB-path-length-71", Idle, is(Answer::INVAL), |m| option(m, 1, 1, 71)),
        (14, "IB-path-length-0", Idle, is(Answer::INVAL), |m| option(m, 1, 1, 0)),
        (14, "IB-path-without-primary", Idle, is(Answer::INVAL), |m| option(m, 1, 1, 72)),
        (15, "COMM_EST", OnDevice, is(Answer::INVAL), |m| m.set("event", 4)),
        (15, "event-0", OnDevice, is(Answer::INVAL), |m| m.set("event", 0)),
        (16, "family-0", Idle, is(Answer::INVAL), |mut m| {
            m.put("addr", &[0; 28]);
            m
        }),
        (22, "size-0", Idle, is(Answer::INVAL), |m| m.set("addr_size", 0)),
        (22, "size-28", Idle, is(Answer::INVAL), |m| m.set("addr_size", 28)),
        (22, "flags-2", State::Datagram, is(Answer::INVAL), |m| m.set("join_flags", 2)),
        (18, "descriptor-closed", Idle, is(Answer::NOENT), |m| m.set("fd", 0x7fff_fff0)),
        (18, "descriptor-negative", Idle, is(Answer::NOENT), |m| m.set("fd", 0xffff_ffff)),
        (19, "option-PATH", Idle, is(Answer::Ok), |m| m.set("option", 1)),
        (19, "option-GID", Idle, is(Answer::Ok), |m| m.set("option", 2)),
        (
            19,
            "option-IB_SERVICE",
            Idle,
            Expect::Changed { change: &QUERY_SERVICE, before: Answer::NOSYS, after: Answer::NODATA },
            |m| m.set("option", 3),
        ),
        (19, "option-4", Idle, is(Answer::NOSYS), |m| m.set("option", 4)),
        (19, "option-maximum", Idle, is(Answer::NOSYS), |m| m.set("option", 0xffff_ffff)),
        (24, "event-0", Idle, is(Answer::INVAL), |m| m.set("event", 0)),
        (24, "event-17", Idle, is(Answer::INVAL), |m| m.set("event", 17)),
        (24, "event-20", Idle, is(Answer::INVAL), |m| m.set("event", 20)),
    ]
};

impl Message {
    /// Replaces the family of the address.
    fn address_family(mut self, family: u16) -> Self {
        self.put("addr", &family.to_ne_bytes());
        self
    }
}

/// A field that is checked before the identifier: command, suffix, and the change of a valid request.
type BeforeId = (u32, &'static str, fn(Message) -> Message);

const BEFORE_ID: [BeforeId; 7] = [
    (6, "valid-then-id", |m| m.set("valid", 0)),
    (9, "reason-then-id", |m| m.set("reason", 1)),
    (11, "state-then-id", |m| m.set("qp_state", 7)),
    (20, "size-then-id", |m| m.set("addr_size", 0)),
    (21, "size-then-id", |m| m.set("dst_size", 0)),
    (22, "size-then-id", |m| m.set("addr_size", 0)),
    (24, "event-then-id", |m| m.set("event", 0)),
];

fn of_fields(checks: &mut Vec<Check>) {
    for (number, suffix, state, expect, change) in FIELDS {
        let mutation = Mutation::Request(change);
        checks.push(changed(number, "field", Rule::CmField, suffix, state, expect, mutation));
    }
    for (number, suffix, change) in BEFORE_ID {
        let rule = Rule::CheckOrder;
        let name = format!("cm::{}::order::{}-{suffix}", title(number), rule.id());
        checks.push(Check::new(name, rule, Answer::INVAL, move |session| {
            let file = open(session)?;
            let message = plausible(number, file.descriptor())?.set("id", NOWHERE.into());
            judge(session, &*file, change(message), Answer::INVAL).map(drop)
        }));
    }
}

const MIGRATIONS: [Row; 2] = [
    row("MigrateId::field", Rule::CmField, "descriptor-other-type", Answer::INVAL, |session, answer| {
        let file = open(session)?;
        let id = create(&*file, TCP)?;
        let [uverbs, _] = session.file().other_fds();
        let message = Message::new(18)?.set("id", id.into()).set("fd", u64::from(uverbs.cast_unsigned()));
        judge(session, &*file, message, answer).map(drop)
    }),
    // After a migration, the identifier belongs to the other file only.
    row("MigrateId::id", Rule::CmId, "migrated", Answer::INVAL, |session, answer| {
        let (file, other) = (open(session)?, open(session)?);
        let id = create(&*file, TCP)?;
        prepare(
            &*other,
            Message::new(18)?.set("id", id.into()).set("fd", u64::from(file.descriptor().cast_unsigned())),
        )?;
        judge(session, &*file, Message::new(1)?.set("id", id.into()), answer)?;
        prepare(&*other, Message::new(1)?.set("id", id.into())).map(drop)
    }),
];

/// The checks of the connection manager.
pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    of_headers(&mut checks);
    of_responses(&mut checks);
    of_ids(&mut checks);
    of_states(&mut checks);
    of_fields(&mut checks);
    checks.extend(MIGRATIONS.iter().map(|row| row.check("cm")));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_fields_that_the_checks_set() {
        for number in (0..13).chain(14..25) {
            let message = plausible(number, 3).unwrap();
            assert_eq!(message.info.number, number);
            assert_eq!(message.has("id"), WITH_ID.contains(&number), "{}", message.info.rust);
        }
        for (number, suffix, _, _, change) in FIELDS {
            let valid = plausible(number, 3).unwrap();
            let changed = change(valid.clone());
            let (bytes, options) = (valid.encode() != changed.encode(), valid.option != changed.option);
            let same = ["not-valid", "COMM_EST", "port-space-IB"].contains(&suffix);
            assert!(bytes || options || same, "{} {suffix}", valid.info.rust);
        }
    }

    #[test]
    fn responses_have_the_declared_size_at_most() {
        for (number, least) in RESPONSES {
            let size = command(number).and_then(|info| info.response).map_or(0, |response| response.size);
            assert!(usize::from(least) <= size && size <= ROOM, "{number}: {least} of {size}");
        }
    }
}
