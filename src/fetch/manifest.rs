//! What the store knows of a model as a whole: which files it has, of which version, and whether all that a
//! load of it reads is there. So a kept model loads without a network, can be listed and deleted, and blocks
//! that belong to no model any more are found.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{BlockKey, BlockStore, Metadata, StoreKey};
use crate::error::Result;

/// A model whose load never came to its end is forgotten when nobody has tried again for so long: 30 days.
const ABANDONED_AFTER_MS: u64 = 30 * 24 * 3600 * 1000;

/// The manifest of one place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The model as the page named it.
    pub(super) id: String,
    /// When it was last loaded, in milliseconds since 1970.
    pub(super) used: u64,
    /// Whether everything that its last load read is stored.
    pub(super) complete: bool,
    /// Bytes in a block of its files.
    pub(super) block_size: u64,
    /// By name; `None` where there is no such file.
    pub(super) files: BTreeMap<String, Option<FileRecord>>,
}

/// A file of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    pub(super) url: String,
    pub(super) size: u64,
    pub(super) validator: Option<String>,
    /// The blocks that a load reads.
    pub(super) blocks: Vec<Range<u64>>,
    /// The integrity that the whole file was seen to have.
    pub(super) verified: Option<String>,
}

impl FileRecord {
    pub(super) fn metadata(&self) -> Metadata {
        Metadata { size: self.size, validator: self.validator.clone() }
    }

    fn keys(&self) -> impl Iterator<Item = StoreKey> {
        let blocks = self.blocks.iter().cloned().flatten();
        blocks.filter_map(|block| {
            let validator = self.validator.clone()?;
            Some(BlockKey { url: self.url.clone(), validator, block }.into())
        })
    }
}

impl Manifest {
    /// The manifest of `place`; `None` if there is none that can be read.
    pub(super) async fn read(store: &dyn BlockStore, place: &str) -> Result<Option<Self>> {
        let bytes = store.get(&StoreKey::Manifest(place.to_owned())).await?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Takes over the files that another load, as in another tab, has entered meanwhile.
    pub(super) fn adopt(&mut self, stored: Self) {
        for (name, record) in stored.files {
            self.files.entry(name).or_insert(record);
        }
    }

    pub(super) async fn write(&self, store: &dyn BlockStore, place: &str) -> Result<()> {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        store.put(&StoreKey::Manifest(place.to_owned()), &bytes).await
    }

    fn records(&self) -> impl Iterator<Item = &FileRecord> {
        self.files.values().flatten()
    }

    /// Whether `stored` has every block that a load reads.
    pub(super) fn is_in(&self, stored: &BTreeSet<StoreKey>) -> bool {
        self.records().all(|record| record.blocks.is_empty() || record.validator.is_some())
            && self.records().flat_map(FileRecord::keys).all(|key| stored.contains(&key))
    }
}

/// Numbers as ranges of neighbours.
pub(super) fn as_ranges(numbers: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => ranges.push(number..number + 1),
        }
    }
    ranges
}

/// A model in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// The model as the page named it: a hub id or an address.
    pub id: String,
    /// The place of its files: the address of their folder.
    pub place: String,
    /// Bytes that are stored.
    pub bytes: u64,
    /// The names of its files of which something is stored.
    pub files: Vec<String>,
    /// Whether it loads without a network.
    pub complete: bool,
}

/// All models of which `store` has something.
///
/// Fails with `Storage` if the store does; so do the functions below.
pub async fn cached_models(store: &dyn BlockStore) -> Result<Vec<CachedModel>> {
    let stored: BTreeSet<StoreKey> = store.list().await?.into_iter().collect();
    let mut blocks_of: HashMap<(&str, &str), Vec<u64>> = HashMap::new();
    for key in &stored {
        if let StoreKey::Block(BlockKey { url, validator, block }) = key {
            blocks_of.entry((url, validator)).or_default().push(*block);
        }
    }
    let mut models = Vec::new();
    for (place, manifest) in manifests(store, &stored).await? {
        let mut model = CachedModel {
            id: manifest.id.clone(),
            place,
            bytes: 0,
            files: Vec::new(),
            complete: manifest.complete && manifest.is_in(&stored),
        };
        for (name, record) in &manifest.files {
            let Some(FileRecord { url, size, validator: Some(validator), .. }) = record else { continue };
            let Some(blocks) = blocks_of.get(&(url.as_str(), validator.as_str())) else { continue };
            let block_size = manifest.block_size;
            let lengths = blocks
                .iter()
                .map(|block| size.saturating_sub(block.saturating_mul(block_size)).min(block_size));
            model.bytes += lengths.sum::<u64>();
            model.files.push(name.clone());
        }
        models.push(model);
    }
    Ok(models)
}

/// Whether the model at `place` loads from `store` without a network.
pub async fn is_cached(store: &dyn BlockStore, place: &str) -> Result<bool> {
    let Some(manifest) = Manifest::read(store, place).await?.filter(|manifest| manifest.complete) else {
        return Ok(false);
    };
    Ok(manifest.is_in(&store.list().await?.into_iter().collect()))
}

/// Deletes all that `store` has of the model at `place`; whether there was something.
pub async fn delete_cached(store: &dyn BlockStore, place: &str) -> Result<bool> {
    let Some(manifest) = Manifest::read(store, place).await? else { return Ok(false) };
    let urls: BTreeSet<&str> = manifest.records().map(|record| record.url.as_str()).collect();
    let is_its = |key: &StoreKey| matches!(key, StoreKey::Block(key) if urls.contains(key.url.as_str()));
    delete(store, store.list().await?.into_iter().filter(is_its)).await?;
    // Last, so that what an interruption leaves behind still belongs to somebody.
    store.delete(&StoreKey::Manifest(place.to_owned())).await?;
    Ok(true)
}

/// Deletes what no load will use any more: models that were abandoned half way, blocks of old versions, and
/// blocks that belong to no model. `now` is in milliseconds since 1970.
pub async fn collect_garbage(store: &dyn BlockStore, now: u64) -> Result<()> {
    // Blocks are listed before manifests are read: a manifest names a file before its first block is stored,
    // also in another tab.
    let stored: BTreeSet<StoreKey> = store.list().await?.into_iter().collect();
    let mut owned: BTreeSet<(String, String)> = BTreeSet::new();
    for (place, manifest) in manifests(store, &stored).await? {
        if !manifest.complete && now.saturating_sub(manifest.used) > ABANDONED_AFTER_MS {
            store.delete(&StoreKey::Manifest(place)).await?;
            continue;
        }
        let files = manifest.files.into_values().flatten();
        owned.extend(files.filter_map(|record| Some((record.url, record.validator?))));
    }
    let is_orphan = |key: &StoreKey| match key {
        StoreKey::Block(key) => !owned.contains(&(key.url.clone(), key.validator.clone())),
        StoreKey::Manifest(_) => false,
    };
    delete(store, stored.iter().filter(|key| is_orphan(key)).cloned()).await?;
    store.sweep(&stored).await;
    Ok(())
}

/// Deletes the blocks of a file; of one version of it, or of all but one.
pub(super) async fn delete_file(
    store: &dyn BlockStore,
    url: &str,
    is_meant: impl Fn(&str) -> bool,
) -> Result<()> {
    let is_its =
        |key: &StoreKey| matches!(key, StoreKey::Block(key) if key.url == url && is_meant(&key.validator));
    delete(store, store.list().await?.into_iter().filter(is_its)).await
}

async fn delete(store: &dyn BlockStore, keys: impl Iterator<Item = StoreKey>) -> Result<()> {
    for key in keys {
        store.delete(&key).await?;
    }
    Ok(())
}

/// The manifests among `stored`, by place.
async fn manifests(store: &dyn BlockStore, stored: &BTreeSet<StoreKey>) -> Result<Vec<(String, Manifest)>> {
    let mut manifests = Vec::new();
    for key in stored {
        let StoreKey::Manifest(place) = key else { continue };
        // One that cannot be read, or was deleted meanwhile, is as good as none.
        manifests.extend(Manifest::read(store, place).await?.map(|manifest| (place.clone(), manifest)));
    }
    Ok(manifests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_ranges() {
        assert_eq!(as_ranges(&BTreeSet::from([0, 1, 2, 5, 7, 8])), [0..3, 5..6, 7..9]);
        assert!(as_ranges(&BTreeSet::new()).is_empty());
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_a_broken_one_is_none() {
        let store = crate::fetch::MemoryStore::new();
        let record = FileRecord {
            url: "u".into(),
            size: 5,
            blocks: as_ranges(&BTreeSet::from([0])),
            ..FileRecord::default()
        };
        let files = BTreeMap::from([("a".to_owned(), Some(record)), ("b".to_owned(), None)]);
        let manifest = Manifest { id: "owner/name".into(), used: 7, complete: true, block_size: 8, files };
        pollster::block_on(async {
            manifest.write(&store, "p").await.unwrap();
            assert_eq!(Manifest::read(&store, "p").await.unwrap(), Some(manifest.clone()));
            assert!(!manifest.is_in(&BTreeSet::new()), "without a validator nothing is stored");
            store.put(&StoreKey::Manifest("q".into()), b"{").await.unwrap();
            assert_eq!(Manifest::read(&store, "q").await.unwrap(), None);
            assert_eq!(Manifest::read(&store, "r").await.unwrap(), None);
        });
    }
}
