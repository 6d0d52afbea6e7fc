//! QPs that spread frames over work queues (RSS). They have no queues and no states.

use std::slice;
use std::sync::Mutex;

use bareverbs::qp::{QpCap, QpState, QpType};
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

/// Whether the attributes are those of a raw packet QP of an indirection table, without CQs, queues or
/// flags.
fn is_valid(init: &ibv_qp_init_attr_ex) -> bool {
    let mask = init.comp_mask.cast_signed();
    let needed = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    let has_needed = mask & !IBV_QP_INIT_ATTR_CREATE_FLAGS == needed;
    let has_flags = mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && init.create_flags != 0;
    let has_cqs = !(init.send_cq.is_null() && init.recv_cq.is_null() && init.srq.is_null());
    let cap = &init.cap;
    let has_queues = cap.max_send_wr != 0 || cap.max_recv_wr != 0 || cap.max_recv_sge != 0;
    let is_raw = QpType(init.qp_type) == QpType::RAW_PACKET;
    has_needed && !has_flags && !has_cqs && !has_queues && is_raw
}

/// Creates an RSS QP.
pub(super) fn create(init: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Failure> {
    if !is_valid(init) {
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
        Ok((head(base, QpCap::default(), None, pd.abi.parent()), AnyQp::Rss(Mutex::new(qp))))
    })
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::ptr;

    use super::*;

    #[test]
    fn hash_has_the_fields_and_the_key_of_c() {
        let mut key: [u8; TOEPLITZ_KEY] = std::array::from_fn(|at| at as u8);
        let fields = HashFields::SRC_IPV4 | HashFields::DST_IPV4;
        let mut conf = ibv_rx_hash_conf {
            rx_hash_function: HashFunctions::TOEPLITZ.bits(),
            rx_hash_key_len: TOEPLITZ_KEY as u8,
            rx_hash_key: key.as_mut_ptr(),
            rx_hash_fields_mask: fields.bits(),
        };
        assert_eq!(hash(&conf), Ok(RssHash { fields, key }));
        conf.rx_hash_key_len -= 1;
        assert_eq!(hash(&conf), Err(Failure::INVALID));
        (conf.rx_hash_key_len, conf.rx_hash_key) = (TOEPLITZ_KEY as u8, ptr::null_mut());
        assert_eq!(hash(&conf), Err(Failure::INVALID));
        conf.rx_hash_function = 0;
        assert_eq!(hash(&conf), Err(Failure::UNSUPPORTED));
    }

    #[test]
    fn rss_qp_has_no_queues() {
        let valid = || -> ibv_qp_init_attr_ex {
            // SAFETY: the structs of the ABI have numbers and pointers only.
            let mut init: ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
            let mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
            (init.qp_type, init.comp_mask) = (QpType::RAW_PACKET.0, mask.cast_unsigned());
            init
        };
        assert!(is_valid(&valid()));
        let some = ptr::without_provenance_mut(8);
        let changes: [fn(&mut ibv_qp_init_attr_ex, *mut _); 9] = [
            |init, some| init.send_cq = some,
            |init, some| init.recv_cq = some,
            |init, _| init.srq = ptr::without_provenance_mut(8),
            |init, _| init.cap.max_send_wr = 1,
            |init, _| init.cap.max_recv_wr = 1,
            |init, _| init.cap.max_recv_sge = 1,
            |init, _| init.qp_type = QpType::UD.0,
            |init, _| init.comp_mask |= 1 << 7,
            |init, _| {
                init.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS.cast_unsigned();
                init.create_flags = 1;
            },
        ];
        for (at, change) in changes.iter().enumerate() {
            let mut init = valid();
            change(&mut init, some);
            assert!(!is_valid(&init), "change {at}");
        }
    }
}
