// y[m] = W[tokens[m]] · SCALE for M rows of K columns. W holds rows FIRST_ROW … FIRST_ROW+ROWS-1 of the
// table; tokens outside are another shard's. Dispatch: one workgroup a row. Caller: nn::Embedding.
#import "lib/weight.wgsl"
@group(0) @binding(_) var<storage, read> tokens: array<u32>;
@group(0) @binding(_) var<storage, read_write> y: array<vec4<f32>>;

const K4: u32 = K / 4u;
const K4_PER_THREAD: u32 = (K4 + 63u) / 64u;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = tokens[group.x] - FIRST_ROW; // wraps below the shard, and so fails the test
  if (row >= ROWS) { return; }
  for (var i = 0u; i < K4_PER_THREAD; i++) {
    let k4 = i * 64u + thread;
    if (k4 < K4) { y[group.x * K4 + k4] = weight4(row, k4) * SCALE; }
  }
}
