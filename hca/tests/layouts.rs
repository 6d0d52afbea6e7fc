//! Compares every field offset that the device uses with the kernel's headers, measured by the
//! machine's C compiler. Kernels without fetched headers are reported as skipped.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io::Write as _};

use bareverbs_lab::Series;
use libtest_mimic::{Arguments, Failed, Trial};

/// A kernel header, and the unit of its structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Header {
    /// `mlx5_ifc.h`: each byte of a structure represents a bit.
    Bits,
    /// `device.h` and `qp.h`.
    Bytes,
}

/// A declared field.
#[derive(Debug)]
struct Field {
    header: Header,
    structure: String,
    member: String,
    offset: u64,
    /// `None` if only the offset is declared.
    width: Option<u64>,
}

/// Fields that later kernels have widened to the left, into bits that were reserved and zero.
const WIDENED: [(&str, &str); 2] =
    [("struct mlx5_ifc_mkc_bits", "log_page_size"), ("struct mlx5_ifc_ppcnt_reg_bits", "prio_tc")];

/// Fields of the PRM in bits that the kernel's header has as reserved.
const RESERVED: [(&str, &str); 6] = [
    ("struct mlx5_ifc_cmd_hca_cap_bits", "rts2rts_qp_udp_sport"),
    ("struct mlx5_ifc_rts2rts_qp_in_bits", "opt_param_mask_95_32"),
    ("struct mlx5_ifc_create_cq_in_bits", "cq_umem_offset"),
    ("struct mlx5_ifc_create_cq_in_bits", "cq_umem_id"),
    ("struct mlx5_ifc_cqc_bits", "dbr_umem_id"),
    ("struct mlx5_ifc_qpc_bits", "dbr_umem_id"),
];

/// The first name in backquotes of a comment line.
fn quoted(line: &str) -> Option<&str> {
    line.split('`').nth(1)
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches([',', ';']);
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
}

/// The declarations of `layout!`.
fn bit_fields(source: &str) -> Vec<Field> {
    let (mut fields, mut structure) = (Vec::new(), String::new());
    for line in source.lines().map(str::trim) {
        if line.starts_with("///") {
            if let Some(name) = line.split('`').find(|part| part.starts_with("mlx5_ifc_")) {
                structure = format!("struct {name}");
            }
            continue;
        }
        let Some((name, rest)) = line.split_once(": 0x") else { continue };
        let rest = format!("0x{rest}");
        let (offset, kind) = match rest.split_once([',', ' ']) {
            Some((offset, kind)) => (number(offset), kind.trim()),
            None => continue,
        };
        let Some(offset) =
            offset.filter(|_| name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
        else {
            continue;
        };
        let width = match kind.strip_prefix("bytes") {
            Some(bytes) => number(bytes).map(|bytes| bytes * 8),
            None => number(kind),
        };
        let member = name.to_lowercase();
        fields.push(Field { header: Header::Bits, structure: structure.clone(), member, offset, width });
    }
    fields
}

/// The constants of `engine/layout.rs`.
fn byte_fields(source: &str) -> Vec<Field> {
    let (mut fields, mut structure, mut path) = (Vec::new(), String::new(), None);
    for line in source.lines().map(str::trim) {
        if line.starts_with("///") {
            match quoted(line) {
                Some(name) if name.starts_with("struct ") => structure = name.to_string(),
                other => path = other.map(str::to_string),
            }
        }
        let Some((name, value)) =
            line.strip_prefix("pub(crate) const ").and_then(|rest| rest.split_once(": usize = "))
        else {
            continue;
        };
        let Some(value) = number(value) else { continue };
        let (member, offset, width) = match (name, path.take()) {
            ("SIZE", _) => (String::new(), 0, Some(value)),
            (_, Some(path)) => (path, value, None),
            (name, None) => (name.to_lowercase(), value, None),
        };
        fields.push(Field { header: Header::Bytes, structure: structure.clone(), member, offset, width });
    }
    fields
}

fn declared() -> Vec<Field> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read =
        |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut fields = byte_fields(&read(&source.join("engine/layout.rs")));
    for entry in fs::read_dir(source.join("firmware/layout")).expect("the layouts' folder") {
        fields.extend(bit_fields(&read(&entry.expect("an entry").path())));
    }
    fields
}

/// The definition of a structure in a header, without comments.
fn definition(header: &str, structure: &str) -> Option<String> {
    let start = header.find(&format!("\n{structure} {{"))? + 1;
    let end = start + header[start..].find("\n}")?;
    let end = end + header[end..].find(';')? + 1;
    Some(header[start..end].to_string())
}

/// The spelling of a member in the definition, which may have capitals.
fn real_name(text: &str, member: &str) -> Option<String> {
    let (path, last) = member.rsplit_once('.').unwrap_or(("", member));
    let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let word = if last.is_empty() { "" } else { words.find(|word| word.eq_ignore_ascii_case(last))? };
    Some(if path.is_empty() { word.to_string() } else { format!("{path}.{word}") })
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    for (index, part) in text.split("/*").enumerate() {
        out.push_str(if index == 0 { part } else { part.split_once("*/").map_or("", |(_, rest)| rest) });
    }
    out
}

/// Offset and size of every field by the C compiler; `None` for a field that this kernel doesn't
/// have.
fn measured(include: &Path, fields: &[Field], scratch: &Path) -> Result<Vec<Option<(u64, u64)>>, String> {
    let read = |name: &str| {
        fs::read_to_string(include.join("linux/mlx5").join(name)).map(|text| without_comments(&text))
    };
    let bits = read("mlx5_ifc.h").map_err(|error| format!("mlx5_ifc.h: {error}"))?;
    let bytes = [read("device.h"), read("qp.h")].into_iter().collect::<Result<Vec<_>, _>>();
    let bytes = bytes.map_err(|error| format!("device.h or qp.h: {error}"))?.concat();
    let mut program = String::from(
        "typedef unsigned char u8; typedef unsigned short u16, __be16; typedef unsigned int u32, __be32;\n\
         typedef unsigned long long u64, __be64;\n\
         #define BIT(n) (1ul << (n))\n#define BIT_ULL(n) (1ull << (n))\n\
         #define DECLARE_FLEX_ARRAY(type, name) struct { struct {} empty_##name; type name[]; }\n\
         #define __packed __attribute__((packed))\n\
         #define struct_group(name, ...) struct { __VA_ARGS__ }\n\
         #include <linux/mlx5/mlx5_ifc.h>\nint printf(const char *, ...);\n",
    );
    let mut seen: Vec<&str> = Vec::new();
    let mut members = Vec::new();
    for field in fields {
        let text = definition(if field.header == Header::Bits { &bits } else { &bytes }, &field.structure);
        if let (Some(text), Header::Bytes, false) = (&text, field.header, seen.contains(&&*field.structure)) {
            let _ = writeln!(program, "{text}");
            seen.push(&field.structure);
        }
        members.push(text.and_then(|text| real_name(&text, &field.member)));
    }
    program.push_str("int main(void) {\n");
    for (field, member) in fields.iter().zip(&members) {
        let structure = &field.structure;
        let _ = match member.as_deref() {
            None => writeln!(program, "printf(\"-\\n\");"),
            Some("") => writeln!(program, "printf(\"0 %zu\\n\", sizeof({structure}));"),
            Some(member) => writeln!(
                program,
                "printf(\"%zu %zu\\n\", __builtin_offsetof({structure}, {member}), sizeof((({structure} *)0)->{member}));"
            ),
        };
    }
    program.push_str("}\n");
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let which = NEXT.fetch_add(1, Ordering::Relaxed);
    let binary = scratch.join(format!("device-layouts-{}-{which}", std::process::id()));
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-std=gnu11", "-nostdinc", "-w", "-I"])
        .arg(include)
        .arg("-o")
        .arg(&binary)
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cc: {error}"))?;
    compiler
        .stdin
        .take()
        .ok_or("no pipe")?
        .write_all(program.as_bytes())
        .map_err(|error| error.to_string())?;
    let output = compiler.wait_with_output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let output = Command::new(&binary).output().map_err(|error| error.to_string())?;
    fs::remove_file(&binary).map_err(|error| error.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout);
    Ok(printed
        .lines()
        .map(|line| line.split_once(' ').and_then(|(offset, size)| Some((number(offset)?, number(size)?))))
        .collect())
}

/// Compares the declared fields with a kernel's headers. Returns the number of fields that it has.
fn compare(series: Series, fields: &[Field]) -> Result<usize, Failed> {
    let headers = bareverbs_lab::headers(series).ok_or("no headers: `cargo xtask lab fetch --headers`")?;
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let measured = measured(&headers.kernel, fields, scratch)?;
    let mut differences = String::new();
    for (field, measured) in fields.iter().zip(&measured) {
        let Some((offset, size)) = *measured else { continue };
        let grown = WIDENED.contains(&(&*field.structure, &*field.member))
            && field.width.is_some_and(|width| width > size && offset + size == field.offset + width);
        if grown {
            continue;
        }
        if offset != field.offset || field.width.is_some_and(|width| width != size) {
            let (structure, member) = (&field.structure, &field.member);
            let _ = writeln!(
                differences,
                "{structure} {member}: declared at {:#x}, {:?} wide; is at {offset:#x}, {size} wide",
                field.offset, field.width
            );
        }
    }
    if differences.is_empty() { Ok(measured.iter().flatten().count()) } else { Err(differences.into()) }
}

/// A name that no kernel has would never be compared.
fn all_are_real(fields: &[Field]) -> Result<(), Failed> {
    let headers =
        bareverbs_lab::headers(Series::NEWEST).ok_or("no headers: `cargo xtask lab fetch --headers`")?;
    let measured = measured(&headers.kernel, fields, Path::new(env!("CARGO_TARGET_TMPDIR")))?;
    let unknown: Vec<_> = fields
        .iter()
        .zip(&measured)
        .filter(|(field, measured)| {
            measured.is_none() && !RESERVED.contains(&(&*field.structure, &*field.member))
        })
        .map(|(field, _)| format!("{} {}", field.structure, field.member))
        .collect();
    if unknown.is_empty() { Ok(()) } else { Err(format!("not in the headers: {unknown:#?}").into()) }
}

/// Checks the comparison itself: fields that are off by one are reported.
fn alterations_are_reported() -> Result<(), Failed> {
    let mut fields = declared();
    let count = fields.len();
    for field in &mut fields {
        field.offset += 1;
    }
    let report = match compare(Series::NEWEST, &fields) {
        Ok(_) => String::new(),
        Err(failed) => failed.message().unwrap_or_default().to_string(),
    };
    let reported = report.lines().count();
    if reported * 10 >= count * 9 {
        Ok(())
    } else {
        Err(format!("{reported} of {count} were reported").into())
    }
}

fn main() -> ExitCode {
    let trial = |name: String, series: Series, run: Box<dyn FnOnce() -> Result<(), Failed> + Send>| {
        let lacking = bareverbs_lab::headers(series).is_none();
        if lacking {
            eprintln!("{name}: left out, no headers of {series}: `cargo xtask lab fetch --headers`");
        }
        Trial::test(name, run).with_ignored_flag(lacking)
    };
    let mut trials: Vec<_> = Series::RELEASED
        .into_iter()
        .map(|series| {
            let run = move || {
                let compared = compare(series, &declared())?;
                if compared > 300 {
                    Ok(())
                } else {
                    Err(format!("only {compared} fields were compared").into())
                }
            };
            trial(format!("layouts_match_kernel_headers_{series}"), series, Box::new(run))
        })
        .collect();
    let newest = Series::NEWEST;
    trials.push(trial(
        format!("every_field_is_known_to_{newest}"),
        newest,
        Box::new(|| all_are_real(&declared())),
    ));
    trials.push(trial("alterations_are_reported".into(), newest, Box::new(alterations_are_reported)));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
