//! The named files of one model, wherever they lie.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, FutureExt, LocalBoxFuture, ready, select};

use super::context::{FetchEvent, LoadContext};
use super::fetcher::Fetcher;
use super::manifest::{FileRecord, Manifest, as_ranges, collect_garbage, delete_file};
use super::retry::Retries;
use super::window::Window;
use super::{BlockFile, BlockStore, ByteSource, Fault, Host, Integrity, MemorySource, Metadata, Observer};
use crate::error::{Code, Error, Result};

/// Where models are looked up that are named by `owner/name`.
const HUB: &str = "https://huggingface.co";

/// A server that has not said by then whether a file is as it was kept is taken for unreachable.
const PATIENCE_WITH_KEPT: Duration = Duration::from_secs(5);

/// A place that holds the files of a model.
pub trait Opener {
    /// The URL, path or name of the place, for errors.
    fn name(&self) -> &str;

    /// The model as a person named it.
    fn id(&self) -> &str {
        self.name()
    }

    /// The source of `file`, a relative path such as `config.json`. Whether there is such a file shows
    /// when the source's metadata is asked for.
    fn open(&self, file: &str) -> Rc<dyn ByteSource>;
}

/// The files of one model: a place, and the store and observer that their loading shares.
pub struct Repo {
    opener: Rc<dyn Opener>,
    context: LoadContext,
    window: Rc<Window>,
    integrity: BTreeMap<String, Integrity>,
    /// The files that have been opened, by name.
    files: RefCell<BTreeMap<String, Rc<Fetcher>>>,
    has_manifest: Cell<bool>,
    has_restarted: Cell<bool>,
}

impl Repo {
    /// The files in `opener`'s place, without a store.
    pub fn new(opener: impl Opener + 'static) -> Self {
        let context = LoadContext { place: Rc::from(opener.name()), ..LoadContext::default() };
        Self {
            opener: Rc::new(opener),
            context,
            window: Rc::default(),
            integrity: BTreeMap::new(),
            files: RefCell::default(),
            has_manifest: Cell::default(),
            has_restarted: Cell::default(),
        }
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

    /// Demands that files have these hashes, by name. Such a file is read as a whole, checked as it comes, and
    /// checked again only when a part of it comes anew.
    pub fn with_integrity(mut self, integrity: BTreeMap<String, Integrity>) -> Self {
        self.integrity = integrity;
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

    /// Opens `file`; `None` if there is no such file. Only its size and version are asked for; and not even
    /// they where the whole model is stored and there is no network.
    pub async fn find(&self, file: &str) -> Result<Option<BlockFile>> {
        check_file_name(self.name(), file)?;
        self.read_manifest().await;
        let source = self.opener.open(file);
        let kept = self.context.state.manifest.borrow().files.get(file).cloned();
        let metadata = self.ask(file, source.as_ref(), kept.as_ref()).await?;
        self.record(file, source.name(), metadata.as_ref(), kept.as_ref()).await;
        let Some(metadata) = metadata else { return Ok(None) };
        let integrity = self.integrity.get(file).cloned();
        let is_trusted = kept.flatten().is_some_and(|kept| {
            kept.metadata() == metadata
                && kept.verified.as_deref() == integrity.as_ref().map(Integrity::as_str)
        });
        let fetcher = Fetcher::new(file, source, metadata, self.context.clone());
        let fetcher = Rc::new(fetcher.with_integrity(integrity, is_trusted));
        self.files.borrow_mut().insert(file.to_owned(), fetcher.clone());
        Ok(Some(BlockFile::new(fetcher, self.window.clone())))
    }

    /// What the source says of the file, or, if it cannot be reached and the model is stored as a whole, what
    /// it has said before.
    async fn ask(
        &self,
        file: &str,
        source: &dyn ByteSource,
        kept: Option<&Option<FileRecord>>,
    ) -> Result<Option<Metadata>> {
        let state = &self.context.state;
        let kept = kept.filter(|_| state.manifest.borrow().complete);
        let kept = kept.map(|record| record.as_ref().map(FileRecord::metadata));
        let mut retries = Retries::new(&self.context, file);
        loop {
            let Some(kept) = &kept else {
                match source.metadata().await {
                    Ok(metadata) => {
                        state.reached.set(true);
                        return Ok(metadata);
                    }
                    Err(fault) => retries.after(fault).await?,
                }
                continue;
            };
            if state.is_offline.get() || self.context.host.is_offline() {
                return Ok(kept.clone());
            }
            let patience = self.context.host.sleep(PATIENCE_WITH_KEPT);
            match select(source.metadata(), patience).await {
                Either::Left((Ok(metadata), _)) => {
                    state.reached.set(true);
                    return Ok(metadata);
                }
                Either::Left((Err(Fault::Passing { .. }), _)) | Either::Right(_) => {
                    state.is_offline.set(true)
                }
                Either::Left((Err(fault), _)) => return Err(fault.into_error()),
            }
        }
    }

    /// Reads what the store knows of the place, once.
    async fn read_manifest(&self) {
        let Some(store) = &self.context.store else { return };
        if self.has_manifest.replace(true) {
            return;
        }
        let manifest = Manifest::read(store.as_ref(), self.name()).await.unwrap_or_else(|error| {
            self.context.tell(FetchEvent::StoreFailed { file: "", error: &error });
            None
        });
        let fits = |manifest: &Manifest| manifest.block_size == self.context.block_size;
        let manifest = Manifest {
            id: self.opener.id().to_owned(),
            used: self.context.host.now(),
            block_size: self.context.block_size,
            ..manifest.filter(fits).unwrap_or_default()
        };
        self.context.state.manifest.replace(manifest);
    }

    /// Enters a file into the manifest, before a block of it is stored, and deletes the blocks of the version
    /// that was there before.
    async fn record(
        &self,
        file: &str,
        url: &str,
        metadata: Option<&Metadata>,
        kept: Option<&Option<FileRecord>>,
    ) {
        let Some(store) = &self.context.store else { return };
        if kept.is_some_and(|kept| kept.as_ref().map(FileRecord::metadata).as_ref() == metadata) {
            return;
        }
        let record = metadata.map(|metadata| FileRecord {
            url: url.to_owned(),
            size: metadata.size,
            validator: metadata.validator.clone(),
            ..FileRecord::default()
        });
        self.context
            .update_manifest(&|manifest| {
                manifest.complete = false;
                manifest.files.insert(file.to_owned(), record.clone());
            })
            .await;
        if kept.is_some_and(Option::is_some) {
            let validator = metadata.and_then(|metadata| metadata.validator.as_deref());
            let deleted = delete_file(store.as_ref(), url, |other| Some(other) != validator).await;
            if let Err(error) = deleted {
                self.context.tell(FetchEvent::StoreFailed { file, error: &error });
            }
        }
    }

    /// Ends a load that has read all it needs: checks what integrity is still to be checked, notes what is
    /// stored, deletes what nobody uses any more, and lets go of the blocks in memory.
    ///
    /// Fails with `Checkpoint` if a file has not the integrity demanded, and with `InvalidArgument` if it was
    /// demanded of a file that the load did not open. A store that fails is only told of.
    pub async fn finish(&self) -> Result<()> {
        for name in self.integrity.keys() {
            let fetcher = self.files.borrow().get(name).cloned().ok_or_else(|| {
                Error::new(Code::InvalidArgument, format!("check the integrity of {name}"))
                    .expected("a file that the model is loaded from")
                    .got("one that was not read")
                    .remedy("Correct the option integrity.")
            })?;
            BlockFile::new(fetcher, self.window.clone()).verify().await?;
        }
        self.window.clear();
        if let Some(store) = &self.context.store
            && let Err(error) = self.settle(store.as_ref()).await
        {
            self.context.tell(FetchEvent::StoreFailed { file: "", error: &error });
        }
        Ok(())
    }

    async fn settle(&self, store: &dyn BlockStore) -> Result<()> {
        let stored: BTreeSet<_> = store.list().await?.into_iter().collect();
        self.context.state.is_finished.set(true);
        self.context
            .update_manifest(&|manifest| {
                for (name, fetcher) in self.files.borrow().iter() {
                    let Some(Some(record)) = manifest.files.get_mut(name) else { continue };
                    record.blocks = as_ranges(&fetcher.needed_blocks());
                    if fetcher.is_verified.get() {
                        record.verified =
                            fetcher.integrity.as_ref().map(|demanded| demanded.as_str().to_owned());
                    }
                }
                manifest.complete = manifest.is_in(&stored);
            })
            .await;
        collect_garbage(store, self.context.host.now()).await
    }

    /// Whether a load that has failed is to begin anew, since a file changed in the middle of it. That is done
    /// once; what was read before is forgotten.
    pub fn restart(&self) -> bool {
        if !self.context.state.changed.take() || self.has_restarted.replace(true) {
            return false;
        }
        self.window.clear();
        self.files.take();
        self.context.tell(FetchEvent::Restart);
        true
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
