//! The commands for the kernel's ABI: `conform` and `decode`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, Args, Command, Subcommand, ValueEnum};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Conform {
    #[command(subcommand)]
    pub(crate) action: Option<ConformAction>,
    /// Check this device, such as rxe0 or soft:127.0.0.2 (default: the first one that can be opened)
    #[arg(short, long, value_name = "DEV")]
    pub(crate) device: Option<String>,
    /// Run the check with this name, or those whose names contain it or match it with * and ?
    #[arg(short, long, value_name = "PATTERN")]
    pub(crate) filter: Option<String>,
    /// The form of the results
    #[arg(long, value_enum, default_value = "human")]
    pub(crate) format: ResultsFormat,
    /// Also run checks that crash or corrupt kernels which break their rule; for guests only
    #[arg(long)]
    pub(crate) hazard: bool,
    /// Also write a page with the results
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Fuzz the device for this long instead of running checks; for guests only
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["filter", "list", "hazard", "html"])]
    pub(crate) fuzz: Option<u64>,
    /// Write the fuzzed program to this file, for `bareverbs replay`
    #[arg(long, value_name = "FILE", requires = "fuzz")]
    pub(crate) fuzz_out: Option<PathBuf>,
    /// List the device's checks with their rules instead of running them
    #[arg(long)]
    pub(crate) list: bool,
    /// Run the checks in the random order of this seed (0: in their own order); the seed of --fuzz
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConformAction {
    /// Show what differs between two results, written with --format json
    Diff {
        /// The older results
        before: PathBuf,
        /// The newer results
        after: PathBuf,
    },
    /// Write a page that compares results, written with --format json
    Page {
        /// The results, one file for each kernel
        #[arg(required = true, value_name = "JSON")]
        results: Vec<PathBuf>,
    },
}

/// The form of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultsFormat {
    /// Failures as text, and a summary
    Human,
    /// KTAP, as the kernel's selftests print it
    Ktap,
    /// JUnit's XML
    Junit,
    /// JSON
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct Decode {
    /// The kind of the messages; `auto` may be left out
    #[arg(value_name = "KIND", default_value = "auto", value_parser = KindOrFileParser)]
    pub(crate) kind: KindOrFile,
    /// The file: raw bytes, a hex dump, or the output of strace (default: standard input)
    pub(crate) file: Option<PathBuf>,
    /// The form of the input
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) from: InputForm,
    /// The form of the output
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: TextOrJson,
}

/// The first argument of `decode`: a kind, or the file if the kind is left out.
#[derive(Clone, Debug)]
pub(crate) enum KindOrFile {
    Kind(MessageKind),
    File(PathBuf),
}

/// Parses the first argument of `decode`. Help and completions list the kinds.
#[derive(Clone)]
struct KindOrFileParser;

impl TypedValueParser for KindOrFileParser {
    type Value = KindOrFile;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<KindOrFile, clap::Error> {
        match EnumValueParser::<MessageKind>::new().parse_ref(command, arg, value) {
            Ok(kind) => Ok(KindOrFile::Kind(kind)),
            Err(_) if value == "-" || Path::new(value).exists() => Ok(KindOrFile::File(value.into())),
            Err(error) => Err(error),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(MessageKind::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

impl Decode {
    /// The kind and the file.
    pub(crate) fn kind_and_file(&self) -> Result<(MessageKind, Option<&Path>), String> {
        match (&self.kind, &self.file) {
            (KindOrFile::Kind(kind), file) => Ok((*kind, file.as_deref())),
            (KindOrFile::File(file), None) => Ok((MessageKind::Auto, Some(file))),
            (KindOrFile::File(first), Some(second)) => {
                Err(format!("two files: {} and {}; decode one at a time", first.display(), second.display()))
            }
        }
    }
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MessageKind {
    /// By their header, or by the call in the output of strace
    Auto,
    /// An ioctl of a uverbs file: header and attributes
    Ioctl,
    /// A command that was written to a uverbs file
    Write,
    /// A command that was written to /dev/infiniband/rdma_cm
    RdmaCm,
    /// An event of rdma_cm: the response of GET_EVENT
    RdmaCmEvent,
    /// Messages of RDMA netlink
    Nldev,
    /// Events read from a completion channel
    CompletionEvent,
    /// Events read from an asynchronous event file
    AsyncEvent,
}

/// The form of bytes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum InputForm {
    /// By the input
    Auto,
    /// Bytes
    Raw,
    /// Hexadecimal digits, as xxd -p prints them
    Hex,
    /// The lines of xxd, or of the kernel's log
    Xxd,
    /// The lines of od -tx1
    Od,
    /// The lines of hexdump -C
    Hexdump,
    /// The output of strace, best with -y -xx -s 65536
    Strace,
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextOrJson {
    /// Text
    Text,
    /// JSON, one object for each message
    Json,
}
