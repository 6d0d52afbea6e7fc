//! mlx5's own objects and methods, and its attributes of the core's methods.

use bareverbs_uapi::abi::{AbiStruct, Since};
use bareverbs_uapi::ioctl::{Attribute, Header};
use bareverbs_uapi::method::{Access, AttributeKind, Call, Method, PayloadSize};
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::{mlx5, uverbs};
use zerocopy::FromBytes;

fn parts(bytes: &[u8]) -> (Header, Vec<Attribute>) {
    let (header, rest) = Header::read_from_prefix(bytes).unwrap();
    (header, rest.chunks(16).map(|bytes| Attribute::read_from_bytes(bytes).unwrap()).collect())
}

#[test]
fn mlx5_has_ten_object_classes_and_32_methods() {
    let own = mlx5::OBJECTS.iter().filter(|object| object.id & 0x1000 != 0);
    let mut ids: Vec<_> = own.map(|object| object.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0x1000..0x100a).collect::<Vec<_>>());

    let methods = |series| {
        mlx5::OBJECTS.iter().flat_map(|object| object.methods).filter(|method| method.since <= series).count()
    };
    assert_eq!((methods(Since::V6_1), methods(Since::V6_12), methods(Since::V7_2)), (31, 32, 32));
}

#[test]
fn each_class_has_its_attributes() {
    let expected = [
        ("Devx", 4, 11),
        ("DevxObj", 5, 15),
        ("DevxUmem", 2, 8),
        ("DevxAsyncCmdFd", 1, 1),
        ("DevxAsyncEventFd", 1, 2),
        ("FlowMatcher", 2, 8),
        ("SteeringAnchor", 2, 5),
        ("Flow", 2, 11),
        ("FlowAction", 2, 7),
        ("Var", 2, 6),
        ("Pp", 2, 5),
        ("Uar", 2, 6),
        ("Device", 2, 3),
        ("Pd", 1, 2),
        ("Dm", 2, 8),
    ];
    let found = mlx5::OBJECTS.map(|object| {
        let attributes = object.methods.iter().map(|method| method.attributes.len()).sum::<usize>();
        (object.rust, object.methods.len(), attributes)
    });
    assert_eq!(found, expected);
}

#[test]
fn methods_and_attributes_are_numbered_in_the_drivers_namespace_without_gaps() {
    for object in mlx5::OBJECTS {
        for (i, method) in object.methods.iter().enumerate() {
            assert_eq!(usize::from(method.id), 0x1000 + i, "{}", method.c);
            assert_eq!(method.object, object.id);
            for (i, attribute) in method.attributes.iter().enumerate() {
                assert_eq!(usize::from(attribute.id), 0x1000 + i, "{}", attribute.c);
            }
        }
    }
}

#[test]
fn attributes_added_to_core_methods_do_not_collide_with_the_payload() {
    let names: Vec<_> =
        mlx5::ATTRIBUTES.iter().map(|added| (added.method.rust, added.attributes.len())).collect();
    let expected = [
        ("CqCreate", 2),
        ("QpCreate", 1),
        ("SrqCreate", 1),
        ("DmAlloc", 3),
        ("QueryContext", 1),
        ("RegDmabufMr", 1),
    ];
    assert_eq!(names, expected);
    for added in mlx5::ATTRIBUTES {
        let first = if added.method.driver_payload { 0x1002 } else { 0x1000 };
        for (i, attribute) in added.attributes.iter().enumerate() {
            assert_eq!(usize::from(attribute.id), first + i, "{}", attribute.c);
        }
    }
}

#[test]
fn devx_command_has_input_and_output_blobs() {
    let command = [0; 32];
    let mut answer = [0; 16];
    let mut call = Call::<mlx5::DevxObjCreate>::new(DriverId::MLX5.0);
    call.make(mlx5::DevxObjCreate::HANDLE)
        .input_slice(mlx5::DevxObjCreate::CMD_IN, &command)
        .output_slice(mlx5::DevxObjCreate::CMD_OUT, &mut answer);
    let (header, attributes) = parts(call.as_bytes());
    assert_eq!((header.object_id, header.method_id, header.driver_id), (0x1001, 0x1000, 1));
    let shape: Vec<_> = attributes.iter().map(|attribute| (attribute.attr_id, attribute.len)).collect();
    assert_eq!(shape, [(0x1000, 0), (0x1001, 32), (0x1002, 16)]);
}

#[test]
fn driver_attributes_are_added_to_core_calls() {
    let uar = 7;
    let mut call = Call::<uverbs::CqCreate>::new(DriverId::MLX5.0);
    call.make(uverbs::CqCreate::HANDLE).input(mlx5::attributes::CqCreate::UAR_INDEX, &uar);
    let (header, attributes) = parts(call.as_bytes());
    assert_eq!((header.object_id, header.method_id), (3, 0));
    assert_eq!((attributes[1].attr_id, attributes[1].len), (0x1002, 4));
    assert_eq!(attributes[1].data.to_ne_bytes()[..4], 7_u32.to_ne_bytes());
}

#[test]
fn flow_attribute_contains_type_and_priority() {
    let mut call = Call::<mlx5::FlowMatcherCreate>::new(DriverId::MLX5.0);
    let priority = 5_u16.to_ne_bytes();
    call.enumeration(mlx5::FlowMatcherCreate::FLOW_TYPE, mlx5::steering::FlowType::MC_DEFAULT, &priority);
    let (_, attributes) = parts(call.as_bytes());
    assert_eq!((attributes[0].attr_data.to_ne_bytes()[0], attributes[0].len), (3, 2));
}

#[test]
fn attributes_accept_any_object_or_a_struct_prefix() {
    let kind = |info: &bareverbs_uapi::method::MethodInfo, id| {
        info.attributes.iter().find(|attribute| attribute.id == id).map(|attribute| attribute.kind)
    };
    assert!(matches!(
        kind(&mlx5::DevxObjQuery::INFO, 0x1000),
        Some(AttributeKind::Handle { object: 0xffff, access: Access::Read })
    ));
    assert!(matches!(
        kind(&mlx5::FlowMatcherCreate::INFO, 0x1001),
        Some(AttributeKind::Input { size: PayloadSize::Within { minimum: 1, maximum: 640 }, .. })
    ));
}

#[test]
fn payloads_have_the_sizes_that_the_driver_expects() {
    let sizes = [
        (mlx5::AllocUcontextReqV2::INFO, 32),
        (mlx5::AllocUcontextResp::INFO, 72),
        (mlx5::CreateCqReq::INFO, 32),
        (mlx5::CreateSrqReq::INFO, 32),
        (mlx5::CreateQpReq::INFO, 56),
        (mlx5::CreateQpResp::INFO, 40),
        (mlx5::CreateQpRssReq::INFO, 152),
        (mlx5::CreateWqReq::INFO, 48),
        (mlx5::CreateAhResp::INFO, 16),
        (mlx5::ModifyQpReq::INFO, 16),
        (mlx5::ClockInfo::INFO, 56),
    ];
    for (info, size) in sizes {
        assert_eq!(info.size, size, "{}", info.c);
    }
}
