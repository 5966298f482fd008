//! Plans for machines that are values: the named machines on any host, and machines that do not
//! exist.

use convoke::Absence;
use convoke::{Algorithm, Conv, ConvTranspose, ErrorKind, Isa, Machine, Operator, Planner};
use convoke_tools::{named, shapes};

/// A few layers of all kinds, with the shapes of their inputs.
fn layers() -> [(Operator, Vec<usize>); 6] {
    [
        (Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]).into(), vec![1, 64, 56, 56]),
        (Conv::new([64, 3, 7, 7]).strides([2, 2]).pads([3, 3, 3, 3]).into(), vec![1, 3, 224, 224]),
        (Conv::new([256, 512, 1, 1]).into(), vec![1, 512, 28, 28]),
        (Conv::new([96, 1, 5, 5]).group(96).pads([2, 2, 2, 2]).into(), vec![1, 96, 56, 56]),
        (Conv::new([1000, 2048, 1, 1]).into(), vec![1, 2048, 1, 1]),
        (ConvTranspose::new([512, 256, 4, 4]).strides([2, 2]).pads([1, 1, 1, 1]).into(), vec![1, 512, 8, 8]),
    ]
}

/// The named machines, each with its own ISA if the build has it, and with the portable ISA,
/// which every build has.
fn machines() -> Vec<Machine> {
    let built =
        Machine::named().into_iter().filter(|machine| matches!(machine.isa().absence(), None | Some(Absence::Cpu(_))));
    built.chain(Machine::named().into_iter().map(|machine| machine.with_isa(Isa::Portable))).collect()
}

#[test]
fn named_machines_have_plans_on_every_host() {
    for machine in machines() {
        for (operator, x) in layers() {
            for threads in [1, 2, 16] {
                let planner = || Planner::new().machine(machine.clone()).threads(threads);
                let plan = planner().plan::<f32>(operator.clone(), &x).unwrap();
                assert_eq!(plan.isa(), machine.isa());
                let text = format!("{:#}", plan.explain());
                assert!(text.contains(&format!("\n  machine {machine}\n")), "{text}");
                // Earlier calls of the builder leave no trace.
                let again = planner().isa(Isa::Portable).machine(machine.clone()).plan::<f32>(operator.clone(), &x);
                assert_eq!(text, format!("{:#}", again.unwrap().explain()));
            }
        }
    }
}

#[test]
fn large_layers_keep_many_threads_busy() {
    for machine in machines().into_iter().filter(|machine| machine.isa() == Isa::Avx512) {
        // The least share is docs/journal/threads-and-tasks.md's, less a little. With 192 threads, many layers have
        // fewer tasks than threads.
        for (threads, least) in [(16, 0.9), (64, 0.75), (192, 0.55)] {
            let mut busy = Vec::new();
            for layer in shapes::built_in() {
                let planner = Planner::new().machine(machine.clone()).threads(threads);
                let plan = planner.plan::<f32>(layer.operator(), &layer.x).unwrap();
                let explained = plan.explain();
                let pick = explained.verdicts().iter().find(|verdict| verdict.algorithm == plan.algorithm()).unwrap();
                if pick.cost >= Some(1e6) {
                    // While the busiest thread works, the share of the others' time that tasks fill.
                    let rounds = explained.tasks().div_ceil(threads);
                    busy.push(explained.tasks() as f64 / (rounds * threads) as f64);
                }
            }
            let mean = busy.iter().sum::<f64>() / busy.len() as f64;
            assert!(busy.len() >= 30 && mean >= least, "{machine}, {threads} threads: {mean:.2} of {}", busy.len());
        }
    }
}

/// How the pick is blocked, from a portable plan for one thread.
fn pick(machine: Machine, algorithm: Algorithm, conv: Conv, x: [usize; 4]) -> String {
    let planner = Planner::new().machine(machine.with_isa(Isa::Portable)).algorithm(algorithm);
    planner.plan::<f32>(conv, &x).unwrap().explain().details().to_owned()
}

/// What differs in the picks of the four named machines for a layer: from each pick, the part
/// that begins with `begin`.
fn blocking(algorithm: Algorithm, conv: &Conv, x: [usize; 4], begin: &str) -> Vec<String> {
    let part = |machine: Machine| {
        let line = pick(machine, algorithm, conv.clone(), x);
        line[line.find(begin).unwrap()..].to_string()
    };
    Machine::named().into_iter().map(part).collect()
}

/// The expected values are written here rather than taken from another plan of this host, so that
/// they must be the same on every host.
#[test]
fn caches_of_other_sizes_are_blocked_for() {
    // The L1 cache bounds the blocks of K. Up to 1 MiB of the L2 cache bounds the sums of a block
    // of columns.
    let pointwise = blocking(named("gemm"), &Conv::new([256, 512, 1, 1]), [1, 512, 28, 28], "K in blocks");
    let blocks = |k: usize, columns: usize| format!("K in blocks of {k}, {columns} chunks, weights in 1 part");
    assert_eq!(pointwise, [blocks(256, 4), blocks(256, 4), blocks(512, 4), blocks(256, 7)]);

    // Chunks are sized by the L2 cache.
    let conv = Conv::new([64, 64, 3, 3]).pads([1, 1, 1, 1]);
    let implicit = blocking(named("gemm"), &conv, [1, 64, 112, 112], "K in blocks");
    let chunks = |count: usize| format!("K in blocks of 288, {count} chunks, weights in 1 part");
    assert_eq!(implicit, [chunks(13), chunks(11), chunks(13), chunks(38)]);

    // So are the planes of direct kernels.
    let conv = Conv::new([32, 1, 5, 5]).group(32).strides([4, 4]).pads([2, 2, 2, 2]);
    let depthwise = blocking(named("depthwise"), &conv, [1, 32, 448, 448], "at a time");
    let chunks = |count: usize, rows: usize| {
        format!("at a time, {count} chunks of {} positions, {} units in all", rows * 112, 32 * count)
    };
    assert_eq!(depthwise, [chunks(4, 28), chunks(2, 56), chunks(4, 28), chunks(7, 16)]);
}

/// A slow level 3 cache is asked less often: with larger blocks, the filters are read fewer times.
/// The slow rate is far below that of a real machine, because the portable kernels are slow too.
#[test]
fn rates_of_other_caches_are_blocked_for() {
    let conv = Conv::new([256, 256, 3, 3]).pads([1, 1, 1, 1]);
    for (rate, blocks) in [(32.0, ", 7 blocks of 2 x 14 tiles,"), (1.0, ", 2 blocks of 7 x 14 tiles,")] {
        let mut machine = Machine::emerald_rapids();
        machine.l3_bytes_per_cycle = rate;
        let details = pick(machine, named("winograd"), conv.clone(), [1, 256, 56, 56]);
        assert!(details.contains(blocks), "{rate}: {details}");
    }
}

#[test]
fn an_isa_that_the_cpu_lacks_can_be_planned_for_and_not_run() {
    // The available ISAs depend on the host. ISAs of another architecture are missing on every
    // host.
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        for (operator, x) in layers() {
            let name = operator.op_name();
            let planner = Planner::new().machine(Machine::zen5().with_isa(isa));
            if isa.absence() != Some(Absence::Cpu(isa)) {
                let error = planner.plan::<f32>(operator, &x).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                assert_eq!(
                    error.to_string(),
                    format!("{name}: the ISA {isa} was asked for: {}", isa.absence().unwrap())
                );
                continue;
            }
            let plan = planner.plan::<f32>(operator, &x).unwrap();
            assert_eq!(plan.isa(), isa);
            let error = plan.pack(&vec![0.0; plan.geometry().weight_len()], None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(
                error.to_string().starts_with(&format!("{name}: ")) && error.to_string().contains(isa.name()),
                "{error}"
            );
        }
    }
}

#[test]
fn isa_means_the_host() {
    let plan = |planner: Planner| planner.plan::<f32>(Conv::new([8, 8, 1, 1]), &[1, 8, 4, 4]).unwrap();
    let host = format!("{:#}", plan(Planner::new().isa(Isa::Portable)).explain());
    assert!(host.contains("\n  machine host: portable, "), "{host}");
    let again = format!("{:#}", plan(Planner::new().machine(Machine::no_l3()).isa(Isa::Portable)).explain());
    assert_eq!(host, again);
}

#[test]
fn weights_are_packed_for_a_machine_too() {
    let machine = Machine::no_l3().with_isa(Isa::Portable);
    let planner = Planner::new().machine(machine.clone());
    let plan = planner.plan::<f32>(Conv::new([8, 8, 1, 1]), &[1, 8, 4, 4]).unwrap();
    let packed = plan.pack(&[0.5; 64], None).unwrap();
    let other = planner.packed_for(&packed).plan::<f32>(Conv::new([8, 8, 1, 1]), &[1, 8, 9, 9]).unwrap();
    assert!(format!("{:#}", other.explain()).contains(&format!("machine {machine}")));
}

#[test]
fn a_machine_that_no_one_has_is_an_error() {
    let mut machine = Machine::zen5();
    machine.l2_bytes = 0;
    let error = Planner::new().machine(machine).plan::<f32>(Conv::new([8, 8, 1, 1]), &[1, 8, 4, 4]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.to_string(), "Conv: machine zen5: l2_bytes is 0, not 4096 to 1073741824");
}

#[test]
fn caches_of_every_size_that_is_accepted_have_plans() {
    for (l1, l2, l3) in
        [(4 << 10, 4 << 10, 0), (4 << 10, 1 << 30, usize::MAX), (1 << 30, 4 << 10, 1), (5001, 70_001, 7)]
    {
        let mut machine = Machine::no_l3().with_isa(Isa::Portable);
        (machine.l1_bytes, machine.l2_bytes, machine.l3_bytes) = (l1, l2, l3);
        for (operator, x) in layers() {
            for algorithm in Algorithm::all() {
                let planner = Planner::new().machine(machine.clone()).algorithm(algorithm).threads(3);
                let _ = planner.plan::<f32>(operator.clone(), &x);
                let _ = planner.plan::<f64>(operator.clone(), &x);
            }
            assert!(Planner::new().machine(machine.clone()).plan::<f32>(operator, &x).is_ok());
        }
    }
}
