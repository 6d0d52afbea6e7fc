//! ioctl calls on the uverbs file, as a tracer reads them: headers, attributes, write commands
//! within `INVOKE_WRITE`, and the requests and responses in the memory that they point to.
//!
//! Any bytes decode as a call, or give an error with a reason. Printing terminates, in either
//! format, with text of bounded length. Encoded attributes are decoded unchanged.

use bareverbs_uapi::decode::{DecodeError, DecodedValue, Memory, decode};
use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, Header};
use bareverbs_uapi::method::{AttributeKind, Method, MethodInfo, UHW_IN, UHW_OUT};
use bareverbs_uapi::registry::{COMMANDS, OBJECTS, driver};
use bareverbs_uapi::uverbs::InvokeWrite;
use bareverbs_uapi::uverbs::types::DriverId;
use zerocopy::IntoBytes;

use crate::input::Input;

/// Upper bound of the bytes printed for a call, and for each of its attributes.
const NAMES: usize = 512;
const ATTRIBUTE: usize = 256 << 10;

/// Memory that repeats these bytes. Addresses in the upper half can't be read.
struct Repeated<'a>(&'a [u8]);

impl Memory for Repeated<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        if address >> 63 != 0 || self.0.is_empty() {
            return false;
        }
        let from = (address % self.0.len() as u64) as usize;
        for (byte, at) in buffer.iter_mut().zip(from..) {
            *byte = self.0[at % self.0.len()];
        }
        true
    }
}

fn check(bytes: &[u8], memory: &dyn Memory) {
    let call = match decode(bytes, memory) {
        Ok(call) => call,
        Err(error) => {
            if let DecodeError::Header { given } | DecodeError::Truncated { given, .. } = error {
                assert_eq!(given, bytes.len());
            }
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let header = call.header();
    assert!(usize::from(header.length) <= bytes.len());
    assert_eq!(call.attributes().count(), usize::from(header.num_attrs));
    for attribute in call.attributes() {
        if let DecodedValue::Input(payload) | DecodedValue::Output { payload, .. } = attribute.value() {
            let mut buffer = [0; 100];
            let length = payload.len().min(buffer.len());
            assert!(payload.read(&mut buffer).is_none_or(|read| read.len() == length));
        }
    }
    for text in [format!("{call}"), format!("{call:#}")] {
        assert!(text.len() <= NAMES + ATTRIBUTE * usize::from(header.num_attrs), "{} bytes", text.len());
    }
}

/// A method, and the ids of its attributes with those that its driver adds.
fn method(input: &mut Input<'_>, driver_id: u32) -> (&'static MethodInfo, Vec<u16>) {
    let driver = driver(driver_id);
    let methods: Vec<&MethodInfo> = OBJECTS
        .into_iter()
        .chain(driver.objects.iter().copied())
        .flat_map(|object| object.methods)
        .copied()
        .collect();
    let method = if input.one_in(2) { &InvokeWrite::INFO } else { input.one_of(&methods) };
    let added = driver.attributes.iter().filter(|added| {
        (added.method.object, added.method.id) == (method.object, method.id)
    });
    let infos = method.attributes.iter().chain(added.flat_map(|added| added.attributes));
    (method, infos.map(|info| info.id).chain([UHW_IN, UHW_OUT]).collect())
}

fn attribute(input: &mut Input<'_>, method: &MethodInfo, ids: &[u16]) -> Attribute {
    let attr_id = if input.one_in(16) { input.half() } else { input.one_of(ids) };
    let is_command = method.attributes.iter().any(|info| {
        info.id == attr_id && matches!(info.kind, AttributeKind::Constant { .. })
    });
    let len = match input.byte() % 4 {
        0 => 4,
        1 => 8,
        2 => u16::from(input.byte()),
        _ => input.half(),
    };
    let data = match input.byte() % 4 {
        0 if is_command => input.one_of(&COMMANDS).number.into(),
        0 => u64::from(input.word()),
        1 => u64::from(input.byte()),
        2 => u64::from(input.half()),
        _ => input.long(),
    };
    let flags = AttributeFlags::from_bits_retain(input.byte().into());
    Attribute { attr_id, len, flags, attr_data: input.half(), data }
}

pub(crate) fn run(data: &[u8]) {
    let (call, memory) = data.split_at(data.len() / 2);
    check(call, &Repeated(memory));

    let mut input = Input(call);
    let driver_id = input.one_of(&[DriverId::RXE.0, DriverId::MLX5.0, DriverId::SIW.0, 99]);
    let (info, ids) = method(&mut input, driver_id);
    let count = input.byte() % 12;
    let attributes: Vec<Attribute> = (0..count).map(|_| attribute(&mut input, info, &ids)).collect();
    let mut header = Header::zeroed();
    header.object_id = info.object;
    header.method_id = info.id;
    header.driver_id = driver_id;
    header.num_attrs = count.into();
    header.length = (size_of::<Header>() + attributes.len() * size_of::<Attribute>()) as u16;
    let bytes = [header.as_bytes(), attributes.as_bytes()].concat();
    let memory = Repeated(memory);
    check(&bytes, &memory);
    let decoded = decode(&bytes, &memory).expect("the header is good");
    assert_eq!(decoded.method().map(|found| found.rust), Some(info.rust));
    for (found, written) in decoded.attributes().zip(&attributes) {
        assert_eq!(found.raw().as_bytes(), written.as_bytes());
    }
}
