//! Membership of a multicast group of an InfiniBand subnet: MADs to the subnet administrator, as perftest
//! sends them. The connection manager would join with a Q_Key of its own, which is a property of the group.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use bareverbs::Gid;

use crate::session::QKEY;
use crate::session::path::LocalPort;

/// Bytes of `struct ib_user_mad_hdr` of `rdma/ib_user_mad.h`, and of a MAD.
const HEADER: usize = 64;
const MAD: usize = 256;
/// The record in a MAD of subnet administration.
const RECORD: usize = 56;

/// Subnet administration: class, version, methods and the attribute MCMemberRecord (IBA 15.2).
const CLASS: u8 = 3;
const CLASS_VERSION: u8 = 2;
const SET: u8 = 0x02;
const DELETE: u8 = 0x15;
const MEMBER_RECORD: u16 = 0x38;
/// MGID, PortGID, Q_Key, TClass, P_Key, SL, FlowLabel and JoinState.
const COMPONENTS: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13 | 1 << 16;
const FULL_MEMBER: u8 = 1;

/// The QPN and the Q_Key of general management.
const MANAGEMENT_QP: u32 = 1;
const MANAGEMENT_QKEY: u32 = 0x8001_0000;
/// The time in which a MAD is answered, in milliseconds, and repetitions.
const TIMEOUT: u32 = 1000;
const RETRIES: u32 = 3;
/// The half of a transaction id that the sender chooses.
const TRANSACTION: u32 = 0x6272_0001;

/// `struct ib_user_mad_reg_req`.
#[repr(C)]
struct RegisterAgent {
    id: u32,
    method_mask: [u32; 4],
    qpn: u8,
    mgmt_class: u8,
    mgmt_class_version: u8,
    oui: [u8; 3],
    rmpp_version: u8,
}

nix::ioctl_none!(enable_pkey, 0x1b, 3);
nix::ioctl_readwrite!(register_agent, 0x1b, 1, RegisterAgent);

/// The membership of a port. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Membership {
    umad: File,
    /// The request, with its header.
    message: [u8; HEADER + MAD],
    pub(super) lid: u16,
}

impl Membership {
    /// Makes the port a full member of the group, which is created if there is none.
    pub(super) fn join(port: &LocalPort, own: Gid, pkey: u16, group: Gid) -> Result<Self> {
        let path = device_file(port)?;
        let umad = File::options().read(true).write(true).open(&path);
        let umad = umad.with_context(|| format!("-g: cannot open {}, to send MADs", path.display()))?;
        let mut agent = RegisterAgent {
            id: 0,
            method_mask: [0; 4],
            qpn: MANAGEMENT_QP as u8,
            mgmt_class: CLASS,
            mgmt_class_version: CLASS_VERSION,
            oui: [0; 3],
            rmpp_version: 0,
        };
        // SAFETY: the first ioctl has no argument. The kernel reads and writes the request of the second.
        unsafe {
            enable_pkey(umad.as_raw_fd()).and_then(|_| register_agent(umad.as_raw_fd(), &raw mut agent))
        }
        .context("-g: the kernel registers no agent for MADs")?;
        let mut message = [0; HEADER + MAD];
        let (header, mad) = message.split_at_mut(HEADER);
        header[..4].copy_from_slice(&agent.id.to_ne_bytes());
        header[8..12].copy_from_slice(&TIMEOUT.to_ne_bytes());
        header[12..16].copy_from_slice(&RETRIES.to_ne_bytes());
        header[20..24].copy_from_slice(&MANAGEMENT_QP.to_be_bytes());
        header[24..28].copy_from_slice(&MANAGEMENT_QKEY.to_be_bytes());
        header[28..30].copy_from_slice(&port.attr.sm_lid.to_be_bytes());
        header[30] = port.attr.sm_sl;
        mad[..3].copy_from_slice(&[1, CLASS, CLASS_VERSION]);
        mad[12..16].copy_from_slice(&TRANSACTION.to_be_bytes());
        mad[16..18].copy_from_slice(&MEMBER_RECORD.to_be_bytes());
        mad[48..56].copy_from_slice(&COMPONENTS.to_be_bytes());
        let record = &mut mad[RECORD..];
        record[..16].copy_from_slice(&group.0);
        record[16..32].copy_from_slice(&own.0);
        record[32..36].copy_from_slice(&QKEY.to_be_bytes());
        record[40..42].copy_from_slice(&pkey.to_be_bytes());
        record[48] = FULL_MEMBER;
        let mut member = Self { umad, message, lid: 0 };
        member.lid = member.ask(SET).with_context(|| format!("-g: cannot join the group {group}"))?;
        Ok(member)
    }

    /// Sends the request. Returns the LID in the answer.
    fn ask(&mut self, method: u8) -> Result<u16> {
        self.message[HEADER + 3] = method;
        self.umad.write_all(&self.message)?;
        let mut answer = [0; HEADER + MAD];
        self.umad.read_exact(&mut answer)?;
        let (header, mad) = answer.split_at(HEADER);
        ensure!(header[4..8] == [0; 4], "the subnet administrator does not answer: check the subnet manager");
        let status = u16::from_be_bytes([mad[4], mad[5]]);
        ensure!(status == 0, "the subnet administrator refuses the request (status {status:#06x})");
        Ok(u16::from_be_bytes([mad[RECORD + 36], mad[RECORD + 37]]))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.lid != 0 {
            // The subnet manager ends the membership when the port goes down, too.
            let _ = self.ask(DELETE);
        }
    }
}

/// The file by which programs send MADs on a port.
fn device_file(port: &LocalPort) -> Result<PathBuf> {
    let (device, number) = (port.context.device().name(), port.number.to_string());
    let entries = fs::read_dir("/sys/class/infiniband_mad").context("-g: ib_umad is not loaded")?;
    let found = entries.filter_map(Result::ok).find(|entry| {
        let is = |file, text: &str| {
            fs::read_to_string(entry.path().join(file)).is_ok_and(|found| found.trim() == text)
        };
        // The class has a file for the subnet manager (issm) of each port, too.
        entry.file_name().as_bytes().starts_with(b"umad") && is("ibdev", device) && is("port", &number)
    });
    let entry = found.with_context(|| format!("-g: {device} has no device file for MADs (ib_umad)"))?;
    Ok(PathBuf::from("/dev/infiniband").join(entry.file_name()))
}
