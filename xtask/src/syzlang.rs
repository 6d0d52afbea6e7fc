//! `cargo xtask syzlang`: descriptions of the verbs ABI for syzkaller, from the tables of
//! `bareverbs-uapi`.
//!
//! Each method is an ioctl of its own, and each write command a call of `INVOKE_WRITE`. Mandatory
//! attributes are always present. In the place of an absent optional attribute is one that no kernel
//! knows, which kernels ignore. All values are numbers: `syz-extract` is not needed.

mod types;

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bareverbs_uapi::abi::{EnumInfo, FieldKind};
use bareverbs_uapi::driver::DriverPayload;
use bareverbs_uapi::ioctl::VERBS_IOCTL;
use bareverbs_uapi::method::{
    Access, AttributeInfo, AttributeKind, Method, MethodInfo, PayloadSize, UHW_IN, UHW_OUT,
};
use bareverbs_uapi::registry::{self, DRIVERS, Driver};
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::uverbs::{InvokeWrite, ObjectClass};
use bareverbs_uapi::write::{EXTENDED, WriteCommandInfo};
use clap::Args;

use types::{Direction, Types};

#[derive(Args)]
pub(crate) struct Syzlang {
    /// Write to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Syzlang {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let text = descriptions();
        match self.out {
            Some(path) => {
                std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            }
            None => print!("{text}"),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Class of attributes that name an object of any class.
const ANY_CLASS: u16 = u16::MAX;

const HEAD: &str = "\
# Verbs of /dev/infiniband/uverbs* (drivers/infiniband/core/uverbs_ioctl.c).
# Written by `cargo xtask syzlang` of bareverbs. Do not edit.

resource fd_uverbs[fd]

openat$uverbs(fd const[0xffffffffffffff9c], file ptr[in, uverbs_path], flags const[0x2], mode const[0x0]) fd_uverbs

uverbs_path [
	first	string[\"/dev/infiniband/uverbs0\"]
	second	string[\"/dev/infiniband/uverbs1\"]
]

# An absent optional attribute: kernels ignore unknown attributes without UVERBS_ATTR_F_MANDATORY.
uverbs_absent {
	attr_id		const[0xfff, int16]
	len		const[0x0, int16]
	flags		const[0x0, int16]
	attr_data	const[0x0, int16]
	data		const[0x0, int64]
}
";

/// The descriptions of all methods and commands.
fn descriptions() -> String {
    let mut writer = Writer::default();
    let core: Vec<&'static MethodInfo> =
        registry::OBJECTS.into_iter().flat_map(|object| object.methods).copied().collect();
    for method in &core {
        if !is_invoke_write(method) {
            writer.method("", method);
        }
    }
    for (id, driver) in DRIVERS {
        let prefix = format!("{}_", lower_name(id));
        for method in driver.objects.iter().flat_map(|object| object.methods) {
            writer.method(&prefix, method);
        }
    }
    registry::COMMANDS.into_iter().for_each(|command| writer.command(command));
    writer.finish()
}

fn is_invoke_write(method: &MethodInfo) -> bool {
    method.is::<InvokeWrite>()
}

/// The name of a driver in lower case.
fn lower_name(driver: DriverId) -> String {
    driver.name().unwrap_or_default().to_lowercase()
}

/// The resource of an object class.
fn resource(class: u16) -> String {
    let added = DRIVERS.iter().flat_map(|(_, driver)| driver.objects);
    match registry::OBJECTS.iter().chain(added).find(|object| object.id == class) {
        _ if class == ANY_CLASS => "uverbs_any".to_owned(),
        Some(object) => format!("uverbs_{}", snake(object.rust)),
        None => format!("uverbs_class_{class}"),
    }
}

/// The resource of a class whose objects are descriptors. A dma-buf is any descriptor: no method
/// needs one of uverbs.
fn descriptor(class: u16) -> String {
    match ObjectClass(class) {
        ObjectClass::DMABUF => "fd".to_owned(),
        _ => format!("fd_{}", resource(class)),
    }
}

/// `QpCreate` → `qp_create`.
fn snake(name: &str) -> String {
    let mut text = String::new();
    for (position, char) in name.chars().enumerate() {
        if char.is_uppercase() && position > 0 {
            text.push('_');
        }
        text.extend(char.to_lowercase());
    }
    text
}

#[derive(Default)]
struct Writer {
    calls: String,
    structs: String,
    /// Resources of handles and of descriptors that methods create.
    handles: BTreeSet<String>,
    descriptors: BTreeSet<String>,
    types: Types,
}

impl Writer {
    /// `prefix`: that of the names of the driver, or empty.
    fn method(&mut self, prefix: &str, method: &'static MethodInfo) {
        let name = format!("{prefix}{}", snake(method.rust));
        let _ = writeln!(
            self.calls,
            "ioctl$UVERBS_{}(fd fd_uverbs, cmd const[{VERBS_IOCTL:#x}], arg ptr[inout, uverbs_call_{name}])",
            name.to_uppercase()
        );
        let mut fields = Vec::new();
        let core = Driver::default();
        for info in core.attributes(method) {
            let attribute = self.attribute(&name, info);
            fields.push((format!("attr_{}", info.rust.to_lowercase()), attribute));
        }
        for (_, driver) in DRIVERS {
            let added = driver.attributes(method).skip(method.attributes.len());
            for info in added {
                let optional = AttributeInfo { mandatory: false, ..*info };
                let attribute = self.attribute(&format!("{name}_driver"), &optional);
                fields.push((format!("driver_{}", info.rust.to_lowercase()), attribute));
            }
        }
        if method.driver_payload {
            let payload = |driver: Driver| driver.method_payload(method.object, method.id);
            fields.extend(self.driver_payloads(&name, payload));
        }
        self.call(&name, method, &fields);
    }

    fn command(&mut self, command: &'static WriteCommandInfo) {
        let extended = if command.number & EXTENDED == 0 { "" } else { "ex_" };
        let name = format!("invoke_write_{extended}{}", snake(command.rust));
        let _ = writeln!(
            self.calls,
            "ioctl$UVERBS_{}(fd fd_uverbs, cmd const[{VERBS_IOCTL:#x}], arg ptr[inout, uverbs_call_{name}])",
            name.to_uppercase()
        );
        let mut fields = Vec::new();
        let number = format!("\tdata\t\tconst[{:#x}, int64]\n", command.number);
        self.structure(
            &format!("uverbs_attr_{name}_cmd"),
            InvokeWrite::WRITE_CMD.id(),
            "const[0x8, int16]",
            &number,
        );
        fields.push(("cmd".to_owned(), format!("uverbs_attr_{name}_cmd")));
        let parts = [
            ("core_in", InvokeWrite::CORE_IN.id(), command.request, Direction::In),
            ("core_out", InvokeWrite::CORE_OUT.id(), command.response, Direction::Out),
        ];
        for (part, id, info, direction) in parts {
            let Some(info) = info else { continue };
            let inner = self.types.structure(info, direction);
            let attribute = format!("uverbs_attr_{name}_{part}");
            self.pointer(&attribute, id, &inner, direction);
            fields.push((part.to_owned(), attribute));
        }
        if command.driver_input || command.driver_output {
            let payload = |driver: Driver| driver.command_payload(command.number);
            fields.extend(self.driver_payloads(&name, payload));
        }
        self.call(&name, &InvokeWrite::INFO, &fields);
    }

    /// The call's struct: header and attributes.
    fn call(&mut self, name: &str, method: &MethodInfo, fields: &[(String, String)]) {
        let mut text = format!(
            "uverbs_call_{name} {{\n\tlength\t\tbytesize[parent, int16]\n\tobject_id\tconst[{:#x}, int16]\n\
             \tmethod_id\tconst[{:#x}, int16]\n\tnum_attrs\tconst[{:#x}, int16]\n\treserved1\tconst[0x0, int64]\n\
             \tdriver_id\tflags[uverbs_driver_id, int32]\n\treserved2\tconst[0x0, int32]\n",
            method.object,
            method.id,
            fields.len()
        );
        for (field, attribute) in fields {
            let _ = writeln!(text, "\t{field}\t{attribute}");
        }
        text.push_str("}\n\n");
        self.structs.push_str(&text);
    }

    /// The attributes with the driver's parts: a union of those of the drivers, or absent.
    fn driver_payloads(
        &mut self,
        name: &str,
        payload: impl Fn(Driver) -> Option<&'static DriverPayload>,
    ) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        for (part, id, direction) in [("uhw_in", UHW_IN, Direction::In), ("uhw_out", UHW_OUT, Direction::Out)]
        {
            let mut variants = vec![("absent".to_owned(), "uverbs_absent".to_owned())];
            for (driver, added) in DRIVERS {
                let info = payload(added).and_then(|payload| match direction {
                    Direction::In => payload.request,
                    Direction::Out => payload.response,
                });
                let Some(info) = info else { continue };
                let inner = self.types.structure(info, direction);
                let driver = lower_name(driver);
                let attribute = format!("uverbs_attr_{name}_{part}_{driver}");
                self.pointer(&attribute, id, &inner, direction);
                variants.push((driver, attribute));
            }
            let attribute = format!("uverbs_attr_{name}_{part}_any");
            self.pointer(&attribute, id, "array[int8, 16:256]", direction);
            variants.push(("any".to_owned(), attribute));
            fields.push((part.to_owned(), self.union(&format!("uverbs_attr_{name}_{part}"), &variants)));
        }
        fields
    }

    fn union(&mut self, name: &str, variants: &[(impl Display, String)]) -> String {
        let _ = writeln!(self.structs, "{name} [");
        for (variant, inner) in variants {
            let _ = writeln!(self.structs, "\t{variant}\t{inner}");
        }
        self.structs.push_str("]\n\n");
        name.to_owned()
    }

    /// An attribute with the address of its payload.
    fn pointer(&mut self, name: &str, id: u16, inner: &str, direction: Direction) {
        let data = format!("\tdata\t\tptr64[{}, {inner}]\n", direction.name());
        self.structure(name, id, "bytesize[data, int16]", &data);
    }

    fn structure(&mut self, name: &str, id: u16, len: &str, data: &str) {
        self.structure_of(name, id, len, "const[0x0, int16]", data);
    }

    fn structure_of(&mut self, name: &str, id: u16, len: &str, attr_data: &str, data: &str) {
        let _ = write!(
            self.structs,
            "{name} {{\n\tattr_id\t\tconst[{id:#x}, int16]\n\tlen\t\t{len}\n\tflags\t\tflags[uverbs_attr_flags, int16]\n\
             \tattr_data\t{attr_data}\n{data}}}\n\n"
        );
    }

    /// The type of an attribute: its struct, or a union with the absent one.
    fn attribute(&mut self, method: &str, info: &AttributeInfo) -> String {
        let name = format!("uverbs_attr_{method}_{}", info.rust.to_lowercase());
        let inner = if info.mandatory { name.clone() } else { format!("{name}_present") };
        self.present(&inner, info);
        match info.mandatory {
            true => inner,
            false => self.union(&name, &[("present", inner), ("absent", "uverbs_absent".to_owned())]),
        }
    }

    fn present(&mut self, name: &str, info: &AttributeInfo) {
        let id = info.id;
        let none = "const[0x0, int16]";
        match info.kind {
            AttributeKind::Handle { object, access: Access::New } => {
                let resource = resource(object);
                self.handles.insert(resource.clone());
                self.structure(
                    name,
                    id,
                    none,
                    &format!("\tdata\t\t{resource} (out)\n\tpad\t\tconst[0x0, int32]\n"),
                );
            }
            AttributeKind::Handle { object, .. } => {
                let data = format!("\tdata\t\t{}\n\tpad\t\tconst[0x0, int32]\n", resource(object));
                self.structure(name, id, none, &data);
            }
            AttributeKind::Descriptor { object, access: Access::New } => {
                let resource = descriptor(object);
                if resource != "fd" {
                    self.descriptors.insert(resource.clone());
                }
                self.structure(
                    name,
                    id,
                    none,
                    &format!("\tdata\t\t{resource} (out)\n\tpad\t\tconst[0x0, int32]\n"),
                );
            }
            AttributeKind::Descriptor { object, .. } => {
                let data = format!("\tdata\t\t{}\n\tpad\t\tconst[0x0, int32]\n", descriptor(object));
                self.structure(name, id, none, &data);
            }
            AttributeKind::RawDescriptor => {
                self.structure(name, id, none, "\tdata\t\tfd\n\tpad\t\tconst[0x0, int32]\n");
            }
            AttributeKind::Handles { object, minimum, maximum, .. } => {
                let inner = format!("array[{}, {minimum}:{maximum}]", resource(object));
                self.pointer(name, id, &inner, Direction::In);
            }
            AttributeKind::Constant { names, .. } | AttributeKind::Flags { names, .. } => {
                let data = format!("\tdata\t\t{}\n", self.number(names, 8));
                self.structure(name, id, "const[0x8, int16]", &data);
            }
            AttributeKind::Enumeration { names } => {
                let element = self.number(names, 2);
                self.structure_of(name, id, "int16[0:8]", &element, "\tdata\t\tint64\n");
            }
            AttributeKind::Input { size, payload } => self.payload(name, id, size, payload, Direction::In),
            AttributeKind::Output { size, payload } => self.payload(name, id, size, payload, Direction::Out),
        }
    }

    fn number(&mut self, names: Option<&'static EnumInfo>, size: usize) -> String {
        match names {
            Some(info) => self.types.named(info, size),
            None => types::integer(size),
        }
    }

    fn payload(
        &mut self,
        name: &str,
        id: u16,
        size: PayloadSize,
        payload: Option<FieldKind>,
        direction: Direction,
    ) {
        let element = payload.unwrap_or(FieldKind::Unsigned(1));
        match size {
            // Inputs of up to 8 bytes are in the attribute.
            PayloadSize::Exact(len) if len <= 8 && direction == Direction::In => {
                let inner = self.types.kind(element, len, direction);
                let pad = match 8 - len {
                    0 => String::new(),
                    pad => format!("\tpad\t\tarray[const[0x0, int8], {pad}]\n"),
                };
                self.structure(
                    name,
                    id,
                    &format!("const[{len:#x}, int16]"),
                    &format!("\tdata\t\t{inner}\n{pad}"),
                );
            }
            PayloadSize::Exact(len) => {
                let inner = self.types.kind(element, len, direction);
                self.pointer(name, id, &inner, direction);
            }
            PayloadSize::AtLeast(least) => {
                let (inner, size) = self.types.element(element, direction);
                let first = least.div_ceil(size.max(1)).max(1);
                self.pointer(name, id, &format!("array[{inner}, {first}:{}]", first + 16), direction);
            }
            PayloadSize::Within { minimum, maximum } => {
                self.pointer(name, id, &format!("array[int8, {minimum}:{maximum}]"), direction);
            }
            PayloadSize::Extensible { known, .. } => {
                let inner = self.types.kind(element, known, direction);
                self.pointer(name, id, &inner, direction);
            }
        }
    }

    fn finish(self) -> String {
        let mut text = HEAD.to_owned();
        text.push('\n');
        let Self { mut handles, mut descriptors, .. } = self;
        for resource in self.types.resources() {
            let set = if resource.starts_with("fd_") { &mut descriptors } else { &mut handles };
            set.insert(resource.clone());
        }
        for resource in &handles {
            let _ = writeln!(text, "resource {resource}[int32]: 0xffffffffffffffff, 0x0");
        }
        for resource in &descriptors {
            let _ = writeln!(text, "resource {resource}[fd]");
        }
        text.push_str("\nuverbs_any [\n");
        for resource in &handles {
            let _ = writeln!(text, "\t{}\t{resource}", resource.trim_start_matches("uverbs_"));
        }
        text.push_str("]\n\n");
        let ids = DRIVERS.map(|(driver, _)| format!("{:#x}", driver.0)).join(", ");
        let _ = writeln!(text, "uverbs_driver_id = {ids}");
        text.push_str("uverbs_attr_flags = 0x1, 0x0\n");
        text.push_str(&self.types.flags());
        let _ = write!(text, "\n{}\n{}{}", self.calls, self.types.structs(), self.structs);
        text
    }
}

#[cfg(test)]
mod tests;
