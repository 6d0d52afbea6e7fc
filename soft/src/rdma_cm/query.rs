//! QUERY and QUERY_ROUTE.

use bareverbs_provider::Errno;
use bareverbs_uapi::abi::{Be16, Be32};
use bareverbs_uapi::rdma_cm::QueryOption;
use bareverbs_uapi::rdma_cm::path::{PathFlags, PathRec, PathRecData, PathRecord};
use bareverbs_uapi::rdma_cm::structs::{QueryAddrResp, QueryPathResp, QueryRouteResp};
use zerocopy::IntoBytes;

use super::address::{storage, storage_ib, storage_in6};
use super::id::{Id, PORT};
use super::namespace::Namespace;
use crate::cm::Path;
use crate::wire::gid;

/// The selector of a field of a path record: exactly this value.
const EXACTLY: u8 = 2;

impl Namespace {
    /// The response of QUERY for a response of `room` bytes.
    pub(super) fn query(
        &self,
        file: u64,
        number: u32,
        option: QueryOption,
        room: usize,
    ) -> Result<Vec<u8>, Errno> {
        let device = self.device_of(file, number)?;
        let mut state = self.lock();
        let id = state.id(file, number)?;
        match option {
            QueryOption::ADDR | QueryOption::GID => {
                if room < std::mem::offset_of!(QueryAddrResp, ibdev_index) {
                    return Err(Errno::NOSPC);
                }
                Ok(addresses(id, device, option == QueryOption::GID).as_bytes().to_vec())
            }
            QueryOption::PATH => {
                let left = room.checked_sub(size_of::<QueryPathResp>()).ok_or(Errno::NOSPC)?;
                let paths = u32::from(id.path.is_some());
                let mut bytes = [paths.to_ne_bytes(), [0; 4]].concat();
                if let Some(path) = id.path.filter(|_| left >= size_of::<PathRecData>()) {
                    let flags = PathFlags::GMP | PathFlags::PRIMARY | PathFlags::BIDIRECTIONAL;
                    bytes.extend(PathRecData::new(flags, &record(&path)).as_bytes());
                }
                Ok(bytes)
            }
            QueryOption::IB_SERVICE => Err(Errno::NODATA),
            _ => Err(Errno::NOSYS),
        }
    }

    /// The response of QUERY_ROUTE.
    pub(super) fn query_route(&self, file: u64, number: u32) -> Result<QueryRouteResp, Errno> {
        let device = self.device_of(file, number)?;
        let mut state = self.lock();
        let id = state.id(file, number)?;
        let mut resp = QueryRouteResp {
            src_addr: storage_in6(id.source),
            dst_addr: storage_in6(id.destination),
            ..QueryRouteResp::zeroed()
        };
        if let Some((guid, index)) = device {
            (resp.node_guid, resp.port_num, resp.ibdev_index) = (guid, PORT, index);
            resp.num_paths = id.path.is_some().into();
            resp.ib_route[0] = match &id.path {
                Some(path) => user_record(path),
                None => PathRec {
                    dgid: id.destination.map_or([0; 16], |address| gid(address.ip())),
                    sgid: id.source.map_or([0; 16], |address| gid(address.ip())),
                    pkey: Be16::new(0xffff),
                    ..PathRec::zeroed()
                },
            };
        }
        Ok(resp)
    }

    /// The GUID and the index of the device of an identifier.
    fn device_of(&self, file: u64, number: u32) -> Result<Option<(u64, u32)>, Errno> {
        let Some(index) = self.lock().id(file, number)?.device else { return Ok(None) };
        let port = self.device(index).ok_or(Errno::NXIO)?;
        Ok(Some((u64::from_ne_bytes(port.node_guid().0), index)))
    }
}

fn addresses(id: &Id, device: Option<(u64, u32)>, as_gids: bool) -> QueryAddrResp {
    let mut resp = QueryAddrResp::zeroed();
    if let Some((guid, index)) = device {
        (resp.node_guid, resp.port_num, resp.ibdev_index) = (guid, PORT, index);
        resp.pkey = 0xffff_u16.to_be();
    }
    if as_gids {
        let len = size_of::<bareverbs_uapi::rdma_cm::address::SocketAddressIb>() as u16;
        (resp.src_addr, resp.src_size) = (storage_ib(id.space, id.source), len);
        (resp.dst_addr, resp.dst_size) = (storage_ib(id.space, id.destination), len);
    } else {
        (resp.src_addr, resp.src_size) = storage(id.source);
        (resp.dst_addr, resp.dst_size) = storage(id.destination);
    }
    resp
}

fn record(path: &Path) -> PathRecord {
    PathRecord {
        dgid: path.destination,
        sgid: path.source,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: true,
        pkey: path.pkey,
        sl: path.service_level,
        mtu_selector: EXACTLY,
        mtu: path.mtu,
        rate_selector: EXACTLY,
        rate: path.rate,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life,
        ..PathRecord::default()
    }
}

fn user_record(path: &Path) -> PathRec {
    PathRec {
        dgid: path.destination,
        sgid: path.source,
        flow_label: Be32::new(path.flow_label),
        reversible: 1,
        mtu: path.mtu.into(),
        pkey: Be16::new(path.pkey),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        sl: path.service_level,
        mtu_selector: EXACTLY,
        rate_selector: EXACTLY,
        rate: path.rate,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life,
        ..PathRec::zeroed()
    }
}
