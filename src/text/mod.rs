//! Floor 0. Text in and text out: the tokenizer, the chat template, streaming decode, the parts of a model's
//! output, and stop sequences.
//!
//! Nothing here knows a model, a network or a clock. Every file that is read (`tokenizer.json`,
//! `tokenizer_config.json`, templates) is taken for hostile: it can make a call fail, never panic, hang or
//! allocate without bound.

pub mod chat;
pub mod output;
pub mod stop;
pub mod stream;
pub mod tokenizer;

pub use chat::{ChatTemplate, RenderOptions};
pub use output::{OutputFormat, OutputParser, Part, ToolCall};
pub use stop::StopSequences;
pub use stream::StreamDecoder;
pub use tokenizer::{EncodeOptions, Tokenizer};
