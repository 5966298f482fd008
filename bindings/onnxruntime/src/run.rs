//! A run of a compiled node: its inputs, its output, and onnxruntime's threads.

use std::mem::MaybeUninit;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Mutex;

use convoke::Executor;
use ort_sys::OrtKernelContext;

use crate::api::{Api, Failure, Result, lock};
use crate::graph::Tensor;
use crate::pointers::{optional, required};
use crate::pool::Pool;

/// Fewer elements of one pass are one thread's: waking another one takes longer.
const LEAST_OF_THREAD: usize = 32 << 10;

/// A run of a node.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    api: Api,
    context: NonNull<OrtKernelContext>,
}

impl Run {
    /// # Safety
    /// The context must be that of a run, which outlives the value and all that its methods return.
    pub(crate) unsafe fn new(api: Api, context: NonNull<OrtKernelContext>) -> Self {
        Self { api, context }
    }

    /// onnxruntime's pool, for work that is split for `width` threads.
    pub(crate) fn pool(self, width: usize) -> Pool {
        // SAFETY: the run outlives the pool.
        unsafe { Pool::new(self.api, self.context, width) }
    }

    /// Shares out the elements of an output among at most `threads` threads of the pool, in runs of whole
    /// units of `unit` elements. `compute` gets where a run begins, and its elements.
    pub(crate) fn share<T: Send>(
        self,
        threads: usize,
        unit: usize,
        y: &mut [T],
        compute: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let units = y.len() / unit.max(1);
        let threads = threads.min(y.len() / LEAST_OF_THREAD).min(units);
        if threads < 2 {
            return compute(0, y);
        }
        let share = units.div_ceil(threads) * unit;
        let shares: Vec<_> = y.chunks_mut(share).map(Mutex::new).collect();
        self.pool(threads).for_each(shares.len(), &|i| compute(i * share, &mut lock(&shares[i])));
    }

    pub(crate) fn input<'r>(self, index: usize) -> Result<Tensor<'r>> {
        let mut value = null();
        // SAFETY: the run lives.
        let status = unsafe { (self.api.ort.KernelContext_GetInput)(self.context.as_ptr(), index, &mut value) };
        self.api.check(status)?;
        // SAFETY: inputs live for the run, and nobody writes to them meanwhile.
        unsafe { Tensor::new(self.api, required(value, "input")?) }
    }

    /// Makes the output of a shape, and has `compute` write all of it. If the caller of the run has
    /// bound the output to memory of one of the `inputs`, `compute` gets other memory. If nobody reads
    /// the output, there is none, and nothing to compute.
    ///
    /// # Safety
    /// The output's elements are of type `T`, says onnxruntime's type inference. `compute` reads no
    /// tensors but `inputs`.
    pub(crate) unsafe fn write<T: Copy>(
        self,
        shape: &[usize],
        inputs: &[&[T]],
        compute: impl FnOnce(&mut [MaybeUninit<T>]) -> Result<()>,
    ) -> Result<()> {
        let len = shape.iter().try_fold(1_usize, |len, size| len.checked_mul(*size));
        let len = len.ok_or_else(|| Failure::other(format_args!("an output of shape {shape:?} exceeds the memory")))?;
        let Some(mut y) = self.output::<T>(0, shape, len)? else { return Ok(()) };
        if !inputs.iter().any(|input| overlaps(y, input)) {
            // SAFETY: onnxruntime gave room for so many elements of that type. `compute` reads none of
            // them.
            return compute(unsafe { y.as_mut() });
        }
        let mut own = buffer(len)?;
        let own = &mut own.spare_capacity_mut()[..len];
        compute(own)?;
        // SAFETY: as above. Inputs in that memory are not read any more.
        unsafe { y.as_mut() }.copy_from_slice(own);
        Ok(())
    }

    /// Makes an output and returns its elements. They are `len`, which is the shape's, and live for
    /// the run. `None` if nobody reads it.
    pub(crate) fn output<T>(
        self,
        index: usize,
        shape: &[usize],
        len: usize,
    ) -> Result<Option<NonNull<[MaybeUninit<T>]>>> {
        let (mut value, mut data) = (null_mut(), null_mut());
        let dim =
            |size: &usize| i64::try_from(*size).map_err(|_| Failure::other("an output with a dimension of 64 bits"));
        let dims = shape.iter().map(dim).collect::<Result<Vec<_>>>()?;
        // SAFETY: the run lives, and onnxruntime copies the dimensions.
        let status = unsafe {
            let context = self.context.as_ptr();
            (self.api.ort.KernelContext_GetOutput)(context, index, dims.as_ptr(), dims.len(), &mut value)
        };
        self.api.check(status)?;
        let Some(value) = optional(value.cast_const()) else { return Ok(None) };
        if len == 0 {
            return Ok(Some((&mut [][..]).into()));
        }
        // SAFETY: the output is the run's.
        self.api.check(unsafe { (self.api.ort.GetTensorMutableData)(value.as_ptr(), &mut data) })?;
        let data = required(data.cast_const().cast::<MaybeUninit<T>>(), "data of an output")?;
        if !data.is_aligned() {
            return Err(Failure::invalid(format_args!("an output that is not aligned to {} bytes", align_of::<T>())));
        }
        Ok(Some(NonNull::slice_from_raw_parts(data, len)))
    }
}

/// Memory for `len` elements.
pub(crate) fn buffer<T>(len: usize) -> Result<Vec<T>> {
    let mut own = Vec::new();
    own.try_reserve_exact(len)
        .map_err(|error| Failure::other(format_args!("no memory for {len} elements of an output: {error}")))?;
    Ok(own)
}

/// Whether an output has memory of an input.
pub(crate) fn overlaps<T>(y: NonNull<[MaybeUninit<T>]>, input: &[T]) -> bool {
    let (y_start, input) = (y.cast::<T>().as_ptr().cast_const(), input.as_ptr_range());
    let y_end = y_start.wrapping_add(y.len());
    y_start < input.end && input.start < y_end
}
