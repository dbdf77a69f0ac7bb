//! The preprocessor of the shaders: imports, conditional lines, binding numbers and a generated prelude.
//!
//! A template is plain WGSL with four additions:
//! - `#import "lib/name.wgsl"` puts a shared piece there, once;
//! - `#ifdef FLAG`, `#ifndef FLAG`, `#else`, `#endif` keep or drop lines;
//! - `@binding(_)` takes the next binding number;
//! - constants and aliases that the kernel's key renders stand before everything else.

use std::collections::BTreeSet;
use std::fmt::Write;

/// The shared pieces, by the name under which templates import them.
const LIBRARY: &[(&str, &str)] = &[
    ("lib/activation.wgsl", include_str!("../../shaders/lib/activation.wgsl")),
    ("lib/combine.wgsl", include_str!("../../shaders/lib/combine.wgsl")),
    ("lib/kv_cache.wgsl", include_str!("../../shaders/lib/kv_cache.wgsl")),
    ("lib/norm.wgsl", include_str!("../../shaders/lib/norm.wgsl")),
    ("lib/projection.wgsl", include_str!("../../shaders/lib/projection.wgsl")),
    ("lib/reduce.wgsl", include_str!("../../shaders/lib/reduce.wgsl")),
    ("lib/splits.wgsl", include_str!("../../shaders/lib/splits.wgsl")),
    ("lib/step.wgsl", include_str!("../../shaders/lib/step.wgsl")),
    ("lib/team_dot.wgsl", include_str!("../../shaders/lib/team_dot.wgsl")),
    ("lib/weight.wgsl", include_str!("../../shaders/lib/weight.wgsl")),
    ("lib/weight_affine.wgsl", include_str!("../../shaders/lib/weight_affine.wgsl")),
    ("lib/weight_bf16.wgsl", include_str!("../../shaders/lib/weight_bf16.wgsl")),
    ("lib/weight_f16.wgsl", include_str!("../../shaders/lib/weight_f16.wgsl")),
    ("lib/weight_f32.wgsl", include_str!("../../shaders/lib/weight_f32.wgsl")),
];

/// What a kernel's key says to its template: constants, aliases and flags.
#[derive(Clone, Debug, Default)]
pub struct Prelude {
    text: String,
    flags: BTreeSet<&'static str>,
}

impl Prelude {
    /// `const NAME: u32`
    pub fn u32(&mut self, name: &str, value: u32) -> &mut Self {
        self.line(format_args!("const {name}: u32 = {value}u;"))
    }

    /// `const NAME: f32`, exact to the bit for finite values.
    pub fn f32(&mut self, name: &str, value: f32) -> &mut Self {
        self.line(format_args!("const {name}: f32 = {value:e}f;"))
    }

    /// `const NAME: bool`
    pub fn bool(&mut self, name: &str, value: bool) -> &mut Self {
        self.line(format_args!("const {name}: bool = {value};"))
    }

    /// `alias NAME = WGSL_TYPE`
    pub fn alias(&mut self, name: &str, wgsl_type: &str) -> &mut Self {
        self.line(format_args!("alias {name} = {wgsl_type};"))
    }

    /// A flag for `#ifdef`, where `set`.
    pub fn flag(&mut self, name: &'static str, set: bool) -> &mut Self {
        if set {
            self.flags.insert(name);
        }
        self
    }

    /// How reductions over a workgroup are made: in subgroups of at least `min` lanes first, or without.
    pub fn subgroups(&mut self, min: Option<u32>) -> &mut Self {
        if let Some(min) = min {
            self.flag("SUBGROUPS", true).u32("SUBGROUP_MIN", min);
        }
        self
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) -> &mut Self {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
        self
    }

    /// The complete WGSL of `template` under this prelude.
    pub fn render(&self, template: &str) -> String {
        let mut shader =
            Rendering { prelude: self, text: self.directives(), imported: BTreeSet::new(), bindings: 0 };
        shader.text.push_str(&self.text);
        shader.append(template);
        shader.text
    }

    /// Browsers require the directive that naga does not know.
    fn directives(&self) -> String {
        let enable = cfg!(target_arch = "wasm32") && self.flags.contains("SUBGROUPS");
        if enable { "enable subgroups;\n".to_owned() } else { String::new() }
    }
}

struct Rendering<'a> {
    prelude: &'a Prelude,
    text: String,
    imported: BTreeSet<&'a str>,
    bindings: u32,
}

impl<'a> Rendering<'a> {
    fn append(&mut self, template: &'a str) {
        // One entry per open `#ifdef`: whether its lines are kept.
        let mut kept: Vec<bool> = Vec::new();
        for line in template.lines() {
            let word = |directive: &str| line.trim_start().strip_prefix(directive).map(str::trim);
            if let Some(flag) = word("#ifdef ") {
                kept.push(self.prelude.flags.contains(flag));
            } else if let Some(flag) = word("#ifndef ") {
                kept.push(!self.prelude.flags.contains(flag));
            } else if word("#else").is_some() {
                if let Some(last) = kept.last_mut() {
                    *last = !*last;
                }
            } else if word("#endif").is_some() {
                kept.pop();
            } else if kept.contains(&false) {
            } else if let Some(name) = word("#import ") {
                self.import(name.trim_matches('"'));
            } else {
                self.line(line);
            }
        }
    }

    fn import(&mut self, name: &str) {
        let Some(&(name, source)) = LIBRARY.iter().find(|(library, _)| *library == name) else {
            // Left in the text for the compiler to reject; a test renders every kernel.
            self.line(&format!("#import {name}"));
            return;
        };
        if self.imported.insert(name) {
            self.append(source);
        }
    }

    fn line(&mut self, line: &str) {
        let code = line.split("//").next().unwrap_or_default().trim_end();
        if code.is_empty() {
            return;
        }
        if let Some((before, after)) = code.split_once("@binding(_)") {
            let binding = self.bindings;
            self.line_of(format_args!("{before}@binding({binding}){after}"));
            self.bindings += 1;
        } else {
            self.line_of(format_args!("{code}"));
        }
    }

    fn line_of(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_nest_and_bindings_count_only_kept_lines() {
        let template = "\
#ifdef A
@group(0) @binding(_) var<storage, read> a: array<f32>;
#ifdef B
both
#else
only a
#endif
#else
@group(0) @binding(_) var<storage, read> other: array<f32>;
#endif
@group(0) @binding(_) var<storage, read> last: array<f32>; // a comment
";
        let mut prelude = Prelude::default();
        prelude.flag("A", true);
        assert_eq!(
            prelude.render(template),
            "@group(0) @binding(0) var<storage, read> a: array<f32>;\nonly a\n\
             @group(0) @binding(1) var<storage, read> last: array<f32>;\n"
        );
    }

    #[test]
    fn pieces_are_imported_once_and_floats_keep_their_bits() {
        let mut prelude = Prelude::default();
        prelude.f32("EPS", 1e-6).f32("ONE", 1.0);
        let text = prelude.render("#import \"lib/step.wgsl\"\n#import \"lib/step.wgsl\"\n");
        assert!(text.starts_with("const EPS: f32 = 1e-6f;\nconst ONE: f32 = 1e0f;\n"));
        assert_eq!(text.matches("struct Step").count(), 1);
    }
}
