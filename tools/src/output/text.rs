//! Units, tables, progress, and standard output.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Row, Table, presets};
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// Prints what `text` writes to standard output, in colour if that is a terminal. If the reader
/// closes the pipe (`| head`), the output ends but not the program, so that its exit status still
/// tells the result.
pub(crate) fn show(text: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    match text(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// A progress bar on standard error, with the remaining time. It is invisible if standard error
/// is not a terminal.
pub(crate) fn progress_bar(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len}, {left}  {msg}").expect("a valid template");
    // Before the first step, the bar's own estimate would be 0.
    let style = style.with_key("left", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let _ = match state.pos() {
            0 => write!(out, "measuring the time left"),
            _ => write!(out, "{:#} left", HumanDuration(state.eta())),
        };
    });
    ProgressBar::new(steps as u64).with_style(style)
}

/// A table. The columns from `numbers` on are aligned to the right.
pub(crate) fn table(header: &[&str], rows: impl Iterator<Item = impl Into<Row>>, numbers: usize) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().copied())
        .add_rows(rows);
    for column in table.column_iter_mut().skip(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A time in a suitable unit.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s if s < 1e4 => format!("{s:.2} s"),
        s => format!("{:.0} h", s / 3600.0),
    }
}

/// A size in a suitable unit.
pub(crate) fn bytes(bytes: usize) -> String {
    match bytes as f64 {
        b if b < 1024.0 => format!("{b} B"),
        b if b < 1024.0 * 1024.0 => format!("{:.1} KiB", b / 1024.0),
        b if b < 1024.0 * 1024.0 * 1024.0 => format!("{:.1} MiB", b / (1024.0 * 1024.0)),
        b => format!("{:.1} GiB", b / (1024.0 * 1024.0 * 1024.0)),
    }
}

/// A share as a whole percentage.
pub(crate) fn percent(share: f64) -> String {
    // A share of nothing, if a run was interrupted before its first layer.
    if share.is_finite() { format!("{:.0} %", 100.0 * share) } else { String::from("-") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!([seconds(1.25e-5), seconds(0.0123), seconds(2.0)], ["12.5 us", "12.30 ms", "2.00 s"]);
        assert_eq!([bytes(12), bytes(1536), bytes(3 << 20), bytes(5 << 30)], ["12 B", "1.5 KiB", "3.0 MiB", "5.0 GiB"]);
    }
}
