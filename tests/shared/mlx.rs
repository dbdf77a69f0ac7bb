//! Checkpoints rewritten as MLX would have them: quantised modules, other names, another order.

use std::collections::BTreeMap;

use half::bf16;
use jird::checkpoint::{Checkpoint, Dtype, to_f32};
use jird::fetch::{MemoryOpener, Repo};
use safetensors::tensor::TensorView;

/// Name, dtype, shape, bytes.
pub type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

pub async fn tensors(weights: &[u8]) -> Vec<Tensor> {
    let files = [("model.safetensors".to_owned(), weights.to_vec())];
    let checkpoint = Checkpoint::open(&Repo::new(MemoryOpener::new(files))).await.expect("a checkpoint");
    let mut tensors = Vec::new();
    for name in checkpoint.names() {
        let info = checkpoint.tensor(name).expect("a tensor");
        let bytes = checkpoint.read(name).await.expect("bytes");
        tensors.push((name.to_owned(), info.dtype, info.shape.clone(), bytes));
    }
    tensors
}

/// A safetensors file with these tensors in this order, as MLX also writes them in any.
pub fn file(tensors: &[Tensor]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    header.insert("__metadata__".to_owned(), serde_json::Value::Null);
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        data.extend(bytes);
        let entry =
            serde_json::json!({ "dtype": dtype.to_string(), "shape": shape, "data_offsets": offsets });
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).expect("a header");
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// The same values as F32.
pub fn plain(tensors: &[Tensor]) -> Vec<u8> {
    let as_f32 = |(name, dtype, shape, bytes): &Tensor| {
        let values = to_f32(name, *dtype, bytes).expect("floats");
        (
            name.clone(),
            Dtype::F32,
            shape.clone(),
            values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>(),
        )
    };
    let tensors: Vec<Tensor> = tensors.iter().map(as_f32).collect();
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("a view"))
    });
    safetensors::serialize(views.collect::<BTreeMap<_, _>>(), None).expect("a file")
}

/// A matrix as MLX's affine mode stores it, and the values that this means.
pub fn quantised(tensor: &Tensor, bits: u32, group_size: usize) -> ([Tensor; 3], Tensor) {
    let (name, dtype, shape, bytes) = tensor;
    let [rows, columns] = [shape[0], shape[1]];
    let values = to_f32(name, *dtype, bytes).expect("floats");
    let levels = ((1u32 << bits) - 1) as f32;
    let (mut stream, mut scales, mut biases, mut exact) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for group in values.chunks(group_size) {
        let least = group.iter().copied().fold(f32::INFINITY, f32::min);
        let most = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = bf16::from_f32((most - least) / levels);
        let bias = bf16::from_f32(least);
        for value in group {
            let code = ((value - bias.to_f32()) / scale.to_f32()).round().clamp(0.0, levels);
            stream.extend((0..bits).map(|bit| (code as u32 >> bit & 1) as u8));
            exact.extend((scale.to_f32() * code + bias.to_f32()).to_le_bytes());
        }
        scales.extend(scale.to_le_bytes());
        biases.extend(bias.to_le_bytes());
    }
    let packed =
        stream.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | bit)).collect();
    let base = name.strip_suffix(".weight").expect("a weight");
    let groups = vec![rows, columns / group_size];
    (
        [
            (name.clone(), Dtype::U32, vec![rows, columns * bits as usize / 32], packed),
            (format!("{base}.scales"), Dtype::BF16, groups.clone(), scales),
            (format!("{base}.biases"), Dtype::BF16, groups, biases),
        ],
        (name.clone(), Dtype::F32, shape.clone(), exact),
    )
}
