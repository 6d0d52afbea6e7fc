//! Charts as SVG, without scripts or fonts. Colours are classes of the page's style.

use std::fmt::Write as _;

use bareverbs_conform::page::escape;

/// Width and height in user units. The page scales charts to the width of a column.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 250.0;
/// The place of the axes.
const LEFT: f64 = 64.0;
/// Half of the label of a tick at the end of the axis fits in there.
const RIGHT: f64 = 24.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// The height of a line of text, whose size is in the page's style.
const TEXT: f64 = 16.0;

/// How values are placed on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From 0.
    Linear,
    /// Equal distances for equal ratios; ticks at powers of the base.
    Log(u32),
}

/// An axis with its values.
#[derive(Clone, Copy, Debug)]
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
}

impl Axis {
    /// The axis of all values.
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let (least, most) = values
            .filter(|value| value.is_finite() && (scale == Scale::Linear || *value > 0.0))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        if least > most {
            return Self { scale, from: if scale == Scale::Linear { 0.0 } else { 1.0 }, to: 10.0 };
        }
        match scale {
            Scale::Linear => {
                let to = if most > 0.0 { most } else { 1.0 };
                let step = step(to);
                Self { scale, from: 0.0, to: (to / step).ceil() * step }
            }
            // A single value has room on both sides.
            Scale::Log(_) if most / least < 1.5 => Self { scale, from: least / 1.5, to: most * 1.5 },
            Scale::Log(_) => Self { scale, from: least, to: most },
        }
    }

    /// The place of a value, from 0 to 1.
    fn place(self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Log(_) => (value / self.from).ln() / (self.to / self.from).ln(),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The label of a tick.
    fn label(self, tick: f64) -> String {
        if self.scale == Scale::Log(2) { binary(tick) } else { short(tick) }
    }

    fn ticks(self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.to);
                let count = (self.to / step).round() as u32;
                (0..=count).map(|index| f64::from(index) * step).collect()
            }
            Scale::Log(base) => {
                let base = f64::from(base);
                let (first, last) = (self.from.log(base).ceil() as i32, self.to.log(base).floor() as i32);
                // At most eight ticks.
                let every = ((last - first) / 8 + 1).max(1) as usize;
                let powers: Vec<_> = (first..=last).step_by(every).map(|power| base.powi(power)).collect();
                if powers.len() >= 2 {
                    powers
                } else {
                    vec![self.from, (self.from * self.to).sqrt(), self.to]
                }
            }
        }
    }
}

/// The distance of ticks: 1, 2 or 5 times a power of ten, four to eight of them.
fn step(to: f64) -> f64 {
    let power = 10f64.powf(to.log10().floor());
    let step = [0.1, 0.2, 0.5, 1.0].map(|factor| factor * power);
    step.into_iter().find(|step| to / step <= 6.0).unwrap_or(power * 2.0)
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Lines between the points.
    Line,
    /// A filled bar for each point, as wide as `width` says.
    Bars,
}

/// The values of a run.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) style: Style,
    /// The start and the end of each value on the horizontal axis, and the value. Points have equal
    /// starts and ends.
    pub(crate) values: Vec<(f64, f64, f64)>,
    /// Marked places on the horizontal axis.
    pub(crate) marks: Vec<(String, f64)>,
}

/// A chart of several series.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: (String, Scale),
    pub(crate) y: (String, Scale),
    pub(crate) series: Vec<Series>,
}

/// Series after these reuse the colours.
const COLOURS: usize = 6;

impl Chart {
    /// The chart as an element of HTML.
    pub(crate) fn svg(&self) -> String {
        let values = || self.series.iter().flat_map(|series| &series.values);
        let x = Axis::new(self.x.1, values().flat_map(|&(from, to, _)| [from, to]));
        let y = Axis::new(self.y.1, values().map(|&(_, _, value)| value));
        let left = |value| LEFT + x.place(value) * (WIDTH - LEFT - RIGHT);
        let top = |value| HEIGHT - BOTTOM - y.place(value) * (HEIGHT - TOP - BOTTOM);
        let (title, bottom) = (escape(&self.title), HEIGHT - BOTTOM);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n"
        );
        for tick in y.ticks() {
            let at = top(tick);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 5.0,
                at + 4.0,
                y.label(tick)
            );
        }
        for tick in x.ticks() {
            let at = left(tick);
            let _ = writeln!(
                svg,
                "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{}\"/>\
                 <text class=\"middle\" x=\"{at:.1}\" y=\"{}\">{}</text>",
                bottom + 4.0,
                bottom + 18.0,
                x.label(tick)
            );
        }
        for (index, series) in self.series.iter().enumerate() {
            svg += &series.shapes(index % COLOURS, &left, &top, self);
        }
        for (index, series) in self.series.iter().enumerate() {
            svg += &series.marks(index % COLOURS, &left);
        }
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
             <text class=\"middle\" x=\"{}\" y=\"{}\">{}</text>\
             <text class=\"middle\" transform=\"translate(12 {}) rotate(-90)\">{}</text>\n</svg>",
            WIDTH - RIGHT,
            f64::midpoint(LEFT, WIDTH - RIGHT),
            HEIGHT - 6.0,
            escape(&self.x.0),
            f64::midpoint(TOP, bottom),
            escape(&self.y.0)
        );
        svg
    }
}

impl Series {
    fn shapes(
        &self,
        colour: usize,
        left: &impl Fn(f64) -> f64,
        top: &impl Fn(f64) -> f64,
        chart: &Chart,
    ) -> String {
        let mut svg = format!("<g class=\"c{colour}\">\n");
        // What a pointer shows.
        let label = |from: f64, to: f64, value: f64| {
            let range = if from == to { short(from) } else { format!("{} to {}", short(from), short(to)) };
            let (x, y) = (escape(&chart.x.0), escape(&chart.y.0));
            format!("<title>{}: {range} {x}, {} {y}</title>", escape(&self.name), short(value))
        };
        let bottom = HEIGHT - BOTTOM;
        match self.style {
            Style::Bars => {
                for &(from, to, value) in &self.values {
                    let (start, end, at) = (left(from), left(to), top(value));
                    let _ = writeln!(
                        svg,
                        "<rect x=\"{start:.1}\" width=\"{:.1}\" y=\"{at:.1}\" height=\"{:.1}\">{}</rect>",
                        (end - start - 0.5).max(0.5),
                        (bottom - at).max(0.0),
                        label(from, to, value)
                    );
                }
            }
            Style::Line => {
                let points: Vec<_> = self
                    .values
                    .iter()
                    .map(|&(from, to, value)| (f64::midpoint(left(from), left(to)), top(value)))
                    .collect();
                let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                let _ = writeln!(svg, "<polyline points=\"{}\"/>", path.join(" "));
                // Many points would hide the line.
                let radius = if points.len() <= 40 { 3.0 } else { 1.5 };
                for (&(from, to, value), (x, y)) in self.values.iter().zip(points) {
                    let label = label(from, to, value);
                    let _ =
                        writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\">{label}</circle>");
                }
            }
        }
        svg + "</g>\n"
    }

    /// The marks. Labels of neighbours are on different heights, and above all lines.
    fn marks(&self, colour: usize, left: &impl Fn(f64) -> f64) -> String {
        if self.marks.is_empty() {
            return String::new();
        }
        let (mut lines, mut labels) = (String::new(), String::new());
        for (row, (name, value)) in self.marks.iter().enumerate() {
            let (at, top) = (left(*value), TOP + TEXT * row as f64);
            let right = at > WIDTH * 0.65;
            let _ = writeln!(
                lines,
                "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{}\"/>",
                HEIGHT - BOTTOM
            );
            let _ = writeln!(
                labels,
                "<text class=\"{}\" x=\"{:.1}\" y=\"{}\">{} {}</text>",
                if right { "end" } else { "start" },
                if right { at - 4.0 } else { at + 4.0 },
                top + 11.0,
                escape(name),
                short(*value)
            );
        }
        format!("<g class=\"c{colour}\">\n{lines}{labels}</g>\n")
    }
}

/// A number with three significant digits, and a prefix for large ones.
pub(crate) fn short(value: f64) -> String {
    let (value, prefix) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size => (2 - size.log10().floor() as i32).clamp(2, 9) as usize,
    };
    let text = format!("{value:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{prefix}")
}

/// A power of two with a binary prefix, or any other number as [`short`].
fn binary(value: f64) -> String {
    let prefixes = [(1024f64.powi(3), "Gi"), (1024f64.powi(2), "Mi"), (1024.0, "Ki")];
    match prefixes.into_iter().find(|(unit, _)| value >= *unit && value % unit == 0.0) {
        Some((unit, prefix)) => format!("{}{prefix}", value / unit),
        None => short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chart(scale: Scale, values: Vec<(f64, f64, f64)>) -> Chart {
        let name = "a<b".to_owned();
        let series = Series { name, style: Style::Line, values, marks: vec![("p50".into(), 2.0)] };
        Chart {
            title: "T&T".into(),
            x: ("x".into(), scale),
            y: ("y".into(), Scale::Linear),
            series: vec![series],
        }
    }

    #[test]
    fn powers_of_two_have_binary_prefixes() {
        for (value, text) in
            [(2.0, "2"), (512.0, "512"), (65536.0, "64Ki"), (4_194_304.0, "4Mi"), (1500.0, "1500")]
        {
            assert_eq!(binary(value), text);
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (1.25, "1.25"),
            (12.34, "12.3"),
            (0.0123, "0.0123"),
            (9999.0, "9999"),
            (65536.0, "65.5k"),
            (8_388_608.0, "8.39M"),
            (2.5e9, "2.5G"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn names_are_escaped() {
        let svg = chart(Scale::Linear, vec![(1.0, 1.0, 1.0)]).svg();
        assert!(svg.contains("T&amp;T") && svg.contains("a&lt;b: 1 x, 1 y"), "{svg}");
    }

    /// The numbers of an attribute, in order.
    fn numbers(svg: &str, name: &str) -> Vec<f64> {
        let start = format!(" {name}=\"");
        svg.split(&start).skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn larger_values_are_further_right_and_higher() {
        for scale in [Scale::Linear, Scale::Log(2)] {
            let svg = chart(scale, vec![(1.0, 1.0, 2.0), (8.0, 8.0, 4.0)]).svg();
            let (x, y) = (numbers(&svg, "cx"), numbers(&svg, "cy"));
            assert!(x[0] < x[1] && y[0] > y[1], "{svg}");
        }
    }

    #[test]
    fn points_are_small_if_there_are_many() {
        for (points, radius) in [(40, 3.0), (41, 1.5)] {
            let values = (1..=points).map(|x| (f64::from(x), f64::from(x), 1.0)).collect();
            let svg = chart(Scale::Linear, values).svg();
            assert!(numbers(&svg, "r").iter().all(|found| *found == radius), "{svg}");
        }
    }

    #[test]
    fn series_have_colours_of_their_own() {
        let mut chart = chart(Scale::Linear, vec![(1.0, 1.0, 1.0)]);
        chart.series = vec![chart.series[0].clone(); COLOURS + 1];
        let svg = chart.svg();
        let colours: Vec<_> = svg.split("<g class=\"c").skip(1).map(|rest| &rest[..1]).collect();
        // Those of the lines, then those of the marks.
        let expected = ["0", "1", "2", "3", "4", "5", "0"];
        assert_eq!(colours, [expected, expected].concat());
    }

    #[test]
    fn chart_without_values_has_axes() {
        for scale in [Scale::Linear, Scale::Log(10)] {
            let svg = chart(scale, Vec::new()).svg();
            assert!(svg.contains("class=\"axis\"") && !svg.contains("NaN"), "{svg}");
        }
    }

    proptest! {
        #[test]
        fn all_values_are_within_the_chart(
            values in proptest::collection::vec((1e-3..1e9f64, 0.0..1e12f64), 1..50), log: bool,
        ) {
            let values: Vec<_> = values.into_iter().map(|(x, y)| (x, x, y)).collect();
            let svg = chart(if log { Scale::Log(2) } else { Scale::Linear }, values).svg();
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", svg);
            for circle in svg.split("<circle ").skip(1) {
                let number = |name: &str| {
                    let rest = circle.split(&format!("{name}=\"")).nth(1).unwrap();
                    rest.split('"').next().unwrap().parse::<f64>().unwrap()
                };
                prop_assert!((LEFT..=WIDTH - RIGHT).contains(&number("cx")), "{}", circle);
                prop_assert!((TOP..=HEIGHT - BOTTOM).contains(&number("cy")), "{}", circle);
            }
        }

        #[test]
        fn axes_have_three_to_ten_ticks(values in proptest::collection::vec(1e-3..1e9f64, 1..9), base in 0..2usize) {
            for scale in [Scale::Linear, Scale::Log([2, 10][base])] {
                let ticks = Axis::new(scale, values.iter().copied()).ticks();
                prop_assert!((2..=10).contains(&ticks.len()), "{ticks:?}");
            }
        }
    }
}
