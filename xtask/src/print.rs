//! Output of the commands, and parsing of other programs' output.

/// Prints the heading of the next part.
pub(crate) fn heading(text: &str) {
    println!("\n== {text} ==");
}

/// The figure in `1000 iters in 0.01 seconds = 12.34 usec/iter`.
pub(crate) fn microseconds(output: &[u8]) -> Option<f64> {
    let text = String::from_utf8_lossy(output);
    let line = text.lines().find(|line| line.contains("usec/iter"))?;
    line.split('=').next_back()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usec_per_iteration_is_parsed() {
        let text = b"8192000 bytes in 0.01 seconds = 5000.00 Mbit/sec\n1000 iters in 0.01 seconds = 12.34 usec/iter\n";
        assert_eq!(microseconds(text), Some(12.34));
        assert_eq!(microseconds(b"Couldn't connect\n"), None);
    }
}
