use bareverbs_uapi::abi::AbiStruct;
use bareverbs_uapi::write::structs::{AllocPdResp, CreateCqReq, RegMrReq};
use zerocopy::IntoBytes;

use super::*;

fn record(result: i64) -> Record {
    Record {
        time: 5,
        duration: 7,
        process: 1,
        thread: 1,
        call: CallKind::Write,
        fd: 3,
        interface: Interface::Uverbs { device: "rxe0".to_owned(), driver: DriverId::RXE.0 },
        result: Some(result),
        // ALLOC_PD with room for its response.
        request: [&[3, 0, 0, 0, 4, 0, 1, 0][..], &[0; 8]].concat(),
        overread: Vec::new(),
        inputs: vec![Chunk { address: 0x7000, bytes: vec![1, 2, 0xff] }],
        answer: AllocPdResp { pd_handle: 4, ..AllocPdResp::zeroed() }.as_bytes().to_vec(),
        outputs: Vec::new(),
    }
}

fn recording(header: &Header, records: &[Record]) -> String {
    let mut text = serde_json::to_string(header).unwrap() + "\n";
    for record in records {
        text += &(serde_json::to_string(record).unwrap() + "\n");
    }
    text
}

#[test]
fn recording_is_read_as_it_was_written() {
    let records = vec![record(16), record(-22)];
    let text = recording(&Header::of_this_kernel(), &records);
    assert_eq!(read(text.as_bytes()).unwrap(), records);
    let later = Header { version: VERSION + 1, ..Header::of_this_kernel() };
    let error = read(recording(&later, &records).as_bytes()).unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("version 2"), "{error}");
    for (from, to) in [("0102ff", "0102f"), ("0102ff", "0102fg"), ("\"process\"", "\"proc\"")] {
        let error = read(text.replace(from, to).as_bytes());
        assert!(matches!(error, Err(ReplayError::Line { line: 2, .. })), "{error:?}");
    }
}

#[test]
fn answers_differ_by_result_or_value_but_not_by_names() {
    let different = |here: &Record| {
        compare::first_difference(&record(16), here).map(|found| (found.place, found.recorded, found.here))
    };
    assert_eq!(different(&record(16)), None);
    let failed = Some(("result".to_owned(), "16".to_owned(), "-1 EINVAL".to_owned()));
    assert_eq!(different(&record(-22)), failed);
    // Another handle.
    let mut here = record(16);
    here.answer[0] = 9;
    assert_eq!(different(&here), None);

    // QUERY_PORT: the first word of its response is the state of the port, a value.
    let query = |first: u8| Record {
        request: [&[2, 0, 0, 0, 6, 0, 10, 0][..], &[0; 16]].concat(),
        answer: [&[first][..], &[0; 39]].concat(),
        ..record(24)
    };
    assert!(compare::first_difference(&query(1), &query(1)).is_none());
    assert!(compare::first_difference(&query(1), &query(2)).is_some());
}

#[test]
fn requests_have_the_names_of_the_replay() {
    let mut names = Names::default();
    let mut made = Vec::new();
    let response = |pd_handle| AllocPdResp { pd_handle, ..AllocPdResp::zeroed() };
    names.learn(&AllocPdResp::INFO, response(4).as_bytes(), response(9).as_bytes(), &mut made);
    let none = |_| None;

    let length = 5000;
    let mut request =
        RegMrReq { start: 0x7123, length, hca_va: 0x7123, pd_handle: 4, response: 77, ..RegMrReq::zeroed() };
    names.translate(&RegMrReq::INFO, request.as_mut_bytes(), &none);
    assert_eq!((request.pd_handle, request.response), (9, 0));
    assert!(request.start % 4096 == 0x123 && request.start == request.hca_va && request.start != 0x7123);
    // Addresses in the region are in the new one.
    let mut within = (0x7123_u64 + 100).to_ne_bytes();
    names.memory(&mut within, 8);
    assert_eq!(u64::from_ne_bytes(within), request.start + 100);

    for (recorded, here) in [(5, 12), (6, -1), (-1, -1)] {
        let mut request = CreateCqReq { comp_channel: recorded, ..CreateCqReq::zeroed() };
        names.translate(&CreateCqReq::INFO, request.as_mut_bytes(), &|fd| (fd == 5).then_some(12));
        assert_eq!(request.comp_channel, here);
    }
    assert!(made.is_empty());
}

#[test]
fn addresses_that_cannot_be_mapped_stay_unmapped() {
    let mut names = Names::default();
    for (recorded, length, here) in
        [(0_u64, 64, 0), (0x7000, 1 << 40, UNMAPPED), (0x7000, u64::MAX, UNMAPPED)]
    {
        let mut address = recorded.to_ne_bytes();
        names.memory(&mut address, length);
        assert_eq!(u64::from_ne_bytes(address), here);
    }
}
