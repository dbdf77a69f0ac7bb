//! The one error type of the crate: what was asked, what was expected, what was got, what to do.

use std::fmt;
use std::rc::Rc;

/// Shorthand for results that fail with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure. JavaScript sees [`Code::as_str`] as the `code` of a `JirdError`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The caller's `AbortSignal` fired.
    Aborted,
    /// A file of the checkpoint is damaged or contradicts itself.
    Checkpoint,
    /// `config.json` or another configuration file cannot be used.
    Config,
    /// The prompt and the tokens asked for do not fit into the context.
    ContextFull,
    /// The GPU device was lost.
    DeviceLost,
    /// The model was disposed of before the call.
    Disposed,
    /// A bug of jird.
    Internal,
    /// An argument of the call is wrong.
    InvalidArgument,
    /// The checkpoint lacks a tensor that the model needs.
    MissingTensor,
    /// The network or the server failed.
    Network,
    /// There is no usable WebGPU here.
    NoWebGpu,
    /// The device or the memory budget cannot hold what was asked for.
    OutOfMemory,
    /// The block store (the Cache API) failed.
    Storage,
    /// The chat template failed.
    Template,
    /// The tokenizer's files cannot be used, or the text cannot be encoded.
    Tokenizer,
    /// A model type, dtype or feature that jird does not know.
    Unsupported,
}

impl Code {
    /// The code as JavaScript sees it.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Aborted => "aborted",
            Code::Checkpoint => "checkpoint",
            Code::Config => "config",
            Code::ContextFull => "context_full",
            Code::DeviceLost => "device_lost",
            Code::Disposed => "disposed",
            Code::Internal => "internal",
            Code::InvalidArgument => "invalid_argument",
            Code::MissingTensor => "missing_tensor",
            Code::Network => "network",
            Code::NoWebGpu => "no_webgpu",
            Code::OutOfMemory => "out_of_memory",
            Code::Storage => "storage",
            Code::Template => "template",
            Code::Tokenizer => "tokenizer",
            Code::Unsupported => "unsupported",
        }
    }
}

/// A failure that a person can act on.
///
/// ```
/// use jird::error::{Code, Error};
/// let error = Error::new(Code::Unsupported, "load the model")
///     .expected("model_type llama, mistral or gemma3_text")
///     .got("\"mamba\"")
///     .remedy("Choose a checkpoint of one of these families.");
/// assert_eq!(error.code(), Code::Unsupported);
/// assert!(error.to_string().starts_with("could not load the model: expected"));
/// ```
#[derive(Clone, Debug)]
pub struct Error(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    code: Code,
    asked: String,
    expected: Option<String>,
    got: Option<String>,
    remedy: Option<String>,
    source: Option<Rc<dyn std::error::Error + 'static>>,
}

impl Error {
    /// A failure to do what `asked` says: a verb phrase such as `read the header of model.safetensors`.
    pub fn new(code: Code, asked: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            asked: asked.into(),
            expected: None,
            got: None,
            remedy: None,
            source: None,
        }))
    }

    /// What would have been right.
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.0.expected = Some(expected.into());
        self
    }

    /// What was there instead.
    pub fn got(mut self, got: impl Into<String>) -> Self {
        self.0.got = Some(got.into());
        self
    }

    /// A whole sentence that says what the person can do.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// The error below this one.
    pub fn because(mut self, source: impl std::error::Error + 'static) -> Self {
        self.0.source = Some(Rc::new(source));
        self
    }

    /// The kind of the failure.
    pub fn code(&self) -> Code {
        self.0.code
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = &self.0;
        write!(f, "could not {}", parts.asked)?;
        match (&parts.expected, &parts.got) {
            (Some(expected), Some(got)) => write!(f, ": expected {expected}, got {got}")?,
            (Some(expected), None) => write!(f, ": expected {expected}")?,
            (None, Some(got)) => write!(f, ": got {got}")?,
            (None, None) => {}
        }
        if let Some(source) = &parts.source {
            write!(f, " ({source})")?;
        }
        write!(f, ".")?;
        if let Some(remedy) = &parts.remedy {
            write!(f, " {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref()
    }
}
