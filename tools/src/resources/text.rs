//! The snapshot as text.

use std::fmt::Write as _;

use super::rows::{Cell, Row};
use super::{PortCounters, Snapshot};

/// Clears the terminal and moves the cursor to its top left corner.
pub(super) const CLEAR: &str = "\x1b[H\x1b[2J";

/// The devices, with the growth of their counters since `before`.
pub(super) fn render(now: &[Snapshot], before: Option<&[Snapshot]>) -> String {
    let mut page = String::new();
    for snapshot in now {
        let before = before.and_then(|before| before.iter().find(|other| other.device == snapshot.device));
        device(&mut page, snapshot, before);
    }
    page
}

fn device(page: &mut String, snapshot: &Snapshot, before: Option<&Snapshot>) {
    let _ = writeln!(page, "{}: {}", snapshot.device, snapshot.summary);
    for group in &snapshot.objects {
        for row in &group.list {
            let _ = writeln!(page, "  {:<5} {row}", group.kind);
        }
    }
    for row in &snapshot.qp_counters {
        let _ = writeln!(page, "  {:<5} {row}", "stat");
    }
    for port in &snapshot.ports {
        let before = before.and_then(|before| before.ports.iter().find(|other| other.port == port.port));
        counters(page, port, before);
    }
}

fn counters(page: &mut String, port: &PortCounters, before: Option<&PortCounters>) {
    let mode =
        port.qp_counter_mode.as_ref().map_or_else(String::new, |mode| format!(" (of queue pairs: {mode})"));
    let _ = writeln!(page, "  counters of port {}{mode}:", port.port);
    for (name, value) in &port.counters.0 {
        let grown =
            before.and_then(|before| growth(&before.counters, name, value)).filter(|grown| *grown > 0);
        let grown = grown.map_or_else(String::new, |grown| format!("  +{grown}"));
        let _ = writeln!(page, "    {name:<28} {value}{grown}");
    }
}

fn growth(before: &Row, name: &str, now: &Cell) -> Option<u64> {
    let (_, before) = before.0.iter().find(|(other, _)| other == name)?;
    match (before, now) {
        (Cell::Number(before), Cell::Number(now)) => now.checked_sub(*before),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Group;
    use super::*;

    fn numbers(row: &[(&'static str, u64)]) -> Row {
        Row(row.iter().map(|(name, value)| ((*name).into(), Cell::Number(*value))).collect())
    }

    fn snapshot(sent: u64) -> Snapshot {
        Snapshot {
            device: "rxe0".into(),
            summary: numbers(&[("pd", 2), ("qp", 1)]),
            objects: vec![
                Group { kind: "qp", list: vec![numbers(&[("lqpn", 1), ("sq-psn", 0)])] },
                Group { kind: "cm_id", list: vec![] },
            ],
            ports: vec![PortCounters {
                port: 1,
                qp_counter_mode: Some("none".into()),
                counters: numbers(&[("sent_pkts", sent), ("rcvd_pkts", 7)]),
            }],
            qp_counters: vec![],
        }
    }

    #[test]
    fn objects_and_counters_are_printed_in_lines() {
        assert_eq!(
            render(&[snapshot(5)], None),
            "rxe0: pd 2 qp 1\n  qp    lqpn 1 sq-psn 0\n  counters of port 1 (of queue pairs: none):\n    \
             sent_pkts                    5\n    rcvd_pkts                    7\n"
        );
    }

    #[test]
    fn counters_say_how_much_they_have_grown() {
        let page = render(&[snapshot(12)], Some(&[snapshot(5)]));
        assert!(page.contains("sent_pkts                    12  +7\n"), "{page}");
        assert!(page.contains("rcvd_pkts                    7\n"), "{page}");
        // A counter that was reset has not grown.
        assert!(render(&[snapshot(5)], Some(&[snapshot(12)])).contains("sent_pkts                    5\n"));
    }
}
