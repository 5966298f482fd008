//! Sizes and distances of which products overflow, and counts that no slice bounds. A call refuses
//! them by a message of its own, or has no use for them. It neither overflows nor runs for years.
//! The kernels of all ISAs share these checks and the generic code behind them, so that most calls
//! are those of the portable tier.

use std::panic::{AssertUnwindSafe, catch_unwind};

use convoke_kernels::interleave::{Deinterleave, OutputRun, PhaseCopy, PhaseRows, SourceRow, Sum};
use convoke_kernels::winograd::{Spare, Tile};
use convoke_kernels::{
    Column, DepthwiseInput, DepthwiseKernel, DepthwiseKernels, DepthwiseOutput, Dest, Epilogue, FlatInput, FlatTaps,
    InterleaveKernel, Isa, Prefetch, Residual, RowOffsets, StoreMap, TapTable, depthwise_kernels, grouped_kernels,
    interleave_kernels, stream,
};

const HUGE: usize = usize::MAX;

/// The message by which a call is refused; `None` if it is not.
fn refusal(call: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(call)).err()?;
    let message = panic.downcast_ref::<&str>().map(|message| (*message).to_owned());
    Some(message.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a panic has a message"))
}

/// Checks that a call is refused by a message.
fn refused(message: &str, call: impl FnOnce()) {
    let said = refusal(call).expect(message);
    assert!(said.contains(message), "{said} instead of {message}");
}

fn epilogue(bias: &[f32]) -> Epilogue<'_, f32> {
    Epilogue { bias, residual: Residual::NONE, lo: f32::NEG_INFINITY, hi: f32::INFINITY }
}

fn depthwise_family() -> &'static DepthwiseKernels<f32> {
    depthwise_kernels(Isa::Portable).unwrap()
}

fn interleave_kernel() -> &'static InterleaveKernel<f32> {
    &interleave_kernels(Isa::Portable)[0]
}

/// Calls a kernel for planes of ones with these distances.
fn depthwise(
    kernel: &DepthwiseKernel<f32>,
    taps: &TapTable,
    [x_plane, x_vector, tiles]: [usize; 3],
    output: DepthwiseOutput,
    y: &mut [f32],
) {
    let (x, w) = (vec![1.0; 99], vec![1.0; 99]);
    let input = DepthwiseInput {
        taps,
        groups: 0..taps.groups(),
        w: &w,
        w_plane: 0,
        x: &x,
        x_plane,
        x_vector,
        planes: 2,
        tiles,
    };
    kernel.run(&input, &mut Dest::from_slice(y), &output, &epilogue(&[3.0, 4.0]));
}

#[test]
fn depthwise_distances_mean_nothing_without_taps() {
    let family = depthwise_family();
    for kernel in family.rows().iter().chain(family.channels()) {
        for taps in [TapTable::new(&[], HUGE), TapTable::new(&[(1, Vec::new())], HUGE)] {
            let (rows, width) = (2 * kernel.mr(), kernel.lanes() + 1);
            let output = DepthwiseOutput { width, row: width, plane: rows * width };
            let mut y = vec![0.0; 2 * rows * width];
            depthwise(kernel, &taps, [HUGE, HUGE, 2], output, &mut y);
            let (first, second) = y.split_at(rows * width);
            assert!(first.iter().all(|y| *y == 3.0) && second.iter().all(|y| *y == 4.0), "{kernel:?}");
        }
    }
}

#[test]
fn depthwise_distances_beyond_the_address_space_are_refused() {
    let kernel = &depthwise_family().rows()[1];
    let taps = TapTable::new(&[(3, vec![0, 1])], 10);
    let output = DepthwiseOutput { width: 9, row: 9, plane: 99 };
    refused("the input is too short", || depthwise(kernel, &taps, [HUGE, 4, 1], output, &mut [0.0; 999]));
    refused("the input is too short", || depthwise(kernel, &taps, [0, HUGE, 1], output, &mut [0.0; 999]));
    let far = DepthwiseOutput { plane: HUGE, ..output };
    refused("the destination is too short", || depthwise(kernel, &taps, [0, 4, 1], far, &mut [0.0; 999]));
    let far = DepthwiseOutput { row: HUGE, ..output };
    refused("the destination is too short", || depthwise(kernel, &taps, [0, 4, 1], far, &mut [0.0; 999]));
    refused("rows are within the address space", || depthwise(kernel, &taps, [0, 4, HUGE], output, &mut [0.0; 999]));
    refused("taps are within the address space", || _ = TapTable::new(&[(3, vec![0])], HUGE));
}

/// Without taps no input bounds the number of tiles.
#[test]
fn depthwise_tiles_over_one_another_are_refused() {
    let kernel = &depthwise_family().rows()[1];
    let (taps, tiles) = (TapTable::new(&[], 0), HUGE / kernel.mr());
    let output = DepthwiseOutput { width: 9, row: 0, plane: 99 };
    refused("rows of the output begin at one element", || {
        depthwise(kernel, &taps, [0, 0, tiles], output, &mut [0.0; 999]);
    });
}

/// Behind the last row, no row is as far away as the distance of rows says.
#[test]
fn interleaving_one_row_has_no_use_for_a_distance_of_rows() {
    for kernel in Isa::ALL.into_iter().filter(|isa| isa.is_available()).flat_map(interleave_kernels::<f32>) {
        for phases in [1, 2, 3, 4, 8] {
            let slots = vec![0; phases];
            let phase_rows = PhaseRows { sums: &[2.0; 9], slots: &slots, step: HUGE, pitch: HUGE };
            let runs = [OutputRun { from: 0, phase: 0, at: 7, len: 5 }, OutputRun { from: 3, phase: 0, at: 2, len: 1 }];
            let mut y = [0.0; 12];
            kernel.run(&phase_rows, &runs, &epilogue(&[1.0]), &mut Dest::from_slice(&mut y), HUGE);
            kernel.prefetch(&runs, 1, &Dest::from_slice(&mut y), HUGE);
            assert_eq!(y, [0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 3.0, 3.0], "{kernel:?}, {phases} phases");
        }
    }
}

#[test]
fn interleaving_runs_of_huge_sizes_is_refused() {
    let interleave = |run: OutputRun, ldy: usize, rows: usize| {
        let phase_rows = PhaseRows { sums: &[2.0; 9], slots: &[0, 0], step: 0, pitch: 0 };
        let y = &mut [0.0; 99];
        interleave_kernel().run(&phase_rows, &[run], &epilogue(&vec![0.0; rows]), &mut Dest::from_slice(y), ldy);
    };
    let run = OutputRun { from: 1, phase: 1, at: 3, len: 4 };
    interleave(run, 9, 3);
    refused("the phase rows are too short", || interleave(OutputRun { from: HUGE, ..run }, 9, 3));
    refused("the phase rows are too short", || interleave(OutputRun { len: HUGE, ..run }, 9, 3));
    refused("a run begins with a phase", || interleave(OutputRun { phase: HUGE, ..run }, 9, 3));
    refused("the destination is too short", || interleave(OutputRun { at: HUGE, ..run }, 9, 3));
    refused("the destination is too short", || interleave(run, HUGE, 3));
}

/// Nothing is accessed by a prefetch, so that only the destination bounds the work.
#[test]
fn prefetching_more_than_the_destination_is_refused() {
    let y = &mut [0.0; 99];
    let mut prefetch = |run: OutputRun, rows: usize, ldy: usize| {
        interleave_kernel().prefetch(&[run], rows, &Dest::from_slice(y), ldy);
    };
    let run = OutputRun { from: 0, phase: 0, at: 9, len: 10 };
    prefetch(run, 9, 10);
    // Rows at one place.
    prefetch(run, HUGE, 0);
    refused("the destination is too short", || prefetch(OutputRun { len: HUGE, ..run }, 9, 10));
    refused("the destination is too short", || prefetch(OutputRun { at: HUGE, ..run }, 9, 10));
    refused("the destination is too short", || prefetch(run, HUGE, 1));
    refused("the destination is too short", || prefetch(run, 10, 10));
    refused("the destination is too short", || prefetch(run, 2, HUGE));
}

#[test]
fn sums_of_runs_of_huge_sizes_are_refused() {
    let none = RowOffsets::new(Vec::new());
    let sum = |run: OutputRun| {
        let sums = [Sum { w: &[], koff: none.rows(0..0) }];
        interleave_kernel().sum(&[], &sums, &[run], &epilogue(&[1.0]), &mut Dest::from_slice(&mut [0.0; 99]));
    };
    let run = OutputRun { from: 1, phase: 0, at: 3, len: 40 };
    sum(run);
    refused("a run begins beyond the address space", || sum(OutputRun { from: HUGE, ..run }));
    refused("a run begins beyond the address space", || sum(OutputRun { from: HUGE - 30, ..run }));
    refused("the destination is too short", || sum(OutputRun { at: HUGE, ..run }));
}

/// Calls `deinterleave` for rows of three elements, of which some are padding.
fn deinterleave(src: Option<usize>, change: impl FnOnce(&mut Deinterleave<'_>)) {
    let rows = [SourceRow { src, dst: 0 }];
    let phases = [PhaseCopy { offset: 0, dst: 0 }];
    let mut copy = Deinterleave {
        planes: 2,
        src_pitch: 3,
        dst_pitch: 4,
        rows: &rows,
        width: 3,
        first: -1,
        stride: 9,
        phases: &phases,
        len: 1,
        prefetch_distance: 0,
    };
    change(&mut copy);
    interleave_kernel().deinterleave(&[1.0; 2003], &copy, &mut [0.0; 99]);
}

#[test]
fn deinterleaves_of_huge_sizes_are_refused() {
    for stride in [2, 9, 200] {
        let base = |copy: &mut Deinterleave<'_>| copy.stride = stride;
        deinterleave(Some(0), base);
        refused("the rows are too long", || {
            deinterleave(Some(0), |copy| (copy.first, copy.width, copy.stride) = (isize::MIN + 1024, 2000, stride));
        });
        refused("the rows are too long", || {
            deinterleave(None, |copy| (copy.first, copy.width, copy.stride) = (9, 1 << (usize::BITS - 1), stride));
        });
        // Rows without elements are read nowhere.
        deinterleave(Some(0), |copy| (copy.src_pitch, copy.width, copy.stride) = (HUGE, 0, stride));
    }
    // The element behind the last one would be beyond the address space.
    let stride = isize::MAX as usize - 2000;
    deinterleave(Some(0), |copy| {
        (copy.stride, copy.phases) = (stride, &[PhaseCopy { offset: isize::MAX as usize - 2001, dst: 0 }]);
    });
    refused("the rows are too long", || deinterleave(Some(0), |copy| (copy.stride, copy.len) = (stride, 2)));
}

/// Where planes begin at one element, no slice bounds their number.
#[test]
fn deinterleaves_of_planes_over_one_another_are_refused() {
    let one = |copy: &mut Deinterleave<'_>| (copy.planes, copy.src_pitch, copy.dst_pitch) = (HUGE, 0, 0);
    refused("the planes of the destination are one", || deinterleave(Some(0), one));
}

#[test]
fn tables_of_grouped_taps_take_any_size() {
    let table = |channels: usize, pitch: usize, rows: &[(usize, isize)], columns: &[(usize, isize)]| {
        FlatTaps::new(8, (channels, pitch), (2, 2), 2, rows, columns)
    };
    // Without taps the number of channels means nothing.
    for (rows, columns) in [(&[][..], &[(0, 0)][..]), (&[(0, 0), (0, 1)], &[]), (&[], &[(0, isize::MAX)])] {
        assert_eq!(table(HUGE, 0, rows, columns).map(|taps| taps.steps()), Some(0));
    }
    assert!(table(1 << 25, 4, &[(0, 0)], &[(0, 0)]).is_none(), "too many taps");
    // Row and column cancel, though neither is near the plane.
    let far = isize::MAX - 1;
    assert!(table(1, 4, &[(0, -far / 2)], &[(0, far + 1)]).is_some());
    let taps = table(1, 4, &[(0, -1)], &[(0, 1)]).unwrap();
    for huge in [HUGE, HUGE / 2, HUGE / 2 + 1] {
        assert_eq!(taps.window(0, huge), 0..4);
        assert_eq!(taps.window(huge, huge), 4..4);
    }
}

#[test]
fn grouped_kernels_prefetch_from_anywhere() {
    let kernel = &grouped_kernels::<f32>(Isa::Portable)[0];
    let (height, width) = (2, 2 * kernel.nr());
    let at = [(0, -1), (0, 0)];
    let taps = FlatTaps::new(kernel.lanes(), (1, height * width), (height, width), height, &at, &at).unwrap();
    let (x, w) = (vec![1.0; height * width], vec![1.0; taps.steps() * kernel.mr()]);
    let vectors = taps.outputs().div_ceil(kernel.lanes());
    let mut y = vec![0.0; kernel.mr() * taps.outputs()];
    let bias = vec![0.0; kernel.mr()];
    for ld in [HUGE, HUGE / 4, HUGE / 8] {
        let prefetch = Prefetch::rows(&x, ld);
        let input = FlatInput { taps: &taps, w: &w, x: &x, prefetch, first: 0, vectors };
        kernel.run(&input, &mut Dest::from_slice(&mut y), taps.outputs(), &epilogue(&bias));
        assert_eq!(y[..2], [1.0, 2.0]);
    }
}

#[test]
fn tables_of_rows_and_columns_of_huge_sizes_are_refused() {
    refused("smaller than 2^32 elements", || _ = RowOffsets::packed(3, HUGE / 2 + 2));
    refused("more than a mask has bits", || _ = StoreMap::contiguous(9, 64));
    refused("more than a mask has bits", || _ = StoreMap::contiguous(9, 0));
    refused("more than a mask has bits", || _ = StoreMap::new(vec![Column { offset: 0, mask: 0 }], 64));
    refused("fits the address space", || _ = StoreMap::new(vec![Column { offset: HUGE, mask: 1 }], 8));
    // An entry without lanes is nowhere.
    let none = Column { offset: HUGE, mask: 0 };
    assert_eq!(StoreMap::new(vec![none, none], 8).columns(), [none, none]);
}

#[test]
fn rows_of_phases_that_are_far_apart_are_refused() {
    refused("index out of bounds", || {
        stream::interleave(Isa::Portable, &[1.0; 4], (3, HUGE / 2 + 1), 0, &mut [0.0; 4]);
    });
}

#[test]
fn tiles_that_are_no_transforms_are_refused() {
    let tile = |values: usize, outputs: usize| Tile { values, outputs };
    refused("more than values", || _ = tile(HUGE, 0).taps());
    refused("more than values", || _ = tile(4, 6).taps());
    assert_eq!((tile(HUGE, HUGE).taps(), tile(HUGE, 1).taps()), (1, HUGE));
    refused("some output is wanted", || _ = Spare::new(tile(4, HUGE), 9));
    refused("the points are 0, pairs and infinity", || _ = Spare::new(tile(HUGE, HUGE), 9));
    refused("the points are 0, pairs and infinity", || _ = Spare::new(tile(7, 4), 1));
}
