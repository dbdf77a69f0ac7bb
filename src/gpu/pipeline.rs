//! Compute pipelines and what they bind.

/// How a kernel sees one of its bindings, in the order of `@binding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    Write,
    /// `var<uniform>`
    Uniform,
}

impl Binding {
    fn layout(self, binding: u32) -> wgpu::BindGroupLayoutEntry {
        let ty = match self {
            Binding::Read => wgpu::BufferBindingType::Storage { read_only: true },
            Binding::Write => wgpu::BufferBindingType::Storage { read_only: false },
            Binding::Uniform => wgpu::BufferBindingType::Uniform,
        };
        wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        }
    }
}

/// A compiled kernel.
#[derive(Debug)]
pub struct Pipeline {
    pub(super) label: String,
    pub(super) raw: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

impl Pipeline {
    pub(super) fn new(device: &wgpu::Device, label: &str, source: &str, bindings: &[Binding]) -> Self {
        let entries: Vec<_> = (0..).zip(bindings).map(|(index, binding)| binding.layout(index)).collect();
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(label),
            entries: &entries,
        });
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(label),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(label),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(label),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Kernels write what they read of workgroup memory.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        Self { label: label.to_owned(), raw, layout }
    }
}
