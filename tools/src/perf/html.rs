//! Results as a page: one file, with charts as SVG and without scripts or fonts.

use std::fmt::Write as _;

use bareverbs_conform::page::{self, escape};

use super::facts;
use super::report::{Bucket, Report, SizeResult};
use super::svg::{Chart, Scale, Series, Style, short};
use crate::cli::perf::choice::Measure;

/// The charts, whose series have the colours `.c0` to `.c5`, and the tables.
const STYLE: &str = "\
:root{--c0:#0b62b0;--c1:#c2410c;--c2:#047857;--c3:#a21caf;--c4:#a16207;--c5:#0e7490}
@media(prefers-color-scheme:dark){:root{--c0:#58a6ff;--c1:#ff8f57;--c2:#3fcf8e;--c3:#e07bf0;--c4:#e3b341;\
--c5:#39c5cf}}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}\
.c5{color:var(--c5)}
.nature{display:inline-block;border:1px solid currentColor;border-radius:.25rem;padding:0 .5rem;font-weight:600}
.charts{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}
figure{margin:0;padding:.75rem;border:1px solid var(--line);border-radius:.5rem;max-width:36rem}
svg{display:block;width:100%;height:auto}
svg text{font-size:13px;fill:var(--muted)}
.middle{text-anchor:middle}.end{text-anchor:end}
.grid{stroke:var(--line)}.axis{stroke:var(--muted)}
polyline{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}
circle,rect{fill:currentColor}rect{fill-opacity:.75}
.mark{stroke:CanvasText;stroke-dasharray:3 3}\
g .start,g .end{fill:CanvasText;paint-order:stroke;stroke:Canvas;stroke-width:3px}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1rem;font-size:.875rem;padding:0;margin:.25rem 0 0;list-style:none}
.legend li::before{content:'';display:inline-block;width:.75em;height:.75em;margin-right:.4em;\
background:currentColor;border-radius:2px}
.legend span{color:CanvasText}
.figures{white-space:nowrap;font-variant-numeric:tabular-nums}
.figures th+th,.figures td+td{text-align:right}
.facts td{overflow-wrap:anywhere;min-width:8rem}
.differs{background:var(--soft);font-weight:600}
";

/// The page of one run, or of several runs side by side. Each has a name, unless it is alone.
pub(crate) fn page(runs: &[(&str, &Report)]) -> String {
    let title = match runs {
        [(_, run)] => run.title(),
        _ => format!("{} runs", runs.len()),
    };
    let mut body = String::new();
    for (index, (name, run)) in runs.iter().enumerate() {
        let name = if name.is_empty() { String::new() } else { format!("{}: {} ", name, run.title()) };
        let _ = writeln!(
            body,
            "<p class=\"c{}\">{}<span class=\"nature\">{}</span> <span class=\"m\">{}</span></p>",
            index % 6,
            escape(&name),
            run.environment.nature.name(),
            escape(&format!("{} port {}", run.environment.device, run.environment.port))
        );
    }
    if let Some(warning) = facts::different_natures(runs) {
        let _ = writeln!(body, "<p><strong>{}</strong></p>", escape(&warning));
    }
    body += "<div class=\"charts\">\n";
    for chart in charts(runs) {
        let _ = writeln!(
            body,
            "<figure>\n<h3>{}</h3>\n{}{}</figure>",
            escape(&chart.title),
            chart.svg(),
            legend(&chart)
        );
    }
    body += "</div>\n<h2>Results</h2>\n";
    body += &results(runs);
    body += "<h2>Environment and options</h2>\n";
    body += &facts_table(runs);
    body += "<h2>Counters that changed</h2>\n";
    body += &counters(runs);
    page::page(&title, STYLE, &body)
}

impl Report {
    pub(crate) fn title(&self) -> String {
        let title = format!("{} {}, {}", self.operation.name(), self.test.name(), self.transport);
        if self.interrupted { title + " (interrupted)" } else { title }
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
fn table(rows: &[Vec<String>]) -> String {
    let mut html = "<div class=\"wide\"><table class=\"figures\">\n".to_owned();
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
    table(&rows)
}

/// The environment and the options, and which of them differ.
fn facts_table(runs: &[(&str, &Report)]) -> String {
    let mut html = "<div class=\"wide\"><table class=\"facts\">\n".to_owned();
    if runs.len() > 1 {
        let names: String = runs.iter().map(|(name, _)| format!("<th>{}</th>", escape(name))).collect();
        let _ = writeln!(html, "<tr><th></th>{names}</tr>");
    }
    for fact in facts::facts(runs) {
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
    if rows.len() == 1 { "<p class=\"m\">none</p>\n".into() } else { table(&rows) }
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
    fn figures_of_a_run_are_in_the_columns_of_their_names() {
        let report = report("Soft-RoCE", 2.0);
        let page = page(&[("", &report)]);
        // The lowest and the highest bandwidth are half and three halves of the average.
        let row = ["this", "64", "20", "2", "1", "3", "10", "2", "4", "5", "9", "0.10", "0.20"];
        let row: String = row.map(|cell| format!("<td>{cell}</td>")).concat();
        assert!(page.contains(&format!("<tr>{row}</tr>")), "{page}");
        for mark in ["p50 2", "p99 4", "p99.9 5"] {
            assert!(page.contains(&format!(">{mark}</text>")), "{mark}: {page}");
        }
        for share in ["1 to 2 us, 75 % of messages", "2 to 9.5 us, 25 % of messages"] {
            assert!(page.contains(share), "{share}: {page}");
        }
    }

    /// The browsers by which the page is looked at, without a window.
    const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

    /// A page that shows pages in frames of the widths of a phone and of a desktop, and names what it
    /// finds wrong in them: text that is wider than its frame, labels that overlap or that are cut off.
    fn inspection(pages: &[String]) -> String {
        let frames = pages.iter().flat_map(|page| {
            let page = escape(page);
            [400, 1200].map(|width| {
                let size = format!("width=\"{width}\" height=\"3000\" frameborder=\"0\"");
                format!("<iframe {size} srcdoc=\"{page}\"></iframe>\n")
            })
        });
        let frames: String = frames.collect();
        format!(
            "<!doctype html>\n<meta charset=\"utf-8\">\n{frames}<pre id=\"found\">nothing ran</pre>\n{SCRIPT}"
        )
    }

    const SCRIPT: &str = r#"<script>
addEventListener("load", () => {
  const found = [];
  let labels = 0;
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument;
    const at = `${frame.width} px, ${page.title}`;
    const root = page.documentElement;
    if (root.scrollWidth > root.clientWidth) found.push(`${at}: ${root.scrollWidth} px wide`);
    for (const svg of page.querySelectorAll("svg")) {
      const box = svg.getBoundingClientRect();
      const texts = [...svg.querySelectorAll("text")];
      const boxes = texts.map(text => [text.textContent, text.getBoundingClientRect()]);
      labels += texts.length;
      boxes.forEach(([name, one], index) => {
        const wide = one.left < box.left - 1 || one.right > box.right + 1;
        const high = one.top < box.top - 1 || one.bottom > box.bottom + 1;
        if (wide || high) found.push(`${at}: "${name}" is cut off`);
        for (const [other, two] of boxes.slice(index + 1)) {
          const beside = one.right <= two.left || two.right <= one.left;
          const apart = one.bottom <= two.top + 1 || two.bottom <= one.top + 1;
          if (!beside && !apart) found.push(`${at}: "${name}" overlaps "${other}"`);
        }
      });
    }
  }
  document.getElementById("found").textContent = `${labels} labels; ${found.join("; ")}.`;
});
</script>
"#;

    /// Reports whose labels are hard to place: percentiles that are close to each other or at an end of
    /// the axis, many sizes, several runs.
    fn reports() -> Vec<Report> {
        let with = |p50: f64, p99: f64, p99_9: f64, sizes: u32| {
            let mut report = report("Soft-RoCE", 2.0);
            let first = report.results[0].clone();
            let of_size = |bits: u32| {
                let mut result = first.clone();
                result.size = 1 << bits;
                if let Some(latency) = &mut result.latency {
                    (latency.p50, latency.p99, latency.p99_9) = (p50, p99, p99_9);
                    let bucket = |from: f64, count| Bucket { from, to: from * 1.09, count };
                    latency.histogram =
                        vec![bucket(1.0, 1), bucket(p50, 800), bucket(p99, 50), bucket(2e5, 1)];
                }
                result
            };
            report.results = (1..=sizes).map(of_size).collect();
            report
        };
        vec![
            with(180.0, 181.0, 182.0, 1),
            with(180.0, 60_000.0, 61_000.0, 1),
            with(2.0, 140_000.0, 199_000.0, 23),
            with(1.0, 2.0, 100_000.0, 23),
        ]
    }

    #[test]
    fn labels_in_a_browser_neither_overlap_nor_are_cut_off() {
        let Some(browser) = BROWSERS.into_iter().find(|name| {
            std::process::Command::new(name).arg("--version").output().is_ok_and(|run| run.status.success())
        }) else {
            eprintln!("skipped: there is no browser ({})", BROWSERS.join(", "));
            return;
        };
        let reports = reports();
        let mut pages: Vec<_> = reports.iter().map(|report| page(&[("", report)])).collect();
        pages.push(page(&[("a.json", &reports[0]), ("a-longer-name.json", &reports[2])]));
        let folder = std::env::temp_dir().join(format!("bareverbs-html-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("inspection.html");
        std::fs::write(&file, inspection(&pages)).unwrap();
        let run = std::process::Command::new(browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--virtual-time-budget=10000",
                "--dump-dom",
            ])
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .arg(&file)
            .output()
            .unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let dom = String::from_utf8_lossy(&run.stdout);
        let found = dom.rsplit_once("<pre id=\"found\">").and_then(|(_, rest)| rest.split_once("</pre>"));
        let (found, _) = found.unwrap_or_else(|| panic!("{run:?}"));
        let (labels, wrong) = found.split_once(" labels; ").unwrap_or_else(|| panic!("{found}"));
        assert!(labels.parse::<u32>().unwrap() > 100, "{found}");
        assert_eq!(wrong, ".", "{browser} found: {found}");
    }

    #[test]
    fn runs_side_by_side_have_a_legend_and_marked_differences() {
        let (first, second) = (report("Soft-RoCE", 2.0), report("hardware", 4.0));
        let page = page(&[("a.json", &first), ("<b>.json", &second)]);
        assert!(page.contains("class=\"legend\"") && page.contains("&lt;b&gt;.json"), "{page}");
        assert!(page.contains("class=\"differs\"><td>nature"), "{page}");
    }
}
