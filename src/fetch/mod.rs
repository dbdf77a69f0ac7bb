//! Floor 0. Byte sources (HTTP Range, file, memory) and block stores (Cache API, file, memory).
