//! Requests of write commands, by the names of their fields.

use bareverbs_uapi::abi::{FieldInfo, FieldKind};
use bareverbs_uapi::write::WriteCommandInfo;

/// The bytes of a request, all zero at first.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) command: &'static WriteCommandInfo,
    pub(crate) bytes: Vec<u8>,
}

impl Request {
    pub(crate) fn new(command: &'static WriteCommandInfo) -> Self {
        Self { command, bytes: vec![0; command.request.map_or(0, |info| info.size)] }
    }

    /// The position of a field and its length. A field of the nested struct `base` counts as one of
    /// the request.
    fn field(&self, name: &str) -> Option<(usize, usize)> {
        position(self.command.request?.fields, name, "base")
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.field(name).is_some()
    }

    /// Sets a field.
    ///
    /// # Panics
    /// If the request has no such field: a mistake in the suite.
    pub(crate) fn set(mut self, name: &str, value: u64) -> Self {
        let (offset, size) = self.field(name).unwrap_or_else(|| panic!("{}: {name}", self.command.rust));
        self.bytes[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
        self
    }

    pub(crate) fn set_bytes(mut self, name: &str, value: &[u8]) -> Self {
        let (offset, size) = self.field(name).unwrap_or_else(|| panic!("{}: {name}", self.command.rust));
        self.bytes[offset..offset + size].copy_from_slice(value);
        self
    }

    pub(crate) fn get(&self, name: &str) -> u32 {
        self.field(name).map_or(0, |(offset, _)| {
            let bytes = self.bytes.get(offset..offset + 4).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        })
    }

    /// The fields with handles of objects.
    pub(crate) fn handles(&self) -> Vec<&'static str> {
        let fields = self.command.request.map_or(&[][..], |info| info.fields);
        let nested = fields.iter().filter_map(|field| match field.kind {
            FieldKind::Struct(info) if field.rust == "base" => Some(info.fields),
            _ => None,
        });
        let all = fields.iter().chain(nested.flatten());
        all.map(|field| field.rust)
            .filter(|name| name.ends_with("_handle") && *name != "user_handle")
            .collect()
    }
}

/// The position of a field and its length. A field of the struct in the field `nested` counts as well.
pub(crate) fn position(fields: &[FieldInfo], name: &str, nested: &str) -> Option<(usize, usize)> {
    let find = |fields: &[FieldInfo]| {
        fields.iter().find(|field| field.rust == name).map(|field| (field.offset, field.size))
    };
    find(fields).or_else(|| {
        let inner = fields.iter().find(|field| field.rust == nested)?;
        let FieldKind::Struct(info) = inner.kind else { return None };
        find(info.fields).map(|(offset, size)| (inner.offset + offset, size))
    })
}
