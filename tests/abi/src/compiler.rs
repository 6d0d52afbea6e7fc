//! Measures one kernel's headers with the machine's C compiler.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bareverbs_uapi::abi::Since;

use crate::declared::{Declared, root};
use crate::header::{Array, Headers, Leaf, Member, Type};

/// Position of a member in a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Bytes from the start.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// Size and alignment of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes.
    pub size: u64,
    /// Bytes.
    pub align: u64,
}

/// One kernel's headers, parsed and measured.
#[derive(Debug)]
pub struct Kernel {
    /// The series, for example `6.12`.
    pub name: &'static str,
    /// The series as `Since`.
    pub since: Since,
    /// The declarations.
    pub headers: Headers,
    /// Structs, by their C type.
    pub shapes: BTreeMap<String, Shape>,
    /// Members, by C type and designator.
    pub spans: BTreeMap<(String, String), Span>,
    /// Named values.
    pub values: BTreeMap<String, u64>,
}

/// A translation unit that includes all headers of the declared items and of the comparison.
fn includes(declared: &Declared, folders: &[PathBuf]) -> String {
    let mut names = declared.headers();
    names.extend(&*crate::COVERED_HEADERS);
    names.into_iter().filter(|name| folders.iter().any(|folder| folder.join(name).exists())).fold(
        String::new(),
        |mut text, name| {
            let _ = writeln!(text, "#include <{name}>");
            text
        },
    )
}

/// Prefix of the names of kernel-only headers.
const KERNEL_ONLY: &str = "include/";

/// Macros that kernel-only definitions need from headers that do not compile outside the kernel.
const KERNEL_ONLY_MACROS: &str = "\
#define BIT(n) (1UL << (n))
#define BIT_ULL(n) (1ULL << (n))
#define GENMASK(h, l) (((1UL << ((h) - (l) + 1)) - 1) << (l))
";

fn cc(folders: &[PathBuf]) -> Command {
    let mut cc = Command::new("cc");
    // Only these headers are used: the machine's own headers belong to another kernel.
    cc.args(["-x", "c", "-std=gnu11", "-nostdinc", "-w"]);
    for folder in folders {
        cc.arg("-isystem").arg(folder);
    }
    cc
}

fn run(mut command: Command, input: &str, what: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start the C compiler to {what}"))?;
    let mut stdin = child.stdin.take().context("no pipe to the C compiler")?;
    let text = input.to_string();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("could not {what}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    Ok(String::from_utf8(output.stdout)?)
}

impl Kernel {
    /// Parses and measures the user-space headers in `folders` and those in the kernel's own
    /// `include`, `kernel_only`. The generated program is built in `scratch`.
    pub fn read(
        name: &'static str,
        since: Since,
        folders: &[PathBuf],
        kernel_only: &Path,
        declared: &Declared,
        scratch: &Path,
    ) -> Result<Kernel> {
        let includes = includes(declared, folders);
        let mut preprocess = cc(folders);
        preprocess.args(["-E", "-dD", "-"]);
        let text = run(preprocess, &includes, &format!("preprocess the headers of {name}"))?;
        let shown: Vec<&str> = folders.iter().filter_map(|folder| folder.to_str()).collect();
        let mut headers = Headers::parse(&text, &shown).with_context(|| format!("headers of {name}"))?;
        let own = declared.values.iter().filter_map(|value| value.header);
        let own: BTreeSet<&str> = own.chain(declared.structs.iter().map(|info| info.header)).collect();
        for file in own.into_iter().filter(|file| file.starts_with(KERNEL_ONLY)) {
            let path = kernel_only.join(file.trim_start_matches(KERNEL_ONLY));
            if path.exists() {
                let mut strip = cc(folders);
                strip.args(["-E", "-P", "-dD", "-fpreprocessed"]).arg(&path);
                let text = run(strip, "", &format!("strip <{file}> of {name} of comments"))?;
                headers.add_kernel_only(file, &text).with_context(|| format!("headers of {name}"))?;
            }
        }
        let mut kernel = Kernel {
            name,
            since,
            headers,
            shapes: BTreeMap::new(),
            spans: BTreeMap::new(),
            values: BTreeMap::new(),
        };
        let program = kernel.program(&includes, declared);
        let binary = scratch.join(format!("layout-{name}-{}", std::process::id()));
        let mut compile = cc(folders);
        compile.args(["-O0", "-o"]).arg(&binary).arg("-");
        run(compile, &program, &format!("compile against the headers of {name}"))?;
        let printed = run(Command::new(&binary), "", &format!("run the program of {name}"))?;
        fs::remove_file(&binary)?;
        kernel.take(&printed)?;
        Ok(kernel)
    }

    /// A C program that prints all sizes, offsets and values of the comparison.
    fn program(&self, includes: &str, declared: &Declared) -> String {
        let mut types: BTreeSet<String> =
            declared.structs.iter().map(|info| info.c.to_string()).filter(|c| self.has_type(c)).collect();
        let covered = self.headers.structs.iter().filter(|(_, ty)| crate::covered(&ty.file));
        types.extend(covered.map(|(c, _)| c.clone()));

        let mut members: BTreeSet<(String, String)> = BTreeSet::new();
        for c in &types {
            let leaves = self.leaves(c, &|_| false);
            members.extend(leaves.into_iter().map(|leaf| (c.clone(), leaf.path)));
        }
        for info in &declared.structs {
            for field in info.fields.iter().filter(|field| !field.c.is_empty()) {
                if self.member(info.c, field.c).is_some() {
                    members.insert((info.c.into(), field.c.into()));
                }
            }
        }
        let mut values: BTreeSet<&str> = declared.values.iter().map(|value| value.c).collect();
        values.retain(|name| self.headers.values.contains_key(*name));

        let mut text = format!("{includes}{KERNEL_ONLY_MACROS}int printf(const char *, ...);\n");
        let tags = types.iter().filter_map(|c| root(c).0.split(' ').nth(1));
        for definition in self.headers.kernel_only_texts(values.iter().copied().chain(tags)) {
            let _ = writeln!(text, "{definition};");
        }
        text.push_str("static const struct { const char *type, *member; unsigned long a, b; } rows[] = {\n");
        for c in &types {
            let _ = writeln!(text, "{{ \"{c}\", \"\", sizeof({c}), _Alignof({c}) }},");
        }
        for (c, path) in &members {
            let flexible = self.member(c, path).is_some_and(|member| member.array == Array::Flexible);
            let size = if flexible { "0".into() } else { format!("sizeof((({c} *)0)->{path})") };
            let _ = writeln!(text, "{{ \"{c}\", \"{path}\", __builtin_offsetof({c}, {path}), {size} }},");
        }
        text.push_str(
            "};\nstatic const struct { const char *name; unsigned long long value; } values[] = {\n",
        );
        for name in values {
            let _ = writeln!(text, "{{ \"{name}\", (unsigned long long)({name}) }},");
        }
        text.push_str(
            "};\nint main(void) {\n\
             for (unsigned long i = 0; i < sizeof rows / sizeof *rows; i++)\n\
             printf(\"%s\\t%s\\t%lu\\t%lu\\n\", rows[i].type, rows[i].member, rows[i].a, rows[i].b);\n\
             for (unsigned long i = 0; i < sizeof values / sizeof *values; i++)\n\
             printf(\"%s\\t%llu\\n\", values[i].name, values[i].value);\n}\n",
        );
        text
    }

    fn take(&mut self, printed: &str) -> Result<()> {
        for line in printed.lines() {
            match *line.split('\t').collect::<Vec<_>>() {
                [c, "", size, align] => {
                    self.shapes.insert(c.into(), Shape { size: size.parse()?, align: align.parse()? });
                }
                [c, path, offset, size] => {
                    let span = Span { offset: offset.parse()?, size: size.parse()? };
                    self.spans.insert((c.into(), path.into()), span);
                }
                [name, value] => {
                    self.values.insert(name.into(), value.parse()?);
                }
                _ => bail!("unexpected line of the program: {line}"),
            }
        }
        Ok(())
    }

    /// Whether the headers have this C type.
    pub fn has_type(&self, c: &str) -> bool {
        match root(c) {
            (ty, "") => self.headers.structs.contains_key(ty),
            (ty, path) => self.headers.resolve(ty, path).is_some(),
        }
    }

    /// The members of a C type that hold bytes. Members of a tagged type are expanded if `enter`
    /// returns true for it.
    pub fn leaves(&self, c: &str, enter: &dyn Fn(&str) -> bool) -> Vec<Leaf> {
        let (ty, path) = root(c);
        let inner =
            if path.is_empty() { None } else { self.headers.resolve(ty, path).map(|member| member.ty) };
        match (inner, self.headers.structs.get(ty)) {
            (None, Some(ty)) => self.headers.leaves(&ty.members, enter),
            (Some(Type::Inline(members)), _) => self.headers.leaves(&members, enter),
            (Some(Type::Tagged(ty)), _) => self.leaves(&ty, enter),
            _ => Vec::new(),
        }
    }

    /// The member of a C type that a designator names.
    pub fn member(&self, c: &str, path: &str) -> Option<Member> {
        match root(c) {
            (ty, "") => self.headers.resolve(ty, path),
            (ty, prefix) => self.headers.resolve(ty, &format!("{prefix}.{path}")),
        }
    }
}
