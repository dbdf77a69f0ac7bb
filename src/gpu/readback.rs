//! Bytes from the GPU back to the CPU.

use std::ops::Range;
use std::rc::Rc;

use futures_channel::oneshot;

use super::{Buffer, Gpu, Usage};
use crate::error::{Code, Error, Result};

/// A standing order to copy a range of a buffer to where the CPU can read it.
#[derive(Debug)]
pub struct Readback {
    source: Rc<Buffer>,
    range: Range<u64>,
    staging: Buffer,
}

impl Readback {
    /// An order for `range` (in bytes, multiples of four) of `source`.
    pub fn new(gpu: &Gpu, source: Rc<Buffer>, range: Range<u64>) -> Result<Self> {
        use wgpu::BufferUsages as B;
        let bytes = range.end - range.start;
        let staging = Buffer::new(gpu, "readback", bytes, Usage::Io, B::MAP_READ | B::COPY_DST)?;
        Ok(Self { source, range, staging })
    }

    pub(super) fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        let bytes = self.range.end - self.range.start;
        encoder.copy_buffer_to_buffer(self.source.raw(), self.range.start, self.staging.raw(), 0, bytes);
    }

    /// The bytes that the last submission copied.
    pub async fn bytes(&self, gpu: &Gpu) -> Result<Vec<u8>> {
        let length = self.range.end - self.range.start;
        let (sender, receiver) = oneshot::channel();
        self.staging.raw().map_async(wgpu::MapMode::Read, 0..length, move |result| {
            // The receiver is gone when the caller gave up; then nobody waits for the bytes.
            let _ = sender.send(result);
        });
        let mapped = gpu.until(receiver).await;
        gpu.check()?;
        let unreadable = || Error::new(Code::DeviceLost, "read results from the GPU");
        mapped.map_err(|error| unreadable().because(error))?.map_err(|error| unreadable().because(error))?;
        let view =
            self.staging.raw().get_mapped_range(0..length).map_err(|error| unreadable().because(error))?;
        let bytes = view.to_vec();
        drop(view);
        self.staging.raw().unmap();
        Ok(bytes)
    }
}

impl Gpu {
    /// Reads `range` (in bytes, multiples of four) of `buffer` after everything submitted so far.
    pub async fn read(&self, buffer: &Rc<Buffer>, range: Range<u64>) -> Result<Vec<u8>> {
        let readback = Readback::new(self, buffer.clone(), range)?;
        self.submit(self.encode([], &[&readback]));
        readback.bytes(self).await
    }

    /// Waits for `receiver` while it keeps the device moving.
    #[cfg(not(target_arch = "wasm32"))]
    async fn until<T>(&self, receiver: oneshot::Receiver<T>) -> Result<T, oneshot::Canceled> {
        // A failed poll is a lost device, which the callback reports.
        let _ = self.raw().poll(wgpu::PollType::wait_indefinitely());
        receiver.await
    }

    /// Waits for `receiver` while it keeps the device moving.
    ///
    /// Firefox looks for finished work only at a submission or every 100 ms, so empty submissions are
    /// made, ever more rarely, until the result is there.
    #[cfg(target_arch = "wasm32")]
    async fn until<T>(&self, receiver: oneshot::Receiver<T>) -> Result<T, oneshot::Canceled> {
        use futures_util::future::{Either, select};
        let mut receiver = receiver;
        let mut milliseconds = 0.5;
        loop {
            let pause = std::pin::pin!(super::broker::pause(milliseconds));
            match select(receiver, pause).await {
                Either::Left((result, _)) => return result,
                Either::Right((_, waiting)) => receiver = waiting,
            }
            self.queue().submit([]);
            milliseconds = f64::min(milliseconds * 1.5, 8.0);
        }
    }
}
