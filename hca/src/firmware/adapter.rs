//! Adapter identification and special contexts.

use super::command::{Reply, Result};
use super::layout::command::QuerySpecialContextsOut;
use super::layout::port::{AdapterBlock, QueryAdapterOut};
use super::state::Firmware;
use crate::engine::mkey;

/// The board ID (PSID), 16 characters.
const BOARD: &[u8; 16] = b"BRV0000000001\0\0\0";
const IEEE_VENDOR: u32 = 0x2c9;
const PCI_VENDOR: u32 = 0x15b3;

impl Firmware {
    pub(super) fn query_adapter(&self, reply: &mut Reply<'_>) -> Result<()> {
        reply
            .view::<QueryAdapterOut>()?
            .part(QueryAdapterOut::QUERY_ADAPTER_STRUCT)
            .set(AdapterBlock::IEEE_VENDOR_ID, IEEE_VENDOR)
            .set(AdapterBlock::VSD_VENDOR_ID, PCI_VENDOR)
            .set_bytes(AdapterBlock::VSD_CONTD_PSID, BOARD);
        Ok(())
    }

    pub(super) fn query_special_contexts(&self, reply: &mut Reply<'_>) -> Result<()> {
        reply
            .view::<QuerySpecialContextsOut>()?
            .set(QuerySpecialContextsOut::DUMP_FILL_MKEY, mkey::DUMP_FILL_MKEY)
            .set(QuerySpecialContextsOut::RESD_LKEY, mkey::RESERVED_LKEY)
            .set(QuerySpecialContextsOut::NULL_MKEY, mkey::NULL_MKEY)
            .set(QuerySpecialContextsOut::TERMINATE_SCATTER_LIST_MKEY, mkey::TERMINATE_SCATTER_LIST_MKEY);
        Ok(())
    }
}
