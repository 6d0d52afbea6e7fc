//! Tests of verbs on a real kernel; the programs are in `tests`, what they share in
//! [`bareverbs_test_support`].

pub use bareverbs_test_support::*;
