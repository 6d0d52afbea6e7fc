use std::collections::BTreeSet;

use super::*;

/// The definition that begins with these words, up to the next empty line.
fn definition<'t>(text: &'t str, start: &str) -> &'t str {
    let at = text.find(&format!("\n{start}")).unwrap_or_else(|| panic!("no {start}")) + 1;
    text[at..].split("\n\n").next().unwrap_or_default()
}

#[test]
fn methods_are_calls_with_their_attributes() {
    let text = descriptions();
    assert!(text.contains(
        "\nioctl$UVERBS_PD_DESTROY(fd fd_uverbs, cmd const[0xc0181b01], arg ptr[inout, uverbs_call_pd_destroy])\n"
    ));
    assert_eq!(
        definition(&text, "uverbs_call_pd_destroy {"),
        "uverbs_call_pd_destroy {\n\tlength\t\tbytesize[parent, int16]\n\tobject_id\tconst[0x1, int16]\n\
         \tmethod_id\tconst[0x0, int16]\n\tnum_attrs\tconst[0x1, int16]\n\treserved1\tconst[0x0, int64]\n\
         \tdriver_id\tflags[uverbs_driver_id, int32]\n\treserved2\tconst[0x0, int32]\n\
         \tattr_handle\tuverbs_attr_pd_destroy_handle\n}"
    );
    assert_eq!(
        definition(&text, "uverbs_attr_pd_destroy_handle {"),
        "uverbs_attr_pd_destroy_handle {\n\tattr_id\t\tconst[0x0, int16]\n\tlen\t\tconst[0x0, int16]\n\
         \tflags\t\tflags[uverbs_attr_flags, int16]\n\tattr_data\tconst[0x0, int16]\n\tdata\t\tuverbs_pd\n\
         \tpad\t\tconst[0x0, int32]\n}"
    );
}

#[test]
fn commands_are_calls_with_their_structs() {
    let text = descriptions();
    let fields = "\tcmd\tuverbs_attr_invoke_write_reg_mr_cmd\n\tcore_in\tuverbs_attr_invoke_write_reg_mr_core_in\n\
                  \tcore_out\tuverbs_attr_invoke_write_reg_mr_core_out\n\tuhw_in\t";
    assert!(definition(&text, "uverbs_call_invoke_write_reg_mr {").contains(fields));
    assert_eq!(
        definition(&text, "ib_uverbs_reg_mr {"),
        "ib_uverbs_reg_mr {\n\tresponse\tconst[0x0, int64]\n\tstart\tvma64\n\tlength\tint64\n\thca_va\tvma64\n\
         \tpd_handle\tuverbs_pd\n\taccess_flags\tflags[uverbs_access_flags, int32]\n}"
    );
    assert!(definition(&text, "ib_uverbs_reg_mr_resp {").contains("\tmr_handle\tuverbs_mr\n"));
}

#[test]
fn every_method_and_command_has_one_call() {
    let text = descriptions();
    let calls = text.lines().filter(|line| line.starts_with("ioctl$"));
    let names: BTreeSet<_> = calls.clone().map(|line| line.split('(').next()).collect();
    let core = Driver::default().methods().filter(|method| !is_invoke_write(method)).count();
    let objects = DRIVERS.iter().flat_map(|(_, driver)| driver.objects);
    let methods = core + objects.map(|object| object.methods.len()).sum::<usize>();
    assert_eq!(calls.count(), methods + registry::COMMANDS.len());
    assert_eq!(names.len(), methods + registry::COMMANDS.len());
}

/// The words of a description that are names: of types, resources and flags.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|char: char| !char.is_alphanumeric() && char != '_').filter(|word| !word.is_empty())
}

#[test]
fn all_names_are_defined_once() {
    let text = descriptions();
    let mut defined = BTreeSet::new();
    let mut used = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut name = words(line);
        let first = name.next().unwrap_or_default();
        if let Some(rest) = line.strip_prefix("resource ") {
            assert!(defined.insert(words(rest).next().unwrap_or_default()), "{line}");
        } else if line.ends_with('{') || line.ends_with('[') || line.contains(" = ") {
            assert!(defined.insert(first), "{line}");
        } else if line.starts_with('\t') || line.starts_with("ioctl$") {
            // The first word of a field is its name.
            let skipped = usize::from(line.starts_with('\t'));
            used.extend(words(line).skip(skipped).filter(|word| {
                ["uverbs_", "fd_uverbs", "ib_uverbs_", "mlx5_", "rxe_"]
                    .iter()
                    .any(|start| word.starts_with(start))
            }));
        }
    }
    let missing: Vec<_> = used.difference(&defined).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
