//! Activation buffers that several plans share.

use std::rc::Rc;

use super::PlanBuilder;
use crate::error::Result;
use crate::gpu::{Buffer, Gpu, Usage};

/// Buffers for plans that never run at once, such as those of one conversation: as many and as large as the most
/// demanding of them needs. What a plan left in them is gone once another has run.
#[derive(Clone, Debug, Default)]
pub struct Pool(Vec<Rc<Buffer>>);

impl Pool {
    /// Reserves what suffices for each of `plans`.
    ///
    /// Fails with [`crate::error::Code::OutOfMemory`] where the device cannot hold or run one of them.
    pub fn reserve(gpu: &Gpu, plans: impl IntoIterator<Item = PlanBuilder>) -> Result<Self> {
        let mut sizes: Vec<u64> = Vec::new();
        for plan in plans {
            let demand = plan.demand()?;
            sizes.resize(sizes.len().max(demand.len()), 0);
            for (size, wanted) in sizes.iter_mut().zip(demand) {
                *size = wanted.max(*size);
            }
        }
        sizes.into_iter().map(|bytes| buffer(gpu, bytes)).collect::<Result<_>>().map(Self)
    }

    /// A buffer for each of `sizes`, which are sorted like the pool's, largest first. One that the pool lacks is
    /// made.
    pub(super) fn buffers(&self, gpu: &Gpu, sizes: &[u64]) -> Result<Vec<Rc<Buffer>>> {
        let kept = self.0.iter().map(Some).chain(std::iter::repeat(None));
        sizes
            .iter()
            .zip(kept)
            .map(|(&bytes, kept)| match kept.filter(|kept| kept.bytes() >= bytes) {
                Some(kept) => Ok(kept.clone()),
                None => buffer(gpu, bytes),
            })
            .collect()
    }
}

fn buffer(gpu: &Gpu, bytes: u64) -> Result<Rc<Buffer>> {
    Ok(Rc::new(gpu.buffer("activations", bytes, Usage::Activations)?))
}
