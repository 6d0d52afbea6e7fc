//! Compares the declared structs and values with rdma-core's headers, by a C program that prints theirs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bareverbs::raw::uapi::abi::EnumInfo;
use bareverbs::raw::uapi::nldev::NodeType;
use bareverbs::raw::uapi::uverbs::types::{AccessFlags, GidType, PortCapFlags, QpType};
use bareverbs::raw::uapi::verbs_values::{
    AtomicCap, EventType, MigState, Mtu, PortState, QpAttrMask, QpState, Rate, SendFlags, SrqAttrMask,
    TmCapFlags, WcStatus,
};
use bareverbs::raw::uapi::write::types::{
    DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps, RawPacketCaps, WcOpcode, WrOpcode,
};

use super::{comp_cntr, cq, device, event, flow, memory, mlx5, path, qp, srq, values, work, wq};

/// A struct or union.
pub(super) struct Type {
    pub(super) c: &'static str,
    pub(super) size: usize,
    pub(super) align: usize,
    pub(super) fields: &'static [Field],
}

/// A field. One without a name in C stands for several.
pub(super) struct Field {
    pub(super) c: &'static str,
    pub(super) offset: usize,
    pub(super) size: usize,
}

const TYPES: [&[Type]; 12] = [
    comp_cntr::TYPES,
    cq::TYPES,
    device::TYPES,
    event::TYPES,
    flow::TYPES,
    memory::TYPES,
    mlx5::TYPES,
    path::TYPES,
    qp::TYPES,
    srq::TYPES,
    work::TYPES,
    wq::TYPES,
];

/// The enumerations of the header whose values are those of the kernel.
const ENUMERATIONS: [(&str, &EnumInfo); 23] = [
    ("ibv_access_flags", &AccessFlags::INFO),
    ("ibv_atomic_cap", &AtomicCap::INFO),
    ("ibv_device_cap_flags", &DeviceCapFlags::INFO),
    ("ibv_event_type", &EventType::INFO),
    ("ibv_gid_type", &GidType::INFO),
    ("ibv_mig_state", &MigState::INFO),
    ("ibv_mtu", &Mtu::INFO),
    ("ibv_node_type", &NodeType::INFO),
    ("ibv_odp_general_caps", &OdpGeneralCaps::INFO),
    ("ibv_odp_transport_cap_bits", &OdpTransportCaps::INFO),
    ("ibv_port_cap_flags", &PortCapFlags::INFO),
    ("ibv_port_state", &PortState::INFO),
    ("ibv_qp_attr_mask", &QpAttrMask::INFO),
    ("ibv_qp_state", &QpState::INFO),
    ("ibv_qp_type", &QpType::INFO),
    ("ibv_rate", &Rate::INFO),
    ("ibv_raw_packet_caps", &RawPacketCaps::INFO),
    ("ibv_send_flags", &SendFlags::INFO),
    ("ibv_srq_attr_mask", &SrqAttrMask::INFO),
    ("ibv_tm_cap_flags", &TmCapFlags::INFO),
    ("ibv_wc_opcode", &WcOpcode::INFO),
    ("ibv_wc_status", &WcStatus::INFO),
    ("ibv_wr_opcode", &WrOpcode::INFO),
];

/// Values of these that have another name in the kernel.
const RENAMED: [(&str, &str); 4] = [
    ("IBV_QPT_XRC_SEND", "IB_UVERBS_QPT_XRC_INI"),
    ("IBV_QPT_XRC_RECV", "IB_UVERBS_QPT_XRC_TGT"),
    ("IBV_RATE_MAX", "IB_RATE_PORT_CURRENT"),
    ("IBV_TM_CAP_RC", "IB_TM_CAP_RNDV_RC"),
];

/// Values of these that the kernel lacks: no device of `bareverbs` has them.
const OWN: [&str; 16] = [
    "IBV_DEVICE_INIT_TYPE",
    "IBV_NODE_UNKNOWN",
    "IBV_PORT_CAP_MASK2_SUP",
    "IBV_QPS_UNKNOWN",
    "IBV_RATE_1200_GBPS",
    "IBV_WC_DRIVER1",
    "IBV_WC_DRIVER2",
    "IBV_WC_DRIVER3",
    "IBV_WC_TM_ADD",
    "IBV_WC_TM_DEL",
    "IBV_WC_TM_ERR",
    "IBV_WC_TM_NO_TAG",
    "IBV_WC_TM_RECV",
    "IBV_WC_TM_RNDV_INCOMPLETE",
    "IBV_WC_TM_SYNC",
    "IBV_WR_DRIVER1",
];

/// The folder of `infiniband/verbs.h`; `None` if it is not cached.
fn headers() -> Option<PathBuf> {
    let headers = bareverbs_lab::RdmaCore::cached_headers();
    if headers.is_none() {
        eprintln!("skipped: no headers of rdma-core: `cargo xtask lab fetch --headers`");
    }
    headers
}

/// The output of a C program, by its first two columns.
fn run(folder: &Path, name: &str, statements: &str) -> BTreeMap<(String, String), (i64, i64)> {
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
         #include <infiniband/mlx5dv.h>\n\
         int main(void) {{\n{statements}}}\n"
    );
    let program = std::env::temp_dir().join(format!("bareverbs-dropin-{name}-{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(["-x", "c", "-w", "-O0", "-"]).arg("-isystem").arg(folder).arg("-o").arg(&program);
    let mut child = cc.stdin(Stdio::piped()).spawn().expect("a C compiler");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "the C program is not compiled");
    let output = Command::new(&program).output().unwrap();
    fs::remove_file(program).unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let rows = printed.lines().map(|line| match *line.split('\t').collect::<Vec<_>>() {
        [of, item, a, b] => ((of.to_owned(), item.to_owned()), (a.parse().unwrap(), b.parse().unwrap())),
        _ => panic!("unexpected line {line}"),
    });
    rows.collect()
}

fn rust(number: usize) -> i64 {
    number.try_into().unwrap()
}

#[test]
fn structs_have_the_layout_of_the_header() {
    let Some(folder) = headers() else { return };
    let all: Vec<_> = TYPES.into_iter().flatten().collect();
    let mut statements = String::new();
    for Type { c, fields, .. } in &all {
        let _ = writeln!(statements, "printf(\"{c}\\t\\t%zu\\t%zu\\n\", sizeof({c}), _Alignof({c}));");
        for Field { c: field, .. } in fields.iter().filter(|field| !field.c.is_empty()) {
            let _ = writeln!(
                statements,
                "printf(\"{c}\\t{field}\\t%zu\\t%zu\\n\", offsetof({c}, {field}), \
                 sizeof((({c} *)0)->{field}));"
            );
        }
    }
    let mut of_c = run(&folder, "layout", &statements);
    let mut differences = Vec::new();
    let mut compare = |of: &str, item: &str, rust: (i64, i64)| {
        let c = of_c.remove(&(of.to_owned(), item.to_owned())).expect("the program prints it");
        if c != rust {
            differences.push(format!("{of} {item}: {c:?} in C, {rust:?} in Rust"));
        }
    };
    for Type { c, size, align, fields } in all {
        compare(c, "", (rust(*size), rust(*align)));
        for field in fields.iter().filter(|field| !field.c.is_empty()) {
            compare(c, field.c, (rust(field.offset), rust(field.size)));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(of_c.is_empty(), "{of_c:?}");
}

/// The enumerators of an enumeration of the header.
fn enumerators(header: &str, tag: &str) -> Vec<String> {
    let (_, rest) = header.split_once(&format!("enum {tag} {{")).expect("the header has the enumeration");
    let (body, _) = rest.split_once("};").unwrap();
    let lines = body.lines().map(str::trim).filter(|line| line.starts_with("IBV_"));
    let name =
        |line: &str| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().map(str::to_owned);
    lines.filter_map(name).collect()
}

/// The kernel's value of an enumerator, whose name differs in its prefix.
fn of_kernel(info: &EnumInfo, name: &str) -> Option<i64> {
    let renamed = RENAMED.iter().find(|(own, _)| *own == name).map(|(_, kernel)| (*kernel).to_owned());
    let suffix = name.strip_prefix("IBV_")?;
    let mut names = vec![format!("IB_{suffix}"), format!("IB_UVERBS_{suffix}"), format!("RDMA_{suffix}")];
    names.extend(suffix.strip_prefix("NODE_").map(|node| format!("RDMA_NODE_IB_{node}")));
    names.extend(suffix.strip_prefix("PORT_").map(|port| format!("IB_UVERBS_PCF_{port}")));
    names.extend(renamed);
    let found = info.values.iter().find(|value| names.iter().any(|name| name == value.c))?;
    Some(found.value.cast_signed())
}

#[test]
fn values_are_those_of_the_header() {
    let Some(folder) = headers() else { return };
    let header = fs::read_to_string(folder.join("infiniband/verbs.h")).unwrap();
    let mut declared: BTreeMap<String, i64> = BTreeMap::new();
    let mut differences = Vec::new();
    for (tag, info) in ENUMERATIONS {
        let names = enumerators(&header, tag);
        assert!(!names.is_empty(), "{tag} has no enumerators");
        for name in names.into_iter().filter(|name| !OWN.contains(&name.as_str())) {
            match of_kernel(info, &name) {
                Some(value) => drop(declared.insert(name, value)),
                None => differences.push(format!("{tag}: no value of the kernel for {name}")),
            }
        }
    }
    declared.extend(values::VALUES.iter().map(|(name, value)| ((*name).to_owned(), *value)));
    let statements = declared.keys().fold(String::new(), |mut text, name| {
        let _ = writeln!(text, "printf(\"\\t{name}\\t%lld\\t0\\n\", (long long){name});");
        text
    });
    let of_c = run(&folder, "values", &statements);
    for (name, rust) in declared {
        let (c, _) = of_c[&(String::new(), name.clone())];
        if c != rust {
            differences.push(format!("{name}: {c:#x} in C, {rust:#x} in Rust"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
