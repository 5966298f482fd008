//! Units, tables, progress, and standard output.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, presets};
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;
use terminal_size::{Width, terminal_size};
use textwrap::{WordSeparator, WordSplitter};

use crate::options::BAD;

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

/// Prints a value as JSON.
pub(crate) fn show_json(value: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_string_pretty(value)?;
    show(|out| writeln!(out, "{json}"))
}

/// A progress bar on standard error, with the remaining time. It is invisible if standard error
/// is not a terminal.
fn progress_bar(steps: usize) -> ProgressBar {
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

/// Characters in a line of the output; none if there is no terminal, or `--wide` was given. The
/// variable `COLUMNS` of the environment counts more than the terminal.
pub(crate) fn line_width(is_wide: bool) -> Option<usize> {
    if is_wide {
        return None;
    }
    let given = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|&columns| columns > 0);
    given.or_else(|| terminal_size().map(|(Width(columns), _)| columns.into()))
}

/// Prose in lines of at most `width` characters, broken between words, but not between a number and
/// its unit. Lines behind the first are indented by two more spaces. Without a width, it stays one
/// line.
pub(crate) fn wrapped(text: &str, width: Option<usize>) -> String {
    let indent = " ".repeat(2 + text.chars().take_while(|&c| c == ' ').count());
    match width {
        Some(width) => {
            let options = textwrap::Options::new(width)
                .word_separator(WordSeparator::AsciiSpace)
                .word_splitter(WordSplitter::NoHyphenation)
                .break_words(false)
                .subsequent_indent(&indent);
            textwrap::fill(&with_units_tied(text), options).replace(TIE, " ")
        }
        None => text.to_owned(),
    }
}

/// A space at which no line is broken.
const TIE: char = '\u{a0}';

/// The text with a tie between each number and the word behind it, such as `512.0 KiB`.
fn with_units_tied(text: &str) -> String {
    let before = std::iter::once(' ').chain(text.chars());
    let behind = text.chars().skip(1).chain([' ']);
    let is_tied = |before: char, behind: char| before.is_ascii_digit() && (behind.is_alphabetic() || behind == '%');
    let tied = |((before, c), behind)| if c == ' ' && is_tied(before, behind) { TIE } else { c };
    before.zip(text.chars()).zip(behind).map(tied).collect()
}

/// A name in at most `width` characters. Names differ at both ends, so the middle is left out.
fn shortened(name: &str, width: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return name.to_owned();
    }
    let (begin, end) = ((width - 1) / 2, (width - 1).div_ceil(2));
    name.chars().take(begin).chain(['…']).chain(name.chars().skip(count - end)).collect()
}

/// A column of a [`Table`].
#[derive(Debug, Clone)]
pub(crate) struct Column {
    head: String,
    /// Characters of the longest cell that is expected. Longer ones are shown too.
    width: usize,
    align: CellAlignment,
}

impl Column {
    /// A column of text, for cells up to `width` characters.
    pub(crate) fn text(head: impl Into<String>, width: usize) -> Self {
        let head = head.into();
        Self { width: width.max(head.chars().count()), head, align: CellAlignment::Left }
    }

    /// A column of numbers.
    pub(crate) fn number(head: impl Into<String>, width: usize) -> Self {
        Self { align: CellAlignment::Right, ..Self::text(head, width) }
    }
}

/// A table whose rows can be printed as they come, because the widths of its columns are known
/// before. It shows as many columns as the line has room for. The first column has names, which
/// are shortened if they would take more than half of the line, or the room of the others.
#[derive(Debug)]
pub(crate) struct Table {
    /// The heads alone.
    heads: comfy_table::Table,
    /// The numbers of the columns that are shown.
    shown: Vec<usize>,
    name_width: usize,
}

impl Table {
    /// Characters between two columns.
    const GAP: usize = 2;
    /// A line in which the columns that are always shown have room.
    const NARROW: usize = 80;
    /// Characters of a name, at least.
    const LEAST_NAME: usize = 12;

    /// A table of `columns` in lines of `width` characters. The columns with the heads `first` are
    /// always shown, and in a line of up to 80 characters no others are.
    pub(crate) fn new(mut columns: Vec<Column>, first: &[&str], width: Option<usize>) -> Self {
        let is_first = |column: &Column| first.contains(&column.head.as_str());
        let mut shown: Vec<bool> = columns.iter().map(|column| width.is_none() || is_first(column)).collect();
        if let Some(width) = width {
            let taken = |column: &Column| Self::GAP + column.width;
            let others = columns.iter().skip(1).filter(|column| is_first(column)).map(taken).sum();
            let most = width.saturating_sub(others).min(width / 2).max(Self::LEAST_NAME);
            columns[0].width = columns[0].width.min(most);
            let mut used = columns[0].width + others;
            for (column, shown) in columns.iter().zip(&mut shown).filter(|_| width > Self::NARROW) {
                if !*shown && used + taken(column) <= width {
                    (*shown, used) = (true, used + taken(column));
                }
            }
        }
        let name_width = if width.is_none() { usize::MAX } else { columns[0].width };
        let shown: Vec<usize> = (0..columns.len()).filter(|&index| shown[index]).collect();
        let mut heads = comfy_table::Table::new();
        heads.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        heads.set_header(shown.iter().map(|&index| &columns[index].head));
        for (position, &index) in shown.iter().enumerate() {
            let column = heads.column_mut(position).expect("each head makes a column");
            let gap = if position == 0 { 0 } else { Self::GAP };
            let width = (gap + columns[index].width) as u16;
            column.set_padding((gap as u16, 0)).set_cell_alignment(columns[index].align);
            column.set_constraint(ColumnConstraint::LowerBoundary(comfy_table::Width::Fixed(width)));
        }
        Self { heads, shown, name_width }
    }

    /// The line of heads.
    pub(crate) fn heads(&self) -> String {
        self.heads.trim_fmt()
    }

    /// The line of a row, which has a cell for each column that there is.
    pub(crate) fn row(&self, cells: &[String]) -> String {
        let mut table = self.heads.clone();
        let cell =
            |&index: &usize| if index == 0 { shortened(&cells[0], self.name_width) } else { cells[index].clone() };
        table.add_row(self.shown.iter().map(cell));
        table.trim_fmt().lines().last().unwrap_or_default().to_owned()
    }

    /// The heads and all rows, with columns as wide as their cells.
    pub(crate) fn whole(
        mut columns: Vec<Column>,
        first: &[&str],
        width: Option<usize>,
        rows: &[Vec<String>],
    ) -> String {
        for (index, column) in columns.iter_mut().enumerate() {
            column.width = rows.iter().map(|row| row[index].chars().count()).fold(column.width, usize::max);
        }
        let table = Self::new(columns, first, width);
        let lines = rows.iter().map(|row| table.row(row));
        std::iter::once(table.heads()).chain(lines).collect::<Vec<_>>().join("\n")
    }
}

/// Rows of a [`Table`] that are printed as they are measured, beside a progress bar on standard
/// error.
pub(crate) struct Rows {
    table: Table,
    bar: ProgressBar,
    has_begun: bool,
    /// Nothing is printed but the bar.
    is_silent: bool,
}

impl Rows {
    /// Rows of this table, of `steps` steps.
    pub(crate) fn new(table: Table, steps: usize, is_silent: bool) -> Self {
        Self { table, bar: progress_bar(steps), has_begun: false, is_silent }
    }

    /// Shows what is measured now.
    pub(crate) fn start(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// Prints lines above the heads. Those of the first call begin the table.
    pub(crate) fn begin(&mut self, lines: &[String]) -> io::Result<()> {
        let empty = if self.has_begun { "\n" } else { "" };
        self.has_begun = true;
        self.print(&format!("{empty}{}\n\n{}", lines.join("\n"), self.table.heads()))
    }

    /// Whether the heads were printed.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Prints a row, in the colour of errors if its result is wrong.
    pub(crate) fn row(&self, cells: &[String], is_right: bool) -> io::Result<()> {
        let row = self.table.row(cells);
        self.print(&if is_right { row } else { format!("{BAD}{row}{BAD:#}") })
    }

    fn print(&self, text: &str) -> io::Result<()> {
        if self.is_silent {
            return Ok(());
        }
        self.bar.suspend(|| show(|out| writeln!(out, "{text}")))
    }

    /// Notes that a step was made.
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
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

    fn columns() -> Vec<Column> {
        let number = |head| Column::number(head, 9);
        vec![Column::text("layer", 40), Column::text("kernel", 15), number("best"), number("median"), number("flops")]
    }

    #[test]
    fn a_table_has_the_columns_that_fit() {
        const FIRST: [&str; 3] = ["layer", "best", "flops"];
        let heads = |width| Table::new(columns(), &FIRST, width).heads();
        for (width, expected) in [
            (Some(40), "layer best flops"),
            (Some(80), "layer best flops"),
            (Some(81), "layer kernel best flops"),
            (Some(89), "layer kernel best flops"),
            (Some(90), "layer kernel best median flops"),
            (None, "layer kernel best median flops"),
        ] {
            let found = heads(width);
            assert_eq!(found.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{width:?}");
            assert!(width.is_none_or(|width| found.chars().count() <= width), "{width:?}: {found:?}");
        }
    }

    #[test]
    fn rows_stand_below_their_heads() {
        let cells = |name: &str| {
            ["a.kernel", "1 us", "2 us", "3.5"].map(str::to_owned).into_iter().fold(
                vec![name.to_owned()],
                |mut row, cell| {
                    row.push(cell);
                    row
                },
            )
        };
        let long = "/features/features.0/features.0.0/Conv/of/a/model";
        let narrow = Table::new(columns(), &["layer", "best", "flops"], Some(56));
        assert_eq!(narrow.heads(), format!("{:<28}  {:>9}  {:>9}", "layer", "best", "flops"));
        assert_eq!(narrow.row(&cells("name")), format!("{:<28}  {:>9}  {:>9}", "name", "1 us", "3.5"));
        assert_eq!(
            narrow.row(&cells(long)),
            format!("{:<28}  {:>9}  {:>9}", "/features/fea…onv/of/a/model", "1 us", "3.5")
        );
        // Nothing is cut without a width.
        let wide = Table::new(columns(), &["layer"], None);
        assert!(wide.row(&cells(long)).starts_with(&format!("{long}  a.kernel")));
        let rows = [cells("a"), cells(long)];
        let whole = Table::whole(columns(), &["layer"], None, &rows);
        let ends: Vec<_> = whole.lines().map(|line| line.chars().count()).collect();
        assert_eq!(ends, [ends[0]; 3], "{whole}");
    }

    #[test]
    fn a_number_and_its_unit_stay_in_one_line() {
        let caches = "caches L1d 32.0 KiB, L2 512.0 KiB, share 17 % of 3";
        for width in 15..60 {
            let found = wrapped(caches, Some(width));
            assert!(
                !found.lines().any(|line| line.ends_with("32.0") || line.ends_with("512.0") || line.ends_with("17")),
                "{found}"
            );
            assert_eq!(found.split_whitespace().collect::<Vec<_>>().join(" "), caches);
        }
    }

    #[test]
    fn prose_is_broken_between_words() {
        assert_eq!(wrapped("one two three four", Some(10)), "one two\n  three\n  four");
        assert_eq!(wrapped("  one-two three", Some(9)), "  one-two\n    three");
        assert_eq!(wrapped("one two three four", None), "one two three four");
    }

    #[test]
    fn units() {
        assert_eq!([seconds(1.25e-5), seconds(0.0123), seconds(2.0)], ["12.5 us", "12.30 ms", "2.00 s"]);
        assert_eq!([bytes(12), bytes(1536), bytes(3 << 20), bytes(5 << 30)], ["12 B", "1.5 KiB", "3.0 MiB", "5.0 GiB"]);
    }
}
