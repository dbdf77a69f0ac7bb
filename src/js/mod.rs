//! Floor 7. The only wasm-bindgen surface: options in, events out, errors mapped to codes.
