//! The reverse comparison: declarations in one kernel's headers must exist in Rust.

use std::collections::{BTreeMap, BTreeSet};

use crate::compiler::Kernel;
use crate::declared::{Declared, root};
use crate::exempt::UNDECLARED;
use crate::header::{Leaf, Type, Value};

/// All items that Rust lacks: of the covered headers, and of structs and enumerations in other
/// headers that Rust declares in part. Empty if Rust declares all.
pub fn missing(kernel: &Kernel, declared: &Declared) -> Vec<String> {
    let mut missing = Vec::new();
    let mut miss = |item: &str, what: &str, file: &str| {
        if !UNDECLARED.cover(item) {
            missing.push(format!("{item}: {what} of <{file}> ({}), not declared in Rust", kernel.name));
        }
    };
    let names = Names::of(declared);
    for (c, ty) in &kernel.headers.structs {
        let Some(names) = names.members.get(c.as_str()) else {
            if crate::covered(&ty.file) {
                miss(c, "type", &ty.file);
            }
            continue;
        };
        let enter = |path: &str| names.iter().any(|name| below(name, path));
        for leaf in kernel.leaves(c, &enter) {
            if !is_declared(kernel, c, &leaf, names) {
                miss(&format!("{c}: {}", leaf.path), "member", &ty.file);
            }
        }
    }
    // Items of other headers count only if Rust declares a part of them.
    let whole = |value: &Value| crate::covered(&value.file) || names.tags.contains(value.tag.as_str());
    for (name, value) in kernel.headers.values.iter().filter(|(_, value)| whole(value)) {
        if !names.values.contains(name.as_str()) {
            miss(name, if value.group.is_some() { "enumerator" } else { "macro" }, &value.file);
        }
    }
    for (name, file) in kernel.headers.functions.iter().filter(|(_, file)| crate::covered(file)) {
        miss(name, "macro with parameters", file);
    }
    missing
}

/// The C names that Rust declares.
struct Names<'a> {
    /// Designators by struct.
    members: BTreeMap<&'a str, BTreeSet<String>>,
    values: BTreeSet<&'a str>,
    tags: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(declared: &Declared) -> Names<'a> {
        let mut members: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for info in &declared.structs {
            let (c, prefix) = root(info.c);
            let names = members.entry(c).or_default();
            for field in info.fields.iter().filter(|field| !field.c.is_empty()) {
                names.insert(if prefix.is_empty() {
                    field.c.into()
                } else {
                    format!("{prefix}.{}", field.c)
                });
            }
        }
        Names {
            members,
            values: declared.values.iter().map(|value| value.c).collect(),
            tags: declared.values.iter().map(|value| value.tag).filter(|tag| !tag.is_empty()).collect(),
        }
    }
}

/// Whether a designator is within the member of another one.
fn below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether Rust declares the member, a union of the same length that contains the member, or the
/// same bytes under their other name in a union of a struct and copies of its members.
fn is_declared(kernel: &Kernel, c: &str, leaf: &Leaf, names: &BTreeSet<String>) -> bool {
    let span = |path: &str| kernel.spans.get(&(c.to_string(), path.to_string()));
    // Whether the struct member `outer` has a member with the same name and position as `path`.
    let repeats = |outer: &str, path: &str| {
        let (Some(outer_span), Some(whole)) = (span(outer), span(path)) else { return false };
        let Some(Type::Tagged(ty)) = kernel.member(c, outer).map(|member| member.ty) else { return false };
        let part = kernel.spans.get(&(ty, path.to_string()));
        part.is_some_and(|part| part.size == whole.size && part.offset + outer_span.offset == whole.offset)
    };
    let spelt_out = || match &leaf.member.ty {
        Type::Tagged(ty) => {
            let mut parts = kernel.leaves(ty, &|_| false);
            let bytes =
                |part: &Leaf| kernel.spans.get(&(ty.clone(), part.path.clone())).map_or(0, |span| span.size);
            parts.retain(|part| bytes(part) > 0);
            !parts.is_empty()
                && parts.iter().all(|part| names.contains(&part.path) && repeats(&leaf.path, &part.path))
        }
        _ => false,
    };
    let named = names.iter().any(|name| {
        *name == leaf.path
            || below(&leaf.path, name) && span(name).is_some() && span(name) == span(&leaf.path)
            || repeats(name, &leaf.path)
    });
    named || spelt_out()
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::abi::{FieldInfo, FieldKind, StructInfo};

    use super::*;
    use crate::declared::Value;
    use crate::fixture::{FIELDS, STRUCT, VALUE, field, kernel};

    /// The missing items if Rust declares all values, and the struct with these fields.
    fn lacking(fields: Vec<FieldInfo>) -> Vec<String> {
        let structs = vec![StructInfo { fields: fields.leak(), ..STRUCT }];
        let names = ["A_VALUE", "A_FIRST", "A_SECOND", "B_FIRST"];
        let values = names.map(|c| Value { c, ..VALUE }).to_vec();
        missing(&kernel(), &Declared { structs, values, ..Declared::default() })
    }

    #[test]
    fn one_field_may_cover_a_union() {
        assert_eq!(lacking(FIELDS.to_vec()), [""; 0]);
    }

    #[test]
    fn undeclared_member_is_reported() {
        let mut fields = FIELDS.to_vec();
        fields.remove(1);
        let expected = ["struct a: y: member of <rdma/rdma_user_rxe.h> (6.12), not declared in Rust"];
        assert_eq!(lacking(fields), expected);
    }

    #[test]
    fn uncovered_union_member_is_reported() {
        let mut fields = FIELDS.to_vec();
        fields[4] = field("u.p", 16, 8, FieldKind::Unsigned(8));
        let expected = ["struct a: u.q: member of <rdma/rdma_user_rxe.h> (6.12), not declared in Rust"];
        assert_eq!(lacking(fields), expected);
    }

    #[test]
    fn undeclared_items_are_reported() {
        let items = ["struct a: type", "A_FIRST: enumerator", "A_SECOND: enumerator", "A_VALUE: macro"];
        let found = missing(&kernel(), &Declared::default());
        for item in items {
            let line = format!("{item} of <rdma/rdma_user_rxe.h> (6.12), not declared in Rust");
            assert!(found.contains(&line), "{line} is not among {found:?}");
        }
    }
}
