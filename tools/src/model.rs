//! The model that a command is about.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use convoke_tools::files;
use convoke_tools::onnx::graph::Graph;

use crate::commands::warn;

/// A model, and what it does not say about its sizes.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// The model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    #[command(flatten)]
    sizes: Sizes,
}

/// The sizes that a model leaves open.
#[derive(Debug, clap::Args)]
pub(crate) struct Sizes {
    /// Size that the model leaves open, by its name or by input and axis: batch=1, x.0=1
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = parse_dim)]
    dims: Vec<(String, i64)>,
}

fn parse_dim(text: &str) -> Result<(String, i64)> {
    let (name, size) = text.rsplit_once('=').context("expected NAME=SIZE")?;
    let size = size.parse().ok().filter(|&size| size >= 0).context("expected NAME=SIZE with a size of 0 or more")?;
    Ok((name.to_owned(), size))
}

impl ModelArgs {
    /// Reads the model.
    pub(crate) fn graph(&self) -> Result<Graph> {
        self.sizes.graph_of(&self.model)
    }
}

impl Sizes {
    /// Reads a model. Warnings name the first value whose shape the model states wrongly, and
    /// convolutions of other kinds.
    pub(crate) fn graph_of(&self, model: &Path) -> Result<Graph> {
        let sizes: BTreeMap<_, _> = self.dims.iter().cloned().collect();
        ensure!(sizes.len() == self.dims.len(), "--dim names a dimension twice");
        let bytes = files::read(model, files::MODEL)?;
        let graph = Graph::decode(&bytes, sizes).with_context(|| model.display().to_string())?;
        if let [first, rest @ ..] = graph.conflicts() {
            let more = if rest.is_empty() { String::new() } else { format!(", and {} more", rest.len()) };
            warn(&format!("the model states wrong shapes: {first}{more}; what the nodes give is taken"));
        }
        for (operator, count) in graph.others() {
            warn(&format!("not covered: {count} {operator}"));
        }
        Ok(graph)
    }
}

/// The path.
impl fmt::Display for ModelArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.model.display().fmt(f)
    }
}
