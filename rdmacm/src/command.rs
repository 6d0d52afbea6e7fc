//! The kernel's commands: one function each, from a typed request to a typed response. The command
//! `RDMA_USER_CM_CMD_CREATE_ID` is [`create_id`], and so on.
//!
//! This is the raw level. An id of the kernel is a bare number here, and nothing destroys it but
//! [`destroy_id`] and the last close of the file. [`CmId`](crate::CmId) owns one.
//!
//! A command is one `write` to the file. The kernel writes the response to memory that the call
//! borrows, before `write` returns. Commands affect no other memory.
//!
//! ```
//! # bareverbs::Device::find("soft0").unwrap();
//! use bareverbs_rdmacm::command::{self, CmFile};
//! use bareverbs_uapi::rdma_cm::PortSpace;
//! use bareverbs_uapi::rdma_cm::structs::{CreateIdReq, DestroyIdReq};
//!
//! let file = CmFile::open()?;
//! let request = CreateIdReq { uid: 1, ps: PortSpace::TCP, ..CreateIdReq::zeroed() };
//! let id = command::create_id(&file, request)?.id;
//! let destroyed = command::destroy_id(&file, DestroyIdReq { id, ..DestroyIdReq::zeroed() })?;
//! assert_eq!(destroyed.events_reported, 0);
//! # Ok::<(), bareverbs_rdmacm::Error>(())
//! ```

mod hint;
#[cfg(feature = "soft")]
pub(crate) mod soft;
#[cfg(test)]
mod testing;

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

#[cfg(feature = "soft")]
use bareverbs::soft::Fabric;
use bareverbs_provider::device::{BeforeWait, ErrorOrigin};
use bareverbs_provider::process::ForkGuard;
use bareverbs_provider::wait::is_past;
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::*;
use bareverbs_uapi::verbs_values::QpAttrMask;
use bareverbs_uapi::write::structs::QpAttr;
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use self::hint::Asked;
use crate::chardev;
use crate::error::CommandError;
use crate::{Addr, Error, Result};

/// An open file of the connection manager: non-blocking, for this process only.
///
/// Commands of a forked child fail with `ESTALE`. After a change of credentials (`setuid`) they
/// fail with `EACCES`: the kernel compares them with those of the open.
#[derive(Debug)]
pub struct CmFile {
    source: Source,
    process: ForkGuard,
    #[cfg(test)]
    simulated: Option<testing::Simulated>,
}

/// What executes the commands of a file.
#[derive(Debug)]
enum Source {
    Kernel(File),
    #[cfg(feature = "soft")]
    Soft(bareverbs_soft::CmFile, Fabric),
    #[cfg(feature = "soft")]
    KernelAndSoft(std::sync::Arc<soft::KernelAndSoft>),
}

impl CmFile {
    /// Opens the connection manager of the kernel. With the feature `soft`, in a process that has
    /// created soft devices [by name](bareverbs::soft), the file serves these, too: an identifier is
    /// of the devices to which its address belongs.
    ///
    /// # Errors
    /// The errors of [`CmDevice::find`](crate::CmDevice::find); [`Error::Open`].
    pub fn open() -> Result<Self> {
        let process = ForkGuard::new().map_err(Error::fork_guard)?;
        Ok(Self {
            source: Source::open()?,
            process,
            #[cfg(test)]
            simulated: None,
        })
    }

    /// Opens the connection manager of the devices of a fabric.
    ///
    /// # Errors
    /// [`Error::System`]: the process has too many descriptors, or the fabric is that of a parent process.
    #[cfg(feature = "soft")]
    pub fn on(fabric: &Fabric) -> Result<Self> {
        let process = ForkGuard::new().map_err(Error::fork_guard)?;
        Ok(Self {
            source: Source::on(fabric)?,
            process,
            #[cfg(test)]
            simulated: None,
        })
    }

    /// Opens another file of the same devices.
    pub(crate) fn reopen(&self) -> Result<Self> {
        match &self.source {
            #[cfg(feature = "soft")]
            Source::Soft(_, fabric) => Self::on(fabric),
            _ => Self::open(),
        }
    }

    /// Whether the current process opened the file.
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        self.process.is_same_process()
    }

    /// Whether the devices run in waits only. The limit of a wait is one of virtual time then.
    pub(crate) fn runs_in_waits(&self) -> bool {
        match &self.source {
            #[cfg(feature = "soft")]
            Source::Soft(_, fabric) => self.is_of_this_process() && fabric.has_virtual_time(),
            _ => false,
        }
    }

    /// Whether the limit of a wait has passed in real time. One in virtual time ends in
    /// [`before_wait`](Self::before_wait) only.
    pub(crate) fn is_past(&self, end: Option<Instant>) -> bool {
        is_past(end) && !self.runs_in_waits()
    }

    /// The time of a seeded fabric.
    pub(crate) fn virtual_now(&self) -> Option<Duration> {
        match &self.source {
            #[cfg(feature = "soft")]
            Source::Soft(_, fabric) if self.runs_in_waits() => Some(fabric.now()),
            _ => None,
        }
    }

    /// Lets the devices of a seeded fabric run, before a thread blocks at most until `end`, and until
    /// the time `alarm` of the fabric. `is_ready`: whether the wait would end at once.
    pub(crate) fn before_wait(
        &self,
        end: Option<Instant>,
        alarm: Option<Duration>,
        is_ready: impl Fn() -> bool,
    ) -> Result<BeforeWait> {
        match &self.source {
            #[cfg(feature = "soft")]
            Source::Soft(_, fabric) if self.is_of_this_process() => {
                fabric.before_wait(end, alarm, &is_ready).map_err(|errno| {
                    let what = match errno {
                        Errno::DEADLK => "waiting for an event, which nothing on the seeded fabric can raise",
                        _ => "running the seeded fabric",
                    };
                    Error::System { what, errno }
                })
            }
            _ => {
                let _ = (end, alarm, is_ready);
                Ok(BeforeWait::Block)
            }
        }
    }

    /// Whether the kernel has the additions of Linux 7.2: events of programs and the resolution of
    /// services. One with them looks the identifier up, and finds none of this number.
    pub(crate) fn has_user_events(&self) -> bool {
        let request = WriteCmEventReq { id: u32::MAX, event: EventType::USER, ..WriteCmEventReq::zeroed() };
        self.submit::<WriteCmEvent>(request, &mut []) != Err(Errno::INVAL)
    }

    /// Executes a command. `asked` describes the request for errors.
    fn execute<C: Command>(
        &self,
        request: C::Request,
        response: &mut [u8],
        asked: impl FnOnce() -> Asked,
    ) -> Result<(), CommandError>
    where
        C::Request: Copy,
    {
        self.submit::<C>(request, response).map_err(|errno| self.refused::<C>(errno, asked()))
    }

    /// The error of a refused command.
    fn refused<C: Command>(&self, errno: Errno, asked: Asked) -> CommandError {
        let hint = match errno {
            Errno::STALE => Some("the file was opened before fork; open a channel in this process"),
            errno => hint::hint(self, C::INFO.number, errno, &asked),
        };
        let command = C::INFO.c.trim_start_matches("RDMA_USER_CM_CMD_");
        let origin = if self.source.is_soft(asked.id) { ErrorOrigin::Device } else { ErrorOrigin::Kernel };
        CommandError { command, asked: asked.text, errno, origin, hint }
    }

    /// Executes a command. `ESTALE`: a parent of this process has opened the file, and nothing is
    /// executed.
    fn submit<C: Command>(&self, request: C::Request, response: &mut [u8]) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        if !self.is_of_this_process() {
            return Err(Errno::STALE);
        }
        #[cfg(test)]
        if self.simulate(&Call::<C>::with_room(request, response)) {
            return Ok(());
        }
        match &self.source {
            Source::Kernel(file) => write_to_kernel::<C>(file, request, response),
            #[cfg(feature = "soft")]
            Source::Soft(file, _) => file.execute(C::INFO.number, request.as_bytes(), response),
            #[cfg(feature = "soft")]
            Source::KernelAndSoft(both) => both.execute::<C>(request, response),
        }
    }

    /// Moves an identifier of another file to this one.
    pub(crate) fn migrate(&self, id: u32, old: &Self) -> Result<()> {
        let fd = old.source.descriptor_for(&self.source, id)?;
        migrate_id(self, MigrateIdReq { id, fd, ..MigrateIdReq::zeroed() }).map(drop)
    }
}

impl Source {
    #[cfg(not(feature = "soft"))]
    fn open() -> Result<Self> {
        Ok(Self::Kernel(chardev::open()?.into()))
    }

    #[cfg(feature = "soft")]
    fn open() -> Result<Self> {
        let Some(fabric) = bareverbs::soft::named_fabric()? else {
            return Ok(Self::Kernel(chardev::open()?.into()));
        };
        let Self::Soft(file, fabric) = Self::on(&fabric)? else { unreachable!("a file of soft devices") };
        match chardev::open() {
            Ok(kernel) => match soft::KernelAndSoft::new(kernel.into(), file) {
                Ok(both) => Ok(Self::KernelAndSoft(both)),
                Err(errno) => Err(Error::System { what: "creating a descriptor of a channel", errno }),
            },
            Err(Error::NoConnectionManager | Error::Open { .. }) => Ok(Self::Soft(file, fabric)),
            Err(error) => Err(error),
        }
    }

    #[cfg(feature = "soft")]
    fn on(fabric: &Fabric) -> Result<Self> {
        let opened = bareverbs_soft::CmFile::on(fabric);
        let file =
            opened.map_err(|errno| Error::System { what: "opening the file of soft devices", errno })?;
        Ok(Self::Soft(file, fabric.clone()))
    }

    /// Whether commands of an identifier go to soft devices.
    fn is_soft(&self, id: Option<u32>) -> bool {
        let _ = id;
        match self {
            Self::Kernel(_) => false,
            #[cfg(feature = "soft")]
            Self::Soft(..) => true,
            #[cfg(feature = "soft")]
            Self::KernelAndSoft(both) => id.is_some_and(|id| both.is_soft(id)),
        }
    }

    /// The kernel's file.
    fn kernel(&self) -> Option<&File> {
        match self {
            Self::Kernel(file) => Some(file),
            #[cfg(feature = "soft")]
            Self::Soft(..) => None,
            #[cfg(feature = "soft")]
            Self::KernelAndSoft(both) => Some(both.kernel()),
        }
    }

    /// The descriptor by which MIGRATE_ID on another file names this one.
    fn descriptor_for(&self, new: &Self, id: u32) -> Result<u32> {
        #[cfg(feature = "soft")]
        match (self, new) {
            (Self::KernelAndSoft(both), Self::Kernel(_)) if both.has_soft_id(id) => {
                let reason = "the channel was created before the soft devices and does not serve them: create \
                              another one";
                return Err(Error::invalid("migrate", reason));
            }
            (Self::KernelAndSoft(both), Self::Kernel(_)) => return Ok(soft::raw_fd(both.kernel())),
            (Self::KernelAndSoft(both), Self::Soft(..)) => return Ok(soft::raw_fd(both.soft())),
            _ => {}
        }
        let _ = (new, id);
        Ok(self.as_fd().as_raw_fd().cast_unsigned())
    }
}

/// Writes a command to the kernel's file.
fn write_to_kernel<C: Command>(
    mut file: &File,
    request: C::Request,
    response: &mut [u8],
) -> Result<(), Errno> {
    let call = Call::<C>::with_room(request, response);
    // Not the `write` of rustix: its system call is declared to change no memory, so that an
    // optimized program would never see the response.
    loop {
        return match file.write(call.as_bytes()) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        };
    }
}

impl AsFd for CmFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Kernel(file) => file.as_fd(),
            #[cfg(feature = "soft")]
            Self::Soft(file, _) => file.as_fd(),
            #[cfg(feature = "soft")]
            Self::KernelAndSoft(both) => both.as_fd(),
        }
    }
}

/// Describes a request without its padding and addresses.
fn describe(id: u32, more: fmt::Arguments<'_>) -> Asked {
    Asked { id: Some(id), ..Asked::new(format!("id {id}{more}")) }
}

/// Describes a resolution.
fn resolution(id: u32, local: Option<Addr>, peer: Option<Addr>, timeout_ms: u32) -> Asked {
    let from = local.map_or_else(String::new, |local| format!(" from {local}"));
    let peer_text = text(peer);
    Asked { local, peer, ..describe(id, format_args!(", {peer_text}{from}, at most {timeout_ms} ms")) }
}

fn text(addr: Option<Addr>) -> String {
    addr.map_or_else(|| "an address of an unknown family".into(), |addr| addr.to_string())
}

/// Declares functions that write a request: `name(Command) -> Response, |request| description`.
macro_rules! commands {
    ($($(#[$meta:meta])* $name:ident($command:ident) -> $response:ty, |$request:ident| $asked:expr;)*) => {$(
        $(#[$meta])*
        ///
        /// # Errors
        /// [`Error::Command`]: the kernel refused it.
        pub fn $name(file: &CmFile, $request: <$command as Command>::Request) -> Result<$response> {
            let mut response = <<$command as Command>::Response as FromZeros>::new_zeroed();
            file.execute::<$command>($request, response.as_mut_bytes(), || $asked)?;
            Ok(response)
        }
    )*};
}

commands! {
    /// CREATE_ID: creates an identifier. `uid` 0 gets no events.
    create_id(CreateId) -> CreateIdResp, |request| {
        Asked::new(format!("{:?}, QP type {}", request.ps, request.qp_type))
    };
    /// DESTROY_ID: destroys an identifier, its undelivered events and the children in them. It
    /// blocks while the kernel handles an event of it or sends its messages.
    destroy_id(DestroyId) -> DestroyIdResp, |request| describe(request.id, format_args!(""));
    /// BIND_IP: [`bind`] for IP addresses.
    bind_ip(BindIp) -> (), |request| {
        let local = Addr::from_ip_kernel(request.addr);
        Asked { local, ..describe(request.id, format_args!(", {}", text(local))) }
    };
    /// RESOLVE_IP: [`resolve_addr`] for IP addresses.
    resolve_ip(ResolveIp) -> (), |request| {
        let [local, peer] = [request.src_addr, request.dst_addr].map(Addr::from_ip_kernel);
        resolution(request.id, local, peer, request.timeout_ms)
    };
    /// RESOLVE_ROUTE: resolves the route.
    resolve_route(ResolveRoute) -> (), |request| {
        describe(request.id, format_args!(", at most {} ms", request.timeout_ms))
    };
    /// QUERY_ROUTE: the addresses and the path.
    query_route(QueryRoute) -> QueryRouteResp, |request| describe(request.id, format_args!(""));
    /// CONNECT: sends the connection request.
    connect(Connect) -> (), |request| describe(request.id, format_args!(", QP {:#x}", request.conn_param.qp_num));
    /// LISTEN: accepts connection requests. A backlog of 0 is the maximum.
    listen(Listen) -> (), |request| describe(request.id, format_args!(", backlog {}", request.backlog));
    /// ACCEPT: accepts a request (`conn_param.valid` 1), or confirms a response (0).
    accept(Accept) -> (), |request| describe(request.id, format_args!(", QP {:#x}", request.conn_param.qp_num));
    /// REJECT: rejects a request or a response.
    reject(Reject) -> (), |request| describe(request.id, format_args!(", reason {}", request.reason));
    /// DISCONNECT: ends the connection, or answers the peer's end.
    disconnect(Disconnect) -> (), |request| describe(request.id, format_args!(""));
    /// INIT_QP_ATTR: the attributes for a transition of the QP.
    init_qp_attr(InitQpAttr) -> QpAttr, |request| {
        describe(request.id, format_args!(", QP state {}", request.qp_state))
    };
    /// NOTIFY: passes an asynchronous event of the QP to the kernel.
    notify(Notify) -> (), |request| describe(request.id, format_args!(", event {:?}", request.event));
    /// JOIN_IP_MCAST: [`join_mcast`] for IP addresses, as a full member.
    join_ip_mcast(JoinIpMcast) -> CreateIdResp, |request| {
        describe(request.id, format_args!(", {}", text(Addr::from_ip_kernel(request.addr))))
    };
    /// LEAVE_MCAST: leaves a group. The id is that of the membership.
    leave_mcast(LeaveMcast) -> DestroyIdResp, |request| Asked::new(format!("membership {}", request.id));
    /// MIGRATE_ID: moves an identifier from the file with descriptor `fd` to this file.
    migrate_id(MigrateId) -> MigrateIdResp, |request| describe(request.id, format_args!(", fd {}", request.fd));
    /// QUERY of addresses or GIDs.
    query_addr(Query) -> QueryAddrResp, |request| describe(request.id, format_args!(", {:?}", request.option));
    /// BIND: binds to an address of any family.
    bind(Bind) -> (), |request| {
        let local = Addr::from_kernel(&request.addr);
        Asked { local, ..describe(request.id, format_args!(", {}", text(local))) }
    };
    /// RESOLVE_ADDR: resolves an address of any family.
    resolve_addr(ResolveAddr) -> (), |request| {
        let [local, peer] = [request.src_addr, request.dst_addr].map(|addr| Addr::from_kernel(&addr));
        resolution(request.id, local, peer, request.timeout_ms)
    };
    /// JOIN_MCAST: joins a multicast group of any family.
    join_mcast(JoinMcast) -> CreateIdResp, |request| {
        let group = text(Addr::from_kernel(&request.addr));
        describe(request.id, format_args!(", {group}, {:?}", request.join_flags))
    };
    /// RESOLVE_IB_SERVICE: resolves services of the subnet administrator. Linux 7.2 and later.
    resolve_ib_service(ResolveIbService) -> (), |request| {
        describe(request.id, format_args!(", service {:#x}", request.ibs.service_id))
    };
    /// WRITE_CM_EVENT: queues an event of the application. Linux 7.2 and later.
    write_cm_event(WriteCmEvent) -> (), |request| {
        Asked { event: Some(request.event), ..describe(request.id, format_args!(", {:?}", request.event)) }
    };
}

/// Whether the mask of the attributes for INIT is that of an identifier of iWARP, which has no P_Key
/// (`rdma_init_qp_attr` of `cma.c`).
pub(crate) fn is_iwarp_mask(mask: QpAttrMask) -> bool {
    mask.contains(QpAttrMask::PORT) && !mask.contains(QpAttrMask::PKEY_INDEX)
}

/// QUERY of paths or services, into `room`.
///
/// # Errors
/// [`Error::Command`]: the kernel refused it.
pub fn query(file: &CmFile, request: QueryReq, room: &mut [u8]) -> Result<()> {
    file.execute::<Query>(request, room, || describe(request.id, format_args!(", {:?}", request.option)))?;
    Ok(())
}

/// GET_EVENT: the next event of any identifier of the file; `None` if there is none.
///
/// # Errors
/// [`Error::Command`]: the kernel refused it.
pub fn get_event(file: &CmFile) -> Result<Option<EventResp>> {
    #[cfg(test)]
    if let Some(simulated) = &file.simulated {
        return Ok(simulated.next_event());
    }
    let mut response = EventResp::zeroed();
    match file.execute::<GetEvent>(GetEventReq::zeroed(), response.as_mut_bytes(), Asked::default) {
        Ok(()) => Ok(Some(response)),
        Err(error) if error.errno == Errno::AGAIN => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// SET_OPTION: sets an option to `value`. The address and the length in the request are replaced.
///
/// # Errors
/// [`Error::Command`]: the kernel refused it. [`Error::Invalid`]: the value has 4 GiB or more.
pub fn set_option(file: &CmFile, mut request: SetOptionReq, value: &[u8]) -> Result<()> {
    request.optval = value.as_ptr().expose_provenance() as u64;
    request.optlen = u32::try_from(value.len())
        .map_err(|_| Error::invalid("set_option", "the value has 4 GiB or more"))?;
    file.execute::<SetOption>(request, &mut [], || {
        let SetOptionReq { level, optname: option, .. } = request;
        let asked = match option_name(level, option) {
            // Only values of a few bytes: paths are long.
            Some(_) if value.len() <= 8 => {
                describe(request.id, format_args!(", {}", DecodedOption { level, option, bytes: value }))
            }
            Some(name) => describe(request.id, format_args!(", {name}, {} bytes", value.len())),
            None => describe(request.id, format_args!(", level {}, option {option}", level.0)),
        };
        Asked { option: Some((level, option)), ..asked }
    })?;
    Ok(())
}
