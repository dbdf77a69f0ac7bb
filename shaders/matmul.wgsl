// y[m, n] = Σ_k W[n, k] · x[m, k] for M rows of x, N rows of W, K columns; y has a row stride of Y_STRIDE.
// W: lib/weight. Dispatch: (N / 64, M / TILE_M) workgroups of 256; each computes a tile of TILE_M × 64,
// each invocation MICRO_M × 4 of it, over K in steps of 16. Caller: nn::Linear.
#import "lib/weight.wgsl"
@group(0) @binding(_) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(_) var<storage, read_write> y: array<f32>;

const K4: u32 = K / 4u;
const STEPS: u32 = (K4 + 3u) / 4u;
const MICRO_M: u32 = TILE_M / 16u;   // 1 or 4
// Column-major tiles, one column of padding against bank conflicts.
const X_STRIDE: u32 = TILE_M + 1u;
const W_STRIDE: u32 = 65u;
var<workgroup> x_tile: array<f32, X_STRIDE * 16u>;
var<workgroup> w_tile: array<f32, W_STRIDE * 16u>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first_n = group.x * 64u;
  let first_m = group.y * TILE_M;
  let tile_row = thread / 4u;
  let tile_k4 = thread % 4u;
  let column = thread % 16u;
  let line = thread / 16u;

  // Written out: software drivers do not unroll loops over private arrays.
  var sums_0 = vec4<f32>(0.0);
  var sums_1 = vec4<f32>(0.0);
  var sums_2 = vec4<f32>(0.0);
  var sums_3 = vec4<f32>(0.0);
  let w_slot = tile_k4 * 4u * W_STRIDE + tile_row;
  let x_slot = tile_k4 * 4u * X_STRIDE + tile_row;
  for (var k_step = 0u; k_step < STEPS; k_step++) {
    let k4 = k_step * 4u + tile_k4;
    var w = vec4<f32>(0.0);
    if (k4 < K4 && first_n + tile_row < N) { w = weight4(first_n + tile_row, k4); }
    w_tile[w_slot] = w.x;
    w_tile[w_slot + W_STRIDE] = w.y;
    w_tile[w_slot + 2u * W_STRIDE] = w.z;
    w_tile[w_slot + 3u * W_STRIDE] = w.w;
    if (tile_row < TILE_M) {
      var value = vec4<f32>(0.0);
      if (k4 < K4 && first_m + tile_row < M) { value = x[(first_m + tile_row) * K4 + k4]; }
      x_tile[x_slot] = value.x;
      x_tile[x_slot + X_STRIDE] = value.y;
      x_tile[x_slot + 2u * X_STRIDE] = value.z;
      x_tile[x_slot + 3u * X_STRIDE] = value.w;
    }
    workgroupBarrier();
    for (var k = 0u; k < 16u; k++) {
      let w_base = k * W_STRIDE + column;
      let x_base = k * X_STRIDE + line;
      let w4 = vec4<f32>(w_tile[w_base], w_tile[w_base + 16u], w_tile[w_base + 32u], w_tile[w_base + 48u]);
      sums_0 += x_tile[x_base] * w4;
      if (MICRO_M > 1u) {
        sums_1 += x_tile[x_base + 16u] * w4;
        sums_2 += x_tile[x_base + 32u] * w4;
        sums_3 += x_tile[x_base + 48u] * w4;
      }
    }
    workgroupBarrier();
  }

  let m = first_m + line;
  let n = first_n + column;
  store(m, n, sums_0);
  if (MICRO_M > 1u) {
    store(m + 16u, n, sums_1);
    store(m + 32u, n, sums_2);
    store(m + 48u, n, sums_3);
  }
}

fn store(m: u32, n: u32, sums: vec4<f32>) {
  if (m >= M) { return; }
  let base = m * Y_STRIDE + n;
  if (n < N) { y[base] = sums.x; }
  if (n + 16u < N) { y[base + 16u] = sums.y; }
  if (n + 32u < N) { y[base + 32u] = sums.z; }
  if (n + 48u < N) { y[base + 48u] = sums.w; }
}
