//! What is planned for the layers of the benches and of the tests, and the bits of the outputs, are
//! those of the files in `tests/plans`.
//!
//! `convoke-tools plans --write tests/plans` accepts a change for the ISAs of this machine. Where
//! the tools are not built, as under an emulator, the variable `CONVOKE_WRITE_PLANS` makes these
//! tests write the files.

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
    assert!(difference.is_empty(), "{name} differs; `convoke-tools plans --write` accepts the change\n{difference}");
}

#[test]
fn plans_are_those_of_the_files() {
    for isa in isas() {
        check(&format!("{isa}.txt"), &plans::plans(isa).unwrap());
    }
}

#[test]
fn outputs_are_those_of_the_files() {
    let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for isa in isas().filter(|isa| isa.is_available()) {
        check(&format!("{isa}.outputs.txt"), &plans::outputs(isa, Threads::Pool(&pool)).unwrap());
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
