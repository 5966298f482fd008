//! Packed weights that are saved and loaded.

#![cfg(feature = "save")]

use std::sync::Arc;

use crate::common::operands::bits;
use crate::common::{Combination, Context, Layer, Operands, isas, layer};
use crate::forged::{renamed, with_checksum};
use convoke::{Conv, ConvTranspose, ErrorKind, Isa, Machine, PackedWeights, Planner, Threads, bf16, f16};
use convoke_tools::data::Scalar;
use convoke_tools::named;

/// Layers of every layout, and one whose outer taps see only padding.
fn layers() -> [Layer; 7] {
    [
        layer(Conv::new([20, 6, 3, 3]).pads([1; 4]), [1, 6, 9, 9]),
        layer(Conv::new([20, 6, 3, 3]).dilations([4, 4]).pads([4; 4]), [1, 6, 3, 4]),
        layer(Conv::new([130, 6, 1, 1]), [1, 6, 7, 5]),
        layer(Conv::new([6, 1, 3, 3]).group(6).pads([1; 4]), [1, 6, 9, 9]),
        layer(Conv::new([8, 4, 3, 3]).group(2).pads([1; 4]), [1, 8, 9, 9]),
        layer(ConvTranspose::new([6, 20, 4, 4]).strides([2, 2]).pads([1; 4]), [1, 6, 7, 9]),
        layer(ConvTranspose::new([6, 1, 4, 4]).group(6).strides([2, 2]).pads([1; 4]), [1, 6, 7, 9]),
    ]
}

/// Bytes at a multiple of 64, as those of a mapped file.
struct Mapped {
    memory: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Mapped {
    fn new(bytes: &[u8], offset: usize) -> Self {
        let mut memory = vec![0; bytes.len() + 128];
        let begin = memory.as_ptr().align_offset(64) + offset;
        memory[begin..][..bytes.len()].copy_from_slice(bytes);
        Self { memory, begin, len: bytes.len() }
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.begin..][..self.len]
    }
}

impl AsMut<[u8]> for Mapped {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..][..self.len]
    }
}

/// Also of those that are packed into memory of the caller.
#[test]
fn saved_weights_of_every_algorithm_give_the_same_bits() {
    fn check<T: Scalar>() {
        for layer in layers() {
            let geometry = layer.geometry();
            let operands = Operands::<T>::uniform(&geometry, 51).with_bias(&geometry);
            for combination in Combination::all() {
                let Some(plan) = combination.plan::<T>(&layer, |planner| planner) else { continue };
                let _context = Context(|| format!("{combination}, {}: {layer}", T::DTYPE));
                let packed = operands.pack(&plan);
                let expected = bits(&operands.run_packed(&plan, &packed, Threads::Serial).unwrap());
                let saved = packed.to_bytes().unwrap();
                assert_eq!(saved.len() % 64, 0);
                let dirty = vec![0xa5; plan.pack_into_bytes().unwrap()];
                let placed = plan.pack_into(&operands.w, operands.bias.as_deref(), Mapped::new(&dirty, 0)).unwrap();
                assert_eq!(placed.to_bytes().unwrap(), saved);
                let y = operands.run_packed(&plan, &placed, Threads::Serial).unwrap();
                assert_eq!(bits(&y), expected);
                let copied = PackedWeights::<T>::from_bytes(&saved).unwrap();
                let shared = PackedWeights::<T>::from_shared(Mapped::new(&saved, 0)).unwrap();
                for loaded in [copied, shared] {
                    assert_eq!((loaded.layout(), loaded.bytes()), (packed.layout(), packed.bytes()));
                    assert_eq!(loaded.to_bytes().unwrap(), saved);
                    assert_eq!(plan.accepts(&loaded), Ok(()));
                    let planner = combination.planner().packed_for(&loaded);
                    let plan = planner.plan::<T>(layer.operator.clone(), &layer.x_shape).unwrap();
                    let y = operands.run_packed(&plan, &loaded, Threads::Serial).unwrap();
                    assert_eq!(bits(&y), expected);
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
    check::<f16>();
    check::<bf16>();
}

/// By every algorithm, from wherever they are read, at other sizes too, and whatever is forced.
#[test]
fn weights_that_are_not_finite_are_run_by_the_definition() {
    for layer in layers() {
        let mut operands = Operands::<f32>::uniform(&layer.geometry(), 57).with_residual(&layer.geometry());
        (operands.w[1], operands.w[2]) = (f32::INFINITY, f32::NAN);
        let naive = Planner::new().algorithm(named("naive"));
        let plan_naive = |x_shape: &[usize]| naive.plan::<f32>(layer.operator.clone(), x_shape).unwrap();
        let expected = bits(&operands.run(&plan_naive(&layer.x_shape)));
        for combination in Combination::all() {
            let Some(plan) = combination.plan::<f32>(&layer, |planner| planner.threads(2)) else { continue };
            let _context = Context(|| format!("{combination}: {layer}"));
            let memory = Mapped::new(&vec![0xa5; plan.pack_into_bytes().unwrap()], 0);
            let placed = plan.pack_into(&operands.w, None, memory).unwrap();
            let packed = operands.pack(&plan);
            let saved = PackedWeights::from_bytes(&packed.to_bytes().unwrap()).unwrap();
            for packed in [packed, placed, saved] {
                assert_eq!(packed.layout(), "as given, not all finite: run by the loops of the definition");
                assert_eq!(bits(&operands.run_packed(&plan, &packed, Threads::Serial).unwrap()), expected);
                let other = combination.planner().packed_for(&packed).plan(layer.operator.clone(), &layer.x_shape);
                let other = other.unwrap();
                assert_eq!(other.algorithm(), named("naive"));
                assert_eq!(bits(&operands.run_packed(&other, &packed, Threads::Serial).unwrap()), expected);
            }
        }
        let larger: Vec<_> =
            [1, layer.x_shape[1]].into_iter().chain(layer.x_shape[2..].iter().map(|x| x + 3)).collect();
        let packed = operands.pack(&plan_naive(&layer.x_shape));
        let plan = Planner::new().packed_for(&packed).plan::<f32>(layer.operator.clone(), &larger).unwrap();
        let of_larger = Operands { w: operands.w.clone(), ..Operands::uniform(plan.geometry(), 58) };
        let y = of_larger.run_packed(&plan, &packed, Threads::Serial).unwrap();
        assert_eq!(bits(&y), bits(&of_larger.run(&plan_naive(&larger))));
        assert!(format!("{:#}", plan.explain()).contains("a weight is not finite"));
    }
}

/// Plans share weights of one format. So these must be the same values, whichever plan packed them.
#[test]
fn weights_of_one_format_are_the_same_values() {
    let mut shared = 0;
    for layer in layers() {
        let operands = Operands::<f32>::uniform(&layer.geometry(), 59);
        let plans = Combination::all().filter_map(|combination| combination.plan::<f32>(&layer, |planner| planner));
        // Plans that leave out taps have them packed beside the whole.
        let plans = plans.filter(|plan| plan.explain().taps().is_none());
        let all: Vec<_> = plans.map(|plan| (operands.pack(&plan), plan)).collect();
        for (packed, packing) in &all {
            for (other, plan) in all.iter().filter(|(_, plan)| plan.accepts(packed).is_ok()) {
                assert_eq!(packed.to_bytes(), other.to_bytes(), "{layer}: {plan:?}");
                shared += usize::from(plan.algorithm() != packing.algorithm());
            }
        }
    }
    assert!(shared > 0);
}

/// Weights that were saved by an earlier release must not be read by other rules.
#[test]
#[cfg(target_endian = "little")]
fn the_form_of_saved_weights_changes_with_their_version_only() {
    const OF_VERSION_3: [(Isa, u64); 4] = [
        (Isa::Portable, 0x8707_5d5d_2522_71af),
        (Isa::Avx2, 0xac7b_4052_dcc9_ac1c),
        (Isa::Avx512, 0xa4d9_901b_2524_8c90),
        (Isa::Neon, 0xc7ad_3986_e673_136a),
    ];
    assert_eq!(OF_VERSION_3.len(), Isa::ALL.len(), "an ISA has no number");
    // Each layout of weights has an algorithm that packs so. How another crate packs is its own affair. An
    // algorithm with a layout of its own goes to the end: then the numbers change, but not the version.
    const PACKS: [&str; 10] = [
        "winograd",
        "gemm",
        "pixel-gemm",
        "im2col:native",
        "transposed",
        "col2im:native",
        "naive",
        "depthwise",
        "grouped",
        "depthwise-transposed",
    ];
    fn add<T: Scalar>(hash: &mut xxhash_rust::xxh3::Xxh3, isa: Isa) {
        let machine = Machine::named().swap_remove(0).with_isa(isa);
        for layer in layers() {
            let operands = Operands::<T>::uniform(&layer.geometry(), 53).with_bias(&layer.geometry());
            for algorithm in PACKS.map(named) {
                let planner = Planner::new().machine(machine.clone()).algorithm(algorithm);
                let Ok(plan) = planner.plan::<T>(layer.operator.clone(), &layer.x_shape) else { continue };
                hash.update(&operands.pack(&plan).to_bytes().unwrap());
            }
        }
    }
    let expected = OF_VERSION_3.into_iter().filter(|(isa, _)| isa.is_available());
    let found = expected.clone().map(|(isa, _)| {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        add::<f32>(&mut hash, isa);
        add::<f64>(&mut hash, isa);
        (isa, hash.digest())
    });
    let (found, expected): (Vec<_>, Vec<_>) = (found.collect(), expected.collect());
    assert_eq!(
        found, expected,
        "weights are saved otherwise: if not only the planner's choice of tiles changed, change VERSION in \
         src/plan/saved.rs; then these numbers ({found:#x?})"
    );
}

fn saved() -> Vec<u8> {
    saved_of(&layer(Conv::new([4, 3, 3, 3]).pads([1; 4]), [1, 3, 5, 5]))
}

fn saved_of(layer: &Layer) -> Vec<u8> {
    let plan = Planner::new().plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
    Operands::uniform(plan.geometry(), 52).pack(&plan).to_bytes().unwrap()
}

/// A layer of which most taps see only padding, so that the taps are packed twice.
fn layer_with_invisible_taps() -> Layer {
    layer(Conv::new([4, 3, 3, 3]).pads([9; 4]).dilations([9, 9]), [1, 3, 5, 5])
}

/// Both ways to load agree on the error.
fn error_of(bytes: &[u8]) -> String {
    let copied = PackedWeights::<f32>::from_bytes(bytes).unwrap_err();
    let shared = PackedWeights::<f32>::from_shared(Mapped::new(bytes, 0)).unwrap_err();
    assert_eq!((copied.kind(), &copied), (ErrorKind::InvalidPacked, &shared));
    copied.to_string()
}

#[test]
fn saved_weights_that_were_cut_are_refused() {
    let saved = saved();
    for len in 0..saved.len() {
        error_of(&saved[..len]);
    }
    assert!(error_of(&saved[..10]).contains("10 bytes are too few"));
    assert!(error_of(&saved[..saved.len() - 64]).contains("changed or cut"));
    assert!(error_of(&[&saved[..], &[0; 64]].concat()).contains("changed or cut"));
}

#[test]
fn saved_weights_that_were_changed_are_refused() {
    let mut saved = saved();
    for at in 0..saved.len() {
        for bit in 0..8 {
            saved[at] ^= 1 << bit;
            assert_eq!(PackedWeights::<f32>::from_bytes(&saved).unwrap_err().kind(), ErrorKind::InvalidPacked);
            saved[at] ^= 1 << bit;
        }
    }
    PackedWeights::<f32>::from_bytes(&saved).unwrap();
    let mut other = saved.clone();
    other[0] = b'C';
    assert!(error_of(&other).contains("something else"));
    let mut other = saved.clone();
    other[16..20].reverse();
    assert!(error_of(&other).contains("another order of bytes"));
    saved[16..20].copy_from_slice(&77_u32.to_ne_bytes());
    assert!(error_of(&saved).contains("version 77"));
}

/// Checksums are no secret. Lengths that a forger states are not trusted.
#[test]
fn saved_weights_that_were_forged_are_refused() {
    let saved = saved();
    assert_eq!(with_checksum(saved.clone()), saved);
    for len in (24..saved.len()).step_by(8) {
        error_of(&with_checksum(saved[..len].to_vec()));
    }
    error_of(&with_checksum([&saved[..], &[0; 64]].concat()));
    let mut longer = saved.clone();
    longer[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert!(error_of(&with_checksum(longer)).contains("layout cannot be read"));
}

#[test]
fn saved_weights_of_another_type_or_isa_are_refused() {
    let saved = saved();
    let error = PackedWeights::<f64>::from_bytes(&saved).unwrap_err();
    assert_eq!(error.to_string(), "packed weights: they are of float, not of double");
    // The name of an ISA that this build lacks, of the same length as the one it has.
    let missing = Isa::ALL.into_iter().find(|isa| isa.absence().is_some()).unwrap();
    let of_isa = |isa: Isa| {
        let plan = Planner::new().isa(isa).plan::<f32>(Conv::new([4, 3, 3, 3]), &[1, 3, 5, 5]).unwrap();
        Operands::uniform(plan.geometry(), 52).pack(&plan).to_bytes().unwrap()
    };
    for isa in isas() {
        let forged = renamed(&of_isa(isa), isa.name(), missing.name(), 0);
        assert!(error_of(&forged).contains(&format!("they are for the ISA {missing}: ")), "{}", error_of(&forged));
    }
}

#[test]
fn mapped_weights_must_be_aligned() {
    let error = PackedWeights::<f32>::from_shared(Mapped::new(&saved(), 8)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidPacked);
    assert_eq!(error.to_string(), "packed weights: they begin 8 bytes behind a multiple of 64");
}

#[test]
fn weights_are_packed_into_memory_of_the_right_length_and_alignment() {
    let layer = layer_with_invisible_taps();
    let plan = Planner::new().plan::<f32>(layer.operator.clone(), &layer.x_shape).unwrap();
    let operands = Operands::<f32>::uniform(plan.geometry(), 54);
    let bytes = plan.pack_into_bytes().unwrap();
    let pack = |len: usize, offset: usize, w: &[f32], bias: Option<&[f32]>| {
        let memory = Arc::new(std::sync::Mutex::new(vec![0xa5; len + 128]));
        let error = plan.pack_into(w, bias, Dirty::new(&memory, len, offset)).unwrap_err();
        assert!(memory.lock().unwrap().iter().all(|byte| *byte == 0xa5), "{error}");
        (error.kind(), error.to_string())
    };
    for len in [0, bytes - 64, bytes - 1, bytes + 1, bytes + 64] {
        let message = format!("Conv: the memory for packed weights has {len} bytes, the plan needs {bytes}");
        assert_eq!(pack(len, 0, &operands.w, None), (ErrorKind::BufferLength, message));
    }
    let message = "Conv: the memory for packed weights begins 8 bytes behind a multiple of 64";
    assert_eq!(pack(bytes, 8, &operands.w, None), (ErrorKind::InvalidPacked, message.into()));
    assert_eq!(pack(bytes, 0, &operands.w[1..], None).0, ErrorKind::BufferLength);
    assert_eq!(pack(bytes, 0, &operands.w, Some(&[1.0])).0, ErrorKind::BufferLength);
}

/// Memory that a test looks at after its owner is gone.
struct Dirty {
    shared: Arc<std::sync::Mutex<Vec<u8>>>,
    mapped: Mapped,
}

impl Dirty {
    fn new(shared: &Arc<std::sync::Mutex<Vec<u8>>>, len: usize, offset: usize) -> Self {
        Self { shared: shared.clone(), mapped: Mapped::new(&vec![0xa5; len], offset) }
    }
}

impl Drop for Dirty {
    fn drop(&mut self) {
        self.shared.lock().unwrap()[..self.mapped.len].copy_from_slice(self.mapped.as_ref());
    }
}

impl AsRef<[u8]> for Dirty {
    fn as_ref(&self) -> &[u8] {
        self.mapped.as_ref()
    }
}

impl AsMut<[u8]> for Dirty {
    fn as_mut(&mut self) -> &mut [u8] {
        self.mapped.as_mut()
    }
}

/// Weights of another layer would be accepted as those of the plan.
#[test]
fn memory_that_returns_other_bytes_than_were_packed_is_refused() {
    struct Other(Mapped, Mapped);

    impl AsRef<[u8]> for Other {
        fn as_ref(&self) -> &[u8] {
            self.1.as_ref()
        }
    }

    impl AsMut<[u8]> for Other {
        fn as_mut(&mut self) -> &mut [u8] {
            self.0.as_mut()
        }
    }

    let plan = Planner::new().plan::<f32>(Conv::new([9, 3, 1, 1]), &[1, 3, 5, 5]).unwrap();
    let bytes = vec![0; plan.pack_into_bytes().unwrap()];
    let memory = Other(Mapped::new(&bytes, 0), Mapped::new(&saved(), 0));
    let error = plan.pack_into(&[0.5; 9 * 3], None, memory).unwrap_err();
    assert_eq!(error.to_string(), "Conv: the memory for packed weights does not keep what is written");
}

/// An owner whose bytes change must not make a run read past them.
#[test]
#[should_panic(expected = "out of range")]
fn mapped_weights_that_vanish_stop_a_run() {
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Vanishing(Mapped, Arc<AtomicBool>);

    impl AsRef<[u8]> for Vanishing {
        fn as_ref(&self) -> &[u8] {
            if self.1.load(Ordering::Relaxed) { &[] } else { self.0.as_ref() }
        }
    }

    let has_vanished = Arc::new(AtomicBool::new(false));
    let owner = Vanishing(Mapped::new(&saved(), 0), has_vanished.clone());
    let loaded = PackedWeights::<f32>::from_shared(owner).unwrap();
    let planner = Planner::new().packed_for(&loaded);
    let plan = planner.plan::<f32>(Conv::new([4, 3, 3, 3]).pads([1; 4]), &[1, 3, 5, 5]).unwrap();
    has_vanished.store(true, Ordering::Relaxed);
    _ = Operands::uniform(plan.geometry(), 53).run_packed(&plan, &loaded, Threads::Serial);
}
