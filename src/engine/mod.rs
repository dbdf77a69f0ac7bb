//! Floor 6. Load, session, generate.
