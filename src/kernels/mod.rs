//! Floor 2. One file per shader, same stem: variant key, bindings, dispatch size, CPU twin.
