//! One name stands for one type, in convoke and its kernels together, and in the tools: a reader
//! who meets a name again may trust that it is the same thing.
//!
//! There are two exceptions. The ISAs of the kernels are twins: each has a folder, and its types
//! may have the names of their counterparts in other ISAs' folders. And `Activation` is two types:
//! the one that callers choose, and the form of it that kernels take.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the kernels' ISAs, whose types are twins.
const ISA_FOLDERS: [&str; 4] = ["portable", "aarch64/neon", "x86_64/avx2", "x86_64/avx512"];

/// What callers choose, and the form of it that kernels take: their comments say how they relate.
const TWO_FORMS: &str = "Activation";

#[test]
fn types_of_convoke_and_its_kernels_have_names_of_their_own() {
    check(&["src", "kernels/src"]);
}

#[test]
fn types_of_the_tools_have_names_of_their_own() {
    check(&["tools/src"]);
}

#[track_caller]
fn check(folders: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files_of: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for folder in folders {
        let types_before = files_of.len();
        for file in files(&root.join(folder)) {
            for name in types(&fs::read_to_string(&file).unwrap()) {
                files_of.entry(name).or_default().push(file.strip_prefix(&root).unwrap().to_owned());
            }
        }
        assert!(files_of.len() > types_before + 20, "{folder}: the types were not found");
    }
    files_of.retain(|name, files| files.len() > 1 && name != TWO_FORMS && !are_twins(files));
    assert!(files_of.is_empty(), "names of several types: {files_of:#?}");
}

/// Whether the files are those of ISAs, and of a different one each.
fn are_twins(files: &[PathBuf]) -> bool {
    let isa_of = |file: &PathBuf| {
        let file = file.strip_prefix("kernels/src").ok()?;
        ISA_FOLDERS.iter().find(|folder| file.starts_with(folder))
    };
    let isas: BTreeSet<_> = files.iter().filter_map(isa_of).collect();
    isas.len() == files.len()
}

/// All Rust files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, mut all): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    all.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    all.extend(folders.iter().flat_map(|folder| files(folder)));
    all
}

/// The names of the types that a file defines outside of its tests and of functions.
fn types(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    text.lines().filter_map(defined).collect()
}

/// The name of the type that a line defines at the left margin.
fn defined(line: &str) -> Option<String> {
    let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub(super) ")).unwrap_or(line);
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let rest = ["struct ", "enum ", "trait ", "union ", "type "].iter().find_map(|kind| line.strip_prefix(kind))?;
    Some(rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?.to_owned())
}

#[test]
fn definitions_are_found() {
    let text = "pub(crate) struct One<'a> {\n    type Inner = u8;\nenum Two {}\npub trait Three: Send {\n#[cfg(test)]\nmod tests {\nstruct Four;";
    assert_eq!(types(text), ["One", "Two", "Three"]);
}

#[test]
fn twins_are_of_different_isas() {
    let files = |files: &[&str]| -> Vec<PathBuf> { files.iter().map(PathBuf::from).collect() };
    assert!(are_twins(&files(&["kernels/src/x86_64/avx2/vector.rs", "kernels/src/portable/vector.rs"])));
    assert!(!are_twins(&files(&["kernels/src/x86_64/avx2/vector.rs", "kernels/src/x86_64/avx2/interleave.rs"])));
    assert!(!are_twins(&files(&["kernels/src/x86_64/avx2/vector.rs", "kernels/src/simd.rs"])));
}
