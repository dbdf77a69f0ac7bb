//! The side of `lib/kv_cache.wgsl`: how keys and values of past positions lie in memory.

use half::f16;

use super::Prelude;

/// How a cache stores its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheFormat {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point, packed in pairs: no feature of the device is needed.
    F16,
}

impl CacheFormat {
    /// Bytes of an element.
    pub fn bytes(self) -> u32 {
        match self {
            CacheFormat::F32 => 4,
            CacheFormat::F16 => 2,
        }
    }

    /// What is read back of an element.
    pub fn rounded(self, value: f32) -> f32 {
        match self {
            CacheFormat::F32 => value,
            CacheFormat::F16 => f16::from_f32(value.clamp(-65504.0, 65504.0)).to_f32(),
        }
    }
}

/// A cache `[slots, kv_heads · head_dim]`, where position p lies in slot p % slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Positions that it holds.
    pub slots: u32,
    /// How it stores elements.
    pub format: CacheFormat,
}

impl CacheLayout {
    /// Sets the constants of `lib/kv_cache.wgsl`.
    pub(super) fn prelude(&self, prelude: &mut Prelude) {
        prelude.u32("SLOTS", self.slots).flag("CACHE_F16", self.format == CacheFormat::F16);
    }

    /// The CPU twin: where the vector of `width` elements of `position` lies.
    pub(super) fn range(&self, position: u32, width: usize) -> std::ops::Range<usize> {
        let start = (position % self.slots) as usize * width;
        start..start + width
    }
}
