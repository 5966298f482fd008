//! The pictures of a report, as SVG.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use convoke_tools::limits::Level;
use convoke_tools::shapes::{LayerKind, OTHER};
use convoke_tools::timing::geometric_mean;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::text::{percent, wrapped};
use crate::records::{Record, Report, Series};
use crate::session::ABOVE_100;

/// Width of a picture in pixels. SVG can be scaled. The width is small, so that the text is still
/// legible when a telephone or a small window scales it down.
const WIDTH: u32 = 520;
const FONT: &str = "sans-serif";
/// Sizes of text and of titles, as plotters counts them: 1.24 times the size of the font in pixels.
const TEXT: i32 = 16;
const TITLE: i32 = 22;
/// Pixels for a character of text, about.
const CHARACTER: i32 = 7;
const GREY: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(222, 222, 222);
const FINE_GRID: RGBColor = RGBColor(243, 243, 243);
const WRONG: RGBColor = RGBColor(214, 0, 0);
/// Colours that are distinct for any colour vision (Okabe and Ito), and a dark grey. Each kind of
/// layer has its own, in the order of [`LayerKind::ALL`].
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(160, 150, 0),
    RGBColor(60, 60, 60),
];

/// The colours that are others where the reader prefers dark pages: on light pages, then on dark
/// ones. The other colours can be seen on both.
const DARK: [(RGBColor, &str); 9] = [
    (WHITE, "#16181c"),
    (BLACK, "#e8e8e8"),
    (GREY, "#b0b0b0"),
    (GRID, "#3c4046"),
    (FINE_GRID, "#24272c"),
    (WRONG, "#ff6b6b"),
    (COLOURS[0], "#3294d8"),
    (COLOURS[6], "#b8ae20"),
    (COLOURS[7], "#c4c4c4"),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One picture.
#[derive(Debug)]
pub(crate) struct Picture {
    /// The name of its file.
    pub(crate) file: &'static str,
    /// What it shows, and how to read it.
    pub(crate) caption: String,
    pub(crate) svg: String,
}

/// All pictures for which the report has the figures.
pub(crate) fn all(report: &Report) -> Result<Vec<Picture>> {
    if report.layers.is_empty() {
        return Ok(Vec::new());
    }
    let bars = [networks(report), instruction_sets(report), threads(report)];
    let mut pictures = vec![roofline(report)?];
    for (file, caption, bars) in bars.into_iter().flatten() {
        pictures.push(Picture { file, caption, svg: bars.draw(report)? });
    }
    Ok(pictures)
}

/// Every layer, below the limits of the machine.
fn roofline(report: &Report) -> Result<Picture> {
    /// Height of the plot in pixels.
    const PLOT: u32 = 440;
    /// Share of the plot's height above all points, for the names of the lines.
    const NAMES: f64 = 0.21;
    /// Share of the plot's width that the longest of these names takes.
    const NAME: f64 = 0.4;
    let isa = &report.layers[0].figures.isa;
    let (peak, bandwidth) = (report.machine.fma_peak[isa], &report.machine.read_bandwidth[isa]);
    let caption = format!(
        "Every layer by its operations for each compulsory byte (input, weights and output, each moved once), under the limits of the machine, measured \
         with {isa}. A layer's limit is the lower of the FMA line and the line of the level that its data lives in. {ABOVE_100} Triangles are layers \
         with Winograd."
    );
    let wrong: Vec<_> = with_operations(report).filter(|r| !r.figures.within_bound).collect();
    let keys = keys(report, peak);
    let frame = Frame::new(format!("Roofline, {isa}"), &report.machine.headline(), report);
    let height = frame.height() + PLOT + Key::height(keys.len());
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let body = frame.draw(&root)?;
        let (plot, below) = body.split_vertically(PLOT);
        let intensity = |r: &Record| r.figures.flop / r.figures.compulsory_bytes;
        let place = |r: &Record| (intensity(r), r.figures.gflops);
        let levels = Level::ALL.map(|level| (level, bandwidth[&level.to_string()]));
        // The lines bend at peak / rate. Those points belong to the picture even if no layer is
        // near them.
        let x = range(report.layers.iter().map(intensity).chain(levels.map(|(_, rate)| peak / rate)));
        let y = range(report.layers.iter().map(|r| r.figures.gflops).chain([peak]));
        // Room for the names: above all points, and to the right of the last bend.
        let beyond = |low: f64, value: f64, share: f64| value * (value / low).powf(share / (1.0 - share));
        let last = levels.iter().map(|(_, rate)| peak / rate).fold(x.0, f64::max);
        let x = (x.0, x.1.max(beyond(x.0, last, NAME)));
        let y = (y.0, beyond(y.0, y.1 / 1.2, NAMES));
        let mut chart = ChartBuilder::on(&plot)
            .margin(10)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d((x.0..x.1).log_scale().base(2.0), (y.0..y.1).log_scale().base(2.0))
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(FINE_GRID)
            .x_desc("operations for each compulsory byte")
            .y_desc("GFLOP/s")
            .axis_desc_style((FONT, TEXT))
            .label_style((FONT, TEXT))
            .x_labels(8)
            .x_label_formatter(&|v| plain(*v))
            .y_label_formatter(&|v| plain(*v))
            .draw()
            .map_err(drawing)?;

        let top = chart.backend_coord(&(x.0, y.1)).1;
        for (line, (level, rate)) in levels.into_iter().enumerate() {
            // The line runs from the left edge, or from where it enters the picture, to the point
            // where arithmetic becomes the limit.
            let (from, to) = (x.0.max(y.0 / rate), peak / rate);
            let points = [(from, from * rate), (to, to * rate)];
            chart.draw_series(LineSeries::new(points, GREY.stroke_width(2))).map_err(drawing)?;
            let end = chart.backend_coord(&(to, peak));
            name_above(&root, end, top + 14 + 18 * line as i32, &format!("{level} read {rate:.0} GB/s"))?;
        }
        let points = [(x.0, peak), (x.1, peak)];
        chart.draw_series(LineSeries::new(points, BLACK.stroke_width(2))).map_err(drawing)?;

        for (kind, colour) in kinds(report) {
            let of_kind = || with_operations(report).filter(|r| r.figures.kind == kind);
            let direct = of_kind().filter(|r| !r.figures.is_winograd());
            let winograd = of_kind().filter(|r| r.figures.is_winograd());
            let fill = colour.mix(0.75).filled();
            chart.draw_series(direct.map(|r| Circle::new(place(r), 4, fill))).map_err(drawing)?;
            chart.draw_series(winograd.map(|r| TriangleMarker::new(place(r), 6, fill))).map_err(drawing)?;
        }
        chart.draw_series(wrong.iter().map(|r| Cross::new(place(r), 7, WRONG.stroke_width(2)))).map_err(drawing)?;
        for (index, key) in keys.into_iter().enumerate() {
            key.draw(&below, index)?;
        }
        root.present().map_err(drawing)?;
    }
    Ok(Picture { file: "roofline.svg", caption, svg: with_dark_mode(&svg) })
}

/// Writes the name of a bandwidth limit at the height `y`, above all points, with a stalk from the
/// point where its line ends at the FMA line. The ends are close to each other, so each name has a
/// text line of its own. The leftmost limit has the highest, so that no stalk crosses a name.
fn name_above(root: &Area<'_>, end: (i32, i32), y: i32, name: &str) -> Result<()> {
    root.draw(&PathElement::new([end, (end.0, y - 6)], GREY)).map_err(drawing)?;
    // The lines of the grid would run through the letters.
    let width = 8 + CHARACTER * name.chars().count() as i32;
    root.draw(&Rectangle::new([(end.0 + 1, y - 8), (end.0 + width, y + 8)], WHITE.filled())).map_err(drawing)?;
    text(root, name, (end.0 + 5, y), TEXT, BLACK, HPos::Left)
}

type Chart = Option<(&'static str, String, Bars)>;

/// A bar for each network.
fn networks(report: &Report) -> Chart {
    // Layers that are from no network come last.
    let mut by_network = BTreeMap::<(bool, &str), (usize, [f64; 3])>::new();
    for record in with_operations(report) {
        let f = &record.figures;
        let (layers, sums) = by_network.entry((record.network == OTHER, &record.network)).or_default();
        *layers += 1;
        [f.flop, f.seconds_best, f.seconds_at_limit].iter().zip(sums).for_each(|(value, sum)| *sum += value);
    }
    let row = |((_, network), (layers, [flop, best, at_limit])): ((bool, &str), (usize, [f64; 3]))| ChartRow {
        label: format!("{network} ({layers})"),
        values: vec![flop / best / 1e9],
        mark: Some(flop / at_limit / 1e9),
        note: format!("{:.0}  ({})", flop / best / 1e9, percent(at_limit / best)),
    };
    let caption = format!(
        "Some layers of each network, run one after the other; their number is in brackets. A bar is the sum of their operations by the sum of their \
         times, and the percentage is the share of their limits, which may exceed 100 % as in the roofline. These layers do not stand for the whole network. \
         Layers that are from no network are \"{OTHER}\". The mark is the speed of direct arithmetic at the limits."
    );
    if by_network.is_empty() {
        return None;
    }
    // The fastest is first, and layers of no network are last.
    let mut by_network: Vec<_> = by_network.into_iter().collect();
    by_network.sort_by(|((a_is_other, _), (_, a)), ((b_is_other, _), (_, b))| {
        a_is_other.cmp(b_is_other).then((b[0] / b[1]).total_cmp(&(a[0] / a[1])))
    });
    let bars = Bars {
        title: "Selected layers of networks",
        headline: report.machine.headline(),
        unit: "GFLOP/s",
        series: vec!["convoke".to_owned()],
        mark: Some("at the limits of direct arithmetic"),
        rows: by_network.into_iter().map(row).collect(),
        bar: 12,
    };
    Some(("networks.svg", caption, bars))
}

/// A bar for each kind of layer and instruction set.
fn instruction_sets(report: &Report) -> Chart {
    let mut series: Vec<_> = report.comparisons.iter().filter(|s| s.threads == report.machine.threads).collect();
    series.sort_by_key(|s| rank(&s.isa));
    if series.len() < 2 || kinds(report).next().is_none() {
        return None;
    }
    let row = |kind: String| {
        let values: Vec<f64> = series.iter().map(|s| mean_of_kind(report, &kind, |name| s.gflops[name])).collect();
        let note = format!("x {:.2}", values[values.len() - 1] / values[0]);
        ChartRow { label: kind, values, mark: None, note }
    };
    let caption = "The same layers with each instruction set: the geometric mean of each kind of layer, and the last by the first.".to_owned();
    let (isas, threads) = (series.iter().map(|s| s.isa.as_str()).collect::<Vec<_>>(), report.machine.threads);
    let bars = Bars {
        title: "Instruction sets: geometric means",
        headline: report.machine.headline_for(&isas, threads..=threads),
        unit: "GFLOP/s",
        series: series.iter().map(|s| s.isa.clone()).collect(),
        mark: None,
        rows: kinds(report).map(|(kind, _)| row(kind)).collect(),
        bar: 14,
    };
    Some(("instruction-sets.svg", caption, bars))
}

/// A bar for each kind of layer and number of threads above one.
fn threads(report: &Report) -> Chart {
    let isa = &report.layers[0].figures.isa;
    let mut series: Vec<&Series> = report.comparisons.iter().filter(|s| s.isa == *isa).collect();
    series.sort_by_key(|s| s.threads);
    kinds(report).next()?;
    let (one, more) = series.split_first().filter(|(one, more)| one.threads == 1 && !more.is_empty())?;
    let most = more[more.len() - 1].threads;
    let row = |kind: String| {
        let speedup = |s: &&Series| mean_of_kind(report, &kind, |name| s.gflops[name] / one.gflops[name]);
        let values: Vec<f64> = more.iter().map(speedup).collect();
        let note = format!("{:.2} of {most}", values[values.len() - 1]);
        ChartRow { label: kind, values, mark: Some(most as f64), note }
    };
    let caption = format!(
        "How many times as fast as on one thread: the geometric mean of each kind of layer, with {isa}. The mark is the largest number of threads. Batch \
         1 mostly, so that single images are shared out."
    );
    let bars = Bars {
        title: "Threads: times as fast as one",
        headline: report.machine.headline_for(&[isa], 1..=most),
        unit: "times as fast as one thread",
        series: more.iter().map(|s| format!("{} threads", s.threads)).collect(),
        mark: Some("ideal"),
        rows: kinds(report).map(|(kind, _)| row(kind)).collect(),
        bar: 14,
    };
    Some(("threads.svg", caption, bars))
}

/// The geometric mean over the layers of a kind.
fn mean_of_kind(report: &Report, kind: &str, value: impl Fn(&str) -> f64) -> f64 {
    geometric_mean(with_operations(report).filter(|r| r.figures.kind == kind).map(|r| value(&r.name)))
}

/// The layers that have operations. Empty layers have no speed, and no place on a logarithmic
/// axis.
fn with_operations(report: &Report) -> impl Iterator<Item = &Record> {
    report.layers.iter().filter(|r| r.figures.flop > 0.0)
}

/// The kinds that occur, with their colours. A kind's colour does not depend on which others
/// occur.
fn kinds(report: &Report) -> impl Iterator<Item = (String, RGBColor)> {
    let named = LayerKind::ALL.into_iter().map(|kind| kind.to_string()).zip(COLOURS);
    named.filter(|(kind, _)| with_operations(report).any(|r| r.figures.kind == *kind))
}

/// The order of instruction sets by capability.
fn rank(isa: &str) -> Option<convoke::Isa> {
    isa.parse().ok()
}

/// A range that is a little wider than the values above 0. Other values have no place on a
/// logarithmic axis.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let above_0 = values.filter(|&v| v > 0.0);
    let (low, high) = above_0.fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    (low / 1.5, high * 1.5)
}

/// A number on a logarithmic axis.
fn plain(value: f64) -> String {
    if value < 1.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// Horizontal bars, in groups.
#[derive(Debug)]
struct Bars {
    title: &'static str,
    /// The machine and the setting.
    headline: [String; 3],
    unit: &'static str,
    /// One name for each bar of a group.
    series: Vec<String>,
    /// What the marks mean.
    mark: Option<&'static str>,
    rows: Vec<ChartRow>,
    /// Height of a bar.
    bar: i32,
}

/// A group of bars.
#[derive(Debug)]
struct ChartRow {
    label: String,
    values: Vec<f64>,
    mark: Option<f64>,
    /// The text to the right of the bars.
    note: String,
}

impl Bars {
    fn draw(&self, report: &Report) -> Result<String> {
        /// Pixels to the right of the bars, for the notes.
        const NOTES: i32 = 96;
        /// Pixels between two groups of bars.
        const GAP: i32 = 8;
        /// Pixels below the bars, for the axis.
        const AXIS: i32 = 48;
        // Names in files of the user may be long.
        let longest = self.rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
        let labels = (20 + CHARACTER * longest as i32).clamp(80, WIDTH as i32 / 2);
        let legend_height = self.legend(None, labels)?;
        let group = self.series.len() as i32 * self.bar + GAP;
        let frame = Frame::new(self.title.to_owned(), &self.headline, report);
        let height = self.rows.len() as i32 * group + legend_height + AXIS + frame.height() as i32;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height as u32)).into_drawing_area();
            let body = frame.draw(&root)?;
            self.legend(Some(&body), labels)?;
            let (top, bottom) = (legend_height, legend_height + self.rows.len() as i32 * group);
            let (left, right) = (labels, WIDTH as i32 - NOTES);
            let values = self.rows.iter().flat_map(|row| row.values.iter().copied().chain(row.mark));
            let axis = RangedCoordf64::from(0.0..1.05 * values.fold(0.0, f64::max));
            let place = |value: f64| axis.map(&value, (left, right));

            for tick in axis.key_points(Ticks) {
                let x = place(tick);
                body.draw(&PathElement::new([(x, top), (x, bottom)], GRID)).map_err(drawing)?;
                text(&body, &format!("{tick}"), (x, bottom + 14), TEXT, GREY, HPos::Center)?;
            }
            text(&body, self.unit, (i32::midpoint(left, right), bottom + 34), TEXT, BLACK, HPos::Center)?;
            for (index, row) in self.rows.iter().enumerate() {
                let y = top + index as i32 * group + GAP / 2;
                let middle = y + (group - GAP) / 2;
                text(&body, &row.label, (left - 8, middle), TEXT, BLACK, HPos::Right)?;
                for (bar, (&value, colour)) in row.values.iter().zip(COLOURS).enumerate() {
                    let y = y + bar as i32 * self.bar;
                    let corners = [(left, y), (place(value), y + self.bar - 1)];
                    body.draw(&Rectangle::new(corners, colour.filled())).map_err(drawing)?;
                }
                if let Some(mark) = row.mark {
                    let x = place(mark);
                    let line = [(x, y - 2), (x, y + group - GAP + 1)];
                    body.draw(&PathElement::new(line, BLACK.stroke_width(2))).map_err(drawing)?;
                }
                text(&body, &row.note, (right + 10, middle), TEXT, GREY, HPos::Left)?;
            }
            body.draw(&PathElement::new([(left, top), (left, bottom)], GREY)).map_err(drawing)?;
            root.present().map_err(drawing)?;
        }
        Ok(with_dark_mode(&svg))
    }

    /// The names of the bars and of the mark, in as many lines as they need. It returns their
    /// height, and draws them only if it is given an area.
    fn legend(&self, area: Option<&Area<'_>>, left: i32) -> Result<i32> {
        /// Height of a line of names in pixels.
        const LINE: i32 = 20;
        let left = left.min(WIDTH as i32 / 4);
        let (mut x, mut y) = (left, 12);
        let bars = self.series.iter().zip(COLOURS).map(|(name, colour)| (name.as_str(), Some(colour)));
        for (name, colour) in bars.chain(self.mark.map(|name| (name, None))) {
            let width = 34 + CHARACTER * name.chars().count() as i32;
            if x > left && x + width > WIDTH as i32 {
                (x, y) = (left, y + LINE);
            }
            if let Some(area) = area {
                match colour {
                    Some(colour) => area.draw(&Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour.filled())),
                    None => area.draw(&PathElement::new([(x + 7, y - 8), (x + 7, y + 8)], BLACK.stroke_width(2))),
                }
                .map_err(drawing)?;
                text(area, name, (x + 20, y), TEXT, BLACK, HPos::Left)?;
            }
            x += width;
        }
        Ok(y + 18)
    }
}

/// Asks for about five labels on an axis.
struct Ticks;

impl KeyPointHint for Ticks {
    fn max_num_points(&self) -> usize {
        5
    }

    fn weight(&self) -> plotters::coord::ranged1d::KeyPointWeight {
        plotters::coord::ranged1d::KeyPointWeight::Bold
    }
}

/// What a point of the roofline stands for.
enum Key {
    Kind(String, RGBColor),
    Winograd,
    Wrong,
    /// The FMA line, with its name.
    Peak(String),
}

/// All entries that the roofline's legend needs.
fn keys(report: &Report, peak: f64) -> Vec<Key> {
    let any = |is: fn(&Record) -> bool| with_operations(report).any(is);
    let winograd = any(|r| r.figures.is_winograd()).then_some(Key::Winograd);
    let wrong = any(|r| !r.figures.within_bound).then_some(Key::Wrong);
    let line = Key::Peak(format!("FMA peak {peak:.0} GFLOP/s"));
    kinds(report).map(|(kind, colour)| Key::Kind(kind, colour)).chain(winograd).chain(wrong).chain([line]).collect()
}

impl Key {
    /// Entries of the legend in one line.
    const COLUMNS: usize = 3;
    /// Height of a line of the legend in pixels.
    const LINE: i32 = 22;

    /// Height in pixels of so many entries, with a margin.
    fn height(keys: usize) -> u32 {
        Self::LINE as u32 * (keys.div_ceil(Self::COLUMNS) as u32 + 1)
    }

    /// Draws the entry in its place, the one with number `index`.
    fn draw(self, area: &Area<'_>, index: usize) -> Result<()> {
        let (column, line) = ((index % Self::COLUMNS) as i32, (index / Self::COLUMNS) as i32);
        let (x, y) = (30 + 160 * column, 18 + Self::LINE * line);
        let name = match &self {
            Self::Kind(kind, colour) => {
                area.draw(&Circle::new((x, y), 5, colour.filled())).map_err(drawing)?;
                kind
            }
            Self::Winograd => {
                area.draw(&TriangleMarker::new((x, y), 7, GREY.filled())).map_err(drawing)?;
                "with Winograd"
            }
            Self::Wrong => {
                area.draw(&Cross::new((x, y), 6, WRONG.stroke_width(2))).map_err(drawing)?;
                "wrong result"
            }
            Self::Peak(name) => {
                area.draw(&PathElement::new([(x - 7, y), (x + 7, y)], BLACK.stroke_width(2))).map_err(drawing)?;
                name
            }
        };
        text(area, name, (x + 14, y), TEXT, BLACK, HPos::Left)
    }
}

/// What is around a plot: the title above it, and the machine, the setting and the time below.
struct Frame {
    title: String,
    /// How many layers there are, if some are missing.
    partial: Option<String>,
    /// The lines below the plot.
    notes: Vec<String>,
}

impl Frame {
    const NOTE: i32 = 17;
    const MARGIN: i32 = 16;

    fn new(title: String, headline: &[String; 3], report: &Report) -> Self {
        let most = (WIDTH as i32 - 2 * Self::MARGIN) / CHARACTER;
        let notes = headline.iter().flat_map(|line| {
            wrapped(line, Some(most as usize)).lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()
        });
        Self { title, partial: report.partial(), notes: notes.collect() }
    }

    /// Pixels above and below the plot.
    fn margins(&self) -> (i32, i32) {
        let top = if self.partial.is_some() { 60 } else { 42 };
        (top, 20 + Self::NOTE * self.notes.len() as i32)
    }

    fn height(&self) -> u32 {
        let (top, bottom) = self.margins();
        (top + bottom) as u32
    }

    /// Draws a white sheet with all of it, and returns the area of the plot.
    fn draw<'a>(&self, root: &Area<'a>) -> Result<Area<'a>> {
        root.fill(&WHITE).map_err(drawing)?;
        let height = root.dim_in_pixel().1 as i32;
        text(root, &self.title, (Self::MARGIN, 24), TITLE, BLACK, HPos::Left)?;
        if let Some(partial) = &self.partial {
            text(root, partial, (Self::MARGIN, 46), TEXT, WRONG, HPos::Left)?;
        }
        for (note, from_below) in self.notes.iter().rev().zip(0..) {
            text(root, note, (Self::MARGIN, height - 14 - Self::NOTE * from_below), TEXT, GREY, HPos::Left)?;
        }
        let (top, bottom) = self.margins();
        Ok(root.margin(top, bottom, 0, 0))
    }
}

/// The picture with other colours for readers who prefer dark pages. plotters writes colours as
/// attributes, so rules of CSS go before them, and hold in a page as in a file of its own.
fn with_dark_mode(svg: &str) -> String {
    let rule = |(RGBColor(red, green, blue), dark): (RGBColor, &str)| {
        let light = format!("#{red:02X}{green:02X}{blue:02X}");
        format!("svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}")
    };
    let style = DARK.map(rule).concat();
    let begin = svg.find("<svg").and_then(|tag| Some(tag + svg[tag..].find('>')? + 1)).unwrap_or_default();
    let (tag, rest) = svg.split_at(begin);
    format!("{tag}\n<style>@media(prefers-color-scheme:dark){{{style}}}</style>{rest}")
}

/// Text that is centred at the height `y`.
fn text(area: &Area<'_>, text: &str, at: (i32, i32), size: i32, colour: RGBColor, anchor: HPos) -> Result<()> {
    let style = (FONT, size).into_font().color(&colour).pos(Pos::new(anchor, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style)).map_err(drawing)
}

/// Converts a drawing error to text, because its type borrows from the backend.
fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing: {error}")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::session::Figures;
    use convoke::{DType, Isa};
    use convoke_tools::limits::{Caches, Roof};

    pub(crate) fn layer(name: &str, kind: &str, flop: f64, compulsory_bytes: f64) -> Record {
        let figures = Figures {
            kind: kind.to_owned(),
            geometry: String::new(),
            algorithm: "pointwise".to_owned(),
            isa: "portable".to_owned(),
            kernel: String::new(),
            seconds_best: 1e-6,
            seconds_median: 1e-6,
            reps: 3,
            flop,
            gflops: flop / 1e3,
            share_of_peak: flop / 1e5,
            compulsory_bytes,
            limit: "FMA".to_owned(),
            seconds_at_limit: 1e-6,
            share_of_limit: 1.0,
            workspace_bytes: 0,
            packed_bytes: 0,
            max_error: 0.0,
            error_of_bound: 0.0,
            within_bound: true,
        };
        Record { name: name.to_owned(), network: name.to_owned(), figures }
    }

    pub(crate) fn report(layers: Vec<Record>) -> Report {
        let caches = Caches { l1: 32 << 10, l2: 1 << 20, l3: 32 << 20 };
        let roof = Roof { threads: 1, fma: 100.0, bandwidth: [400.0, 200.0, 100.0, 10.0], caches };
        let series = |threads| Series {
            isa: "portable".to_owned(),
            threads,
            gflops: layers.iter().map(|r| (r.name.clone(), r.figures.gflops)).collect(),
            wrong: BTreeMap::new(),
        };
        Report {
            machine: Machine::new(DType::F32, 1, &BTreeMap::from([(Isa::Portable, roof)]), Some(0.25)),
            comparisons: vec![series(1), series(2)],
            rejected: Vec::new(),
            failed: Vec::new(),
            summary: Vec::new(),
            interrupted: false,
            asked: layers.len(),
            layers,
        }
    }

    #[test]
    fn layers_without_operations_are_left_out() {
        let some = all(&report(vec![layer("a", "pointwise", 5e4, 1e4), layer("b", "grouped", 0.0, 0.0)])).unwrap();
        assert_eq!(some.len(), 3);
        for picture in &some {
            assert!(!picture.svg.contains("NaN"), "{}", picture.file);
            assert!(!picture.svg.contains("grouped"), "{}", picture.file);
        }
        let none = all(&report(vec![layer("b", "grouped", 0.0, 64.0)])).unwrap();
        assert_eq!(none.iter().map(|p| p.file).collect::<Vec<_>>(), ["roofline.svg"]);
    }

    #[test]
    fn pictures_say_on_how_many_threads() {
        let pictures = all(&report(vec![layer("a", "pointwise", 5e4, 1e4)])).unwrap();
        let threads = |picture: &Picture| {
            let texts = picture.svg.lines().filter_map(|line| line.trim().split_once("f32, portable, "));
            texts.map(|(_, threads)| threads.to_owned()).collect::<Vec<_>>()
        };
        let found: Vec<_> = pictures.iter().map(|picture| (picture.file, threads(picture))).collect();
        let at = |threads: &str| vec![format!("{threads}, load average 0.25 at the start")];
        let one = at("1 thread");
        let expected = [("roofline.svg", one.clone()), ("networks.svg", one), ("threads.svg", at("1 to 2 threads"))];
        assert_eq!(found, expected);
    }

    #[test]
    fn pictures_of_an_interrupted_report_say_so() {
        let mut report = report(vec![layer("a", "pointwise", 5e4, 1e4)]);
        let marked = |report: &Report| {
            let pictures = all(report).unwrap();
            pictures.iter().filter(|picture| picture.svg.contains("Interrupted: 1 of 7 layers")).count()
        };
        assert_eq!(marked(&report), 0);
        (report.interrupted, report.asked) = (true, 7);
        assert_eq!(marked(&report), 3);
    }

    /// In the order of their names, a network with one fast layer would be anywhere.
    #[test]
    fn the_fastest_network_is_first_and_layers_of_none_are_last() {
        let mut other = layer(OTHER, "pointwise", 9e4, 1e4);
        other.network = OTHER.to_owned();
        let layers = vec![layer("a", "pointwise", 2e4, 1e4), other, layer("b", "pointwise", 5e4, 1e4)];
        let (_, _, bars) = networks(&report(layers)).unwrap();
        let labels: Vec<_> = bars.rows.iter().map(|row| row.label.as_str()).collect();
        assert_eq!(labels, ["b (1)", "a (1)", "other (1)"]);
    }

    /// Points lie below the names of the lines, however fast they are.
    #[test]
    fn names_of_limits_are_above_all_points() {
        let fast = layer("b", "pointwise", 4e5, 1e4);
        let svg = all(&report(vec![layer("a", "pointwise", 5e4, 1e4), fast])).unwrap().swap_remove(0).svg;
        // The numbers behind `begin` in the elements that have `part`.
        let numbers = |begin: &str, part: &str| -> Vec<f64> {
            let elements = svg.split('<').filter(|text| text.contains(part));
            let found = elements.filter_map(|text| text.split(begin).nth(1));
            found.map(|text| text.split('"').next().unwrap().parse().unwrap()).collect()
        };
        let (points, names) = (numbers(" cy=\"", "circle "), numbers(" y=\"", "GB/s"));
        assert_eq!(names.len(), 4);
        let (highest, lowest) =
            (points.iter().copied().fold(f64::MAX, f64::min), names.iter().copied().fold(0.0, f64::max));
        assert!(lowest + 10.0 < highest, "{names:?} {points:?}");
    }

    #[test]
    fn pictures_have_colours_for_dark_pages() {
        for picture in all(&report(vec![layer("a", "pointwise", 5e4, 1e4)])).unwrap() {
            assert!(
                picture.svg.contains("@media(prefers-color-scheme:dark){svg [fill=\"#FFFFFF\"]{fill:#16181c}"),
                "{}",
                picture.svg
            );
            // A colour that is not in the list would be drawn on dark as on light.
            assert!(
                picture.svg.contains("fill=\"#FFFFFF\" stroke") && picture.svg.contains("fill=\"#000000\""),
                "{}",
                picture.svg
            );
        }
    }

    #[test]
    fn a_kind_has_its_colour_whichever_others_occur() {
        let grouped = || layer("a", "grouped", 5e4, 1e4);
        let both = report(vec![layer("b", "transposed", 5e4, 1e4), grouped()]);
        let alone = kinds(&report(vec![grouped()])).collect::<Vec<_>>();
        assert_eq!(alone, kinds(&both).take(1).collect::<Vec<_>>());
        assert!(LayerKind::ALL.len() <= COLOURS.len());
    }

    #[test]
    fn wrong_results_are_marked() {
        let mut wrong = layer("b", "pointwise", 4e4, 1e4);
        let roofline = |layers| all(&report(layers)).unwrap().swap_remove(0).svg;
        assert!(!roofline(vec![wrong.clone()]).contains("wrong result"));
        wrong.figures.within_bound = false;
        assert!(roofline(vec![layer("a", "pointwise", 5e4, 1e4), wrong]).contains("wrong result"));
    }

    #[test]
    fn ranges_ignore_what_logarithms_have_no_place_for() {
        assert_eq!(range([0.0, 3.0, f64::NAN, 6.0, -1.0].into_iter()), (2.0, 9.0));
    }
}
