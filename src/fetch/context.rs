//! What the files of one load share.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::poll_fn;

use super::host::{DefaultHost, Host};
use super::manifest::{Manifest, collect_garbage};
use super::{BLOCK_SIZE, BlockStore, StoreKey};
use crate::error::{Code, Error, Result};

/// A load that is to store less than this does not ask whether there is room for it.
const MUCH_TO_STORE: u64 = 16 << 20;

/// How far one file has come, in bytes. A block counts once, when it is first loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The file's name in its repository.
    pub file: &'a str,
    /// Bytes loaded so far.
    pub loaded: u64,
    /// Bytes in the file. `loaded` stays below it when only some tensors are read.
    pub total: u64,
    /// How many of `loaded` came from the block store.
    pub from_cache: u64,
}

/// What a load tells while it reads.
#[derive(Debug)]
pub enum FetchEvent<'a> {
    /// A block has been loaded.
    Progress(Progress<'a>),
    /// The block store failed, as it does when the origin's quota is used up. The load goes on; after a
    /// failed write nothing more is stored.
    StoreFailed {
        /// The file whose block could not be read or stored; empty where it was what is known of all files.
        file: &'a str,
        /// What went wrong.
        error: &'a Error,
    },
    /// A file has changed on its server in the middle of the load, which therefore begins anew, once.
    Restart,
    /// A request failed, and is made again after a while.
    Retry {
        /// The file that is being read.
        file: &'a str,
        /// The failures in a row, this one included.
        failures: u32,
        /// How long the load waits.
        delay: Duration,
        /// What went wrong.
        error: &'a Error,
    },
}

/// Receives the events of a load.
pub type Observer = Rc<dyn Fn(FetchEvent<'_>)>;

#[derive(Clone)]
pub(super) struct LoadContext {
    pub(super) store: Option<Rc<dyn BlockStore>>,
    pub(super) observer: Option<Observer>,
    pub(super) host: Rc<dyn Host>,
    /// Bytes in a block; [`BLOCK_SIZE`] but in tests.
    pub(super) block_size: u64,
    /// The name of the place that the files are from.
    pub(super) place: Rc<str>,
    pub(super) state: Rc<LoadState>,
}

#[derive(Default)]
pub(super) struct LoadState {
    /// Nothing more is stored.
    pub(super) store_is_full: Cell<bool>,
    /// A file changed on its server, so that what has been read does not belong together.
    pub(super) changed: Cell<bool>,
    /// Some request has succeeded: one that fails now may well succeed later.
    pub(super) reached: Cell<bool>,
    /// The network has failed where the store had an answer, and is not asked again.
    pub(super) is_offline: Cell<bool>,
    /// The blocks that the load will read, of files that can be stored, and their lengths.
    pub(super) wanted: RefCell<HashMap<StoreKey, u64>>,
    /// The bytes wanted when it was last asked whether there is room for them.
    room_asked_for: Cell<u64>,
    /// What the store knows of the place.
    pub(super) manifest: RefCell<Manifest>,
    /// The load has come to its end.
    pub(super) is_finished: Cell<bool>,
    pub(super) foreground: Foreground,
}

impl Default for LoadContext {
    fn default() -> Self {
        Self {
            store: None,
            observer: None,
            host: Rc::new(DefaultHost),
            block_size: BLOCK_SIZE,
            place: Rc::from(""),
            state: Rc::default(),
        }
    }
}

impl LoadContext {
    pub(super) fn tell(&self, event: FetchEvent<'_>) {
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }

    /// The store failed to keep something of `file`: nothing more is stored.
    pub(super) fn store_failed(&self, file: &str, error: &Error) {
        self.state.store_is_full.set(true);
        self.tell(FetchEvent::StoreFailed { file, error });
    }

    /// Changes the place's manifest, in the store too.
    pub(super) async fn update_manifest(&self, change: &dyn Fn(&mut Manifest)) {
        change(&mut self.state.manifest.borrow_mut());
        let Some(store) = self.store.as_ref().filter(|_| !self.state.store_is_full.get()) else { return };
        if let Ok(Some(stored)) = Manifest::read(store.as_ref(), &self.place).await {
            self.state.manifest.borrow_mut().adopt(stored);
        }
        let manifest = self.state.manifest.borrow().clone();
        if let Err(error) = manifest.write(store.as_ref(), &self.place).await {
            self.store_failed("", &error);
        }
    }

    /// Before much is stored: asks that it be kept, and stores nothing more if it does not fit as a whole. A
    /// part of a model would save little, and take the last room from whatever else the page stores.
    /// `file` is being read.
    pub(super) async fn see_to_room(&self, store: &dyn BlockStore, file: &str) {
        let wanted: u64 = self.state.wanted.borrow().values().sum();
        if self.state.store_is_full.get() || wanted < self.state.room_asked_for.get() + MUCH_TO_STORE {
            return;
        }
        self.state.room_asked_for.set(wanted);
        self.host.persist();
        let asked = self.lacks_room(store).await;
        if let Ok(Some((missing, free))) = asked {
            let error = Error::new(Code::Storage, "keep the model")
                .expected(format!("{missing} bytes of free storage for what is to be downloaded"))
                .got(free.to_string())
                .remedy(
                    "The load goes on without keeping more. Delete other models, or free space on the disk.",
                );
            self.store_failed(file, &error);
        }
    }

    fn wanted_beside(&self, stored: &HashSet<StoreKey>) -> u64 {
        let wanted = self.state.wanted.borrow();
        wanted.iter().filter(|(key, _)| !stored.contains(key)).map(|(_, bytes)| bytes).sum()
    }

    /// The bytes that are still to be stored and those that are free, if these are fewer also without what
    /// nobody uses any more.
    async fn lacks_room(&self, store: &dyn BlockStore) -> Result<Option<(u64, u64)>> {
        let stored: HashSet<StoreKey> = store.list().await?.into_iter().collect();
        let missing = self.wanted_beside(&stored);
        let lacks = |free: Option<u64>| free.filter(|free| *free < missing).map(|free| (missing, free));
        if lacks(self.host.free_bytes().await).is_none() {
            return Ok(None);
        }
        collect_garbage(store, self.host.now()).await?;
        Ok(lacks(self.host.free_bytes().await))
    }
}

/// Reads that somebody waits for, to which downloads in the background give way.
#[derive(Default)]
pub(super) struct Foreground {
    reads: Cell<usize>,
    waiting: RefCell<Vec<Waker>>,
}

impl Foreground {
    /// Counts as a read until it is dropped.
    pub(super) fn enter(&self) -> impl Drop {
        struct Read<'a>(&'a Foreground);
        impl Drop for Read<'_> {
            fn drop(&mut self) {
                self.0.reads.set(self.0.reads.get() - 1);
                self.0.waiting.take().into_iter().for_each(Waker::wake);
            }
        }
        self.reads.set(self.reads.get() + 1);
        Read(self)
    }

    /// Waits until there is no read.
    pub(super) async fn idle(&self) {
        poll_fn(|context| {
            if self.reads.get() == 0 {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
