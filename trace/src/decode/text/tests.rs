use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

fn bytes_of(text: &str) -> Result<Vec<u8>, TextError> {
    messages_of_text(text, Form::of(text)).map(|mut found| found.remove(0).bytes)
}

#[test]
fn texts_of_several_tools_have_the_same_bytes() {
    for (text, form) in [
        ("18001bff", Form::Hex),
        ("18 00 1b ff", Form::Hex),
        ("0x18, 0x00, 0x1b, 0xff", Form::Hex),
        (r"\x18\x00\x1b\xff", Form::Hex),
        ("[   12.3] 00000000: 18 00 1b ff", Form::Xxd),
        ("00000000: 1800 1bff  ....", Form::Xxd),
        ("0000000 18 00 1b ff\n0000004\n", Form::Od),
        ("00000000  18 00 1b ff                                       |....|\n00000004\n", Form::Hexdump),
        (r#"write(3, "\30\0\33\377", 4) = 4"#, Form::Strace),
        (r#""\x18\x00\x1b\xff""#, Form::Strace),
    ] {
        assert_eq!(Form::of(text), form, "{text}");
        let found = if text.starts_with("write") {
            strings(text).map(|found| found.bytes)
        } else {
            bytes_of(text).ok()
        };
        assert_eq!(found, Some(vec![0x18, 0, 0x1b, 0xff]), "{text}");
    }
    assert_eq!(bytes_of("no bytes here"), Err(TextError::Empty));
    assert_eq!(bytes_of("\"unfinished"), Err(TextError::Empty));
    assert_eq!(bytes_of("0000000 0018 ff1b\n0000004\n"), Err(TextError::Words));
    let long = "00000000  18 00  |..|\n*\n7fffffff\n";
    assert_eq!(bytes_of(long), Err(TextError::TooLong));
}

#[test]
fn output_of_strace_has_each_message() {
    let text = r#"[pid  12] openat(AT_FDCWD, "/dev/infiniband/uverbs0", O_RDWR|O_CLOEXEC) = 3
[pid  12] 12:00:01.5 write(3</dev/infiniband/uverbs0<char 231:192>>, "\4\0\0\0\3\0\0\0\7\0\0\0", 12) = 12
write(1, "text\n", 5) = 5
ioctl(3, TCGETS, {c_iflag=ICRNL}) = 0
ioctl(3, RDMA_VERBS_IOCTL, "\x18\x00") = -1 EINVAL (Invalid argument)
<... write resumed>"\1\0\0\0"..., 200) = 200
sendto(5, [{nlmsg_len=20, nlmsg_type=0x1401 /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST|0x300, nlmsg_seq=7, nlmsg_pid=0}, "\x01\x02\x03\x04"], 20, 0, NULL, 0) = 20
read(4<anon_inode:[infinibandevent]>, "\1\0\0\0\0\0\0\0", 16) = 8
"#;
    let found = messages_of_text(text, Form::of(text)).unwrap();
    let kinds: Vec<_> = found.iter().map(|found| (found.message, found.bytes.len())).collect();
    assert_eq!(
        kinds,
        [
            (Some(Message::Write), 12),
            (Some(Message::Ioctl), 2),
            (Some(Message::Nldev), 20),
            (Some(Message::CompletionEvent), 8),
        ]
    );
    assert_eq!(found[2].bytes[..16], [20, 0, 0, 0, 1, 0x14, 1, 3, 7, 0, 0, 0, 0, 0, 0, 0]);
    let only = "ioctl(3, RDMA_VERBS_IOCTL, 0x7ffd7a5b1d90) = 0\n";
    assert_eq!(messages_of_text(only, Form::of(only)), Err(TextError::AddressOnly));
    let cut = r#"write(3</dev/infiniband/uverbs0>, "\4\0\0\0\3\0"..., 12) = 12"#;
    assert!(messages_of_text(cut, Form::Strace).unwrap()[0].truncated);
}

/// Lines of strace 6.1 and 7.2 by several options: `-tt -r`, `-i`, `-n`, `-f -Y`, `-N`, `-X verbose`,
/// `-e raw=ioctl`, `-T`, `--color=always`.
#[test]
fn prefixes_names_and_colors_of_strace_are_skipped() {
    let write = r#"write(3, "\4\0\0\0\3\0\0\0\7\0\0\0", 12) = 12"#;
    for (prefix, suffix) in [
        ("21:58:13.922366 (+     0.000055) ", ""),
        ("[00007f45d9c51350] ", ""),
        ("[   1] ", ""),
        ("[pid  5031<(q)>] ", ""),
        ("5031  1795903093.952205 ", ""),
        ("     0.000056294 ", " <0.000006630>"),
    ] {
        let text = format!("{prefix}{write}{suffix}\n");
        assert_eq!(decoded(&text), ["DeallocPd: DeallocPdReq { pd_handle: 7 }"], "{text}");
    }
    let named = r#"write(fd=3, buf="\4\0\0\0\3\0\0\0\7\0\0\0", count=12) = 12"#;
    assert_eq!(decoded(named), ["DeallocPd: DeallocPdReq { pd_handle: 7 }"]);
    let colored =
        "\x1b[33mwrite\x1b[0m(\x1b[35m3\x1b[0m, \x1b[35m\"\\4\\0\\0\\0\\3\\0\\0\\0\\7\\0\\0\\0\"\x1b[0m, 12)";
    assert_eq!(decoded(colored), ["DeallocPd: DeallocPdReq { pd_handle: 7 }"]);
    for ioctl in
        ["3, 0xc0181b01 /* RDMA_VERBS_IOCTL */, 0x8", "0x3, 0xc0181b01, 0x8", "3, RDMA_VERBS_IOCTL, 0x8"]
    {
        let text = format!("ioctl({ioctl}) = -1 ENOTTY (Inappropriate ioctl for device)\n{write}\n");
        let found = messages_of_text(&text, Form::of(&text)).unwrap();
        assert_eq!((found.len(), found[0].message), (2, Some(Message::Ioctl)), "{text}");
    }
    let threads = r#"[pid  5011] read(4,  <unfinished ...>
[pid  5010] write(5, "\4\0\0\0\3\0\0\0\7\0\0\0", 12 <unfinished ...>
[pid  5011] <... read resumed>"\4\0\0\0\3\0\0\0\7\0\0\0", 24) = 12
[pid  5010] <... write resumed>)       = 12
"#;
    assert_eq!(decoded(threads), ["DeallocPd: DeallocPdReq { pd_handle: 7 }"]);
}

/// Lines of `strace -f -yy -xx -s 65536` of rdma-core's `ibv_rc_pingpong -e`.
#[test]
fn escaped_names_of_files_are_read() {
    let text = r#"148   ioctl(3<\x2f\x64\x65\x76\x2f\x69\x6e\x66\x69\x6e\x69\x62\x61\x6e\x64\x2f\x75\x76\x65\x72\x62\x73\x30<char 231:192>>, RDMA_VERBS_IOCTL, 0x7ffd495b4290) = -1 ENOSPC (No space left on device)
148   read(5<\x61\x6e\x6f\x6e\x5f\x69\x6e\x6f\x64\x65\x3a\x5b\x69\x6e\x66\x69\x6e\x69\x62\x61\x6e\x64\x65\x76\x65\x6e\x74\x5d>, "\x10\x30\xea\x9e\xb1\x55\x00\x00", 8) = 8
148   read(4<\x2f\x65\x74\x63\x2f\x6c\x69\x62\x69\x62\x76\x65\x72\x62\x73\x2e\x64\x2f\x72\x78\x65\x2e\x64\x72\x69\x76\x65\x72>, "\x64\x72\x69\x76\x65\x72\x20\x72\x78\x65\x0a", 8192) = 11
"#;
    let found = messages_of_text(text, Form::of(text)).unwrap();
    let kinds: Vec<_> = found.iter().map(|found| (found.message, found.bytes.len())).collect();
    assert_eq!(kinds, [(Some(Message::Ioctl), 0), (Some(Message::CompletionEvent), 8)]);
}

/// Lines of `strace -f -s 65536 -e trace=network` of rdma-core's `ibv_devices`.
#[test]
fn netlink_ports_may_be_negative() {
    let text = r#"127   sendmsg(3, {msg_name={sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, msg_namelen=12, msg_iov=[{iov_base={nlmsg_len=16, nlmsg_type=0x1401 /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST|0x300, nlmsg_seq=2499137206, nlmsg_pid=-1807744897}, iov_len=16}], msg_iovlen=1, msg_controllen=0, msg_flags=0}, 0) = 16
127   sendmsg(3, {msg_name={sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, msg_namelen=12, msg_iov=[{iov_base=[{nlmsg_len=36, nlmsg_type=0x140f /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST, nlmsg_seq=2499137207, nlmsg_pid=-1807744897}, "\x08\x00\x01\x00\x00\x00\x00\x00\x0b\x00\x45\x00\x75\x76\x65\x72\x62\x73\x00\x00"], iov_len=36}], msg_iovlen=1, msg_controllen=0, msg_flags=0}, 0) = 36
"#;
    let found = messages_of_text(text, Form::of(text)).unwrap();
    let kinds: Vec<_> = found.iter().map(|found| (found.message, found.bytes.len())).collect();
    assert_eq!(kinds, [(Some(Message::Nldev), 16), (Some(Message::Nldev), 36)]);
    assert_eq!(found[0].bytes[12..16], (-1_807_744_897_i32).to_ne_bytes());
}

fn decoded(text: &str) -> Vec<String> {
    let found = messages_of_text(text, Form::of(text)).unwrap();
    found.iter().map(|found| crate::decode::decode(found.message.unwrap(), &found.bytes).text).collect()
}

/// Lines of strace 6.1, with the message type of nldev: an error, an acknowledgement with the text of the
/// kernel, the end of a dump, the same by `-X raw` and `-X verbose`.
#[test]
fn acknowledgements_of_netlink_are_decoded() {
    let text = r#"5553  recvfrom(3, [{nlmsg_len=44, nlmsg_type=NLMSG_ERROR, nlmsg_flags=0, nlmsg_seq=9, nlmsg_pid=5553}, {error=-ENOENT, msg=[{nlmsg_len=24, nlmsg_type=0x1401 /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST|NLM_F_ACK, nlmsg_seq=9, nlmsg_pid=0}, "\x08\x00\x01\x00\x4d\x00\x00\x00"]}], 4096, 0, NULL, NULL) = 44
5553  recvfrom(3, [{nlmsg_len=64, nlmsg_type=0x2, nlmsg_flags=0x300, nlmsg_seq=9, nlmsg_pid=5553}, [{error=-22, msg={nlmsg_len=24, nlmsg_type=0x1401, nlmsg_flags=0x5, nlmsg_seq=9, nlmsg_pid=0}}, [{nla_len=26, nla_type=0x1}, "Invalid header length"]]], 4096, 0, NULL, NULL) = 64
5553  recvfrom(3, [{nlmsg_len=44, nlmsg_type=0x2 /* NLMSG_ERROR */, nlmsg_flags=0x300 /* NLM_F_CAPPED|NLM_F_ACK_TLVS */, nlmsg_seq=9, nlmsg_pid=5553}, [{error=-22 /* -EINVAL */, msg={nlmsg_len=24, nlmsg_type=0x1401 /* NLMSG_??? */, nlmsg_flags=0x5 /* NLM_F_REQUEST|NLM_F_ACK */, nlmsg_seq=9, nlmsg_pid=0}}, [{nla_len=8, nla_type=0x2 /* NLMSGERR_ATTR_OFFS */}, 24]]], 4096, 0, NULL, NULL) = 44
127   recvmsg(3, {msg_name={sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, msg_namelen=12, msg_iov=[{iov_base=[{nlmsg_len=36, nlmsg_type=NLMSG_ERROR, nlmsg_flags=NLM_F_CAPPED, nlmsg_seq=9, nlmsg_pid=5553}, {error=0, msg={nlmsg_len=24, nlmsg_type=0x1401 /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST|NLM_F_ACK, nlmsg_seq=9, nlmsg_pid=0}}], iov_len=16384}], msg_iovlen=1, msg_controllen=0, msg_flags=0}, 0) = 36
127   recvmsg(3, {msg_name={sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, msg_namelen=12, msg_iov=[{iov_base=[{nlmsg_len=20, nlmsg_type=NLMSG_DONE, nlmsg_flags=NLM_F_MULTI, nlmsg_seq=9, nlmsg_pid=-1807744897}, 0], iov_len=16384}], msg_iovlen=1, msg_controllen=0, msg_flags=0}, 0) = 20
"#;
    assert_eq!(
        decoded(text),
        [
            "refused seq 9 GET errno 2",
            "refused seq 9 GET errno 22 \"Invalid header length\"",
            "refused seq 9 GET errno 22 at byte 24",
            "acknowledged seq 9 GET",
            "done seq 9",
        ]
    );
}

/// The sockets of other protocols end their dumps with the same message.
#[test]
fn messages_of_other_netlink_protocols_are_skipped() {
    let text = r#"137   sendto(6<NETLINK:[111]>, [{nlmsg_len=20, nlmsg_type=0x16 /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST|0x300, nlmsg_seq=5, nlmsg_pid=0}, "\x00\x00\x00\x00"], 20, 0, {sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, 12) = 20
137   recvmsg(6<NETLINK:[111]>, {msg_name={sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, msg_namelen=12, msg_iov=[{iov_base=[{nlmsg_len=20, nlmsg_type=NLMSG_DONE, nlmsg_flags=NLM_F_MULTI, nlmsg_seq=5, nlmsg_pid=137}, 0], iov_len=4096}], msg_iovlen=1, msg_controllen=0, msg_flags=0}, 0) = 20
[pid   138] recvmsg(6<NETLINK:[112]>, {msg_name={sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, msg_namelen=12, msg_iov=[{iov_base=[{nlmsg_len=20, nlmsg_type=NLMSG_DONE, nlmsg_flags=NLM_F_MULTI, nlmsg_seq=6, nlmsg_pid=137}, 0], iov_len=4096}], msg_iovlen=1, msg_controllen=0, msg_flags=0}, 0) = 20
"#;
    assert_eq!(decoded(text), ["done seq 6"]);
    let other = text.lines().next().unwrap();
    let ours = other.replace("0x16 ", "0x1401 ").replace("\\x00\\x00\\x00\\x00", "\\x04\\x00\\x01\\x00");
    let text = [other, &ours, text.lines().nth(1).unwrap()].join("\n");
    assert_eq!(decoded(&text).len(), 2, "the descriptor is reused");
    let text = r#"sendto(4, [{nlmsg_len=24, nlmsg_type=RTM_SETLINK, nlmsg_flags=NLM_F_REQUEST|NLM_F_ACK, nlmsg_seq=9, nlmsg_pid=0}, {ifi_family=AF_ATMPVC, ...}], 24, 0, NULL, 0) = 24
recvfrom(4, [{nlmsg_len=36, nlmsg_type=NLMSG_ERROR, nlmsg_flags=NLM_F_CAPPED, nlmsg_seq=9, nlmsg_pid=5553}, {error=-EINVAL, msg={nlmsg_len=24, nlmsg_type=0x13, nlmsg_flags=NLM_F_REQUEST|NLM_F_ACK, nlmsg_seq=9, nlmsg_pid=0}}], 4096, 0, NULL, NULL) = 36
"#;
    assert_eq!(messages_of_text(text, Form::of(text)), Err(TextError::Empty));
}

/// Without `-s 65536`, strace leaves out the end.
#[test]
fn truncated_messages_of_netlink_are_found() {
    let text = r#"recvmsg(3, {msg_name={sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}, msg_namelen=12, msg_iov=[{iov_base=[{nlmsg_len=116, nlmsg_type=0x1401 /* NLMSG_??? */, nlmsg_flags=NLM_F_MULTI, nlmsg_seq=7, nlmsg_pid=9}, "\x08\x00\x01\x00\x00\x00\x00\x00"...], iov_len=16384}], msg_iovlen=1, msg_controllen=0, msg_flags=0}, 0) = 116
"#;
    let found = messages_of_text(text, Form::of(text)).unwrap();
    assert_eq!(
        (found[0].message, found[0].bytes.len(), found[0].truncated),
        (Some(Message::Nldev), 24, true)
    );
}

/// Lines of `strace -e write=3 -e read=3`, which print a line before each buffer.
#[test]
fn dumped_buffers_complete_a_message() {
    let text = r#"sendmsg(3, {msg_name=NULL, msg_namelen=0, msg_iov=[{iov_base="\30\0\0\0\1\24"..., iov_len=24}], msg_iovlen=1, msg_controllen=0, msg_flags=0}, 0) = 24
 * 24 bytes in buffer 0
 | 00000  18 00 00 00 01 14 05 00  09 00 00 00 00 00 00 00  ................ |
 | 00010  08 00 01 00 4d 00 00 00                           ....M...         |
"#;
    assert_eq!(decoded(text), ["GET REQUEST | ACK seq 9 { DEV_INDEX 77 }"]);
}

#[test]
fn dumped_lines_of_strace_complete_a_call() {
    let text = r#"write(3</dev/infiniband/uverbs0>, "\31\0\0\0\6\0"..., 24) = 24
 | 00000  19 00 00 00 06 00 20 00  78 40 3f 1a fd 7f 00 00  ...... .x@?..... |
 | 00010  07 00 00 00 01 00 00 00                           ........         |
"#;
    let found = messages_of_text(text, Form::of(text)).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].message, found[0].bytes.len(), found[0].truncated),
        (Some(Message::Write), 24, false)
    );
    assert_eq!(found[0].bytes[16], 7);
}

/// Lines of 16 bytes by `line`, without those that are the same as the one before, which `*` stands
/// for.
fn lines(bytes: &[u8], line: impl Fn(usize, &[u8]) -> String, end: &str) -> String {
    let mut text = String::new();
    let chunks: Vec<_> = bytes.chunks(16).collect();
    let mut starred = false;
    for (i, chunk) in chunks.iter().enumerate() {
        let same = !end.is_empty() && i > 0 && *chunk == chunks[i - 1] && chunk.len() == 16;
        if !same {
            text += &line(16 * i, chunk);
        } else if !starred {
            text += "*\n";
        }
        starred = same;
    }
    text + end
}

fn pairs(bytes: &[u8], separator: &str) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(separator)
}

fn graphic(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| if (0x20..0x7f).contains(&byte) { char::from(byte) } else { '.' }).collect()
}

fn escaped(bytes: &[u8], octal: bool) -> String {
    let mut text = String::new();
    for (i, byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => text += "\\\"",
            b'\\' => text += "\\\\",
            b'\n' if octal => text += "\\n",
            0x20..0x7f if octal => text.push(char::from(*byte)),
            // A digit behind it would be taken for a part of the number.
            _ if octal && bytes.get(i + 1).is_some_and(u8::is_ascii_digit) => {
                write!(text, "\\{byte:03o}").unwrap()
            }
            _ if octal => write!(text, "\\{byte:o}").unwrap(),
            _ => write!(text, "\\x{byte:02x}").unwrap(),
        }
    }
    text
}

proptest! {
    #[test]
    fn every_form_has_the_bytes_that_were_printed(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 1..100),
            // Repeated lines.
            (any::<u8>(), 1_usize..9).prop_map(|(byte, lines)| vec![byte; 16 * lines]),
        ],
    ) {
        let hexdump = lines(
            &bytes,
            |at, chunk| {
                let (left, right) = chunk.split_at(chunk.len().min(8));
                format!("{at:08x}  {}  {:24} |{}|\n", pairs(left, " "), pairs(right, " "), graphic(chunk))
            },
            &format!("{:08x}\n", bytes.len()),
        );
        let od = lines(&bytes, |at, chunk| format!("{at:07o} {}\n", pairs(chunk, " ")), &format!("{:07o}\n", bytes.len()));
        let xxd = lines(
            &bytes,
            |at, chunk| {
                let words: Vec<_> = chunk.chunks(2).map(|chunk| pairs(chunk, "")).collect();
                format!("{at:08x}: {:39}  {}\n", words.join(" "), graphic(chunk))
            },
            "",
        );
        let plain = lines(&bytes, |_, chunk| pairs(chunk, "") + "\n", "");
        let spaced = lines(&bytes, |_, chunk| format!(" {}\n", pairs(chunk, " ")), "");
        for (text, form) in [
            (&hexdump, Form::Hexdump),
            (&od, Form::Od),
            (&xxd, Form::Xxd),
            (&plain, Form::Hex),
            (&spaced, Form::Hex),
        ] {
            let found = messages_of_text(text, form);
            prop_assert_eq!(found.map(|mut found| found.remove(0).bytes), Ok(bytes.clone()), "{}", text);
        }
        for (text, form) in [(&hexdump, Form::Hexdump), (&od, Form::Od), (&xxd, Form::Xxd)] {
            if !graphic(&bytes).contains('"') {
                prop_assert_eq!(Form::of(text), form, "{}", text);
            }
        }
        for octal in [true, false] {
            let text = format!("ioctl(3, RDMA_VERBS_IOCTL, \"{}\") = 0", escaped(&bytes, octal));
            let found = messages_of_text(&text, Form::of(&text));
            prop_assert_eq!(found.map(|mut found| found.remove(0).bytes), Ok(bytes.clone()), "{}", text);
        }
    }

    #[test]
    fn any_text_is_read_without_panic(text in "[ -~\n]{0,200}|\\PC{0,100}") {
        for form in [Form::Hex, Form::Xxd, Form::Od, Form::Hexdump, Form::Strace, Form::of(&text)] {
            if let Ok(found) = messages_of_text(&text, form) {
                prop_assert!(!found.is_empty());
            }
        }
    }

    #[test]
    fn any_line_of_strace_is_read_without_panic(
        name in prop::sample::select(CALLS.to_vec()),
        rest in "[ -~]{0,20}(\"[ -~]{0,40}\")?[{}, =a-z_0-9\"]{0,40}",
        dump in "[0-9a-f |.]{0,60}",
    ) {
        let text = format!("{name}(3, {rest}\n | {dump}\n<... {name} resumed>{rest}");
        let _ = messages_of_text(&text, Form::of(&text));
    }
}

#[test]
fn escapes_of_c_are_the_bytes_of_their_characters() {
    let text = r#"write(3, "\a\v\f\t\r\n\"\\\0\7\101\1012", 12) = 12"#;
    let found = strings(text).map(|found| found.bytes);
    assert_eq!(found.unwrap()[1..], [0x0b, 0x0c, 9, 13, 10, b'"', b'\\', 0, 7, b'A', b'A', b'2']);
}

#[test]
fn types_of_netlink_messages_have_names_or_numbers() {
    let names =
        [("NLMSG_NOOP", 1), ("NLMSG_ERROR", 2), ("NLMSG_DONE", 3), ("NLMSG_OVERRUN", 4), ("0x1401", 0x1401)];
    for (name, kind) in names {
        let text = format!("nlmsg_len=16, nlmsg_type={name}, nlmsg_flags=0, nlmsg_seq=7, nlmsg_pid=9");
        let header = netlink_header(&text).unwrap();
        assert_eq!((header.length, header.kind, header.seq, header.port), (16, kind, 7, 9), "{name}");
    }
}

#[test]
fn netlink_messages_are_aligned() {
    let header = "nlmsg_type=0x1401, nlmsg_flags=0, nlmsg_seq=0, nlmsg_pid=0";
    let text = format!("{{nlmsg_len=17, {header}}}, \"\\1\"], [{{nlmsg_len=16, {header}}}");
    let bytes = strings(&text).unwrap().bytes;
    assert_eq!((bytes.len(), bytes[16], bytes[20]), (36, 1, 16));
}

#[test]
fn repeated_lines_expand_to_1_mib() {
    let dump = |end: usize| format!("00000000  18 00  |..|\n*\n{end:08x}\n");
    let found = messages_of_text(&dump(MAX_BYTES), Form::Hexdump).unwrap();
    assert_eq!(found[0].bytes.len(), MAX_BYTES);
    assert_eq!(messages_of_text(&dump(MAX_BYTES + 2), Form::Hexdump), Err(TextError::TooLong));
}
