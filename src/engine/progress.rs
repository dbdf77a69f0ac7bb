//! What a load tells while it goes on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::fetch::{self, FetchEvent, Repo};

/// An event of a load.
#[derive(Clone, Copy, Debug)]
pub enum LoadEvent<'a> {
    /// What there is to load is being found out. The first event, at once, is of this kind.
    Open {
        /// The file being read: `config.json`, or one with a header.
        file: &'a str,
    },
    /// More of the tokenizer or the weights is there. `loaded` only grows, and ends at `total`, which never
    /// changes: it counts the parts of the files that are needed.
    Download {
        /// The file being read.
        file: &'a str,
        /// Bytes loaded.
        loaded: u64,
        /// Bytes in all.
        total: u64,
        /// Bytes of `loaded` that came from the block store.
        from_cache: u64,
    },
    /// Everything is there; kernels are being compiled.
    Compile,
    /// The block store failed; the load goes on without it.
    Uncached {
        /// The file whose block could not be kept.
        file: &'a str,
        /// Why.
        error: &'a Error,
    },
    /// The checkpoint has tensors beside those of the text model that nothing reads.
    Unused {
        /// Their names.
        tensors: &'a [&'a str],
    },
    /// A request failed; it is made again.
    Retry {
        /// The file that is being read.
        file: &'a str,
        /// How long the load waits before.
        delay: Duration,
        /// What went wrong.
        error: &'a Error,
    },
    /// A file has changed on its server meanwhile: the load begins anew, and so do all counts.
    Restart,
}

/// Follows a load and may end it.
pub trait LoadObserver {
    /// Is told of an event.
    fn event(&self, _event: LoadEvent<'_>) {}

    /// Whether the load should end with [`Code::Aborted`].
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Nobody watches.
impl LoadObserver for () {}

#[derive(Clone, Copy, Default)]
struct Counted {
    loaded: u64,
    /// 0 for files that do not count.
    total: u64,
    from_cache: u64,
}

/// Adds up the files of a load.
pub(super) struct Progress {
    observer: Rc<dyn LoadObserver>,
    /// By name. Bytes of headers are counted before the totals are known.
    files: RefCell<BTreeMap<String, Counted>>,
    /// The totals are known.
    has_begun: Cell<bool>,
    /// What is read from then on is not of the load.
    is_finished: Cell<bool>,
}

impl Progress {
    pub fn new(observer: Rc<dyn LoadObserver>) -> Rc<Self> {
        observer.event(LoadEvent::Open { file: "config.json" });
        Rc::new(Self {
            observer,
            files: RefCell::default(),
            has_begun: Cell::default(),
            is_finished: Cell::default(),
        })
    }

    /// `repo`, whose reads are told to the observer.
    pub fn watch(self: Rc<Self>, repo: Repo) -> Repo {
        repo.with_observer(Rc::new(move |event| match event {
            FetchEvent::Progress(_) if self.is_finished.get() => {}
            FetchEvent::Progress(progress) => self.count(progress),
            FetchEvent::StoreFailed { file, error } => {
                self.observer.event(LoadEvent::Uncached { file, error });
            }
            FetchEvent::Retry { file, delay, error, .. } => {
                self.observer.event(LoadEvent::Retry { file, delay, error });
            }
            FetchEvent::Restart => {
                self.files.borrow_mut().clear();
                self.has_begun.set(false);
                self.observer.event(LoadEvent::Restart);
            }
        }))
    }

    fn count(&self, progress: fetch::Progress<'_>) {
        let mut files = self.files.borrow_mut();
        let counted = files.entry(progress.file.to_owned()).or_default();
        counted.loaded = progress.loaded;
        counted.from_cache = progress.from_cache;
        let counts = counted.total > 0;
        drop(files);
        if !self.has_begun.get() {
            self.observer.event(LoadEvent::Open { file: progress.file });
        } else if counts {
            self.tell(progress.file);
        }
    }

    /// From now on downloads are counted: `files` are their names and how much of each will be read.
    pub fn begin(&self, files: &[(&str, u64)]) {
        for (name, total) in files {
            self.files.borrow_mut().entry((*name).to_owned()).or_default().total = *total;
        }
        self.has_begun.set(true);
        self.tell(files.first().map_or("", |(name, _)| name));
    }

    /// Says which tensors nothing reads, if there are any.
    pub fn unused(&self, tensors: &[&str]) {
        if !tensors.is_empty() {
            self.observer.event(LoadEvent::Unused { tensors });
        }
    }

    /// Everything that is needed has been read.
    pub fn finish(&self) {
        self.is_finished.set(true);
        self.observer.event(LoadEvent::Compile);
    }

    /// Fails when the observer wants the load to end.
    pub fn check(&self) -> Result<()> {
        if self.observer.is_cancelled() { Err(Error::new(Code::Aborted, "load the model")) } else { Ok(()) }
    }

    fn tell(&self, file: &str) {
        let files = self.files.borrow();
        let sum = |part: fn(&Counted) -> u64| files.values().map(part).sum::<u64>();
        let (loaded, total) = (sum(|file| file.loaded.min(file.total)), sum(|file| file.total));
        let from_cache = sum(|file| file.from_cache.min(file.total));
        self.observer.event(LoadEvent::Download { file, loaded, total, from_cache });
    }
}
