//! A small fake kernel for the tests of the comparisons.

use std::collections::BTreeMap;

use bareverbs_uapi::abi::{FieldInfo, FieldKind, Since, StructInfo};

use crate::compiler::{Kernel, Shape, Span};
use crate::declared::Value;
use crate::header::Headers;

const TEXT: &str = "\
# 1 \"/include/rdma/rdma_user_rxe.h\"
#define A_VALUE 7
struct a { __u32 x; __be32 y; __u8 z[4]; union { __u64 p; __s64 q; } u; };
enum a_attrs { A_FIRST, A_SECOND };
enum b_attrs { B_FIRST };
";

const BYTES: FieldKind = FieldKind::Array(&FieldKind::Unsigned(1), 4);

/// The fields of [`STRUCT`].
pub(crate) const FIELDS: &[FieldInfo] = &[
    field("x", 0, 4, FieldKind::Unsigned(4)),
    field("y", 4, 4, FieldKind::BigEndian(4)),
    field("z", 8, 4, BYTES),
    field("", 12, 4, BYTES),
    field("u", 16, 8, FieldKind::Unsigned(8)),
];

/// `struct a` of the fake kernel.
pub(crate) const STRUCT: StructInfo = StructInfo {
    rust: "A",
    c: "struct a",
    header: "rdma/rdma_user_rxe.h",
    since: Since::V6_1,
    size: 24,
    align: 8,
    fields: FIELDS,
};

/// `A_VALUE` of the fake kernel.
pub(crate) const VALUE: Value = Value {
    c: "A_VALUE",
    rust: "VALUE",
    owner: "a",
    value: 7,
    header: Some("rdma/rdma_user_rxe.h"),
    tag: "",
    since: Since::V6_1,
};

/// A field first present in 6.1.
pub(crate) const fn field(c: &'static str, offset: usize, size: usize, kind: FieldKind) -> FieldInfo {
    FieldInfo { rust: "field", c, offset, size, since: Since::V6_1, kind }
}

/// A fake kernel: one header with one struct, one macro and two enumerations.
pub(crate) fn kernel() -> Kernel {
    let spans = [("x", 0, 4), ("y", 4, 4), ("z", 8, 4), ("u", 16, 8), ("u.p", 16, 8), ("u.q", 16, 8)];
    let span =
        |(path, offset, size): (&str, u64, u64)| (("struct a".into(), path.into()), Span { offset, size });
    let values = [("A_VALUE", 7), ("A_FIRST", 0), ("A_SECOND", 1), ("B_FIRST", 0)];
    Kernel {
        name: "6.12",
        since: Since::V6_12,
        headers: Headers::parse(TEXT, &["/include"]).expect("plain C"),
        shapes: BTreeMap::from([("struct a".into(), Shape { size: 24, align: 8 })]),
        spans: spans.into_iter().map(span).collect(),
        values: values.into_iter().map(|(name, value)| (name.into(), value)).collect(),
    }
}
