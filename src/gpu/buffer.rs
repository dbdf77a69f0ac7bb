//! GPU buffers that are entered in the ledger while they live.

use std::rc::Rc;

use super::{Gpu, Ledger, Usage};
use crate::error::{Code, Error, Result};

/// A storage buffer. Dropping it frees the GPU memory at once and strikes it from the ledger.
#[derive(Debug)]
pub struct Buffer {
    raw: wgpu::Buffer,
    usage: Usage,
    ledger: Rc<Ledger>,
}

impl Buffer {
    pub(super) fn new(
        gpu: &Gpu,
        label: &str,
        bytes: u64,
        usage: Usage,
        kinds: wgpu::BufferUsages,
    ) -> Result<Self> {
        let limit = gpu.capabilities().max_buffer_bytes;
        if bytes > limit {
            return Err(Error::new(Code::OutOfMemory, format!("allocate {label}"))
                .expected(format!("at most {limit} bytes in one buffer, the limit of this device"))
                .got(format!("{bytes} bytes"))
                .remedy("Choose a smaller model, a smaller context, or a smaller dtype such as \"q4\"."));
        }
        // Bindings must be multiples of four bytes, and an empty buffer cannot be bound.
        let size = bytes.next_multiple_of(4).max(16);
        let raw = gpu.raw().create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage: kinds,
            mapped_at_creation: false,
        });
        let ledger = gpu.ledger().clone();
        ledger.enter(usage, size);
        Ok(Self { raw, usage, ledger })
    }

    /// The size in bytes, a multiple of four.
    pub fn bytes(&self) -> u64 {
        self.raw.size()
    }

    pub(super) fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.ledger.strike(self.usage, self.raw.size());
        self.raw.destroy();
    }
}
