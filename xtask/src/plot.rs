//! Plots the cost of objects.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Points of a curve: objects held, microseconds.
type Curve = Vec<(f64, f64)>;

/// Curves by type of object: to create one, and to free one.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Table {
    sorts: BTreeMap<String, [Curve; 2]>,
}

impl Table {
    /// Parses lines with a type, a number of objects, and the microseconds to create and to free
    /// one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut table = Self::default();
        for line in text.lines() {
            let mut words = line.split('\t');
            let sort = words.next()?;
            let mut number = || words.next()?.parse::<f64>().ok();
            let (held, make, free) = (number()?, number()?, number()?);
            let curves = table.sorts.entry(sort.to_owned()).or_default();
            curves[0].push((held, make));
            curves[1].push((held, free));
        }
        (!table.sorts.is_empty()).then_some(table)
    }
}

/// Size of one chart in pixels.
const SIZE: (u32, u32) = (880, 380);
/// Width in pixels of the labels at the right ends of the curves.
const ENDS: u32 = 150;
/// The line is the median of this many steps around each point.
const WINDOW: usize = 9;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const FAINT: RGBColor = RGBColor(225, 225, 225);
/// Colours of creating and freeing. Colour-blind readers can distinguish them.
const COLOURS: [RGBColor; 2] = [RGBColor(0, 95, 160), RGBColor(200, 80, 0)];

/// Draws the charts below each other, with the text `origin` above them.
pub(crate) fn draw(table: &Table, origin: &str, file: &Path) -> Result<()> {
    let height = 40 + SIZE.1 * table.sorts.len() as u32;
    let root = SVGBackend::new(file, (SIZE.0, height)).into_drawing_area();
    draw_on(table, origin, &root).map_err(|error| anyhow!("{error}"))
}

fn draw_on<B: DrawingBackend>(
    table: &Table,
    origin: &str,
    root: &DrawingArea<B, plotters::coord::Shift>,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    root.fill(&WHITE)?;
    let (top, charts) = root.split_vertically(40);
    top.draw_text(origin, &(FONT, 14).into_text_style(root).color(&INK.mix(0.7)), (20, 16))?;
    for (area, (sort, curves)) in charts.split_evenly((table.sorts.len(), 1)).iter().zip(&table.sorts) {
        let (one, many) = names(sort);
        let middles = curves.each_ref().map(smooth);
        // A step that was disturbed may be outside of the chart.
        let top = 1.6 * middles.iter().flatten().map(|point| point.1).fold(0.0, f64::max);
        let right = curves.iter().flatten().map(|point| point.0).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(format!("What one {one} costs"), (FONT, 19, &INK))
            .margin(16)
            .margin_right(ENDS)
            .x_label_area_size(46)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..right, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(INK)
            .label_style((FONT, 13, &INK))
            .axis_desc_style((FONT, 14, &INK))
            .x_labels(11)
            .y_labels(6)
            .x_label_formatter(&|held| thousands(*held))
            .y_label_formatter(&|time| thousands(*time))
            .x_desc(format!("{many} there are"))
            .y_desc("microseconds")
            .draw()?;
        for (((curve, middle), colour), what) in
            curves.iter().zip(&middles).zip(COLOURS).zip(["make", "free"])
        {
            let inside = curve.iter().filter(|point| point.1 <= top);
            chart.draw_series(inside.map(|point| Circle::new(*point, 2, colour.mix(0.3).filled())))?;
            chart.draw_series(LineSeries::new(middle.iter().copied(), colour.stroke_width(2)))?;
            if let Some(&end) = middle.last() {
                let text = format!("to {what} one: {} µs", thousands(end.1));
                let style = (FONT, 14).into_text_style(area).color(&colour);
                let (x, y) = chart.backend_coord(&end);
                let (left, above) = area.get_base_pixel();
                area.draw_text(&text, &style, (x - left + 8, y - above - 7))?;
            }
        }
    }
    root.present()
}

/// The name of a type of object: singular and plural.
fn names(sort: &str) -> (&str, &str) {
    match sort {
        "MR" => ("memory region", "memory regions"),
        "QP" => ("queue pair", "queue pairs"),
        other => (other, other),
    }
}

/// The running median.
fn smooth(curve: &Curve) -> Curve {
    let around = |i: usize| {
        let last = curve.len().min(i + WINDOW / 2 + 1);
        let mut times: Vec<_> =
            curve[i.saturating_sub(WINDOW / 2)..last].iter().map(|point| point.1).collect();
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2]
    };
    curve.iter().enumerate().map(|(i, point)| (point.0, around(i))).collect()
}

/// A number rounded to an integer, with commas.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "MR\t1000\t20.5\t10.25\nMR\t2000\t21.5\t10.75\nQP\t10\t300.00\t400.00\n";

    #[test]
    fn cost_table_is_parsed() {
        let table = Table::parse(TABLE).unwrap();
        assert_eq!(
            table.sorts["MR"],
            [vec![(1000.0, 20.5), (2000.0, 21.5)], vec![(1000.0, 10.25), (2000.0, 10.75)]]
        );
        assert_eq!(table.sorts["QP"][1], [(10.0, 400.0)]);
        assert_eq!(Table::parse("MR\t1000\n"), None);
        assert_eq!(Table::parse(""), None);
    }

    #[test]
    fn outliers_are_smoothed() {
        let curve = (1..=20).map(|i| (f64::from(i), if i == 7 { 900.0 } else { 5.0 })).collect();
        assert!(smooth(&curve).iter().all(|point| point.1 == 5.0));
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0.4, 999.0, 1000.0, 1_234_567.8].map(thousands), ["0", "999", "1,000", "1,234,568"]);
    }

    #[test]
    fn plot_draws_curves() {
        let mut picture = String::new();
        let root = SVGBackend::with_string(&mut picture, (400, 400)).into_drawing_area();
        draw_on(&Table::parse(TABLE).unwrap(), "On Linux 7.2", &root).unwrap();
        drop(root);
        assert!(picture.starts_with("<svg"), "{picture}");
        for part in
            ["On Linux 7.2", "What one memory region costs", "to free one: 11 µs", "microseconds", "polyline"]
        {
            assert!(picture.contains(part), "{part}: {picture}");
        }
    }
}
