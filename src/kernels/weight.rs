//! The side of `lib/weight.wgsl`: which piece a weight format takes.

use super::{Binding, Prelude};
use crate::checkpoint::WeightFormat;

/// Selects the piece for `format` and sets its constants.
pub(super) fn prelude(prelude: &mut Prelude, format: WeightFormat) {
    match format {
        WeightFormat::F32 => prelude.flag("WEIGHT_F32", true),
        WeightFormat::F16 => prelude.flag("WEIGHT_F16", true),
        WeightFormat::Bf16 => prelude.flag("WEIGHT_BF16", true),
        WeightFormat::Affine { bits, group_size } => prelude
            .flag("WEIGHT_AFFINE", true)
            .flag("BITS_4", bits == 4)
            .u32("BITS", bits)
            .u32("GROUP_SIZE", group_size),
    };
}

/// The bindings of the weight: its codes, and scales where it has them.
pub(super) fn bindings(format: WeightFormat) -> Vec<Binding> {
    match format {
        WeightFormat::Affine { .. } => vec![Binding::Read; 2],
        _ => vec![Binding::Read],
    }
}

/// Columns that one 16-byte load covers.
pub(super) fn chunk(format: WeightFormat) -> u32 {
    match format {
        WeightFormat::F32 => 4,
        WeightFormat::F16 | WeightFormat::Bf16 => 8,
        WeightFormat::Affine { bits, .. } => 128 / bits,
    }
}
