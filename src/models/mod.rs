//! Floor 5. One file per model family: configuration, weight names, forward.
