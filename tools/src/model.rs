//! The model that a command is about.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use convoke_tools::onnx::graph::Graph;

/// A model, and what it does not say about its sizes.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// The model
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// Size of a dimension for which the model has only a name, such as batch=1
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = parse_dim)]
    dims: Vec<(String, i64)>,
}

fn parse_dim(text: &str) -> Result<(String, i64)> {
    let (name, size) = text.split_once('=').context("expected NAME=SIZE")?;
    let size = size.parse().ok().filter(|&size| size >= 0).context("expected NAME=SIZE with a size of 0 or more")?;
    Ok((name.to_owned(), size))
}

impl ModelArgs {
    /// Reads the model. Shapes that it lacks are inferred, if these tools can do that.
    pub(crate) fn graph(&self) -> Result<Graph> {
        self.read().with_context(|| self.to_string())
    }

    fn read(&self) -> Result<Graph> {
        let sizes: BTreeMap<_, _> = self.dims.iter().cloned().collect();
        ensure!(sizes.len() == self.dims.len(), "--dim names a dimension twice");
        #[cfg_attr(not(feature = "infer"), expect(unused_mut, reason = "shapes are only added by inference"))]
        let mut graph = Graph::decode(&fs::read(&self.model)?, sizes)?;
        #[cfg(feature = "infer")]
        if !graph.missing().is_empty()
            && let Err(error) = crate::infer::shapes(&self.model, &mut graph)
        {
            use crate::options::BAD;
            // Nodes with known shapes can be run without inference.
            anstream::eprintln!("{BAD}warning:{BAD:#} no shapes are inferred: {error:#}");
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
