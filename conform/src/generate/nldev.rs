//! The commands of RDMA netlink (nldev).

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::netlink::{MessageFlags, MessageWriter};
use bareverbs_uapi::nldev::{Attribute, Client, Command, decode};
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::QpCreate;
use bareverbs_uapi::uverbs::types::QpType;
use rustix::thread::CapabilitySet;

use super::NOWHERE;
use crate::answer::{Answer, Change, Expect};
use crate::check::{Check, Row, row};
use crate::privilege::Dropped;
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail, skip};

static STRICT: Change = Change {
    name: "nldev-strict-attributes",
    since: Since::V6_12,
    why: "SET, NEWLINK and DELLINK refuse unknown attributes since 6.12 (core/nldev.c: nldev_set_doit, \
          nldev_newlink, nldev_dellink)",
};

static LIBERAL: Change = Change {
    name: "nldev-liberal-attributes",
    since: Since::V6_12,
    why: "SYS_GET, GET_CHARDEV, STAT_GET and STAT_GET_STATUS ignore unknown attributes since 6.12 \
          (core/nldev.c)",
};

/// An attribute of a message.
#[derive(Clone, Debug)]
enum Value {
    U32(u32),
    Bytes(Vec<u8>),
    Text(&'static str),
    /// The index of the device.
    Index,
}

/// A message.
#[derive(Clone, Debug)]
struct Message {
    kind: u16,
    dump: bool,
    attributes: Vec<(u16, Value)>,
}

impl Message {
    fn of(command: Command, attributes: &[(Attribute, Value)]) -> Self {
        let attributes = attributes.iter().map(|(attribute, value)| (attribute.0, value.clone())).collect();
        Self { kind: command.message_type(), dump: false, attributes }
    }

    fn with(mut self, attribute: Attribute, value: Value) -> Self {
        self.attributes.push((attribute.0, value));
        self
    }

    fn encode(&self, index: u32) -> Option<Vec<u8>> {
        let mut buffer = [0; 2048];
        let mut writer = MessageWriter::new(&mut buffer);
        let dump = if self.dump { MessageFlags::DUMP } else { MessageFlags::empty() };
        writer.begin(self.kind, MessageFlags::REQUEST | MessageFlags::ACK | dump, 1);
        for (attribute, value) in &self.attributes {
            match value {
                Value::U32(value) => writer.put_u32(*attribute, *value),
                Value::Index => writer.put_u32(*attribute, index),
                Value::Bytes(bytes) => writer.put_bytes(*attribute, bytes),
                Value::Text(text) => writer.put_str(*attribute, text),
            };
        }
        writer.finish().ok().map(<[u8]>::to_vec)
    }
}

/// Sends the judged message.
fn judge(session: &mut Session<'_>, message: &Message, expected: Answer) -> Step<()> {
    let Some(bytes) = message.encode(session.target.netlink_index()) else {
        return fail("the message is too long");
    };
    let got = session.netlink(&bytes)?;
    session.compare(&decode(&bytes), expected, got).map(drop)
}

/// Judges a query of the device.
pub(super) fn judge_get(session: &mut Session<'_>, expected: Answer) -> Step<()> {
    judge(session, &Message::of(Command::GET, &[DEVICE]), expected)
}

/// A command with the attributes that it needs.
struct Method {
    command: Command,
    since: Since,
    /// Whether it needs `CAP_NET_ADMIN`.
    admin: bool,
    needs: Vec<(Attribute, Value)>,
    /// The answer with these attributes; `None`: it would change the system.
    answer: Option<Answer>,
}

const PORT: (Attribute, Value) = (Attribute::PORT_INDEX, Value::U32(1));
const DEVICE: (Attribute, Value) = (Attribute::DEV_INDEX, Value::Index);
/// An attribute that no kernel has.
pub(crate) const UNKNOWN: u16 = 0x3f00;
/// A number that no object has.
const NO_OBJECT: u32 = 0x00ff_fff0;

fn methods() -> Vec<Method> {
    let method = |command, needs: &[(Attribute, Value)], answer: Option<Answer>| Method {
        command,
        since: Since::V6_1,
        admin: false,
        needs: needs.to_vec(),
        answer,
    };
    let admin = |command, needs: &[(Attribute, Value)], answer| Method {
        admin: true,
        ..method(command, needs, answer)
    };
    let none = Some(Answer::NOENT);
    let object = |attribute| (attribute, Value::U32(NO_OBJECT));
    vec![
        method(Command::GET, &[DEVICE], Some(Answer::Ok)),
        admin(Command::SET, &[DEVICE], Some(Answer::Ok)),
        admin(
            Command::NEWLINK,
            &[
                (Attribute::DEV_NAME, Value::Text("conform0")),
                (Attribute::LINK_TYPE, Value::Text("rxe")),
                (Attribute::NDEV_NAME, Value::Text("no-such-netdev")),
            ],
            Some(Answer::NODEV),
        ),
        admin(Command::DELLINK, &[DEVICE], None),
        method(Command::PORT_GET, &[DEVICE, PORT], Some(Answer::Ok)),
        method(Command::SYS_GET, &[], Some(Answer::Ok)),
        admin(Command::SYS_SET, &[], Some(Answer::INVAL)),
        method(Command::RES_GET, &[DEVICE], Some(Answer::Ok)),
        method(Command::RES_QP_GET, &[DEVICE, PORT, object(Attribute::RES_LQPN)], none),
        method(Command::RES_CM_ID_GET, &[DEVICE, PORT, object(Attribute::RES_CM_IDN)], none),
        method(Command::RES_CQ_GET, &[DEVICE, object(Attribute::RES_CQN)], none),
        method(Command::RES_MR_GET, &[DEVICE, object(Attribute::RES_MRN)], none),
        method(Command::RES_PD_GET, &[DEVICE, object(Attribute::RES_PDN)], none),
        method(Command::RES_CTX_GET, &[DEVICE, object(Attribute::RES_CTXN)], none),
        method(Command::RES_SRQ_GET, &[DEVICE, object(Attribute::RES_SRQN)], none),
        admin(Command::RES_QP_GET_RAW, &[DEVICE, PORT, object(Attribute::RES_LQPN)], none),
        admin(Command::RES_CQ_GET_RAW, &[DEVICE, object(Attribute::RES_CQN)], none),
        admin(Command::RES_MR_GET_RAW, &[DEVICE, object(Attribute::RES_MRN)], none),
        Method {
            since: Since::V6_12,
            ..admin(Command::RES_SRQ_GET_RAW, &[DEVICE, object(Attribute::RES_SRQN)], none)
        },
        method(Command::GET_CHARDEV, &[(Attribute::CHARDEV_TYPE, Value::Text("rdma_cm"))], Some(Answer::Ok)),
        method(Command::STAT_GET, &[DEVICE, PORT], Some(Answer::Ok)),
        method(Command::STAT_GET_STATUS, &[DEVICE, PORT], Some(Answer::Ok)),
        admin(Command::STAT_SET, &[DEVICE, PORT], None),
        admin(Command::STAT_DEL, &[DEVICE, PORT, (Attribute::STAT_RES, Value::U32(19))], None),
        Method {
            since: Since::V6_12,
            ..admin(Command::NEWDEV, &[DEVICE, (Attribute::DEV_NAME, Value::Text("conform0"))], None)
        },
        Method { since: Since::V6_12, ..admin(Command::DELDEV, &[DEVICE], None) },
        Method { since: Since::V7_2, ..admin(Command::FRMR_POOLS_SET, &[DEVICE], None) },
    ]
}

fn name(command: Command, place: &str, rule: Rule, suffix: &str) -> String {
    let separator = if suffix.is_empty() { "" } else { "-" };
    format!("nldev::{command}::{place}::{}{separator}{suffix}", rule.id())
}

/// Whether this thread may change the system.
fn needs_admin(session: &Session<'_>) -> Step<()> {
    let _ = session;
    match rustix::thread::capabilities(None) {
        Ok(sets) if sets.effective.contains(CapabilitySet::NET_ADMIN) => Ok(()),
        _ => skip("the command needs CAP_NET_ADMIN"),
    }
}

fn since(session: &Session<'_>, since: Since) -> Step<()> {
    if session.series < since { skip(format!("kernels have it since {}", since.name())) } else { Ok(()) }
}

/// Attributes of device and port, whose objects must exist.
fn place(attribute: Attribute) -> Option<u32> {
    match attribute {
        Attribute::DEV_INDEX => Some(NOWHERE),
        Attribute::PORT_INDEX => Some(255),
        _ => None,
    }
}

/// The check of a message of a method.
fn of_message(
    method: &Method,
    place: &str,
    rule: Rule,
    suffix: &str,
    expect: impl Into<Expect>,
    message: Message,
) -> Check {
    let (first, admin, expect) = (method.since, method.admin, expect.into());
    Check::new(name(method.command, place, rule, suffix), rule, expect, move |session| {
        since(session, first)?;
        if admin {
            needs_admin(session)?;
        }
        judge(session, &message, expect.on(session.series))
    })
}

/// The check of a message of a method, without `CAP_NET_ADMIN`.
fn without_privilege(method: &Method, suffix: &str, answer: Answer, message: Message) -> Check {
    let (first, rule) = (method.since, Rule::NetlinkPermission);
    Check::new(name(method.command, "all", rule, suffix), rule, answer, move |session| {
        since(session, first)?;
        needs_admin(session)?;
        let Ok(_dropped) = Dropped::new(CapabilitySet::NET_ADMIN) else {
            return skip("the capability can't be dropped");
        };
        judge(session, &message, answer)
    })
}

/// Values of an attribute that a command refuses: rule, suffix and value; `None`: it is missing.
fn wrong_values(attribute: Attribute, value: &Value) -> Vec<(Rule, &'static str, Option<Value>)> {
    let mut list = vec![(Rule::NetlinkAttribute, "missing", None)];
    if !matches!(value, Value::Text(_)) {
        for (suffix, len) in [("0-bytes", 0), ("2-bytes", 2), ("3-bytes", 3)] {
            list.push((Rule::NetlinkAttribute, suffix, Some(Value::Bytes(vec![0; len]))));
        }
    }
    if let Some(nowhere) = place(attribute) {
        list.push((Rule::NetlinkObject, "unknown", Some(Value::U32(nowhere))));
    }
    if attribute == Attribute::PORT_INDEX {
        list.push((Rule::NetlinkObject, "0", Some(Value::U32(0))));
    }
    list
}

/// The answer to a valid message with an unknown attribute; `None`: it would change the system.
fn with_unknown(command: Command, answer: Option<Answer>) -> Option<Expect> {
    let answer = answer?;
    match command {
        Command::SET | Command::NEWLINK => {
            Some(Expect::Changed { change: &STRICT, before: answer, after: Answer::INVAL })
        }
        Command::SYS_GET | Command::GET_CHARDEV | Command::STAT_GET | Command::STAT_GET_STATUS => {
            Some(Expect::Changed { change: &LIBERAL, before: Answer::INVAL, after: answer })
        }
        Command::SYS_SET => None,
        _ => Some(Expect::Is(answer)),
    }
}

fn of_methods(checks: &mut Vec<Check>) {
    for method in &methods() {
        let Method { command, admin, needs, answer, .. } = method;
        let valid = Message::of(*command, needs);
        if let Some(answer) = *answer {
            checks.push(of_message(method, "all", Rule::NetlinkObject, "valid", answer, valid.clone()));
        }
        for (attribute, value) in needs {
            for (rule, suffix, wrong) in wrong_values(*attribute, value) {
                let mut message = valid.clone();
                message.attributes.retain(|(of, _)| *of != attribute.0);
                message.attributes.extend(wrong.map(|wrong| (attribute.0, wrong)));
                checks.push(of_message(method, &attribute.to_string(), rule, suffix, Answer::INVAL, message));
            }
        }
        if let Some(expect) = with_unknown(*command, *answer) {
            let mut message = valid.clone();
            message.attributes.push((UNKNOWN, Value::U32(1)));
            checks.push(of_message(method, "unknown", Rule::NetlinkUnknown, "", expect, message));
        }
        if *admin {
            let empty = Message::of(*command, &[]);
            let unknown = empty.clone().with(Attribute::DEV_INDEX, Value::U32(NOWHERE));
            checks.push(without_privilege(method, "empty", Answer::PERM, empty));
            checks.push(without_privilege(method, "unknown-device", Answer::PERM, unknown));
        } else if let Some(answer) = *answer {
            checks.push(without_privilege(method, "not-needed", answer, valid));
        }
    }
}

/// Dumps: the command, whether it needs a device, and the answer with one.
const DUMPS: [(Command, bool); 12] = [
    (Command::GET, false),
    (Command::PORT_GET, true),
    (Command::RES_GET, false),
    (Command::RES_QP_GET, true),
    (Command::RES_CM_ID_GET, true),
    (Command::RES_CQ_GET, true),
    (Command::RES_MR_GET, true),
    (Command::RES_PD_GET, true),
    (Command::RES_CTX_GET, true),
    (Command::RES_SRQ_GET, true),
    (Command::STAT_GET, true),
    (Command::FRMR_POOLS_GET, true),
];

fn of_dumps(checks: &mut Vec<Check>) {
    for (command, needs_device) in DUMPS {
        let first = if command == Command::FRMR_POOLS_GET { Since::V7_2 } else { Since::V6_1 };
        // Dumps of counters are of a class of objects.
        let class = (command == Command::STAT_GET).then_some((Attribute::STAT_RES, Value::U32(19)));
        let dump = |attributes: &[(Attribute, Value)]| {
            let mut message = Message::of(command, attributes);
            message.dump = true;
            if let Some((attribute, value)) = class.clone() {
                message = message.with(attribute, value);
            }
            message
        };
        let mut cases = vec![("with-device", Rule::NetlinkObject, Answer::Ok, dump(&[DEVICE]))];
        if needs_device {
            cases.push(("without-device", Rule::NetlinkAttribute, Answer::INVAL, dump(&[])));
            let nowhere = (Attribute::DEV_INDEX, Value::U32(NOWHERE));
            cases.push(("unknown-device", Rule::NetlinkObject, Answer::INVAL, dump(&[nowhere])));
        } else {
            cases.push(("all-devices", Rule::NetlinkObject, Answer::Ok, dump(&[])));
        }
        for (suffix, rule, answer, message) in cases {
            checks.push(Check::new(name(command, "dump", rule, suffix), rule, answer, move |session| {
                since(session, first)?;
                judge(session, &message, answer)
            }));
        }
    }
    for command in [Command::SYS_GET, Command::SET, Command::NEWLINK, Command::GET_CHARDEV] {
        let rule = Rule::NetlinkType;
        checks.push(Check::new(name(command, "dump", rule, "none"), rule, Answer::INVAL, move |session| {
            let mut message = Message::of(command, &[]);
            message.dump = true;
            needs_admin(session)?;
            judge(session, &message, Answer::INVAL)
        }));
    }
}

fn of_types(checks: &mut Vec<Check>) {
    let rule = Rule::NetlinkType;
    let mut add = |place: String, kind: u16| {
        let name = format!("nldev::type::{place}::{}", rule.id());
        checks.push(Check::new(name, rule, Answer::INVAL, move |session| {
            let message = Message { kind, dump: false, attributes: Vec::new() };
            judge(session, &message, Answer::INVAL)
        }));
    };
    for number in [0, 8, 28, 31, 32, 200, 0x3ff] {
        add(format!("command-{number}"), Client::NLDEV.message_type(number));
    }
    for client in [1, 3, 6, 7, 33, 63] {
        add(format!("client-{client}"), Client(client).message_type(1));
    }
    add("command-without-doit".into(), Command::FRMR_POOLS_GET.message_type());
}

/// Single messages: command, place, suffix, rule, the expectation and the attributes.
type Single = (Command, &'static str, &'static str, Rule, Answer, Vec<(Attribute, Value)>);

fn singles() -> Vec<Single> {
    let link = |name, kind, netdev| {
        vec![
            (Attribute::DEV_NAME, Value::Text(name)),
            (Attribute::LINK_TYPE, Value::Text(kind)),
            (Attribute::NDEV_NAME, Value::Text(netdev)),
        ]
    };
    let object = Rule::NetlinkObject;
    let field = Rule::NetlinkAttribute;
    vec![
        (Command::NEWLINK, "DEV_NAME", "empty", field, Answer::INVAL, link("", "rxe", "lo")),
        (Command::NEWLINK, "DEV_NAME", "pattern", field, Answer::INVAL, link("rxe%d", "rxe", "lo")),
        (
            Command::NEWLINK,
            "LINK_TYPE",
            "unknown",
            object,
            Answer::INVAL,
            link("conform0", "no-such-type", "lo"),
        ),
        (Command::NEWLINK, "all", "netdev-then-type", Rule::CheckOrder, Answer::NODEV, {
            link("conform0", "no-such-type", "no-such-netdev")
        }),
        (Command::NEWLINK, "all", "name-then-netdev", Rule::CheckOrder, Answer::INVAL, {
            link("rxe%d", "rxe", "no-such-netdev")
        }),
        (Command::SET, "DEV_NAME", "empty", field, Answer::INVAL, {
            vec![DEVICE, (Attribute::DEV_NAME, Value::Text(""))]
        }),
        (Command::RES_QP_GET, "PORT_INDEX", "not-given", object, Answer::INVAL, {
            vec![DEVICE, (Attribute::RES_LQPN, Value::U32(NO_OBJECT))]
        }),
        (Command::RES_CQ_GET, "PORT_INDEX", "given", object, Answer::INVAL, {
            vec![DEVICE, PORT, (Attribute::RES_CQN, Value::U32(NO_OBJECT))]
        }),
        (Command::STAT_GET, "STAT_RES", "unknown", field, Answer::INVAL, {
            vec![DEVICE, PORT, (Attribute::STAT_RES, Value::U32(999))]
        }),
        (Command::GET_CHARDEV, "CHARDEV_TYPE", "uverbs", object, Answer::Ok, {
            vec![DEVICE, (Attribute::CHARDEV_TYPE, Value::Text("uverbs"))]
        }),
    ]
}

fn of_singles(checks: &mut Vec<Check>) {
    for (command, place, suffix, rule, answer, attributes) in singles() {
        checks.push(Check::new(name(command, place, rule, suffix), rule, answer, move |session| {
            if [Command::NEWLINK, Command::SET].contains(&command) {
                needs_admin(session)?;
            }
            judge(session, &Message::of(command, &attributes), answer)
        }));
    }
}

/// A QP in RESET has no port.
const IN_RESET: Row =
    row("RES_QP_GET::RES_LQPN", Rule::NetlinkObject, "own-in-RESET", Answer::AGAIN, |session, answer| {
        session.needs_rxe_payloads()?;
        let (pd, cq) = (session.pd()?, session.cq()?);
        let mut call = session.qp_call(QpType::RC, pd, cq);
        session.prepare(&mut call)?;
        session.made(&call, ObjectClass::QP, QpCreate::HANDLE.id());
        let number = (Attribute::RES_LQPN, Value::U32(call.u32_of(QpCreate::RESP_QP_NUM.id())));
        judge(session, &Message::of(Command::RES_QP_GET, &[DEVICE, PORT, number]), answer)
    });

/// The checks of RDMA netlink.
pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    of_methods(&mut checks);
    of_dumps(&mut checks);
    of_types(&mut checks);
    of_singles(&mut checks);
    checks.push(IN_RESET.check("nldev"));
    checks
}
