//! Programs: sequences of actions, generated and shrunk by proptest.

use proptest::collection::vec;
use proptest::prelude::*;

use super::places::Places;

/// The longest program in actions.
const LENGTH: usize = 24;

/// The bytes that choose the values of a call.
const CHOICES: usize = 48;

/// One step of a program. Files, objects and attributes are chosen modulo their number, so that a
/// program without some of its actions still has a meaning.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Opens the device once more.
    Open,
    /// Closes a file.
    Close(u8),
    /// Closes a descriptor that a call made.
    CloseDescriptor(u8),
    /// A call.
    Call(CallAction),
}

/// A call: where, with which values, and what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct CallAction {
    /// The file.
    pub(super) file: u8,
    /// Index of the method or command in the table of places.
    pub(super) place: usize,
    /// Choices among valid values, in the order of use. The first value at 0, also after the end.
    pub(super) choices: Vec<u8>,
    /// Changes of the valid call.
    pub(super) faults: Vec<Fault>,
}

/// A change that makes a valid call invalid, or may do so.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// An attribute is absent.
    Drop(u8),
    /// An attribute occurs twice.
    Repeat(u8),
    /// Two attributes change places.
    Swap(u8, u8),
    /// Flags of an attribute.
    Flags(u8, u16),
    /// The reserved bytes of an attribute.
    Reserved(u8, u16),
    /// Length of an attribute.
    Length(u8, u16),
    /// The payload has no memory.
    Unmap(u8),
    /// A handle, a descriptor or a field of a payload has an extreme value.
    Value(u8, u8, u8),
    /// A handle names a destroyed object.
    Stale(u8, u8),
    /// A handle names an object of another class.
    OtherClass(u8, u8),
    /// A handle is that of another file.
    Foreign(u8, u8),
    /// One more attribute with any id.
    Unknown { id: u16, mandatory: bool },
    /// The driver id of the header.
    Driver(u32),
    /// The reserved words of the header.
    Header(u8),
    /// The method of the header.
    Method(u16),
    /// The object class of the header.
    Object(u16),
    /// The stated size of the request and the response of a command that is written, in words.
    Words(u16, u16),
}

/// Programs for a device.
pub(super) fn programs(places: &Places) -> impl Strategy<Value = Vec<Action>> + use<> {
    let calls = (any::<u8>(), places.strategy(), vec(any::<u8>(), 0..CHOICES), faults())
        .prop_map(|(file, place, choices, faults)| Action::Call(CallAction { file, place, choices, faults }));
    let action = prop_oneof![
        20 => calls,
        1 => Just(Action::Open),
        1 => any::<u8>().prop_map(Action::CloseDescriptor),
        1 => any::<u8>().prop_map(Action::Close),
    ];
    vec(action, 1..=LENGTH)
}

/// Mostly none.
fn faults() -> impl Strategy<Value = Vec<Fault>> {
    prop_oneof![
        5 => Just(Vec::new()),
        3 => vec(fault(), 1),
        1 => vec(fault(), 2..4),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    let (one, two) = (any::<u8>(), (any::<u8>(), any::<u8>()));
    let length = prop_oneof![0_u16..20, Just(64_u16), Just(4096_u16), Just(u16::MAX)];
    let id = prop_oneof![0_u16..32, 0x1000_u16..0x1010, any::<u16>()];
    prop_oneof![
        2 => one.prop_map(Fault::Drop),
        1 => one.prop_map(Fault::Repeat),
        1 => two.prop_map(|(a, b)| Fault::Swap(a, b)),
        1 => (any::<u8>(), any::<u16>()).prop_map(|(at, flags)| Fault::Flags(at, flags)),
        1 => (any::<u8>(), 1_u16..).prop_map(|(at, data)| Fault::Reserved(at, data)),
        3 => (any::<u8>(), length).prop_map(|(at, len)| Fault::Length(at, len)),
        3 => one.prop_map(Fault::Unmap),
        6 => (any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(at, field, value)| Fault::Value(at, field, value)),
        3 => two.prop_map(|(at, which)| Fault::Stale(at, which)),
        2 => two.prop_map(|(at, which)| Fault::OtherClass(at, which)),
        2 => two.prop_map(|(at, which)| Fault::Foreign(at, which)),
        2 => (id.clone(), any::<bool>()).prop_map(|(id, mandatory)| Fault::Unknown { id, mandatory }),
        1 => (0_u32..32).prop_map(Fault::Driver),
        1 => (1_u8..).prop_map(Fault::Header),
        1 => id.clone().prop_map(Fault::Method),
        1 => id.prop_map(Fault::Object),
        2 => (0_u16..300, 0_u16..300).prop_map(|(request, response)| Fault::Words(request, response)),
    ]
}

/// The choices of a call, in the order of use.
pub(super) struct Choices<'a>(std::slice::Iter<'a, u8>);

impl<'a> Choices<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes.iter())
    }

    /// The next choice; 0 after the last one.
    pub(super) fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    /// Whether something unusual is chosen: `sixteenths` of 16.
    pub(super) fn rarely(&mut self, sixteenths: u8) -> bool {
        self.next() >= 0_u8.wrapping_sub(16 * sixteenths)
    }

    /// One of these values: the first one in at least half of the cases.
    pub(super) fn among<T: Copy>(&mut self, values: &[T]) -> Option<T> {
        let choice = self.next();
        let index = usize::from(choice.saturating_sub(127)) % values.len().max(1);
        values.get(index).copied()
    }
}
