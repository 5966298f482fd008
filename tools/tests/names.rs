//! In one crate, one name stands for one type: a reader who meets a name again may trust that it
//! is the same thing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn types_of_convoke_have_names_of_their_own() {
    check("src");
}

#[test]
fn types_of_the_tools_have_names_of_their_own() {
    check("tools/src");
}

#[track_caller]
fn check(folder: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let mut files_of: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files(&folder) {
        for name in types(&fs::read_to_string(&file).unwrap()) {
            files_of.entry(name).or_default().push(file.strip_prefix(&folder).unwrap().to_owned());
        }
    }
    assert!(files_of.len() > 20, "{}: the types were not found", folder.display());
    files_of.retain(|_, files| files.len() > 1);
    assert!(files_of.is_empty(), "names of several types: {files_of:#?}");
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
