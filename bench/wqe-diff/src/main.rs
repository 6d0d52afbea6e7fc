//! `wqe-diff DEVICE LIST` posts the requests of a list and prints the numbers of its queues.
//! `c/wqe-diff.c` does the same.

mod testbed;

use anyhow::{Context as _, Result};
use bareverbs::Device;
use bareverbs_wqe_diff::request::Request;
use testbed::Testbed;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (device, list) = (arguments.next(), arguments.next());
    let (device, list) = device.zip(list).context("wqe-diff DEVICE LIST")?;
    let text = std::fs::read_to_string(&list).with_context(|| format!("reading {list}"))?;
    let requests: Vec<_> = text.lines().map(Request::parse).collect::<Result<_>>()?;
    let mut testbed = Testbed::new(&Device::find(&device)?.open()?)?;
    testbed.print_values();
    for list in requests.split_inclusive(|request| request.rings) {
        testbed.post(list)?;
    }
    Ok(())
}
