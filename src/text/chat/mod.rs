//! Chat templates: messages → the text that a model was trained on → token ids.
//!
//! Templates are Jinja, rendered by minijinja set up as Hugging Face transformers sets up Jinja2. They come
//! with a checkpoint and are taken for hostile: fuel bounds their time and memory.
//!
//! ## User text stays text
//! A user who types `<|im_end|>` must not end a turn. [`ChatTemplate::encode`] therefore marks, before the
//! template sees the messages, each place in them where the text of a special token begins or might begin,
//! by a private-use character that occurs nowhere else. The marks travel through the template with the text
//! around them, through `trim`, `split` and `+` alike; afterwards they are taken out, and no special token
//! may begin where one stood. Text without such places is not changed at all, so that the template sees it
//! as it is. Names under `role` and `type` are not marked, since templates make control tokens of them: which
//! roles a conversation may have is for the page to say.
//!
//! Limits: a template that compares, measures or cuts by position text that holds a special token's text
//! sees the mark in it; added tokens that the tokenizer does not call special (`<think>` of Qwen) are found in
//! user text, as in transformers.

mod marks;
mod messages;
mod python;

use std::borrow::Cow;
use std::collections::BTreeMap;

use fancy_regex::Regex;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value, context};
use serde::Deserialize;
use serde_json::value::RawValue;

pub use messages::{droppable_turns, has_media, without_oldest_turns};
pub use python::LocalTime;

use super::tokenizer::{EncodeOptions, Tokenizer};
use crate::error::{Code, Error, Result};
use marks::Marks;

/// One unit pays for one instruction or 64 bytes: enough for thousands of messages, and bounds what a
/// hostile template can take to about a second and 320 MB.
const FUEL: u64 = 5_000_000;
/// Bytes of a template: real ones stay below 50 kB.
const MAX_TEMPLATE: usize = 1 << 20;

/// Objects and arrays within each other in what is rendered: as deep as serde_json reads them.
const MAX_DEPTH: usize = 128;

const DEFAULT: &str = "default";
/// The template for calls with `tools`, where a checkpoint has one of its own for them.
const TOOL_USE: &str = "tool_use";

/// What to render besides the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// End with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables of the template: `tools`, `documents`, `enable_thinking`, …
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// What `strftime_now` tells the template; without it, that function is not defined there.
    pub now: Option<LocalTime>,
}

/// A checkpoint's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` and the like, which templates may print.
    special_tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// The template in the bytes of a `tokenizer_config.json`: `chat_template` as a string, or as a list of
    /// named ones, of which `default` and `tool_use` count.
    pub fn from_tokenizer_config(json: &[u8]) -> Result<Self> {
        let config = TokenizerConfig::read(json)?;
        let sources = match config.chat_template {
            Some(TemplateJson::One(source)) => vec![(DEFAULT, source)],
            Some(TemplateJson::Named(named)) => [DEFAULT, TOOL_USE]
                .into_iter()
                .filter_map(|name| Some((name, named.iter().find(|t| t.name == name)?.template.clone())))
                .collect(),
            None => Vec::new(),
        };
        if sources.iter().all(|(name, _)| *name != DEFAULT) {
            return Err(Error::new(Code::Template, "find the chat template in tokenizer_config.json")
                .expected("chat_template as a string, or a list with one named \"default\"")
                .got("neither")
                .remedy("Use the checkpoint's chat_template.jinja, or a prompt of your own."));
        }
        Self::new(sources, config.special_tokens)
    }

    /// The template `source`, the text of a `chat_template.jinja`; `tokenizer_config` are the bytes of the
    /// `tokenizer_config.json` beside it, which names the special tokens, or `{}`.
    pub fn from_jinja(source: &str, tokenizer_config: &[u8]) -> Result<Self> {
        let config = TokenizerConfig::read(tokenizer_config)?;
        Self::new(vec![(DEFAULT, source.to_owned())], config.special_tokens)
    }

    fn new(sources: Vec<(&'static str, String)>, special_tokens: BTreeMap<String, String>) -> Result<Self> {
        let mut environment = environment()?;
        for (name, source) in sources {
            if source.len() > MAX_TEMPLATE {
                return Err(Error::new(Code::Template, "read the chat template")
                    .expected(format!("at most {MAX_TEMPLATE} bytes"))
                    .got(source.len().to_string()));
            }
            let source = without_generation_tags(&source)?;
            environment
                .add_template_owned(name, source)
                .map_err(|e| Error::new(Code::Template, "read the chat template").because(e))?;
        }
        Ok(Self { environment, special_tokens })
    }

    /// The text that the template makes of `messages`, an array of objects with `role` and `content`.
    ///
    /// The text of special tokens in the messages stands in it like the template's own: see
    /// [`ChatTemplate::encode`] for prompts of people who are not trusted.
    pub fn render(&self, messages: &serde_json::Value, options: &RenderOptions) -> Result<String> {
        check_depth(messages, options)?;
        let failed = |e| Error::new(Code::Template, "render the chat template").because(e);
        let template = self.environment.get_template(self.name(options)).map_err(failed)?;
        template.render(self.variables(messages, options)).map_err(failed)
    }

    /// The token ids of `messages`, in which the text of special tokens is text and no more. What the
    /// post-processor puts before a text (BOS) comes first, once, whether or not the template prints it.
    ///
    /// Messages are of the form that Hugging Face's templates expect: `tool_calls` with `function.name` and
    /// `function.arguments`, `reasoning_content`. What the model thought before the last user message is left
    /// out, and the object that a tool gave is written as JSON where the template would not print it.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &serde_json::Value,
        options: &RenderOptions,
    ) -> Result<Vec<u32>> {
        check_depth(messages, options)?;
        let sources: Vec<String> =
            self.environment.templates().map(|(_, template)| template.source().to_owned()).collect();
        let mut marks = Marks::new(tokenizer, &sources);
        let (messages, extra) = marks.mark(&messages::prepare(self, messages), &options.extra)?;
        let rendered = self.render(&messages, &RenderOptions { extra, ..options.clone() })?;
        let (text, plain) = marks.take_out(&rendered);
        Ok(with_prefix(tokenizer, tokenizer.encode_except(&text, &plain)?))
    }

    /// Whether `text` stands in the template's source.
    pub fn mentions(&self, text: &str) -> bool {
        self.environment.templates().any(|(_, template)| template.source().contains(text))
    }

    fn name(&self, options: &RenderOptions) -> &'static str {
        let has_tools = options.extra.get("tools").is_some_and(|tools| !tools.is_null());
        if has_tools && self.environment.get_template(TOOL_USE).is_ok() { TOOL_USE } else { DEFAULT }
    }

    /// The variables of the template, later ones over earlier ones as in transformers.
    fn variables(&self, messages: &serde_json::Value, options: &RenderOptions) -> Value {
        let mut variables: BTreeMap<String, Value> = self
            .special_tokens
            .iter()
            .map(|(name, token)| (name.clone(), Value::from(token.as_str())))
            .collect();
        if let Some(now) = options.now {
            let strftime_now = Value::from_function(move |format: &str| now.format(format));
            variables.insert("strftime_now".into(), strftime_now);
        }
        variables.extend(options.extra.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value)))));
        variables.insert("messages".into(), Value::from(Serde(messages)));
        variables.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        context! { ..Value::from(variables), ..context! { tools => (), documents => () } }
    }
}

/// The ids of a prompt that the caller has written with its control tokens: special tokens are found in it,
/// and what the post-processor puts before a text (BOS) comes first, once.
pub fn encode_rendered(tokenizer: &Tokenizer, rendered: &str) -> Result<Vec<u32>> {
    let options = EncodeOptions { add_special_tokens: false, parse_special: true };
    Ok(with_prefix(tokenizer, tokenizer.encode(rendered, options)?))
}

fn with_prefix(tokenizer: &Tokenizer, mut ids: Vec<u32>) -> Vec<u32> {
    if !ids.starts_with(tokenizer.prefix()) {
        ids.splice(0..0, tokenizer.prefix().iter().copied());
    }
    ids
}

fn check_depth(messages: &serde_json::Value, options: &RenderOptions) -> Result<()> {
    if std::iter::once(messages).chain(options.extra.values()).all(|value| is_shallow(value, MAX_DEPTH)) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, "read the messages")
        .expected(format!("objects and arrays at most {MAX_DEPTH} deep in each other"))
        .got("deeper ones"))
}

fn is_shallow(value: &serde_json::Value, depth_left: usize) -> bool {
    match value {
        serde_json::Value::Array(items) => {
            depth_left > 0 && items.iter().all(|item| is_shallow(item, depth_left - 1))
        }
        serde_json::Value::Object(fields) => {
            depth_left > 0 && fields.values().all(|value| is_shallow(value, depth_left - 1))
        }
        _ => true,
    }
}

fn environment() -> Result<Environment<'static>> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|e| Error::new(Code::Internal, "set up the template engine").because(e))?;
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL));
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", python::tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    Ok(environment)
}

/// `{% generation %}` marks the assistant's words for training and prints nothing: a block that always is.
fn without_generation_tags(source: &str) -> Result<String> {
    let failed = |e| Error::new(Code::Template, "read the chat template").because(e);
    let tags = [
        (r"(\{%[-+]?\s*)generation(\s*[-+]?%\})", "${1}if true${2}"),
        (r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})", "${1}endif${2}"),
    ];
    let mut source = Cow::Borrowed(source);
    for (tag, block) in tags {
        let tag = Regex::new(tag).map_err(failed)?;
        source = Cow::Owned(tag.try_replacen(&source, 0, block).map_err(failed)?.into_owned());
    }
    Ok(source.into_owned())
}

/// What `tokenizer_config.json` says about chat.
struct TokenizerConfig {
    chat_template: Option<TemplateJson>,
    special_tokens: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TemplateJson {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenJson {
    Text(String),
    Object { content: String },
}

impl TokenizerConfig {
    /// Reads the few fields of interest; the large ones (`added_tokens_decoder`) are stepped over.
    fn read(json: &[u8]) -> Result<Self> {
        let failed = |e| Error::new(Code::Template, "read tokenizer_config.json").because(e);
        let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(json).map_err(failed)?;
        let chat_template = match fields.get("chat_template") {
            Some(raw) => serde_json::from_str(raw.get()).map_err(failed)?,
            None => None,
        };
        let mut special_tokens = BTreeMap::new();
        for (name, raw) in fields.iter().filter(|(name, _)| name.ends_with("_token")) {
            // `add_bos_token` and the like are no tokens: they are true or false.
            match serde_json::from_str(raw.get()) {
                Ok(TokenJson::Text(token) | TokenJson::Object { content: token }) => {
                    special_tokens.insert(name.clone(), token);
                }
                Err(_) => {}
            }
        }
        Ok(Self { chat_template, special_tokens })
    }
}
