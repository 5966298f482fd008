//! The loops of the definition: any operator, any geometry, no workspace.
//!
//! No GEMM. Accepts everything; bytes: none. Sums in f64, so that it is also the most accurate.

use alloc::boxed::Box;
use alloc::string::String;

use convoke_kernels::Real;

use crate::element::Element;
use crate::exec::region::{Patch, Split};
use crate::exec::{Ledger, Line};
use crate::lower::contract::{Answer, Build, Io, Lowering, Offer, Recipe, Request};
use crate::lower::layout::WeightLayout;
use crate::machine::Item;
use crate::{Geometry, reference};

pub(crate) fn offer<'a, T: Element>(request: &'a Request<'a, T>) -> Answer<'a, T> {
    let (geometry, machine) = (request.geometry, request.machine);
    let recipe = Recipe {
        kernel: "naive",
        details: String::from("loops of the definition, summed in f64"),
        layout: WeightLayout::AsGiven,
        packed_len: geometry.weight_len(),
        tasks: geometry.batch * geometry.out_channels,
        scratch: Ledger::default(),
        work: machine.work(Item::NaiveFmas, geometry.macs() as f64),
    };
    let build: Build<'a, T> =
        Box::new(move || Box::new(Naive { geometry: geometry.clone(), activation: request.activation.to_f64() }));
    Ok(Offer { recipe, build })
}

struct Naive {
    geometry: Geometry,
    activation: convoke_kernels::stream::Activation<f64>,
}

impl Split for Naive {
    fn tasks(&self) -> usize {
        self.geometry.batch * self.geometry.out_channels
    }

    fn patches(&self, task: usize, patch: &mut dyn FnMut(Patch)) {
        let (image, channel) = (task / self.geometry.out_channels, task % self.geometry.out_channels);
        let positions = self.geometry.output_spatial();
        patch(Patch::rows(image..image + 1, channel..channel + 1, 0..positions, positions));
    }
}

impl<T: Element> Lowering<T> for Naive {
    fn pack(&self, w: &[T], packed: &mut [T::Acc]) {
        for (packed, w) in packed.iter_mut().zip(w) {
            *packed = w.to_acc();
        }
    }

    /// One output channel of one image.
    fn run(&self, task: usize, io: &Io<'_, T>, _: &mut [Line]) {
        let spatial = self.geometry.output_spatial();
        let bias = io.bias[task % self.geometry.out_channels].to_f64();
        for index in task * spatial..(task + 1) * spatial {
            let sum = reference::sum(
                &self.geometry,
                index,
                bias,
                |at| io.x[at].to_acc().to_f64(),
                |at| io.weights[at].to_f64(),
            );
            let residual = io.residual.map_or(0.0, |r| r[index].to_acc().to_f64());
            io.y.write(index, T::round_from_f64(self.activation.apply(sum.value + residual)));
        }
    }
}
