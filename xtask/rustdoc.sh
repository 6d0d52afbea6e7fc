#!/bin/sh
# rustdoc that checks the error codes of `compile_fail` examples, which a stable one only does with
# this. Cargo gets it as RUSTDOC, so nothing else is built differently.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
