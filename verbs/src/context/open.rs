//! Opening a context for a device file, and importing one of another process.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bareverbs_provider::caps;
use bareverbs_provider::command::{self, RegMrMethod};
use bareverbs_provider::device::{DeviceFile, IoctlError, OpenError};
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::uverbs::{InfoHandles, ObjectClass};
use bareverbs_uapi::write::structs::ExQueryDeviceResp;
use rustix::io::Errno;

use super::{Capabilities, Context, ContextInner, ContextShared};
use crate::discovery::{self, Device};
use crate::error::{Error, Result};
use crate::events::AsyncEvents;

const VERB: &str = "open_device";

impl Device {
    /// Opens it with the provider of its driver.
    ///
    /// # Errors
    /// - [`Error::NoUverbs`].
    /// - [`Error::Open`] if its node is missing or may not be opened.
    /// - [`Error::UnsupportedDriver`] if this build has no provider for it.
    /// - [`Error::Kernel`].
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        Context::open(self)
    }

    /// Opens it with the provider `P`. The data path is compiled for that provider only.
    ///
    /// # Errors
    /// As for [`Device::open`]; [`Error::UnsupportedDriver`] if `P` does not support its driver.
    #[doc(alias = "ibv_open_device")]
    #[doc(alias = "mlx5dv_open_device")]
    pub fn open_as<P: Provider>(&self) -> Result<Context<P>> {
        Context::open(self)
    }
}

impl<P: Provider> Context<P> {
    pub(crate) fn open(device: &Device) -> Result<Self> {
        let driver = match device.driver_id() {
            Some(driver) => Some(driver),
            None => probe_driver(&open_file(device, DriverId::UNKNOWN)?),
        };
        let file = Arc::new(open_file(device, Self::find_driver(device, driver)?)?);
        let refused = |refused: IoctlError| Error::kernel(VERB, device.name(), refused);
        let provider = P::open(Arc::clone(&file)).map_err(refused)?;
        let events = AsyncEvents::create(&file)?;
        Self::with_file(VERB, device, file, provider, events)
    }

    /// Opens the first device that can be opened with the provider `P`, as [`Context::open_first`]
    /// does.
    ///
    /// # Errors
    /// As for [`Context::open_first`]. A device whose driver `P` does not support has the reason
    /// [`Error::UnsupportedDriver`].
    pub fn open_first_as() -> Result<Self> {
        Self::open_first_of(&discovery::list()?)
    }

    fn open_first_of(devices: &[Device]) -> Result<Self> {
        let mut reasons = Vec::new();
        for device in devices {
            match Self::open(device) {
                Ok(context) => return Ok(context),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(if reasons.is_empty() { Error::NoDevice } else { Error::NoneOpened { reasons } })
    }

    /// Imports a context with the provider `P`, as [`Context::import`] does.
    ///
    /// # Errors
    /// As for [`Context::import`]; [`Error::UnsupportedDriver`] if `P` does not support the driver.
    pub fn import_as(fd: OwnedFd) -> Result<Self> {
        const VERB: &str = "import_device";
        let device = Device::from_fd(VERB, fd.as_fd())?;
        let file = device_file(VERB, &device, fd, DriverId::UNKNOWN)?;
        let driver = device.driver_id().or_else(|| probe_driver(&file));
        let driver = Self::find_driver(&device, driver)?;
        let file = Arc::new(file.with_driver_id(driver.0));
        let provider = P::import(Arc::clone(&file)).map_err(|reason| {
            Error::create(VERB, device.name(), reason).or_hint(|errno| {
                (errno == Errno::INVAL).then(|| {
                    "the file may have no context: the sending process must open the device first".into()
                })
            })
        })?;
        let events = AsyncEvents::create(&file)?;
        let stream = events.as_fd().try_clone_to_owned().map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::MFILE);
            Error::system("duplicating the descriptor of asynchronous events", errno)
        })?;
        file.send_events_to(stream);
        Self::with_file(VERB, &device, file, provider, events)
    }

    /// The driver id, if it is known and `P` supports it.
    fn find_driver(device: &Device, driver: Option<DriverId>) -> Result<DriverId> {
        driver
            .filter(|driver| P::drives(driver.0))
            .ok_or_else(|| Error::UnsupportedDriver { device: device.name().to_owned(), driver })
    }

    fn with_file(
        verb: &'static str,
        device: &Device,
        file: Arc<DeviceFile>,
        provider: P,
        events: AsyncEvents,
    ) -> Result<Self> {
        let refused = |refused: IoctlError| Error::kernel(verb, device.name(), refused);
        let device_attr = command::query_device_ex(&file).map_err(refused)?;
        let capabilities = Capabilities::of(&file, &provider, &device_attr).map_err(refused)?;
        Ok(Self::of_parts(file, device.clone(), provider, capabilities, device_attr, events))
    }

    /// A context whose device file fails every command.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn for_test(file: Arc<DeviceFile>, provider: P, device_attr: ExQueryDeviceResp) -> Self {
        let capabilities =
            Capabilities::of(&file, &provider, &device_attr).expect("a provider with complete attributes");
        let events = AsyncEvents::for_test(&file);
        Self::of_parts(file, Device::for_test(), provider, capabilities, device_attr, events)
    }

    fn of_parts(
        file: Arc<DeviceFile>,
        device: Device,
        provider: P,
        capabilities: Capabilities,
        device_attr: ExQueryDeviceResp,
        events: AsyncEvents,
    ) -> Self {
        let caps::Capabilities { mr_quirks, link_down_statuses, .. } = provider.capabilities();
        let inner = ContextInner {
            file,
            device,
            capabilities,
            mr_quirks,
            link_down_statuses,
            reg_mr: RegMrMethod::new(provider.mr_payload()),
            device_attr,
            events,
        };
        Self { shared: Arc::new(ContextShared { inner: Arc::new(inner), provider }) }
    }
}

impl Context {
    /// Opens the first device, in the kernel's order, that can be opened. Devices whose node is
    /// missing, as in a container, or may not be opened by this user are skipped, and so are devices
    /// of other drivers.
    ///
    /// [`Device::find`] and [`Device::open`] open one device, without an alternative.
    ///
    /// ```no_run
    /// let context = bareverbs::Context::open_first()?;
    /// println!("{}", context.device().name());
    /// # Ok::<(), bareverbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::NoDevice`] if there is no device.
    /// - [`Error::NoneOpened`] if no device can be opened, with the error of each.
    /// - Those of [`devices`](crate::devices).
    pub fn open_first() -> Result<Self> {
        Self::open_first_as()
    }

    /// Imports a context that another process created and continues to use. `fd` is a duplicate of
    /// its device file.
    ///
    /// The other process sends the descriptor of [`Context::as_fd`] over a Unix socket
    /// (`SCM_RIGHTS`), or a child inherits it. Objects of the context are named by handles, which
    /// are plain numbers:
    ///
    /// ```no_run
    /// use std::os::fd::OwnedFd;
    ///
    /// use bareverbs::Context;
    /// use bareverbs::qp::Sge;
    ///
    /// // The other process has sent the descriptor, `pd.handle()` and `mr.handle()`.
    /// # fn take_over(fd: OwnedFd, pd: u32, mr: u32) -> bareverbs::Result<()> {
    /// let pd = Context::import(fd)?.import_pd(pd)?;
    /// let mr = pd.import_mr(mr)?;
    /// // A queue pair of this process, whose operations reach the other's memory.
    /// let element: Sge = mr.sge(..64)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Objects that this process creates are its own: their events arrive at its
    /// [`Context::async_events`], and its memory is registered. The kernel has one context for all
    /// processes. It frees leftover objects when the last process closes the file, and
    /// [`Context::object_count`] counts the objects of all of them. The processes must trust each
    /// other: each can destroy the objects of the others.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for a descriptor that is not a device file.
    /// - [`Error::Unsupported`] if the driver's contexts can't be shared
    ///   ([`Capabilities::import`]).
    /// - [`Error::UnsupportedDriver`].
    /// - [`Error::Kernel`], for example for a file without a context.
    #[doc(alias = "ibv_import_device")]
    pub fn import(fd: OwnedFd) -> Result<Self> {
        Self::import_as(fd)
    }
}

/// The device file, for [importing](Context::import) the context in another process. It must not be
/// used for anything else.
impl<P: Provider> AsFd for Context<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }
}

/// Opens the device file of `device`, with the ioctl namespace of `driver`.
fn open_file(device: &Device, driver: DriverId) -> Result<DeviceFile> {
    #[cfg(feature = "soft")]
    if let Some(soft) = device.soft() {
        return soft.open().map_err(|refused| Error::kernel(VERB, device.name(), refused));
    }
    let path = device.uverbs_path().ok_or_else(|| Error::NoUverbs { device: device.name().to_owned() })?;
    let node = OpenOptions::new().read(true).write(true).open(path).map_err(|error| Error::Open {
        device: device.name().to_owned(),
        path: path.to_owned(),
        // Not an errno: the path has a zero byte.
        errno: Errno::from_io_error(&error).unwrap_or(Errno::INVAL),
    })?;
    device_file(VERB, device, node.into(), driver)
}

/// The device file of `device` for a descriptor.
fn device_file(verb: &'static str, device: &Device, fd: OwnedFd, driver: DriverId) -> Result<DeviceFile> {
    let checked = match DeviceFile::check_uverbs(fd.as_fd()) {
        // Without sysfs, RDMA netlink identifies devices with dynamic numbers.
        Err(OpenError::Unidentified { .. }) if device.is_named_by_netlink(fd.as_fd()) => Ok(()),
        checked => checked,
    };
    // SAFETY: `check_uverbs` accepted the descriptor, or RDMA netlink named its number after it was
    // opened. An open file keeps its driver loaded, and so the driver's range of numbers.
    let file = checked.and_then(|()| Ok(unsafe { DeviceFile::from_fd_unchecked(fd, driver.0) }?));
    file.map_err(|error| match error {
        OpenError::Ioctl(refused) => Error::kernel(verb, device.name(), refused),
        error => Error::invalid(verb, format!("the device file of {}: {error}", device.name())),
    })
}

/// The driver of an open device file without a context.
///
/// Used if RDMA netlink did not name the driver. It tries INFO_HANDLES with each known driver id.
/// `ib_uverbs_cmd_verbs` of `core/uverbs_ioctl.c` checks the driver id before the rest of a call
/// and fails with `EINVAL` if it is wrong. INFO_HANDLES needs no context, changes nothing and
/// succeeds with the right id.
fn probe_driver(file: &DeviceFile) -> Option<DriverId> {
    let mut known: Vec<u64> = DriverId::INFO.values.iter().map(|value| value.value).collect();
    known.dedup();
    known.into_iter().map(|number| DriverId(number as u32)).find(|driver| {
        let mut total = 0;
        let mut call = Call::<InfoHandles>::new(driver.0);
        call.constant(InfoHandles::OBJECT_ID, ObjectClass::PD);
        call.output(InfoHandles::TOTAL_HANDLES, &mut total);
        // SAFETY: the method writes only its attributes.
        unsafe { file.execute(&mut call) }.is_ok()
    })
}
