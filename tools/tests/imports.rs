//! The files of a crate must not import each other in a circle, so that each can be read, moved
//! and tested without the files that use it.
//!
//! The test reads the sources as text. These are its rules:
//!
//! * The modules are those that `mod` declares, from `lib.rs` or `main.rs` on. A folder with neither,
//!   such as `benches`, has a crate for each file directly in it.
//! * A `use` is an arrow to the file that defines what it names. So is a path in code, whether it
//!   begins with `crate`, `super`, `self` or a name in scope. Re-exports are followed to that
//!   file.
//! * Importing a whole module is no arrow, but each name that is then taken from it is.
//! * Declaring a module is no arrow. A re-export is one only if its own file also uses the name.
//! * Comments, strings, tests (`#[cfg(test)]`) and the rules of macros are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;

/// The sources of some crates in one folder, by their paths relative to the folder.
type Sources = BTreeMap<String, String>;

/// For each pair of files, the names that the first takes from the second.
type Arrows = BTreeMap<(String, String), BTreeSet<String>>;

#[test]
fn no_circles_in_convoke() {
    check("src");
}

#[test]
fn no_circles_in_the_kernels() {
    check("kernels/src");
}

#[test]
fn no_circles_in_the_tools() {
    check("tools/src");
}

#[test]
fn no_circles_in_the_bindings() {
    check("bindings/c/src");
    check("bindings/python/src");
    check("bindings/onnxruntime/src");
}

#[test]
fn no_circles_in_xtask_and_the_benches() {
    check("xtask/src");
    check("benches");
}

#[track_caller]
fn check(folder: &str) {
    let sources = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder));
    let (arrows, files) = arrows(&sources);
    let missed: Vec<_> = sources.keys().filter(|path| !files.contains(*path)).collect();
    assert!(missed.is_empty(), "{folder}: no module declares {missed:?}");
    let circles = circles(&arrows);
    assert!(circles.is_empty(), "circles of imports in {folder}:\n{}", circles.concat());
}

/// All Rust files below a folder.
fn read(folder: &Path) -> Sources {
    let (mut sources, mut folders) = (Sources::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let parts = path.strip_prefix(folder).unwrap().iter().map(|part| part.to_str().unwrap());
                sources.insert(parts.collect::<Vec<_>>().join("/"), fs::read_to_string(&path).unwrap());
            }
        }
    }
    sources
}

/// The circles as text: their files, and the names that tie them.
fn circles(arrows: &Arrows) -> Vec<String> {
    let mut graph = DiGraph::<&str, ()>::new();
    let mut nodes = BTreeMap::new();
    for (from, to) in arrows.keys() {
        let [from, to] = [from, to].map(|file| *nodes.entry(file).or_insert_with(|| graph.add_node(file)));
        graph.add_edge(from, to, ());
    }
    let mut circles = Vec::new();
    for circle in kosaraju_scc(&graph) {
        let files: BTreeSet<_> = circle.into_iter().map(|node| graph[node]).collect();
        if files.len() < 2 {
            continue;
        }
        let mut text = format!("  {} files: {}\n", files.len(), files.iter().copied().collect::<Vec<_>>().join(", "));
        for ((from, to), names) in arrows {
            if files.contains(from.as_str()) && files.contains(to.as_str()) {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                writeln!(text, "    {from} -> {to}: {}", names.join(", ")).unwrap();
            }
        }
        circles.push(text);
    }
    circles.sort();
    circles
}

/// The arrows between the files of all crates in a folder, and the files of their modules.
fn arrows(sources: &Sources) -> (Arrows, BTreeSet<String>) {
    let (mut arrows, mut files) = (Arrows::new(), BTreeSet::new());
    let mut roots: Vec<_> = sources.keys().filter(|path| ["lib.rs", "main.rs"].contains(&path.as_str())).collect();
    if roots.is_empty() {
        roots.extend(sources.keys().filter(|path| !path.contains('/')));
    }
    for root in roots {
        let mut crate_ = Crate { sources, modules: Vec::new() };
        crate_.add(root, "", None, &tokens(&sources[root]));
        crate_.draw(&mut arrows);
        files.extend(crate_.modules.into_iter().map(|module| module.file));
    }
    (arrows, files)
}

/// The modules of a crate. The first one is its root.
struct Crate<'a> {
    sources: &'a Sources,
    modules: Vec<Module>,
}

/// Everything in a module that arrows depend on.
#[derive(Default)]
struct Module {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// The names that it defines.
    items: BTreeSet<String>,
    /// The names that `use` brings in.
    imports: Vec<Import>,
    /// The paths in its code.
    paths: Vec<Vec<String>>,
    /// The words of its code, except those of `use`.
    words: BTreeSet<String>,
}

struct Import {
    /// `*` for all names.
    name: String,
    path: Vec<String>,
    is_public: bool,
}

/// The target of a path.
#[derive(Clone, Copy)]
enum Found<'p> {
    Module(usize),
    /// An item of this module, under this name.
    Item(usize, &'p str),
}

impl Crate<'_> {
    /// Adds a module of `file`, whose children are in `folder`, and all modules below it.
    fn add(&mut self, file: &str, folder: &str, parent: Option<usize>, tokens: &[String]) -> usize {
        let index = self.modules.len();
        self.modules.push(Module { file: file.to_owned(), parent, ..Module::default() });
        let (mut i, mut depth) = (0, 0_usize);
        while i < tokens.len() {
            let token = |offset: usize| tokens.get(i + offset).map_or("", String::as_str);
            match token(0) {
                "#" => {
                    // `#![..]` applies to the whole module.
                    let open = i + 1 + usize::from(token(1) == "!");
                    let end = behind_group(tokens, open);
                    let is_test =
                        ["[cfg(test)]", "[cfg(all(test,"].iter().any(|s| tokens[open..end].concat().starts_with(s));
                    i = if is_test { behind_item(tokens, end) } else { end };
                    continue;
                }
                "macro_rules" if token(1) == "!" => {
                    self.modules[index].items.insert(token(2).to_owned());
                    i = behind_group(tokens, i + 3);
                    continue;
                }
                "mod" if token(2) == ";" || token(2) == "{" => {
                    let name = token(1).to_owned();
                    let below = format!("{folder}{name}/");
                    let end = behind_item(tokens, i);
                    let child = if token(2) == "{" {
                        Some(self.add(file, &below, Some(index), &tokens[i + 3..end - 1]))
                    } else {
                        let places = [format!("{folder}{name}.rs"), format!("{below}mod.rs")];
                        let place = places.iter().find_map(|place| self.sources.get_key_value(place));
                        place.map(|(place, text)| self.add(place, &below, Some(index), &self::tokens(text)))
                    };
                    self.modules[index].children.extend(child.map(|child| (name, child)));
                    i = end;
                    continue;
                }
                "use" => {
                    let end = behind_item(tokens, i);
                    let is_public = i > 0 && (tokens[i - 1] == "pub" || tokens[i - 1] == ")");
                    tree(&tokens[i + 1..end - 1], &[], is_public, &mut self.modules[index].imports);
                    i = end;
                    continue;
                }
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static"
                    if depth == 0 && begins_item(tokens, i) =>
                {
                    let name =
                        (1..4).map(token).find(|word| !matches!(*word, "fn" | "unsafe" | "extern" | "mut" | "\"\""));
                    self.modules[index].items.extend(name.map(str::to_owned));
                }
                _ => {}
            }
            let module = &mut self.modules[index];
            let mut end = i + 1;
            if is_word(&tokens[i]) {
                module.words.insert(tokens[i].clone());
                let is_inside = i > 0 && matches!(tokens[i - 1].as_str(), "::" | "." | "$");
                while !is_inside && end + 1 < tokens.len() && tokens[end] == "::" && is_word(&tokens[end + 1]) {
                    end += 2;
                }
                if end > i + 1 {
                    module.paths.push(tokens[i..end].iter().step_by(2).cloned().collect());
                }
            }
            i = end;
        }
        index
    }

    fn draw(&self, arrows: &mut Arrows) {
        for (index, module) in self.modules.iter().enumerate() {
            let imports =
                module.imports.iter().filter(|import| !import.is_public || module.words.contains(&import.name));
            for path in imports.map(|import| &import.path).chain(&module.paths) {
                let (to, name) = match self.find(index, path, 0) {
                    Some(Found::Item(to, name)) => (to, name),
                    // A glob takes all names of a module.
                    Some(Found::Module(to)) if path.last().is_some_and(|last| last == "*") => (to, "*"),
                    _ => continue,
                };
                let to = &self.modules[to].file;
                if *to != module.file {
                    arrows.entry((module.file.clone(), to.clone())).or_default().insert(name.to_owned());
                }
            }
        }
    }

    /// The target of a path in a module. None if the name is not defined in the crate.
    fn find<'p>(&self, from: usize, path: &'p [String], depth: usize) -> Option<Found<'p>> {
        let (mut at, mut is_anchored) = (from, false);
        for (i, name) in path.iter().enumerate() {
            let module = &self.modules[at];
            at = match name.as_str() {
                "crate" => 0,
                "self" => at,
                "super" => module.parent?,
                "*" => return Some(Found::Module(at)),
                name => match self.member(at, name, depth) {
                    Some(Found::Module(child)) => child,
                    Some(Found::Item(to, _)) => return Some(Found::Item(to, &path[i])),
                    None if is_anchored => return Some(Found::Item(at, &path[i])),
                    None => return None,
                },
            };
            is_anchored = true;
        }
        Some(Found::Module(at))
    }

    /// The target of a name in a module.
    fn member(&self, module: usize, name: &str, depth: usize) -> Option<Found<'static>> {
        let Module { children, items, imports, .. } = &self.modules[module];
        if let Some(child) = children.get(name) {
            return Some(Found::Module(*child));
        }
        if items.contains(name) {
            return Some(Found::Item(module, ""));
        }
        // Two modules that import all names from each other would be followed for ever.
        if depth > 16 {
            return None;
        }
        let without_name = |found| match found {
            Found::Module(at) => Found::Module(at),
            Found::Item(at, _) => Found::Item(at, ""),
        };
        let named = imports.iter().filter(|import| import.name == name && import.path[0] != name);
        let named = named.filter_map(|import| self.find(module, &import.path, depth + 1)).map(without_name).next();
        named.or_else(|| {
            let globs = imports.iter().filter(|import| import.name == "*");
            globs.filter_map(|import| self.find(module, &import.path, depth + 1)).find_map(|found| match found {
                Found::Module(at) if at != module => self.member(at, name, depth + 1),
                _ => None,
            })
        })
    }
}

/// The names that the tree of a `use` brings in.
fn tree(tokens: &[String], prefix: &[String], is_public: bool, imports: &mut Vec<Import>) {
    let mut path = prefix.to_vec();
    let mut i = 0;
    while i < tokens.len() {
        match tokens[i].as_str() {
            "::" => {}
            "{" => {
                let mut begin = i + 1;
                let end = behind_group(tokens, i) - 1;
                while begin < end {
                    let mut comma = begin;
                    while comma < end && tokens[comma] != "," {
                        comma = if tokens[comma] == "{" { behind_group(tokens, comma) } else { comma + 1 };
                    }
                    tree(&tokens[begin..comma], &path, is_public, imports);
                    begin = comma + 1;
                }
                return;
            }
            "as" => {
                return imports.push(Import { name: tokens[i + 1].clone(), path, is_public });
            }
            // `{self}` names the module before it.
            "self" if !path.is_empty() => {}
            part => path.push(part.to_owned()),
        }
        i += 1;
    }
    if let Some(name) = path.last() {
        imports.push(Import { name: name.clone(), path, is_public });
    }
}

/// The index of the token after the group that opens at `open`.
fn behind_group(tokens: &[String], open: usize) -> usize {
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// The index of the token after an item, which ends with a semicolon or with its braces.
fn behind_item(tokens: &[String], begin: usize) -> usize {
    let is_use = tokens[begin..].iter().find(|token| !matches!(token.as_str(), "pub" | "(" | ")" | "crate" | "super"));
    let is_use = is_use.is_some_and(|token| token == "use");
    let mut i = begin;
    while i < tokens.len() {
        match tokens[i].as_str() {
            ";" => return i + 1,
            "{" if !is_use => return behind_group(tokens, i),
            "(" | "[" | "{" => i = behind_group(tokens, i),
            _ => i += 1,
        }
    }
    i
}

/// Whether a keyword defines an item. It does not in `*const T` or in `<const N: usize>`.
fn begins_item(tokens: &[String], at: usize) -> bool {
    let before = at.checked_sub(1).map_or(";", |before| tokens[before].as_str());
    matches!(before, ";" | "{" | "}" | "]" | ")" | "pub" | "unsafe" | "const" | "async" | "extern" | "\"\"")
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The words, numbers and signs of a text. `::` is one sign, and each string is `""`. Comments,
/// characters and lifetimes are dropped.
fn tokens(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        let behind = &rest[word.len()..];
        let hashes = behind.len() - behind.trim_start_matches('#').len();
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            len_of_comment(rest)
        } else if matches!(word, "r" | "br" | "cr") && behind[hashes..].starts_with('"') {
            let end = format!("\"{}", &behind[..hashes]);
            let begin = word.len() + hashes + 1;
            tokens.push("\"\"".to_owned());
            rest[begin..].find(&end).map_or(rest.len(), |at| begin + at + end.len())
        } else if matches!(word, "" | "b" | "c") && behind.starts_with('"') {
            tokens.push("\"\"".to_owned());
            word.len() + len_of_quoted(behind, '"')
        } else if matches!(word, "" | "b") && behind.starts_with('\'') {
            let mut after = behind.chars().skip(1);
            let is_lifetime = after.next().is_some_and(|c| c != '\\') && after.next() != Some('\'');
            let len_of_lifetime = 1 + behind[1..].find(|c| !is_part(c)).unwrap_or(behind.len() - 1);
            word.len() + if is_lifetime { len_of_lifetime } else { len_of_quoted(behind, '\'') }
        } else if word == "r" && hashes == 1 {
            2
        } else if !word.is_empty() {
            tokens.push(word.to_owned());
            word.len()
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    tokens
}

/// The length of a comment in bytes. It may contain other comments.
fn len_of_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length in bytes of a text between two quotes, including the quotes.
fn len_of_quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The arrows of a small crate, as `from -> to: names`.
fn drawn(files: &[(&str, &str)]) -> Vec<String> {
    let line = |((from, to), names): (_, BTreeSet<String>)| {
        format!("{from} -> {to}: {}", names.into_iter().collect::<Vec<_>>().join(", "))
    };
    arrows(&sources(files)).0.into_iter().map(line).collect()
}

fn sources(files: &[(&str, &str)]) -> Sources {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn a_circle_is_found_and_named() {
    let files = [
        ("lib.rs", "mod plan; mod low; mod tables;"),
        ("plan.rs", "use crate::low::run; pub struct Plan; pub fn pack() {}"),
        ("low/mod.rs", "mod tile; use tile::Tile; pub fn run(_: Tile) {}"),
        ("low/tile.rs", "pub struct Tile(crate::tables::Table); fn f() { crate::plan::pack() } use crate::plan::Plan;"),
        ("tables.rs", "pub struct Table;"),
    ];
    let circle = "  3 files: low/mod.rs, low/tile.rs, plan.rs
    low/mod.rs -> low/tile.rs: Tile
    low/tile.rs -> plan.rs: Plan, pack
    plan.rs -> low/mod.rs: run
";
    assert_eq!(circles(&arrows(&sources(&files)).0), [circle]);
    // Without the arrow back there is no circle.
    let files = files.map(|(path, text)| (path, if path == "low/tile.rs" { "pub struct Tile;" } else { text }));
    assert!(circles(&arrows(&sources(&files)).0).is_empty());
}

#[test]
fn a_child_and_its_module_are_a_circle_where_each_uses_the_other() {
    let child = "use super::Shared; pub fn offer(_: Shared) {}";
    let files = |module| [("main.rs", "mod low;"), ("low/mod.rs", module), ("low/child.rs", child)];
    let found = |module| circles(&arrows(&sources(&files(module))).0).len();
    assert_eq!(found("mod child; pub struct Shared; fn f() { child::offer(Shared) }"), 1);
    assert_eq!(found("mod child; pub(crate) use child::offer; pub struct Shared; fn f() { offer(Shared) }"), 1);
    // A module that only re-exports the name does not use it.
    assert_eq!(found("mod child; pub(crate) use child::offer; pub struct Shared;"), 0);
}

#[test]
fn a_folder_without_a_root_has_a_crate_for_each_file() {
    let low = "use super::run; pub struct Low; fn f() { run(Low) }";
    let files = |low| {
        let common = ("common/mod.rs", "mod low; use low::Low; pub fn run(_: Low) {}");
        [("one.rs", "mod common; use common::run;"), ("two.rs", "mod common;"), common, ("common/low.rs", low)]
    };
    let drawn = drawn(&files("pub struct Low;"));
    assert_eq!(drawn, ["common/mod.rs -> common/low.rs: Low", "one.rs -> common/mod.rs: run"]);
    assert_eq!(circles(&arrows(&sources(&files(low))).0).len(), 1);
}

#[test]
fn names_are_followed_to_where_they_are_defined() {
    let lib = "mod a; mod b; mod c; pub use a::{One, deep::{Two, Three as Trio}}; pub const fn gcd() {}";
    let files = [
        ("lib.rs", lib),
        ("a.rs", "pub mod deep; pub struct One;"),
        ("a/deep.rs", "pub struct Two; pub struct Three; pub unsafe fn four(_: *const One) {}"),
        (
            "b.rs",
            "use crate::{One, a::{self, deep::{self as d, *}}, gcd}; fn f<'a>(_: Trio) { a::deep::four(); d::five(); }",
        ),
        ("c.rs", "use crate::Trio; use super::b::{f as g}; use std::fmt::Write;"),
    ];
    let arrows = [
        "b.rs -> a.rs: One",
        "b.rs -> a/deep.rs: *, five, four",
        "b.rs -> lib.rs: gcd",
        "c.rs -> a/deep.rs: Trio",
        "c.rs -> b.rs: f",
    ];
    assert_eq!(drawn(&files), arrows);
}

#[test]
fn what_is_no_code_of_the_crate_is_left_out() {
    let text = r##"
        //! [`crate::b::A`]
        /* use crate::b::B; /* nested */ use crate::b::C; */
        const TEXT: &str = "use crate::b::D; \" crate::b::E";
        const RAW: &str = r#"" crate::b::F"#;
        const QUOTE: [char; 2] = ['"', '\''];
        macro_rules! rules { () => { $crate::b::G + crate::b::H }; }
        #[cfg(test)]
        mod tests { use crate::b::I; }
        #[cfg(all(test, feature = "x"))]
        use crate::b::{J, K};
        #[doc = "crate::b::L"]
        fn f<'a>(x: &'a str) -> &'static str { x.b::<M>() }
        fn seen() { crate::b::Seen }
    "##;
    let b = "pub struct Seen;";
    assert_eq!(drawn(&[("lib.rs", "mod a; mod b;"), ("a.rs", text), ("b.rs", b)]), ["a.rs -> b.rs: Seen"]);
}
