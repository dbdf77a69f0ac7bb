//! From a repository to a model that can generate.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;

use super::memory::MemoryPlan;
use super::progress::{LoadObserver, Progress};
use super::session::Conversation;
use crate::checkpoint::Checkpoint;
use crate::error::{Code, Error, Result};
use crate::fetch::{BlockFile, HELD_BYTES, Repo};
use crate::gpu::Gpu;
use crate::models::{self, TextModel};
use crate::nn::{Loader, RowTable, WeightDtype};
use crate::plan::Plan;
use crate::text::{ChatTemplate, OutputFormat, Tokenizer};

/// Bounds of the small files, in bytes. The largest known tokenizer.json has 33 MB.
const MAX_CONFIG_BYTES: u64 = 4 << 20;
const MAX_TOKENIZER_BYTES: u64 = 128 << 20;

const TOKENIZER_FILE: &str = "tokenizer.json";

/// Positions of a session where the caller names no context: enough for a chat, and affordable on a phone.
const DEFAULT_CONTEXT: u32 = 2048;

/// How to load.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// How weight matrices are stored.
    pub dtype: WeightDtype,
    /// Positions that a conversation may have; None chooses.
    pub context: Option<u32>,
    /// Bytes that the model may take on the GPU and on the heap together; None: what the device can hold.
    pub memory_budget: Option<u64>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { dtype: WeightDtype::Auto, context: None, memory_budget: None }
    }
}

/// What is read before a model is declared.
struct Opened {
    config: Json,
    checkpoint: Rc<Checkpoint>,
    tokenizer: BlockFile,
}

impl Opened {
    async fn read(repo: &Repo) -> Result<Self> {
        let config = json(repo, "config.json").await?.ok_or_else(|| missing(repo, "config.json"))?;
        let checkpoint = Rc::new(Checkpoint::open(repo).await?);
        let tokenizer = repo.find(TOKENIZER_FILE).await?.ok_or_else(|| missing(repo, TOKENIZER_FILE))?;
        Ok(Self { config, checkpoint, tokenizer })
    }

    /// Reserves everything that the model will hold. Nothing is allocated and no weight is read.
    fn declare<'a>(&'a self, gpu: &'a Rc<Gpu>, options: LoadOptions) -> Result<Declared<'a>> {
        let before = gpu.ledger().as_ref().clone();
        let mut loader = Loader::new(gpu, &self.checkpoint, options.dtype);
        let text = models::declare(&self.config, &mut loader)?;
        let largest = text.dimensions().max_position_embeddings;
        let context =
            check_context("load the model", options.context, DEFAULT_CONTEXT.min(largest), largest)?;
        let conversation = Conversation::new(gpu, text.as_ref(), context, None)?;
        let mut downloads = self.checkpoint.downloads(&loader.ranges());
        downloads.push((self.tokenizer.name(), self.tokenizer.size()));
        let plan = MemoryPlan {
            tokenizer: self.tokenizer.size(),
            rows: text.dimensions().row_table.as_ref().map_or(0, RowTable::cache_bytes),
            staging: HELD_BYTES + loader.staging_bytes(),
            download_bytes: downloads.iter().map(|(_, bytes)| bytes).sum(),
            budget: options.memory_budget,
            ..MemoryPlan::of_gpu(gpu.ledger(), &before)
        };
        Ok(Declared { loader, text, conversation, downloads, plan })
    }
}

/// A model whose memory is reserved and whose weights are not there yet.
struct Declared<'a> {
    loader: Loader<'a>,
    text: Box<dyn TextModel>,
    conversation: Conversation,
    /// The files that will be read, and how much of each.
    downloads: Vec<(&'a str, u64)>,
    plan: MemoryPlan,
}

/// A model on the GPU with its tokenizer.
pub struct Model {
    pub(super) gpu: Rc<Gpu>,
    pub(super) text: Box<dyn TextModel>,
    pub(super) row_table: Option<Rc<RowTable>>,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) template: Option<ChatTemplate>,
    pub(super) stop_ids: BTreeSet<u32>,
    pub(super) output: Arc<OutputFormat>,
    /// The conversation of [`Model::generate`].
    pub(super) conversation: Rc<RefCell<Conversation>>,
    model_type: String,
}

impl Model {
    /// Loads the model of `repo`: its configuration, tokenizer and template, then its weights in the order
    /// of the files. Everything that can be known to fail from the configuration and the headers fails
    /// before the first weight is fetched; a failed load leaves nothing on the GPU.
    pub async fn load(
        gpu: &Rc<Gpu>,
        repo: Repo,
        options: LoadOptions,
        observer: Rc<dyn LoadObserver>,
    ) -> Result<Rc<Self>> {
        let progress = Progress::new(observer);
        let repo = progress.clone().watch(repo);
        match Self::load_once(gpu, &repo, options, &progress).await {
            // A file changed on its server meanwhile: what has been read does not belong together.
            Err(_) if repo.restart() => Self::load_once(gpu, &repo, options, &progress).await,
            result => result,
        }
    }

    async fn load_once(
        gpu: &Rc<Gpu>,
        repo: &Repo,
        options: LoadOptions,
        progress: &Progress,
    ) -> Result<Rc<Self>> {
        let opened = Opened::read(repo).await?;
        let declared = opened.declare(gpu, options)?;
        declared.plan.check()?;
        progress.begin(&declared.downloads);
        progress.unused(&models::unused(&declared.loader));
        gpu.allocate().await?;

        let tokenizer = Tokenizer::from_json(&opened.tokenizer.read_all(MAX_TOKENIZER_BYTES).await?)?;
        let template = template(repo).await?;
        let generation = json(repo, "generation_config.json").await?;

        let Declared { loader, text, conversation, plan, .. } = declared;
        loader.run(&|| progress.check()).await?;
        gpu.ledger().set_limit(plan.gpu_limit());
        repo.finish().await?;
        progress.finish();
        let row_table = text.dimensions().row_table.clone();
        let output = OutputFormat::of(&tokenizer, template.as_ref());
        let config = &opened.config;
        let mut stop_ids = stop_ids(generation.as_ref().and_then(|json| json.get("eos_token_id")), config);
        stop_ids.extend(output.response_id());
        let model = Rc::new(Self {
            gpu: gpu.clone(),
            row_table: row_table.map(|layout| Rc::new(RowTable::new(opened.checkpoint.clone(), layout))),
            text,
            tokenizer: Arc::new(tokenizer),
            template,
            stop_ids,
            output: Arc::new(output),
            conversation: Rc::new(RefCell::new(conversation)),
            model_type: config.get("model_type").and_then(Json::as_str).unwrap_or_default().to_owned(),
        });
        // Compiled now, so that the first token does not wait for it.
        model.decode_plan()?;
        Ok(model)
    }

    /// What [`Model::load`] would take with these options. Only the configuration and the headers are read, and
    /// nothing is allocated.
    ///
    /// Fails as the load would, but for a plan that is above the budget: that it does not fit, the plan says.
    pub async fn plan(gpu: &Rc<Gpu>, repo: &Repo, options: LoadOptions) -> Result<MemoryPlan> {
        let opened = Opened::read(repo).await?;
        opened.declare(gpu, options).map(|declared| declared.plan)
    }

    /// `model_type` of its configuration.
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// Positions that a conversation may have.
    pub fn context(&self) -> u32 {
        self.conversation.borrow().context()
    }

    /// Entries of the vocabulary.
    pub fn vocab_size(&self) -> u32 {
        self.text.dimensions().vocab_size
    }

    /// The table that stays where the checkpoint is stored and of which every step reads its tokens' rows,
    /// where the model has one: Gemma 4's per-layer embeddings.
    pub fn row_table(&self) -> Option<&Rc<RowTable>> {
        self.row_table.as_ref()
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The device that it is on.
    pub fn gpu(&self) -> &Rc<Gpu> {
        &self.gpu
    }

    /// The plan of one greedy decode step.
    pub fn decode_plan(&self) -> Result<Rc<Plan>> {
        self.conversation.borrow_mut().decode_plan(self.text.as_ref())
    }
}

fn missing(repo: &Repo, file: &str) -> Error {
    Error::new(Code::Checkpoint, format!("load {}", repo.name()))
        .expected(format!("a file {file}"))
        .got("none")
        .remedy("Give the folder or repository that holds config.json, tokenizer.json and model.safetensors.")
}

async fn json(repo: &Repo, file: &str) -> Result<Option<Json>> {
    let Some(bytes) = repo.read_all(file, MAX_CONFIG_BYTES).await? else { return Ok(None) };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|error| Error::new(Code::Config, format!("read {file}")).because(error))
}

/// `wished`, if the model was made for it, or `default`.
pub(super) fn check_context(asked: &str, wished: Option<u32>, default: u32, largest: u32) -> Result<u32> {
    match wished {
        None => Ok(default),
        Some(context) if (1..=largest).contains(&context) => Ok(context),
        Some(context) => Err(Error::new(Code::InvalidArgument, asked)
            .expected(format!("a context of 1 to {largest} positions, as the model was made for"))
            .got(context.to_string())),
    }
}

/// The ids that end a generation: of generation_config.json, else of config.json.
fn stop_ids(generation: Option<&Json>, config: &Json) -> BTreeSet<u32> {
    let of_config = [Some(config), config.get("text_config")].into_iter().flatten();
    let mut of_config = of_config.filter_map(|config| config.get("eos_token_id"));
    let ids = generation.filter(|ids| !ids.is_null()).or_else(|| of_config.find(|ids| !ids.is_null()));
    let id = |json: &Json| json.as_u64().and_then(|id| u32::try_from(id).ok());
    match ids {
        Some(Json::Array(list)) => list.iter().filter_map(id).collect(),
        Some(single) => id(single).into_iter().collect(),
        None => BTreeSet::new(),
    }
}

async fn template(repo: &Repo) -> Result<Option<ChatTemplate>> {
    let config = repo.read_all("tokenizer_config.json", MAX_CONFIG_BYTES).await?;
    if let Some(source) = repo.read_all("chat_template.jinja", MAX_CONFIG_BYTES).await? {
        let source = String::from_utf8(source)
            .map_err(|error| Error::new(Code::Template, "read chat_template.jinja").because(error))?;
        return ChatTemplate::from_jinja(&source, config.as_deref().unwrap_or(b"{}")).map(Some);
    }
    match config {
        // Base models have a configuration without a template.
        Some(config) if mentions_template(&config) => ChatTemplate::from_tokenizer_config(&config).map(Some),
        _ => Ok(None),
    }
}

fn mentions_template(tokenizer_config: &[u8]) -> bool {
    let parsed: Option<Json> = serde_json::from_slice(tokenizer_config).ok();
    parsed.is_some_and(|config| config.get("chat_template").is_some_and(|template| !template.is_null()))
}
