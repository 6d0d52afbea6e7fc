//! The cost of objects as a picture.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Points of a curve: objects held, microseconds.
type Curve = Vec<(f64, f64)>;

/// Curves by sort of object: to make one, and to free one.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Table {
    sorts: BTreeMap<String, [Curve; 2]>,
}

impl Table {
    /// Reads lines of a sort, a number of objects and the microseconds to make and to free one.
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

/// Draws one picture above the other.
pub(crate) fn draw(table: &Table, file: &Path) -> Result<()> {
    let root = SVGBackend::new(file, (800, 360 * table.sorts.len() as u32)).into_drawing_area();
    draw_on(table, &root).map_err(|error| anyhow!("{error}"))
}

fn draw_on<B: DrawingBackend>(
    table: &Table,
    root: &DrawingArea<B, plotters::coord::Shift>,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    root.fill(&WHITE)?;
    for (area, (sort, curves)) in root.split_evenly((table.sorts.len(), 1)).iter().zip(&table.sorts) {
        let largest =
            |coordinate: fn(&(f64, f64)) -> f64| curves.iter().flatten().map(coordinate).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(format!("Microseconds for one {sort}, by how many there are"), ("sans-serif", 18))
            .margin(16)
            .x_label_area_size(32)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..largest(|point| point.0), 0.0..1.2 * largest(|point| point.1))?;
        chart.configure_mesh().light_line_style(TRANSPARENT).draw()?;
        for (curve, name, colour) in [(&curves[0], "to make", BLUE), (&curves[1], "to free", RED)] {
            chart
                .draw_series(LineSeries::new(curve.iter().copied(), colour))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
        }
        chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    }
    root.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "MR\t1000\t20.5\t10.25\nMR\t2000\t21.5\t10.75\nQP\t10\t300.00\t400.00\n";

    #[test]
    fn a_table_becomes_curves() {
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
    fn curves_become_a_picture() {
        let mut picture = String::new();
        let root = SVGBackend::with_string(&mut picture, (400, 400)).into_drawing_area();
        draw_on(&Table::parse(TABLE).unwrap(), &root).unwrap();
        drop(root);
        assert!(picture.starts_with("<svg"), "{picture}");
        assert!(picture.contains("Microseconds for one MR") && picture.contains("polyline"), "{picture}");
    }
}
