//! What a load tells while it goes on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::fetch::{FetchEvent, Repo};

/// An event of a load.
#[derive(Clone, Copy, Debug)]
pub enum LoadEvent<'a> {
    /// A file other than the weights is being read.
    File {
        /// Its name.
        file: &'a str,
    },
    /// More of the weights is there. All sizes are sums over the files of weights, and only grow.
    Weights {
        /// The file being read.
        file: &'a str,
        /// Bytes loaded.
        loaded_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
        /// Bytes of `loaded_bytes` that came from the block store.
        cached_bytes: u64,
    },
    /// The block store failed; the load goes on without it.
    Uncached {
        /// The file whose block could not be kept.
        file: &'a str,
        /// Why.
        error: &'a Error,
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
    /// The weights are there; kernels are being compiled.
    Compile,
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
    total: u64,
    cached: u64,
}

/// Adds up the files of weights.
pub(super) struct Progress {
    observer: Rc<dyn LoadObserver>,
    /// By name; totals are 0 until the headers have been read and all sizes are known.
    weights: RefCell<BTreeMap<String, Counted>>,
}

impl Progress {
    pub fn new(observer: Rc<dyn LoadObserver>) -> Rc<Self> {
        Rc::new(Self { observer, weights: RefCell::default() })
    }

    /// `repo`, whose reads are told to the observer.
    pub fn watch(self: Rc<Self>, repo: Repo) -> Repo {
        repo.with_observer(Rc::new(move |event| match event {
            FetchEvent::Progress(progress) if progress.file.ends_with(".safetensors") => {
                // Headers count too, though nobody is told before all sizes are known.
                let mut weights = self.weights.borrow_mut();
                let counted = weights.entry(progress.file.to_owned()).or_default();
                counted.loaded = progress.loaded;
                counted.cached = progress.from_cache;
                drop(weights);
                self.tell_weights(progress.file);
            }
            FetchEvent::Progress(progress) => self.observer.event(LoadEvent::File { file: progress.file }),
            FetchEvent::StoreFailed { file, error } => {
                self.observer.event(LoadEvent::Uncached { file, error });
            }
            FetchEvent::Retry { file, delay, error, .. } => {
                self.observer.event(LoadEvent::Retry { file, delay, error });
            }
            FetchEvent::Restart => {
                self.weights.borrow_mut().clear();
                self.observer.event(LoadEvent::Restart);
            }
        }))
    }

    /// From now on weights are counted: `files` are their names and sizes.
    pub fn begin<'a>(&self, files: impl Iterator<Item = (&'a str, u64)>) {
        let mut weights = self.weights.borrow_mut();
        for (name, total) in files {
            weights.entry(name.to_owned()).or_default().total = total;
        }
    }

    /// Everything that is needed has been read, be it less than the files hold.
    pub fn finish(&self) {
        for counted in self.weights.borrow_mut().values_mut() {
            counted.loaded = counted.total;
        }
        let last = self.weights.borrow().keys().next_back().cloned();
        self.tell_weights(&last.unwrap_or_default());
        self.observer.event(LoadEvent::Compile);
    }

    /// Fails when the observer wants the load to end.
    pub fn check(&self) -> Result<()> {
        if self.observer.is_cancelled() { Err(Error::new(Code::Aborted, "load the model")) } else { Ok(()) }
    }

    fn tell_weights(&self, file: &str) {
        let weights = self.weights.borrow();
        let sum = |part: fn(&Counted) -> u64| weights.values().map(part).sum::<u64>();
        let total_bytes = sum(|counted| counted.total);
        if total_bytes > 0 {
            self.observer.event(LoadEvent::Weights {
                file,
                loaded_bytes: sum(|counted| counted.loaded),
                total_bytes,
                cached_bytes: sum(|counted| counted.cached),
            });
        }
    }
}
