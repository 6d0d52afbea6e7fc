//! Compares the method tables with the headers: each method has an enumeration with the numbers of
//! its attributes.

use std::collections::{BTreeMap, BTreeSet};

use bareverbs_uapi::method::MethodInfo;

use crate::compiler::Kernel;
use crate::declared::Declared;
use crate::exempt::UNDECLARED;

/// All attributes in the table of a wrong method or of no method. Empty if all tables are right.
pub fn misplaced(kernel: &Kernel, declared: &Declared) -> Vec<String> {
    let mut misplaced = Vec::new();
    let mut owners: BTreeMap<usize, &str> = BTreeMap::new();
    let present = declared.methods.iter().filter(|method| method.since <= kernel.since);
    for method in present {
        let attributes = attributes(kernel, method);
        let numbers: BTreeSet<u16> = method.attributes.iter().map(|attribute| attribute.id).collect();
        if numbers.len() != method.attributes.len() {
            misplaced.push(format!("method {}: two attributes have the same number", method.rust));
        }
        let groups: BTreeSet<usize> = attributes.values().copied().collect();
        if groups.len() > 1 {
            misplaced.push(format!("method {}: attributes of {} enumerations", method.rust, groups.len()));
        }
        for group in groups {
            if let Some(owner) = owners.insert(group, method.rust) {
                misplaced.push(format!("method {}: attributes of {owner}'s enumeration", method.rust));
            }
            let all = kernel.headers.values.iter().filter(|(_, value)| value.group == Some(group));
            for (name, _) in all.filter(|(name, _)| !attributes.contains_key(name.as_str())) {
                if !UNDECLARED.cover(name) {
                    misplaced.push(format!("method {}: lacks {name} of its enumeration", method.rust));
                }
            }
        }
    }
    misplaced
}

/// The attributes that this kernel has, with their enumerations.
fn attributes<'a>(kernel: &Kernel, method: &MethodInfo) -> BTreeMap<&'a str, usize> {
    let present = method.attributes.iter().filter(|attribute| attribute.since <= kernel.since);
    present
        .filter_map(|attribute| Some((attribute.c, kernel.headers.values.get(attribute.c)?.group?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::abi::Since;
    use bareverbs_uapi::method::{AttributeInfo, AttributeKind};

    use super::*;
    use crate::fixture::kernel;

    const A: &[AttributeInfo] = &[attribute("A_FIRST", 0), attribute("A_SECOND", 1)];
    const B: &[AttributeInfo] = &[attribute("B_FIRST", 0)];

    const fn attribute(c: &'static str, id: u16) -> AttributeInfo {
        let kind = AttributeKind::RawDescriptor;
        AttributeInfo { rust: "", c, id, mandatory: true, since: Since::V6_1, kind }
    }

    fn found(tables: &[(&'static str, &'static [AttributeInfo])]) -> Vec<String> {
        let method = |&(rust, attributes)| MethodInfo {
            rust,
            c: "",
            id: 0,
            object: 0,
            since: Since::V6_1,
            driver_payload: false,
            attributes,
        };
        let methods = tables.iter().map(method).collect();
        misplaced(&kernel(), &Declared { methods, ..Declared::default() })
    }

    #[test]
    fn one_enumeration_per_method_is_accepted() {
        assert_eq!(found(&[("A", A), ("B", B)]), [""; 0]);
    }

    #[test]
    fn attribute_of_other_method_is_reported() {
        const MIXED: &[AttributeInfo] = &[A[0], A[1], attribute("B_FIRST", 2)];
        assert_eq!(found(&[("A", MIXED)]), ["method A: attributes of 2 enumerations"]);
        assert_eq!(found(&[("A", A), ("B", A)]), ["method B: attributes of A's enumeration"]);
    }

    #[test]
    fn missing_attribute_is_reported() {
        assert_eq!(found(&[("A", A.split_at(1).0)]), ["method A: lacks A_SECOND of its enumeration"]);
    }

    #[test]
    fn duplicate_attribute_number_is_reported() {
        const TWICE: &[AttributeInfo] = &[A[0], attribute("A_SECOND", 0)];
        assert_eq!(found(&[("A", TWICE)]), ["method A: two attributes have the same number"]);
    }
}
