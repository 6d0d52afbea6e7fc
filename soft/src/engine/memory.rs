//! Memory keys: regions and windows.
//!
//! A key is `index << 8 | key`, as Soft-RoCE forms it. Regions and windows have different indices.

use bareverbs_provider::Errno;
use bareverbs_transport::packet::Flush;
use bareverbs_transport::{Access, AccessError, Table};
use bareverbs_uapi::uverbs::types::AccessFlags;
use bareverbs_uapi::verbs_values::MwType;

use super::range::{Range, page_size, populate};

/// The index of the first region.
const FIRST_REGION: u32 = 1;
/// The index of the first window.
const FIRST_WINDOW: u32 = 0x8_0001;
/// Maximum number of regions and of windows.
const LIMIT: usize = 0x7_ffff;

/// A registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MrAttr {
    pub(crate) pd: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) iova: u64,
    pub(crate) access: AccessFlags,
}

/// A registration that was checked, of memory that is present.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparedMr(MrAttr);

/// A registered memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mr {
    pub(crate) id: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[derive(Debug)]
struct Region {
    attr: MrAttr,
    key: u32,
    /// Whether its memory was found writable.
    is_writable: bool,
    /// Windows that are bound to it.
    windows: u32,
}

/// A window's part of a region.
#[derive(Clone, Copy, Debug)]
struct Binding {
    region: u32,
    /// The QP whose requests may use a window of type 2.
    qp: u32,
    address: u64,
    length: u64,
    access: AccessFlags,
}

#[derive(Debug)]
struct Window {
    pd: u32,
    ty: MwType,
    key: u32,
    binding: Option<Binding>,
}

/// Who uses a key: the protection domain, and the QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessor {
    pub(super) pd: u32,
    pub(super) qp: u32,
}

/// A BIND_MW request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    pub(super) window: u32,
    pub(super) new_key: u32,
    pub(super) region: u32,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) access: AccessFlags,
}

/// The memory keys of a device.
#[derive(Debug)]
pub(super) struct Keys {
    regions: Table<Region>,
    windows: Table<Window>,
    /// The low byte of the next key.
    next: u32,
}

/// Rights of regions.
fn supported() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::MW_BIND
        | AccessFlags::FLUSH_GLOBAL
        | AccessFlags::FLUSH_PERSISTENT
}

/// The bits 20 to 29, which a device may ignore (`IB_ACCESS_OPTIONAL`).
const OPTIONAL: u32 = 0x3ff0_0000;

fn writes() -> AccessFlags {
    AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC
}

/// Whether the device may write to a region with these rights (`ib_access_writable`).
pub(crate) fn is_written(access: AccessFlags) -> bool {
    access.intersects(AccessFlags::LOCAL_WRITE | writes() | AccessFlags::MW_BIND)
}

/// Rights of regions that the kernel knows and the device doesn't have.
fn absent() -> AccessFlags {
    AccessFlags::ZERO_BASED | AccessFlags::ON_DEMAND | AccessFlags::HUGETLB
}

/// The bits of rights that the kernel knows.
pub(crate) fn known_rights() -> u32 {
    (supported() | absent()).bits() | OPTIONAL
}

/// Checks the rights of a region (`ib_check_mr_access`).
///
/// # Errors
///
/// `EINVAL` for rights that contradict each other or that the kernel doesn't know, `EOPNOTSUPP` for those
/// that the device doesn't have.
pub(crate) fn check_rights(access: AccessFlags) -> Result<(), Errno> {
    if access.intersects(writes()) && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(Errno::INVAL);
    }
    if access.bits() & !known_rights() != 0 {
        return Err(Errno::INVAL);
    }
    if access.intersects(absent()) { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}

impl MrAttr {
    /// Checks the range of the registration, and makes its memory present, which may take long. The
    /// caller has checked the rights by [`check_rights`].
    ///
    /// # Errors
    ///
    /// `EINVAL` for an impossible range or persistent memory, `EFAULT` if a part of the range isn't
    /// mapped with the access.
    pub(crate) fn prepare(self) -> Result<PreparedMr, Errno> {
        // No memory of a process is known to be persistent.
        if self.access.contains(AccessFlags::FLUSH_PERSISTENT) {
            return Err(Errno::INVAL);
        }
        let page = page_size();
        if !(self.start ^ self.iova).is_multiple_of(page) {
            return Err(Errno::INVAL);
        }
        let end = self.start.checked_add(self.length).and_then(|end| end.checked_next_multiple_of(page));
        let end = end.ok_or(Errno::INVAL)?;
        self.iova.checked_add(self.length).ok_or(Errno::INVAL)?;
        if end == self.start - self.start % page {
            return Err(Errno::INVAL);
        }
        populate(self.start, self.length, is_written(self.access))?;
        Ok(PreparedMr(self))
    }
}

impl Region {
    fn mr(&self, id: u32) -> Mr {
        Mr { id, lkey: self.key, rkey: self.key }
    }

    /// The memory at an address of the region.
    fn range(&self, address: u64, length: u64) -> Result<Range, AccessError> {
        let offset = address.checked_sub(self.attr.iova).ok_or(AccessError::Denied)?;
        let end = offset.checked_add(length).ok_or(AccessError::Denied)?;
        if end > self.attr.length {
            return Err(AccessError::Denied);
        }
        // `MrAttr::prepare` found that the end of the region is an address.
        Ok(Range::new(self.attr.start + offset, length))
    }
}

fn right(access: Access) -> AccessFlags {
    match access {
        Access::LocalRead => AccessFlags::empty(),
        Access::LocalWrite => AccessFlags::LOCAL_WRITE,
        Access::RemoteRead => AccessFlags::REMOTE_READ,
        Access::RemoteWrite => AccessFlags::REMOTE_WRITE,
        Access::RemoteAtomic => AccessFlags::REMOTE_ATOMIC,
    }
}

impl Keys {
    pub(super) fn new() -> Self {
        Self {
            regions: Table::new(FIRST_REGION, LIMIT),
            windows: Table::new(FIRST_WINDOW, LIMIT),
            next: 0x5a,
        }
    }

    /// The low byte of a new key. It differs from those before, so that an old key of the same index is
    /// invalid.
    fn fresh(&mut self) -> u32 {
        self.next = self.next.wrapping_mul(0x2d).wrapping_add(0x3b) & 0xff;
        self.next
    }

    pub(super) fn register(&mut self, PreparedMr(attr): PreparedMr) -> Result<Mr, Errno> {
        let (key, is_writable) = (self.fresh(), is_written(attr.access));
        let region = |id| Region { attr, key: id << 8 | key, is_writable, windows: 0 };
        let id = self.regions.insert_with(region);
        let id = id.ok_or(Errno::NOMEM)?;
        self.regions.get(id).map(|region| region.mr(id)).ok_or(Errno::NOMEM)
    }

    /// Changes the PD and the rights of a region, which the caller has checked. The keys stay:
    /// `EACCES` for rights to write to memory that was registered without them.
    pub(super) fn reregister(
        &mut self,
        id: u32,
        pd: Option<u32>,
        access: Option<AccessFlags>,
    ) -> Result<Mr, Errno> {
        let region = self.regions.get_mut(id).ok_or(Errno::INVAL)?;
        if let Some(access) = access {
            if is_written(access) && !region.is_writable {
                return Err(Errno::ACCESS);
            }
            region.attr.access = access;
        }
        if let Some(pd) = pd {
            region.attr.pd = pd;
        }
        Ok(region.mr(id))
    }

    pub(super) fn deregister(&mut self, id: u32) -> Result<(), Errno> {
        match self.regions.get(id) {
            Some(region) if region.windows == 0 => {
                self.regions.remove(id);
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn mr(&self, id: u32) -> Option<(Mr, MrAttr)> {
        self.regions.get(id).map(|region| (region.mr(id), region.attr))
    }

    pub(super) fn allocate_window(&mut self, pd: u32, ty: MwType) -> Result<(u32, u32), Errno> {
        let key = self.fresh();
        let id = self.windows.insert_with(|id| Window { pd, ty, key: id << 8 | key, binding: None });
        let id = id.ok_or(Errno::NOMEM)?;
        Ok((id, id << 8 | key))
    }

    pub(super) fn free_window(&mut self, id: u32) -> Result<(), Errno> {
        let mut window = self.windows.remove(id).ok_or(Errno::INVAL)?;
        self.unbind(window.binding.take());
        Ok(())
    }

    fn unbind(&mut self, binding: Option<Binding>) {
        if let Some(region) = binding.and_then(|binding| self.regions.get_mut(binding.region)) {
            region.windows -= 1;
        }
    }

    /// Invalidates the windows of type 2 that a destroyed QP has bound.
    pub(super) fn forget_qp(&mut self, qp: u32) {
        let is_bound = |window: &&Window| {
            window.ty == MwType::TYPE_2 && window.binding.is_some_and(|binding| binding.qp == qp)
        };
        let bound: Vec<u32> = self.windows.iter().filter(is_bound).map(|window| window.key >> 8).collect();
        for id in bound {
            let binding = self.windows.get_mut(id).and_then(|window| window.binding.take());
            self.unbind(binding);
        }
    }

    /// Binds a window to a region, or a window of type 1 to none if the length is 0.
    pub(super) fn bind(&mut self, who: Accessor, bind: &Bind) -> Result<(), AccessError> {
        let id = bind.window >> 8;
        let window =
            self.windows.get(id).filter(|window| window.key == bind.window).ok_or(AccessError::Denied)?;
        let zero_based = bind.access.contains(AccessFlags::ZERO_BASED);
        let rights = supported() | AccessFlags::ZERO_BASED;
        if bind.access.bits() & !(rights.bits() | OPTIONAL) != 0 || window.pd != who.pd {
            return Err(AccessError::Denied);
        }
        let type_2 = window.ty == MwType::TYPE_2;
        if type_2 && (window.binding.is_some() || bind.length == 0) || !type_2 && zero_based {
            return Err(AccessError::Denied);
        }
        let binding = if bind.length == 0 { None } else { Some(self.check_bind(who, bind, zero_based)?) };
        if let Some(binding) = binding
            && let Some(region) = self.regions.get_mut(binding.region)
        {
            region.windows += 1;
        }
        if let Some(window) = self.windows.get_mut(id) {
            window.key = id << 8 | bind.new_key & 0xff;
            let old = std::mem::replace(&mut window.binding, binding);
            self.unbind(old);
        }
        Ok(())
    }

    fn check_bind(&self, who: Accessor, bind: &Bind, zero_based: bool) -> Result<Binding, AccessError> {
        let region = self.regions.get(bind.region >> 8).filter(|region| region.key == bind.region);
        let region = region.ok_or(AccessError::Denied)?;
        let has = region.attr.access;
        if region.attr.pd != who.pd
            || !has.contains(AccessFlags::MW_BIND)
            || bind.access.intersects(writes()) && !has.contains(AccessFlags::LOCAL_WRITE)
        {
            return Err(AccessError::Denied);
        }
        region.range(bind.address, bind.length)?;
        let Bind { address, length, access, .. } = *bind;
        let access = if zero_based { access | AccessFlags::ZERO_BASED } else { access };
        Ok(Binding { region: bind.region >> 8, qp: who.qp, address, length, access })
    }

    /// Invalidates a window of type 2 that is bound.
    pub(super) fn invalidate(&mut self, who: Accessor, key: u32) -> Result<(), AccessError> {
        let window =
            self.windows.get_mut(key >> 8).filter(|window| window.key == key).ok_or(AccessError::Denied)?;
        let bound_here = window.binding.is_some_and(|binding| binding.qp == who.qp);
        if window.ty != MwType::TYPE_2 || window.pd != who.pd || !bound_here {
            return Err(AccessError::Denied);
        }
        let binding = window.binding.take();
        self.unbind(binding);
        Ok(())
    }

    /// The memory behind an L_Key or R_Key.
    pub(super) fn find(
        &self,
        who: Accessor,
        key: u32,
        access: Access,
        address: u64,
        length: u64,
    ) -> Result<Range, AccessError> {
        self.find_for(
            who,
            key,
            right(access),
            matches!(access, Access::LocalRead | Access::LocalWrite),
            |_| Some((address, length)),
        )
    }

    /// The memory that a FLUSH places.
    pub(super) fn find_for_flush(
        &self,
        who: Accessor,
        key: u32,
        (address, length): (u64, u32),
        flush: Flush,
    ) -> Result<Range, AccessError> {
        let mut needed = AccessFlags::empty();
        if flush.placement & Flush::GLOBAL != 0 {
            needed |= AccessFlags::FLUSH_GLOBAL;
        }
        if flush.placement & Flush::PERSISTENT != 0 {
            needed |= AccessFlags::FLUSH_PERSISTENT;
        }
        self.find_for(who, key, needed, false, |whole| {
            Some(if flush.whole_key { whole } else { (address, length.into()) })
        })
    }

    /// Looks a key up. `part` chooses the part of the whole that the key opens.
    fn find_for(
        &self,
        who: Accessor,
        key: u32,
        needed: AccessFlags,
        local: bool,
        part: impl FnOnce((u64, u64)) -> Option<(u64, u64)>,
    ) -> Result<Range, AccessError> {
        let denied = AccessError::Denied;
        if let Some(region) = self.regions.get(key >> 8) {
            let attr = &region.attr;
            if region.key != key || attr.pd != who.pd || !attr.access.contains(needed) {
                return Err(denied);
            }
            let (address, length) = part((attr.iova, attr.length)).ok_or(denied)?;
            return region.range(address, length);
        }
        let window = self.windows.get(key >> 8).filter(|window| window.key == key && !local).ok_or(denied)?;
        let binding = window.binding.ok_or(denied)?;
        let other_qp = window.ty == MwType::TYPE_2 && binding.qp != who.qp;
        if window.pd != who.pd || other_qp || !binding.access.contains(needed) {
            return Err(denied);
        }
        let zero_based = binding.access.contains(AccessFlags::ZERO_BASED);
        let base = if zero_based { 0 } else { binding.address };
        let (address, length) = part((base, binding.length)).ok_or(denied)?;
        let offset = address.checked_sub(base).ok_or(denied)?;
        if offset.checked_add(length).is_none_or(|end| end > binding.length) {
            return Err(denied);
        }
        let region = self.regions.get(binding.region).ok_or(denied)?;
        region.range(binding.address + offset, length)
    }
}
