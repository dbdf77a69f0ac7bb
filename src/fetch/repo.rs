//! The named files of one model, wherever they lie.

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::future::{FutureExt, LocalBoxFuture, ready};

use super::context::LoadContext;
use super::retry::Retries;
use super::window::Window;
use super::{BlockFile, BlockStore, ByteSource, Fault, Host, MemorySource, Metadata, Observer};
use crate::error::{Code, Error, Result};

/// Where models are looked up that are named by `owner/name`.
const HUB: &str = "https://huggingface.co";

/// A place that holds the files of a model.
pub trait Opener {
    /// The URL, path or name of the place, for errors.
    fn name(&self) -> &str;

    /// The source of `file`, a relative path such as `config.json`. Whether there is such a file shows
    /// when the source's metadata is asked for.
    fn open(&self, file: &str) -> Rc<dyn ByteSource>;
}

/// The files of one model: a place, and the store and observer that their loading shares.
pub struct Repo {
    opener: Rc<dyn Opener>,
    context: LoadContext,
    window: Rc<Window>,
}

impl Repo {
    /// The files in `opener`'s place, without a store.
    pub fn new(opener: impl Opener + 'static) -> Self {
        Self { opener: Rc::new(opener), context: LoadContext::default(), window: Rc::default() }
    }

    /// Keeps blocks in `store`.
    pub fn with_store(mut self, store: Rc<dyn BlockStore>) -> Self {
        self.context.store = Some(store);
        self
    }

    /// Tells `observer` of progress and of a failing store.
    pub fn with_observer(mut self, observer: Observer) -> Self {
        self.context.observer = Some(observer);
        self
    }

    /// Waits, draws and locks by `host`.
    pub fn with_host(mut self, host: Rc<dyn Host>) -> Self {
        self.context.host = host;
        self
    }

    /// Cuts files into blocks of `bytes`, for tests with small files. Stores do not tell sizes apart.
    pub fn with_block_size(mut self, bytes: u64) -> Self {
        self.context.block_size = bytes.max(1);
        self
    }

    /// The URL, path or name of the place.
    pub fn name(&self) -> &str {
        self.opener.name()
    }

    /// Opens `file`; `None` if there is no such file. Only its size is asked for.
    pub async fn find(&self, file: &str) -> Result<Option<BlockFile>> {
        check_file_name(self.name(), file)?;
        let source = self.opener.open(file);
        let mut retries = Retries::new(&self.context, file);
        let metadata = loop {
            match source.metadata().await {
                Ok(metadata) => break metadata,
                Err(fault) => retries.after(fault).await?,
            }
        };
        let open =
            |metadata| BlockFile::new(file, source, metadata, self.context.clone(), self.window.clone());
        Ok(metadata.map(open))
    }

    /// Opens `file`, which must exist.
    pub async fn open(&self, file: &str) -> Result<BlockFile> {
        self.find(file).await?.ok_or_else(|| {
            Error::new(Code::Checkpoint, format!("open {file} of {}", self.name()))
                .got("no such file")
                .remedy("Check the model's name or URL, and that all of its files are there.")
        })
    }

    /// The whole of a small file of at most `limit` bytes; `None` if there is no such file.
    pub async fn read_all(&self, file: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        match self.find(file).await? {
            Some(file) => file.read_all(limit).await.map(Some),
            None => Ok(None),
        }
    }
}

/// File names come from a shard index, thus from outside: they must stay below their place.
fn check_file_name(place: &str, file: &str) -> Result<()> {
    let is_plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.contains(|c: char| c.is_control() || r#"\:?#%<>|"*"#.contains(c))
    };
    if file.split('/').all(is_plain) {
        return Ok(());
    }
    Err(Error::new(Code::Checkpoint, format!("open a file of {place}"))
        .expected("a relative file name such as model-00001-of-00002.safetensors")
        .got(format!("{file:?}")))
}

/// The URL, ending in `/`, below which a model's files lie. `location` is an http(s) URL of a folder, or a
/// model's id on the hub: `owner/name` or `owner/name@revision`.
pub fn base_url(location: &str) -> Result<String> {
    let is_url = ["http://", "https://"].iter().any(|scheme| location.starts_with(scheme));
    if is_url && !location.contains(['?', '#']) {
        return Ok(format!("{}/", location.trim_end_matches('/')));
    }
    let (id, revision) = location.split_once('@').unwrap_or((location, "main"));
    let is_plain = |text: &str| {
        !text.is_empty()
            && !text.starts_with('.')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    match id.split_once('/') {
        Some((owner, name)) if is_plain(owner) && is_plain(name) && revision.split('/').all(is_plain) => {
            Ok(format!("{HUB}/{owner}/{name}/resolve/{}/", revision.replace('/', "%2F")))
        }
        _ => Err(Error::new(Code::InvalidArgument, "find the model")
            .expected("an http(s) URL of a folder without ? and #, or owner/name, or owner/name@revision")
            .got(format!("{location:?}"))),
    }
}

/// Files that lie in memory, by name.
pub struct MemoryOpener {
    files: BTreeMap<String, Rc<[u8]>>,
}

impl MemoryOpener {
    /// The place that holds `files`.
    pub fn new(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        Self { files: files.into_iter().map(|(name, bytes)| (name, bytes.into())).collect() }
    }
}

impl Opener for MemoryOpener {
    fn name(&self) -> &str {
        "memory"
    }

    fn open(&self, file: &str) -> Rc<dyn ByteSource> {
        match self.files.get(file) {
            Some(bytes) => Rc::new(MemorySource::new(file, bytes.clone())),
            None => Rc::new(Missing { name: file.to_owned() }),
        }
    }
}

/// The source of a file that its place knows not to have.
pub(super) struct Missing {
    pub(super) name: String,
}

impl ByteSource for Missing {
    fn name(&self) -> &str {
        &self.name
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>> {
        ready(Ok(None)).boxed_local()
    }

    fn read<'a>(
        &'a self,
        _: std::ops::Range<u64>,
        _: &'a Metadata,
        _: &'a mut Vec<u8>,
    ) -> LocalBoxFuture<'a, Result<(), Fault>> {
        let error = Error::new(Code::Checkpoint, format!("read {}", self.name)).got("no such file");
        ready(Err(error.into())).boxed_local()
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub use folder::FolderOpener;

#[cfg(not(target_arch = "wasm32"))]
mod folder {
    use std::path::PathBuf;

    use super::*;
    use crate::fetch::FileSource;

    /// The files of a folder on the disk.
    pub struct FolderOpener {
        name: String,
        path: PathBuf,
    }

    impl FolderOpener {
        /// The files in `path`.
        pub fn new(path: impl Into<PathBuf>) -> Self {
            let path = path.into();
            Self { name: path.display().to_string(), path }
        }
    }

    impl Opener for FolderOpener {
        fn name(&self) -> &str {
            &self.name
        }

        fn open(&self, file: &str) -> Rc<dyn ByteSource> {
            Rc::new(FileSource::new(self.path.join(file)))
        }
    }
}
