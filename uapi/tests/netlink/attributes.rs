//! Attributes that are written and read back, by the property tests of netlink messages and by their
//! fuzz target.

use bareverbs_uapi::netlink::{Attributes, MessageWriter};

/// The value of an attribute.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    Bytes(Vec<u8>),
    Text(String),
    Nested(Vec<(u16, Value)>),
}

/// Writes attributes, each with its number.
pub(crate) fn write(writer: &mut MessageWriter<'_>, values: &[(u16, Value)]) {
    for (number, value) in values {
        match value {
            Value::U8(value) => writer.put_u8(*number, *value),
            Value::U16(value) => writer.put_u16(*number, *value),
            Value::U32(value) => writer.put_u32(*number, *value),
            Value::U64(value) => writer.put_u64(*number, *value),
            Value::Bytes(bytes) => writer.put_bytes(*number, bytes),
            Value::Text(text) => writer.put_str(*number, text),
            Value::Nested(values) => writer.put_nested(*number, |writer| write(writer, values)),
        };
    }
}

/// Asserts that these attributes are read.
pub(crate) fn check(mut attributes: Attributes<'_>, values: &[(u16, Value)]) {
    for (number, value) in values {
        let found = attributes.next().expect("an attribute for every one written").expect("well formed");
        assert_eq!(found.kind, *number);
        match value {
            Value::U8(value) => assert_eq!(found.u8(), Ok(*value)),
            Value::U16(value) => assert_eq!(found.u16(), Ok(*value)),
            Value::U32(value) => assert_eq!(found.u32(), Ok(*value)),
            Value::U64(value) => assert_eq!(found.u64(), Ok(*value)),
            Value::Bytes(bytes) => assert_eq!(found.payload, bytes),
            Value::Text(text) => assert_eq!(found.str(), Ok(text.as_str())),
            Value::Nested(values) => {
                assert!(found.nested);
                check(found.attributes(), values);
            }
        }
    }
    assert!(attributes.next().is_none());
}
