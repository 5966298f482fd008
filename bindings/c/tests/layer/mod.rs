//! A layer through the C interface, for tests and the bench.

use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr::{null, null_mut};

use convoke_capi::*;

/// Memory at a multiple of 64 bytes.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

/// Elements that all have the same bits, at a multiple of 64 bytes.
pub(crate) struct Elements(Vec<Line>);

impl Elements {
    pub(crate) fn new(len: usize, bits: &[u8]) -> Self {
        let per_line = 64 / bits.len();
        let mut line = [0; 64];
        line.chunks_exact_mut(bits.len()).for_each(|element| element.copy_from_slice(bits));
        Self(vec![Line(line); len.div_ceil(per_line)])
    }

    pub(crate) fn pointer(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }

    pub(crate) fn pointer_mut(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// The bits of the first one.
    #[allow(dead_code, reason = "the bench does not look at results")]
    pub(crate) fn first(&self, bytes: usize) -> &[u8] {
        &self.0[0].0[..bytes]
    }
}

/// The element type of a layer: its number, and the bits of 1/2 and 1/4.
#[derive(Clone, Copy)]
pub(crate) struct Type {
    pub(crate) dtype: DType,
    pub(crate) half: &'static [u8],
    pub(crate) quarter: &'static [u8],
}

pub(crate) const FLOAT: Type =
    Type { dtype: DType::Float, half: &0.5_f32.to_ne_bytes(), quarter: &0.25_f32.to_ne_bytes() };

/// A Conv of 3x3 with padding 1, on square images, without a bias. All elements of X are 1/2, and
/// those of W 1/4.
pub(crate) struct Layer {
    operator: *mut Operator,
    pub(crate) plan: *mut Plan,
    packed: *mut Packed,
    memory: Vec<Line>,
    workspace: Vec<Line>,
    pub(crate) info: PlanInfo,
    x: Elements,
    pub(crate) y: Elements,
}

impl Layer {
    /// With more than one image, these are computed one after the other.
    pub(crate) fn new(of: Type, images: usize, channels: usize, size: usize, threads: usize) -> Self {
        let [images, channels, size] = [images, channels, size].map(|size| size as i64);
        let (w_dims, x_dims) = ([channels, channels, 3, 3], [images, channels, size, size]);
        let pads = [1; 4];
        let (mut operator, mut plan, mut packed) = (null_mut(), null_mut(), null_mut());
        // SAFETY: all bytes zero are values of these structs.
        let (mut options, mut info, mut args) =
            unsafe { (zeroed::<PlanOptions>(), zeroed::<PlanInfo>(), zeroed::<PackArgs>()) };
        options.struct_size = size_of::<PlanOptions>();
        (options.threads, options.separate_images) = (threads, u32::from(images > 1));
        info.struct_size = size_of::<PlanInfo>();
        args.struct_size = size_of::<PackArgs>();
        // SAFETY: all pointers are to values of the right types, and live as long as they are used.
        let (memory, workspace) = unsafe {
            ok(convoke_operator_create(c"Conv".as_ptr(), 22, w_dims.as_ptr(), 4, &mut operator, null_mut()));
            ok(convoke_operator_set_ints(operator, c"pads".as_ptr(), pads.as_ptr(), 4, null_mut()));
            ok(convoke_plan_create(operator, &options, of.dtype as u32, x_dims.as_ptr(), 4, &mut plan, null_mut()));
            ok(convoke_plan_get_info(plan, &mut info, null_mut()));
            let (mut memory, w) = (vec![Line([0; 64]); info.packed_bytes / 64], Elements::new(info.w_len, of.quarter));
            (args.w, args.w_len) = (w.pointer(), info.w_len);
            (args.memory, args.memory_bytes) = (memory.as_mut_ptr().cast(), info.packed_bytes);
            ok(convoke_plan_pack(plan, &args, &mut packed, null_mut()));
            (memory, vec![Line([0; 64]); info.workspace_bytes / 64])
        };
        // With room for strides.
        let tensor = |len: usize| Elements::new(2 * len, of.half);
        Self { operator, plan, packed, memory, workspace, info, x: tensor(info.x_len), y: tensor(info.y_len) }
    }

    /// The arguments of a run, which live as long as the layer.
    pub(crate) fn args(&mut self, executor: Option<&Executor>) -> RunArgs {
        // SAFETY: all bytes zero are a value of the struct.
        let mut args = unsafe { zeroed::<RunArgs>() };
        args.struct_size = size_of::<RunArgs>();
        (args.x, args.x_len, args.packed) = (self.x.pointer(), self.info.x_len, self.packed);
        (args.y, args.y_len) = (self.y.pointer_mut(), self.info.y_len);
        args.workspace = self.workspace.as_mut_ptr().cast();
        args.workspace_bytes = size_of_val(self.workspace.as_slice());
        args.executor = executor.map_or(null(), std::ptr::from_ref);
        args
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        assert!(!self.memory.is_empty(), "the weights are in this memory");
        // SAFETY: they are the layer's, and are destroyed once.
        unsafe {
            convoke_packed_destroy(self.packed);
            convoke_plan_destroy(self.plan);
            convoke_operator_destroy(self.operator);
        }
    }
}

pub(crate) fn ok(status: Status) {
    assert_eq!(status, Status::Ok);
}
