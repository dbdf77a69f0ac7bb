//! What the files of one load share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::poll_fn;

use super::host::{DefaultHost, Host};
use super::{BLOCK_SIZE, BlockStore};
use crate::error::Error;

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
        /// The file whose block could not be read or stored.
        file: &'a str,
        /// What went wrong.
        error: &'a Error,
    },
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
    pub(super) state: Rc<LoadState>,
}

#[derive(Default)]
pub(super) struct LoadState {
    /// Nothing more is stored.
    pub(super) store_is_full: Cell<bool>,
    /// A file changed on its server, so that what has been read does not belong together.
    pub(super) changed: Cell<bool>,
    pub(super) foreground: Foreground,
}

impl Default for LoadContext {
    fn default() -> Self {
        Self {
            store: None,
            observer: None,
            host: Rc::new(DefaultHost::default()),
            block_size: BLOCK_SIZE,
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
