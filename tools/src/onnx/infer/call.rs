//! A node that is to be inferred, and how its rules read it.

use std::fmt;

use super::fact::{Fact, Known, MOST_AXES, Numbers, Unknown};
use crate::onnx::is_onnx_domain;
use crate::onnx::proto::{AttributeProto, NodeProto};

/// A node with what is known about its inputs.
pub(in crate::onnx) struct Call<'a> {
    pub(in crate::onnx) node: &'a NodeProto,
    pub(in crate::onnx) opset: i64,
    /// None for an optional input that is absent.
    pub(in crate::onnx) inputs: Vec<Option<Known<&'a Fact>>>,
}

impl Call<'_> {
    /// The node's name, or the name of its first output if it has none.
    pub(in crate::onnx) fn name(&self) -> &str {
        let NodeProto { name, output, .. } = self.node;
        if name.is_empty() { output.first().map_or("", String::as_str) } else { name }
    }

    /// The operator, with its domain if that is not ONNX's.
    pub(in crate::onnx) fn operator(&self) -> String {
        let NodeProto { domain, op_type, .. } = self.node;
        if is_onnx_domain(domain) { op_type.clone() } else { format!("{domain}.{op_type}") }
    }

    /// The node has no valid output, because of this rule.
    pub(in crate::onnx) fn error(&self, rule: impl fmt::Display) -> Unknown {
        Unknown::new(&format!("node {:?} ({}): {rule}", self.name(), self.operator()))
    }

    /// The outputs cannot be inferred, but the model may state them.
    pub(in crate::onnx) fn open(&self, reason: impl fmt::Display) -> Unknown {
        self.error(format_args!("{reason}; the model's value_info can give the shapes of {:?}", self.node.output))
    }

    /// An input that the operator needs.
    pub(super) fn input(&self, index: usize) -> Known<&Fact> {
        self.optional(index)?.ok_or_else(|| self.error(format_args!("it has no input {index}")))
    }

    /// An input that may be absent.
    pub(super) fn optional(&self, index: usize) -> Known<Option<&Fact>> {
        match self.inputs.get(index) {
            Some(Some(input)) => input.clone().map(Some),
            _ => Ok(None),
        }
    }

    /// The first input as a condition, if its value is known.
    pub(in crate::onnx) fn condition(&self) -> Option<bool> {
        match self.input(0).ok()?.numbers.as_ref()? {
            Numbers::Ints(list) => list.first().map(|&value| value != 0),
            Numbers::Floats(_) => None,
        }
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.node.attribute.iter().find(|attribute| attribute.name == name)
    }

    pub(super) fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |attribute| attribute.i)
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.attribute(name).and_then(|attribute| std::str::from_utf8(&attribute.s).ok()).unwrap_or_default()
    }

    /// A list of an attribute with one number an axis; `default` for each if it is absent.
    pub(super) fn per_axis(&self, name: &str, count: usize, default: i64) -> Known<Vec<i64>> {
        match self.attribute(name) {
            Some(list) if list.ints.len() == count => Ok(list.ints.clone()),
            Some(list) => Err(self.error(format_args!("{name} has {} numbers, must have {count}", list.ints.len()))),
            None => Ok(vec![default; count]),
        }
    }

    /// A list that is an attribute in older operator sets and an input in newer ones.
    pub(super) fn list(&self, attribute: &str, input: usize) -> Known<Option<Vec<i64>>> {
        if let Some(list) = self.attribute(attribute) {
            return Ok(Some(list.ints.clone()));
        }
        let Some(fact) = self.optional(input)? else { return Ok(None) };
        match &fact.numbers {
            Some(Numbers::Ints(list)) => Ok(Some(list.clone())),
            _ => Err(self.unknown_elements(input)),
        }
    }

    /// The same for a list that must be there.
    pub(super) fn needed_list(&self, attribute: &str, input: usize) -> Known<Vec<i64>> {
        self.list(attribute, input)?.ok_or_else(|| self.error(format_args!("it has no {attribute}")))
    }

    pub(super) fn unknown_elements(&self, input: usize) -> Unknown {
        let name = self.node.input.get(input).map_or("", String::as_str);
        self.open(format_args!("its output's shape depends on elements of {name:?} that these tools do not know"))
    }

    /// The number of an axis. Negative ones count from the end.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Known<usize> {
        let from_start = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
        let index = from_start.and_then(|axis| usize::try_from(axis).ok()).filter(|&axis| axis < rank);
        index.ok_or_else(|| self.error(format_args!("axis {axis} of a value with {rank} axes")))
    }

    /// The numbers of several axes, or of all axes if no list is given.
    pub(super) fn axes(&self, axes: Option<Vec<i64>>, rank: usize) -> Known<Vec<usize>> {
        match axes {
            Some(axes) => axes.into_iter().map(|axis| self.axis(axis, rank)).collect(),
            None => Ok((0..rank).collect()),
        }
    }

    /// A fact of a shape that was computed; None stands for an overflow.
    pub(super) fn fact(&self, data_type: i32, dims: impl IntoIterator<Item = Option<i64>>) -> Known {
        let dims: Option<Vec<i64>> = dims.into_iter().take(MOST_AXES + 1).collect();
        let dims = dims.ok_or_else(|| self.error("a size of its output is out of range"))?;
        Fact::new(data_type, dims).map_err(|rule| self.error(format_args!("its output {rule}")))
    }

    /// The shape that two values have together.
    pub(super) fn broadcast(&self, a: &[i64], b: &[i64]) -> Known<Vec<i64>> {
        let rank = a.len().max(b.len());
        let size = |dims: &[i64], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |axis| dims[axis]);
        let together = |axis| match (size(a, axis), size(b, axis)) {
            (a, b) if a == b || b == 1 => Ok(a),
            (1, b) => Ok(b),
            _ => Err(self.error(format_args!("shapes {a:?} and {b:?} do not go together"))),
        };
        (0..rank).map(together).collect()
    }
}
