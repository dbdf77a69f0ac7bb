//! Floor 0. Byte sources (HTTP Range, file, memory) and block stores (Cache API, file, memory).
//!
//! A model's file is larger than a tab may hold and the network breaks off, so a file is read as a
//! sequence of fixed blocks: each is fetched by one ranged request, kept in a store under its own key,
//! and dropped from memory soon after. Three pieces stack up:
//!
//! - [`ByteSource`] is one file somewhere, readable by range; it neither caches nor retries.
//! - [`BlockStore`] keeps blocks over a reload. It may fail or forget: a load then goes on without it.
//! - [`BlockFile`] joins the two, and [`Repo`] opens the named files of one model.

#[cfg(target_arch = "wasm32")]
mod blob;
mod block_file;
#[cfg(target_arch = "wasm32")]
mod cache;
mod context;
mod fetcher;
mod host;
#[cfg(target_arch = "wasm32")]
mod http;
mod integrity;
mod manifest;
mod repo;
#[cfg(any(test, target_arch = "wasm32"))]
mod response;
mod retry;
mod scattered;
mod source;
mod store;
mod window;

#[cfg(target_arch = "wasm32")]
pub use blob::BlobOpener;
pub use block_file::{BLOCK_SIZE, BlockFile, HELD_BYTES};
#[cfg(target_arch = "wasm32")]
pub use cache::CacheStore;
pub use context::{FetchEvent, Observer, Progress};
pub use host::{DefaultHost, Host, Lock};
#[cfg(target_arch = "wasm32")]
pub use http::HttpOpener;
pub use integrity::Integrity;
pub use manifest::{CachedModel, cached_models, collect_garbage, delete_cached, is_cached};
#[cfg(not(target_arch = "wasm32"))]
pub use repo::FolderOpener;
pub use repo::{MemoryOpener, Opener, Repo, base_url};
#[cfg(not(target_arch = "wasm32"))]
pub use source::FileSource;
pub use source::{ByteSource, Fault, MemorySource, Metadata};
#[cfg(not(target_arch = "wasm32"))]
pub use store::FileStore;
pub use store::{BlockKey, BlockStore, MemoryStore, StoreKey};
