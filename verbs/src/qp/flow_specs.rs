//! Flow specs as the kernel takes them.

use bareverbs_uapi::verbs_values::FlowSpecType;
use bareverbs_uapi::write::structs::{FlowAttr, FlowSpecHdr};
use zerocopy::IntoBytes;

/// Flow specs of the kernel.
#[derive(Debug)]
pub(super) struct Specs {
    pub(super) bytes: Vec<u8>,
    /// `None`: too many.
    pub(super) count: Option<u8>,
}

impl Default for Specs {
    fn default() -> Self {
        Self { bytes: Vec::new(), count: Some(0) }
    }
}

impl Specs {
    /// Adds a spec: its header, these parts, and zeros up to the alignment of specs.
    pub(super) fn push(&mut self, spec_type: FlowSpecType, parts: &[&[u8]]) {
        let length = size_of::<FlowSpecHdr>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let size = length.next_multiple_of(align_of::<u64>());
        let header = FlowSpecHdr { spec_type, size: size as u16, ..FlowSpecHdr::zeroed() };
        let end = self.bytes.len() + size;
        self.bytes.extend_from_slice(header.as_bytes());
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.bytes.resize(end, 0);
        self.count = self.count.and_then(|count| count.checked_add(1));
    }

    /// The flow with the number of specs.
    pub(super) fn counted(&self, flow: FlowAttr) -> FlowAttr {
        FlowAttr { num_of_specs: self.count.unwrap_or(u8::MAX), ..flow }
    }
}
