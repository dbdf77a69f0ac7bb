//! Every kernel variant against its CPU twin, over odd shapes: run natively and in browsers.

use std::rc::Rc;

use half::f16;
use jird::checkpoint::{Dtype, EncodedRows, RowEncoder, StoredRows, WeightFormat, decode_rows};
use jird::gpu::{Gpu, GpuOptions, Usage};
use jird::kernels::*;

/// Deterministic numbers in −1 … 1.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn value(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }
}

/// A device with and without subgroups, and the comparison.
pub struct Rig {
    pub gpu: Rc<Gpu>,
    checked: usize,
}

/// What a kernel binds: data to read, or a buffer to write with what it held before.
pub enum Arg {
    Read(Vec<u8>),
    Write(Vec<f32>),
}

pub fn read<T: bytemuck::NoUninit>(values: &[T]) -> Arg {
    Arg::Read(bytemuck::cast_slice(values).to_vec())
}

fn output(count: u32) -> Arg {
    Arg::Write(vec![f32::NAN; count as usize])
}

impl Rig {
    pub async fn open(subgroups: bool) -> Self {
        let gpu = Gpu::open(GpuOptions { subgroups, ..GpuOptions::default() }).await.expect("a GPU device");
        Self { gpu, checked: 0 }
    }

    fn subgroup_min(&self) -> Option<u32> {
        self.gpu.capabilities().subgroup_min
    }

    /// What the kernel leaves in its written buffers, in order.
    pub async fn run(&mut self, kernel: &dyn Kernel, args: Vec<Arg>) -> Vec<Vec<f32>> {
        let bindings = kernel.bindings();
        assert_eq!(bindings.len(), args.len(), "{kernel:?}");
        let mut buffers = Vec::new();
        for (binding, arg) in bindings.iter().zip(&args) {
            let bytes = match arg {
                Arg::Read(bytes) => bytes.as_slice(),
                Arg::Write(values) => bytemuck::cast_slice(values),
            };
            assert_eq!(*binding == Binding::Write, matches!(arg, Arg::Write(_)), "{kernel:?}");
            buffers.push(Rc::new(self.gpu.upload(kernel.name(), bytes, Usage::Io).expect("a buffer")));
        }
        let bound: Vec<_> = buffers.iter().map(|buffer| (&**buffer, 0..buffer.bytes())).collect();
        let pipeline = self.gpu.pipeline(kernel.name(), &kernel.source(), &bindings);
        let dispatch = self.gpu.dispatch(pipeline, &bound, kernel.workgroups());
        self.gpu.submit([&dispatch], &[]);
        let mut outputs = Vec::new();
        for (buffer, arg) in buffers.iter().zip(&args) {
            if let Arg::Write(values) = arg {
                let bytes = self.gpu.read(buffer, 0..values.len() as u64 * 4).await.expect("results");
                outputs.push(bytemuck::pod_collect_to_vec(&bytes));
            }
        }
        self.checked += 1;
        outputs
    }
}

/// Fails unless every element is within `tolerance` of the twin's, relative to the twin's largest.
fn assert_close(kernel: &dyn Kernel, got: &[f32], twin: &[f32], tolerance: f32) {
    assert_eq!(got.len(), twin.len(), "{kernel:?}");
    let largest = twin.iter().fold(1e-3f32, |largest, value| largest.max(value.abs()));
    for (index, (got, twin)) in got.iter().zip(twin).enumerate() {
        let error = (got - twin).abs() / largest;
        assert!(error <= tolerance, "{kernel:?}: element {index} is {got}, its twin {twin}, error {error:e}");
    }
}

/// Every format that the kernels read.
pub const FORMATS: [WeightFormat; 9] = [
    WeightFormat::F32,
    WeightFormat::F16,
    WeightFormat::Bf16,
    WeightFormat::Affine { bits: 4, group_size: 32 },
    WeightFormat::Affine { bits: 4, group_size: 64 },
    WeightFormat::Affine { bits: 4, group_size: 128 },
    WeightFormat::Affine { bits: 8, group_size: 32 },
    WeightFormat::Affine { bits: 8, group_size: 64 },
    WeightFormat::Affine { bits: 8, group_size: 128 },
];

const NORM: NormKernel = NormKernel { eps: 1e-6, unit_offset: false };
const GEMMA_NORM: NormKernel = NormKernel { eps: 1e-5, unit_offset: true };

/// A random weight: its packed rows as kernel arguments, and what they mean.
fn weight(noise: &mut Noise, format: WeightFormat, rows: u32, columns: u32) -> (Vec<Arg>, Vec<f32>) {
    let values = noise.values((rows * columns) as usize);
    let encoder = RowEncoder::new(StoredRows::floats("test", Dtype::F32, columns as usize), format)
        .expect("an encoder");
    let encoded: EncodedRows = encoder.encode(&[bytemuck::cast_slice(&values)]).expect("rows");
    let dense = decode_rows(format, &encoded);
    let mut args = vec![Arg::Read(encoded.codes)];
    if matches!(format, WeightFormat::Affine { .. }) {
        args.push(Arg::Read(encoded.scales));
    }
    (args, dense)
}

/// Column counts that suit `format`: its least, odd multiples, and a real model's.
fn columns(format: WeightFormat) -> Vec<u32> {
    let least = Gemv::column_multiple(format);
    let mut columns = vec![least, 3 * least];
    if format == WeightFormat::F32 || format == FORMATS[4] {
        columns.extend([576, 1536]);
    }
    columns
}

/// Whether every shape is tested with every format: each pair is a shader to compile, which takes browsers minutes.
fn thorough() -> bool {
    cfg!(not(target_arch = "wasm32")) || option_env!("JIRD_FULL").is_some()
}

/// Odd counts of rows.
const ROWS: [u32; 6] = [1, 3, 63, 64, 65, 129];

/// Every count for one float and one affine format, and two for the others in turn.
fn rows(format: WeightFormat) -> Vec<u32> {
    if format == WeightFormat::F32 || format == FORMATS[4] {
        return [&ROWS[..], &[2050]].concat();
    }
    if thorough() {
        return ROWS.to_vec();
    }
    let turn = FORMATS.iter().position(|other| *other == format).unwrap_or(0);
    vec![ROWS[turn % ROWS.len()], ROWS[(turn + 3) % ROWS.len()]]
}

pub async fn gemv(rig: &mut Rig) {
    let noise = &mut Noise::new(1);
    for format in FORMATS {
        for columns in columns(format) {
            for rows in rows(format) {
                check_gemv(rig, noise, format, rows, columns, Input::Plain, Output::Plain).await;
            }
        }
        for output in [
            Output::AddResidual,
            Output::Gated(Activation::Silu),
            Output::Gated(Activation::GeluTanh),
            Output::Softcap(3.0),
        ] {
            check_gemv(rig, noise, format, 65, 128, Input::Plain, output).await;
        }
    }
    for norm in [NORM, GEMMA_NORM] {
        for update in [None, Some(PostNorm::None), Some(PostNorm::Norm)] {
            for keep_residual in [false, update.is_some()] {
                let input = Input::Norm(NormInput { norm, update, keep_residual });
                check_gemv(rig, noise, WeightFormat::F32, 65, 68, input, Output::Plain).await;
                check_gemv(rig, noise, FORMATS[4], 129, 1536, input, Output::Gated(Activation::Silu)).await;
            }
        }
    }
}

async fn check_gemv(
    rig: &mut Rig,
    noise: &mut Noise,
    format: WeightFormat,
    rows: u32,
    columns: u32,
    input: Input,
    output: Output,
) {
    let update = match input {
        Input::Norm(input) => input.update,
        Input::Plain => None,
    };
    let last_row = update == Some(PostNorm::None);
    // As on a GPU for odd counts, and as on a processor for even ones.
    let busy_workgroups = if rows % 2 == 1 { 256 } else { 4 };
    let subgroup_min = rig.subgroup_min();
    let kernel = Gemv { format, rows, columns, input, last_row, output, busy_workgroups, subgroup_min };
    let weight_rows = if matches!(output, Output::Gated(_)) { 2 * rows } else { rows };
    let (mut args, dense) = weight(noise, format, weight_rows, columns);
    let step = Step { rows: 3, ..Step::default() };
    let row = if last_row { 2 } else { 0 };
    // Rows of activations where the input has them, single rows for the norms' weights.
    let counts: Vec<usize> = (0..input_reads(input)).map(|i| if i % 2 == 0 { 3 } else { 1 }).collect();
    let reads: Vec<Vec<f32>> = counts.iter().map(|count| noise.values(count * columns as usize)).collect();
    args.extend(reads.iter().map(|values| read(values)));
    let residual = noise.values(rows as usize);
    if last_row {
        args.push(read(&[step]));
    }
    if output == Output::AddResidual {
        args.push(read(&residual));
    }
    args.push(self::output(rows));
    let keep = matches!(input, Input::Norm(NormInput { keep_residual: true, .. }));
    if keep {
        let rows = if last_row { 3 } else { 1 };
        args.push(Arg::Write(vec![f32::NAN; rows * columns as usize]));
    }
    let twin_reads: Vec<&[f32]> = counts
        .iter()
        .zip(&reads)
        .map(
            |(&count, values)| {
                if count == 3 { &values[row * columns as usize..][..columns as usize] } else { values }
            },
        )
        .collect();
    let (twin_input, twin_residual) = input.cpu(&twin_reads);
    let outputs = rig.run(&kernel, args).await;
    assert_close(&kernel, &outputs[0], &kernel.cpu(&dense, &twin_input, &residual), 2e-5);
    if keep {
        assert_close(&kernel, &outputs[1][..columns as usize], &twin_residual, 2e-5);
    }
}

fn input_reads(input: Input) -> usize {
    match input {
        Input::Plain => 1,
        Input::Norm(NormInput { update: None, .. }) => 2,
        Input::Norm(NormInput { update: Some(PostNorm::None), .. }) => 3,
        Input::Norm(NormInput { update: Some(PostNorm::Norm), .. }) => 4,
    }
}

pub async fn matmul(rig: &mut Rig) {
    let noise = &mut Noise::new(2);
    for format in FORMATS {
        let shapes =
            [(3, 63, 3), (17, 65, 1), (65, 129, 2), (1, 1, 1), (16, 64, 1), (64, 3, 3), (129, 65, 2)];
        let count = if format == WeightFormat::F32 || thorough() { shapes.len() } else { 3 };
        for (m, rows, columns) in shapes.into_iter().take(count) {
            let columns = columns * Gemv::column_multiple(format);
            let (mut args, dense) = weight(noise, format, rows, columns);
            let kernel = Matmul { format, m, rows, columns, y_stride: rows };
            let x = noise.values((m * columns) as usize);
            args.extend([read(&x), output(m * rows)]);
            let outputs = rig.run(&kernel, args).await;
            assert_close(&kernel, &outputs[0], &kernel.cpu(&dense, &x), 2e-5);
        }
    }
}

pub async fn gather(rig: &mut Rig) {
    let noise = &mut Noise::new(3);
    for format in FORMATS {
        let columns = 3 * Gemv::column_multiple(format);
        let (args, dense) = weight(noise, format, 65, columns);
        let tokens = [0, 64, 7, 7, 63];
        let whole = Gather { format, m: 5, first_row: 0, rows: 65, columns, scale: 25.25 };
        let mut whole_args = args;
        whole_args.extend([read(&tokens), output(5 * columns)]);
        let outputs = rig.run(&whole, whole_args).await;
        assert_close(&whole, &outputs[0], &whole.cpu(&dense, &tokens), 1e-6);
    }
    // A shard writes its own tokens' rows and leaves the rest.
    let (mut args, dense) = weight(noise, WeightFormat::F32, 10, 4);
    let shard = Gather { format: WeightFormat::F32, m: 3, first_row: 100, rows: 10, columns: 4, scale: 1.0 };
    args.extend([read(&[105u32, 99, 110]), Arg::Write(vec![7.0; 12])]);
    let outputs = rig.run(&shard, args).await;
    assert_eq!(outputs[0][..4], dense[20..24]);
    assert_eq!(outputs[0][4..], [7.0; 8]);
}

pub async fn rms_norm(rig: &mut Rig) {
    let noise = &mut Noise::new(4);
    for (m, columns) in [(1, 4), (3, 68), (2, 576), (5, 1540)] {
        for norm in [NORM, GEMMA_NORM] {
            for update in [None, Some(PostNorm::None), Some(PostNorm::Norm)] {
                let keep_residual = update.is_some();
                let input = NormInput { norm, update, keep_residual };
                let kernel = RmsNormKernel { input, m, columns, subgroup_min: rig.subgroup_min() };
                let reads: Vec<Vec<f32>> = (0..input_reads(Input::Norm(input)))
                    .map(|i| noise.values((if i % 2 == 0 { m * columns } else { columns }) as usize))
                    .collect();
                let mut args: Vec<Arg> = reads.iter().map(|values| read(values)).collect();
                args.push(output(m * columns));
                if keep_residual {
                    args.push(output(m * columns));
                }
                let outputs = rig.run(&kernel, args).await;
                for row in 0..m as usize {
                    let range = row * columns as usize..(row + 1) * columns as usize;
                    let row_reads: Vec<&[f32]> = reads
                        .iter()
                        .enumerate()
                        .map(|(i, values)| if i % 2 == 0 { &values[range.clone()] } else { &values[..] })
                        .collect();
                    let (normed, residual) = Input::Norm(input).cpu(&row_reads);
                    assert_close(&kernel, &outputs[0][range.clone()], &normed, 1e-5);
                    if keep_residual {
                        assert_close(&kernel, &outputs[1][range], &residual, 1e-5);
                    }
                }
            }
        }
    }
}

pub async fn gated_act(rig: &mut Rig) {
    let noise = &mut Noise::new(5);
    for activation in [Activation::Silu, Activation::GeluTanh] {
        for (m, columns) in [(1, 1), (3, 65), (5, 129)] {
            let kernel = GatedAct { activation, m, columns };
            let mut gate_up: Vec<f32> =
                noise.values((2 * m * columns) as usize).iter().map(|v| v * 8.0).collect();
            gate_up[0] = -3e4; // the far ends, where exp and tanh overflow
            if m > 1 {
                gate_up[1] = 3e4;
            }
            let outputs = rig.run(&kernel, vec![read(&gate_up), output(m * columns)]).await;
            assert_close(&kernel, &outputs[0], &kernel.cpu(&gate_up), 1e-5);
        }
    }
}

/// Every source of keys and values with every combination of norms, over the head shapes of real models.
pub fn projections() -> Vec<Projection> {
    let shapes = [(4, 2, 16), (9, 3, 64), (8, 1, 256), (1, 1, 36), (8, 1, 512)];
    let norms = [
        (None, None, None),
        (Some(NORM), Some(NORM), Some(1e-6)),
        (Some(GEMMA_NORM), Some(GEMMA_NORM), None),
    ];
    let sources = [KeyValues::Projected, KeyValues::KeysAsValues, KeyValues::Shared];
    let mut projections = Vec::new();
    for (heads, kv_heads, head_dim) in shapes {
        for (q_norm, k_norm, v_norm) in norms {
            for key_values in sources {
                projections.push(Projection {
                    heads,
                    kv_heads,
                    head_dim,
                    key_values,
                    q_norm,
                    k_norm,
                    v_norm,
                });
            }
        }
    }
    projections
}

/// Turns by any angle, `[rows, head_dim/2]` of (cos, sin).
fn turns(noise: &mut Noise, rows: u32, head_dim: u32) -> Vec<[f32; 2]> {
    let mut turn = || {
        let angle = noise.value() * 3.0;
        [angle.cos(), angle.sin()]
    };
    (0..rows * head_dim / 2).map(|_| turn()).collect()
}

/// Both formats of a cache.
const CACHE_FORMATS: [CacheFormat; 2] = [CacheFormat::F32, CacheFormat::F16];

/// A cache's elements as the words that hold them.
fn cached(values: &[f32], format: CacheFormat) -> Vec<f32> {
    match format {
        CacheFormat::F32 => values.to_vec(),
        CacheFormat::F16 => {
            let halves: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
            bytemuck::pod_collect_to_vec(&halves)
        }
    }
}

/// The elements of a cache of which `words` were read.
fn uncached(words: &[f32], format: CacheFormat) -> Vec<f32> {
    match format {
        CacheFormat::F32 => words.to_vec(),
        CacheFormat::F16 => {
            let halves: Vec<f16> = bytemuck::pod_collect_to_vec(words);
            halves.into_iter().map(f16::to_f32).collect()
        }
    }
}

/// Random elements as a cache of `format` holds them.
fn cache_values(noise: &mut Noise, count: u32, format: CacheFormat) -> Vec<f32> {
    noise.values(count as usize).into_iter().map(|value| format.rounded(value)).collect()
}

pub async fn rope_append(rig: &mut Rig) {
    let noise = &mut Noise::new(6);
    for (index, projection) in projections().into_iter().enumerate() {
        let Projection { heads, kv_heads, head_dim, .. } = projection;
        let (m, format) = (3, CACHE_FORMATS[index % 2]);
        let cache = CacheLayout { slots: 9, format };
        let kernel = RopeAppend { projection, m, cache, subgroup_min: rig.subgroup_min() };
        // The second row begins the ring anew.
        let step = Step { position: 17, rows: 2, ..Step::default() };
        let projected = noise.values((m * projection.projected() * head_dim) as usize);
        let rope = turns(noise, m, head_dim);
        let norms = [noise.values(head_dim as usize), noise.values(head_dim as usize)];
        let elements = (cache.slots * kv_heads * head_dim) as usize;
        let mut caches = [vec![5.0; elements], vec![6.0; elements]];

        let appends = projection.appends();
        let mut args = Vec::from_iter(appends.then(|| read(&[step])));
        args.extend([read(&projected), read(&rope)]);
        args.extend(projection.q_norm.map(|_| read(&norms[0])));
        args.extend(projection.k_norm.filter(|_| appends).map(|_| read(&norms[1])));
        args.push(output(m * heads * head_dim));
        if appends {
            args.extend(caches.iter().map(|values| Arg::Write(cached(values, format))));
        }
        let outputs = rig.run(&kernel, args).await;
        let [k_cache, v_cache] = &mut caches;
        let q = kernel.cpu(&step, &projected, &rope, [&norms[0], &norms[1]], [k_cache, v_cache]);
        assert_close(&kernel, &outputs[0], &q, 1e-5);
        for (got, twin) in outputs[1..].iter().zip(&caches) {
            // Where twin and kernel round to neighbouring halves.
            let tolerance = if format == CacheFormat::F16 { 1e-3 } else { 1e-5 };
            assert_close(&kernel, &uncached(got, format), twin, tolerance);
        }
    }
}

pub async fn attention(rig: &mut Rig) {
    let noise = &mut Noise::new(7);
    let heads = [(4, 2, 16), (9, 3, 64), (4, 1, 256), (2, 2, 36), (2, 1, 512)];
    let steps = [(1, 0, 1), (1, 70, 1), (1, 300, 1), (3, 0, 3), (17, 64, 9), (65, 129, 65)];
    let masks = [(true, None), (true, Some(8)), (false, None), (false, Some(63))];
    for (shape, (heads, kv_heads, head_dim)) in heads.into_iter().enumerate() {
        for (index, (m, position, rows)) in steps.into_iter().enumerate() {
            // Every mask meets every step and every head shape; all combinations would be 120 shaders.
            let chosen = [(shape + index) % masks.len(), (shape + index + 1) % masks.len()];
            for (causal, window) in chosen.map(|mask| masks[mask]) {
                // With a window the cache is a ring with room for it and the step.
                let slots = window.map_or(320, |window: u32| window + m);
                let slots = if causal { slots } else { 320 };
                let cache = CacheLayout { slots, format: CACHE_FORMATS[(shape + index) % 2] };
                let kernel = Attention {
                    m,
                    heads,
                    kv_heads,
                    head_dim,
                    cache,
                    scale: 2.0 / (head_dim as f32).sqrt(),
                    causal,
                    window,
                    subgroup_min: rig.subgroup_min(),
                };
                let step = Step { position, rows, ..Step::default() };
                let q = noise.values((m * heads * head_dim) as usize);
                let k = cache_values(noise, slots * kv_heads * head_dim, cache.format);
                let v = cache_values(noise, slots * kv_heads * head_dim, cache.format);
                let real = (rows * heads * head_dim) as usize;
                let caches = [&k, &v].map(|values| read(&cached(values, cache.format)));
                let mut args = vec![read(&[step]), read(&q)];
                args.extend(caches);
                args.push(output(m * heads * head_dim));
                let outputs = rig.run(&kernel, args).await;
                assert_close(&kernel, &outputs[0][..real], &kernel.cpu(&step, &q[..real], &k, &v), 2e-5);
            }
        }
    }
}

pub async fn argmax(rig: &mut Rig) {
    let noise = &mut Noise::new(8);
    for n in [1, 3, 63, 1024, 1025, 49_152, 262_144] {
        let mut logits = noise.values(n as usize);
        let first = Argmax { n, stage: ArgmaxStage::Slices };
        let best = n as usize / 3;
        logits[best] = 2.0;
        logits[n as usize - 1] = if best == n as usize - 1 { 2.0 } else { 2.0 - 1e-6 };
        let pairs = rig.run(&first, vec![read(&logits), output(2 * first.pairs())]).await;
        let last = Argmax { n, stage: ArgmaxStage::Final };
        let token = rig.run(&last, vec![read(&pairs[0]), output(1)]).await;
        assert_eq!(token[0][0].to_bits(), Argmax::cpu(&logits), "{n} logits");
    }
}

pub async fn sampling(rig: &mut Rig) {
    let noise = &mut Noise::new(9);
    let off = Step { rows: 1, seed: 7, temperature: 1.0, top_p: 1.0, ..Step::default() };
    let steps = [
        off,
        Step { temperature: 0.3, ..off },
        Step { top_k: 1, ..off },
        Step { top_k: 40, seed: 8, ..off },
        Step { top_p: 0.9, position: 3, ..off },
        Step { top_k: 64, top_p: 0.95, temperature: 0.7, ..off },
        Step { min_p: 0.05, temperature: 1.5, ..off },
        Step { top_k: 500, top_p: 0.5, min_p: 0.1, ..off },
    ];
    for n in [5, 1000, 49_152] {
        let logits: Vec<f32> = noise.values(n as usize).iter().map(|v| v * 12.0).collect();
        for step in &steps {
            let kernel = Threshold { n, subgroup_min: rig.subgroup_min() };
            let result = rig.run(&kernel, vec![read(&[*step]), read(&logits), output(2)]).await;
            let twin = kernel.cpu(step, &logits);
            let kept = |threshold: f32| logits.iter().filter(|&&logit| logit >= threshold).count();
            // Sums of thousands of probabilities round differently, so one token at the edge may differ.
            let slack = usize::from(step.top_p < 1.0);
            assert!(
                kept(result[0][0]).abs_diff(kept(twin[0])) <= slack,
                "{step:?}: {:?}, twin {twin:?}",
                result[0]
            );
            assert_eq!(result[0][1], twin[1], "{step:?}");

            let first = Argmax { n, stage: ArgmaxStage::SampledSlices };
            let args = vec![read(&[*step]), read(&twin), read(&logits), output(2 * first.pairs())];
            let pairs = rig.run(&first, args).await;
            let last = Argmax { n, stage: ArgmaxStage::Final };
            let token = rig.run(&last, vec![read(&pairs[0]), output(1)]).await;
            assert_eq!(token[0][0].to_bits(), Argmax::cpu_sampled(step, twin, &logits), "{step:?}");
        }
    }
}
