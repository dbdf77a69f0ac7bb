//! Every kernel variant against its CPU twin, over odd shapes: run natively and in browsers.

use std::rc::Rc;

use half::f16;
use jird::checkpoint::{Dtype, EncodedRows, RowEncoder, StoredRows, WeightFormat, decode_rows};
use jird::gpu::{Gpu, GpuOptions, Usage};
use jird::kernels::*;

/// Passes the names of all cases below to the macro `$each`, which makes a test of each.
macro_rules! every_kernel {
    ($each:ident) => {
        $each!(
            gemv,
            choice,
            halves,
            matmul,
            gather,
            rms_norm,
            gated_act,
            per_layer_inputs,
            route,
            expert_gemv,
            expert_sum,
            rope_append,
            attention,
            decode_attention,
            combine,
            argmax,
            sampling
        );
    };
}

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
        self.gpu.submit(self.gpu.encode([&dispatch], &[]));
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
pub fn thorough() -> bool {
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
            Output::GatedBy(Activation::GeluTanh),
            Output::Softcap(3.0),
        ] {
            check_gemv(rig, noise, format, 65, 128, Input::Plain, output).await;
        }
    }
    for norm in [NORM, GEMMA_NORM] {
        for input in norm_inputs(norm) {
            check_gemv(rig, noise, WeightFormat::F32, 65, 68, Input::Norm(input), Output::Plain).await;
            let output = match input.is_normed {
                true => Output::Gated(Activation::Silu),
                false => Output::GatedBy(Activation::GeluTanh),
            };
            check_gemv(rig, noise, FORMATS[4], 129, 1536, Input::Norm(input), output).await;
        }
    }
}

/// Every form of input behind a norm, a residual update, or both.
pub fn norm_inputs(norm: NormKernel) -> Vec<NormInput> {
    let updates = [None, Some(PostNorm::None), Some(PostNorm::Norm), Some(PostNorm::ScaledNorm)];
    let mut inputs = Vec::new();
    for update in updates {
        for is_normed in [true, false] {
            let keeps: &[bool] = if update.is_some() { &[false, true] } else { &[false] };
            inputs.extend(keeps.iter().map(|&keep_residual| NormInput {
                norm,
                update,
                is_normed,
                keep_residual,
            }));
        }
    }
    inputs.retain(|input| input.is_normed || input.update.is_some());
    inputs
}

/// What an input binds: rows of activations, or a vector of so many elements more than it has columns.
#[derive(Clone, Copy)]
enum InputRead {
    Rows,
    Vector(usize),
}

impl InputRead {
    /// The reads of `input`, in the order of the bindings.
    fn of(input: Input) -> Vec<Self> {
        let Input::Norm(input) = input else { return vec![InputRead::Rows] };
        let mut reads = vec![InputRead::Rows];
        reads.extend(input.is_normed.then_some(InputRead::Vector(0)));
        reads.extend(input.update.map(|_| InputRead::Rows));
        reads.extend(match input.update {
            Some(PostNorm::Norm) => Some(InputRead::Vector(0)),
            Some(PostNorm::ScaledNorm) => Some(InputRead::Vector(4)),
            _ => None,
        });
        reads
    }

    fn values(self, noise: &mut Noise, rows: u32, columns: u32) -> Vec<f32> {
        match self {
            InputRead::Rows => noise.values((rows * columns) as usize),
            InputRead::Vector(more) => noise.values(columns as usize + more),
        }
    }

    /// What of `values` a kernel reads for `row`.
    fn row(self, values: &[f32], row: usize, columns: u32) -> &[f32] {
        let columns = columns as usize;
        match self {
            InputRead::Rows => &values[row * columns..][..columns],
            InputRead::Vector(_) => values,
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
        Input::Plain | Input::Combined(_) => None,
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
    let kinds = InputRead::of(input);
    let reads: Vec<Vec<f32>> = kinds.iter().map(|kind| kind.values(noise, 3, columns)).collect();
    args.extend(reads.iter().map(|values| read(values)));
    let residual = noise.values(rows as usize);
    if last_row {
        args.push(read(&[step]));
    }
    if matches!(output, Output::AddResidual | Output::GatedBy(_)) {
        args.push(read(&residual));
    }
    args.push(self::output(rows));
    let keep = matches!(input, Input::Norm(NormInput { keep_residual: true, .. }));
    if keep {
        let rows = if last_row { 3 } else { 1 };
        args.push(Arg::Write(vec![f32::NAN; rows * columns as usize]));
    }
    let twin_reads: Vec<&[f32]> =
        kinds.iter().zip(&reads).map(|(kind, values)| kind.row(values, row, columns)).collect();
    let (twin_input, twin_residual) = input.cpu(&twin_reads);
    let outputs = rig.run(&kernel, args).await;
    assert_close(&kernel, &outputs[0], &kernel.cpu(&dense, &twin_input, &residual), 2e-5);
    if keep {
        assert_close(&kernel, &outputs[1][..columns as usize], &twin_residual, 2e-5);
    }
}

/// The head's choice of a token: the best of each workgroup's rows, over two shards.
pub async fn choice(rig: &mut Rig) {
    let noise = &mut Noise::new(12);
    for (softcap, rows) in [(None, [64, 65]), (Some(3.0), [3, 1]), (None, [2050, 129])] {
        let columns = 68;
        let x = noise.values(columns as usize);
        let mut logits = Vec::new();
        let mut pairs: Vec<f32> = Vec::new();
        for rows in rows {
            let choice =
                Choice { softcap, first_row: logits.len() as u32, first_pair: pairs.len() as u32 / 2 };
            let kernel = Gemv {
                format: WeightFormat::F32,
                rows,
                columns,
                input: Input::Plain,
                last_row: false,
                output: Output::Choice(choice),
                busy_workgroups: 256,
                subgroup_min: rig.subgroup_min(),
            };
            let (mut args, dense) = weight(noise, kernel.format, rows, columns);
            // Room beyond the last pair shows that nothing is written there.
            let mut room = pairs.clone();
            room.resize(pairs.len() + 2 * kernel.pairs() as usize, f32::NAN);
            room.push(7.0);
            args.extend([read(&x), output(rows), Arg::Write(room)]);
            let mut outputs = rig.run(&kernel, args).await;
            assert_close(&kernel, &outputs[0], &kernel.cpu(&dense, &x, &[]), 2e-5);
            logits.extend(outputs[0].iter().copied());
            assert_eq!(outputs[1].pop(), Some(7.0));
            pairs = outputs.swap_remove(1);
        }
        let last = Argmax { n: pairs.len() as u32 / 2, stage: ArgmaxStage::Final };
        let token = rig.run(&last, vec![read(&pairs), output(1)]).await;
        assert_eq!(token[0][0].to_bits(), Argmax::cpu(&logits), "{rows:?}");
    }
}

/// A layer's input from its halves, made in the gate that it is for, as two kernels and as three.
pub async fn halves(rig: &mut Rig) {
    let noise = &mut Noise::new(13);
    for (norm, columns, layer_columns) in [(NORM, 68, 12), (GEMMA_NORM, 1536, 256)] {
        let gemv = |rows, input, output, subgroup_min| Gemv {
            format: WeightFormat::F32,
            rows,
            columns,
            input,
            last_row: false,
            output,
            busy_workgroups: 256,
            subgroup_min,
        };
        let (layers, layer) = (3, 1);
        let project = gemv(layers * layer_columns, Input::Plain, Output::Beside, rig.subgroup_min());
        let (mut args, dense) = weight(noise, project.format, project.rows, columns);
        let (x, tokens) = (noise.values(columns as usize), noise.values(project.rows as usize));
        args.extend([read(&x), read(&tokens), output(2 * project.rows)]);
        let halves = rig.run(&project, args).await.swap_remove(0);
        assert_close(&project, &halves, &project.cpu(&dense, &x, &tokens), 2e-5);

        let (activation, context_scale, token_scale) = (Activation::GeluTanh, 0.03, 1.5);
        let made = LayerGate { activation, context_scale, token_scale, norm };
        let update = NormInput { norm, update: Some(PostNorm::Norm), is_normed: false, keep_residual: true };
        let gate = gemv(layer_columns, Input::Norm(update), Output::GatedByLayer(made), rig.subgroup_min());
        let (mut args, dense) = weight(noise, gate.format, gate.rows, columns);
        let reads: Vec<Vec<f32>> = (0..3).map(|_| noise.values(columns as usize)).collect();
        let norm_weight = noise.values(layer_columns as usize);
        let range = (2 * layer * layer_columns) as usize..(2 * (layer + 1) * layer_columns) as usize;
        args.extend(reads.iter().map(|values| read(values)));
        args.extend([read(&halves[range.clone()]), read(&norm_weight), output(gate.rows), output(columns)]);
        let outputs = rig.run(&gate, args).await;

        let unfused = PerLayerInputs {
            m: 1,
            last_row: false,
            first_layer: layer,
            layers: 1,
            all_layers: layers,
            columns: layer_columns,
            context_scale,
            token_scale,
            norm,
            subgroup_min: rig.subgroup_min(),
        };
        let half = |n: usize| halves[range.clone()].iter().copied().skip(n).step_by(2).collect::<Vec<f32>>();
        let up = unfused.cpu(&half(0), &norm_weight, &half(1));
        let rows: Vec<&[f32]> = reads.iter().map(Vec::as_slice).collect();
        let (input, residual) = Input::Norm(update).cpu(&rows);
        assert_close(&gate, &outputs[0], &gate.cpu(&dense, &input, &up), 2e-5);
        assert_close(&gate, &outputs[1], &residual, 2e-5);
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
            for input in norm_inputs(norm) {
                for last_row in [false, !input.keep_residual] {
                    check_rms_norm(rig, noise, Input::Norm(input), m, last_row, columns).await;
                }
            }
        }
    }
    check_rms_norm(rig, noise, Input::Plain, 3, true, 68).await;
}

/// Over `m` rows, or with `last_row` over the second last of them, which is the step's last.
async fn check_rms_norm(
    rig: &mut Rig,
    noise: &mut Noise,
    input: Input,
    m: u32,
    last_row: bool,
    columns: u32,
) {
    let rows = if last_row { 1 } else { m };
    let kernel = RmsNormKernel { input, m: rows, last_row, columns, subgroup_min: rig.subgroup_min() };
    let kinds = InputRead::of(input);
    let reads: Vec<Vec<f32>> = kinds.iter().map(|kind| kind.values(noise, m, columns)).collect();
    let mut args: Vec<Arg> = reads.iter().map(|values| read(values)).collect();
    let real = m.saturating_sub(1).max(1);
    args.extend(last_row.then(|| read(&[Step { rows: real, ..Step::default() }])));
    args.push(output(rows * columns));
    let keeps = matches!(input, Input::Norm(NormInput { keep_residual: true, .. }));
    args.extend(keeps.then(|| output(m * columns)));
    let outputs = rig.run(&kernel, args).await;
    for row in 0..rows as usize {
        let source = if last_row { real as usize - 1 } else { row };
        let row_reads: Vec<&[f32]> =
            kinds.iter().zip(&reads).map(|(kind, values)| kind.row(values, source, columns)).collect();
        let (normed, residual) = input.cpu(&row_reads);
        let range = row * columns as usize..(row + 1) * columns as usize;
        assert_close(&kernel, &outputs[0][range.clone()], &normed, 1e-5);
        if keeps {
            assert_close(&kernel, &outputs[1][range], &residual, 1e-5);
        }
    }
}

pub async fn gated_act(rig: &mut Rig) {
    let noise = &mut Noise::new(5);
    for activation in [Activation::Silu, Activation::GeluTanh] {
        for (m, columns) in [(1, 1), (3, 65), (5, 129)] {
            for is_apart in [false, true] {
                let kernel = GatedAct { activation, m, columns, is_apart };
                let gates = if is_apart { m * columns } else { 2 * m * columns };
                let mut gate: Vec<f32> = noise.values(gates as usize).iter().map(|v| v * 8.0).collect();
                gate[0] = -3e4; // the far ends, where exp and tanh overflow
                if m > 1 {
                    gate[1] = 3e4;
                }
                let up = noise.values((m * columns) as usize);
                let mut args = vec![read(&gate)];
                args.extend(is_apart.then(|| read(&up)));
                args.push(output(m * columns));
                let outputs = rig.run(&kernel, args).await;
                assert_close(&kernel, &outputs[0], &kernel.cpu(&gate, &up), 1e-5);
            }
        }
    }
}

pub async fn per_layer_inputs(rig: &mut Rig) {
    let noise = &mut Noise::new(10);
    for (m, columns) in [(1, 4), (3, 12), (2, 256)] {
        for last_row in [false, true] {
            let kernel = PerLayerInputs {
                m: if last_row { 1 } else { m },
                last_row,
                first_layer: 2,
                layers: 3,
                all_layers: 6,
                columns,
                context_scale: 0.3,
                token_scale: 15.875,
                norm: NORM,
                subgroup_min: rig.subgroup_min(),
            };
            let inputs = (m * 6 * columns) as usize;
            let (context, tokens) = (noise.values(inputs), noise.values(inputs));
            let weight = noise.values(columns as usize);
            let stride = PerLayerInputs::layer_stride(kernel.m, columns);
            let mut args = vec![read(&context), read(&weight), read(&tokens)];
            args.extend(last_row.then(|| read(&[Step { rows: m, ..Step::default() }])));
            args.push(Arg::Write(vec![7.0; (3 * stride) as usize]));
            let outputs = rig.run(&kernel, args).await;
            for (layer, got) in outputs[0].chunks(stride as usize).enumerate() {
                let (real, rest) = got.split_at((kernel.m * columns) as usize);
                for (row, got) in real.chunks(columns as usize).enumerate() {
                    let row = if last_row { m as usize - 1 } else { row };
                    let source = (row * 6 + 2 + layer) * columns as usize;
                    let of = |values: &'_ [f32]| values[source..source + columns as usize].to_vec();
                    assert_close(&kernel, got, &kernel.cpu(&of(&context), &weight, &of(&tokens)), 1e-5);
                }
                assert!(rest.iter().all(|&value| value == 7.0), "{kernel:?} wrote between layers");
            }
        }
    }
}

/// The pairs of expert and weight that [`Route`] wrote.
fn pairs(output: &[f32]) -> Vec<(u32, f32)> {
    output.chunks(2).map(|pair| (pair[0].to_bits(), pair[1])).collect()
}

pub async fn route(rig: &mut Rig) {
    let noise = &mut Noise::new(11);
    for (m, experts, chosen) in [(1, 1, 1), (3, 9, 3), (2, 64, 8), (2, 128, 8), (1, 1000, 32)] {
        let kernel = Route { m, experts, chosen, scale: 1.5 };
        let mut logits: Vec<f32> = noise.values((m * experts) as usize).iter().map(|v| v * 4.0).collect();
        if experts > 9 {
            // Of equal ones the lower number goes first.
            logits[3] = 4.5;
            logits[5] = 4.5;
        }
        let scales = noise.values(experts as usize);
        let outputs = rig.run(&kernel, vec![read(&logits), read(&scales), output(2 * m * chosen)]).await;
        let (got, twin) = (pairs(&outputs[0]), kernel.cpu(&logits, &scales));
        let split = |pairs: &[(u32, f32)]| pairs.iter().copied().unzip::<u32, f32, Vec<_>, Vec<_>>();
        assert_eq!(split(&got).0, split(&twin).0, "{kernel:?}");
        assert_close(&kernel, &split(&got).1, &split(&twin).1, 1e-5);
    }
}

pub async fn expert_gemv(rig: &mut Rig) {
    let noise = &mut Noise::new(12);
    let (m, chosen, experts) = (3, 2, 5);
    let chosen_experts = [(4, 0.5), (0, 0.5), (2, 1.0), (3, 0.25), (1, 0.0), (4, 2.0f32)];
    let bound: Vec<[u32; 2]> =
        chosen_experts.iter().map(|(expert, weight): &(u32, f32)| [*expert, weight.to_bits()]).collect();
    for format in FORMATS {
        for by_expert in [false, true] {
            let (rows, columns) = (33, 3 * Gemv::column_multiple(format));
            let kernel = ExpertGemv {
                format,
                m,
                chosen,
                rows,
                columns,
                by_expert,
                first_row: 0,
                shard_rows: experts * rows,
                subgroup_min: rig.subgroup_min(),
            };
            let (mut args, dense) = weight(noise, format, experts * rows, columns);
            let inputs = if by_expert { m * chosen } else { m };
            let x = noise.values((inputs * columns) as usize);
            args.extend([read(&x), read(&bound), output(m * chosen * rows)]);
            let outputs = rig.run(&kernel, args).await;
            assert_close(&kernel, &outputs[0], &kernel.cpu(&dense, &chosen_experts, &x), 2e-5);
        }
    }
    // A shard of the rows of experts 1 to 2 and a part of 3 writes those, and leaves the rest.
    let (rows, columns) = (4, 8);
    let (mut args, dense) = weight(noise, WeightFormat::F32, 10, columns);
    let shard = ExpertGemv {
        format: WeightFormat::F32,
        m,
        chosen,
        rows,
        columns,
        by_expert: false,
        first_row: rows,
        shard_rows: 10,
        subgroup_min: rig.subgroup_min(),
    };
    let x = noise.values((m * columns) as usize);
    args.extend([read(&x), read(&bound), Arg::Write(vec![7.0; (m * chosen * rows) as usize])]);
    let outputs = rig.run(&shard, args).await;
    let mut whole = vec![0.0; (rows * columns) as usize];
    whole.extend(dense);
    whole.resize((experts * rows * columns) as usize, 0.0);
    let mut twin = shard.cpu(&whole, &chosen_experts, &x);
    for (index, value) in twin.iter_mut().enumerate() {
        let row = chosen_experts[index / rows as usize].0 * rows + index as u32 % rows;
        if !(rows..rows + 10).contains(&row) {
            *value = 7.0;
        }
    }
    assert_close(&shard, &outputs[0], &twin, 2e-5);
}

pub async fn expert_sum(rig: &mut Rig) {
    let noise = &mut Noise::new(13);
    for (m, chosen, columns) in [(1, 1, 1), (3, 2, 65), (2, 8, 300)] {
        let kernel = ExpertSum { m, chosen, columns };
        let pairs: Vec<(u32, f32)> = (0..m * chosen).map(|expert| (expert, noise.value())).collect();
        let bound: Vec<[u32; 2]> = pairs.iter().map(|(expert, weight)| [*expert, weight.to_bits()]).collect();
        let x = noise.values((m * chosen * columns) as usize);
        let outputs = rig.run(&kernel, vec![read(&bound), read(&x), output(m * columns)]).await;
        assert_close(&kernel, &outputs[0], &kernel.cpu(&pairs, &x), 1e-5);
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

/// The numbers of query heads that can share a workgroup.
pub fn groups(projection: &Projection) -> Vec<u32> {
    let heads = projection.heads / projection.kv_heads;
    (1..=4).filter(|&group| heads.is_multiple_of(group)).collect()
}

pub async fn decode_attention(rig: &mut Rig) {
    let noise = &mut Noise::new(10);
    // Every head shape, and every norm with every source of keys and values: all together would be 45 shaders.
    for (index, projection) in projections().into_iter().step_by(4).enumerate() {
        let (count, tile) = [(1, 32), (3, 32), (16, 32), (2, 64)][index % 4];
        let window = [None, Some(70)][index % 2];
        let splits = Splits { count, tile, window };
        let groups = groups(&projection);
        let kernel = DecodeAttention {
            projection,
            cache: CacheLayout { slots: window.unwrap_or(320) + 5, format: CACHE_FORMATS[index / 2 % 2] },
            scale: 2.0 / (projection.head_dim as f32).sqrt(),
            splits,
            group: groups[index % groups.len()],
            subgroup_min: rig.subgroup_min(),
        };
        for position in [0, 31, 32, 200] {
            check_decode_attention(rig, noise, &kernel, position).await;
        }
    }
}

async fn check_decode_attention(rig: &mut Rig, noise: &mut Noise, kernel: &DecodeAttention, position: u32) {
    let DecodeAttention { projection, cache, splits, .. } = *kernel;
    let Projection { heads, kv_heads, head_dim, .. } = projection;
    let step = Step { position, rows: 1, ..Step::default() };
    let projected = noise.values((projection.projected() * head_dim) as usize);
    let rope = turns(noise, 1, head_dim);
    let norms = [noise.values(head_dim as usize), noise.values(head_dim as usize)];
    let elements = cache.slots * kv_heads * head_dim;
    let mut caches = [(); 2].map(|()| cache_values(noise, elements, cache.format));

    let appends = projection.appends();
    let mut args = vec![read(&[step]), read(&projected), read(&rope)];
    args.extend(projection.q_norm.map(|_| read(&norms[0])));
    args.extend(projection.k_norm.filter(|_| appends).map(|_| read(&norms[1])));
    args.extend(caches.iter().map(|values| {
        let words = cached(values, cache.format);
        if appends { Arg::Write(words) } else { read(&words) }
    }));
    args.push(output(splits.count * heads * head_dim));
    args.extend((splits.count > 1).then(|| output(splits.count * heads * 2)));
    let mut outputs = rig.run(kernel, args).await;

    let [k_cache, v_cache] = &mut caches;
    let twin = kernel.cpu(&step, &projected, &rope, [&norms[0], &norms[1]], [k_cache, v_cache]);
    let results = outputs.split_off(if appends { 2 } else { 0 });
    let got = match &results[..] {
        [sums, softmax] => {
            let softmax: Vec<[f32; 2]> = bytemuck::cast_slice(softmax).to_vec();
            Combine { splits, heads }.cpu(position, sums, &softmax)
        }
        results => results[0].clone(),
    };
    // Where a key rounds to the neighbouring half, its score moves with it.
    let is_exact = cache.format == CacheFormat::F32;
    assert_close(kernel, &got, &twin, if is_exact { 2e-5 } else { 2e-3 });
    for (got, twin) in outputs.iter().zip(&caches) {
        assert_close(kernel, &uncached(got, cache.format), twin, if is_exact { 1e-5 } else { 1e-3 });
    }
}

/// The output projection's reading of splits, used and not.
pub async fn combine(rig: &mut Rig) {
    let noise = &mut Noise::new(11);
    for (heads, columns, count, window) in
        [(1, 64, 2, None), (9, 576, 7, Some(100)), (8, 2048, 16, None), (170, 1360, 3, None)]
    {
        for (position, output) in [(0, Output::Plain), (40, Output::AddResidual), (700, Output::Plain)] {
            let combine = Combine { splits: Splits { count, tile: 32, window }, heads };
            let kernel = Gemv {
                format: WeightFormat::F32,
                rows: 65,
                columns,
                input: Input::Combined(combine),
                last_row: false,
                output,
                busy_workgroups: 256,
                subgroup_min: rig.subgroup_min(),
            };
            let (mut args, dense) = weight(noise, kernel.format, kernel.rows, columns);
            let used = combine.splits.used(position);
            // What the splits that are not used left is never read.
            let mut sums = noise.values((used * columns) as usize);
            sums.resize((count * columns) as usize, f32::NAN);
            let mut softmax: Vec<[f32; 2]> =
                (0..used * heads).map(|_| [noise.value() * 9.0, 1.5 + noise.value()]).collect();
            softmax.resize((count * heads) as usize, [f32::NAN; 2]);
            let residual = noise.values(65);
            let step = Step { position, rows: 1, ..Step::default() };
            args.extend([read(&[step]), read(&sums), read(&softmax)]);
            args.extend((output == Output::AddResidual).then(|| read(&residual)));
            args.push(self::output(65));
            let outputs = rig.run(&kernel, args).await;
            let input = combine.cpu(position, &sums, &softmax);
            assert_close(&kernel, &outputs[0], &kernel.cpu(&dense, &input, &residual), 2e-5);
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
        let last = Argmax { n: first.pairs(), stage: ArgmaxStage::Final };
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
            let last = Argmax { n: first.pairs(), stage: ArgmaxStage::Final };
            let token = rig.run(&last, vec![read(&pairs[0]), output(1)]).await;
            assert_eq!(token[0][0].to_bits(), Argmax::cpu_sampled(step, twin, &logits), "{step:?}");
        }
    }
}
