//! Results as a page: one file, with charts as SVG and without scripts or fonts.

use std::fmt::Write as _;

use super::compare;
use super::report::{Bucket, Report, SizeResult};
use super::svg::{Chart, Scale, Series, Style, escape, short};
use crate::cli::perf::Measure;

/// The style of the page, for light and dark screens and any width.
const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1b1f24;--dim:#59636e;--line:#d1d9e0;--back:#fff;--box:#f6f8fa;\
--c0:#0b62b0;--c1:#c2410c;--c2:#047857;--c3:#a21caf;--c4:#a16207;--c5:#0e7490}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--dim:#9198a1;--line:#3d444d;--back:#0d1117;\
--box:#151b23;--c0:#58a6ff;--c1:#ff8f57;--c2:#3fcf8e;--c3:#e07bf0;--c4:#e3b341;--c5:#39c5cf}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--back);color:var(--text);\
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.15rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:0 0 .25rem}
.nature{display:inline-block;border:1px solid currentColor;border-radius:.25rem;padding:0 .5rem;font-weight:600}
.dim{color:var(--dim)}
.charts{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}
figure{margin:0;padding:.75rem;border:1px solid var(--line);border-radius:.5rem;max-width:36rem}
svg{display:block;width:100%;height:auto}
svg text{font-size:11px;fill:var(--dim)}
.middle{text-anchor:middle}.end{text-anchor:end}
.grid{stroke:var(--line)}.axis{stroke:var(--dim)}
polyline{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}
circle,rect{fill:currentColor}rect{fill-opacity:.75}
.mark{stroke:var(--text);stroke-dasharray:3 3}\
g .start,g .end{fill:var(--text);paint-order:stroke;stroke:var(--back);stroke-width:3px}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}\
.c5{color:var(--c5)}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1rem;font-size:.875rem;padding:0;margin:.25rem 0 0;list-style:none}
.legend li::before{content:'';display:inline-block;width:.75em;height:.75em;margin-right:.4em;\
background:currentColor;border-radius:2px}
.legend span{color:var(--text)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
.facts th{text-align:left}.facts td{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:8rem}
.differs{background:var(--box);font-weight:600}
";

/// The page of one run, or of several runs side by side. Each has a name, unless it is alone.
pub(crate) fn page(runs: &[(&str, &Report)]) -> String {
    let title = match runs {
        [(_, run)] => run.title(),
        _ => format!("{} runs", runs.len()),
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
        escape(&title)
    );
    for (index, (name, run)) in runs.iter().enumerate() {
        let name = if name.is_empty() { String::new() } else { format!("{}: {} ", name, run.title()) };
        let _ = writeln!(
            page,
            "<p class=\"c{}\">{}<span class=\"nature\">{}</span> <span class=\"dim\">{}</span></p>",
            index % 6,
            escape(&name),
            run.environment.nature.name(),
            escape(&format!("{} port {}", run.environment.device, run.environment.port))
        );
    }
    if let Some(warning) = compare::different_natures(runs) {
        let _ = writeln!(page, "<p><strong>{}</strong></p>", escape(&warning));
    }
    page += "<div class=\"charts\">\n";
    for chart in charts(runs) {
        let _ = writeln!(
            page,
            "<figure>\n<h3>{}</h3>\n{}{}</figure>",
            escape(&chart.title),
            chart.svg(),
            legend(&chart)
        );
    }
    page += "</div>\n<h2>Results</h2>\n";
    page += &results(runs);
    page += "<h2>Environment and options</h2>\n";
    page += &facts(runs);
    page += "<h2>Counters that changed</h2>\n";
    page += &counters(runs);
    page + "</body>\n</html>\n"
}

impl Report {
    pub(crate) fn title(&self) -> String {
        format!("{} {}, {}", self.operation.name(), self.test.name(), self.transport)
    }
}

fn legend(chart: &Chart) -> String {
    if chart.series.len() < 2 {
        return String::new();
    }
    let item = |(index, series): (usize, &Series)| {
        format!("<li class=\"c{}\"><span>{}</span></li>\n", index % 6, escape(&series.name))
    };
    format!("<ul class=\"legend\">\n{}</ul>\n", chart.series.iter().enumerate().map(item).collect::<String>())
}

/// The charts for which the runs have values.
fn charts(runs: &[(&str, &Report)]) -> Vec<Chart> {
    let mut charts = vec![latencies(runs)];
    let several_sizes = runs.iter().any(|(_, run)| run.results.len() > 1);
    let bandwidth = runs.iter().any(|(_, run)| run.test == Measure::Bandwidth);
    if several_sizes && bandwidth {
        charts.push(by_size(runs, "Bandwidth by message size", ("Gbit/s", Scale::Linear), |result| {
            result.bandwidth.as_ref().map(|figures| figures.gbit_per_second)
        }));
    }
    if several_sizes {
        // The latency of a large message is a thousand times that of a small one.
        charts.push(by_size(runs, "Median latency by message size", ("us", Scale::Log(10)), |result| {
            result.latency.as_ref().map(|latency| latency.p50)
        }));
    }
    if runs.iter().any(|(_, run)| run.results.iter().any(|result| result.intervals.len() > 1)) {
        charts.push(over_time(runs));
    }
    charts.retain(|chart| chart.series.iter().any(|series| !series.values.is_empty()));
    charts
}

/// The distribution of the latencies of each run's last size.
fn latencies(runs: &[(&str, &Report)]) -> Chart {
    let alone = runs.len() == 1;
    let series = |(name, run): &(&str, &Report)| {
        let last =
            run.results.iter().rev().find_map(|result| result.latency.as_ref().map(|one| (result.size, one)));
        let (values, marks, size) = last.map_or_else(Default::default, |(size, latency)| {
            let count = latency.count.max(1) as f64;
            let share = |bucket: &Bucket| (bucket.from, bucket.to, 100.0 * bucket.count as f64 / count);
            let marks = [("p50", latency.p50), ("p99", latency.p99), ("p99.9", latency.p99_9)];
            let marks =
                if alone { marks.map(|(name, value)| (name.to_owned(), value)).to_vec() } else { Vec::new() };
            (latency.histogram.iter().map(share).collect(), marks, size)
        });
        let name = if alone { format!("{size} bytes") } else { format!("{name}, {size} bytes") };
        Series { name, style: if alone { Style::Bars } else { Style::Line }, values, marks }
    };
    let of = runs
        .iter()
        .find_map(|(_, run)| run.results.last()?.latency.as_ref().map(|latency| latency.of.clone()));
    Chart {
        title: format!("Latency: {}", of.unwrap_or_default()),
        x: ("us".into(), Scale::Log(10)),
        y: ("% of messages".into(), Scale::Linear),
        series: runs.iter().map(series).collect(),
    }
}

fn by_size(
    runs: &[(&str, &Report)],
    title: &str,
    (unit, scale): (&str, Scale),
    value: impl Fn(&SizeResult) -> Option<f64>,
) -> Chart {
    let series = |(name, run): &(&str, &Report)| {
        let point = |result: &SizeResult| value(result).map(|y| (result.size.into(), result.size.into(), y));
        let values = run.results.iter().filter_map(point).collect();
        Series { name: (*name).into(), style: Style::Line, values, marks: Vec::new() }
    };
    Chart {
        title: title.into(),
        x: ("bytes".into(), Scale::Log(2)),
        y: (unit.into(), scale),
        series: runs.iter().map(series).collect(),
    }
}

/// The bandwidth over time of each run's last size that has several intervals.
fn over_time(runs: &[(&str, &Report)]) -> Chart {
    let series = |(name, run): &(&str, &Report)| {
        let result = run.results.iter().rev().find(|result| result.intervals.len() > 1);
        let intervals = result.map(|result| &result.intervals[..]).unwrap_or_default();
        let values =
            intervals.iter().map(|one| (one.start, one.start + one.seconds, one.gbit_per_second)).collect();
        Series { name: (*name).into(), style: Style::Line, values, marks: Vec::new() }
    };
    Chart {
        title: "Bandwidth over time".into(),
        x: ("seconds".into(), Scale::Linear),
        y: ("Gbit/s".into(), Scale::Linear),
        series: runs.iter().map(series).collect(),
    }
}

/// A table. The first row has the headings.
fn table(class: &str, rows: &[Vec<String>]) -> String {
    let mut html = format!("<div class=\"wide\"><table class=\"{class}\">\n");
    for (index, row) in rows.iter().enumerate() {
        let cell = if index == 0 { "th" } else { "td" };
        html += "<tr>";
        for text in row {
            let _ = write!(html, "<{cell}>{}</{cell}>", escape(text));
        }
        html += "</tr>\n";
    }
    html + "</table></div>\n"
}

fn results(runs: &[(&str, &Report)]) -> String {
    let headings = ["run", "bytes", "messages", "Gbit/s", "lowest", "highest", "messages/s"];
    let latencies = ["p50 us", "p99 us", "p99.9 us", "max us", "CPU user s", "CPU system s"];
    let mut rows = vec![headings.into_iter().chain(latencies).map(str::to_owned).collect::<Vec<_>>()];
    let mut add = |name: String, result: &SizeResult| {
        let mut row = vec![name, result.size.to_string(), result.messages.to_string()];
        let bandwidth = result.bandwidth.as_ref();
        // The lowest and the highest are in the unit of the average.
        let over_time = |value: f64, average: f64, gbit: f64| {
            let scaled = value / average * gbit;
            if scaled.is_finite() { scaled } else { gbit }
        };
        let cell = |value: Option<f64>| value.map_or_else(|| "-".into(), short);
        row.push(cell(bandwidth.map(|one| one.gbit_per_second)));
        row.push(cell(bandwidth.map(|one| over_time(one.min, one.average, one.gbit_per_second))));
        row.push(cell(bandwidth.map(|one| over_time(one.max, one.average, one.gbit_per_second))));
        row.push(cell(bandwidth.map(|one| one.messages_per_second)));
        let latency = result.latency.as_ref();
        row.push(cell(latency.map(|one| one.p50)));
        row.push(cell(latency.map(|one| one.p99)));
        row.push(cell(latency.map(|one| one.p99_9)));
        row.push(cell(latency.map(|one| one.max)));
        row.extend(
            [result.cpu.user_seconds, result.cpu.system_seconds].map(|seconds| format!("{seconds:.2}")),
        );
        rows.push(row);
    };
    for (name, run) in runs {
        let name = if name.is_empty() { "this" } else { name };
        for result in &run.results {
            add(name.to_owned(), result);
        }
        for peer in &run.peers {
            peer.results.iter().for_each(|result| add(format!("{name}, {}", peer.host), result));
        }
    }
    table("", &rows)
}

/// The environment and the options, and which of them differ.
fn facts(runs: &[(&str, &Report)]) -> String {
    let mut html = "<div class=\"wide\"><table class=\"facts\">\n".to_owned();
    if runs.len() > 1 {
        let names: String = runs.iter().map(|(name, _)| format!("<th>{}</th>", escape(name))).collect();
        let _ = writeln!(html, "<tr><th></th>{names}</tr>");
    }
    for fact in compare::facts(runs) {
        let class = if fact.differs() { " class=\"differs\"" } else { "" };
        let cells: String = fact.values.iter().map(|value| format!("<td>{}</td>", escape(value))).collect();
        let _ = writeln!(html, "<tr{class}><td>{}</td>{cells}</tr>", escape(&fact.name));
    }
    html + "</table></div>\n"
}

fn counters(runs: &[(&str, &Report)]) -> String {
    let mut rows = vec![["counter", "run", "change"].map(str::to_owned).to_vec()];
    for (name, run) in runs {
        for counter in &run.counters {
            rows.push(vec![counter.name.clone(), (*name).to_owned(), counter.change.to_string()]);
        }
    }
    if rows.len() == 1 { "<p class=\"dim\">none</p>\n".into() } else { table("", &rows) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::compare::tests::report;

    #[test]
    fn html_page_loads_no_external_resource() {
        let report = report("Soft-RoCE", 2.0);
        let page = page(&[("", &report)]);
        assert!(page.contains("<svg") && page.contains("Soft-RoCE") && page.contains("Bandwidth over time"));
        for word in ["<script", "src=", "href=", "url(", "@import", "http"] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn runs_side_by_side_have_a_legend_and_marked_differences() {
        let (first, second) = (report("Soft-RoCE", 2.0), report("hardware", 4.0));
        let page = page(&[("a.json", &first), ("<b>.json", &second)]);
        assert!(page.contains("class=\"legend\"") && page.contains("&lt;b&gt;.json"), "{page}");
        assert!(page.contains("class=\"differs\"><td>nature"), "{page}");
    }
}
