//! Bytes as people paste them: hex dumps of several programs, and lines of strace.

use std::collections::HashSet;
use std::fmt;

use bareverbs_uapi::ioctl::{Header, VERBS_IOCTL};
use bareverbs_uapi::netlink::{self, MessageFlags, MessageHeader, ReportAttribute};
use bareverbs_uapi::nldev::Command;
use nix::errno::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::{Message, guess};

/// The largest input that repeated lines of a dump may expand to, in bytes. No message is larger.
const MAX_BYTES: usize = 1 << 20;

/// A form of bytes as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Hexadecimal digits, with `0x` or `\x` before each byte or without, as `xxd -p` and
    /// `od -An -tx1` print them.
    Hex,
    /// Lines of `xxd`, or of the kernel's log: an offset and a colon before the bytes.
    Xxd,
    /// Lines of `od -tx1`: an octal offset before the bytes.
    Od,
    /// Lines of `hexdump -C`: an offset before the bytes, and characters between bars after them.
    Hexdump,
    /// Calls as strace prints them, or strings with C's escapes.
    Strace,
}

impl Form {
    /// The form of a text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let text = &without_colors(text);
        if text.contains('"')
            || text.contains("{nlmsg_len=")
            || text.lines().any(|line| Call::of(line).is_some())
        {
            return Self::Strace;
        }
        let mut forms = text.lines().filter_map(|line| {
            let (_, rest) = line.trim_start().split_at_checked(offset_len(line.trim_start()))?;
            let offset = line.trim_start().len() - rest.len();
            let dump = rest.starts_with("  ") && offset >= 7 && rest.contains('|');
            match offset {
                _ if after_colon(line).is_some() => Some(Self::Xxd),
                8.. if dump => Some(Self::Hexdump),
                7 if rest.starts_with(' ') => Some(Self::Od),
                _ => None,
            }
        });
        forms.next().unwrap_or(Self::Hex)
    }
}

/// Number of hexadecimal digits at the start.
fn offset_len(line: &str) -> usize {
    line.bytes().take_while(u8::is_ascii_hexdigit).count()
}

/// What follows an offset with a colon.
fn after_colon(line: &str) -> Option<&str> {
    let (before, after) = line.split_once(": ")?;
    let offset = before.rsplit(' ').next()?;
    (offset.len() >= 4 && offset_len(offset) == offset.len()).then_some(after)
}

/// A message in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its kind, if the text or the bytes show it.
    pub message: Option<Message>,
    /// Its bytes; empty if strace printed only the address of an ioctl.
    pub bytes: Vec<u8>,
    /// The bytes after the call, if strace printed them behind `=>`.
    pub after: Option<Vec<u8>>,
    /// Whether strace left out its end.
    pub truncated: bool,
}

/// A text has no bytes that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextError {
    /// There are no bytes in the form.
    Empty,
    /// An address stands where the bytes of an ioctl are needed. strace prints no more.
    AddressOnly,
    /// The dump has numbers of more than one byte, whose byte order it does not say.
    Words,
    /// The dump has repeated lines that expand to more than 1 MiB.
    TooLong,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => {
                "the text has no bytes in that form: it may be the output of strace, xxd, xxd -p, od -tx1 or \
                 hexdump -C (`--from` chooses)"
            }
            Self::AddressOnly => {
                "strace prints only the address of a verbs ioctl, not its bytes: record the program with \
                 `bareverbs trace -- COMMAND`"
            }
            Self::Words => {
                "the dump has words of several bytes: print single bytes with `od -tx1` or `hexdump -C`"
            }
            Self::TooLong => "the repeated lines of the dump exceed 1 MiB",
        })
    }
}

impl std::error::Error for TextError {}

/// The messages in a text of a form, at least one.
///
/// A dump is one message. In the output of strace, calls of other interfaces are skipped.
///
/// # Errors
///
/// [`TextError`].
pub fn messages_of_text(text: &str, form: Form) -> Result<Vec<Found>, TextError> {
    if form == Form::Strace {
        return strace(&without_colors(text));
    }
    let bytes = dump(text, form)?;
    if bytes.is_empty() {
        return Err(TextError::Empty);
    }
    Ok(vec![Found { message: guess(&bytes), bytes, after: None, truncated: false }])
}

fn dump(text: &str, form: Form) -> Result<Vec<u8>, TextError> {
    let mut bytes = Vec::new();
    // The offset of the first line, and the last line if it is repeated.
    let mut start = None;
    let mut last = Vec::new();
    let mut repeated = false;
    for line in text.lines() {
        if line.trim() == "*" && form != Form::Hex {
            repeated = true;
            continue;
        }
        let Some((offset, digits)) = columns(line, form) else { continue };
        let words = digits.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        if matches!(form, Form::Od | Form::Hexdump) && words.clone().any(|word| word.len() > 2) {
            return Err(TextError::Words);
        }
        let Some(words) = words.map(word).collect::<Option<Vec<_>>>() else { continue };
        if let Some(offset) = offset {
            let start = *start.get_or_insert(offset);
            if repeated && !last.is_empty() {
                let end =
                    offset.checked_sub(start).filter(|end| *end <= MAX_BYTES).ok_or(TextError::TooLong)?;
                while bytes.len() + last.len() <= end {
                    bytes.extend_from_slice(&last);
                }
            }
        }
        repeated = false;
        last = words.concat();
        bytes.extend_from_slice(&last);
    }
    Ok(bytes)
}

/// The offset and the digits of a line.
fn columns(line: &str, form: Form) -> Option<(Option<usize>, &str)> {
    let line = line.trim_end();
    match form {
        Form::Hex | Form::Strace => Some((None, line)),
        Form::Xxd => {
            let digits = after_colon(line)?;
            let offset = line[..line.len() - digits.len() - 2].rsplit(' ').next()?;
            // The characters follow two spaces.
            let digits = digits.trim_start().split("  ").next()?;
            Some((usize::from_str_radix(offset, 16).ok(), digits))
        }
        Form::Od => {
            let (offset, digits) = line.trim_start().split_once(' ').unwrap_or((line.trim(), ""));
            let digits = digits.split('>').next()?;
            Some((Some(usize::from_str_radix(offset, 8).ok()?), digits))
        }
        Form::Hexdump => {
            let (offset, digits) = line.trim_start().split_once(' ').unwrap_or((line.trim(), ""));
            let digits = digits.split('|').next()?;
            Some((Some(usize::from_str_radix(offset, 16).ok()?), digits))
        }
    }
}

/// An even number of hexadecimal digits, with `0x` or `\x` before each byte or none.
fn word(word: &str) -> Option<Vec<u8>> {
    let digits = word.replace("\\x", "").replace("0x", "");
    let pairs = digits.as_bytes().chunks(2);
    let even = digits.len().is_multiple_of(2) && !digits.is_empty();
    let pair = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).ok().filter(|pair| offset_len(pair) == 2)?;
        u8::from_str_radix(digits, 16).ok()
    };
    pairs.map(pair).collect::<Option<Vec<u8>>>().filter(|_| even)
}

/// A call in a line of strace.
#[derive(Clone, Copy, Debug)]
struct Call<'a> {
    name: &'a str,
    arguments: &'a str,
}

const CALLS: [&str; 8] = ["ioctl", "write", "read", "sendto", "recvfrom", "sendmsg", "recvmsg", "send"];

impl<'a> Call<'a> {
    /// `name(arguments`, or `<... name resumed>arguments`, after a process id and a time or none.
    fn of(line: &'a str) -> Option<Self> {
        let line = without_prefix(line);
        let start = line.split(['(', '"']).next()?;
        if let Some((_, rest)) = line.split_once("<... ") {
            let (name, arguments) = rest.split_once(" resumed>")?;
            return CALLS.contains(&name).then_some(Self { name, arguments });
        }
        let name = start.rsplit(' ').next()?;
        let arguments = line.get(start.len() + 1..)?;
        (line.as_bytes().get(start.len()) == Some(&b'(') && CALLS.contains(&name))
            .then_some(Self { name, arguments })
    }

    /// Whether it is an ioctl that is not of uverbs.
    fn is_other_ioctl(&self) -> bool {
        let numbers = ["RDMA_VERBS_IOCTL", &format!("{VERBS_IOCTL:#x}"), "0x1b, 0x1,"];
        self.name == "ioctl" && !numbers.iter().any(|number| self.arguments.contains(number))
    }

    /// The kind of its message, by its name and the file of its descriptor, which `strace -y` prints.
    fn message(&self, bytes: &[u8]) -> Option<Message> {
        let file = self.arguments.split_once('<').map(|(_, file)| unescaped(file));
        let is = |start: &str| file.as_ref().is_some_and(|file| file.starts_with(start.as_bytes()));
        match self.name {
            "ioctl" => Some(Message::Ioctl),
            "write" if is("/dev/infiniband/rdma_cm") => Some(Message::RdmaCm),
            "write" if is("/dev/infiniband/uverbs") => Some(Message::Write),
            "read" if is("anon_inode:[infinibandevent]") => Message::event(bytes.len()),
            "write" | "sendto" | "recvfrom" | "sendmsg" | "recvmsg" | "send" => {
                guess(bytes).or_else(|| self.is_nldev(bytes).then_some(Message::Nldev))
            }
            _ => None,
        }
    }

    /// Whether it is a message of nldev, by its first header. Its end may be absent.
    fn is_nldev(&self, bytes: &[u8]) -> bool {
        let header = MessageHeader::read_from_prefix(bytes);
        let is_ours = header.is_ok_and(|(header, _)| Command::from_message_type(header.kind).is_some());
        self.is_netlink() && is_ours
    }

    /// Whether strace found a message of netlink in it.
    fn is_netlink(&self) -> bool {
        self.arguments.contains("{nlmsg_len=")
    }

    /// Its descriptor.
    fn descriptor(&self) -> &'a str {
        self.arguments.split([',', '<', ')']).next().unwrap_or_default()
    }
}

fn strace(text: &str) -> Result<Vec<Found>, TextError> {
    let mut found: Vec<Found> = Vec::new();
    let mut loose = Found { message: None, bytes: Vec::new(), after: None, truncated: false };
    // The call of the line before, and the bytes that lines ` | 00000  18 00 …` have shown of it.
    let mut dumped: Option<(Call<'_>, Vec<u8>)> = None;
    // Sockets of other netlink protocols, by process and descriptor. Acknowledgements of all protocols
    // are alike.
    let mut others: HashSet<(&str, &str)> = HashSet::new();
    for line in text.lines() {
        // The line before the dump of each buffer of a message.
        if line.starts_with(" * ") && line.contains(" bytes in buffer ") {
            continue;
        }
        if let Some((call, bytes)) = dumped.as_mut()
            && let Some(digits) = line.strip_prefix(" | ")
        {
            let digits = digits.split_once("  ").map_or("", |(_, digits)| digits);
            // The characters begin after three spaces or more, or after 16 bytes.
            let words = digits.split(' ').filter(|word| !word.is_empty()).take(16);
            let columns = digits.split("   ").next().map_or(0, |digits| digits.split_whitespace().count());
            bytes.extend(words.take(columns).map_while(word).flatten());
            if let Some(message) = call.message(bytes) {
                let whole =
                    Found { message: Some(message), bytes: bytes.clone(), after: None, truncated: false };
                let is_part = |last: &&mut Found| {
                    !last.bytes.is_empty()
                        && (bytes.starts_with(&last.bytes) || last.bytes.starts_with(bytes))
                };
                match found.last_mut().filter(is_part) {
                    Some(last) if last.bytes.len() <= bytes.len() => *last = whole,
                    Some(_) => {}
                    None => found.push(whole),
                }
            }
            continue;
        }
        dumped = None;
        let Some(call) = Call::of(line) else {
            if let Some(strings) = strings(line) {
                loose.bytes.extend(strings.bytes);
                loose.truncated |= strings.truncated;
            }
            continue;
        };
        if call.is_other_ioctl() {
            continue;
        }
        dumped = Some((call, Vec::new()));
        let strings = strings(call.arguments);
        if call.is_netlink() {
            let socket = (process(line), call.descriptor());
            let header =
                strings.as_ref().and_then(|found| MessageHeader::read_from_prefix(&found.bytes).ok());
            match header {
                Some((header, _)) if Command::from_message_type(header.kind).is_some() => {
                    others.remove(&socket);
                }
                Some((header, _)) if header.kind < netlink::MIN_TYPE => {}
                _ => {
                    others.insert(socket);
                }
            }
            if others.contains(&socket) {
                dumped = None;
                continue;
            }
        }
        let Some(Strings { bytes, after, truncated }) = strings else {
            if call.name == "ioctl" {
                let (message, bytes) = (Some(Message::Ioctl), Vec::new());
                found.push(Found { message, bytes, after: None, truncated: true });
            }
            continue;
        };
        if let Some(message) = call.message(&bytes) {
            let truncated = truncated || message == Message::Ioctl && is_header_only(&bytes);
            found.push(Found { message: Some(message), bytes, after, truncated });
        }
    }
    if found.is_empty() && !loose.bytes.is_empty() {
        loose.message = guess(&loose.bytes);
        found.push(loose);
    }
    if found.is_empty() {
        Err(TextError::Empty)
    } else if found.iter().all(|found| found.bytes.is_empty()) {
        Err(TextError::AddressOnly)
    } else {
        Ok(found)
    }
}

/// The process that strace prints before a call: `118   ` or `[pid   118] `. Empty if there is none.
fn process(line: &str) -> &str {
    let line = line.strip_prefix("[pid").unwrap_or(line).trim_start();
    &line[..line.bytes().take_while(u8::is_ascii_digit).count()]
}

/// Text that begins bytes in the arguments of a call: netlink headers, the error of `NLMSG_ERROR`, the
/// header of an attribute of it, and strings.
const TOKENS: [&str; 4] = ["{nlmsg_len=", "{error=", "{nla_len=", "\""];

/// The bytes in the arguments of a call.
struct Strings {
    bytes: Vec<u8>,
    /// The bytes after the call.
    after: Option<Vec<u8>>,
    /// Whether strace left out a part.
    truncated: bool,
}

/// Whether an ioctl ends before the length that its header states. `strace -v` prints the header only.
fn is_header_only(bytes: &[u8]) -> bool {
    Header::read_from_prefix(bytes).is_ok_and(|(header, _)| bytes.len() < usize::from(header.length))
}

/// The string behind `=>`: the buffer after the call.
fn after_call(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    string_into(&mut bytes, text.strip_prefix('"')?.as_bytes())?;
    Some(bytes)
}

/// The bytes of all strings and of netlink's decoded parts in the arguments of a call. Messages and
/// attributes of netlink are aligned to 4 bytes.
fn strings(arguments: &str) -> Option<Strings> {
    let mut bytes = Vec::new();
    let mut after = None;
    let mut truncated = false;
    let mut rest = arguments;
    // The end of the last attribute. strace prints its string without the NUL.
    let mut end = 0;
    loop {
        let next = TOKENS.iter().filter_map(|token| Some((rest.find(token)?, *token))).min();
        if next.is_none_or(|(_, token)| token != "\"") && bytes.len() + 1 == end {
            bytes.push(0);
        }
        let Some((at, token)) = next else {
            // The length of a message includes the padding of its last attribute.
            if bytes.len() == end {
                bytes.resize(end.next_multiple_of(netlink::ATTRIBUTE_ALIGNMENT), 0);
            }
            break;
        };
        let value = &rest[at + token.len()..];
        match token {
            "\"" => {
                let len = string_into(&mut bytes, value.as_bytes())?;
                rest = value.get(len..)?;
                truncated |= rest.starts_with("...");
                if let Some(changed) = rest.trim_start_matches('.').strip_prefix(" => ") {
                    after = after_call(changed);
                    break;
                }
            }
            "{error=" => {
                bytes.extend(error_number(value)?.to_ne_bytes());
                rest = value;
            }
            _ => {
                let (header, after) = rest[at + 1..].split_once('}')?;
                bytes.resize(bytes.len().next_multiple_of(netlink::MESSAGE_ALIGNMENT), 0);
                if token == TOKENS[0] {
                    bytes.extend_from_slice(netlink_header(header)?.as_bytes());
                } else {
                    let (len, kind) = attribute_header(header)?;
                    end = bytes.len() + usize::from(len);
                    bytes.extend(len.to_ne_bytes());
                    bytes.extend(kind.to_ne_bytes());
                }
                // The payload of NLMSG_DONE and of some attributes is a number.
                let number = after.strip_prefix(", ").and_then(|after| after.split_once(']'));
                if let Some(number) = number.and_then(|(number, _)| error_number(number)) {
                    bytes.extend(number.to_ne_bytes());
                }
                rest = after;
            }
        }
    }
    (!bytes.is_empty()).then_some(Strings { bytes, after, truncated })
}

/// A line without what strace prints before a call: `[pid   118<name>] `, an instruction pointer or a
/// number of a system call in brackets, a relative time in parentheses.
fn without_prefix(line: &str) -> &str {
    let line = match line.split_once("] ") {
        Some((_, rest)) if line.starts_with('[') => rest,
        _ => line,
    };
    match line.split_once(") ") {
        Some((before, rest)) if before.contains("(+") && !before.contains('"') => rest,
        _ => line,
    }
}

/// The text without the colors of `strace --color`.
fn without_colors(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| plain += part.split_once('m').map_or(part, |(_, rest)| rest));
    plain
}

/// `-ENOENT`, `-2`, `-2 /* -ENOENT */` or a number that is no error.
fn error_number(text: &str) -> Option<i32> {
    let text = text.split([',', ' ', '}', ']']).next()?;
    if let Some(name) = text.strip_prefix("-E") {
        let is = |number: &i32| format!("{:?}", Errno::from_raw(*number)).strip_prefix('E') == Some(name);
        return (1..4096).find(is).map(|number| -number);
    }
    number(text).map(u32::cast_signed)
}

/// `nla_len=26, nla_type=NLMSGERR_ATTR_MSG`: length and type.
fn attribute_header(text: &str) -> Option<(u16, u16)> {
    let field = |name: &str| {
        let (_, value) = text.split_once(&format!("nla_{name}="))?;
        value.split([',', ' ']).next()
    };
    let number = |text: &str| u16::try_from(number(text)?).ok();
    let kind = field("type")?;
    let known = ReportAttribute::INFO.values.iter().find(|known| known.c == kind);
    let kind = known.map(|known| known.value as u16).or_else(|| number(kind))?;
    Some((number(field("len")?)?, kind))
}

/// Appends the bytes of a string with C's escapes, up to its quote. Returns the length of the text
/// including the quote.
fn string_into(bytes: &mut Vec<u8>, text: &[u8]) -> Option<usize> {
    let mut chars = text.iter().copied().enumerate().peekable();
    while let Some((at, char)) = chars.next() {
        match char {
            b'"' => return Some(at + 1),
            b'\\' => match chars.next()?.1 {
                b'n' => bytes.push(b'\n'),
                b't' => bytes.push(b'\t'),
                b'r' => bytes.push(b'\r'),
                b'v' => bytes.push(0x0b),
                b'f' => bytes.push(0x0c),
                b'x' => {
                    let digits = [chars.next()?.1, chars.next()?.1];
                    bytes.extend(word(std::str::from_utf8(&digits).ok()?)?);
                }
                digit @ b'0'..=b'7' => {
                    let mut value = u32::from(digit - b'0');
                    for _ in 0..2 {
                        let Some(&(_, digit @ b'0'..=b'7')) = chars.peek() else { break };
                        value = value * 8 + u32::from(digit - b'0');
                        chars.next();
                    }
                    bytes.push(u8::try_from(value).ok()?);
                }
                other => bytes.push(other),
            },
            other => bytes.push(other),
        }
    }
    None
}

/// The name of a descriptor's file, of which `strace -xx` escapes each byte.
fn unescaped(file: &str) -> Vec<u8> {
    let name = file.split(['<', '>']).next().unwrap_or_default();
    let mut bytes = Vec::new();
    let quoted = format!("{name}\"");
    match string_into(&mut bytes, quoted.as_bytes()) {
        Some(_) => bytes,
        None => name.as_bytes().to_vec(),
    }
}

/// `nlmsg_len=20, nlmsg_type=0x1401 /* NLMSG_??? */, nlmsg_flags=NLM_F_REQUEST|0x300, …`.
fn netlink_header(text: &str) -> Option<MessageHeader> {
    let field = |name: &str| {
        let (_, value) = text.split_once(&format!("nlmsg_{name}="))?;
        Some(value.split([',', ' ']).next().unwrap_or_default())
    };
    let mut header = MessageHeader::zeroed();
    header.length = number(field("len")?)?;
    header.kind = match field("type")? {
        "NLMSG_NOOP" => 1,
        "NLMSG_ERROR" => 2,
        "NLMSG_DONE" => 3,
        "NLMSG_OVERRUN" => 4,
        kind => u16::try_from(number(kind)?).ok()?,
    };
    let flag = |flag: &str| {
        let known = MessageFlags::INFO.values.iter().find(|known| known.c == flag);
        known.map(|known| known.value as u16).or_else(|| u16::try_from(number(flag)?).ok())
    };
    let flags = field("flags")?.split('|').map(flag).collect::<Option<Vec<_>>>()?;
    header.flags = MessageFlags::from_bits_retain(flags.into_iter().fold(0, |all, flag| all | flag));
    header.seq = number(field("seq")?)?;
    header.port = number(field("pid")?)?;
    Some(header)
}

/// A number of 32 bits. strace prints port numbers with a sign.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None if text.starts_with('-') => text.parse().ok().map(i32::cast_unsigned),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests;
