//! Kernels, prefill and decode on this machine's Vulkan device, as a table and as JSON.
//!
//!     cargo bench --bench engine -- [MODEL_FOLDER [DTYPE…]]
//!
//! Without a folder the kernels are measured. Kernel times are of many dispatches in one submission, each
//! of which waits for the one before. Where the device has timestamps, they say where a decode step's time goes.

#[cfg(target_arch = "wasm32")]
fn main() {}

#[cfg(not(target_arch = "wasm32"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    native::main()
}

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use std::collections::BTreeMap;
    use std::rc::Rc;
    use std::time::Instant;

    use jird::checkpoint::WeightFormat;
    use jird::engine::{GenerateOptions, LoadOptions, Model, Prompt};
    use jird::error::Result;
    use jird::fetch::{FolderOpener, Repo};
    use jird::gpu::{Buffer, Dispatch, Gpu, GpuOptions, Usage};
    use jird::kernels::{
        CacheFormat, CacheLayout, Combine, DecodeAttention, Gemv, Input, Kernel, KeyValues, Matmul, Output,
        Projection, Splits, Step,
    };
    use jird::nn::WeightDtype;
    use jird::plan::Plan;
    use serde_json::{Value, json};

    const DISPATCHES: usize = 64;
    const NEW_TOKENS: u32 = 128;
    /// Prompts, after which decode is measured, as far as a model's context goes.
    const PROMPTS: [u32; 4] = [128, 512, 2048, 8192];
    const TEXT: &str = include_str!("../tests/fixtures/text-ppl.txt");

    pub fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
        // Cargo passes `--bench` on.
        let arguments: Vec<String> =
            std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
        let report = pollster::block_on(async {
            let gpu = Gpu::open(GpuOptions::default()).await?;
            println!("{}, subgroups of {:?}", gpu.capabilities().adapter, gpu.capabilities().subgroup_min);
            let mut report = json!({ "adapter": gpu.capabilities().adapter });
            match arguments.split_first() {
                None => {
                    report["kernels"] = kernels(&gpu).await?.into();
                    report["decodeAttention"] = decode_attention(&gpu).await?.into();
                }
                Some((folder, [])) => report["models"] = json!([model(&gpu, folder, "auto").await?]),
                Some((folder, dtypes)) => {
                    let mut models = Vec::new();
                    for dtype in dtypes {
                        models.push(model(&gpu, folder, dtype).await?);
                    }
                    report["models"] = models.into();
                }
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

    /// Seconds of one dispatch of a product.
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
        let buffers = sizes.map(|bytes| buffer(gpu, bytes)).collect::<Result<Vec<_>>>()?;
        time_chain(gpu, &[bind(gpu, kernel, &buffers)]).await
    }

    /// Attention of one token in the shapes of real layers, with the output product that combines its splits:
    /// over how many workgroups the keys are cut, in tiles of how many, and how many heads share the loads.
    async fn decode_attention(gpu: &Rc<Gpu>) -> Result<Vec<Value>> {
        let layers: [(&str, u32, u32, u32, Option<u32>); 4] = [
            ("gemma4 e2b, full", 8, 1, 512, None),
            ("gemma4 e2b, sliding", 8, 1, 256, Some(512)),
            ("llama 1b", 32, 8, 64, None),
            ("smollm2", 9, 3, 64, None),
        ];
        let mut results = Vec::new();
        for (layer, heads, kv_heads, head_dim, window) in layers {
            for position in [127, 2047, 8191] {
                if window.is_some_and(|window| position > 4 * window) {
                    continue;
                }
                for (count, tile) in
                    [(1, 32), (4, 32), (8, 32), (16, 32), (32, 32), (8, 64), (16, 64), (32, 64)]
                {
                    for group in [1, 2, 3, 4] {
                        if !(heads / kv_heads).is_multiple_of(group) {
                            continue;
                        }
                        let splits = Splits { count, tile, window };
                        let seconds =
                            time_attention(gpu, [heads, kv_heads, head_dim], splits, group, position).await?;
                        println!(
                            "attention {layer:20} {:5} keys, {count:2} splits, tile {tile}, group {group} {:9.1} us",
                            position + 1,
                            seconds * 1e6
                        );
                        results.push(json!({
                            "layer": layer, "keys": position + 1, "splits": count, "tile": tile, "group": group,
                            "us": seconds * 1e6,
                        }));
                    }
                }
            }
        }
        Ok(results)
    }

    /// Seconds of an attention and its output product at `position`.
    async fn time_attention(
        gpu: &Rc<Gpu>,
        [heads, kv_heads, head_dim]: [u32; 3],
        splits: Splits,
        group: u32,
        position: u32,
    ) -> Result<f64> {
        const HIDDEN: u32 = 1536;
        let subgroup_min = gpu.capabilities().subgroup_min;
        let projection = Projection {
            heads,
            kv_heads,
            head_dim,
            key_values: KeyValues::Projected,
            q_norm: None,
            k_norm: None,
            v_norm: None,
        };
        let cache = CacheLayout { slots: position + 1, format: CacheFormat::F16 };
        let attention = DecodeAttention { projection, cache, scale: 1.0, splits, group, subgroup_min };
        let combine = Combine { splits, heads };
        let format = WeightFormat::Affine { bits: 4, group_size: 32 };
        let columns = heads * head_dim;
        let product = Gemv {
            format,
            rows: HIDDEN,
            columns,
            input: if splits.count > 1 { Input::Combined(combine) } else { Input::Plain },
            last_row: false,
            output: Output::Plain,
            busy_workgroups: gpu.capabilities().busy_workgroups,
            subgroup_min,
        };
        let floats = |count: u32| buffer(gpu, u64::from(count) * 4);
        let step =
            Rc::new(gpu.upload("step", &[Step { position, rows: 1, ..Step::default() }], Usage::Io)?);
        let (sums, softmax) = (floats(splits.count * columns)?, floats(splits.count * heads * 2)?);
        let cached = u64::from(cache.slots * kv_heads * head_dim) * u64::from(cache.format.bytes());
        let mut bound = vec![step.clone(), floats(projection.projected() * head_dim)?, floats(head_dim)?];
        bound.extend([buffer(gpu, cached)?, buffer(gpu, cached)?, sums.clone()]);
        let codes = format.code_bytes(columns as usize) as u64 * u64::from(HIDDEN);
        let scales = format.scale_bytes(columns as usize) as u64 * u64::from(HIDDEN);
        let mut bound_product = vec![buffer(gpu, codes)?, buffer(gpu, scales)?];
        if splits.count > 1 {
            bound.push(softmax.clone());
            bound_product.extend([step, sums, softmax]);
        } else {
            bound_product.push(sums);
        }
        bound_product.push(floats(HIDDEN)?);
        time_chain(gpu, &[bind(gpu, &attention, &bound), bind(gpu, &product, &bound_product)]).await
    }

    fn buffer(gpu: &Gpu, bytes: u64) -> Result<Rc<Buffer>> {
        Ok(Rc::new(gpu.buffer("bench", bytes, Usage::Io)?))
    }

    /// A dispatch of `kernel` over the whole of `buffers`, which it keeps.
    fn bind(gpu: &Gpu, kernel: &dyn Kernel, buffers: &[Rc<Buffer>]) -> (Dispatch, Vec<Rc<Buffer>>) {
        let bindings = kernel.bindings();
        assert_eq!(buffers.len(), bindings.len());
        let bound: Vec<_> = buffers.iter().map(|buffer| (&**buffer, 0..buffer.bytes())).collect();
        let pipeline = gpu.pipeline(kernel.name(), &kernel.source(), &bindings);
        (gpu.dispatch(pipeline, &bound, kernel.workgroups()), buffers.to_vec())
    }

    /// Seconds of a chain of dispatches, repeated: the best of three runs.
    async fn time_chain(gpu: &Rc<Gpu>, chain: &[(Dispatch, Vec<Rc<Buffer>>)]) -> Result<f64> {
        let probe = &chain[0].1[0];
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            gpu.read(probe, 0..4).await?;
            let start = Instant::now();
            let dispatches = chain.iter().map(|(dispatch, _)| dispatch);
            gpu.submit(gpu.encode(std::iter::repeat_n(dispatches, DISPATCHES).flatten(), &[]));
            gpu.read(probe, 0..4).await?;
            best = best.min(start.elapsed().as_secs_f64() / DISPATCHES as f64);
        }
        Ok(best)
    }

    /// Prefill and decode of a real model.
    async fn model(gpu: &Rc<Gpu>, folder: &str, dtype: &str) -> Result<Value> {
        let start = Instant::now();
        let context = context(folder);
        let options = LoadOptions {
            dtype: WeightDtype::parse(dtype)?,
            context: Some(context),
            ..LoadOptions::default()
        };
        let model = Model::load(gpu, Repo::new(FolderOpener::new(folder)), options, Rc::new(())).await?;
        let load_seconds = start.elapsed().as_secs_f64();
        let plan = model.decode_plan()?;
        let mut result = json!({
            "model": folder,
            "dtype": dtype,
            "context": context,
            "loadSeconds": load_seconds,
            "memory": gpu.ledger().entries().collect::<BTreeMap<_, _>>(),
            "dispatchesPerToken": plan.dispatches().len(),
        });
        println!("{folder} {dtype}: prompt tokens, prefill tok/s, decode tok/s");
        for tokens in PROMPTS.into_iter().filter(|tokens| tokens + NEW_TOKENS < context) {
            // The first run compiles. The runs differ from the beginning on, so that none finds its prompt cached.
            for run in ["The first", "Another"] {
                let prompt = prompt(&model, run, tokens as usize);
                let options = GenerateOptions { max_tokens: Some(NEW_TOKENS), ..GenerateOptions::default() };
                let mut generation = model.generate(&prompt, options)?;
                while generation.next().await?.is_some() {}
                let stats = generation.stats();
                let prefill = f64::from(stats.prompt_tokens) / stats.first_token_ms.unwrap_or(f64::NAN) * 1e3;
                let decode = stats.tokens_per_second;
                println!("{:6} {prefill:10.1} {:8.1}", stats.prompt_tokens, decode.unwrap_or(f64::NAN));
                result[format!("prefill{tokens}TokensPerSecond")] = prefill.into();
                result[format!("decodeAfter{tokens}TokensPerSecond")] = decode.into();
            }
        }
        result["decodeMicroseconds"] = profile(gpu, &plan).await?;
        result["decodeStepMicroseconds"] = gpu.time(plan.dispatches()).await?.map(|time| time * 1e6).into();
        println!("{result:#}");
        Ok(result)
    }

    /// Microseconds of each kernel in a decode step at the last position, of all its dispatches together.
    async fn profile(gpu: &Rc<Gpu>, plan: &Plan) -> Result<Value> {
        let mut totals: BTreeMap<&str, f64> = BTreeMap::new();
        for (kernel, seconds) in gpu.profile(plan.dispatches()).await? {
            *totals.entry(kernel).or_default() += seconds * 1e6;
        }
        Ok(json!(totals))
    }

    /// Room for the longest prompt, as far as the model was made for it.
    fn context(folder: &str) -> u32 {
        let config = std::fs::read(std::path::Path::new(folder).join("config.json")).unwrap_or_default();
        let config: Value = serde_json::from_slice(&config).unwrap_or_default();
        let text = config.get("text_config").unwrap_or(&config);
        let largest = text.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or(2048);
        (PROMPTS[PROMPTS.len() - 1] + 2 * NEW_TOKENS).min(u32::try_from(largest).unwrap_or(u32::MAX))
    }

    /// A text of about `tokens` tokens that begins with `run`.
    fn prompt(model: &Model, run: &str, tokens: usize) -> Prompt {
        let options = jird::text::EncodeOptions { add_special_tokens: false, parse_special: false };
        let ids = model.tokenizer().encode(TEXT, options).unwrap_or_default();
        let ids: Vec<u32> = ids.iter().copied().cycle().take(tokens.saturating_sub(4)).collect();
        Prompt::Text(format!("{run} {}", model.tokenizer().decode(&ids, true)))
    }
}
