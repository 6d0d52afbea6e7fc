//! Compares the Rust declarations with one kernel's headers.

use bareverbs_uapi::abi::{FieldInfo, FieldKind, Since, StructInfo};

use crate::compiler::{Kernel, Span};
use crate::declared::{Declared, Value, root};
use crate::exempt;
use crate::header::{Array, Member, Type};

/// All differences, as sentences. Empty without a difference.
pub fn compare(kernel: &Kernel, declared: &Declared) -> Vec<String> {
    let mut comparison = Comparison { kernel, differences: Vec::new() };
    for info in &declared.structs {
        comparison.structure(info);
    }
    for value in &declared.values {
        comparison.value(value);
    }
    comparison.differences
}

struct Comparison<'a> {
    kernel: &'a Kernel,
    differences: Vec<String>,
}

impl Comparison<'_> {
    fn differ(&mut self, difference: String) {
        self.differences.push(difference);
    }

    /// Checks that the item exists exactly in kernels since `since`. Returns `true` if the item can
    /// be compared.
    fn presence(&mut self, item: &str, since: Since, found: bool) -> bool {
        let expected = since <= self.kernel.since;
        if expected != found {
            let presence = if found { "already" } else { "not" };
            let (kernel, since) = (self.kernel.name, since.name());
            self.differ(format!("{item}: {presence} in C ({kernel}), though Rust declares it since {since}"));
        }
        expected && found
    }

    fn number(&mut self, item: &str, what: &str, c: u64, rust: usize) {
        if c != rust as u64 {
            self.differ(format!("{item}: {what} {c} in C ({}), {rust} in Rust", self.kernel.name));
        }
    }

    fn structure(&mut self, info: &StructInfo) {
        let kernel = self.kernel;
        if !self.presence(info.c, info.since, kernel.has_type(info.c)) {
            return;
        }
        let Some(shape) = kernel.shapes.get(info.c) else {
            return self.differ(format!("{}: not measured in C ({})", info.c, kernel.name));
        };
        if let Some(found) =
            kernel.headers.structs.get(root(info.c).0).filter(|found| found.file != info.header)
        {
            self.differ(format!(
                "{}: in <{}> ({}), Rust says <{}>",
                info.c, found.file, kernel.name, info.header
            ));
        }
        self.number(info.c, "alignment", shape.align, info.align);
        let (full, short) = (info.size as u64, short(info, kernel, shape.align));
        if shape.size != full && Some(shape.size) != short {
            let short =
                short.map_or(String::new(), |short| format!(" ({short} without the members it lacks)"));
            self.differ(format!(
                "{}: size {} in C ({}), {full} in Rust{short}",
                info.c, shape.size, kernel.name
            ));
        }
        for field in info.fields {
            self.field(info, field);
        }
    }

    fn field(&mut self, info: &StructInfo, field: &FieldInfo) {
        let kernel = self.kernel;
        let item = format!("{}: field {}", info.c, if field.c.is_empty() { field.rust } else { field.c });
        if field.c.is_empty() {
            return self.padding(info, field, &item);
        }
        let member = kernel.member(info.c, field.c);
        if !self.presence(&item, field.since.max(info.since), member.is_some()) {
            return;
        }
        let span = kernel.spans.get(&(info.c.to_string(), field.c.to_string()));
        let (Some(member), Some(span)) = (member, span) else {
            return self.differ(format!("{item}: not measured in C ({})", kernel.name));
        };
        self.number(&item, "offset", span.offset, field.offset);
        if span.size != field.size as u64 && Some(span.size) != size_before_split(info, field, kernel) {
            self.number(&item, "size", span.size, field.size);
        }
        if let Err(difference) = kinds(&member, &field.kind) {
            self.differ(format!("{item}: {difference} ({})", kernel.name));
        }
    }

    /// Padding must not overlap a member.
    fn padding(&mut self, info: &StructInfo, field: &FieldInfo, item: &str) {
        let padding = Span { offset: field.offset as u64, size: field.size as u64 };
        for leaf in self.kernel.leaves(info.c, &|_| false) {
            let key = (info.c.to_string(), leaf.path);
            if self.kernel.spans.get(&key).is_some_and(|span| overlap(*span, padding)) {
                self.differ(format!(
                    "{item}: is the member {} in C ({}), padding in Rust",
                    key.1, self.kernel.name
                ));
            }
        }
    }

    fn value(&mut self, value: &Value) {
        let kernel = self.kernel;
        let item = format!("{} ({}::{})", value.c, value.owner, value.rust);
        let found = kernel.headers.values.get(value.c);
        if !self.presence(&item, value.since, found.is_some()) {
            return;
        }
        if let Some(found) = found {
            if let Some(header) = value.header.filter(|header| *header != found.file) {
                self.differ(format!("{item}: in <{}> ({}), Rust says <{header}>", found.file, kernel.name));
            }
            if !value.tag.is_empty() && found.tag != value.tag && !exempt::MISPLACED_VALUES.cover(value.c) {
                let tag = if found.tag.is_empty() { "no tagged enumeration" } else { &found.tag };
                self.differ(format!("{item}: of {tag} in C ({}), of {} in Rust", kernel.name, value.tag));
            }
        }
        match kernel.values.get(value.c) {
            Some(&c) if c == value.value => {}
            Some(c) => {
                self.differ(format!("{item}: {c:#x} in C ({}), {:#x} in Rust", kernel.name, value.value))
            }
            None => self.differ(format!("{item}: not measured in C ({})", kernel.name)),
        }
    }
}

/// The size of a struct in kernels without its newest members, if it has such members.
fn short(info: &StructInfo, kernel: &Kernel, align: u64) -> Option<u64> {
    let (old, new): (Vec<&FieldInfo>, Vec<&FieldInfo>) =
        info.fields.iter().partition(|field| field.since <= kernel.since);
    let end = old
        .iter()
        .filter(|field| !field.c.is_empty())
        .map(|field| (field.offset + field.size) as u64)
        .max()?;
    (!new.is_empty()).then(|| end.next_multiple_of(align))
}

/// The size of a reserved member in a kernel that lacks the members later split off its end.
fn size_before_split(info: &StructInfo, field: &FieldInfo, kernel: &Kernel) -> Option<u64> {
    let after = info.fields.iter().skip_while(|other| other.rust != field.rust).skip(1);
    let newer: Vec<_> = after.take_while(|other| other.since > kernel.since).collect();
    let end = newer.last().map(|last| last.offset + last.size)?;
    field.c.contains("reserved").then(|| (end - field.offset) as u64)
}

fn overlap(a: Span, b: Span) -> bool {
    a.offset < b.offset + b.size && b.offset < a.offset + a.size
}

/// Whether a Rust field has the type of its C member: sign, byte order, element, nested struct.
fn kinds(member: &Member, kind: &FieldKind) -> Result<(), String> {
    let scalar = match (&member.ty, kind) {
        (Type::Tagged(c), FieldKind::Struct(info)) if info.c == c => return Ok(()),
        (Type::Tagged(c), FieldKind::Struct(info)) => {
            return Err(format!("a {c} in C, a {} in Rust", info.c));
        }
        (Type::Tagged(_), FieldKind::Array(element, _)) => {
            return match (member.array, *element) {
                (Array::No, _) => Ok(()),
                (_, element) => kinds(&Member { array: Array::No, ..member.clone() }, element),
            };
        }
        (Type::Tagged(c), _) => return Err(format!("a {c} in C, a number in Rust")),
        (Type::Inline(_), _) => return Ok(()),
        (Type::Scalar(name), _) => name.as_str(),
    };
    match (member.array, kind) {
        (Array::No, FieldKind::Array(FieldKind::Unsigned(1), _)) => Ok(()),
        (Array::No, FieldKind::Array(..)) => Err(format!("one {scalar} in C, an array in Rust")),
        (Array::No, _) => number(scalar, kind),
        (_, FieldKind::Array(element, _)) => {
            let mut element = *element;
            while let FieldKind::Array(inner, _) = element {
                element = inner;
            }
            number(scalar, element)
        }
        (_, _) => Err(format!("an array of {scalar} in C, one number in Rust")),
    }
}

fn number(scalar: &str, kind: &FieldKind) -> Result<(), String> {
    let c = match scalar {
        "char" => return Ok(()),
        name if name.starts_with("__be") => "of network byte order",
        name if name.starts_with("__s") || matches!(name, "int" | "short" | "long") => "signed",
        name if name.starts_with("__u")
            || name.starts_with("__aligned_u")
            || name.starts_with("unsigned") =>
        {
            "unsigned"
        }
        "__kernel_sa_family_t" => "unsigned",
        name => return Err(format!("of a type that the proof does not know ({name})")),
    };
    let rust = match kind {
        FieldKind::Unsigned(_) => "unsigned",
        FieldKind::Signed(_) => "signed",
        FieldKind::BigEndian(_) => "of network byte order",
        FieldKind::Named(_) if c != "of network byte order" => return Ok(()),
        FieldKind::Named(_) => "a named value",
        FieldKind::Struct(_) => "a struct",
        FieldKind::Array(..) => "an array",
    };
    if c == rust { Ok(()) } else { Err(format!("{c} in C, {rust} in Rust")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::Shape;
    use crate::fixture::{FIELDS, STRUCT, VALUE, field, kernel};

    fn differences(info: StructInfo, value: Value) -> Vec<String> {
        compare(&kernel(), &Declared { structs: vec![info], values: vec![value], ..Declared::default() })
    }

    /// The differences of the struct with one field altered.
    fn altered(index: usize, alter: impl FnOnce(&mut FieldInfo)) -> Vec<String> {
        let mut fields = FIELDS.to_vec();
        alter(&mut fields[index]);
        differences(StructInfo { fields: fields.leak(), ..STRUCT }, VALUE)
    }

    #[test]
    fn equal_declarations_are_not_reported() {
        assert_eq!(differences(STRUCT, VALUE), [""; 0]);
    }

    #[test]
    fn wrong_offset_is_reported() {
        assert_eq!(
            altered(1, |field| field.offset = 8),
            ["struct a: field y: offset 4 in C (6.12), 8 in Rust"]
        );
    }

    #[test]
    fn wrong_width_is_reported() {
        assert_eq!(altered(4, |field| field.size = 4), ["struct a: field u: size 8 in C (6.12), 4 in Rust"]);
    }

    #[test]
    fn wrong_name_is_reported() {
        assert_eq!(
            altered(0, |field| field.c = "w"),
            ["struct a: field w: not in C (6.12), though Rust declares it since 6.1"]
        );
    }

    #[test]
    fn wrong_byte_order_or_sign_is_reported() {
        assert_eq!(
            altered(1, |field| field.kind = FieldKind::Unsigned(4)),
            ["struct a: field y: of network byte order in C, unsigned in Rust (6.12)"]
        );
        assert_eq!(
            altered(0, |field| field.kind = FieldKind::Signed(4)),
            ["struct a: field x: unsigned in C, signed in Rust (6.12)"]
        );
    }

    #[test]
    fn padding_over_a_member_is_reported() {
        assert_eq!(
            altered(2, |field| field.c = ""),
            ["struct a: field field: is the member z in C (6.12), padding in Rust"]
        );
    }

    #[test]
    fn field_with_too_new_since_is_reported() {
        let found = altered(0, |field| field.since = Since::V7_2);
        assert_eq!(found, ["struct a: field x: already in C (6.12), though Rust declares it since 7.2"]);
    }

    #[test]
    fn wrong_size_or_alignment_is_reported() {
        assert_eq!(
            differences(StructInfo { size: 32, align: 4, ..STRUCT }, VALUE),
            ["struct a: alignment 8 in C (6.12), 4 in Rust", "struct a: size 24 in C (6.12), 32 in Rust"]
        );
    }

    #[test]
    fn struct_may_lack_newer_members_in_older_kernel() {
        let grown = |offset| {
            let mut fields = FIELDS.to_vec();
            fields.push(FieldInfo { since: Since::V7_2, ..field("new", offset, 8, FieldKind::Unsigned(8)) });
            StructInfo { size: offset + 8, fields: fields.leak(), ..STRUCT }
        };
        assert_eq!(differences(grown(24), VALUE), [""; 0]);
        let mut kernel = kernel();
        kernel.shapes.insert("struct a".into(), Shape { size: 20, align: 8 });
        let declared = Declared { structs: vec![grown(24)], ..Declared::default() };
        assert_eq!(
            compare(&kernel, &declared),
            ["struct a: size 20 in C (6.12), 32 in Rust (24 without the members it lacks)"]
        );
    }

    #[test]
    fn wrong_value_is_reported() {
        assert_eq!(
            differences(STRUCT, Value { value: 8, ..VALUE }),
            ["A_VALUE (a::VALUE): 0x7 in C (6.12), 0x8 in Rust"]
        );
    }

    #[test]
    fn value_with_too_new_since_is_reported() {
        assert_eq!(
            differences(STRUCT, Value { since: Since::V7_2, ..VALUE }),
            ["A_VALUE (a::VALUE): already in C (6.12), though Rust declares it since 7.2"]
        );
    }

    #[test]
    fn value_from_other_header_is_reported() {
        assert_eq!(
            differences(STRUCT, Value { header: Some("rdma/b.h"), ..VALUE }),
            ["A_VALUE (a::VALUE): in <rdma/rdma_user_rxe.h> (6.12), Rust says <rdma/b.h>"]
        );
    }
}
