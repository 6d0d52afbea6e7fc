//! Records of a peer of `bareverbs cmtime`.
//!
//! A record that is decoded, encoded and decoded again is the same.

use bareverbs_tools::testing::{PEER_LEN, recode_peer};

pub(crate) fn run(data: &[u8]) {
    let (records, _) = data.as_chunks::<PEER_LEN>();
    for record in records {
        if let Ok(encoded) = recode_peer(record) {
            assert_eq!(recode_peer(&encoded), Ok(encoded));
        }
    }
}
