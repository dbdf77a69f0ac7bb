//! Files that a person has picked.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::{FutureExt, LocalBoxFuture, ready};
use js_sys::{ArrayBuffer, Uint8Array};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::Blob;

use super::http::describe;
use super::repo::Missing;
use super::{ByteSource, Metadata, Opener};
use crate::error::{Code, Error, Result};

/// Picked files by name. They are read in place and never copied into a store.
pub struct BlobOpener {
    blobs: BTreeMap<String, Blob>,
}

impl BlobOpener {
    /// The place that holds `blobs`.
    pub fn new(blobs: impl IntoIterator<Item = (String, Blob)>) -> Self {
        Self { blobs: blobs.into_iter().collect() }
    }
}

impl Opener for BlobOpener {
    fn name(&self) -> &str {
        "the picked files"
    }

    fn open(&self, file: &str) -> Rc<dyn ByteSource> {
        match self.blobs.get(file) {
            Some(blob) => Rc::new(BlobSource { name: file.to_owned(), blob: blob.clone() }),
            None => Rc::new(Missing { name: file.to_owned() }),
        }
    }
}

struct BlobSource {
    name: String,
    blob: Blob,
}

impl BlobSource {
    async fn slice(&self, range: Range<u64>) -> Result<Vec<u8>, JsValue> {
        let part = self.blob.slice_with_f64_and_f64(range.start as f64, range.end as f64)?;
        let buffer: ArrayBuffer = JsFuture::from(part.array_buffer()).await?.unchecked_into();
        Ok(Uint8Array::new(&buffer).to_vec())
    }
}

impl ByteSource for BlobSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>>> {
        // Without a validator nothing is stored.
        ready(Ok(Some(Metadata { size: self.blob.size() as u64, validator: None }))).boxed_local()
    }

    fn read(&self, range: Range<u64>) -> LocalBoxFuture<'_, Result<Vec<u8>>> {
        async move {
            let asked = || Error::new(Code::Checkpoint, format!("read the picked file {}", self.name));
            let wanted = range.end - range.start;
            let bytes = self.slice(range).await.map_err(|reason| {
                asked()
                    .got(describe(&reason))
                    .remedy("Pick the files again: they may have been moved or changed.")
            })?;
            if bytes.len() as u64 == wanted {
                return Ok(bytes);
            }
            Err(asked().expected(format!("{wanted} bytes")).got(bytes.len().to_string()))
        }
        .boxed_local()
    }
}
