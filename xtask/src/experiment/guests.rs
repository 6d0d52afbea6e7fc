//! Guests: their files, their devices, and their runs.

use std::path::Path;

use anyhow::{Context, Result, bail};
use bareverbs_lab::{
    Accelerator, Cache, Guests, Hca, HcaPort, Kernel, LinkType, Programs, RdmaCore, Series, Setup, Since,
    Tools,
};
use clap::ValueEnum;

use crate::build;

/// The default of `--kernel`.
pub(crate) const DEFAULT_KERNEL: &str = Since::V6_12.name();
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Port {
    /// InfiniBand.
    Ib,
    /// RDMA over Ethernet, with the HCA's own netdev.
    Roce,
}

impl From<Port> for HcaPort {
    fn from(port: Port) -> Self {
        match port {
            Port::Ib => Self::Ib,
            Port::Roce => Self::Roce,
        }
    }
}

/// The files that guests of one kernel are booted from.
pub(crate) struct Files {
    pub(crate) cache: Cache,
    pub(crate) tools: Tools,
    pub(crate) kernel: Kernel,
    /// The Debian root of the commands, if it is used.
    rdma_core: Option<RdmaCore>,
    pub(crate) programs: Programs,
}

impl Files {
    /// Fetches a kernel by series or path.
    pub(crate) fn fetch(kernel: &str, programs: Programs) -> Result<Self> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        let kernel = self::kernel(&cache, &tools, kernel)?;
        Ok(Self { cache, tools, kernel, rdma_core: None, programs })
    }

    /// The same, with the Debian root.
    pub(crate) fn with_rdma_core(kernel: &str, programs: Programs) -> Result<Self> {
        let files = Self::fetch(kernel, programs)?;
        Ok(Self { rdma_core: Some(RdmaCore::fetch(&files.cache, false)?), ..files })
    }

    /// Adds the module of siw to the kernel that was fetched by this name.
    pub(crate) fn add_siw(&mut self, wanted: &str) -> Result<()> {
        add_siw(&self.cache, &mut self.kernel, wanted)
    }

    /// The Debian root of [`Self::with_rdma_core`].
    pub(crate) fn rdma_core(&self) -> Result<&RdmaCore> {
        self.rdma_core.as_ref().context("the Debian root was not fetched")
    }

    /// A host as that of [`one_host`], with the Debian root if it was fetched.
    pub(crate) fn setup(&self) -> Setup<'_> {
        let rdma_core = self.rdma_core.as_ref().map(|rdma_core| rdma_core.root.clone());
        Setup { rdma_core, ..one_host(&self.cache, &self.tools, &self.kernel, &self.programs) }
    }
}

/// A host with rxe and our programs only, in real time.
pub(crate) fn one_host<'a>(
    cache: &'a Cache,
    tools: &'a Tools,
    kernel: &'a Kernel,
    programs: &'a Programs,
) -> Setup<'a> {
    Setup {
        cache,
        tools,
        kernel,
        programs,
        hosts: 1,
        rdma_core: None,
        shares: Vec::new(),
        accelerator: Accelerator::Auto,
        instruction_clock: false,
        recording: None,
        link_type: LinkType::Rxe,
        hca: None,
    }
}

/// Starts the HCAs of hosts if they have a port of this kind in place of rxe.
pub(crate) fn start_hca(
    port: Option<impl Into<HcaPort>>,
    hosts: u8,
    arguments: &[String],
) -> Result<Option<Hca>> {
    port.map(|port| Hca::start(&build::hca()?, port.into(), hosts, arguments)).transpose()
}

/// Boots guests, with HCAs if there are any, and runs `work` in them. A failed kernel is an error, also
/// after `work` has failed.
pub(crate) fn run<T>(
    setup: &Setup<'_>,
    hca: Option<&Hca>,
    work: impl FnOnce(&mut Guests) -> Result<T>,
) -> Result<T> {
    let mut guests = Guests::boot(&Setup { hca, ..setup.clone() })?;
    let result = work(&mut guests);
    match (guests.shut_down(), result) {
        (Ok(warnings), result) => {
            for warning in warnings {
                eprintln!("lab: {warning}");
            }
            result
        }
        (Err(failure), Ok(_)) => Err(failure),
        (Err(failure), Err(error)) => Err(error.context(format!("{failure:#}"))),
    }
}

/// Adds the module of siw to a kernel that [`kernel`] found. That of a folder has it or lacks it.
pub(crate) fn add_siw(cache: &Cache, kernel: &mut Kernel, wanted: &str) -> Result<()> {
    wanted.parse().map_or(Ok(()), |series| kernel.add_siw(cache, series))
}

/// A kernel by series or path.
pub(crate) fn kernel(cache: &Cache, tools: &Tools, wanted: &str) -> Result<Kernel> {
    if let Ok(series) = wanted.parse() {
        return Kernel::debian(cache, tools, series, false);
    }
    let path = Path::new(wanted);
    if !path.exists() {
        bail!("no kernel `{wanted}`: give {}, a kernel tree, a folder or a bzImage", Series::names());
    }
    Kernel::at(path, tools, cache)
}

/// A short description of the accelerator.
pub(crate) fn describe(accelerator: Accelerator, instruction_clock: bool) -> &'static str {
    match accelerator {
        _ if instruction_clock => "tcg, time counts instructions",
        Accelerator::Kvm => "kvm",
        Accelerator::Auto | Accelerator::Tcg => "tcg",
    }
}
