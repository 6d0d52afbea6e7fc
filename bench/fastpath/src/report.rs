//! The output of the results.

use anyhow::Result;

use crate::clock::Samples;

/// The output of the results.
pub(crate) struct Report<'a> {
    /// The types over which they are measured.
    pub(crate) types: &'a str,
}

impl Report<'_> {
    pub(crate) fn line(&self, name: &str, samples: Samples, parts: usize) -> Result<()> {
        let figures = samples.smallest_and_median(parts);
        let (smallest, median) = figures.ok_or_else(|| anyhow::anyhow!("no sample of {name}"))?;
        println!("{}.{name}\t{smallest:.1}\t{median:.1}", self.types);
        Ok(())
    }
}
