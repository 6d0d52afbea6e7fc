//! `bareverbs decode`: the kernel's RDMA messages as names and values.

use anyhow::{Result, ensure};
use bareverbs_conform::decode::{Message, bytes_of_text, decode};

use crate::cli::conform::{Decode, MessageKind};
use crate::{dump, output};

/// `bareverbs decode`.
pub(crate) fn show(options: &Decode) -> Result<()> {
    let bytes = dump::read(options.file.as_deref())?;
    let bytes = match std::str::from_utf8(&bytes).ok().and_then(bytes_of_text) {
        Some(found) => found,
        None => bytes,
    };
    ensure!(!bytes.is_empty(), "the input has no bytes");
    let message = match options.kind {
        MessageKind::Ioctl => Message::Ioctl,
        MessageKind::Write => Message::Write,
        MessageKind::RdmaCm => Message::RdmaCm,
        MessageKind::RdmaCmEvent => Message::RdmaCmEvent,
        MessageKind::Nldev => Message::Nldev,
    };
    let decoded = decode(message, &bytes);
    let text = if options.json { serde_json::to_string_pretty(&decoded)? } else { decoded.text };
    Ok(output::line(text.trim_end())?)
}
