//! Makes the explanation of a plan from what the plan keeps.

use alloc::format;
use alloc::string::String;

use super::Plan;
use super::explain::{Estimate, Explanation, Verdict};
use crate::element::Element;
use crate::units::Time;

impl<T: Element> Plan<T> {
    /// What [`explain`](Plan::explain) keeps.
    pub(super) fn explained(&self) -> Explanation {
        let (geometry, method) = (&self.at_once, self.method());
        let (picked, cost) = (method.algorithm, method.cost);
        let why = if method.is_measured { ", which was measured to be faster" } else { "" };
        let verdict = |Estimate { algorithm, cost: estimate }: &Estimate| {
            let reason = match estimate {
                Err(reason) => reason.clone(),
                Ok(_) if *algorithm == picked => String::new(),
                Ok(estimate) => format!("estimated at {}, the pick at {}{why}", Time(*estimate), Time(cost)),
            };
            Verdict { algorithm: *algorithm, cost: estimate.as_ref().ok().copied(), reason }
        };
        Explanation {
            layer: format!(
                "{} {}: X {:?}, W {:?}, group {}, Y {:?}",
                geometry.op,
                T::DTYPE,
                geometry.input_shape(),
                geometry.weight_shape(),
                geometry.group,
                geometry.output_shape()
            ),
            macs: geometry.macs(),
            taps: self.visible.as_ref().map(|(taps, _)| {
                format!(
                    "only the taps {:?} meet input: {} multiply-adds; all are packed beside them, for other inputs, by {}",
                    taps.ranges,
                    taps.geometry.macs(),
                    self.whole.algorithm
                )
            }),
            picked,
            cost,
            recipe: method.recipe.clone(),
            machine: self.machine.clone(),
            threads: self.threads,
            packed_bytes: self.packed_bytes(),
            verdicts: method.estimates.iter().map(verdict).collect(),
        }
    }
}
