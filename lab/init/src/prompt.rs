//! A prompt for a guest without a shell. It only runs programs and changes folders.

use std::io::{self, BufRead, Write};
use std::process::{Command, ExitCode};

/// Reads commands from the terminal until its end or `exit`.
pub(crate) fn run() -> ExitCode {
    let mut status = 0;
    let mut lines = io::stdin().lock().lines();
    println!(
        "Programs on the PATH can be run; `cd FOLDER`, `ls [FOLDER]`, `cat FILE` and `exit` are built in."
    );
    loop {
        print!("lab# ");
        let _ = io::stdout().flush();
        let Some(Ok(line)) = lines.next() else {
            return ExitCode::from(status);
        };
        let words = split(&line);
        let Some((program, arguments)) = words.split_first() else {
            continue;
        };
        status = match (program.as_str(), arguments) {
            ("exit", []) => return ExitCode::from(status),
            ("exit", [code, ..]) => return ExitCode::from(code.parse().unwrap_or(2)),
            ("cd", [folder]) => report(std::env::set_current_dir(folder)),
            ("ls", []) => report(list(".")),
            ("ls", [folder]) => report(list(folder)),
            ("cat", [file]) => report(std::fs::read(file).and_then(|bytes| io::stdout().write_all(&bytes))),
            _ => launch(program, arguments),
        };
    }
}

fn launch(program: &str, arguments: &[String]) -> u8 {
    match Command::new(program).args(arguments).status() {
        Ok(status) => status.code().map_or(128, |code| code as u8),
        Err(error) => {
            println!("{program}: {error}");
            127
        }
    }
}

fn list(folder: &str) -> io::Result<()> {
    let mut names = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    names.iter().for_each(|name| println!("{name}"));
    Ok(())
}

fn report(result: io::Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            println!("{error}");
            1
        }
    }
}

/// Splits a line at blanks; single and double quotes keep blanks together.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn quotes_keep_blanks_and_empty_words() {
        assert_eq!(split("  echo 'a  b' \"\" c\"d e\"  "), ["echo", "a  b", "", "cd e"]);
        assert!(split(" \t").is_empty());
    }
}
