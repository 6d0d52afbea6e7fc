//! QPs that spread frames over work queues (RSS). They have no queues and no states.

use std::slice;
use std::sync::Mutex;

use bareverbs::qp::{QpState, QpType};
use bareverbs::rss::{HashFields, HashFunctions, RssHash, RssInit, TOEPLITZ_KEY};

use super::kind::AnyQp;
use super::{bare, head};
use crate::abi::qp::{ibv_qp, ibv_qp_init_attr_ex, ibv_rx_hash_conf};
use crate::abi::values::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH,
};
use crate::convention::{Failure, required};
use crate::memory::PdObject;
use crate::object::Object;
use crate::wq::TableObject;

fn hash(conf: &ibv_rx_hash_conf) -> Result<RssHash, Failure> {
    if conf.rx_hash_function != HashFunctions::TOEPLITZ.bits() {
        return Err(Failure::UNSUPPORTED);
    }
    if conf.rx_hash_key.is_null() || usize::from(conf.rx_hash_key_len) != TOEPLITZ_KEY {
        return Err(Failure::INVALID);
    }
    // SAFETY: the key has this length.
    let bytes = unsafe { slice::from_raw_parts(conf.rx_hash_key, TOEPLITZ_KEY) };
    let mut key = [0; TOEPLITZ_KEY];
    key.copy_from_slice(bytes);
    Ok(RssHash { fields: HashFields::from_bits_retain(conf.rx_hash_fields_mask), key })
}

/// Creates an RSS QP: a raw packet QP of an indirection table, without CQs, queues or flags.
pub(super) fn create(init: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Failure> {
    let mask = init.comp_mask.cast_signed();
    let needed = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    let has_needed = mask & !IBV_QP_INIT_ATTR_CREATE_FLAGS == needed;
    let has_flags = mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && init.create_flags != 0;
    let has_cqs = !(init.send_cq.is_null() && init.recv_cq.is_null() && init.srq.is_null());
    let cap = &init.cap;
    let has_queues = cap.max_send_wr != 0 || cap.max_recv_wr != 0 || cap.max_recv_sge != 0;
    if !has_needed || has_flags || has_cqs || has_queues || QpType(init.qp_type) != QpType::RAW_PACKET {
        return Err(Failure::INVALID);
    }
    // SAFETY: the pointers are null or those of objects of the program.
    let (pd, table) =
        unsafe { (init.pd.cast::<PdObject>().as_ref(), init.rwq_ind_tbl.cast::<TableObject>().as_ref()) };
    let (pd, table, hash) = (required(pd)?, required(table)?, hash(&init.rx_hash_conf)?);
    Object::create(|address| {
        let qp = pd.inner.create_rss_qp(&RssInit { table: &table.inner, hash, user_data: address })?;
        // The kernel gives it no number.
        let base = bare(pd.abi.context, qp.handle(), 0, QpState::RESET, init.qp_type);
        let base = ibv_qp { qp_context: init.qp_context, pd: init.pd, ..base };
        Ok((head(base, None, pd.abi.parent()), AnyQp::Rss(Mutex::new(qp))))
    })
}
