//! The parser of calls refuses what the kernel's refuses, each with its errno (`core/uverbs_ioctl.c`).

use bareverbs_provider::Errno;
use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::device::DeviceFile;
use bareverbs_soft::{Fabric, SoftDevice};
use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, Header};
use bareverbs_uapi::method::{Method, UHW_IN, UHW_OUT};
use bareverbs_uapi::rxe::CreateCqResp as CqResp;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::uverbs::{
    AdviseMr, CqCreate, CqDestroy, DmMrReg, MrDestroy, QueryGidEntry, QueryMr, QueryPort,
};
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{AllocPdReq, AllocPdResp};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of an entry of the GID table.
const ENTRY: usize = 32;

fn opened() -> DeviceFile {
    let file = SoftDevice::new(&Fabric::new()).open().unwrap();
    // SAFETY: no payload.
    unsafe { command::get_context(&file, DriverPayload::default()) }.unwrap();
    file
}

fn attribute(attr_id: u16, len: usize, data: u64) -> Attribute {
    Attribute { attr_id, len: len as u16, flags: AttributeFlags::MANDATORY, attr_data: 0, data }
}

fn address<T>(value: &mut T) -> u64 {
    std::ptr::from_mut(value).expose_provenance() as u64
}

fn header<M: Method>(attributes: &[Attribute]) -> Header {
    Header {
        length: (size_of::<Header>() + size_of_val(attributes)) as u16,
        object_id: M::INFO.object,
        method_id: M::INFO.id,
        num_attrs: attributes.len() as u16,
        reserved1: 0,
        driver_id: DriverId::RXE.0,
        reserved2: 0,
    }
}

/// Executes a call. Returns its bytes afterwards.
fn execute(file: &DeviceFile, header: &Header, attributes: &[Attribute]) -> Result<Vec<u8>, Errno> {
    let mut bytes = [header.as_bytes(), attributes.as_bytes()].concat();
    // SAFETY: addresses are those of memory of the test, with the length of the attribute, or null.
    unsafe { file.execute_raw(&mut bytes) }?;
    Ok(bytes)
}

fn call<M: Method>(file: &DeviceFile, attributes: &[Attribute]) -> Result<Vec<u8>, Errno> {
    execute(file, &header::<M>(attributes), attributes)
}

/// A query of the first GID.
fn gid_query(entry: &mut [u8; ENTRY]) -> [Attribute; 4] {
    [
        attribute(QueryGidEntry::PORT.id(), 8, 1),
        attribute(QueryGidEntry::GID_INDEX.id(), 8, 0),
        attribute(QueryGidEntry::FLAGS.id(), 4, 0),
        attribute(QueryGidEntry::RESP_ENTRY.id(), ENTRY, address(entry)),
    ]
}

#[test]
fn header_must_fit_its_call() {
    let (file, mut entry) = (opened(), [0; ENTRY]);
    let attributes = gid_query(&mut entry);
    let valid = header::<QueryGidEntry>(&attributes);
    assert!(execute(&file, &valid, &attributes).is_ok());
    let longer = Header { length: valid.length + 16, ..valid };
    let shorter = Header { length: valid.length - 16, ..valid };
    let fewer = Header { num_attrs: valid.num_attrs - 1, ..valid };
    for wrong in [longer, shorter, fewer, Header { driver_id: DriverId::MLX5.0, ..valid }] {
        assert_eq!(execute(&file, &wrong, &attributes), Err(Errno::INVAL), "{wrong:?}");
    }
    let (unknown_object, unknown_method) =
        (Header { object_id: 0xff, ..valid }, Header { method_id: 0xff, ..valid });
    for wrong in [
        Header { reserved1: 1, ..valid },
        Header { reserved2: 1, ..valid },
        unknown_object,
        unknown_method,
        // Soft-RoCE has no device memory.
        Header { object_id: DmMrReg::INFO.object, method_id: DmMrReg::INFO.id, ..valid },
    ] {
        assert_eq!(execute(&file, &wrong, &attributes), Err(Errno::PROTONOSUPPORT), "{wrong:?}");
    }
    // A page has room for 254 attributes, of which each but the first four is unknown.
    let optional = Attribute { flags: AttributeFlags::empty(), ..attribute(77, 0, 0) };
    for (count, expected) in [(254, None), (255, Some(Errno::INVAL))] {
        let mut many = attributes.to_vec();
        many.resize(count, optional);
        assert_eq!(call::<QueryGidEntry>(&file, &many).err(), expected);
    }
}

#[test]
fn attributes_are_those_of_the_method() {
    let (file, mut entry) = (opened(), [0; ENTRY]);
    let valid = gid_query(&mut entry);
    let with = |place: usize, changed: Attribute| {
        let mut attributes = valid;
        attributes[place] = changed;
        call::<QueryGidEntry>(&file, &attributes).err()
    };
    let and = |added: Attribute| {
        let attributes = [&valid[..], &[added]].concat();
        call::<QueryGidEntry>(&file, &attributes).err()
    };
    let [port, index, flags, response] = valid;
    assert_eq!(and(attribute(77, 0, 0)), Some(Errno::PROTONOSUPPORT));
    // The method has no payload of the driver.
    assert_eq!(and(attribute(UHW_IN, 0, 0)), Some(Errno::PROTONOSUPPORT));
    assert_eq!(and(Attribute { flags: AttributeFlags::empty(), ..attribute(77, 0, 0) }), None);
    assert_eq!(and(port), Some(Errno::INVAL), "twice");
    for place in 0..valid.len() {
        let missing: Vec<_> =
            valid.iter().enumerate().filter(|(at, _)| *at != place).map(|(_, a)| *a).collect();
        assert_eq!(call::<QueryGidEntry>(&file, &missing), Err(Errno::INVAL), "without {place}");
        let wrong = Attribute { attr_data: 1, ..valid[place] };
        assert_eq!(with(place, wrong), Some(Errno::INVAL), "{wrong:?}");
    }
    // Constants have 8 bytes, and flags 4 or 8, of which 4 are the first ones.
    for len in [0, 4, 7, 9] {
        assert_eq!(with(0, Attribute { len, ..port }), Some(Errno::INVAL), "{len}");
    }
    for len in [0, 2, 3, 5, 7, 9] {
        assert_eq!(with(2, Attribute { len, ..flags }), Some(Errno::INVAL), "{len}");
    }
    let behind = u64::from_ne_bytes([0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(with(2, Attribute { data: behind, ..flags }), None);
    assert_eq!(with(2, Attribute { len: 8, data: behind, ..flags }), Some(Errno::INVAL));
    assert_eq!(with(2, Attribute { data: 1, ..flags }), Some(Errno::INVAL), "no flag is known");
    // A constant of 32 bits.
    assert_eq!(with(1, Attribute { data: 1 << 32, ..index }), Some(Errno::INVAL));
    assert_eq!(with(1, Attribute { data: 0xffff, ..index }), Some(Errno::INVAL));
    // An output.
    assert_eq!(with(3, Attribute { len: ENTRY as u16 - 1, ..response }), Some(Errno::INVAL));
    assert_eq!(with(3, Attribute { data: 0, ..response }), Some(Errno::FAULT));
    // A constant of 8 bits.
    let mut attr = [0_u8; 64];
    for (port, expected) in [(1, None), (1 << 8 | 1, Some(Errno::INVAL)), (2, Some(Errno::INVAL))] {
        let attributes = [
            attribute(QueryPort::PORT_NUM.id(), 8, port),
            attribute(QueryPort::RESP.id(), attr.len(), address(&mut attr)),
        ];
        assert_eq!(call::<QueryPort>(&file, &attributes).err(), expected);
    }
}

#[test]
fn outputs_are_marked_and_filled_with_zeros() {
    let file = opened();
    let mut long = [0xff_u8; ENTRY + 8];
    let mut small = [0; ENTRY];
    let mut attributes = gid_query(&mut small);
    attributes[3] = attribute(QueryGidEntry::RESP_ENTRY.id(), long.len(), address(&mut long));
    let bytes = call::<QueryGidEntry>(&file, &attributes).unwrap();
    assert_eq!(long[ENTRY..], [0; 8]);
    let flags = bytes[size_of::<Header>()..].chunks_exact(size_of::<Attribute>()).map(|bytes| {
        let attribute = Attribute::read_from_bytes(bytes).unwrap();
        attribute.flags.contains(AttributeFlags::VALID_OUTPUT)
    });
    assert_eq!(flags.collect::<Vec<_>>(), [false, false, false, true]);
}

/// The attributes of a new CQ.
fn new_cq(response: &mut u32, driver: &mut CqResp) -> Vec<Attribute> {
    vec![
        attribute(CqCreate::HANDLE.id(), 0, 0),
        attribute(CqCreate::CQE.id(), 4, 16),
        attribute(CqCreate::USER_HANDLE.id(), 8, 0),
        attribute(CqCreate::COMP_VECTOR.id(), 4, 0),
        attribute(CqCreate::RESP_CQE.id(), 4, address(response)),
        attribute(UHW_OUT, size_of::<CqResp>(), address(driver)),
    ]
}

#[test]
fn objects_and_descriptors_are_found() {
    let (file, mut response, mut driver) = (opened(), 0, CqResp::zeroed());
    let valid = new_cq(&mut response, &mut driver);
    let made = call::<CqCreate>(&file, &valid).unwrap();
    // The data of the first attribute.
    let cq = u64::from_ne_bytes(*made[size_of::<Header>() + 8..].first_chunk().unwrap());
    let and = |added: Attribute| {
        call::<CqCreate>(&file, &[&valid[..], &[added]].concat()).expect_err("it is refused")
    };
    assert_eq!(and(attribute(CqCreate::COMP_CHANNEL.id(), 0, u64::MAX)), Errno::BADF, "-1");
    assert_eq!(and(attribute(CqCreate::COMP_CHANNEL.id(), 0, 1 << 32)), Errno::INVAL);
    assert_eq!(and(attribute(CqCreate::COMP_CHANNEL.id(), 4, 0)), Errno::INVAL);
    assert_eq!(and(attribute(CqCreate::BUFFER_FD.id(), 0, 1 << 32)), Errno::INVAL);
    assert_eq!(and(attribute(CqCreate::BUFFER_FD.id(), 8, 0)), Errno::INVAL);
    // An input of 4 bytes.
    for len in [0, 3, 5, 8] {
        let mut attributes = valid.clone();
        attributes[1].len = len;
        assert_eq!(call::<CqCreate>(&file, &attributes), Err(Errno::INVAL), "{len}");
    }
    let mut keys = [0_u64; 4];
    for (handle, len, expected) in [(7, 0, Errno::NOENT), (u64::MAX, 0, Errno::INVAL), (7, 1, Errno::INVAL)] {
        assert_eq!(
            call::<MrDestroy>(&file, &[attribute(MrDestroy::HANDLE.id(), len, handle)]),
            Err(expected)
        );
        let attributes = [
            attribute(QueryMr::HANDLE.id(), len, handle),
            attribute(QueryMr::RESP_LKEY.id(), 4, address(&mut keys[0])),
            attribute(QueryMr::RESP_RKEY.id(), 4, address(&mut keys[1])),
            attribute(QueryMr::RESP_LENGTH.id(), 8, address(&mut keys[2])),
        ];
        assert_eq!(call::<QueryMr>(&file, &attributes), Err(expected));
    }
    // A CQ is no MR.
    assert_eq!(call::<MrDestroy>(&file, &[attribute(MrDestroy::HANDLE.id(), 0, cq)]), Err(Errno::INVAL));
    let mut events = [0_u32; 2];
    let destroy =
        [attribute(CqDestroy::HANDLE.id(), 0, cq), attribute(CqDestroy::RESP.id(), 8, address(&mut events))];
    assert!(call::<CqDestroy>(&file, &destroy).is_ok());
}

#[test]
fn list_of_advice_is_read_first() {
    let file = opened();
    let mut sges = [0_u64; 4];
    let with = |pd: u32, sges: Attribute| {
        let attributes = [
            attribute(AdviseMr::PD_HANDLE.id(), 0, pd.into()),
            attribute(AdviseMr::ADVICE.id(), 8, 0),
            attribute(AdviseMr::FLAGS.id(), 4, 0),
            sges,
        ];
        call::<AdviseMr>(&file, &attributes).err()
    };
    let list = attribute(AdviseMr::SGE_LIST.id(), 32, address(&mut sges));
    assert_eq!(with(7, list), Some(Errno::NOENT), "there is no such PD");
    let mut made = AllocPdResp::zeroed();
    // SAFETY: the request names no memory.
    unsafe { file.invoke::<write::AllocPd>(&AllocPdReq::zeroed(), &mut made) }.unwrap();
    let pd = made.pd_handle;
    assert_eq!(with(pd, Attribute { data: 0, ..list }), Some(Errno::FAULT));
    assert_eq!(with(pd, Attribute { len: 15, ..list }), Some(Errno::INVAL));
    // Soft devices have no on-demand memory.
    assert_eq!(with(pd, list), Some(Errno::OPNOTSUPP));
}
