//! `bareverbs decode`: the kernel's RDMA messages as names and values.

use anyhow::{Context as _, Result, ensure};
use bareverbs_trace::decode::{Form, Found, Message, guess, messages_of_text};

use crate::cli::conform::{Decode, InputForm, MessageKind, TextOrJson};
use crate::{dump, output};

/// `bareverbs decode`.
pub(crate) fn show(options: &Decode) -> Result<()> {
    let (kind, file) = options.kind_and_file().map_err(anyhow::Error::msg)?;
    let text = describe(dump::read(file)?, kind, options.from, options.format)?;
    Ok(output::line(text.trim_end())?)
}

/// Decodes the messages in the input.
fn describe(input: Vec<u8>, kind: MessageKind, from: InputForm, format: TextOrJson) -> Result<String> {
    let mut text = String::new();
    for found in messages(input, from)? {
        let message = match message(kind) {
            Some(message) => message,
            None => found.message.context(
                "the bytes don't show what they are: name the kind, for example `bareverbs decode write`",
            )?,
        };
        let decoded = found.decode(message);
        text += &match format {
            TextOrJson::Text => decoded.text,
            TextOrJson::Json => serde_json::to_string(&decoded)?,
        };
        text.push('\n');
    }
    Ok(text)
}

fn messages(input: Vec<u8>, form: InputForm) -> Result<Vec<Found>> {
    ensure!(!input.is_empty(), "the input is empty");
    let text = match form {
        InputForm::Raw => None,
        InputForm::Auto => std::str::from_utf8(&input).ok().filter(|text| !text.contains('\0')),
        _ => Some(std::str::from_utf8(&input).context("the input is not text")?),
    };
    let Some(text) = text else {
        return Ok(vec![Found { message: guess(&input), bytes: input, after: None, truncated: false }]);
    };
    let form = match form {
        InputForm::Auto | InputForm::Raw => Form::of(text),
        InputForm::Hex => Form::Hex,
        InputForm::Xxd => Form::Xxd,
        InputForm::Od => Form::Od,
        InputForm::Hexdump => Form::Hexdump,
        InputForm::Strace => Form::Strace,
    };
    Ok(messages_of_text(text, form)?)
}

fn message(kind: MessageKind) -> Option<Message> {
    match kind {
        MessageKind::Auto => None,
        MessageKind::Ioctl => Some(Message::Ioctl),
        MessageKind::Write => Some(Message::Write),
        MessageKind::RdmaCm => Some(Message::RdmaCm),
        MessageKind::RdmaCmEvent => Some(Message::RdmaCmEvent),
        MessageKind::Nldev => Some(Message::Nldev),
        MessageKind::CompletionEvent => Some(Message::CompletionEvent),
        MessageKind::AsyncEvent => Some(Message::AsyncEvent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEALLOC_PD: &[u8] = &[4, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0];

    fn auto(input: impl Into<Vec<u8>>) -> Result<String> {
        describe(input.into(), MessageKind::Auto, InputForm::Auto, TextOrJson::Text)
    }

    #[test]
    fn forms_and_kinds_are_found_by_the_input() {
        for input in [
            DEALLOC_PD,
            b"04000000 03000000 07000000\n",
            b"00000000: 0400 0000 0300 0000 0700 0000            ............\n",
            b"0000000 04 00 00 00 03 00 00 00 07 00 00 00\n0000014\n",
            b"write(3, \"\\4\\0\\0\\0\\3\\0\\0\\0\\7\\0\\0\\0\", 12) = 12\n",
        ] {
            assert_eq!(auto(input).unwrap(), "DeallocPd: DeallocPdReq { pd_handle: 7 }\n");
        }
        let unknown = auto(b"0102").unwrap_err().to_string();
        assert!(unknown.contains("name the kind"), "{unknown}");
        let wrong = describe(b"no dump".to_vec(), MessageKind::Write, InputForm::Od, TextOrJson::Text);
        let wrong = wrong.unwrap_err().to_string();
        assert!(wrong.contains("hexdump -C"), "{wrong}");
        assert!(auto(Vec::new()).is_err());
    }

    #[test]
    fn output_is_one_json_object_for_each_message() {
        let line = "write(3, \"\\4\\0\\0\\0\\3\\0\\0\\0\\7\\0\\0\\0\", 12) = 12\n";
        let lines = [line, "close(3) = 0\n", line].concat().into_bytes();
        let text = describe(lines, MessageKind::Auto, InputForm::Strace, TextOrJson::Json).unwrap();
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!((&value["kind"], &value["request"]["pd_handle"]), (&"write".into(), &7.into()));
        }
    }

    #[test]
    fn ioctls_without_bytes_are_shown_among_other_calls() {
        let text = [
            "ioctl(3</dev/infiniband/uverbs0<char 231:192>>, RDMA_VERBS_IOCTL, 0x7ffe5ec3d7f0) = 0\n",
            "write(3</dev/infiniband/uverbs0<char 231:192>>, \"\\4\\0\\0\\0\\3\\0\\0\\0\\7\\0\\0\\0\", 12) = 12\n",
        ];
        assert_eq!(
            auto(text.concat()).unwrap(),
            "ioctl <strace printed only its address>\nDeallocPd: DeallocPdReq { pd_handle: 7 }\n"
        );
        let only = auto(text[0]).unwrap_err().to_string();
        assert!(only.contains("bareverbs trace"), "{only}");
    }

    /// Lines of `strace -v` 7.2 and `strace -f` 7.2.
    #[test]
    fn buffers_before_and_after_an_ioctl_are_separate_in_text_and_json() {
        let header = r"\x28\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00";
        let arrow = format!(
            "ioctl(3, RDMA_VERBS_IOCTL, \"{header}\\x00\\x00\\x00\\x00\" => \
             \"{header}\\x01\\x00\\x00\\x00\") = 0\n"
        );
        let lines = arrow + "ioctl(3, RDMA_VERBS_IOCTL, 0x7ffd35dd9de0) = 0\n";
        let shown =
            |format| describe(lines.clone().into(), MessageKind::Auto, InputForm::Strace, format).unwrap();
        let text = shown(TextOrJson::Text);
        let text: Vec<_> = text.lines().collect();
        assert_eq!(text.len(), 2);
        assert_eq!(text[0].matches("<strace printed 0 of 1 attributes").count(), 2, "{}", text[0]);
        assert!(text[0].contains("> => ") && !text[0].contains("malformed"), "{}", text[0]);
        assert_eq!(text[1], "ioctl <strace printed only its address>");
        let json = shown(TextOrJson::Json);
        let json: Vec<serde_json::Value> =
            json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for value in [&json[0], &json[0]["after"]] {
            assert_eq!((&value["truncated"], &value["attributes"]), (&true.into(), &serde_json::json!([])));
        }
        assert_eq!(json[0]["text"], text[0]);
        assert_eq!(json[1], serde_json::json!({"kind": "ioctl", "text": text[1], "truncated": true}));
    }

    #[test]
    fn strings_that_strace_cut_are_marked() {
        let line = "write(3</dev/infiniband/uverbs0>, \"\\4\\0\\0\\0\\3\\0\"..., 12) = 12\n";
        let text = auto(line).unwrap();
        assert!(text.ends_with("<truncated by strace: use its option -s 65536>\n"), "{text}");
    }
}
