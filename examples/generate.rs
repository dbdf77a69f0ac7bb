//! Generates from a model in a local folder: `cargo run --release --example generate FOLDER DTYPE N PROMPT`.

#[cfg(not(target_arch = "wasm32"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::rc::Rc;

    use jird::engine::{GenerateOptions, LoadOptions, Model, Prompt};
    use jird::fetch::{FolderOpener, Repo};
    use jird::gpu::{Gpu, GpuOptions};
    use jird::nn::WeightDtype;

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, dtype, count, prompt] = arguments.as_slice() else {
        return Err("usage: generate FOLDER DTYPE N PROMPT".into());
    };
    pollster::block_on(async {
        let gpu = Gpu::open(GpuOptions::default()).await?;
        let repo = Repo::new(FolderOpener::new(folder));
        let options = LoadOptions { dtype: WeightDtype::parse(dtype)?, ..LoadOptions::default() };
        let model = Model::load(&gpu, repo, options, Rc::new(())).await?;
        let options = GenerateOptions { max_tokens: Some(count.parse()?), ..GenerateOptions::default() };
        let mut generation = model.generate(&Prompt::Text(prompt.clone()), options)?;
        let mut ids = Vec::new();
        while let Some(piece) = generation.next().await? {
            print!("{}", piece.text());
            ids.extend(piece.ids);
        }
        println!("\n{ids:?}\n{:?}", generation.stats());
        println!("{}", model.decode_plan()?.dump().lines().last().unwrap_or_default());
        println!("{:?}", gpu.ledger().entries().collect::<Vec<_>>());
        Ok(())
    })
}

#[cfg(target_arch = "wasm32")]
fn main() {}
