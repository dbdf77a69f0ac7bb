//! The floors of the house: a room uses only the floors below its own, says on which it stands, and every
//! shader has its Rust side.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Every room and its floor. `error` stands below them all.
const FLOORS: [(&str, u32); 10] = [
    ("fetch", 0),
    ("text", 0),
    ("checkpoint", 1),
    ("gpu", 1),
    ("kernels", 2),
    ("plan", 3),
    ("nn", 4),
    ("models", 5),
    ("engine", 6),
    ("js", 7),
];
const BELOW_ALL: &str = "error";

/// Files of `src/kernels` that are no kernels: the trait, the preprocessor, and the sides of pieces of
/// `shaders/lib` that several kernels import.
const NO_KERNELS: [&str; 6] = ["mod", "shader", "kv_cache", "norm", "projection", "weight"];

fn floor(room: &str) -> Option<u32> {
    FLOORS.iter().find(|(name, _)| *name == room).map(|(_, floor)| *floor)
}

/// What is wrong with `path`, a path from the crate's root in a file of `room`.
fn violation(room: &str, path: &str) -> Option<String> {
    let used = path.split("::").next().unwrap_or_default();
    if used == BELOW_ALL || used == room {
        return None;
    }
    let Some(below) = floor(used) else { return Some(format!("{path} is in no room")) };
    match floor(room) {
        Some(above) if above > below => None,
        Some(above) => Some(format!("{room} on floor {above} uses {path} on floor {below}")),
        None => Some(format!("{room}, below all rooms, uses {path}")),
    }
}

/// The paths from the crate's root in `source`, a module `depth` modules below the root: those that begin
/// with `crate`, and those whose `super`s climb as high. Nested groups give one path per leaf.
fn crate_paths(source: &str, depth: usize) -> Vec<String> {
    let tokens = TokenStream::from_str(source).expect("Rust code");
    let mut paths = Vec::new();
    collect(&tokens.into_iter().collect::<Vec<_>>(), depth, &mut paths);
    paths
}

fn collect(tokens: &[TokenTree], depth: usize, paths: &mut Vec<String>) {
    let mut at = 0;
    while at < tokens.len() {
        let climbs = tokens[at..]
            .chunks(3)
            .take_while(|part| is_ident(part.first(), "super") && is_separator(&part[1..]))
            .count();
        let starts_path = at < 2 || !is_separator(&tokens[at - 2..]);
        if starts_path && is_ident(tokens.get(at), "crate") && is_separator(&tokens[at + 1..]) {
            at = leaves(tokens, at + 3, "", paths);
        } else if starts_path && climbs == depth && depth > 0 {
            at = leaves(tokens, at + 3 * climbs, "", paths);
        } else {
            if let TokenTree::Group(group) = &tokens[at] {
                let is_module =
                    group.delimiter() == Delimiter::Brace && at >= 2 && is_ident(tokens.get(at - 2), "mod");
                let inner: Vec<_> = group.stream().into_iter().collect();
                collect(&inner, depth + usize::from(is_module), paths);
            }
            at += 1;
        }
    }
}

/// Reads a path or use tree at `at`, adds its leaves behind `prefix`, and returns where it ends.
fn leaves(tokens: &[TokenTree], mut at: usize, prefix: &str, paths: &mut Vec<String>) -> usize {
    let mut path = prefix.to_owned();
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => path.push_str(&ident.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                for tree in inner.split(|token| is_punct(Some(token), ',')).filter(|tree| !tree.is_empty()) {
                    leaves(tree, 0, &path, paths);
                }
                return at + 1;
            }
            Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => path.push('*'),
            // The end of a turbofish or of a generic path: `Vec::<u32>`.
            _ => {
                paths.push(path.trim_end_matches("::").to_owned());
                return at;
            }
        }
        at += 1;
        if !is_separator(&tokens[at..]) {
            paths.push(path);
            return at;
        }
        path.push_str("::");
        at += 2;
    }
}

fn is_ident(token: Option<&TokenTree>, name: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(ident)) if ident == name)
}

fn is_punct(token: Option<&TokenTree>, character: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

fn is_separator(tokens: &[TokenTree]) -> bool {
    is_punct(tokens.first(), ':') && is_punct(tokens.get(1), ':')
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below `folder`, relative to it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { &mut open } else { &mut found }.push(path);
        }
    }
    found.iter().map(|path| path.strip_prefix(folder).expect("a path below").to_owned()).collect()
}

/// The modules that `file`, relative to `src`, stands for: `gpu/mod.rs` for gpu, `gpu/device.rs` for gpu, device.
fn modules(file: &Path) -> Vec<String> {
    let mut parts: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod" || last == "lib") {
        parts.pop();
    }
    parts
}

/// Stems of the files of `folder` with this extension, those in folders below left out.
fn stems(folder: &Path, extension: &str) -> BTreeSet<String> {
    files(folder)
        .iter()
        .filter(|file| file.components().count() == 1 && file.extension().is_some_and(|e| e == extension))
        .filter_map(|file| file.file_stem().map(|stem| stem.to_string_lossy().into_owned()))
        .collect()
}

#[test]
fn rooms_use_only_the_floors_below() {
    let src = root().join("src");
    let mut wrong = Vec::new();
    let mut checked = 0;
    for file in files(&src).iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
        let modules = modules(file);
        let Some(room) = modules.first() else { continue };
        for path in crate_paths(&text(&src.join(file)), modules.len()) {
            checked += 1;
            wrong.extend(violation(room, &path).map(|what| format!("src/{}: {what}", file.display())));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(checked > 100, "only {checked} paths were found");
}

#[test]
fn rooms_name_their_floor_and_the_table_has_all_rooms() {
    let source = text(&root().join("src/lib.rs"));
    let declared: BTreeSet<&str> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub mod ")?.strip_suffix(';'))
        .filter(|module| *module != BELOW_ALL)
        .collect();
    assert_eq!(declared, FLOORS.iter().map(|(room, _)| *room).collect());
    for (room, floor) in FLOORS {
        let opening = format!("//! Floor {floor}. ");
        let source = text(&root().join(format!("src/{room}/mod.rs")));
        assert!(source.starts_with(&opening), "src/{room}/mod.rs does not begin with {opening:?}");
    }
}

#[test]
fn every_shader_has_its_kernel_and_every_kernel_its_shader() {
    let shaders = stems(&root().join("shaders"), "wgsl");
    let mut sides = stems(&root().join("src/kernels"), "rs");
    for name in NO_KERNELS {
        assert!(sides.remove(name), "src/kernels/{name}.rs is gone: take it from the list");
    }
    assert_eq!(shaders, sides);
    for name in shaders {
        let side = text(&root().join(format!("src/kernels/{name}.rs")));
        for needed in [format!("include_str!(\"../../shaders/{name}.wgsl\")"), format!("\"{name}\"")] {
            assert!(side.contains(&needed), "src/kernels/{name}.rs has no {needed}");
        }
    }
}

#[test]
fn every_library_piece_is_listed_and_imported() {
    let shaders = root().join("shaders");
    let library = text(&root().join("src/kernels/shader.rs"));
    let all: String = files(&shaders).iter().map(|file| text(&shaders.join(file))).collect();
    for name in stems(&shaders.join("lib"), "wgsl") {
        let entry = format!("(\"lib/{name}.wgsl\", include_str!(\"../../shaders/lib/{name}.wgsl\"))");
        assert!(library.contains(&entry), "LIBRARY of src/kernels/shader.rs has no {entry}");
        let import = format!("#import \"lib/{name}.wgsl\"");
        assert!(all.lines().any(|line| line.trim() == import), "no shader has {import}");
    }
}

#[test]
fn arrows_that_run_up_or_sideways_are_found() {
    let wrong = |room: &str, source: &str| -> Vec<String> {
        crate_paths(source, 2).iter().filter_map(|path| violation(room, path)).collect()
    };
    assert_eq!(wrong("gpu", "use crate::error::Result;\nuse crate::gpu::Buffer;"), [""; 0]);
    assert_eq!(
        wrong("gpu", "use crate::{error::{Code, Error}, checkpoint::{self, Dtype}};"),
        [
            "gpu on floor 1 uses checkpoint::self on floor 1",
            "gpu on floor 1 uses checkpoint::Dtype on floor 1"
        ]
    );
    assert_eq!(
        wrong("text", "fn f() -> u32 { g(crate::fetch::BLOCK_SIZE) }"),
        ["text on floor 0 uses fetch::BLOCK_SIZE on floor 0"]
    );
    assert_eq!(
        wrong("plan", "fn f() { assert!(matches!(x, crate::nn::Sampler::Greedy)); }"),
        ["plan on floor 3 uses nn::Sampler::Greedy on floor 4"]
    );
    assert_eq!(wrong("error", "use crate::gpu::Gpu;"), ["error, below all rooms, uses gpu::Gpu"]);
    assert_eq!(
        wrong("nn", "struct S { model: crate::models::Llama, weights: Vec<crate::nn::Weight> }"),
        ["nn on floor 4 uses models::Llama on floor 5"]
    );
    assert_eq!(wrong("models", "use crate::*;"), ["* is in no room"]);
    assert_eq!(wrong("engine", "use crate::nn::{Loader, WeightDtype};"), [""; 0]);
    assert_eq!(wrong("gpu", "// use crate::plan::Plan;\nconst S: &str = \"crate::plan\";"), [""; 0]);
}

#[test]
fn paths_that_climb_to_the_root_by_super_are_found() {
    assert_eq!(crate_paths("use super::super::plan::{Plan, Value};", 2), ["plan::Plan", "plan::Value"]);
    assert_eq!(crate_paths("use super::Buffer; mod tests { use super::super::x; }", 2), [""; 0]);
    assert_eq!(crate_paths("mod tests { use super::super::super::plan; }", 2), ["plan"]);
    assert_eq!(crate_paths("use super::engine;", 1), ["engine"]);
    assert_eq!(crate_paths("f(crate::gpu::size::<u32>(1), crate::plan::x)", 1), ["gpu::size", "plan::x"]);
}
