//! Dispatches, and how they are cut into passes.

use std::ops::Range;
use std::rc::Rc;

use super::{Buffer, Gpu, Pipeline};

/// One kernel call with everything bound, ready to be replayed.
#[derive(Debug)]
pub struct Dispatch {
    pipeline: Rc<Pipeline>,
    bind_group: wgpu::BindGroup,
    workgroups: [u32; 3],
}

impl Dispatch {
    /// The name of its kernel.
    pub fn name(&self) -> &str {
        &self.pipeline.label
    }

    pub(super) fn encode(&self, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline.raw);
        pass.set_bind_group(0, &self.bind_group, &[]);
        let [x, y, z] = self.workgroups;
        pass.dispatch_workgroups(x, y, z);
    }
}

/// Dispatches and copies, ready to be submitted once.
#[derive(Debug)]
pub struct Commands(wgpu::CommandBuffer);

/// How many dispatches go into one compute pass.
///
/// Many dispatches in one pass run well everywhere, but some drivers track barriers in tables of about a
/// thousand entries, so a pass stays below that.
#[derive(Clone, Copy, Debug)]
pub struct SubmitPolicy {
    /// The largest number of dispatches in a pass.
    pub dispatches_per_pass: usize,
}

impl Default for SubmitPolicy {
    fn default() -> Self {
        Self { dispatches_per_pass: 512 }
    }
}

impl Gpu {
    /// Binds byte ranges of `buffers` to `pipeline`, in the order of its bindings.
    pub fn dispatch(
        &self,
        pipeline: Rc<Pipeline>,
        buffers: &[(&Buffer, Range<u64>)],
        workgroups: [u32; 3],
    ) -> Dispatch {
        let entries: Vec<_> = (0..)
            .zip(buffers)
            .map(|(binding, (buffer, range))| wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: buffer.raw(),
                    offset: range.start,
                    size: wgpu::BufferSize::new(range.end - range.start),
                }),
            })
            .collect();
        let bind_group = self.raw().create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        });
        Dispatch { pipeline, bind_group, workgroups }
    }

    /// Encodes `dispatches` in order, then the copies that `readbacks` ask for. What they read need not be
    /// written before the submission.
    pub fn encode<'a>(
        &self,
        dispatches: impl IntoIterator<Item = &'a Dispatch>,
        readbacks: &[&super::Readback],
    ) -> Commands {
        let mut encoder = self.raw().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut dispatches = dispatches.into_iter().peekable();
        while dispatches.peek().is_some() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for dispatch in dispatches.by_ref().take(self.policy().dispatches_per_pass) {
                dispatch.encode(&mut pass);
            }
        }
        for readback in readbacks {
            readback.encode(&mut encoder);
        }
        Commands(encoder.finish())
    }

    /// Submits `commands`.
    pub fn submit(&self, commands: Commands) {
        self.queue().submit([commands.0]);
    }
}
