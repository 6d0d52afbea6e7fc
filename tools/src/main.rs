//! `bareverbs`: RDMA from one static program.

#![no_main]

mod entry;
