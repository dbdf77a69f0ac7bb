//! Floor 4. Layers over a plan.
