//! A port on a fabric: addresses and attributes of a device, as Soft-RoCE reports them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bareverbs_provider::Errno;
use bareverbs_uapi::abi::Be64;
use bareverbs_uapi::uverbs::types::{GidEntry, GidType, PortCapFlags, QueryPortRespEx};
use bareverbs_uapi::values::Guid;
use bareverbs_uapi::verbs_values::{
    AtomicCap, LinkLayer, Mtu, PortPhysState, PortSpeed, PortState, PortWidth,
};
use bareverbs_uapi::write::structs::{ExQueryDeviceResp, QueryDeviceResp, QueryPortResp};
use bareverbs_uapi::write::types::DeviceCapFlags;

use crate::address_error::AddressError;
use crate::call_faults::CallFaults;
use crate::engine::{Engine, MAX_AH, MAX_CQ, MAX_GROUP_MEMBERS, MAX_GROUPS, MAX_QP, MAX_SRQ};
use crate::fabric::Fabric;
use crate::mac::{eui64, mac};
use crate::rdma_cm::{CmPort, Namespace};
use crate::wire::{DroppedPackets, UdpWire, gid};

/// The only port of a device.
pub(crate) const PORT: u32 = 1;

/// Completion vectors: none is an interrupt, so one is enough.
pub(crate) const COMPLETION_VECTORS: u32 = 1;

// `drivers/infiniband/sw/rxe/rxe_param.h` of Linux 7.2.
pub(crate) const MAX_WR: u32 = 1 << 20;
pub(crate) const MAX_SGE: u32 = 32;
pub(crate) const MAX_INLINE: u32 = 512;
pub(crate) const MAX_CQE: u32 = (1 << 15) - 1;
pub(crate) const MAX_SRQ_SGE: u32 = 27;
pub(crate) const MAX_RD_ATOMIC: u8 = 128;
pub(crate) const MAX_MTU: Mtu = Mtu::MTU_4096;
const MAX_PD: u32 = 1 << 20;
const GID_TABLE: u32 = 1024;
/// `DeviceCapFlags` of Soft-RoCE.
const CAPABILITIES: u64 = 0x01c0_0122_3c76;

/// The index of the next device. Those of the kernel are below.
static NEXT_INDEX: AtomicU32 = AtomicU32::new(0x8000_0000);

/// A port, with its place on the fabric.
#[derive(Debug)]
pub(crate) struct Port {
    fabric: Fabric,
    /// Its number on the fabric.
    number: u32,
    /// Unique in the process.
    pub(crate) index: u32,
    pub(crate) address: IpAddr,
    pub(crate) gids: Vec<[u8; 16]>,
    mtu: Mtu,
    /// Whether it reaches other processes.
    has_wire: bool,
    removed: AtomicBool,
    link: AtomicBool,
    pub(crate) call_faults: CallFaults,
    protection_domains: AtomicU32,
    /// The offset of the next queue. No two queues of a device have the same one.
    offset: AtomicU64,
}

impl Port {
    /// Adds a device to a fabric.
    pub(crate) fn new(fabric: &Fabric, address: IpAddr) -> Result<Self, AddressError> {
        let mac = mac(address);
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        link_local[8..].copy_from_slice(&eui64(mac));
        let gids = vec![link_local, gid(address)];
        let number = fabric.add_device(gids.clone(), mac).ok_or(AddressError::OnFabric { address })?;
        Ok(Self::of(fabric, number, address, gids, MAX_MTU, false))
    }

    /// Adds a device with a UDP wire to a fabric.
    pub(crate) fn bind(fabric: &Fabric, address: IpAddr) -> Result<Self, AddressError> {
        let (number, mtu) = fabric.add_udp_device(address, mac(address))?;
        // Values of the ABI count the powers of two from 256 on.
        let mtu = Mtu(mtu.ilog2() as u8 - 7);
        Ok(Self::of(fabric, number, address, vec![gid(address)], mtu, true))
    }

    fn of(
        fabric: &Fabric,
        number: u32,
        address: IpAddr,
        gids: Vec<[u8; 16]>,
        mtu: Mtu,
        has_wire: bool,
    ) -> Self {
        Self {
            fabric: fabric.clone(),
            number,
            index: NEXT_INDEX.fetch_add(1, Ordering::Relaxed),
            address,
            gids,
            mtu,
            has_wire,
            removed: AtomicBool::new(false),
            link: AtomicBool::new(true),
            call_faults: CallFaults::default(),
            protection_domains: AtomicU32::new(1),
            offset: AtomicU64::new(0),
        }
    }

    /// The connection manager of the fabric.
    pub(crate) fn namespace(&self) -> &Arc<Namespace> {
        self.fabric.namespace()
    }

    pub(crate) fn node_guid(&self) -> Guid {
        Guid(eui64(mac(self.address)))
    }

    /// Runs `f` on the device, then the wire until it is idle.
    ///
    /// # Errors
    ///
    /// Those of `f`; `EIO` if the device was removed or the fabric has failed.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Engine) -> Result<R, Errno>) -> Result<R, Errno> {
        // The number may be that of another device by now.
        let f = |engine: &mut Engine| if self.is_removed() { Err(Errno::IO) } else { f(engine) };
        self.fabric.with(self.number, f)
    }

    /// The same for what can't fail.
    ///
    /// # Errors
    ///
    /// `EIO`.
    pub(crate) fn run(&self, f: impl FnOnce(&mut Engine)) -> Result<(), Errno> {
        self.with(|engine| {
            f(engine);
            Ok(())
        })
    }

    /// The packets that the wire has dropped.
    pub(crate) fn dropped(&self) -> DroppedPackets {
        let dropped = self.with(|engine| {
            let mut dropped = engine.wire().map(UdpWire::dropped).unwrap_or_default();
            dropped.corrupt += engine.corrupt();
            Ok(dropped)
        });
        dropped.unwrap_or_default()
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Whether this process made the fabric of the port.
    pub(crate) fn is_own(&self) -> bool {
        self.fabric.is_own()
    }

    /// Whether the port was removed. Its engine is gone then and accesses no memory.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Sets whether the link is up. Returns whether this has changed it.
    pub(crate) fn set_link(&self, up: bool) -> bool {
        let changed = self.with(|engine| {
            engine.set_link(up);
            Ok(self.link.swap(up, Ordering::Relaxed) != up)
        });
        changed.unwrap_or(false)
    }

    /// Takes the port off the fabric. Returns `false` if it was removed before, and in a forked child.
    pub(crate) fn remove(&self) -> bool {
        let is_removed = self.fabric.remove_device(self.number, &self.removed);
        if is_removed {
            self.namespace().remove_device(self.index);
        }
        is_removed
    }

    pub(crate) fn new_protection_domain(&self) -> u32 {
        self.protection_domains.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn new_offset(&self, len: u64) -> u64 {
        self.offset.fetch_add(len, Ordering::Relaxed)
    }

    /// An entry of the GID table.
    ///
    /// # Errors
    ///
    /// `ENODATA` if the entry is empty, `EINVAL` beyond the table.
    pub(crate) fn gid(&self, index: u32) -> Result<[u8; 16], Errno> {
        match self.gids.get(index as usize) {
            Some(gid) => Ok(*gid),
            None if index < GID_TABLE => Err(Errno::NODATA),
            None => Err(Errno::INVAL),
        }
    }

    /// The same as the kernel returns it.
    ///
    /// # Errors
    ///
    /// As for [`gid`](Self::gid).
    pub(crate) fn gid_entry(&self, index: u32) -> Result<GidEntry, Errno> {
        let gid = self.gid(index)?;
        Ok(GidEntry {
            gid,
            gid_index: index,
            port_num: PORT,
            gid_type: GidType::ROCE_V2,
            ..GidEntry::zeroed()
        })
    }

    pub(crate) fn query_device(&self) -> QueryDeviceResp {
        let guid = Be64::new(u64::from_be_bytes(self.node_guid().0));
        QueryDeviceResp {
            node_guid: guid,
            sys_image_guid: guid,
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            vendor_id: 0xff_ffff,
            max_qp: MAX_QP,
            max_qp_wr: MAX_WR,
            device_cap_flags: CAPABILITIES as u32,
            max_sge: MAX_SGE,
            max_sge_rd: MAX_SGE,
            max_cq: MAX_CQ,
            max_cqe: MAX_CQE,
            max_mr: 0x7_ffff,
            max_pd: MAX_PD,
            max_qp_rd_atom: MAX_RD_ATOMIC.into(),
            max_res_rd_atom: 0x3f000,
            max_qp_init_rd_atom: MAX_RD_ATOMIC.into(),
            atomic_cap: AtomicCap::HCA,
            max_mw: 0x7_ffff,
            max_mcast_grp: MAX_GROUPS,
            max_mcast_qp_attach: MAX_GROUP_MEMBERS,
            max_total_mcast_qp_attach: 0x7_0000,
            max_ah: MAX_AH,
            max_srq: MAX_SRQ,
            max_srq_wr: MAX_WR,
            max_srq_sge: MAX_SRQ_SGE,
            max_pkeys: 64,
            local_ca_ack_delay: 15,
            phys_port_cnt: PORT as u8,
            ..QueryDeviceResp::zeroed()
        }
    }

    pub(crate) fn query_device_extended(&self) -> ExQueryDeviceResp {
        ExQueryDeviceResp {
            base: self.query_device(),
            device_cap_flags_ex: DeviceCapFlags::from_bits_retain(CAPABILITIES),
            ..ExQueryDeviceResp::zeroed()
        }
    }

    pub(crate) fn query_port(&self) -> QueryPortRespEx {
        let (state, phys_state) = match self.link.load(Ordering::Relaxed) {
            true => (PortState::ACTIVE, PortPhysState::LINK_UP),
            false => (PortState::DOWN, PortPhysState::POLLING),
        };
        let legacy_resp = QueryPortResp {
            // IB_PORT_CM_SUP
            port_cap_flags: PortCapFlags::from_bits_retain(1 << 16),
            max_msg_sz: 1 << 31,
            gid_tbl_len: GID_TABLE,
            pkey_tbl_len: 1,
            state,
            max_mtu: MAX_MTU,
            active_mtu: self.mtu,
            max_vl_num: 1,
            active_width: PortWidth::X1,
            active_speed: PortSpeed::SDR.0 as u8,
            phys_state,
            link_layer: LinkLayer::ETHERNET,
            ..QueryPortResp::zeroed()
        };
        QueryPortRespEx { legacy_resp, active_speed_ex: PortSpeed::SDR.0, ..QueryPortRespEx::zeroed() }
    }
}

impl CmPort for Port {
    fn index(&self) -> u32 {
        self.index
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn node_guid(&self) -> Guid {
        self.node_guid()
    }

    /// It is the last one.
    fn gid_index(&self) -> u8 {
        (self.gids.len() - 1) as u8
    }

    fn active_mtu(&self) -> u8 {
        self.mtu.0
    }

    fn has_wire(&self) -> bool {
        self.has_wire
    }

    fn fabric(&self) -> usize {
        self.fabric.number()
    }

    fn is_removed(&self) -> bool {
        self.is_removed()
    }

    fn with_engine(&self, f: &mut dyn FnMut(&mut Engine)) -> Result<(), Errno> {
        self.run(f)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::mac::mac_of_gid;

    #[test]
    fn port_is_not_removed_while_an_engine_runs() {
        let port = Port::new(&Fabric::new(), [127, 0, 0, 1].into()).unwrap();
        let (starts, started) = mpsc::channel();
        thread::scope(|scope| {
            let remove = || {
                starts.send(()).unwrap();
                assert!(port.remove());
            };
            let during = port.with(|_| {
                scope.spawn(remove);
                started.recv().unwrap();
                // A removal that waits for no lock takes less.
                thread::sleep(Duration::from_millis(50));
                Ok(port.is_removed())
            });
            assert_eq!(during, Ok(false));
        });
        assert!(port.is_removed() && !port.remove());
    }

    #[test]
    fn both_gids_of_a_port_lead_to_its_mac() {
        for address in ["127.0.0.2", "10.1.2.3", "::1", "fd00::7"] {
            let address: IpAddr = address.parse().unwrap();
            let mac = mac(address);
            let mut link_local = [0; 16];
            link_local[..2].copy_from_slice(&[0xfe, 0x80]);
            link_local[8..].copy_from_slice(&eui64(mac));
            assert_eq!((mac_of_gid(gid(address)), mac_of_gid(link_local)), (mac, mac), "{address}");
        }
    }
}
