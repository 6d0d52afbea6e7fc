//! The results as text.

use super::{Bandwidth, Cpu, KindResult, Latency, Report, SizeResult, Unit};
use crate::cli::perf::choice::Measure;
use crate::perf::counters;
use crate::perf::wire::BandwidthReport;

impl Report {
    /// The lines before the results.
    pub(crate) fn heading(&self) -> Vec<String> {
        vec![
            format!(
                "{}{} {}, {}, {} queue pair{}, MTU {}",
                self.operation.name(),
                self.options.atomic_type.map_or_else(String::new, |kind| format!(" {}", kind.name())),
                self.test.name(),
                self.transport,
                self.options.queue_pairs,
                if self.options.queue_pairs == 1 { "" } else { "s" },
                self.options.mtu
            ),
            self.environment.line(),
            match &self.peer {
                Some(peer) if peer.program == "perftest" => format!("peer: perftest {}", peer.version),
                Some(peer) => format!("peer: {}, exchange of perftest {}", peer.program, peer.version),
                None => format!("peers: {}", self.peers.len()),
            },
        ]
    }

    /// The results as a table.
    pub(crate) fn table(&self, unit: Unit) -> Vec<String> {
        let mut lines = match self.test {
            Measure::Bandwidth => self.bandwidth_table(unit),
            Measure::Latency => self.latency_table(),
        };
        lines.extend(counters::remark(&self.counters));
        lines
    }

    fn bandwidth_table(&self, unit: Unit) -> Vec<String> {
        let unit = unit.name();
        let several = !self.peers.is_empty();
        let mut rows = vec![["#bytes", "#iterations"].map(str::to_owned).to_vec()];
        rows[0].extend(["peak", "average"].map(|what| format!("BW {what}[{unit}]")));
        rows[0].push("MsgRate[Mpps]".into());
        rows[0].extend(["p50[us]", "p99[us]", "p99.9[us]"].map(str::to_owned));
        if several {
            rows[0].push("peer".into());
        }
        for (name, result) in self.rows() {
            let total = result.total();
            let mut row = vec![
                result.size.to_string(),
                total.iterations.to_string(),
                number(total.peak),
                number(total.average),
                format!("{:.6}", total.message_rate),
            ];
            row.extend(result.percentiles());
            row.extend(several.then(|| name.to_owned()));
            rows.push(row);
        }
        let mut lines = align(&rows);
        if let Some(last) = self.results.last() {
            lines.extend(last.mix_table());
            lines.push(last.remarks());
        }
        if let Some((rate, figures)) =
            self.options.rate.zip(self.results.last().and_then(|last| last.bandwidth.as_ref()))
        {
            lines.push(format!(
                "rate: {:.0} of {rate} messages/s; latency: scheduled time to completion",
                figures.messages_per_second
            ));
        }
        lines
    }

    /// The results with each of several peers, then those of all.
    fn rows(&self) -> impl Iterator<Item = (&str, &SizeResult)> {
        let peers = self.peers.iter();
        let each = peers.flat_map(|peer| peer.results.iter().map(|result| (peer.host.as_str(), result)));
        each.chain(self.results.iter().map(|result| ("all", result)))
    }

    fn latency_table(&self) -> Vec<String> {
        let headings = [
            "#bytes",
            "#iterations",
            "min[us]",
            "p50[us]",
            "mean[us]",
            "stdev[us]",
            "p99[us]",
            "p99.9[us]",
            "max[us]",
        ];
        let mut rows = vec![headings.map(str::to_owned).to_vec()];
        let mut of = None;
        if !self.peers.is_empty() {
            rows[0].push("peer".into());
        }
        for (name, result) in self.rows() {
            let Some(latency) = &result.latency else { continue };
            of = Some(&latency.of);
            let Latency { count, min, mean, stdev, p50, p99, p99_9, max, .. } = *latency;
            let mut row = vec![result.size.to_string(), count.to_string()];
            row.extend([min, p50, mean, stdev, p99, p99_9, max].map(number));
            row.extend((!self.peers.is_empty()).then(|| name.to_owned()));
            rows.push(row);
        }
        let Some(of) = of else {
            return vec!["the client has the results".into()];
        };
        let mut lines = align(&rows);
        lines.push(format!("latency: {of}"));
        lines.extend(self.results.last().map(SizeResult::remarks));
        lines
    }
}

impl SizeResult {
    /// This side's figures with those of the peer: a side that only served memory has the peer's.
    fn total(&self) -> BandwidthReport {
        let ours = self.to_peer();
        match self.peer {
            None => ours,
            Some(theirs) if self.bandwidth.is_none() => theirs,
            Some(theirs) => BandwidthReport {
                peak: ours.peak + theirs.peak,
                average: ours.average + theirs.average,
                message_rate: ours.message_rate + theirs.message_rate,
                ..ours
            },
        }
    }

    /// The cells of the median, p99 and p99.9.
    fn percentiles(&self) -> [String; 3] {
        let cell = |value: fn(&Latency) -> f64| {
            self.latency.as_ref().map_or_else(|| "-".to_owned(), |latency| number(value(latency)))
        };
        [cell(|one| one.p50), cell(|one| one.p99), cell(|one| one.p99_9)]
    }

    /// The figures by kind of message.
    fn mix_table(&self) -> Vec<String> {
        if self.mix.is_empty() {
            return Vec::new();
        }
        let headings =
            ["#bytes", "#iterations", "operation", "BW average[Gbit/s]", "p50[us]", "p99[us]", "max[us]"];
        let mut rows = vec![headings.map(str::to_owned).to_vec()];
        for KindResult { operation, size, messages, gbit_per_second, latency } in &self.mix {
            let cell = |value: fn(&Latency) -> f64| {
                latency.as_ref().map_or_else(|| "-".to_owned(), |latency| number(value(latency)))
            };
            rows.push(vec![
                size.to_string(),
                messages.to_string(),
                operation.name().into(),
                number(*gbit_per_second),
                cell(|one| one.p50),
                cell(|one| one.p99),
                cell(|one| one.max),
            ]);
        }
        align(&rows)
    }

    /// The line after the table.
    fn remarks(&self) -> String {
        let Cpu { user_seconds, system_seconds, percent } = self.cpu;
        let cpu = format!("CPU: {user_seconds:.2} s user, {system_seconds:.2} s system ({percent:.0} %)");
        // A latency test carries too little for this unit.
        let shown = |figures: &&Bandwidth| self.intervals.len() > 1 && figures.max >= 0.01;
        let over_time = self.bandwidth.as_ref().filter(shown).map(|figures| {
            format!(
                "; over {} intervals: {:.2} to {:.2} {}",
                self.intervals.len(),
                figures.min,
                figures.max,
                figures.unit
            )
        });
        let compared = self.compared.map(|messages| format!("; {messages} messages compared, none corrupt"));
        cpu + &over_time.unwrap_or_default() + &compared.unwrap_or_default()
    }
}

/// Two decimals, or more for small values.
fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.1 { format!("{value:.6}") } else { format!("{value:.2}") }
}

/// Aligns columns to the left.
pub(crate) fn align(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells: Vec<_> =
                row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
            format!(" {}", cells.join("  ").trim_end())
        })
        .collect()
}
