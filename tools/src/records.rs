//! What `report` measures. The command fills it in, and the page and the pictures show it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::machine::Machine;
use crate::output::text::{Column, percent};
use crate::session::{Failure, Figures, partial};

/// All figures of one report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The machine and the setting of the figures.
    pub(crate) machine: Machine,
    pub(crate) layers: Vec<Record>,
    /// Layers that the forced algorithm does not accept.
    pub(crate) rejected: Vec<String>,
    /// Layers that were not run.
    pub(crate) failed: Vec<Failure>,
    pub(crate) summary: Vec<Summary>,
    /// The same layers with other instruction sets and numbers of threads.
    pub(crate) comparisons: Vec<Series>,
    /// Number of layers that were asked for.
    pub(crate) asked: usize,
    /// Whether the command ended before the last layer.
    pub(crate) interrupted: bool,
}

/// The figures of one layer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Record {
    pub(crate) name: String,
    /// The layer's [`network`](convoke_tools::shapes::Layer::network).
    pub(crate) network: String,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

/// The geometric mean of a kind of layers.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) kind: String,
    pub(crate) layers: usize,
    pub(crate) gflops: f64,
    pub(crate) share_of_peak: f64,
    pub(crate) share_of_limit: f64,
}

/// GFLOP/s of all layers, by name, with one instruction set and number of threads.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) isa: String,
    pub(crate) threads: usize,
    pub(crate) gflops: BTreeMap<String, f64>,
    /// Layers whose results were wrong, with the error as a multiple of its bound.
    pub(crate) wrong: BTreeMap<String, f64>,
}

impl Report {
    /// How many of the layers were measured; none if all were.
    pub(crate) fn partial(&self) -> Option<String> {
        partial(self.layers.len(), self.asked, "layers", self.interrupted, &self.failed)
    }

    /// The wrong results, those of the comparisons included, one in each line.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let own = self.layers.iter().filter(|r| !r.figures.within_bound).map(|r| r.figures.wrong(&r.name));
        // The last comparison is the report itself.
        let others = self.comparisons.split_last().map_or(&[][..], |(_, others)| others);
        let of_series = |s: &Series| {
            let how = format!("with {}, threads: {}", s.isa, s.threads);
            let line = move |(name, times): (&String, &f64)| format!("{name} {how}: error {times:.1} times its bound");
            s.wrong.iter().map(line).collect::<Vec<_>>()
        };
        own.chain(others.iter().flat_map(of_series)).collect()
    }
}

impl Summary {
    /// The heads of [`cells`](Self::cells).
    pub(crate) const HEADS: [&str; 5] = ["kind", "layers", "GFLOP/s", "FMA", "of limit"];

    /// The columns of [`cells`](Self::cells). All of them fit any terminal.
    pub(crate) fn columns() -> Vec<Column> {
        let [kind, numbers @ ..] = Self::HEADS;
        std::iter::once(Column::text(kind, 0)).chain(numbers.map(|head| Column::number(head, 0))).collect()
    }

    /// The means as cells of a table.
    pub(crate) fn cells(&self) -> [String; 5] {
        [
            self.kind.clone(),
            self.layers.to_string(),
            format!("{:.1}", self.gflops),
            percent(self.share_of_peak),
            percent(self.share_of_limit),
        ]
    }
}

impl Series {
    /// A series without figures.
    pub(crate) fn new(isa: String, threads: usize) -> Self {
        Self { isa, threads, gflops: BTreeMap::new(), wrong: BTreeMap::new() }
    }

    /// Adds the figures of a layer.
    pub(crate) fn add(&mut self, layer: &str, figures: &Figures) {
        self.gflops.insert(layer.to_owned(), figures.gflops);
        if !figures.within_bound {
            self.wrong.insert(layer.to_owned(), figures.error_of_bound);
        }
    }
}
