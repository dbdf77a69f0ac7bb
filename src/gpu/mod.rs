//! Floor 1. The device and its broker, buffers and their ledger, the pipeline cache, submission, readback.
