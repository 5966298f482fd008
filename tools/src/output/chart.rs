//! The pictures of a report, as SVG.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use convoke_tools::limits::Level;
use convoke_tools::timing::geometric_mean;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::text::percent;
use crate::commands::report::{Record, Report, Series};
use crate::machine::Machine;

/// Pixels across; SVG scales. Narrow, so that the text can still be read where a telephone or half a window scales it down.
const WIDTH: u32 = 700;
const FONT: &str = "sans-serif";
const GREY: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(222, 222, 222);
const WRONG: RGBColor = RGBColor(214, 0, 0);
/// Colours that are told apart with any colour vision (Okabe and Ito), and a dark grey.
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

/// All pictures that the figures suffice for.
pub(crate) fn all(report: &Report) -> Result<Vec<Picture>> {
    if report.layers.is_empty() {
        return Ok(Vec::new());
    }
    let bars = [networks(report), instruction_sets(report), threads(report)];
    let mut pictures = vec![roofline(report)?];
    for (file, caption, bars) in bars.into_iter().flatten() {
        pictures.push(Picture { file, caption, svg: bars.draw(&report.machine)? });
    }
    Ok(pictures)
}

/// Every layer under the limits of the machine.
fn roofline(report: &Report) -> Result<Picture> {
    const HEIGHT: u32 = 726;
    const PLOT: u32 = 470;
    let caption = "Every layer by its operations for each compulsory byte (input, weights and output, each moved once), under the measured limits of the \
                   machine. A layer's limit is the lower of the FMA line and the line of the level that its data lives in. Winograd makes fewer \
                   multiply-adds than the definition, all of which count here: its layers, drawn as triangles, may stand above the FMA line."
        .to_owned();
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let body = frame(&root, "Roofline", &report.machine.headline(), &report.machine)?;
        let (plot, below) = body.split_vertically(PLOT);
        let intensity = |r: &Record| r.figures.flop / r.figures.compulsory_bytes;
        let place = |r: &Record| (intensity(r), r.figures.gflops);
        let isa = &report.layers[0].figures.isa;
        let (peak, bandwidth) = (report.machine.fma_peak[isa], &report.machine.read_bandwidth[isa]);
        // The lines bend at peak / rate: those points belong to the picture even where no layer is near them.
        let ridges = Level::ALL.map(|level| peak / bandwidth[&level.to_string()]);
        let x = range(report.layers.iter().map(intensity).chain(ridges));
        let y = range(report.layers.iter().map(|r| r.figures.gflops).chain([peak]));
        let mut chart = ChartBuilder::on(&plot)
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(60)
            .build_cartesian_2d((x.0..x.1).log_scale().base(2.0), (y.0..y.1).log_scale().base(2.0))
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(RGBColor(243, 243, 243))
            .x_desc("operations for each compulsory byte")
            .y_desc("GFLOP/s")
            .axis_desc_style((FONT, 14))
            .label_style((FONT, 12))
            .x_label_formatter(&|v| plain(*v))
            .y_label_formatter(&|v| plain(*v))
            .draw()
            .map_err(drawing)?;

        // Below the plot: the limits in the first column, the kinds of layers in the others.
        let [limits, layers, more] = [60, 290, 490].map(|x| below.margin(0, 0, x, 0));
        let mut legend = Legend::new(&limits);
        legend.heading("limits")?;
        // The slower, the lighter.
        for (level, shade) in Level::ALL.into_iter().zip([60, 105, 145, 180]) {
            let colour = RGBColor(shade, shade, shade);
            let rate = bandwidth[&level.to_string()];
            // From the left edge, or from where the line enters the picture, to where arithmetic takes over.
            let (from, to) = (x.0.max(y.0 / rate), peak / rate);
            let line = [(from, from * rate), (to, to * rate)];
            chart.draw_series(LineSeries::new(line, colour.stroke_width(2))).map_err(drawing)?;
            legend.line(colour, &format!("{level} read, {rate:.0} GB/s"))?;
        }
        let line = [(x.0, peak), (x.1, peak)];
        chart.draw_series(LineSeries::new(line, BLACK.stroke_width(2))).map_err(drawing)?;
        legend.line(BLACK, &format!("FMA peak, {peak:.0} GFLOP/s"))?;

        let mut legend = Legend::new(&layers);
        legend.heading("layers")?;
        for (index, (kind, colour)) in kinds(report).into_iter().zip(COLOURS).enumerate() {
            if index == Legend::MOST {
                legend = Legend::new(&more);
                legend.heading("")?;
            }
            let of_kind = || with_operations(report).filter(|r| r.figures.kind == kind);
            let direct = of_kind().filter(|r| !r.figures.is_winograd());
            let winograd = of_kind().filter(|r| r.figures.is_winograd());
            let fill = colour.mix(0.75).filled();
            chart.draw_series(direct.map(|r| Circle::new(place(r), 4, fill))).map_err(drawing)?;
            chart.draw_series(winograd.map(|r| TriangleMarker::new(place(r), 6, fill))).map_err(drawing)?;
            legend.point(colour, &kind)?;
        }
        legend.triangle("with Winograd")?;
        let wrong: Vec<_> = with_operations(report).filter(|r| !r.figures.within_bound).collect();
        if !wrong.is_empty() {
            chart.draw_series(wrong.iter().map(|r| Cross::new(place(r), 7, WRONG.stroke_width(2)))).map_err(drawing)?;
            legend.cross("wrong result")?;
        }
        root.present().map_err(drawing)?;
    }
    Ok(Picture { file: "roofline.svg", caption, svg })
}

type Chart = Option<(&'static str, String, Bars)>;

/// A bar for each network.
fn networks(report: &Report) -> Chart {
    let mut by_network = BTreeMap::<&str, [f64; 3]>::new();
    for record in with_operations(report) {
        let f = &record.figures;
        let sums = by_network.entry(&record.network).or_default();
        [f.flop, f.seconds_best, f.seconds_at_limit].iter().zip(sums).for_each(|(value, sum)| *sum += value);
    }
    let row = |(network, [flop, best, at_limit]): (&str, [f64; 3])| Row {
        label: network.to_owned(),
        values: vec![flop / best / 1e9],
        mark: Some(flop / at_limit / 1e9),
        note: format!("{:.0}  ({})", flop / best / 1e9, percent(at_limit / best)),
    };
    let caption = "The layers of each network one after the other: their operations by their time (and the share of their limits, which Winograd may \
                   exceed). The mark is the speed of direct arithmetic at the limits."
        .to_owned();
    if by_network.is_empty() {
        return None;
    }
    let bars = Bars {
        title: "Networks: their layers, one after the other",
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
    if series.len() < 2 || kinds(report).is_empty() {
        return None;
    }
    let row = |kind: String| {
        let values: Vec<f64> = series.iter().map(|s| mean_of_kind(report, &kind, |name| s.gflops[name])).collect();
        let note = format!("x {:.2}", values[values.len() - 1] / values[0]);
        Row { label: kind, values, mark: None, note }
    };
    let caption = "The same layers with each instruction set: the geometric mean of each kind of layer, and the last by the first.".to_owned();
    let bars = Bars {
        title: "Instruction sets: geometric mean of each kind of layer",
        headline: report.machine.headline(),
        unit: "GFLOP/s",
        series: series.iter().map(|s| s.isa.clone()).collect(),
        mark: None,
        rows: kinds(report).into_iter().map(row).collect(),
        bar: 14,
    };
    Some(("instruction-sets.svg", caption, bars))
}

/// A bar for each kind of layer and number of threads above one.
fn threads(report: &Report) -> Chart {
    let isa = &report.layers[0].figures.isa;
    let mut series: Vec<&Series> = report.comparisons.iter().filter(|s| s.isa == *isa).collect();
    series.sort_by_key(|s| s.threads);
    if kinds(report).is_empty() {
        return None;
    }
    let (one, more) = series.split_first().filter(|(one, more)| one.threads == 1 && !more.is_empty())?;
    let most = more[more.len() - 1].threads;
    let row = |kind: String| {
        let speedup = |s: &&Series| mean_of_kind(report, &kind, |name| s.gflops[name] / one.gflops[name]);
        let values: Vec<f64> = more.iter().map(speedup).collect();
        let note = format!("{:.2} of {most}", values[values.len() - 1]);
        Row { label: kind, values, mark: Some(most as f64), note }
    };
    let caption = format!(
        "How many times as fast as on one thread: the geometric mean of each kind of layer, with {isa}. The mark is the largest number of threads. Batch \
         1 mostly, so that single images are shared out."
    );
    let bars = Bars {
        title: "Threads: times as fast as one",
        headline: report.machine.headline_for(1..=most),
        unit: "times as fast as one thread",
        series: more.iter().map(|s| format!("{} threads", s.threads)).collect(),
        mark: Some("ideal"),
        rows: kinds(report).into_iter().map(row).collect(),
        bar: 14,
    };
    Some(("threads.svg", caption, bars))
}

/// The geometric mean over the layers of a kind.
fn mean_of_kind(report: &Report, kind: &str, value: impl Fn(&str) -> f64) -> f64 {
    geometric_mean(with_operations(report).filter(|r| r.figures.kind == kind).map(|r| value(&r.name)))
}

/// The layers that have operations: empty ones have no speed, and no place on a logarithmic axis.
fn with_operations(report: &Report) -> impl Iterator<Item = &Record> {
    report.layers.iter().filter(|r| r.figures.flop > 0.0)
}

/// The kinds that occur, in the order of their first layer.
fn kinds(report: &Report) -> Vec<String> {
    let mut kinds = Vec::new();
    for record in with_operations(report) {
        if !kinds.contains(&record.figures.kind) {
            kinds.push(record.figures.kind.clone());
        }
    }
    kinds
}

/// Instruction sets in order of capability.
fn rank(isa: &str) -> Option<convoke::Isa> {
    isa.parse().ok()
}

/// A little more than the values above 0 span, for an axis with a logarithmic scale: it has no place for others.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let above_0 = values.filter(|&v| v > 0.0);
    let (low, high) = above_0.fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    (low / 1.5, high * 1.5)
}

/// A number of a logarithmic axis.
fn plain(value: f64) -> String {
    if value < 1.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// Bars to the right, in groups.
#[derive(Debug)]
struct Bars {
    title: &'static str,
    /// What was measured on what.
    headline: String,
    unit: &'static str,
    /// One name for each bar of a group.
    series: Vec<String>,
    /// What the marks mean.
    mark: Option<&'static str>,
    rows: Vec<Row>,
    /// Height of a bar.
    bar: i32,
}

/// A group of bars.
#[derive(Debug)]
struct Row {
    label: String,
    values: Vec<f64>,
    mark: Option<f64>,
    /// What stands to the right of the bars.
    note: String,
}

impl Bars {
    fn draw(&self, machine: &Machine) -> Result<String> {
        const NOTES: i32 = 100;
        const GAP: i32 = 8;
        /// Above and below the bars, with the frame's lines: title, axis, machine.
        const REST: i32 = 140;
        // Names in files of the user's own may be long.
        let longest = self.rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
        let labels = (24 + 7 * longest as i32).clamp(80, WIDTH as i32 / 2);
        let legend_height = self.legend(None, labels)?;
        let group = self.series.len() as i32 * self.bar + GAP;
        let height = self.rows.len() as i32 * group + legend_height + REST;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height as u32)).into_drawing_area();
            let body = frame(&root, self.title, &self.headline, machine)?;
            self.legend(Some(&body), labels)?;
            let (top, bottom) = (legend_height, legend_height + self.rows.len() as i32 * group);
            let (left, right) = (labels, WIDTH as i32 - NOTES);
            let values = self.rows.iter().flat_map(|row| row.values.iter().copied().chain(row.mark));
            let axis = RangedCoordf64::from(0.0..1.05 * values.fold(0.0, f64::max));
            let place = |value: f64| axis.map(&value, (left, right));

            for tick in axis.key_points(Ticks) {
                let x = place(tick);
                body.draw(&PathElement::new([(x, top), (x, bottom)], GRID)).map_err(drawing)?;
                text(&body, &format!("{tick}"), (x, bottom + 14), 12, GREY, HPos::Center)?;
            }
            text(&body, self.unit, (i32::midpoint(left, right), bottom + 34), 14, BLACK, HPos::Center)?;
            for (index, row) in self.rows.iter().enumerate() {
                let y = top + index as i32 * group + GAP / 2;
                let middle = y + (group - GAP) / 2;
                text(&body, &row.label, (left - 8, middle), 13, BLACK, HPos::Right)?;
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
                text(&body, &row.note, (right + 10, middle), 12, GREY, HPos::Left)?;
            }
            body.draw(&PathElement::new([(left, top), (left, bottom)], GREY)).map_err(drawing)?;
            root.present().map_err(drawing)?;
        }
        Ok(svg)
    }

    /// The names of the bars and of the mark, in as many lines as they need; gives their height, and draws them only if it is given an area.
    fn legend(&self, area: Option<&Area<'_>>, left: i32) -> Result<i32> {
        const LINE: i32 = 20;
        let (mut x, mut y) = (left, 12);
        let bars = self.series.iter().zip(COLOURS).map(|(name, colour)| (name.as_str(), Some(colour)));
        for (name, colour) in bars.chain(self.mark.map(|name| (name, None))) {
            let width = 34 + 7 * name.chars().count() as i32;
            if x > left && x + width > WIDTH as i32 {
                (x, y) = (left, y + LINE);
            }
            if let Some(area) = area {
                match colour {
                    Some(colour) => area.draw(&Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour.filled())),
                    None => area.draw(&PathElement::new([(x + 7, y - 8), (x + 7, y + 8)], BLACK.stroke_width(2))),
                }
                .map_err(drawing)?;
                text(area, name, (x + 20, y), 13, BLACK, HPos::Left)?;
            }
            x += width;
        }
        Ok(y + 18)
    }
}

/// About eight labels on an axis.
struct Ticks;

impl KeyPointHint for Ticks {
    fn max_num_points(&self) -> usize {
        8
    }

    fn weight(&self) -> plotters::coord::ranged1d::KeyPointWeight {
        plotters::coord::ranged1d::KeyPointWeight::Bold
    }
}

/// The names of lines and points, one below the other.
struct Legend<'a, 'b> {
    area: &'a Area<'b>,
    y: i32,
}

impl<'a, 'b> Legend<'a, 'b> {
    const STEP: i32 = 22;
    /// Kinds in a column.
    const MOST: usize = 5;

    fn new(area: &'a Area<'b>) -> Self {
        Self { area, y: 10 }
    }

    fn heading(&mut self, name: &str) -> Result<()> {
        self.y += 6;
        text(self.area, name, (0, self.y), 13, GREY, HPos::Left)?;
        self.y += Self::STEP;
        Ok(())
    }

    fn name(&mut self, name: &str) -> Result<()> {
        text(self.area, name, (34, self.y), 13, BLACK, HPos::Left)?;
        self.y += Self::STEP;
        Ok(())
    }

    fn line(&mut self, colour: RGBColor, name: &str) -> Result<()> {
        let line = [(0, self.y), (26, self.y)];
        self.area.draw(&PathElement::new(line, colour.stroke_width(2))).map_err(drawing)?;
        self.name(name)
    }

    fn point(&mut self, colour: RGBColor, name: &str) -> Result<()> {
        self.area.draw(&Circle::new((13, self.y), 5, colour.filled())).map_err(drawing)?;
        self.name(name)
    }

    fn cross(&mut self, name: &str) -> Result<()> {
        self.area.draw(&Cross::new((13, self.y), 6, WRONG.stroke_width(2))).map_err(drawing)?;
        self.name(name)
    }

    fn triangle(&mut self, name: &str) -> Result<()> {
        self.area.draw(&TriangleMarker::new((13, self.y), 7, GREY.filled())).map_err(drawing)?;
        self.name(name)
    }
}

/// A white sheet with the title above, and what was measured on what, when, below; gives what is between.
fn frame<'a>(root: &Area<'a>, title: &str, headline: &str, machine: &Machine) -> Result<Area<'a>> {
    root.fill(&WHITE).map_err(drawing)?;
    let height = root.dim_in_pixel().1 as i32;
    text(root, title, (16, 24), 20, BLACK, HPos::Left)?;
    text(root, headline, (16, height - 32), 12, GREY, HPos::Left)?;
    text(root, &machine.versions(), (16, height - 14), 12, GREY, HPos::Left)?;
    Ok(root.margin(44, 48, 0, 0))
}

/// Text whose middle is at the height `y`.
fn text(area: &Area<'_>, text: &str, at: (i32, i32), size: i32, colour: RGBColor, anchor: HPos) -> Result<()> {
    let style = (FONT, size).into_font().color(&colour).pos(Pos::new(anchor, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style)).map_err(drawing)
}

/// A drawing error borrows the backend's type; its text is kept.
fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing: {error}")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::session::Figures;
    use convoke::Isa;
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
            machine: Machine::new("f32", 1, &BTreeMap::from([(Isa::Portable, roof)])),
            comparisons: vec![series(1), series(2)],
            rejected: Vec::new(),
            failed: Vec::new(),
            summary: Vec::new(),
            interrupted: false,
            layers,
        }
    }

    #[test]
    fn layers_without_operations_are_left_out() {
        let some = all(&report(vec![layer("a", "dense", 5e4, 1e4), layer("b", "empty", 0.0, 0.0)])).unwrap();
        assert_eq!(some.len(), 3);
        for picture in &some {
            assert!(!picture.svg.contains("NaN"), "{}", picture.file);
            assert!(!picture.svg.contains("empty"), "{}", picture.file);
        }
        let none = all(&report(vec![layer("b", "empty", 0.0, 64.0)])).unwrap();
        assert_eq!(none.iter().map(|p| p.file).collect::<Vec<_>>(), ["roofline.svg"]);
    }

    #[test]
    fn pictures_say_on_how_many_threads() {
        let pictures = all(&report(vec![layer("a", "dense", 5e4, 1e4)])).unwrap();
        let threads = |picture: &Picture| {
            let texts = picture.svg.lines().filter_map(|line| line.trim().split_once(", f32, "));
            texts.map(|(_, threads)| threads.to_owned()).collect::<Vec<_>>()
        };
        let found: Vec<_> = pictures.iter().map(|picture| (picture.file, threads(picture))).collect();
        let one = vec!["1 thread".to_owned()];
        let expected =
            [("roofline.svg", one.clone()), ("networks.svg", one), ("threads.svg", vec!["1 to 2 threads".to_owned()])];
        assert_eq!(found, expected);
    }

    #[test]
    fn wrong_results_are_marked() {
        let mut wrong = layer("b", "dense", 4e4, 1e4);
        let roofline = |layers| all(&report(layers)).unwrap().swap_remove(0).svg;
        assert!(!roofline(vec![wrong.clone()]).contains("wrong result"));
        wrong.figures.within_bound = false;
        assert!(roofline(vec![layer("a", "dense", 5e4, 1e4), wrong]).contains("wrong result"));
    }

    #[test]
    fn ranges_ignore_what_logarithms_have_no_place_for() {
        assert_eq!(range([0.0, 3.0, f64::NAN, 6.0, -1.0].into_iter()), (2.0, 9.0));
    }
}
