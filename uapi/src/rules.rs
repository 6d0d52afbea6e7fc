//! What the kernel requires of the calls of each method and write command, without names.
//!
//! [`registry`](crate::registry) describes the same for people. Its tables of names and structs are
//! hundreds of kilobytes, which a shared library relocates when it is loaded. A program that only checks
//! or makes calls needs none of them.

use crate::abi::Since;
use crate::driver::DriverAttributes;
use crate::method::{Access, AttributeInfo, AttributeKind, Method, MethodInfo, ObjectInfo};
use crate::registry::OBJECTS;
use crate::uverbs::types::DriverId;
use crate::write::{WriteCommand, WriteCommandInfo};

/// The rules of a method: those of its [`MethodInfo`].
#[derive(Clone, Copy, Debug)]
pub struct MethodRules {
    /// The id of its class.
    pub object: u16,
    /// Its id within the class.
    pub id: u16,
    /// First kernel series that has it.
    pub since: Since,
    /// Whether it has driver payloads.
    pub driver_payload: bool,
    /// [`MethodInfo::is_query`].
    pub is_query: bool,
    /// Its attributes.
    pub attributes: &'static [AttributeRules],
}

impl MethodRules {
    /// Whether these are the rules of the method `M`.
    #[must_use]
    pub const fn is<M: Method>(&self) -> bool {
        self.object == M::INFO.object && self.id == M::INFO.id
    }
}

/// The rules of an attribute: those of its [`AttributeInfo`].
#[derive(Clone, Copy, Debug)]
pub struct AttributeRules {
    /// Its id within the method.
    pub id: u16,
    /// Whether it is mandatory.
    pub mandatory: bool,
    /// First kernel series that has it.
    pub since: Since,
    /// Its type. It names no values and no struct.
    pub kind: AttributeKind,
}

/// The rules of all methods of the core and of a driver.
///
/// ```
/// use bareverbs_uapi::rules::Rules;
/// use bareverbs_uapi::uverbs::types::DriverId;
/// use bareverbs_uapi::uverbs::{ObjectClass, PdDestroy};
///
/// let rules = Rules::of(DriverId::RXE.0);
/// assert!(rules.destructor(ObjectClass::PD.0).is_some_and(|method| method.is::<PdDestroy>()));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Those that the driver adds. A core method to which it adds attributes occurs with those only.
    added: &'static [MethodRules],
}

impl Rules {
    /// Those of a driver by driver id; only those of the core for most drivers.
    #[must_use]
    pub fn of(driver_id: u32) -> Self {
        Self { added: if driver_id == DriverId::MLX5.0 { MLX5 } else { &[] } }
    }

    /// The methods of the core, then those of the driver.
    fn methods(self) -> impl Iterator<Item = &'static MethodRules> {
        CORE.iter().chain(self.added)
    }

    /// The method with these ids.
    #[must_use]
    pub fn method(self, object: u16, id: u16) -> Option<&'static MethodRules> {
        self.methods().find(|method| (method.object, method.id) == (object, id))
    }

    /// The attribute with this id of a method, its own or one that the driver adds.
    #[must_use]
    pub fn attribute(self, method: &MethodRules, id: u16) -> Option<&'static AttributeRules> {
        let ids = (method.object, method.id);
        let of_method = self.methods().filter(|other| (other.object, other.id) == ids);
        of_method.flat_map(|method| method.attributes).find(|attribute| attribute.id == id)
    }

    /// The method that destroys objects of a class. `None` for classes whose objects are file descriptors
    /// or are not destroyed.
    #[must_use]
    pub fn destructor(self, object: u16) -> Option<&'static MethodRules> {
        let destroys = |attribute: &AttributeRules| match attribute.kind {
            AttributeKind::Handle { object: of, access: Access::Destroy } => of == object,
            _ => false,
        };
        self.methods().find(|method| method.object == object && method.attributes.iter().any(destroys))
    }
}

/// The rules of a write command: those of its [`WriteCommandInfo`].
#[derive(Clone, Copy, Debug)]
pub struct CommandRules {
    /// Its number, with [`EXTENDED`](crate::write::EXTENDED) for extended commands.
    pub number: u32,
    /// Whether it has a response.
    pub has_response: bool,
    /// Minimum size of the request in bytes.
    pub request_minimum: usize,
    /// Minimum size of the response buffer in bytes.
    pub response_minimum: usize,
    /// Whether a driver request or response may follow.
    pub has_driver_data: bool,
}

impl CommandRules {
    /// The rules of the command `C`.
    #[must_use]
    pub const fn of<C: WriteCommand>() -> Self {
        let WriteCommandInfo { number, request_minimum, response_minimum, .. } = C::INFO;
        let has_driver_data = C::INFO.driver_input || C::INFO.driver_output;
        let has_response = C::INFO.response.is_some();
        Self { number, has_response, request_minimum, response_minimum, has_driver_data }
    }
}

/// The rules of the methods of these classes, then those of these additional attributes.
macro_rules! rules_of {
    ($objects:expr, $added:expr) => {{
        const COUNTS: (usize, usize) = count($objects, $added);
        const ATTRIBUTES: [AttributeRules; COUNTS.1] = attributes($objects, $added);
        const METHODS: [MethodRules; COUNTS.0] = methods($objects, $added, &ATTRIBUTES);
        &METHODS
    }};
}

static CORE: &[MethodRules] = rules_of!(&OBJECTS, &[]);
static MLX5: &[MethodRules] = rules_of!(&crate::mlx5::OBJECTS, crate::mlx5::ATTRIBUTES);

/// The n-th method of these classes, or attributes that are added to a method.
const fn nth(
    objects: &[&ObjectInfo],
    added: &[&DriverAttributes],
    mut n: usize,
) -> Option<(&'static MethodInfo, &'static [AttributeInfo])> {
    let mut object = 0;
    while object < objects.len() {
        let methods = objects[object].methods;
        if n < methods.len() {
            return Some((methods[n], methods[n].attributes));
        }
        n -= methods.len();
        object += 1;
    }
    if n < added.len() { Some((added[n].method, added[n].attributes)) } else { None }
}

/// The numbers of methods and attributes.
const fn count(objects: &[&ObjectInfo], added: &[&DriverAttributes]) -> (usize, usize) {
    let (mut methods, mut attributes) = (0, 0);
    while let Some((_, of_method)) = nth(objects, added, methods) {
        methods += 1;
        attributes += of_method.len();
    }
    (methods, attributes)
}

const fn attributes<const N: usize>(
    objects: &[&ObjectInfo],
    added: &[&DriverAttributes],
) -> [AttributeRules; N] {
    let kind = AttributeKind::RawDescriptor;
    let mut all = [AttributeRules { id: 0, mandatory: false, since: Since::V6_1, kind }; N];
    let (mut method, mut at) = (0, 0);
    while let Some((_, of_method)) = nth(objects, added, method) {
        let mut i = 0;
        while i < of_method.len() {
            let AttributeInfo { id, mandatory, since, kind, .. } = of_method[i];
            all[at] = AttributeRules { id, mandatory, since, kind: kind.without_names() };
            (i, at) = (i + 1, at + 1);
        }
        method += 1;
    }
    all
}

const fn methods<const N: usize>(
    objects: &[&ObjectInfo],
    added: &[&DriverAttributes],
    mut attributes: &'static [AttributeRules],
) -> [MethodRules; N] {
    let none = MethodRules {
        object: 0,
        id: 0,
        since: Since::V6_1,
        driver_payload: false,
        is_query: false,
        attributes: &[],
    };
    let mut all = [none; N];
    let mut method = 0;
    while let Some((info, of_method)) = nth(objects, added, method) {
        let (own, rest) = attributes.split_at(of_method.len());
        attributes = rest;
        let MethodInfo { object, id, since, driver_payload, .. } = *info;
        let is_query = info.is_query();
        all[method] = MethodRules { object, id, since, driver_payload, is_query, attributes: own };
        method += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::format;

    use super::*;
    use crate::registry::{self, Driver};

    #[test]
    fn rules_are_those_of_the_registry() {
        for driver_id in [DriverId::RXE, DriverId::MLX5, DriverId::UNKNOWN] {
            let (rules, driver) = (Rules::of(driver_id.0), registry::driver(driver_id.0));
            for info in driver.methods() {
                let method = rules.method(info.object, info.id).expect(info.rust);
                assert_eq!(method.since, info.since, "{}", info.rust);
                assert_eq!(method.driver_payload, info.driver_payload, "{}", info.rust);
                assert_eq!(method.is_query, info.is_query(), "{}", info.rust);
                for attribute in driver.attributes(info) {
                    let own = rules.attribute(method, attribute.id).expect(attribute.rust);
                    assert_eq!((own.mandatory, own.since), (attribute.mandatory, attribute.since));
                    let (kind, without_names) = (own.kind, attribute.kind.without_names());
                    assert_eq!(format!("{kind:?}"), format!("{without_names:?}"), "{}", attribute.rust);
                }
                assert!(rules.attribute(method, 0xfff).is_none());
            }
            for object in driver.objects() {
                let ids = driver.destructor(object.id).map(|(method, _)| (method.object, method.id));
                let rules = rules.destructor(object.id).map(|method| (method.object, method.id));
                assert_eq!(rules, ids, "{}", object.rust);
            }
        }
        assert!(Rules::of(DriverId::RXE.0).method(0, 0xfff).is_none());
        let count = |driver: Driver| driver.methods().count() + driver.attributes.len();
        let core = Driver::default().methods().count();
        assert_eq!(CORE.len(), core);
        assert_eq!(core + MLX5.len(), count(registry::driver(DriverId::MLX5.0)));
    }
}
