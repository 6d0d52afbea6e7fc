//! `libmlx5.so.1`: a stub for each name of its version script, which jumps to the function in
//! `libibverbs.so.1`.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Prefix of the functions in `libibverbs.so.1`, which exports them with a version of their own.
pub(super) const PREFIX: &str = "bareverbs_";

/// Links the stubs with `libibverbs` as a library with this soname and the versions of the script.
pub(super) fn link(script: &Path, libibverbs: &Path, soname: &str, library: &Path) -> Result<()> {
    let names = fs::read_to_string(script).with_context(|| format!("reading {}", script.display()))?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-s", "-x", "assembler", "-", "-x", "none"]).arg(libibverbs);
    cc.arg("-o").arg(library).arg(format!("-Wl,--version-script={}", script.display()));
    cc.arg(format!("-Wl,-soname,{soname},-z,now,-z,defs"));
    let mut child = cc.stdin(Stdio::piped()).spawn().context("starting the C compiler")?;
    let mut input = child.stdin.take().context("the compiler reads the stubs")?;
    input.write_all(assembly(&names)?.as_bytes()).context("passing the stubs to the compiler")?;
    drop(input);
    ensure!(child.wait()?.success(), "{soname} could not be linked");
    Ok(())
}

/// The stubs of the names in a version script. The last version of a name is its default.
fn assembly(script: &str) -> Result<String> {
    ensure!(cfg!(target_arch = "x86_64"), "the stubs of libmlx5.so.1 are for x86-64");
    let names = names(script);
    let mut text = ".text\n".to_owned();
    for (index, (name, version)) in names.iter().enumerate() {
        let is_default = names[index + 1..].iter().all(|(later, _)| later != name);
        let function = if is_default {
            format!("{PREFIX}{name}")
        } else {
            format!("{PREFIX}{name}_{}", version.rsplit('_').next().unwrap_or_default().replace('.', "_"))
        };
        let separator = if is_default { "@@" } else { "@" };
        let label = format!("stub.{index}");
        let _ = write!(
            text,
            ".globl {label}\n.type {label}, @function\n{label}:\n\
             endbr64\njmp *{function}@GOTPCREL(%rip)\n.size {label}, . - {label}\n\
             .symver {label}, {name}{separator}{version}, remove\n"
        );
    }
    text.push_str(".section .note.GNU-stack, \"\", @progbits\n");
    Ok(text)
}

/// The names of a version script, each with its version.
fn names(script: &str) -> Vec<(&str, &str)> {
    let mut version = "";
    let mut names = Vec::new();
    for line in script.lines() {
        if let Some(node) = line.strip_suffix(" {") {
            version = node;
        } else if let Some(name) = line.strip_prefix("        ").and_then(|line| line.strip_suffix(';'))
            && name != "*"
        {
            names.push((name, version));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_version_of_a_name_is_its_default() {
        let script = "\
A_1.0 {
    global:
        a;
        b;
    local:
        *;
};

A_1.2 {
    global:
        a;
} A_1.0;
";
        assert_eq!(names(script), [("a", "A_1.0"), ("b", "A_1.0"), ("a", "A_1.2")]);
        let text = assembly(script).unwrap();
        for part in [
            "jmp *bareverbs_a_1_0@GOTPCREL(%rip)",
            "stub.0, a@A_1.0, remove",
            "jmp *bareverbs_b@GOTPCREL(%rip)",
            "stub.1, b@@A_1.0, remove",
            "jmp *bareverbs_a@GOTPCREL(%rip)",
            "stub.2, a@@A_1.2, remove",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
