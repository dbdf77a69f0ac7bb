//! Kernels, prefill and decode on this machine's Vulkan device, as a table and as JSON.
//!
//!     cargo bench --bench engine -- [MODEL_FOLDER [DTYPE…]]
//!
//! Without a folder only the kernels are measured. Kernel times are of many dispatches in one submission.

#[cfg(target_arch = "wasm32")]
fn main() {}

#[cfg(not(target_arch = "wasm32"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    native::main()
}

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use std::rc::Rc;
    use std::time::Instant;

    use jird::checkpoint::WeightFormat;
    use jird::engine::{GenerateOptions, LoadOptions, Model, Prompt};
    use jird::error::Result;
    use jird::fetch::{FolderOpener, Repo};
    use jird::gpu::{Gpu, GpuOptions, Usage};
    use jird::kernels::{Binding, Gemv, Input, Kernel, Matmul, Output};
    use jird::nn::WeightDtype;
    use serde_json::{Value, json};

    const DISPATCHES: usize = 64;
    const NEW_TOKENS: u32 = 128;
    const PROMPTS: [usize; 2] = [128, 512];
    const TEXT: &str = include_str!("../tests/fixtures/text-ppl.txt");

    pub fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
        // Cargo passes `--bench` on.
        let arguments: Vec<String> =
            std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
        let report = pollster::block_on(async {
            let gpu = Gpu::open(GpuOptions::default()).await?;
            println!("{}, subgroups of {:?}", gpu.capabilities().adapter, gpu.capabilities().subgroup_min);
            let mut report =
                json!({ "adapter": gpu.capabilities().adapter, "kernels": kernels(&gpu).await? });
            if let Some(folder) = arguments.first() {
                let dtypes = match &arguments[1..] {
                    [] => vec!["auto".to_owned()],
                    dtypes => dtypes.to_vec(),
                };
                let mut models = Vec::new();
                for dtype in dtypes {
                    models.push(model(&gpu, folder, &dtype).await?);
                }
                report["models"] = models.into();
            }
            Ok::<_, jird::error::Error>(report)
        })?;
        println!("{report:#}");
        Ok(())
    }

    /// GEMV and matrix product in the shapes of a 1B model's MLP.
    async fn kernels(gpu: &Rc<Gpu>) -> Result<Vec<Value>> {
        let formats = [
            WeightFormat::F32,
            WeightFormat::Bf16,
            WeightFormat::Affine { bits: 8, group_size: 64 },
            WeightFormat::Affine { bits: 4, group_size: 32 },
        ];
        let (rows, columns) = (8192, 2048);
        let mut results = Vec::new();
        for format in formats {
            let weight_bytes = (format.code_bytes(2048) + format.scale_bytes(2048)) * rows as usize;
            let gemv = Gemv {
                format,
                rows,
                columns,
                input: Input::Plain,
                last_row: false,
                output: Output::Plain,
                busy_workgroups: gpu.capabilities().busy_workgroups,
                subgroup_min: gpu.capabilities().subgroup_min,
            };
            let seconds = time(gpu, &gemv, format, (rows, columns, 1)).await?;
            let gigabytes = weight_bytes as f64 / seconds / 1e9;
            println!(
                "gemv   {format:24} [{rows}, {columns}]        {:9.1} us {gigabytes:8.1} GB/s",
                seconds * 1e6
            );
            results.push(json!({ "kernel": "gemv", "format": format.to_string(), "us": seconds * 1e6, "gbPerS": gigabytes }));

            let m = 256;
            let matmul = Matmul { format, m, rows, columns, y_stride: rows };
            let seconds = time(gpu, &matmul, format, (rows, columns, m)).await?;
            let teraflops = 2.0 * f64::from(rows) * f64::from(columns) * f64::from(m) / seconds / 1e12;
            println!(
                "matmul {format:24} [{rows}, {columns}] x {m:4} {:9.1} us {teraflops:8.2} TFLOP/s",
                seconds * 1e6
            );
            results.push(json!({ "kernel": "matmul", "format": format.to_string(), "us": seconds * 1e6, "tflops": teraflops }));
        }
        Ok(results)
    }

    /// Seconds of one dispatch: the best of three runs.
    async fn time(
        gpu: &Rc<Gpu>,
        kernel: &dyn Kernel,
        format: WeightFormat,
        shape: (u32, u32, u32),
    ) -> Result<f64> {
        let (rows, columns, m) = shape;
        let codes = format.code_bytes(columns as usize) as u64 * u64::from(rows);
        let scales = format.scale_bytes(columns as usize) as u64 * u64::from(rows);
        let activations = [u64::from(columns * m) * 4, u64::from(rows * m) * 4];
        let sizes = std::iter::once(codes).chain((scales > 0).then_some(scales)).chain(activations);
        let bindings = kernel.bindings();
        let buffers = sizes
            .map(|bytes| Ok(Rc::new(gpu.buffer("bench", bytes, Usage::Io)?)))
            .collect::<Result<Vec<_>>>()?;
        assert_eq!(buffers.len(), bindings.len());
        assert_eq!(bindings.last(), Some(&Binding::Write));
        let bound: Vec<_> = buffers.iter().map(|buffer| (&**buffer, 0..buffer.bytes())).collect();
        let pipeline = gpu.pipeline(kernel.name(), &kernel.source(), &bindings);
        let dispatch = gpu.dispatch(pipeline, &bound, kernel.workgroups());
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            gpu.read(&buffers[0], 0..4).await?;
            let start = Instant::now();
            gpu.submit(std::iter::repeat_n(&dispatch, DISPATCHES), &[]);
            gpu.read(&buffers[0], 0..4).await?;
            best = best.min(start.elapsed().as_secs_f64() / DISPATCHES as f64);
        }
        Ok(best)
    }

    /// Prefill and decode of a real model.
    async fn model(gpu: &Rc<Gpu>, folder: &str, dtype: &str) -> Result<Value> {
        let start = Instant::now();
        let options = LoadOptions { dtype: WeightDtype::parse(dtype)?, ..LoadOptions::default() };
        let model = Model::load(gpu, Repo::new(FolderOpener::new(folder)), options, Rc::new(())).await?;
        let load_seconds = start.elapsed().as_secs_f64();
        let plan = model.decode_plan()?;
        let mut result = json!({
            "model": folder,
            "dtype": dtype,
            "loadSeconds": load_seconds,
            "weightBytes": gpu.ledger().live(Usage::Weights),
            "dispatchesPerToken": plan.dispatches().len(),
            "bytesReadBackPerToken": 4,
        });
        for tokens in PROMPTS {
            let prompt = prompt(&model, tokens);
            let options = GenerateOptions { max_tokens: Some(NEW_TOKENS), ..GenerateOptions::default() };
            // The first run compiles.
            for _ in 0..2 {
                let mut generation = model.generate(&prompt, options.clone())?;
                while generation.next().await?.is_some() {}
                let stats = generation.stats();
                let prefill = f64::from(stats.prompt_tokens) / stats.first_token_ms.unwrap_or(f64::NAN) * 1e3;
                result[format!("prefill{tokens}TokensPerSecond")] = prefill.into();
                result[format!("decodeAfter{tokens}TokensPerSecond")] = stats.tokens_per_second.into();
            }
        }
        println!("{result:#}");
        Ok(result)
    }

    /// The beginning of a text, of about `tokens` tokens.
    fn prompt(model: &Model, tokens: usize) -> Prompt {
        let options = jird::text::EncodeOptions { add_special_tokens: false, parse_special: false };
        let ids = model.tokenizer().encode(TEXT, options).unwrap_or_default();
        Prompt::Text(model.tokenizer().decode(&ids[..tokens.min(ids.len())], true))
    }
}
