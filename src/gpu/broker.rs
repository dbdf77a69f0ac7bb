//! Gets from the platform what wgpu's portable surface does not offer.
//!
//! wgpu's browser backend cannot ask for `subgroups`: its feature table lacks it. So `broker.js` wraps
//! `GPUAdapter.prototype.requestDevice` for the one call that wgpu makes.

#[cfg(target_arch = "wasm32")]
pub(super) use browser::{pause, request_device};
#[cfg(not(target_arch = "wasm32"))]
pub(super) use native::request_device;

/// A device and the smallest size of its subgroups, where kernels may use them.
pub(super) struct Granted {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub subgroup_min: Option<u32>,
    /// Whether a processor plays GPU, for which every workgroup is work rather than a chance to spread it.
    pub is_processor: bool,
}

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use super::Granted;

    pub async fn request_device(
        adapter: &wgpu::Adapter,
        mut descriptor: wgpu::DeviceDescriptor<'_>,
        subgroups: bool,
    ) -> Result<Granted, wgpu::RequestDeviceError> {
        let subgroups = subgroups && adapter.features().contains(wgpu::Features::SUBGROUP);
        if subgroups {
            descriptor.required_features |= wgpu::Features::SUBGROUP;
        }
        let (device, queue) = adapter.request_device(&descriptor).await?;
        let info = adapter.get_info();
        Ok(Granted {
            device,
            queue,
            subgroup_min: subgroups.then_some(info.subgroup_min_size),
            is_processor: info.device_type == wgpu::DeviceType::Cpu,
        })
    }
}

#[cfg(target_arch = "wasm32")]
mod browser {
    use super::Granted;
    use wasm_bindgen::prelude::*;

    #[wasm_bindgen(module = "/src/gpu/broker.js")]
    extern "C" {
        type Loan;
        #[wasm_bindgen(js_name = lendRequestDevice)]
        fn lend_request_device(wanted: Vec<String>) -> Loan;
        #[wasm_bindgen(method, js_name = giveBack)]
        fn give_back(this: &Loan);
        #[wasm_bindgen(method, getter)]
        fn granted(this: &Loan) -> Vec<String>;
        #[wasm_bindgen(method, getter, js_name = subgroupMinSize)]
        fn subgroup_min_size(this: &Loan) -> u32;
        #[wasm_bindgen(method, getter, js_name = isFallbackAdapter)]
        fn is_fallback_adapter(this: &Loan) -> bool;
        /// Gives the event loop a turn for about `milliseconds`.
        pub async fn pause(milliseconds: f64);
    }

    pub async fn request_device(
        adapter: &wgpu::Adapter,
        descriptor: wgpu::DeviceDescriptor<'_>,
        subgroups: bool,
    ) -> Result<Granted, wgpu::RequestDeviceError> {
        let wanted = if subgroups { vec!["subgroups".to_owned()] } else { Vec::new() };
        let loan = lend_request_device(wanted);
        // wgpu calls into JavaScript before it returns the future, so the loan is as short as this line.
        let request = adapter.request_device(&descriptor);
        loan.give_back();
        let (device, queue) = request.await?;
        let min = loan.subgroup_min_size();
        Ok(Granted {
            device,
            queue,
            subgroup_min: (min > 0 && !loan.granted().is_empty()).then_some(min),
            is_processor: loan.is_fallback_adapter(),
        })
    }
}
