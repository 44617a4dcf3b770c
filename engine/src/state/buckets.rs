//! Buckets: units whose gradients are reduced in one call, as in PyTorch's DistributedDataParallel.

use crate::config::Cell;
use crate::mesh::strategy::Sharding;
use crate::mesh::{Axes, Mesh};
use crate::model::{Layout, Unit};
use std::ops::Range;

/// The units of each bucket, in the order of units. Backward completes units from the last one on, so buckets fill from there:
/// a unit joins the bucket of the one behind it while the bucket stays within `parallel.bucket_mb`. A larger unit is a bucket of its
/// own. Where ranks do not hold all gradients and the whole optimizer, and on a single rank, every unit is.
pub fn buckets(cell: &Cell, sharding: &Sharding, mesh: &Mesh, layout: &Layout) -> Vec<Range<usize>> {
    let is_whole = [sharding.gradients, sharding.optimizer] == [Axes::NONE; 2];
    let limit = if is_whole && mesh.size(Axes::DATA) > 1 { cell.parallel.bucket_mb * f64::from(1 << 20) } else { 0.0 };
    let bytes = |unit: &Unit| (unit.trainable().padded * cell.precision.gradients.size()) as f64;
    let (mut buckets, mut filled) = (Vec::<Range<usize>>::new(), 0.0);
    for (number, unit) in layout.units.iter().enumerate().rev() {
        match buckets.last_mut() {
            // All of a bucket is summed over the same ranks, and complete at about the same time.
            Some(bucket)
                if filled + bytes(unit) <= limit
                    && unit.replicas == layout.units[bucket.start].replicas
                    && layout.numbers[number] + 1 == layout.numbers[bucket.start] =>
            {
                bucket.start = number;
                filled += bytes(unit);
            }
            _ => {
                buckets.push(number..number + 1);
                filled = bytes(unit);
            }
        }
    }
    buckets.reverse();
    buckets
}
