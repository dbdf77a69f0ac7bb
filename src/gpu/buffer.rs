//! GPU buffers: reserved in the ledger first, allocated on the device when they are needed.

use std::cell::OnceCell;
use std::rc::{Rc, Weak};

use super::{Gpu, Ledger, Usage};
use crate::error::{Code, Error, Result};

/// A storage buffer. It is entered in the ledger from the start, so that a model can be planned before anything
/// is allocated; the device's memory is taken by [`Gpu::allocate`] or at the first use. Dropping it frees the
/// memory at once and strikes it from the ledger.
#[derive(Debug)]
pub struct Buffer(Rc<Reservation>);

#[derive(Debug)]
pub(super) struct Reservation {
    label: String,
    size: u64,
    usage: Usage,
    kinds: wgpu::BufferUsages,
    raw: OnceCell<wgpu::Buffer>,
    device: wgpu::Device,
    ledger: Rc<Ledger>,
}

/// Buffers that may wait for their memory.
#[derive(Debug, Default)]
pub(super) struct Reservations(Vec<Weak<Reservation>>);

impl Reservations {
    fn push(&mut self, reservation: Weak<Reservation>) {
        // Where the list would grow, what is gone or allocated makes room first.
        if self.0.len() == self.0.capacity() {
            self.0.retain(|weak| weak.upgrade().is_some_and(|reservation| reservation.raw.get().is_none()));
        }
        self.0.push(reservation);
    }

    /// Allocates whatever waits.
    pub fn allocate(&mut self) {
        for reservation in self.0.drain(..).filter_map(|weak| weak.upgrade()) {
            reservation.raw();
        }
    }
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
        let ledger = gpu.ledger().clone();
        let total = ledger.total().saturating_add(size);
        if let Some(limit) = ledger.limit().filter(|limit| total > *limit) {
            return Err(Error::new(Code::OutOfMemory, format!("allocate {label}"))
                .expected(format!("at most {limit} bytes on the GPU, as memoryBudget leaves"))
                .got(format!("{total} bytes"))
                .remedy("Choose a smaller context, or a larger memoryBudget."));
        }
        let reservation = Rc::new(Reservation {
            label: label.to_owned(),
            size,
            usage,
            kinds,
            raw: OnceCell::new(),
            device: gpu.raw().clone(),
            ledger,
        });
        reservation.ledger.enter(usage, reservation.size);
        gpu.reservations().push(Rc::downgrade(&reservation));
        Ok(Self(reservation))
    }

    /// The size in bytes, a multiple of four.
    pub fn bytes(&self) -> u64 {
        self.0.size
    }

    pub(super) fn raw(&self) -> &wgpu::Buffer {
        self.0.raw()
    }
}

impl Reservation {
    fn raw(&self) -> &wgpu::Buffer {
        self.raw.get_or_init(|| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(&self.label),
                size: self.size,
                usage: self.kinds,
                mapped_at_creation: false,
            })
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.strike(self.usage, self.size);
        if let Some(raw) = self.raw.get() {
            raw.destroy();
        }
    }
}
