//! The command line of `bareverbs rcopy`.

use std::path::PathBuf;

use clap::Args;

use super::soft::SoftDevice;
use super::values::number;

/// A server, and the path of the file there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) host: String,
    /// The path of the source if there is none.
    pub(crate) path: Option<PathBuf>,
}

fn destination(text: &str) -> Result<Destination, String> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(text) => text.split_once(']').ok_or("a ] is missing")?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let path = match rest.strip_prefix(':') {
        Some("") => return Err("the path is empty".into()),
        Some(path) => Some(path.into()),
        None if rest.is_empty() => None,
        None => return Err("the path follows a colon".into()),
    };
    if host.is_empty() {
        return Err("the server is missing".into());
    }
    Ok(Destination { host: host.into(), path })
}

/// The options of rcopy.
#[derive(Clone, Debug, Args)]
pub(crate) struct Rcopy {
    #[command(flatten)]
    pub(crate) device: SoftDevice,
    /// File, pipe or block device to copy; without it, run as server, which writes the files of its
    /// clients. A pipe, and a file of procfs or sysfs, is read to its end before it is sent. The
    /// server of librdmacm refuses empty files
    #[arg(requires = "destination")]
    pub(crate) source: Option<PathBuf>,
    /// Server, and path of the file there (default: the path of the source). An IPv6 address is
    /// in brackets
    #[arg(value_name = "SERVER[:DESTINATION]", value_parser = destination)]
    pub(crate) destination: Option<Destination>,
    /// Port of the connection manager
    #[arg(short, long, default_value = "7427", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Print a line of JSON for each file
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_have_a_host_and_a_path() {
        for (text, host, path) in [
            ("10.1.0.1", "10.1.0.1", None),
            ("10.1.0.1:/tmp/a:b", "10.1.0.1", Some("/tmp/a:b")),
            ("[fe80::1%eth0]:x", "fe80::1%eth0", Some("x")),
            ("[::1]", "::1", None),
        ] {
            let expected = Destination { host: host.into(), path: path.map(Into::into) };
            assert_eq!(destination(text), Ok(expected), "{text}");
        }
        for text in ["", ":x", "host:", "[::1", "[::1]x"] {
            destination(text).unwrap_err();
        }
    }
}
