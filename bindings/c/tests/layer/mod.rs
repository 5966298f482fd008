//! A layer through the C interface, for tests and the bench.

use std::mem::zeroed;
use std::ptr::{null, null_mut};

use convoke_capi::*;

/// Memory at a multiple of 64 bytes.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "memory of the library")] [u8; 64]);

/// A Conv of 3x3 with padding 1, on square images of float, without a bias.
pub(crate) struct Layer {
    operator: *mut Operator,
    pub(crate) plan: *mut Plan,
    packed: *mut Packed,
    memory: Vec<Line>,
    workspace: Vec<Line>,
    pub(crate) x: Vec<f32>,
    pub(crate) y: Vec<f32>,
}

impl Layer {
    pub(crate) fn new(channels: usize, size: usize, threads: usize) -> Self {
        let (w_dims, x_dims) =
            ([channels as i64, channels as i64, 3, 3], [1, channels as i64, size as i64, size as i64]);
        let pads = [1; 4];
        let (mut operator, mut plan, mut packed) = (null_mut(), null_mut(), null_mut());
        // SAFETY: all bytes zero are values of these structs.
        let (mut options, mut info, mut args) =
            unsafe { (zeroed::<PlanOptions>(), zeroed::<PlanInfo>(), zeroed::<PackArgs>()) };
        options.struct_size = size_of::<PlanOptions>();
        options.threads = threads;
        info.struct_size = size_of::<PlanInfo>();
        args.struct_size = size_of::<PackArgs>();
        let w = vec![0.25_f32; channels * channels * 9];
        // SAFETY: all pointers are to values of the right types, and live as long as they are used.
        let (memory, workspace) = unsafe {
            ok(convoke_operator_create(c"Conv".as_ptr(), 22, w_dims.as_ptr(), 4, &mut operator, null_mut()));
            ok(convoke_operator_set_ints(operator, c"pads".as_ptr(), pads.as_ptr(), 4, null_mut()));
            ok(convoke_plan_create(operator, &options, DType::Float as u32, x_dims.as_ptr(), 4, &mut plan, null_mut()));
            ok(convoke_plan_get_info(plan, &mut info, null_mut()));
            let mut memory = vec![Line([0; 64]); info.packed_bytes / 64];
            (args.w, args.w_len) = (w.as_ptr().cast(), w.len());
            (args.memory, args.memory_bytes) = (memory.as_mut_ptr().cast(), info.packed_bytes);
            ok(convoke_plan_pack(plan, &args, &mut packed, null_mut()));
            (memory, vec![Line([0; 64]); info.workspace_bytes / 64])
        };
        Self { operator, plan, packed, memory, workspace, x: vec![0.5; info.x_len], y: vec![0.0; info.y_len] }
    }

    /// The arguments of a run, which live as long as the layer.
    pub(crate) fn args(&mut self, executor: Option<&Executor>) -> RunArgs {
        // SAFETY: all bytes zero are a value of the struct.
        let mut args = unsafe { zeroed::<RunArgs>() };
        args.struct_size = size_of::<RunArgs>();
        (args.x, args.x_len, args.packed) = (self.x.as_ptr().cast(), self.x.len(), self.packed);
        (args.y, args.y_len) = (self.y.as_mut_ptr().cast(), self.y.len());
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
