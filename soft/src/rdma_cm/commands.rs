//! The commands: from the bytes of a request to those of the response.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::*;
use bareverbs_uapi::uverbs::types::QpType;
use zerocopy::{FromBytes, IntoBytes};

use super::address::Address;
use super::id::{Id, IdState};
use super::namespace::{Event, Namespace};
use super::resolve::set_path;
use crate::user;

/// The only reasons of a rejection that a program has.
const REASONS: [u8; 2] = [28, 35];

/// The bytes of a request.
pub(super) enum Request<'a> {
    /// The request alone.
    Whole(&'a [u8]),
    /// A command with its header. `input` is the length of the request that the header states.
    /// Handlers read the whole request all the same, as the kernel's.
    Written { command: &'a [u8], input: usize },
}

/// Writes a response to an address.
pub(super) type Reply<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), Errno>;

/// Number, length of the request, and room for the response.
///
/// # Errors
///
/// `EINVAL`: the number is unknown, or the request is longer than the command.
pub(super) fn header(command: &[u8]) -> Result<(u32, usize, usize), Errno> {
    let (header, rest) = Header::read_from_prefix(command).map_err(|_| Errno::INVAL)?;
    if header.command > WriteCmEvent::INFO.number || usize::from(header.input) > rest.len() {
        return Err(Errno::INVAL);
    }
    Ok((header.command, header.input.into(), header.output.into()))
}

impl Request<'_> {
    fn read<T: FromBytes + IntoBytes>(&self) -> Result<T, Errno> {
        match self {
            Self::Whole(bytes) => {
                T::read_from_prefix(bytes).map(|(request, _)| request).map_err(|_| Errno::INVAL)
            }
            Self::Written { command, .. } => {
                let mut request = T::new_zeroed();
                let own = command.get(size_of::<Header>()..).unwrap_or(&[]);
                if own.len() >= size_of::<T>() {
                    request.as_mut_bytes().copy_from_slice(&own[..size_of::<T>()]);
                } else {
                    let start = command.as_ptr().expose_provenance() + size_of::<Header>();
                    user::read(start as u64, request.as_mut_bytes())?;
                }
                Ok(request)
            }
        }
    }

    /// Reads a request that may end before its ECE options.
    fn read_without_ece<T: FromBytes + IntoBytes>(&self) -> Result<T, Errno> {
        let bytes = match self {
            Self::Whole(bytes) => bytes,
            Self::Written { command, input } => &command[size_of::<Header>()..][..*input],
        };
        let least = size_of::<T>() - size_of::<Ece>();
        if bytes.len() < least {
            return Err(Errno::INVAL);
        }
        let mut request = T::new_zeroed();
        let len = bytes.len().min(size_of::<T>());
        request.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
        Ok(request)
    }
}

/// Executes a command of a file.
pub(super) fn run(
    namespace: &Arc<Namespace>,
    file: u64,
    command: u32,
    request: &Request<'_>,
    room: usize,
    reply: Reply<'_>,
) -> Result<(), Errno> {
    let call = Call { namespace, file, request, room, reply };
    match command {
        0..=2 | 18 | 20 => call.of_ids(command),
        3..=5 | 19 | 21 => call.of_routes(command),
        6..=10 => call.of_connections(command),
        11 | 12 | 14 | 15 => call.of_attributes(command),
        16 | 17 | 22 => call.of_groups(command),
        23 | 24 => call.of_services(command),
        GET_OPTION => Err(Errno::NOSYS),
        _ => Err(Errno::INVAL),
    }
}

struct Call<'a> {
    namespace: &'a Arc<Namespace>,
    file: u64,
    request: &'a Request<'a>,
    room: usize,
    reply: Reply<'a>,
}

impl Call<'_> {
    /// `ENOSPC` if the response has less room.
    fn check_room(&self, least: usize) -> Result<(), Errno> {
        if self.room < least { Err(Errno::NOSPC) } else { Ok(()) }
    }

    fn of_ids(self, command: u32) -> Result<(), Errno> {
        let (namespace, file) = (self.namespace, self.file);
        match command {
            0 => {
                self.check_room(size_of::<CreateIdResp>())?;
                let request: CreateIdReq = self.request.read()?;
                let id = namespace.create_id(file, request)?;
                (self.reply)(request.response, CreateIdResp { id }.as_bytes())
                    .inspect_err(|_| _ = namespace.destroy_id(file, id))
            }
            1 => {
                self.check_room(size_of::<DestroyIdResp>())?;
                let request: DestroyIdReq = self.request.read()?;
                let events_reported = namespace.destroy_id(file, request.id)?;
                (self.reply)(request.response, DestroyIdResp { events_reported }.as_bytes())
            }
            2 => {
                let request: BindIpReq = self.request.read()?;
                let address = ip(Address::parse(request.addr.as_bytes()))?;
                namespace.bind(file, request.id, address)
            }
            18 => {
                let request: MigrateIdReq = self.request.read()?;
                let events_reported = namespace.migrate_id(file, request)?;
                (self.reply)(request.response, MigrateIdResp { events_reported }.as_bytes())
            }
            _ => {
                let request: BindReq = self.request.read()?;
                let address = Address::parse(request.addr.as_bytes());
                if request.reserved != 0 || request.addr_size == 0 || request.addr_size != address.size() {
                    return Err(Errno::INVAL);
                }
                namespace.bind(file, request.id, address)
            }
        }
    }

    fn of_routes(self, command: u32) -> Result<(), Errno> {
        let (namespace, file) = (self.namespace, self.file);
        match command {
            3 => {
                let request: ResolveIpReq = self.request.read()?;
                let source = Address::parse(request.src_addr.as_bytes());
                if request.src_addr.family.0 != 0 {
                    ip(source)?;
                }
                let destination = ip(Address::parse(request.dst_addr.as_bytes()))?;
                namespace.resolve_address(file, request.id, source, destination)
            }
            4 => {
                let request: ResolveRouteReq = self.request.read()?;
                namespace.resolve_route(file, request.id, request.timeout_ms)
            }
            5 => {
                self.check_room(std::mem::offset_of!(QueryRouteResp, ibdev_index))?;
                let request: QueryReq = self.request.read()?;
                let resp = namespace.query_route(file, request.id)?;
                (self.reply)(request.response, resp.as_bytes())
            }
            19 => {
                let request: QueryReq = self.request.read()?;
                let resp = namespace.query(file, request.id, request.option, self.room)?;
                (self.reply)(request.response, &resp)
            }
            _ => {
                let request: ResolveAddrReq = self.request.read()?;
                let [source, destination] =
                    [request.src_addr, request.dst_addr].map(|address| Address::parse(address.as_bytes()));
                let is_source_wrong = request.src_size != 0 && request.src_size != source.size();
                let is_wrong = request.dst_size == 0 || request.dst_size != destination.size();
                if request.reserved != 0 || is_source_wrong || is_wrong {
                    return Err(Errno::INVAL);
                }
                let source = if request.src_size == 0 { Address::Unset } else { source };
                namespace.resolve_address(file, request.id, source, destination)
            }
        }
    }

    fn of_connections(self, command: u32) -> Result<(), Errno> {
        let (namespace, file) = (self.namespace, self.file);
        match command {
            6 => {
                let request: ConnectReq = self.request.read_without_ece()?;
                if request.conn_param.valid == 0 {
                    return Err(Errno::INVAL);
                }
                namespace.connect(file, request.id, &request.conn_param, request.ece)
            }
            7 => {
                let request: ListenReq = self.request.read()?;
                namespace.listen(file, request.id, request.backlog)
            }
            8 => {
                let request: AcceptReq = self.request.read_without_ece()?;
                let param = Some(&request.conn_param).filter(|param| param.valid != 0);
                namespace.accept(file, request.id, param, request.ece, request.uid)
            }
            9 => {
                let request: RejectReq = self.request.read()?;
                let reason = if request.reason == 0 { REASONS[0] } else { request.reason };
                if !REASONS.contains(&reason) {
                    return Err(Errno::INVAL);
                }
                let data = &request.private_data[..request.private_data_len.into()];
                namespace.reject(file, request.id, reason.into(), data)
            }
            _ => namespace.disconnect(file, self.request.read::<DisconnectReq>()?.id),
        }
    }

    fn of_attributes(self, command: u32) -> Result<(), Errno> {
        let (namespace, file) = (self.namespace, self.file);
        match command {
            11 => {
                self.check_room(size_of::<bareverbs_uapi::write::structs::QpAttr>())?;
                let request: InitQpAttrReq = self.request.read()?;
                let attributes = namespace.qp_attributes(file, request.id, request.qp_state)?;
                (self.reply)(request.response, attributes.as_bytes())
            }
            12 => {
                self.check_room(std::mem::offset_of!(EventResp, ece) - size_of::<u32>())?;
                let request: GetEventReq = self.request.read()?;
                let mut state = namespace.lock();
                let resp = state.next_event(file).ok_or(Errno::AGAIN)?.resp;
                (self.reply)(request.response, resp.as_bytes())?;
                state.take_event(file);
                Ok(())
            }
            14 => {
                let request: SetOptionReq = self.request.read()?;
                namespace.set_option(file, request)
            }
            _ => {
                let request: NotifyReq = self.request.read()?;
                namespace.notify(file, request.id, request.event)
            }
        }
    }

    fn of_groups(self, command: u32) -> Result<(), Errno> {
        let (namespace, file) = (self.namespace, self.file);
        let (response, membership) = match command {
            16 => {
                self.check_room(size_of::<CreateIdResp>())?;
                let request: JoinIpMcastReq = self.request.read()?;
                let group = ip(Address::parse(request.addr.as_bytes()))?.ip()?.ip();
                let flags = JoinFlags::FULL_MEMBER;
                (request.response, namespace.join(file, request.id, request.uid, group, flags)?)
            }
            22 => {
                self.check_room(size_of::<CreateIdResp>())?;
                let request: JoinMcastReq = self.request.read()?;
                let address = Address::parse(request.addr.as_bytes());
                if request.addr_size == 0 || request.addr_size != address.size() {
                    return Err(Errno::INVAL);
                }
                let (group, flags) = (address.ip()?.ip(), request.join_flags);
                (request.response, namespace.join(file, request.id, request.uid, group, flags)?)
            }
            _ => {
                self.check_room(size_of::<DestroyIdResp>())?;
                let request: DestroyIdReq = self.request.read()?;
                let events_reported = namespace.leave(file, request.id)?;
                return (self.reply)(request.response, DestroyIdResp { events_reported }.as_bytes());
            }
        };
        (self.reply)(response, CreateIdResp { id: membership }.as_bytes())
            .inspect_err(|_| _ = namespace.leave(file, membership))
    }

    fn of_services(self, command: u32) -> Result<(), Errno> {
        let mut state = self.namespace.lock();
        if command == 23 {
            let request: ResolveIbServiceReq = self.request.read()?;
            let id = state.id(self.file, request.id)?;
            let is_bound = id.state == IdState::Bound && id.device.is_some();
            // There is no subnet administrator.
            return Err(if is_bound { Errno::OPNOTSUPP } else { Errno::INVAL });
        }
        let request: WriteCmEventReq = self.request.read()?;
        if ![EventType::USER, EventType::INTERNAL].contains(&request.event) {
            return Err(Errno::INVAL);
        }
        if state.id(self.file, request.id)?.uid == 0 {
            return Err(Errno::INVAL);
        }
        let mut resp = EventResp { event: request.event, status: request.status, ..EventResp::zeroed() };
        (resp.ud.qp_num, resp.ud.qkey) = (request.ud.qp_num, request.ud.qkey);
        state.raise(request.id, resp);
        Ok(())
    }
}

/// An IP address in a field for one.
fn ip(address: Address) -> Result<Address, Errno> {
    match address {
        Address::Ip(_) => Ok(address),
        _ => Err(Errno::INVAL),
    }
}

impl Namespace {
    fn create_id(&self, file: u64, request: CreateIdReq) -> Result<u32, Errno> {
        let qp_type = match request.ps {
            PortSpace::TCP => QpType::RC,
            PortSpace::UDP | PortSpace::IPOIB => QpType::UD,
            PortSpace::IB => QpType(request.qp_type.into()),
            _ => return Err(Errno::INVAL),
        };
        self.lock().insert_id(Id::new(file, request.uid, request.ps, qp_type))
    }

    /// Destroys an identifier, its events that were not read, and the children in them. Returns the
    /// number of events that were read.
    pub(super) fn destroy_id(&self, file: u64, number: u32) -> Result<u32, Errno> {
        let mut state = self.lock();
        match state.id(file, number) {
            Ok(_) | Err(Errno::NXIO) => {}
            Err(errno) => return Err(errno),
        }
        drop(state);
        self.destroy(number)
    }

    /// Destroys an identifier and the undelivered children of a listener. `ENOENT` if another thread has
    /// destroyed it.
    fn destroy(&self, number: u32) -> Result<u32, Errno> {
        let mut state = self.lock();
        let id = state.ids.remove(&number).ok_or(Errno::NOENT)?;
        state.unbind(number);
        state.memberships.retain(|_, membership| membership.id != number);
        let requests = state.drop_events(id.file, |event| event.id == number);
        let connection = id.device.zip(id.connection);
        connection.into_iter().for_each(|of| _ = state.connections.remove(&of));
        drop(state);
        if let Some((device, connection)) = connection {
            self.destroy_connection(device, connection);
        }
        // After the identifier is gone: LISTEN adds no service to it any more.
        self.stop_listening(number);
        self.destroy_children(&requests);
        Ok(id.reported)
    }

    /// Destroys the children in the requests among dropped events.
    pub(super) fn destroy_children(&self, events: &[Event]) {
        events.iter().filter(|event| event.is_request()).for_each(|event| _ = self.destroy(event.resp.id));
    }

    /// Destroys a file with its identifiers.
    pub(super) fn end_file(&self, file: u64) {
        let of_file = |state: &super::namespace::State| -> Vec<u32> {
            state.ids.iter().filter(|(_, id)| id.file == file).map(|(number, _)| *number).collect()
        };
        let ids = of_file(&self.lock());
        ids.into_iter().for_each(|number| _ = self.destroy(number));
        self.close_file(file);
    }

    fn migrate_id(&self, file: u64, request: MigrateIdReq) -> Result<u32, Errno> {
        let descriptor = request.fd.cast_signed();
        let mut state = self.lock();
        let Some(from) = state.file_of(descriptor) else {
            // SAFETY: `fcntl` with this command reads no memory.
            let is_open = unsafe { libc::fcntl(descriptor, libc::F_GETFD) } != -1;
            return Err(if is_open { Errno::INVAL } else { Errno::NOENT });
        };
        let reported = state.id(from, request.id)?.reported;
        if from != file {
            state.migrate(request.id, file);
        }
        Ok(reported)
    }

    fn set_option(&self, file: u64, request: SetOptionReq) -> Result<(), Errno> {
        /// Longest value: more paths than a connection has.
        const MAX: u32 = 4096;
        self.lock().id(file, request.id)?;
        if request.optlen > MAX {
            return Err(Errno::INVAL);
        }
        let mut value = vec![0; request.optlen as usize];
        user::read(request.optval, &mut value)?;
        let mut state = self.lock();
        match request.level {
            OptionLevel::ID => set_id_option(state.id(file, request.id)?, IdOption(request.optname), &value),
            OptionLevel::IB if request.optname == IbOption::PATH.0 => {
                set_path(&mut state, file, request.id, &value)
            }
            _ => Err(Errno::NOSYS),
        }
    }
}

fn set_id_option(id: &mut Id, option: IdOption, value: &[u8]) -> Result<(), Errno> {
    let byte = || value.first().copied().filter(|_| value.len() == 1).ok_or(Errno::INVAL);
    let flag = || {
        let bytes: [u8; 4] = value.try_into().map_err(|_| Errno::INVAL)?;
        Ok::<_, Errno>(i32::from_ne_bytes(bytes) != 0)
    };
    match option {
        IdOption::TOS => id.tos = byte()?,
        IdOption::REUSE_ADDR => {
            let reuses = flag()?;
            let is_allowed = if reuses { id.state != IdState::Listening } else { id.state == IdState::Idle };
            id.reuses_address = is_allowed.then_some(reuses).ok_or(Errno::INVAL)?;
        }
        IdOption::AF_ONLY => {
            let only = flag()?;
            let is_allowed = matches!(id.state, IdState::Idle | IdState::Bound);
            id.family_only = Some(is_allowed.then_some(only).ok_or(Errno::INVAL)?);
        }
        IdOption::ACK_TIMEOUT => {
            let timeout = byte()?;
            if id.qp_type != QpType::RC {
                return Err(Errno::INVAL);
            }
            id.ack_timeout = Some(timeout);
        }
        _ => return Err(Errno::NOSYS),
    }
    Ok(())
}
