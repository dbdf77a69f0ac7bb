// y[m, n] = Σ_k W[n, k] · x[m, k] for M rows of x, N rows of W, K columns; y has a row stride of Y_STRIDE.
// W: lib/weight. Dispatch: (N / 64, M / TILE_M) workgroups of 256; each computes a tile of TILE_M × 64,
// each invocation MICRO_M × 4 of it, over K in steps of 16. Caller: nn::Linear.
#import "lib/weight.wgsl"
@group(0) @binding(_) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(_) var<storage, read_write> y: array<f32>;

const K4: u32 = K / 4u;
const STEPS: u32 = (K4 + 3u) / 4u;
const MICRO_M: u32 = TILE_M / 16u;
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

  var sums: array<vec4<f32>, MICRO_M>;
  for (var k_step = 0u; k_step < STEPS; k_step++) {
    let k4 = k_step * 4u + tile_k4;
    var w = vec4<f32>(0.0);
    if (k4 < K4 && first_n + tile_row < N) { w = weight4(first_n + tile_row, k4); }
    for (var i = 0u; i < 4u; i++) { w_tile[(tile_k4 * 4u + i) * W_STRIDE + tile_row] = w[i]; }
    if (tile_row < TILE_M) {
      var value = vec4<f32>(0.0);
      if (k4 < K4 && first_m + tile_row < M) { value = x[(first_m + tile_row) * K4 + k4]; }
      for (var i = 0u; i < 4u; i++) { x_tile[(tile_k4 * 4u + i) * X_STRIDE + tile_row] = value[i]; }
    }
    workgroupBarrier();
    for (var k = 0u; k < 16u; k++) {
      let w_base = k * W_STRIDE + column;
      let w4 = vec4<f32>(w_tile[w_base], w_tile[w_base + 16u], w_tile[w_base + 32u], w_tile[w_base + 48u]);
      for (var i = 0u; i < MICRO_M; i++) {
        sums[i] += x_tile[k * X_STRIDE + i * 16u + line] * w4;
      }
    }
    workgroupBarrier();
  }

  for (var i = 0u; i < MICRO_M; i++) {
    let m = first_m + i * 16u + line;
    for (var j = 0u; j < 4u; j++) {
      let n = first_n + j * 16u + column;
      if (m < M && n < N) { y[m * Y_STRIDE + n] = sums[i][j]; }
    }
  }
}
