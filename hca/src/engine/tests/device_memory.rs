//! Keys over device memory (MEMIC).

use super::qp_pair::{DATA, Pair, data, remote};
use crate::engine::mkey::{ANY_QP, AccessMode, Mkey};
use crate::engine::packet::Transport;
use crate::engine::wqe::opcode;
use crate::engine::{EngineError, State};
use crate::memory::DEVICE_MEMORY_START;

const RIGHTS: u8 = 0x1f;

fn key(start: u64, length: u64) -> Mkey {
    Mkey {
        variant: 5,
        free: false,
        mode: AccessMode::Memic,
        access: RIGHTS,
        pd: 1,
        qp: ANY_QP,
        start,
        length,
        unbounded: false,
        log_page: 0,
        remote_invalidate: false,
        relaxed_ordering_write: false,
        relaxed_ordering_read: false,
        umr: false,
        capacity: 0,
        translation: Vec::new(),
    }
}

#[test]
fn device_memory_access_is_relative_to_key_start() {
    let mut pair = Pair::new(Transport::Rc);
    let at =
        pair.engine.memory().device_memory_mut().allocate((DEVICE_MEMORY_START, 0x1000), 128, 64).unwrap();
    let on_device = pair.engine.create_mkey(key(at + 64, 64)).unwrap() << 8 | 5;
    let key = pair.key;
    pair.write(DATA, &7u64.to_le_bytes());
    pair.post(0, opcode::WRITE, 0, &[remote(on_device, 8), data(key, DATA, 8)].concat());
    let operands = [5u64.to_be_bytes(), 0u64.to_be_bytes()].concat();
    pair.post(0, opcode::FETCH_ADD, 0, &[remote(on_device, 8), operands, data(key, DATA + 8, 8)].concat());
    pair.post(0, opcode::READ, 0, &[remote(on_device, 8), data(key, DATA + 16, 8)].concat());
    pair.settle(|packets| packets);
    assert_eq!(pair.poll().iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), [0; 3]);
    assert_eq!(pair.read(DATA + 8, 16), [7u64.to_le_bytes(), 12u64.to_le_bytes()].concat());
    let mut bytes = [0; 8];
    pair.engine.memory().device_memory().read(at + 72, &mut bytes).unwrap();
    assert_eq!(bytes, 12u64.to_le_bytes());
}

#[test]
fn device_memory_key_requires_live_allocation() {
    let mut pair = Pair::new(Transport::Rc);
    assert_eq!(pair.engine.create_mkey(key(DEVICE_MEMORY_START, 64)), Err(EngineError::Missing));
    let at =
        pair.engine.memory().device_memory_mut().allocate((DEVICE_MEMORY_START, 0x1000), 64, 64).unwrap();
    assert_eq!(pair.engine.create_mkey(key(at, 65)), Err(EngineError::Missing));
    let on_device = pair.engine.create_mkey(key(at, 64)).unwrap() << 8 | 5;
    assert!(pair.engine.uses_device_memory(at, 64));
    assert!(pair.engine.memory().device_memory_mut().free(at, 64));
    let key = pair.key;
    pair.post(0, opcode::WRITE, 0, &[remote(on_device, 0), data(key, DATA, 8)].concat());
    pair.settle(|packets| packets);
    assert_eq!(pair.engine.qp_attributes(pair.qps[0]).unwrap().0, State::Error);
}
