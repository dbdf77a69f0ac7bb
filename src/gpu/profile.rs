//! Where the time of a plan goes, by timestamp queries.

use std::rc::Rc;

use super::{Buffer, Dispatch, Gpu, Usage};
use crate::error::Result;

impl Gpu {
    /// Runs `dispatches` in order and gives the name of each one's kernel and the seconds that it took; nothing
    /// where the device has no timestamps. Each gets a pass of its own, so their sum is less than what they take
    /// apart, and more than what they take in one pass.
    pub async fn profile<'a>(&self, dispatches: &'a [Dispatch]) -> Result<Vec<(&'a str, f64)>> {
        let mut profile = Vec::with_capacity(dispatches.len());
        if !self.raw().features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return Ok(profile);
        }
        for part in dispatches.chunks(wgpu::QUERY_SET_MAX_QUERIES as usize / 2) {
            let names = part.iter().map(Dispatch::name);
            let passes: Vec<_> = part.iter().map(std::slice::from_ref).collect();
            profile.extend(names.zip(self.timed(&passes).await?));
        }
        Ok(profile)
    }

    /// Seconds that `dispatches` take in one pass; None where the device has no timestamps.
    pub async fn time(&self, dispatches: &[Dispatch]) -> Result<Option<f64>> {
        if !self.raw().features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return Ok(None);
        }
        Ok(self.timed(&[dispatches]).await?.first().copied())
    }

    /// Seconds of each pass.
    async fn timed(&self, passes: &[&[Dispatch]]) -> Result<Vec<f64>> {
        use wgpu::BufferUsages as B;
        let count = 2 * passes.len() as u32;
        let bytes = u64::from(count) * 8;
        let queries = self.raw().create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("timestamps"),
            ty: wgpu::QueryType::Timestamp,
            count,
        });
        let kinds = B::QUERY_RESOLVE | B::COPY_SRC;
        let ticks = Rc::new(Buffer::new(self, "timestamps", bytes, Usage::Io, kinds)?);
        let mut encoder = self.raw().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for (first, dispatches) in (0..count).step_by(2).zip(passes) {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                    query_set: &queries,
                    beginning_of_pass_write_index: Some(first),
                    end_of_pass_write_index: Some(first + 1),
                }),
            });
            dispatches.iter().for_each(|dispatch| dispatch.encode(&mut pass));
        }
        encoder.resolve_query_set(&queries, 0..count, ticks.raw(), 0);
        self.queue().submit([encoder.finish()]);
        let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&self.read(&ticks, 0..bytes).await?);
        let seconds = f64::from(self.queue().get_timestamp_period()) * 1e-9;
        Ok(ticks.chunks(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 * seconds).collect())
    }
}
