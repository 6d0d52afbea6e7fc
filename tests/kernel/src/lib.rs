//! Tests of verbs on a real kernel. The test programs are in `tests`. Their shared code is in
//! [`bareverbs_test_support`].

pub use bareverbs_test_support::*;
