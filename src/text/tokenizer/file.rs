//! Reading `tokenizer.json`. The two large tables are read as streams; everything else is small, and checked
//! to be small before it is read.

use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_json::value::RawValue;

use super::Tokenizer;
use super::added::{AddedToken, AddedTokens};
use super::bpe::Bpe;
use super::decoder::Decoder;
use super::merges::MergesSeed;
use super::normalizer::Normalizer;
use super::vocab::{MAX_ID, Vocab, VocabSeed};
use crate::error::{Code, Error, Result};

/// Bytes of a component such as `pre_tokenizer`: real ones stay below 10 kB.
const MAX_COMPONENT: usize = 1 << 18;
/// Bytes of `added_tokens`: Gemma's 6,415 come to 1.2 MB.
const MAX_ADDED_TOKENS: usize = 1 << 24;
/// Bytes of one added token.
const MAX_ADDED_TOKEN: usize = 512;

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    added_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow)]
    decoder: Option<&'a RawValue>,
    #[serde(borrow)]
    model: &'a RawValue,
}

/// The fields of a BPE model. Those without a default in the format are optional all the same, since models
/// of other types lack them.
#[derive(Deserialize)]
struct Model<'a> {
    /// Older files leave it out.
    r#type: Option<String>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(borrow)]
    vocab: Option<&'a RawValue>,
    #[serde(borrow)]
    merges: Option<&'a RawValue>,
}

pub(super) fn read(bytes: &[u8]) -> Result<Tokenizer> {
    let file: File = serde_json::from_slice(bytes).map_err(|e| damaged("tokenizer.json", e))?;
    let normalizer: Option<Normalizer> = component("normalizer", file.normalizer)?;
    let model = read_model(file.model)?;
    let vocab = read_table(VocabSeed, model.vocab, "vocab")?;
    let added = read_added_tokens(file.added_tokens, &vocab, normalizer.as_ref())?;
    let bpe = build_bpe(&model, vocab, &added)?;
    Ok(Tokenizer {
        pre_tokenizer: component("pre_tokenizer", file.pre_tokenizer)?,
        frame: component("post_processor", file.post_processor)?.unwrap_or_default(),
        decoder: component("decoder", file.decoder)?.unwrap_or_else(Decoder::join),
        normalizer,
        bpe,
        added,
    })
}

fn damaged(part: &str, error: impl std::error::Error + 'static) -> Error {
    Error::new(Code::Tokenizer, format!("read {part}")).because(error)
}

fn wrong(expected: impl Into<String>, got: impl Into<String>) -> Error {
    Error::new(Code::Tokenizer, "use tokenizer.json").expected(expected).got(got)
}

fn unsupported(expected: impl Into<String>, got: impl Into<String>) -> Error {
    Error::new(Code::Unsupported, "use tokenizer.json")
        .expected(expected)
        .got(got)
        .remedy("Choose a checkpoint whose tokenizer is a plain byte-pair encoding.")
}

/// Refuses `raw` when it is longer than `limit` bytes.
fn bounded<'a>(name: &str, raw: &'a RawValue, limit: usize) -> Result<&'a str> {
    let json = raw.get();
    if json.len() > limit {
        return Err(wrong(format!("at most {limit} bytes of {name}"), json.len().to_string()));
    }
    Ok(json)
}

fn component<T: DeserializeOwned>(name: &str, raw: Option<&RawValue>) -> Result<Option<T>> {
    let Some(raw) = raw else { return Ok(None) };
    let json = bounded(name, raw, MAX_COMPONENT)?;
    serde_json::from_str(json).map_err(|error| {
        // serde tells an unknown `type` from other faults in words alone.
        let is_unknown = error.to_string().contains("unknown variant");
        let code = if is_unknown { Code::Unsupported } else { Code::Tokenizer };
        Error::new(code, format!("use the {name} of tokenizer.json")).because(error)
    })
}

/// Streams a table of the model through `seed`.
fn read_table<'a, S: DeserializeSeed<'a>>(
    seed: S,
    raw: Option<&'a RawValue>,
    name: &str,
) -> Result<S::Value> {
    let raw = raw.ok_or_else(|| wrong(format!("{name} in a BPE model"), "none"))?;
    let mut json = serde_json::Deserializer::from_str(raw.get());
    seed.deserialize(&mut json).map_err(|e| damaged(&format!("the model's {name} in tokenizer.json"), e))
}

fn read_model(raw: &RawValue) -> Result<Model<'_>> {
    let model: Model = serde_json::from_str(raw.get()).map_err(|e| damaged("model of tokenizer.json", e))?;
    if let Some(kind) = model.r#type.as_ref().filter(|kind| *kind != "BPE") {
        return Err(unsupported("a model of type \"BPE\"", format!("{kind:?}")));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(unsupported("a model without dropout", format!("{:?}", model.dropout)));
    }
    let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    if let Some(affix) = affixes.into_iter().flatten().find(|affix| !affix.is_empty()) {
        return Err(unsupported(
            "no continuing_subword_prefix and no end_of_word_suffix",
            format!("{affix:?}"),
        ));
    }
    Ok(model)
}

fn build_bpe(model: &Model<'_>, vocab: Vocab, added: &AddedTokens) -> Result<Bpe> {
    let merges = read_table(MergesSeed(&vocab), model.merges, "merges")?;
    let unk = match &model.unk_token {
        None => None,
        Some(token) => {
            let id = vocab.id_of(token).or_else(|| added.id_of(token));
            Some(id.ok_or_else(|| wrong("the unk_token among the tokens", format!("{token:?}")))?)
        }
    };
    let byte_fallback = model
        .byte_fallback
        .then(|| Box::new(std::array::from_fn(|byte| vocab.id_of(&format!("<0x{byte:02X}>")))));
    Ok(Bpe {
        merges,
        unk,
        fuse_unk: model.fuse_unk,
        byte_fallback,
        ignore_merges: model.ignore_merges,
        vocab,
    })
}

fn read_added_tokens(
    raw: Option<&RawValue>,
    vocab: &Vocab,
    normalizer: Option<&Normalizer>,
) -> Result<AddedTokens> {
    let mut tokens: Vec<AddedToken> = match raw {
        Some(raw) => serde_json::from_str(bounded("added_tokens", raw, MAX_ADDED_TOKENS)?)
            .map_err(|e| damaged("added_tokens of tokenizer.json", e))?,
        None => Vec::new(),
    };
    tokens.retain(|token| !token.content.is_empty());
    tokens.iter().try_for_each(|token| check_added_token(token, vocab))?;
    tokens.sort_by_key(|token| token.id);
    if let Some([a, b]) = tokens.array_windows().find(|[a, b]| a.id == b.id) {
        let got = format!("{:?} and {:?}, both {}", a.content, b.content, a.id);
        return Err(wrong("added tokens with an id each", got));
    }
    AddedTokens::new(tokens, |text| match normalizer {
        Some(normalizer) => normalizer.normalize(text).map(|text| text.into_owned()),
        None => Ok(text.to_owned()),
    })
}

fn check_added_token(token: &AddedToken, vocab: &Vocab) -> Result<()> {
    let AddedToken { id, content, .. } = token;
    if content.len() > MAX_ADDED_TOKEN {
        return Err(wrong(
            format!("added tokens of at most {MAX_ADDED_TOKEN} bytes"),
            content.len().to_string(),
        ));
    }
    if *id >= MAX_ID {
        return Err(wrong(format!("added tokens with ids below {MAX_ID}"), id.to_string()));
    }
    let (by_text, by_id) = (vocab.id_of(content), vocab.token(*id));
    match (by_text, by_id) {
        (Some(other), _) if other != *id => {
            Err(wrong(format!("the id {other} for {content:?}, as the vocab has it"), id.to_string()))
        }
        (None, Some(other)) => {
            Err(wrong(format!("{other:?} for the id {id}, as the vocab has it"), format!("{content:?}")))
        }
        _ => Ok(()),
    }
}
