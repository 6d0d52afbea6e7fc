//! P_Keys: the partitions that a port is a member of.

use std::fs;
use std::path::Path;

use bareverbs_provider::traits::Provider;
use rustix::io::Errno;

use crate::device::FoundBy;
use crate::{Context, Error, PortNum, Result};

/// The default partition, as a full member.
const DEFAULT_PKEY: u16 = 0xffff;

impl<P: Provider> Context<P> {
    /// An entry of a port's P_Key table.
    ///
    /// It is read from sysfs, its only source in the kernel. The entry of a soft device is
    /// the default partition, 0xffff.
    ///
    /// # Errors
    /// [`Error::NoPort`]; [`Error::Invalid`] if the table has no such index; [`Error::System`] if
    /// sysfs can't be read.
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkey(&self, port: impl Into<PortNum>, index: u16) -> Result<u16> {
        let port = port.into();
        let length = self.query_port(port)?.pkey_tbl_len;
        if index >= length {
            let reason = format!("P_Key index {index} exceeds the table of {length} entries of port {port}");
            return Err(Error::out_of_bounds("query_pkey", reason));
        }
        if self.device().found_by() == FoundBy::Soft {
            return Ok(DEFAULT_PKEY);
        }
        let folder = Path::new("/sys/class/infiniband").join(self.device().name());
        let file = folder.join(format!("ports/{port}/pkeys/{index}"));
        let text = fs::read_to_string(&file).map_err(|error| {
            Error::system(
                format!("reading {}", file.display()),
                Errno::from_io_error(&error).unwrap_or(Errno::IO),
            )
        })?;
        parse(&text).ok_or_else(|| {
            Error::system(format!("reading {}: {text:?} is not a P_Key", file.display()), Errno::PROTO)
        })
    }

    /// The lowest index of a P_Key in a port's table.
    ///
    /// ```
    /// # fn index(context: &bareverbs::Context) -> bareverbs::Result<u16> {
    /// // The default partition, as a full member.
    /// context.pkey_index(1, 0xffff)
    /// # }
    /// # assert_eq!(index(&bareverbs_test_support::example::context()?)?, 0);
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoPort`]; [`Error::Invalid`] if the table does not have it; [`Error::System`] if
    /// sysfs can't be read.
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkey_index(&self, port: impl Into<PortNum>, pkey: u16) -> Result<u16> {
        let port = port.into();
        let mut seen = Vec::new();
        for index in 0..self.query_port(port)?.pkey_tbl_len {
            match self.pkey(port, index)? {
                found if found == pkey => return Ok(index),
                // An empty entry.
                0 => {}
                other => seen.push(format!("{other:#06x}")),
            }
        }
        let reason = format!("port {port} has no P_Key {pkey:#06x}; its P_Keys are {}", seen.join(", "));
        Err(Error::invalid("get_pkey_index", reason))
    }
}

/// Parses a line such as `0xffff`.
pub(crate) fn parse(text: &str) -> Option<u16> {
    u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}
