//! The Rust declarations, flattened from the registry.

use std::collections::BTreeSet;

use bareverbs_uapi::abi::{ConstInfo, EnumInfo, Since, StructInfo};
use bareverbs_uapi::driver::DriverAttributes;
use bareverbs_uapi::method::{AttributeInfo, MethodInfo, ObjectInfo, UHW_IN, UHW_OUT};
use bareverbs_uapi::registry;
use bareverbs_uapi::write::{EXTENDED, WriteCommandInfo};

/// A named value of any kind of declaration.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    /// Its name in C.
    pub c: &'static str,
    /// Its name in Rust.
    pub rust: &'static str,
    /// The Rust type or module that it belongs to.
    pub owner: &'static str,
    /// Its value, sign-extended to 64 bits.
    pub value: u64,
    /// The header that must define it, if the declaration names one.
    pub header: Option<&'static str>,
    /// The C tag of its enumeration; empty if the declaration names none.
    pub tag: &'static str,
    /// The first kernel series that has it.
    pub since: Since,
}

/// All declarations.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    /// The structs.
    pub structs: Vec<StructInfo>,
    /// The values.
    pub values: Vec<Value>,
    /// The methods.
    pub methods: Vec<MethodInfo>,
}

impl Declared {
    /// Reads the whole registry.
    pub fn from_registry() -> Declared {
        let mut declared = Declared::default();
        for module in registry::MODULES {
            declared.structs.extend(module.structs.iter().map(|info| **info));
            for info in module.enums.iter().chain(module.flags) {
                declared.enumeration(info);
            }
            for info in module.consts {
                declared.values.push(Value::of(info, module.name, ""));
            }
        }
        registry::OBJECTS.iter().for_each(|object| declared.object(object));
        for (_, driver) in registry::DRIVERS {
            driver.objects.iter().for_each(|object| declared.object(object));
            driver.attributes.iter().for_each(|added| declared.added(added));
        }
        for command in registry::COMMANDS {
            declared.command(command);
        }
        let apart = [("UVERBS_ATTR_UHW_IN", "UHW_IN", UHW_IN), ("UVERBS_ATTR_UHW_OUT", "UHW_OUT", UHW_OUT)];
        declared
            .values
            .extend(apart.map(|(c, rust, id)| Value::numbered(c, rust, "method", id, Since::V6_1)));
        let c = "IB_USER_VERBS_CMD_FLAG_EXTENDED";
        let flag = Value::numbered(c, "EXTENDED", "write", 0, Since::V6_1);
        declared.values.push(Value { value: EXTENDED.into(), ..flag });
        declared
    }

    /// The headers that the declarations name.
    pub fn headers(&self) -> BTreeSet<&'static str> {
        let structs = self.structs.iter().map(|info| info.header);
        structs.chain(self.values.iter().filter_map(|value| value.header)).collect()
    }

    fn enumeration(&mut self, info: &EnumInfo) {
        self.values.extend(info.values.iter().map(|value| Value::of(value, info.rust, info.c)));
    }
}

impl Declared {
    fn object(&mut self, object: &ObjectInfo) {
        self.values.push(Value::numbered(object.c, object.rust, "object", object.id, object.since));
        for method in object.methods {
            self.values.push(Value::numbered(method.c, method.rust, object.rust, method.id, method.since));
            self.attributes(method.rust, method.attributes, method.since);
            self.methods.push(**method);
        }
    }

    fn added(&mut self, added: &DriverAttributes) {
        self.attributes(added.rust, added.attributes, added.method.since);
    }

    fn attributes(&mut self, method: &'static str, attributes: &[AttributeInfo], since: Since) {
        for attribute in attributes {
            let since = attribute.since.max(since);
            self.values.push(Value::numbered(attribute.c, attribute.rust, method, attribute.id, since));
        }
    }

    /// The headers number the extended commands without their flag bit.
    fn command(&mut self, command: &WriteCommandInfo) {
        let number = (command.number & !EXTENDED) as u16;
        self.values.push(Value::numbered(command.c, command.rust, "write command", number, command.since));
    }
}

impl Value {
    fn numbered(
        c: &'static str,
        rust: &'static str,
        owner: &'static str,
        number: u16,
        since: Since,
    ) -> Value {
        Value { c, rust, owner, value: number.into(), header: None, tag: "", since }
    }

    fn of(info: &ConstInfo, owner: &'static str, tag: &'static str) -> Value {
        Value {
            c: info.c,
            rust: info.rust,
            owner,
            value: info.value,
            header: Some(info.header),
            tag,
            since: info.since,
        }
    }
}

/// Splits a C type into a struct and the path of a member in it: `struct x` has an empty path, and
/// `__typeof__(((struct x *)0)->y.z)` is `struct x` with the path `y.z`.
pub fn root(c: &str) -> (&str, &str) {
    match c.split_once(" *)0)->") {
        Some((left, path)) => (left.rsplit('(').next().unwrap_or(left), path.trim_end_matches(')')),
        None => (c, ""),
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::registry::COMMANDS;
    use bareverbs_uapi::write::EXTENDED;

    #[test]
    fn only_extended_commands_carry_extended_bit() {
        for command in COMMANDS {
            assert_eq!(command.number & EXTENDED != 0, command.c.contains("_EX_CMD_"), "{}", command.c);
        }
    }

    #[test]
    fn typeof_expression_yields_struct_and_member() {
        assert_eq!(super::root("struct a"), ("struct a", ""));
        assert_eq!(super::root("__typeof__(((union a *)0)->b.c)"), ("union a", "b.c"));
    }
}
