//! `bareverbs completions` and `bareverbs man`: files for packages, made from the command line's
//! definition.

use std::path::Path;
use std::{fs, io};

use anyhow::{Context as _, Result};
use clap::{Command, CommandFactory};

use crate::cli::{Cli, Completions, Man};
use crate::output;

/// `bareverbs completions`.
pub(crate) fn completions(options: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "bareverbs", &mut script);
    Ok(output::write(&String::from_utf8(script)?)?)
}

/// `bareverbs man`.
pub(crate) fn man(options: &Man) -> Result<()> {
    let Some(folder) = &options.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        return Ok(output::write(&String::from_utf8(page)?)?);
    };
    let mut command = Cli::command();
    command.build();
    fs::create_dir_all(folder)
        .and_then(|()| write_pages(&command, folder))
        .with_context(|| format!("cannot write the manual pages to {}", folder.display()))
}

/// Writes the manual pages of a command and its subcommands.
fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    command.get_subcommands().try_for_each(|subcommand| write_pages(subcommand, folder))?;
    let (man, mut page) = (clap_mangen::Man::new(command.clone()), Vec::new());
    man.render(&mut page)?;
    output::file(&folder.join(man.get_filename()), &page)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ValueEnum;
    use clap_complete::Shell;

    use super::*;

    /// The names of the pages of a command and its subcommands.
    fn pages(command: &Command, name: &str, found: &mut BTreeSet<String>) {
        found.insert(format!("{name}.1"));
        for subcommand in command.get_subcommands() {
            pages(subcommand, &format!("{name}-{}", subcommand.get_name()), found);
        }
    }

    #[test]
    fn each_command_has_a_manual_page() {
        let folder = std::env::temp_dir().join(format!("bareverbs-man-{}", std::process::id()));
        man(&Man { dir: Some(folder.clone()) }).unwrap();
        let list = fs::read_dir(&folder).unwrap();
        let written: BTreeSet<String> =
            list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let mut expected = BTreeSet::new();
        pages(&Cli::command(), "bareverbs", &mut expected);
        let page = fs::read_to_string(folder.join("bareverbs-link-add.1"));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(written, expected);
        assert!(page.unwrap().contains("Create a software device over a network interface"));
    }

    #[test]
    fn each_shell_has_completions_of_each_command() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "bareverbs", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }
}
