//! Floor 1. safetensors headers, shard indexes, the internal weight formats, quantisation on load.
