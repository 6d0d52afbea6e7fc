//! The cost of the data path, in instructions if the guest's time counts them. It measures the
//! usual methods to post and to poll, once over `AnyProvider` and once over the provider's own
//! types.
//!
//! `fastpath DEVICE` prints a line for each: name, minimum and median of many runs, separated by
//! tabs. `c/fastpath.c` prints the same for rdma-core.

#[cfg(target_arch = "x86_64")]
mod clock;
#[cfg(target_arch = "x86_64")]
mod measure;
#[cfg(target_arch = "x86_64")]
mod messages;
#[cfg(target_arch = "x86_64")]
mod pair;
#[cfg(target_arch = "x86_64")]
mod report;

#[cfg(target_arch = "x86_64")]
use measure::Pause;

#[cfg(target_arch = "x86_64")]
fn main() -> anyhow::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "rxe0".into());
    let device = bareverbs::Device::find(&name)?;
    if let Ok(context) = device.open_as::<bareverbs_rxe::Rxe>() {
        measure::all("any", &device.open()?, Pause::Asleep)?;
        return measure::all("own", &context, Pause::Asleep);
    }
    #[cfg(feature = "siw")]
    if let Ok(context) = device.open_as::<bareverbs_siw::Siw>() {
        measure::all("any", &device.open()?, Pause::Asleep)?;
        return measure::all("own", &context, Pause::Asleep);
    }
    measure::all("any", &device.open()?, Pause::Awake)?;
    measure::all("own", &device.open_as::<bareverbs_mlx5::Mlx5>()?, Pause::Awake)
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("fastpath reads the time stamp counter of x86-64");
}
