//! Structs, enumerations and flags of the ABI as types of syzlang.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use bareverbs_uapi::abi::{EnumInfo, FieldInfo, FieldKind, StructInfo};
use bareverbs_uapi::registry::DRIVERS;

/// Whether the kernel reads or writes a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    In,
    Out,
}

impl Direction {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// The types that calls need.
#[derive(Default)]
pub(super) struct Types {
    structs: BTreeMap<String, String>,
    /// Names and lists of values.
    flags: BTreeMap<String, String>,
    /// Resources that responses create.
    resources: BTreeSet<String>,
}

/// `int8` to `int64`.
pub(super) fn integer(size: usize) -> String {
    format!("int{}", 8 * size.clamp(1, 8))
}

/// The resource that a field with a handle names.
fn resource_of(owner: &str, field: &str) -> Option<&'static str> {
    Some(match field {
        "fd" if owner == "CreateCompChannelResp" => "fd_uverbs_comp_channel",
        "pd_handle" => "uverbs_pd",
        "cq_handle" | "send_cq_handle" | "recv_cq_handle" => "uverbs_cq",
        "qp_handle" => "uverbs_qp",
        "srq_handle" => "uverbs_srq",
        "ah_handle" => "uverbs_ah",
        "mr_handle" => "uverbs_mr",
        "mw_handle" => "uverbs_mw",
        "xrcd_handle" => "uverbs_xrcd",
        "wq_handle" | "wq_handles" => "uverbs_wq",
        "ind_tbl_handle" | "rwq_ind_tbl_handle" => "uverbs_rwq_ind_tbl",
        "flow_handle" => "uverbs_flow",
        "comp_channel" => "fd_uverbs_comp_channel",
        "async_fd" => "fd_uverbs_async_event",
        _ => return None,
    })
}

/// Fields with an address of memory of the process.
const ADDRESSES: [&str; 7] =
    ["start", "addr", "hca_va", "buf_addr", "db_addr", "sq_buf_addr", "counters_data"];

/// The end of a C name: `struct ib_uverbs_qp_attr` → `ib_uverbs_qp_attr`. Other forms have the Rust
/// name.
fn name_of(info: &StructInfo) -> String {
    match info.c.strip_prefix("struct ") {
        Some(tag) if !tag.contains(' ') => tag.to_owned(),
        _ => format!("uverbs_{}", super::snake(info.rust)),
    }
}

/// The prefix of an enumeration: that of the driver, or of verbs.
fn owner(info: &EnumInfo) -> String {
    let c = info.values.first().map_or("", |value| value.c);
    let driver = DRIVERS.into_iter().find(|(id, _)| id.name().is_some_and(|name| c.starts_with(name)));
    driver.map_or_else(|| "uverbs".to_owned(), |(id, _)| super::lower_name(id))
}

impl Types {
    /// The resources that responses create.
    pub(super) fn resources(&self) -> impl Iterator<Item = &String> {
        self.resources.iter()
    }

    /// The definitions of flags.
    pub(super) fn flags(&self) -> String {
        self.flags.iter().map(|(name, values)| format!("{name} = {values}\n")).collect()
    }

    /// The definitions of structs.
    pub(super) fn structs(&self) -> String {
        self.structs.values().map(String::as_str).collect()
    }

    /// A number with named values.
    pub(super) fn named(&mut self, info: &'static EnumInfo, size: usize) -> String {
        if info.values.is_empty() {
            return integer(size);
        }
        let mut name = format!("{}_{}", owner(info), super::snake(info.rust));
        // Values are sign-extended: those of narrow fields have the width of the enumeration.
        let mask = u64::MAX >> (64 - 8 * info.size.min(8));
        let mut values: Vec<u64> = info.values.iter().map(|value| value.value & mask).collect();
        values.sort_unstable();
        values.dedup();
        let fits = |value: &u64| size >= 8 || *value >> (8 * size) == 0;
        if !values.iter().all(fits) {
            return integer(size);
        }
        let list: Vec<String> = values.iter().map(|value| format!("{value:#x}")).collect();
        let list = list.join(", ");
        // Enumerations of the core and of write commands may have the same name.
        while self.flags.get(&name).is_some_and(|known| *known != list) {
            name.push_str("_of_command");
        }
        self.flags.insert(name.clone(), list);
        format!("flags[{name}, {}]", integer(size))
    }

    /// A struct. Its definition is added. Structs of outputs have names of their own, since their
    /// handles are resources that the call creates.
    pub(super) fn structure(&mut self, info: &'static StructInfo, direction: Direction) -> String {
        let name = name_of(info);
        if !self.structs.contains_key(&name) {
            // The name is known before the fields, which may have structs of their own.
            self.structs.insert(name.clone(), String::new());
            let mut text = format!("{name} {{\n");
            // The driver's part is an attribute of its own.
            for field in info.fields.iter().filter(|field| field.rust != "driver_data") {
                let kind = self.field(info.rust, field, direction);
                let _ = writeln!(text, "\t{}\t{kind}", field.rust);
            }
            text.push('}');
            let natural = info.fields.iter().map(|field| align_of(field.kind)).max().unwrap_or(1);
            if info.align > natural {
                let _ = write!(text, " [align[{}]]", info.align);
            }
            text.push_str("\n\n");
            self.structs.insert(name.clone(), text);
        }
        name
    }

    fn field(&mut self, owner: &str, field: &FieldInfo, direction: Direction) -> String {
        if let Some(resource) = resource_of(owner, field.rust) {
            if direction == Direction::Out {
                self.resources.insert(resource.to_owned());
            }
            return match field.kind {
                FieldKind::Array(..) => format!("array[{resource}, 1:4]"),
                _ => resource.to_owned(),
            };
        }
        match field.kind {
            FieldKind::Unsigned(8) if ADDRESSES.contains(&field.rust) && direction == Direction::In => {
                "vma64".to_owned()
            }
            // The ioctl ignores it.
            FieldKind::Unsigned(8) if field.rust == "response" => "const[0x0, int64]".to_owned(),
            _ if field.rust.starts_with("reserved") && direction == Direction::In => zero(field.kind),
            kind => self.kind(kind, field.size, direction),
        }
    }

    /// A value of a kind in that many bytes.
    pub(super) fn kind(&mut self, kind: FieldKind, size: usize, direction: Direction) -> String {
        match kind {
            FieldKind::Unsigned(size) | FieldKind::Signed(size) => integer(size),
            FieldKind::BigEndian(size) => format!("{}be", integer(size)),
            FieldKind::Named(info) => self.named(info, size),
            FieldKind::Struct(info) => self.structure(info, direction),
            FieldKind::Array(element, count) => {
                let (inner, _) = self.element(*element, direction);
                match count {
                    0 => format!("array[{inner}]"),
                    count => format!("array[{inner}, {count}]"),
                }
            }
        }
    }

    /// An element of an array, and its size.
    pub(super) fn element(&mut self, kind: FieldKind, direction: Direction) -> (String, usize) {
        let size = size_of(kind);
        (self.kind(kind, size, direction), size)
    }
}

fn zero(kind: FieldKind) -> String {
    match kind {
        FieldKind::Array(element, count) => format!("array[{}, {count}]", zero(*element)),
        kind => format!("const[0x0, {}]", integer(size_of(kind))),
    }
}

fn size_of(kind: FieldKind) -> usize {
    match kind {
        FieldKind::Unsigned(size) | FieldKind::Signed(size) | FieldKind::BigEndian(size) => size,
        FieldKind::Named(info) => info.size,
        FieldKind::Struct(info) => info.size,
        FieldKind::Array(element, count) => size_of(*element) * count,
    }
}

fn align_of(kind: FieldKind) -> usize {
    match kind {
        FieldKind::Struct(info) => info.align,
        FieldKind::Array(element, _) => align_of(*element),
        kind => size_of(kind),
    }
}
