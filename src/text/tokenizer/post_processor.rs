//! The tokens that a post-processor puts around a text: BOS before it, EOS after it.

use std::collections::HashMap;

use serde::Deserialize;

/// The ids before and after a text.
#[derive(Default, Deserialize)]
#[serde(try_from = "PostProcessorJson")]
pub(super) struct Frame {
    pub(super) prefix: Vec<u32>,
    pub(super) suffix: Vec<u32>,
}

/// The `post_processor` of `tokenizer.json`. What it says about pairs and offsets plays no part here.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum PostProcessorJson {
    TemplateProcessing { single: Vec<TemplatePiece>, special_tokens: HashMap<String, SpecialToken> },
    ByteLevel,
    Sequence { processors: Vec<Frame> },
}

#[derive(Deserialize)]
enum TemplatePiece {
    Sequence { id: SequenceId },
    SpecialToken { id: String },
}

#[derive(Deserialize)]
enum SequenceId {
    A,
}

#[derive(Deserialize)]
struct SpecialToken {
    ids: Vec<u32>,
}

/// More ids than any frame has.
const MAX_IDS: usize = 1024;

impl TryFrom<PostProcessorJson> for Frame {
    type Error = String;

    fn try_from(json: PostProcessorJson) -> Result<Self, String> {
        match json {
            PostProcessorJson::ByteLevel => Ok(Frame::default()),
            PostProcessorJson::TemplateProcessing { single, special_tokens } => {
                frame(single, &special_tokens)
            }
            PostProcessorJson::Sequence { processors } => {
                let mut framing =
                    processors.into_iter().filter(|f| !f.prefix.is_empty() || !f.suffix.is_empty());
                let frame = framing.next().unwrap_or_default();
                match framing.next() {
                    None => Ok(frame),
                    Some(_) => Err("two processors that add tokens".into()),
                }
            }
        }
    }
}

fn frame(
    single: Vec<TemplatePiece>,
    special_tokens: &HashMap<String, SpecialToken>,
) -> Result<Frame, String> {
    let mut frame = Frame::default();
    let mut is_past_text = false;
    for piece in single {
        match piece {
            TemplatePiece::Sequence { id: SequenceId::A } if is_past_text => {
                return Err("a template that repeats the text".into());
            }
            TemplatePiece::Sequence { id: SequenceId::A } => is_past_text = true,
            TemplatePiece::SpecialToken { id } => {
                let token = special_tokens.get(&id).ok_or_else(|| format!("no special token {id:?}"))?;
                let side = if is_past_text { &mut frame.suffix } else { &mut frame.prefix };
                side.extend(&token.ids);
                if side.len() > MAX_IDS {
                    return Err(format!("a template of more than {MAX_IDS} tokens"));
                }
            }
        }
    }
    match is_past_text {
        true => Ok(frame),
        false => Err("a template without the text".into()),
    }
}
