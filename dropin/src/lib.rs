//! `libibverbs.so.1` and `libmlx5.so.1` over `bareverbs`: the C ABI of rdma-core 65, for programs that
//! are linked with them or load them.
//!
//! | module | contents |
//! |---|---|
//! | `abi` | the structs of `infiniband/verbs.h` and `mlx5dv.h` |
//! | `environment` | variables of the environment |
//! | `convention` | errno and return values; the macros that define functions for C |
//! | `object` | objects of C: a struct of the ABI and the value of `bareverbs` behind it |
//! | `lock` | the locks of queues |
//! | `device`, `context`, `open`, `port` | devices, open devices and their functions, ports |
//! | `data_path` | the functions that post and poll, for each provider |
//! | `record`, `channel`, `events` | descriptors of events, completion channels, asynchronous events |
//! | `memory`, `device_memory`, `dma_handle`, `window`, `cq`, `qp`, `srq`, `xrc` | objects, a file each |
//! | `wq`, `path`, `flow`, `flow_action`, `flow_counters`, `comp_cntr` | more objects |
//! | `driver_object` | objects of a driver's own methods |
//! | `firmware` | commands of the firmware of ConnectX devices |
//! | `domain` | thread domains, and what parent domains add to PDs |
//! | `import` | contexts and objects of another process |
//! | `post` | work requests of C as those of `bareverbs` |
//! | `text`, `rate`, `sysfs`, `kernel_structs`, `fork` | functions without an object |
//! | `mlx5` | the functions of `libmlx5.so.1` |
//! | `faults`, `hooks` | injected faults; functions that trace and fail calls |
//! | `private` | functions that refuse: what the provider libraries of rdma-core call |
//!
//! The states of objects, limits, workarounds and queues are those of `bareverbs`. This crate
//! converts arguments and results, and locks: C lets any thread use any object.
//!
//! `libibverbs.map` and `libmlx5.map` have the exported names with their versions, `left-out.txt` those
//! of rdma-core that are not exported.

// The names are those of C.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

mod abi;
mod channel;
mod comp_cntr;
mod context;
mod convention;
mod cq;
mod data_path;
mod device;
mod device_memory;
mod dma_handle;
mod domain;
mod driver_object;
mod environment;
mod events;
mod faults;
mod firmware;
mod flow;
mod flow_action;
mod flow_counters;
mod fork;
mod hooks;
mod import;
mod kernel_structs;
mod lock;
mod memory;
mod mlx5;
mod object;
mod open;
mod path;
mod port;
mod post;
mod private;
mod qp;
mod rate;
mod record;
mod srq;
mod sysfs;
#[cfg(test)]
mod tests;
mod text;
mod window;
mod wq;
mod xrc;
