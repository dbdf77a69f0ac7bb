//! Quantised checkpoints through whole models: the same logits as from the values that they stand for.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "shared/mlx.rs"]
mod mlx;

use std::ops::Range;
use std::rc::Rc;

use jird::checkpoint::{Checkpoint, Dtype};
use jird::error::{Code, Result};
use jird::fetch::{MemoryOpener, Repo};
use jird::gpu::{Gpu, GpuOptions, Usage};
use jird::kernels::Step;
use jird::models::{Rows, State, TextModel, declare, unused};
use jird::nn::{Loader, WeightDtype};
use jird::plan::PlanBuilder;
use mlx::Tensor;

const CONFIG: &[u8] = include_bytes!("fixtures/gemma3/pattern/config.json");
const WEIGHTS: &[u8] = include_bytes!("fixtures/gemma3/pattern/model.safetensors");
/// Keys and values are halves beside rounded weights, and one that falls to the other side of a tie differs.
const TOLERANCE: f32 = 1e-3;
const IDS: [u32; 5] = [5, 17, 300, 42, 7];

async fn checkpoint(weights: Vec<u8>) -> Checkpoint {
    let files = [("model.safetensors".to_owned(), weights)];
    Checkpoint::open(&Repo::new(MemoryOpener::new(files))).await.expect("a checkpoint")
}

async fn logits(gpu: &Rc<Gpu>, weights: Vec<u8>, dtype: WeightDtype) -> Result<Vec<f32>> {
    let config = serde_json::from_slice(CONFIG).expect("a configuration");
    logits_of(gpu, &config, weights, dtype).await
}

/// Loads and returns the logits after [`IDS`].
async fn logits_of(
    gpu: &Rc<Gpu>,
    config: &serde_json::Value,
    weights: Vec<u8>,
    dtype: WeightDtype,
) -> Result<Vec<f32>> {
    let checkpoint = checkpoint(weights).await;
    let mut loader = Loader::new(gpu, &checkpoint, dtype);
    let model: Box<dyn TextModel> = declare(config, &mut loader)?;
    loader.run(&|| Ok(())).await?;
    let rows = IDS.len() as u32;
    let state = State::new(gpu, model.dimensions(), 16, rows)?;
    let mut builder = PlanBuilder::new(gpu, rows, true);
    let mut residual = model.forward(&mut builder, &state, Rows::All);
    let logits = model.logits(&mut builder, &state, &mut residual).value;
    builder.keep(logits);
    let plan = builder.compile()?;
    state.write_tokens(gpu, &IDS, rows);
    state.write_step(gpu, &Step { rows, ..Step::default() }, rows);
    gpu.submit(gpu.encode(plan.dispatches(), &[]));
    let bytes = u64::from(logits.columns) * 4;
    Ok(bytemuck::pod_collect_to_vec(&gpu.read(plan.buffer(logits), 0..bytes).await?))
}

fn is_matrix(tensor: &Tensor, group_size: usize) -> bool {
    tensor.2.len() == 2 && tensor.2[1].is_multiple_of(group_size)
}

/// Quantises what `choose` gives bits and group size for; shuffles the tensors as a hash map would. The file,
/// and the one of the values that it stands for.
async fn quantise(choose: impl Fn(&str) -> Option<(u32, usize)>) -> (Vec<u8>, Vec<u8>) {
    let (mut stored, mut meant) = (Vec::new(), Vec::new());
    for tensor in mlx::tensors(WEIGHTS).await {
        match choose(&tensor.0).filter(|(_, group_size)| is_matrix(&tensor, *group_size)) {
            Some((bits, group_size)) => {
                let (planes, values) = mlx::quantised(&tensor, bits, group_size);
                stored.extend(planes);
                meant.push(values);
            }
            None => {
                stored.push(tensor.clone());
                meant.push(tensor);
            }
        }
    }
    stored.sort_by_key(|tensor| {
        tensor.0.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31) ^ u32::from(byte))
    });
    (mlx::file(&stored), mlx::plain(&meant))
}

async fn gpu() -> Rc<Gpu> {
    Gpu::open(GpuOptions::default()).await.expect("a GPU device")
}

fn assert_close(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= TOLERANCE, "{what}: the largest error is {worst:e}");
}

#[test]
fn every_width_computes_with_the_values_that_it_stands_for() {
    pollster::block_on(async {
        let gpu = gpu().await;
        for bits in [2, 3, 4, 5, 6, 8] {
            let (stored, meant) = quantise(|_| Some((bits, 32))).await;
            for dtype in [WeightDtype::Auto, WeightDtype::F32] {
                let expected = logits(&gpu, meant.clone(), dtype).await.expect("logits");
                let got = logits(&gpu, stored.clone(), dtype).await.expect("logits");
                assert_close(&format!("{bits} bits, {dtype:?}"), &got, &expected);
            }
        }
    });
}

/// Stacks of tensors in different formats: other widths and groups, and tensors left as they were.
#[test]
fn modules_may_be_excepted() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let choose = |name: &str| match name {
            name if name.contains("q_proj") => Some((8, 64)),
            name if name.contains("k_proj") => Some((3, 32)),
            name if name.contains("gate_proj") => None,
            name if name.contains("layers.1.") => Some((6, 32)),
            _ => Some((4, 32)),
        };
        let (stored, meant) = quantise(choose).await;
        let expected = logits(&gpu, meant, WeightDtype::Auto).await.expect("logits");
        let got = logits(&gpu, stored, WeightDtype::Auto).await.expect("logits");
        assert_close("excepted modules", &got, &expected);
    });
}

#[test]
fn a_dtype_of_more_bits_keeps_what_is_stored() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let mut bytes = Vec::new();
        for (bits, dtype) in
            [(4, WeightDtype::Auto), (4, WeightDtype::Q4), (4, WeightDtype::Q8), (8, WeightDtype::Q4)]
        {
            let (stored, _) = quantise(|_| Some((bits, 32))).await;
            let checkpoint = checkpoint(stored).await;
            let config = serde_json::from_slice(CONFIG).expect("a configuration");
            let mut loader = Loader::new(&gpu, &checkpoint, dtype);
            let model = declare(&config, &mut loader).expect("a model");
            bytes.push(gpu.ledger().live(Usage::Weights));
            drop(model);
        }
        assert_eq!(bytes[0], bytes[1]);
        assert_eq!(bytes[0], bytes[2]);
        assert!(bytes[3] > bytes[0], "sensitive projections stay at 8 bits: {bytes:?}");
    });
}

/// The names that multimodal checkpoints give to their text model.
#[test]
fn text_models_are_found_under_every_prefix() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let plain = mlx::tensors(WEIGHTS).await;
        let expected = logits(&gpu, mlx::file(&plain), WeightDtype::F32).await.expect("logits");
        for prefix in ["", "model.", "model.language_model.", "language_model.model."] {
            let mut renamed = plain.clone();
            for (name, ..) in &mut renamed {
                *name = format!("{prefix}{}", name.trim_start_matches("model."));
            }
            let got = logits(&gpu, mlx::file(&renamed), WeightDtype::F32).await.expect("logits");
            assert_close(prefix, &got, &expected);
        }
    });
}

#[test]
fn missing_tensors_are_named_and_unused_ones_listed() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let config = serde_json::from_slice(CONFIG).expect("a configuration");
        let (stored, _) = quantise(|_| Some((4, 32))).await;
        let mut tensors = mlx::tensors(&stored).await;
        tensors.retain(|(name, ..)| !name.contains("layers.1.") || name.contains("mlp"));
        tensors.push(("model.layers.0.self_attn.inv_freq".to_owned(), Dtype::F32, vec![1], vec![0; 4]));
        tensors.push(("vision_tower.weight".to_owned(), Dtype::F32, vec![1], vec![0; 4]));
        let checkpoint = checkpoint(mlx::file(&tensors)).await;
        let mut loader = Loader::new(&gpu, &checkpoint, WeightDtype::Auto);
        let error = declare(&config, &mut loader).err().expect("an error");
        assert_eq!(error.code(), Code::MissingTensor);
        for name in ["layers.1.self_attn.q_norm.weight", "layers.1.post_attention_layernorm.weight", "more"] {
            assert!(error.to_string().contains(name), "{error}");
        }
        assert_eq!(unused(&loader), ["model.layers.0.self_attn.inv_freq"]);
    });
}

/// A mixture of experts of sizes that MLX's groups divide, with weights by chance.
async fn mixture() -> (serde_json::Value, Vec<Tensor>) {
    let mut config: serde_json::Value =
        serde_json::from_slice(include_bytes!("fixtures/gemma4/moe/config.json")).expect("a configuration");
    config["hidden_size"] = 64.into();
    config["moe_intermediate_size"] = 32.into();
    let mut tensors = mlx::tensors(include_bytes!("fixtures/gemma4/moe/model.safetensors")).await;
    let mut state = 1u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    for (name, dtype, shape, bytes) in &mut tensors {
        for size in shape.iter_mut() {
            *size = match *size {
                48 | 72 => 64,
                36 => 32,
                other => other,
            };
        }
        let middle = if name.contains("norm") || name.contains("scal") { 1.0 } else { 0.0 };
        let values = (0..shape.iter().product()).map(|_| half::bf16::from_f32(middle + draw() * 0.5));
        *dtype = Dtype::BF16;
        *bytes = values.flat_map(half::bf16::to_le_bytes).collect();
    }
    (config, tensors)
}

/// The rows `rows` of each expert of a tensor `[experts, rows, columns]`, as a matrix of its own.
fn of_each_expert(tensor: &Tensor, name: String, rows: Range<usize>) -> Tensor {
    let (_, dtype, shape, bytes) = tensor;
    let expert = bytes.len() / shape[0];
    let row = expert / shape[1];
    let part = bytes.chunks(expert).flat_map(|expert| &expert[rows.start * row..rows.end * row]);
    (name, *dtype, vec![shape[0] * rows.len(), shape[2]], part.copied().collect())
}

/// MLX keeps the experts' gate and up projections in tensors of their own.
#[test]
fn mixtures_are_read_as_mlx_writes_them() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let (config, tensors) = mixture().await;
        let (mut stored, mut split, mut meant) = (Vec::new(), Vec::new(), Vec::new());
        for tensor in tensors {
            let Some((experts, part)) = tensor.0.split_once(".experts.") else {
                stored.push(tensor.clone());
                split.push(tensor.clone());
                meant.push(tensor);
                continue;
            };
            let [count, rows, columns] = [tensor.2[0], tensor.2[1], tensor.2[2]];
            let parts = match part {
                "gate_up_proj" => vec![("gate_proj", 0..rows / 2), ("up_proj", rows / 2..rows)],
                _ => vec![("down_proj", 0..rows)],
            };
            let mut values: Vec<Vec<u8>> = Vec::new();
            for (part, rows) in parts {
                let name = format!("{experts}.experts.switch_glu.{part}.weight");
                let matrix = of_each_expert(&tensor, name, rows.clone());
                let of_experts = |(name, dtype, shape, bytes): Tensor| {
                    (name, dtype, vec![count, rows.len(), shape[1]], bytes)
                };
                let (planes, exact) = mlx::quantised(&matrix, 4, 32);
                stored.extend(planes.map(of_experts));
                split.push(of_experts(matrix));
                values.push(exact.3);
            }
            // Of each expert, its rows of every part.
            let of_expert = |values: &Vec<u8>, expert: usize| {
                let bytes = values.len() / count;
                values[expert * bytes..(expert + 1) * bytes].to_vec()
            };
            let exact =
                (0..count).flat_map(|expert| values.iter().flat_map(move |part| of_expert(part, expert)));
            meant.push((tensor.0.clone(), Dtype::F32, vec![count, rows, columns], exact.collect()));
        }
        for dtype in [WeightDtype::Auto, WeightDtype::F32] {
            let expected = logits_of(&gpu, &config, mlx::plain(&meant), dtype).await.expect("logits");
            let got = logits_of(&gpu, &config, mlx::file(&stored), dtype).await.expect("logits");
            assert_close(&format!("experts of 4 bits, {dtype:?}"), &got, &expected);
        }
        let checkpoint = checkpoint(mlx::file(&split)).await;
        let mut loader = Loader::new(&gpu, &checkpoint, WeightDtype::Auto);
        declare(&config, &mut loader).expect("a model that is not quantised");
        assert!(unused(&loader).is_empty(), "{:?}", unused(&loader));
    });
}
