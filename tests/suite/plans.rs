//! What is picked for the layers of the benches, and the bits of the hard layers' outputs, are those
//! of the files in `tests/plans`. `convoke-tools plans` shows the whole plans, and what changed in
//! them.
//!
//! The variable `CONVOKE_WRITE_PLANS` makes these tests write the files, which accepts a change for
//! the ISAs of this machine.

#![cfg(all(feature = "std", feature = "rayon", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::path::Path;

use convoke::{Isa, Threads};
use convoke_tools::plans;
use rayon::ThreadPoolBuilder;

/// The ISAs whose kernels are in this build. The files of the portable tier are those of x86-64:
/// other targets round the products that they fuse with a sum differently.
fn isas() -> impl Iterator<Item = Isa> {
    plans::isas().filter(|isa| *isa != Isa::Portable || cfg!(target_arch = "x86_64"))
}

fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans").join(name);
    if std::env::var_os("CONVOKE_WRITE_PLANS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let file = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let difference = plans::difference(&file, text);
    assert!(difference.is_empty(), "{name} differs; CONVOKE_WRITE_PLANS=1 accepts the change\n{difference}");
}

/// An algorithm, a kernel or a layout of weights that changes is meant to.
#[test]
fn picks_are_those_of_the_files() {
    for isa in isas() {
        check(&format!("{isa}.txt"), &plans::picks(isa).unwrap());
    }
}

/// Also with 16 threads and on machines whose ISA this CPU lacks: `plans` looks at each element of
/// every split.
#[test]
fn tasks_of_all_plans_cover_y_once() {
    for isa in isas() {
        assert!(plans::plans(isa).unwrap().contains("hard.0 f16"));
    }
}

#[test]
fn outputs_are_those_of_the_files() {
    let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for isa in isas().filter(|isa| isa.is_available()) {
        check(&format!("{isa}.outputs.txt"), &plans::hard_outputs(isa, Threads::Pool(&pool)).unwrap());
    }
}

/// A file that no test reads would be out of date without notice.
#[test]
fn every_file_is_that_of_an_isa() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    let names = Isa::ALL.map(|isa| [format!("{isa}.txt"), format!("{isa}.outputs.txt")]);
    let mut names = names.concat();
    names.sort();
    assert_eq!(files, names);
}
