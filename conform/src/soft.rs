//! A soft device as a target.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use bareverbs_netlink::ResourceSummary;
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::mapping::Protection;
use bareverbs_soft::SoftDevice;
use bareverbs_uapi::ioctl::{Attribute, Header, VERBS_IOCTL};
use bareverbs_uapi::uverbs::types::DriverId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use zerocopy::FromBytes;

use crate::environment::{Restricted, Restriction};
use crate::map::Map;
use crate::own_memory::{read, store};
use crate::target::{CmFile, Target, UverbsFile};
use crate::write_buffer::WriteBuffer;

/// Checks whose answer differs from that of Soft-RoCE on Linux 7.2: part of the name, and why.
const DIFFERENCES: &[(&str, &str)] = &[
    ("AdviseMr", "the device has no on-demand paging"),
    ("datagram-q_key-privileged", "a Q_Key with its top bit set selects that of the sending QP"),
    ("mr-access-on-demand", "the device has no on-demand paging"),
    ("rxe::odp-", "the device has no on-demand paging"),
    ("::write-overread-", "the device doesn't read behind a command"),
    ("::event-fd-file-closed", "an event descriptor is a socket, whose end is read as 0 bytes"),
    ("::event-fd-one-less", "an event descriptor is a socket: a short read truncates the record"),
    ("::event-fd-length-0", "an event descriptor is a socket: a read of 0 bytes succeeds"),
];

/// A soft device as a target.
pub(crate) struct SoftTarget(pub(crate) SoftDevice);

#[cfg(test)]
impl SoftTarget {
    /// A device of a fabric of its own.
    pub(crate) fn new() -> Self {
        Self(SoftDevice::new(&bareverbs_soft::Fabric::new()))
    }
}

struct SoftFile {
    file: DeviceFile,
    null: OwnedFd,
}

impl Target for SoftTarget {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    fn kernel(&self) -> String {
        "soft".into()
    }

    fn driver_id(&self) -> u32 {
        DriverId::RXE.0
    }

    fn releases_late(&self) -> bool {
        false
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn open(&self) -> Result<Box<dyn UverbsFile + '_>, Errno> {
        let file = self.0.open().map_err(|error| error.errno)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
        Ok(Box::new(SoftFile { file, null }))
    }

    fn resources(&self) -> Result<ResourceSummary, String> {
        let resources = self.0.resources();
        let mut summary = ResourceSummary::default();
        let counts = [
            (&mut summary.ctx, resources.contexts),
            (&mut summary.pd, resources.pds),
            (&mut summary.cq, resources.cqs),
            (&mut summary.qp, resources.qps),
            (&mut summary.srq, resources.srqs),
            (&mut summary.mr, resources.mrs),
        ];
        for (place, count) in counts {
            *place = count as u64;
        }
        Ok(summary)
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    fn open_cm(&self) -> Result<Box<dyn CmFile + '_>, Errno> {
        Ok(Box::new(bareverbs_soft::CmFile::on(self.0.fabric())?))
    }

    fn netlink(&self, _message: &[u8]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    fn netlink_index(&self) -> u32 {
        0
    }

    fn difference(&self, check: &str) -> Option<&'static str> {
        DIFFERENCES.iter().find(|(part, _)| check.contains(part)).map(|(_, reason)| *reason)
    }

    fn restrict(&self, _restriction: Restriction) -> Result<Box<dyn Restricted>, String> {
        Err("a soft device has no cgroup, namespace or capability of its own".into())
    }
}

impl CmFile for bareverbs_soft::CmFile {
    unsafe fn write(&self, command: &[u8]) -> Result<usize, Errno> {
        // SAFETY: the caller upholds the contract of the addresses.
        unsafe { Self::write(self, command) }.map(|()| command.len())
    }

    fn descriptor(&self) -> i32 {
        self.as_raw_fd()
    }

    fn is_readable(&self) -> Result<bool, Errno> {
        readable(self.as_fd())
    }
}

fn readable(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents().contains(PollFlags::IN))
}

/// A channel's descriptor, which the session owns until `close`.
fn channel<'fd>(fd: i32) -> BorrowedFd<'fd> {
    // SAFETY: the session owns the descriptor, so it is open until `close`.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl UverbsFile for SoftFile {
    unsafe fn ioctl(&self, number: u32, address: u64) -> Result<(), Errno> {
        if number != VERBS_IOCTL {
            return Err(Errno::NOTTY);
        }
        let mut call = read(address, size_of::<Header>())?;
        let header = Header::read_from_bytes(&call).map_err(|_| Errno::FAULT)?;
        let length = call.len() + usize::from(header.num_attrs) * size_of::<Attribute>();
        // Without readable attributes, the call has its header only. So it has if its length is wrong,
        // for which the device refuses it: what is behind the caller's bytes must not be written back.
        if usize::from(header.length) == length
            && let Ok(whole) = read(address, length)
        {
            call = whole;
        }
        // SAFETY: the caller upholds the contract of the addresses, and the device accesses no more than
        // `call`, whatever its header says.
        let result = unsafe { self.file.execute_raw(&mut call) };
        store(address, &call)?;
        result
    }

    unsafe fn write(&self, command: &WriteBuffer) -> Result<usize, Errno> {
        // SAFETY: the caller upholds the contract of the addresses. The device checks the header.
        unsafe { self.file.write_raw(command.command()) }.map(|()| command.command().len())
    }

    unsafe fn ioctl_in_child(&self, _number: u32, _address: u64) -> Result<Result<(), Errno>, String> {
        Err("a forked child can't use a soft device".into())
    }

    unsafe fn write_in_child(&self, _command: &WriteBuffer) -> Result<Result<(), Errno>, String> {
        Err("a forked child can't use a soft device".into())
    }

    fn close(&self, fd: i32) {
        // SAFETY: a call made the descriptor for the session, which does not use it again.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }

    fn other_fds(&self) -> [i32; 2] {
        [self.file.as_fd().as_raw_fd(), self.null.as_raw_fd()]
    }

    fn read(&self, fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::ioctl_fionbio(channel(fd), true)?;
        rustix::io::read(channel(fd), buffer)
    }

    fn is_readable(&self, fd: i32) -> Result<bool, Errno> {
        readable(channel(fd))
    }

    fn duplicate(&self) -> Result<OwnedFd, Errno> {
        Err(Errno::NOSYS)
    }

    fn map(&self, offset: u64, len: usize, protection: ProtFlags) -> Result<Map, Errno> {
        let mapping = self.file.map(offset, len, Protection::ReadWrite).map_err(|error| error.errno)?;
        Ok(Map::of_soft_device(mapping, protection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Check;
    use crate::fault::{Faulty, data as data_faults, parser as parser_faults};
    use crate::generate::{data, environment, life, order, parser, qp_states, rings};
    use crate::rules::Rule;
    use crate::{Filter, Suite, Verdict};

    /// Runs the checks whose names match the pattern. `least` is below the number of those that pass.
    fn passes(device: &str, pattern: Option<&str>, least: usize) {
        let suite = Suite::for_device(Some(device)).unwrap().without_passed_calls();
        let results = suite.run(&Filter::new(pattern), 0, |_, _, _| {});
        let failed: Vec<_> = results.checks.iter().filter(|one| one.verdict == Verdict::Failed).collect();
        let names: Vec<_> = failed.iter().map(|one| format!("{}: {}", one.name, one.reason)).collect();
        assert!(failed.is_empty(), "{} failed:\n{}", names.len(), names.join("\n"));
        assert!(results.count(Verdict::Passed) > least, "{}", results.count(Verdict::Passed));
    }

    #[test]
    fn soft_device_passes_the_checks_of_its_series() {
        passes("soft0", None, 5000);
    }

    /// The device has a UDP wire: these families send packets, join groups and listen.
    #[test]
    fn soft_device_of_an_address_passes_the_checks_of_its_series() {
        let process = std::process::id();
        let device = format!("soft:127.{}.{}.4", process >> 8 & 0x7f | 0x40, process & 0xff);
        for (pattern, least) in [("command::*", 850), ("data::*", 600), ("life::*", 35), ("cm::*", 320)] {
            passes(&device, Some(pattern), least);
        }
    }

    /// The rule that the suite names for a device that breaks one.
    fn named(checks: Vec<Check>, rule: Rule) -> Result<Option<String>, String> {
        let target = Faulty::new(Box::new(SoftTarget::new()), rule);
        let suite = Suite::of(Box::new(target), checks).map_err(|error| error.to_string())?;
        // The hazards are those of a kernel.
        let suite = suite.without_passed_calls().with_hazards();
        Ok(suite.run(&Filter::default(), 0, |_, _, _| {}).broken_rule())
    }

    /// Breaks each rule. A part of the checks of other rules shows that they are not concerned.
    fn names_each(rules: &[Rule], checks: impl Fn() -> Vec<Check> + Sync) {
        let judge = |rule: &Rule| {
            let part = checks().into_iter().enumerate();
            let part = part.filter(|(at, check)| at % 32 == 0 || check.rule == *rule).map(|(_, check)| check);
            let named = named(part.collect(), *rule);
            let right = named.as_ref().map(|named| named.as_deref()) == Ok(Some(rule.id()));
            (!right).then(|| format!("{}: {named:?}", rule.id()))
        };
        let parts = rules.chunks(rules.len().div_ceil(4));
        let wrong: Vec<String> = std::thread::scope(|scope| {
            let running: Vec<_> =
                parts.map(|part| scope.spawn(|| part.iter().filter_map(judge).collect::<Vec<_>>())).collect();
            running.into_iter().flat_map(|part| part.join().expect("the suite does not panic")).collect()
        });
        assert!(wrong.is_empty(), "{} of {} rules:\n{}", wrong.len(), rules.len(), wrong.join("\n"));
    }

    #[test]
    fn suite_names_each_broken_rule_of_the_parser() {
        names_each(parser_faults::RULES, || {
            let checks = parser::checks().into_iter().chain(order::checks()).chain(life::checks());
            checks.chain(environment::checks()).collect()
        });
    }

    #[test]
    fn suite_names_each_broken_rule_of_the_data_path() {
        names_each(data_faults::RULES, || {
            let checks = data::checks(data::Device::Rxe).into_iter();
            checks.chain(rings::checks()).chain(qp_states::checks()).collect()
        });
    }
}
