//! The table in Markdown, written for readers and parsed back.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use bareverbs_lab::Series;

use super::End;

/// The kernels, a column each.
pub(super) const KERNELS: [Series; Series::RELEASED.len()] = Series::RELEASED;

const INTRODUCTION: &str = "\
# pyverbs, case by case

The test cases of rdma-core's suite, which drives `libibverbs` from Python, and this project's tests
of the same behaviour, or the reason why there is none.

`cargo xtask test` checks this page. It must list every test of the suite in the lab's Debian root.
The tests of this project that a row names must exist and contain a word of the row's subject
(`xtask/src/pyverbs/keywords.rs`). `tests/kernel/passing.txt` says where they pass; a run that skips
one there fails. A reason must be in `xtask/src/pyverbs/reasons.rs`, and is wrong once a C function
that it is about has an item. `cargo xtask pyverbs --record` runs the suite on the released kernels
and writes the results. The last column is written by hand.
";

/// The text before the suite's version.
const SUITE: &str = "- rdma-core ";

/// The text before a kernel's version.
const KERNEL: &str = "- kernel ";

/// The start of the table head of a section.
const HEAD: &str = "| rdma-core |";

const OTHERS: &str = "## Tests that pass on no kernel";

/// The text before the reason in the last column, for a test without a counterpart in ours.
const NONE: &str = "none: ";

/// The content of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    /// The version of rdma-core.
    pub(super) rdma_core: String,
    /// The versions of the kernels.
    pub(super) versions: [String; KERNELS.len()],
    /// Tests that pass on at least one kernel.
    pub(super) passing: Vec<Row>,
    /// All other tests.
    pub(super) others: Vec<Row>,
}

/// One of rdma-core's tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Module, class and method.
    pub(super) id: String,
    pub(super) ends: [Option<End>; KERNELS.len()],
    pub(super) ours: OwnTests,
}

/// Our tests of the same behaviour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnTests {
    /// By crate and name.
    Tests(Vec<String>),
    /// Why there is none.
    None(String),
    /// Not yet entered.
    Unknown,
}

impl Row {
    pub(super) fn new(id: &str) -> Self {
        Self { id: id.to_owned(), ends: [const { None }; KERNELS.len()], ours: OwnTests::Unknown }
    }

    /// Why it passes on no kernel, as reported by the newest kernel's run.
    fn reason(&self) -> &str {
        match self.ends.iter().rev().flatten().next() {
            Some(End::Skipped(reason)) => reason,
            Some(End::Failed) => "it fails",
            Some(End::Passed) | None => "",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{INTRODUCTION}\nRecorded with\n\n{SUITE}{}", self.rdma_core)?;
        for version in self.versions.iter().filter(|version| !version.is_empty()) {
            writeln!(f, "{KERNEL}{version}")?;
        }
        let mut module = "";
        for row in &self.passing {
            let its_module = row.id.split('.').next().unwrap_or_default();
            if its_module != module {
                module = its_module;
                let columns = KERNELS.map(|series| format!(" {series} |")).concat();
                writeln!(
                    f,
                    "\n## {module}\n\n{HEAD}{columns} bareverbs |\n|---|{}---|",
                    "---|".repeat(KERNELS.len())
                )?;
            }
            write!(f, "| {} |", row.id)?;
            for end in &row.ends {
                let end = match end {
                    Some(End::Passed) => "ok",
                    Some(End::Skipped(_)) => "skipped",
                    Some(End::Failed) => "fails",
                    None => "",
                };
                write!(f, " {end} |")?;
            }
            writeln!(f, " {}|", row.ours)?;
        }
        writeln!(f, "\n{OTHERS}\n\n| rdma-core | why | bareverbs |\n|---|---|---|")?;
        let mut others = self.others.iter();
        others.try_for_each(|row| writeln!(f, "| {} | {} | {}|", row.id, cell(row.reason()), row.ours))
    }
}

impl fmt::Display for OwnTests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tests(names) => write!(f, "{} ", names.join(", ")),
            Self::None(reason) => write!(f, "{NONE}{} ", cell(reason)),
            Self::Unknown => Ok(()),
        }
    }
}

impl FromStr for OwnTests {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text.strip_prefix(NONE.trim_end()) {
            Some(reason) if reason.trim().is_empty() => bail!("the reason for the missing test is empty"),
            Some(reason) => Self::None(reason.trim().to_owned()),
            None if text.is_empty() => Self::Unknown,
            None => Self::Tests(text.split(',').map(|name| name.trim().to_owned()).collect()),
        })
    }
}

/// Text without the characters that end a cell or a row.
fn cell(text: &str) -> String {
    text.replace(['|', '\n', '\r'], " ").trim().to_owned()
}

impl Table {
    /// Whether a test fails on Soft-RoCE under this kernel.
    pub(super) fn fails(&self, id: &str, kernel: Series) -> bool {
        let column = KERNELS.iter().position(|&known| known == kernel);
        let row = self.passing.iter().chain(&self.others).find(|row| row.id == id);
        row.zip(column).is_some_and(|(row, column)| row.ends[column] == Some(End::Failed))
    }

    /// Parses a page in the format of `to_string`, with a hand-written last column.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut table = Self::default();
        let mut passing = true;
        let mut columns: Vec<usize> = (0..KERNELS.len()).collect();
        for line in text.lines() {
            passing &= line != OTHERS;
            if let Some(version) = line.strip_prefix(SUITE) {
                version.clone_into(&mut table.rdma_core);
            } else if let Some(version) = line.strip_prefix(KERNEL) {
                let series = |series: &Series| version.starts_with(&format!("{series}."));
                let column =
                    KERNELS.iter().position(series).with_context(|| format!("no column for {version}"))?;
                version.clone_into(&mut table.versions[column]);
            } else if let Some(head) = line.strip_prefix(HEAD).filter(|_| passing) {
                columns = parse_head(head).with_context(|| line.to_owned())?;
            } else if line.starts_with("| test_") {
                let row = parse_row(line, passing, &columns).with_context(|| line.to_owned())?;
                if passing { table.passing.push(row) } else { table.others.push(row) }
            }
        }
        Ok(table)
    }
}

/// The kernels of the columns. A kernel that was added since has none.
fn parse_head(head: &str) -> Result<Vec<usize>> {
    let names =
        head.strip_suffix(" bareverbs |").context("the last column is `bareverbs`")?.split_terminator('|');
    let column = |name: &str| {
        let kernel = KERNELS.iter().position(|series| series.to_string() == name.trim());
        kernel.with_context(|| format!("`{}` is not a kernel series", name.trim()))
    };
    names.map(column).collect()
}

fn parse_row(line: &str, passing: bool, columns: &[usize]) -> Result<Row> {
    let line =
        line.strip_prefix('|').and_then(|line| line.strip_suffix('|')).context("a row ends with `|`")?;
    let cells: Vec<_> = line.split('|').map(str::trim).collect();
    let mut row = Row::new(cells[0]);
    if !passing {
        let [_, why, ours] = cells[..] else { bail!("a row of three cells") };
        row.ours = ours.parse()?;
        row.ends[KERNELS.len() - 1] =
            Some(if why == "it fails" { End::Failed } else { End::Skipped(why.to_owned()) });
        return Ok(row);
    }
    if cells.len() != columns.len() + 2 {
        bail!("a row of {} cells", columns.len() + 2);
    }
    for (&column, cell) in columns.iter().zip(&cells[1..]) {
        row.ends[column] = match *cell {
            "ok" => Some(End::Passed),
            "skipped" => Some(End::Skipped(String::new())),
            "fails" => Some(End::Failed),
            "" => None,
            other => bail!("invalid outcome `{other}`"),
        };
    }
    row.ours = cells[columns.len() + 1].parse()?;
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: usize = KERNELS.len() - 1;

    /// Values for the oldest and the newest kernel; the kernels between have none.
    fn columns<T: Default>(oldest: T, newest: T) -> [T; KERNELS.len()] {
        let mut columns = KERNELS.map(|_| T::default());
        columns[0] = oldest;
        columns[LAST] = newest;
        columns
    }

    fn table() -> Table {
        let passed = Some(End::Passed);
        Table {
            rdma_core: "65.0-1".to_owned(),
            versions: columns(format!("{}.9-1", KERNELS[0]), format!("{}.13-1", KERNELS[LAST])),
            passing: vec![
                Row {
                    ends: columns(passed.clone(), passed.clone()),
                    ours: OwnTests::Tests(vec!["verbs::one".to_owned(), "connected::two".to_owned()]),
                    ..Row::new("test_a.A.test_1")
                },
                Row { ends: columns(Some(End::Failed), passed.clone()), ..Row::new("test_a.A.test_2") },
                Row {
                    ends: columns(Some(End::Skipped(String::new())), passed),
                    ours: OwnTests::None("about Python".to_owned()),
                    ..Row::new("test_b.B.test_1")
                },
            ],
            others: vec![
                Row {
                    ends: columns(None, Some(End::Skipped("no HCA".to_owned()))),
                    ours: OwnTests::Tests(vec!["verbs::three".to_owned()]),
                    ..Row::new("test_mlx5_x.X.test_1")
                },
                Row { ends: columns(None, Some(End::Failed)), ..Row::new("test_mlx5_x.X.test_2") },
            ],
        }
    }

    #[test]
    fn pyverbs_table_round_trips() {
        let table = table();
        assert_eq!(Table::parse(&table.to_string()).unwrap(), table);
    }

    #[test]
    fn table_has_one_section_per_module() {
        let text = table().to_string();
        let sections: Vec<_> = text.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(sections, ["## test_a", "## test_b", "## Tests that pass on no kernel"]);
        let between = "  |".repeat(LAST - 1);
        assert!(
            text.contains(&format!("| test_a.A.test_1 | ok |{between} ok | verbs::one, connected::two |\n"))
        );
        assert!(
            text.contains(&format!("| test_b.B.test_1 | skipped |{between} ok | none: about Python |\n"))
        );
    }

    #[test]
    fn skip_reason_is_escaped_in_table() {
        let mut table = table();
        table.others[0].ends[LAST] = Some(End::Skipped("this | that\nand more".to_owned()));
        let read = Table::parse(&table.to_string()).unwrap();
        assert_eq!(read.others[0].ends[LAST], Some(End::Skipped("this   that and more".to_owned())));
    }

    #[test]
    fn malformed_table_rows_are_rejected() {
        let oks = " ok |".repeat(LAST);
        assert!(Table::parse(&format!("| test_a.A.test_1 |{oks} ok | verbs::one |")).is_ok());
        for row in [
            format!("| test_a.A.test_1 |{oks} verbs::one |"),
            format!("| test_a.A.test_1 |{oks} perhaps | verbs::one |"),
            format!("| test_a.A.test_1 |{oks} ok | none: |"),
            format!("| test_a.A.test_1 |{oks} ok | verbs::one"),
        ] {
            assert!(Table::parse(&row).is_err(), "{row}");
        }
    }

    #[test]
    fn table_without_a_column_for_a_new_kernel_is_read() {
        let page = format!("{HEAD} {} | bareverbs |\n| test_a.A.test_1 | ok | verbs::one |", KERNELS[LAST]);
        let table = Table::parse(&page).unwrap();
        assert_eq!(table.passing[0].ends, columns(None, Some(End::Passed)));
        assert!(Table::parse(&page.replace(&KERNELS[LAST].to_string(), "5.10")).is_err());
    }

    #[test]
    fn table_lookup_finds_known_failures() {
        let fails = |id, kernel| table().fails(id, kernel);
        assert!(fails("test_a.A.test_2", KERNELS[0]) && fails("test_mlx5_x.X.test_2", KERNELS[LAST]));
        assert!(!fails("test_a.A.test_2", KERNELS[LAST]) && !fails("test_a.A.test_9", KERNELS[0]));
    }
}
