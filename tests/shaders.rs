//! Every kernel variant through naga, without a GPU: its WGSL is valid, binds what the Rust side declares, and
//! stays within limits that every WebGPU device grants.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, unused_macros, reason = "tests/kernels.rs runs the cases; here are only their formats")]
#[path = "shared/kernels.rs"]
mod cases;

use std::mem::offset_of;

use cases::FORMATS;
use jird::checkpoint::WeightFormat;
use jird::kernels::*;
use naga::proc::Layouter;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, GlobalVariable, Module, ShaderStage, StorageAccess, TypeInner};

const MAX_INVOCATIONS: u32 = 256;
const MAX_WORKGROUP_BYTES: u32 = 16_384;
const MAX_STORAGE_BUFFERS: usize = 8;

/// Without subgroups, with those of software adapters, and with those of most graphics cards.
const SUBGROUPS: [Option<u32>; 3] = [None, Some(4), Some(32)];

const VOCABULARIES: [u32; 3] = [1, 49_152, 262_144];

/// The other offset only changes the value of a constant.
const NORM: NormKernel = NormKernel { eps: 1e-6, unit_offset: true };

/// The splits of one head, and as many as the shares of all heads leave room for.
const COMBINED: [Combine; 2] = [
    Combine { splits: Splits { count: 2, tile: 32, window: Some(512) }, heads: 1 },
    Combine { splits: Splits { count: Combine::MAX_SHARES / 64, tile: 32, window: None }, heads: 64 },
];

/// All of a long context, and a ring.
const CACHES: [CacheLayout; 2] = [
    CacheLayout { slots: 32_768, format: CacheFormat::F32 },
    CacheLayout { slots: 768, format: CacheFormat::F16 },
];

/// The WGSL of a kernel, parsed and validated.
struct Checked {
    what: String,
    module: Module,
    info: ModuleInfo,
    layouter: Layouter,
}

impl Checked {
    fn new(kernel: &dyn Kernel, subgroup_min: Option<u32>) -> Self {
        let what = format!("{kernel:?}");
        let source = kernel.source();
        let module = naga::front::wgsl::parse_str(&source)
            .unwrap_or_else(|error| panic!("{what}\n{}", error.emit_to_string(&source)));
        // WebGPU has pack2x16float and unpack2x16float everywhere. A variant that was not told of subgroups must not use them.
        let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        capabilities.set(Capabilities::SUBGROUP, subgroup_min.is_some());
        let info = Validator::new(ValidationFlags::all(), capabilities)
            .validate(&module)
            .unwrap_or_else(|error| panic!("{what}\n{}", error.emit_to_string(&source)));
        let mut layouter = Layouter::default();
        layouter.update(module.to_ctx()).unwrap_or_else(|error| panic!("{what}: {error}"));
        Self { what, module, info, layouter }
    }

    fn bytes(&self, variable: &GlobalVariable) -> u32 {
        self.layouter[variable.ty].size
    }

    fn workgroup_size(&self) {
        let [entry] = self.module.entry_points.as_slice() else { panic!("{}: one entry point", self.what) };
        assert_eq!((entry.name.as_str(), entry.stage), ("main", ShaderStage::Compute), "{}", self.what);
        let invocations: u32 = entry.workgroup_size.iter().product();
        assert!((1..=MAX_INVOCATIONS).contains(&invocations), "{}: {invocations} invocations", self.what);
    }

    fn workgroup_memory(&self) {
        let bytes: u32 = self
            .module
            .global_variables
            .iter()
            .filter(|(_, variable)| variable.space == AddressSpace::WorkGroup)
            .map(|(_, variable)| self.bytes(variable).next_multiple_of(16))
            .sum();
        assert!(bytes <= MAX_WORKGROUP_BYTES, "{}: {bytes} bytes of workgroup memory", self.what);
    }

    /// The bindings are those that the Rust side declares, in its order, and every one is used.
    fn bindings(&self, declared: &[Binding]) {
        let mut bound = Vec::new();
        for (handle, variable) in self.module.global_variables.iter() {
            let Some(resource) = &variable.binding else { continue };
            let kind = match variable.space {
                AddressSpace::Uniform => Binding::Uniform,
                AddressSpace::Storage { access } if access == StorageAccess::LOAD => Binding::Read,
                AddressSpace::Storage { access } if access == StorageAccess::LOAD | StorageAccess::STORE => {
                    Binding::Write
                }
                other => panic!("{}: binding {} in {other:?}", self.what, resource.binding),
            };
            let is_used = !self.info.get_entry_point(0)[handle].is_empty();
            assert!(is_used, "{}: {:?} is bound and not used", self.what, variable.name);
            bound.push((resource.group, resource.binding, kind));
        }
        bound.sort_by_key(|(group, binding, _)| (*group, *binding));
        let declared: Vec<_> = (0..).zip(declared).map(|(binding, kind)| (0, binding, *kind)).collect();
        assert_eq!(bound, declared, "{}", self.what);
        let storage = declared.iter().filter(|(_, _, kind)| *kind != Binding::Uniform).count();
        assert!(storage <= MAX_STORAGE_BUFFERS, "{}: {storage} storage buffers", self.what);
    }

    /// The uniform block is [`Step`], member by member.
    fn step(&self) {
        let offsets = [
            ("position", offset_of!(Step, position)),
            ("rows", offset_of!(Step, rows)),
            ("seed", offset_of!(Step, seed)),
            ("top_k", offset_of!(Step, top_k)),
            ("temperature", offset_of!(Step, temperature)),
            ("top_p", offset_of!(Step, top_p)),
            ("min_p", offset_of!(Step, min_p)),
            ("padding", offset_of!(Step, padding)),
        ];
        for (_, variable) in self.module.global_variables.iter() {
            if variable.name.as_deref() != Some("step") {
                continue;
            }
            let TypeInner::Struct { members, .. } = &self.module.types[variable.ty].inner else {
                panic!("{}: a uniform block that is no struct", self.what);
            };
            let members: Vec<_> = members
                .iter()
                .map(|member| (member.name.as_deref().unwrap_or_default(), member.offset as usize))
                .collect();
            assert_eq!(members, offsets, "{}", self.what);
            assert_eq!(self.bytes(variable) as usize, size_of::<Step>(), "{}", self.what);
        }
    }
}

fn check(kernel: &dyn Kernel, subgroup_min: Option<u32>) {
    let checked = Checked::new(kernel, subgroup_min);
    checked.workgroup_size();
    checked.workgroup_memory();
    checked.bindings(&kernel.bindings());
    checked.step();
    let workgroups = kernel.workgroups();
    // Above this bound lies the 65,535 of the specification.
    let fits = workgroups.iter().all(|count| (1..=MAX_WORKGROUPS).contains(count));
    assert!(fits, "{kernel:?}: {workgroups:?} workgroups");
}

#[test]
fn the_bound_of_workgroups_is_within_the_specification() {
    const { assert!(MAX_WORKGROUPS <= 65_535) };
}

#[test]
fn gemv() {
    let normed = cases::norm_inputs(NORM).into_iter().map(Input::Norm);
    let inputs: Vec<Input> = std::iter::once(Input::Plain).chain(normed).collect();
    let outputs = [
        Output::Plain,
        Output::Gated(Activation::Silu),
        Output::Gated(Activation::GeluTanh),
        Output::Softcap(30.0),
    ];
    let by_layer = Output::GatedByLayer(LayerGate {
        activation: GELU,
        context_scale: 0.02,
        token_scale: 16.0,
        norm: NORM,
    });
    let choice = Output::Choice(Choice { softcap: Some(30.0), first_row: 64, first_pair: 2 });
    let keeps = |input: &&Input| matches!(input, Input::Norm(NormInput { keep_residual: true, .. }));
    let pairs: Vec<(Input, Output)> = inputs
        .iter()
        .flat_map(|input| outputs.map(|output| (*input, output)))
        .chain(COMBINED.map(|combine| (Input::Combined(combine), Output::Plain)))
        .chain(COMBINED.map(|combine| (Input::Combined(combine), Output::AddResidual)))
        .chain([(Input::Plain, Output::AddResidual), (Input::Plain, Output::Beside)])
        .chain(inputs.iter().filter(|input| !keeps(input)).map(|&input| (input, choice)))
        .chain(inputs.iter().filter(|input| !is_normed(input)).map(|&input| (input, Output::GatedBy(GELU))))
        .chain(inputs.iter().filter(|input| !is_normed(input)).map(|&input| (input, by_layer)))
        .collect();
    for subgroup_min in SUBGROUPS {
        for format in FORMATS {
            // The fewest loads a row, and more than a team of lanes has.
            for columns in [Gemv::column_multiple(format), 6144] {
                let has_heads = |&&(input, _): &&(Input, Output)| match input {
                    Input::Combined(Combine { heads, .. }) => columns >= 4 * heads,
                    _ => true,
                };
                for &(input, output) in pairs.iter().filter(has_heads) {
                    let kernel = Gemv {
                        format,
                        rows: if matches!(output, Output::GatedByLayer(_)) { 256 } else { 257 },
                        columns,
                        input,
                        last_row: false,
                        output,
                        busy_workgroups: 256,
                        subgroup_min,
                    };
                    check(&kernel, subgroup_min);
                }
            }
            for &input in &inputs {
                check(&head(format, 262_144, input, subgroup_min), subgroup_min);
            }
        }
        for rows in VOCABULARIES {
            check(&head(FORMATS[0], rows, Input::Plain, subgroup_min), subgroup_min);
        }
    }
}

const GELU: Activation = Activation::GeluTanh;

fn is_normed(input: &Input) -> bool {
    matches!(input, Input::Norm(NormInput { is_normed: true, .. }))
}

/// The product that makes the logits of a prefill.
fn head(format: WeightFormat, rows: u32, input: Input, subgroup_min: Option<u32>) -> Gemv {
    Gemv {
        format,
        rows,
        columns: 1536,
        input,
        last_row: true,
        output: Output::Plain,
        busy_workgroups: 4,
        subgroup_min,
    }
}

#[test]
fn matmul() {
    for format in FORMATS {
        for m in [1, 16, 17, 256] {
            for (rows, columns) in [(1, Gemv::column_multiple(format)), (24_576, 6144)] {
                check(&Matmul { format, m, rows, columns, y_stride: rows }, None);
            }
        }
    }
}

#[test]
fn gather() {
    for format in FORMATS {
        for m in [1, 256] {
            let columns = 3 * Gemv::column_multiple(format);
            check(&Gather { format, m, first_row: 64, rows: 262_144, columns, scale: 39.2 }, None);
        }
    }
}

#[test]
fn rms_norm() {
    for subgroup_min in SUBGROUPS {
        for input in cases::norm_inputs(NORM) {
            for (m, columns) in [(1, 4), (256, 6144)] {
                for last_row in [false, !input.keep_residual] {
                    let input = Input::Norm(input);
                    check(&RmsNormKernel { input, m, last_row, columns, subgroup_min }, subgroup_min);
                }
            }
        }
        let input = Input::Plain;
        check(&RmsNormKernel { input, m: 1, last_row: true, columns: 1536, subgroup_min }, subgroup_min);
    }
}

#[test]
fn gated_act() {
    for activation in [Activation::Silu, Activation::GeluTanh] {
        for (m, columns) in [(1, 1), (256, 24_576)] {
            for is_apart in [false, true] {
                check(&GatedAct { activation, m, columns, is_apart }, None);
            }
        }
    }
}

#[test]
fn per_layer_inputs() {
    for subgroup_min in SUBGROUPS {
        for (m, last_row) in [(1, false), (1, true), (256, false)] {
            for columns in [4, 256] {
                let kernel = PerLayerInputs {
                    m,
                    last_row,
                    first_layer: 15,
                    layers: 20,
                    all_layers: 35,
                    columns,
                    context_scale: 0.025,
                    token_scale: 16.0,
                    norm: NORM,
                    subgroup_min,
                };
                check(&kernel, subgroup_min);
            }
        }
    }
}

#[test]
fn experts() {
    for (experts, chosen) in [(1, 1), (128, 8), (Route::MAX_EXPERTS, Route::MAX_CHOSEN)] {
        for m in [1, 256] {
            check(&Route { m, experts, chosen, scale: 0.02 }, None);
            check(&ExpertSum { m, chosen, columns: 2816 }, None);
        }
    }
    for subgroup_min in SUBGROUPS {
        for format in FORMATS {
            for (by_expert, columns) in [(false, Gemv::column_multiple(format)), (true, 2816)] {
                let kernel = ExpertGemv {
                    format,
                    m: 256,
                    chosen: 8,
                    rows: 1408,
                    columns,
                    by_expert,
                    first_row: 64,
                    shard_rows: 90_112,
                    subgroup_min,
                };
                check(&kernel, subgroup_min);
            }
        }
    }
}

#[test]
fn rope_append() {
    for subgroup_min in SUBGROUPS {
        for projection in cases::projections() {
            for (m, cache) in [1, 256].into_iter().zip(CACHES) {
                check(&RopeAppend { projection, m, cache, subgroup_min }, subgroup_min);
            }
        }
    }
}

#[test]
fn decode_attention() {
    for subgroup_min in SUBGROUPS {
        for projection in cases::projections() {
            for (cache, window) in CACHES.into_iter().zip([None, Some(512)]) {
                for (count, tile) in [(1, 32), (4, 64), (16, 32)] {
                    let splits = Splits { count, tile, window };
                    for group in cases::groups(&projection) {
                        let scale = 0.125;
                        let kernel =
                            DecodeAttention { projection, cache, scale, splits, group, subgroup_min };
                        check(&kernel, subgroup_min);
                    }
                }
            }
        }
    }
}

#[test]
fn attention() {
    for subgroup_min in SUBGROUPS {
        for head_dim in [4, 16, 36, 64, 80, 128, 256, 512] {
            for m in [1, 16, 256] {
                for (causal, window) in [(true, None), (true, Some(512)), (false, None), (false, Some(8))] {
                    let (heads, kv_heads) = (8, 2);
                    let scale = 0.125;
                    for cache in CACHES {
                        let kernel = Attention {
                            m,
                            heads,
                            kv_heads,
                            head_dim,
                            cache,
                            scale,
                            causal,
                            window,
                            subgroup_min,
                        };
                        check(&kernel, subgroup_min);
                    }
                }
            }
        }
    }
}

#[test]
fn sampling() {
    for n in VOCABULARIES {
        for stage in [ArgmaxStage::Slices, ArgmaxStage::SampledSlices, ArgmaxStage::Final] {
            check(&Argmax { n, stage }, None);
        }
        for subgroup_min in SUBGROUPS {
            check(&Threshold { n, subgroup_min }, subgroup_min);
        }
    }
}

/// The check itself finds a kernel whose Rust side disagrees with its WGSL.
#[test]
#[should_panic(expected = "Write")]
fn a_wrong_declaration_is_found() {
    let kernel = GatedAct { activation: Activation::Silu, m: 1, columns: 1, is_apart: false };
    Checked::new(&kernel, None).bindings(&[Binding::Read, Binding::Read]);
}
