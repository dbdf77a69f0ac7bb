//! Opening a device and talking to its queue.

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use super::buffer::Reservations;
use super::{Binding, Buffer, Ledger, Pipeline, SubmitPolicy, Usage, broker};
use crate::error::{Code, Error, Result};

/// What the device can do, as it said when it was opened.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// The adapter's name, or its vendor and architecture where a browser hides the name.
    pub adapter: String,
    /// The smallest subgroup of the device, where kernels may use subgroups.
    pub subgroup_min: Option<u32>,
    /// Workgroups that it takes to occupy the device: few on a processor that plays GPU.
    pub busy_workgroups: u32,
    /// The largest buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// The largest part of a buffer that one binding can show to a kernel, in bytes.
    pub max_binding_bytes: u64,
}

/// How to open a device.
#[derive(Clone, Copy, Debug)]
pub struct GpuOptions {
    /// Use subgroups where the device has them.
    pub subgroups: bool,
    /// Bind no more than this, though the device could: it shows how weights are cut on lesser ones.
    pub max_binding_bytes: Option<u64>,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self { subgroups: true, max_binding_bytes: None }
    }
}

/// The first failure that the device reported outside of any call.
type Fault = Arc<Mutex<Option<(Code, String)>>>;

/// An open device, its queue, its pipelines and its ledger.
#[derive(Debug)]
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    capabilities: Capabilities,
    ledger: Rc<Ledger>,
    reservations: RefCell<Reservations>,
    fault: Fault,
    pipelines: RefCell<HashMap<String, Rc<Pipeline>>>,
    policy: SubmitPolicy,
}

impl Gpu {
    /// Opens the fastest device of this machine or browser.
    ///
    /// Fails with [`Code::NoWebGpu`] where there is none.
    pub async fn open(options: GpuOptions) -> Result<Rc<Self>> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
        let adapter = instance
            .request_adapter(&wgpu::RequestAdapterOptions {
                power_preference: wgpu::PowerPreference::HighPerformance,
                ..Default::default()
            })
            .await
            .map_err(|error| no_webgpu().because(error))?;
        let offered = adapter.limits();
        let required_limits = wgpu::Limits {
            max_buffer_size: offered.max_buffer_size,
            max_storage_buffer_binding_size: offered.max_storage_buffer_binding_size,
            ..wgpu::Limits::default()
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("jird"),
            required_limits,
            // Where the device has them; only a profile asks for them.
            required_features: adapter.features() & wgpu::Features::TIMESTAMP_QUERY,
            ..Default::default()
        };
        let granted = broker::request_device(&adapter, descriptor, options.subgroups)
            .await
            .map_err(|error| no_webgpu().because(error))?;
        let limits = granted.device.limits();
        let info = adapter.get_info();
        let fault = watch(&granted.device);
        Ok(Rc::new(Self {
            capabilities: Capabilities {
                adapter: info.name,
                subgroup_min: granted.subgroup_min,
                busy_workgroups: if granted.is_processor { 4 } else { 256 },
                max_buffer_bytes: limits.max_buffer_size,
                max_binding_bytes: limits
                    .max_storage_buffer_binding_size
                    .min(options.max_binding_bytes.unwrap_or(u64::MAX)),
            },
            device: granted.device,
            queue: granted.queue,
            ledger: Rc::default(),
            reservations: RefCell::default(),
            fault,
            pipelines: RefCell::default(),
            policy: SubmitPolicy::default(),
        }))
    }

    /// What the device can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The ledger in which every buffer of this device is entered.
    pub fn ledger(&self) -> &Rc<Ledger> {
        &self.ledger
    }

    /// How dispatches are cut into passes.
    pub fn policy(&self) -> SubmitPolicy {
        self.policy
    }

    pub(super) fn raw(&self) -> &wgpu::Device {
        &self.device
    }

    pub(super) fn queue(&self) -> &wgpu::Queue {
        &self.queue
    }

    pub(super) fn reservations(&self) -> RefMut<'_, Reservations> {
        self.reservations.borrow_mut()
    }

    /// Takes the device's memory for every buffer that has been reserved, and waits for its answer.
    ///
    /// Fails with [`Code::OutOfMemory`] where the device has no more.
    pub async fn allocate(&self) -> Result<()> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        self.reservations().allocate();
        match scope.pop().await {
            None => self.check(),
            Some(error) => Err(Error::new(Code::OutOfMemory, "allocate the model's memory on the GPU")
                .expected(format!("{} bytes of free GPU memory", self.ledger.total()))
                .got(error.to_string())
                .remedy("Choose a smaller context, a smaller dtype such as \"q4\" or a smaller model, or close other tabs that use the GPU.")),
        }
    }

    /// A zeroed buffer that kernels can bind, of at least `bytes` bytes; see [`Buffer`] for when its memory is
    /// taken.
    pub fn buffer(&self, label: &str, bytes: u64, usage: Usage) -> Result<Buffer> {
        use wgpu::BufferUsages as B;
        Buffer::new(self, label, bytes, usage, B::STORAGE | B::UNIFORM | B::COPY_SRC | B::COPY_DST)
    }

    /// A buffer that holds `data`.
    pub fn upload<T: bytemuck::NoUninit>(&self, label: &str, data: &[T], usage: Usage) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = self.buffer(label, bytes.len() as u64, usage)?;
        self.write(&buffer, 0, bytes);
        Ok(buffer)
    }

    /// Writes `bytes` (a multiple of four, but at the end of a buffer) at `offset` before the next submission.
    pub fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        let whole = bytes.len() & !3;
        if whole > 0 {
            self.queue.write_buffer(buffer.raw(), offset, &bytes[..whole]);
        }
        if whole < bytes.len() {
            let mut tail = [0; 4];
            tail[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            self.queue.write_buffer(buffer.raw(), offset + whole as u64, &tail);
        }
    }

    /// The pipeline of `source`, made at most once per device.
    pub fn pipeline(&self, label: &str, source: &str, bindings: &[Binding]) -> Rc<Pipeline> {
        if let Some(pipeline) = self.pipelines.borrow().get(source) {
            return pipeline.clone();
        }
        let pipeline = Rc::new(Pipeline::new(&self.device, label, source, bindings));
        self.pipelines.borrow_mut().insert(source.to_owned(), pipeline.clone());
        pipeline
    }

    /// The failure that the device has reported since it was opened, if any.
    pub fn check(&self) -> Result<()> {
        let fault = self.fault.lock().ok().and_then(|fault| fault.clone());
        match fault {
            None => Ok(()),
            Some((code, message)) => {
                let error = Error::new(code, "compute on the GPU").got(message);
                Err(match code {
                    Code::DeviceLost => {
                        error.remedy("Load the model again; if it recurs, close other tabs that use the GPU.")
                    }
                    Code::OutOfMemory => {
                        error.remedy("Choose a smaller model, a smaller context, or dtype \"q4\".")
                    }
                    _ => error.remedy("Please report this with the name of your browser and graphics card."),
                })
            }
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.device.destroy();
    }
}

/// Collects what the device reports outside of calls; the first failure is the one that explains the rest.
fn watch(device: &wgpu::Device) -> Fault {
    let fault = Fault::default();
    let note = |fault: &Fault, code, message| {
        if let Ok(mut fault) = fault.lock() {
            fault.get_or_insert((code, message));
        }
    };
    let (errors, losses) = (fault.clone(), fault.clone());
    device.on_uncaptured_error(Arc::new(move |error| {
        let code = match error {
            wgpu::Error::OutOfMemory { .. } => Code::OutOfMemory,
            _ => Code::Internal,
        };
        note(&errors, code, error.to_string());
    }));
    device.set_device_lost_callback(move |reason, message| {
        if reason != wgpu::DeviceLostReason::Destroyed {
            note(&losses, Code::DeviceLost, format!("the device was lost: {message}"));
        }
    });
    fault
}

fn no_webgpu() -> Error {
    Error::new(Code::NoWebGpu, "open a GPU device")
        .expected("a WebGPU adapter")
        .got("none")
        .remedy("Use a recent Chrome, Edge, Firefox or Safari over https or localhost, and see that hardware acceleration is on.")
}
