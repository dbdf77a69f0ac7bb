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
use super::{ByteSource, Fault, Metadata, Opener};
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

impl ByteSource for BlobSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>> {
        // Without a validator nothing is stored.
        ready(Ok(Some(Metadata { size: self.blob.size() as u64, validator: None }))).boxed_local()
    }

    fn read<'a>(
        &'a self,
        range: Range<u64>,
        _: &'a Metadata,
        bytes: &'a mut Vec<u8>,
    ) -> LocalBoxFuture<'a, Result<(), Fault>> {
        async move {
            let asked = || Error::new(Code::Checkpoint, format!("read the picked file {}", self.name));
            let wanted = range.end - range.start;
            let read = slice_of(&self.blob, &range).await.map_err(|reason| {
                asked()
                    .got(describe(&reason))
                    .remedy("Pick the files again: they may have been moved or changed.")
            })?;
            if u64::from(read.length()) != wanted {
                let error = asked().expected(format!("{wanted} bytes")).got(read.length().to_string());
                return Err(error.into());
            }
            append(bytes, &read);
            Ok(())
        }
        .boxed_local()
    }
}

/// A part of a blob. The rest of it stays where it lies.
pub(super) async fn slice_of(blob: &Blob, range: &Range<u64>) -> Result<Uint8Array, JsValue> {
    let part = blob.slice_with_f64_and_f64(range.start as f64, range.end as f64)?;
    let buffer: ArrayBuffer = JsFuture::from(part.array_buffer()).await?.unchecked_into();
    Ok(Uint8Array::new(&buffer))
}

/// Copies from JavaScript's memory into ours.
pub(super) fn append(bytes: &mut Vec<u8>, more: &Uint8Array) {
    let start = bytes.len();
    bytes.resize(start + more.length() as usize, 0);
    if let Some(place) = bytes.get_mut(start..) {
        more.copy_to(place);
    }
}
