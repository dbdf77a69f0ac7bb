// out[m, h] = softmax( SCALE · q[m, h] · K[:, h'] ) · V[:, h'] with h' = h / (HEADS / KV_HEADS), over the
// keys that row m sees: those up to its position (CAUSAL) or all of the step's, nearer than WINDOW (0: all).
// q, out: [M, HEADS · HEAD_DIM]; K, V: lib/kv_cache, the step's own positions included.
// Online softmax over blocks of LANES keys: no M × CONTEXT buffer. Dispatch: (HEADS, M / QUERIES)
// workgroups of QUERIES · LANES invocations: a team of LANES per query. Caller: nn::Attention.
#import "lib/step.wgsl"
#import "lib/reduce.wgsl"
#import "lib/kv_cache.wgsl"
@group(0) @binding(_) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(_) var<storage, read> k_cache: array<Cached4>;
@group(0) @binding(_) var<storage, read> v_cache: array<Cached4>;
@group(0) @binding(_) var<storage, read_write> out: array<vec4<f32>>;

const D4: u32 = HEAD_DIM / 4u;
// A team larger than a head sums the keys in PARTS interleaved parts, one output column an invocation.
const PARTS: u32 = max(1u, LANES / D4);
const COLUMNS: u32 = (D4 + LANES - 1u) / LANES;   // output columns per invocation
const STRIDE: u32 = min(LANES, D4);
const BLOCKS: u32 = (SLOTS + LANES - 1u) / LANES;
const Q4_PER_THREAD: u32 = (QUERIES * D4 + WORKGROUP - 1u) / WORKGROUP;
const LOWEST: f32 = -1e30;
var<workgroup> q_tile: array<vec4<f32>, QUERIES * D4>;
var<workgroup> weights: array<f32, WORKGROUP>;
var<workgroup> part_sums: array<vec4<f32>, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let head = group.x;
  let kv_head = head / (HEADS / KV_HEADS);
  let lane = thread % LANES;
  let team = thread / LANES;
  let first_row = group.y * QUERIES;
  let row = first_row + team;
  let position = step.position + row;
  let keys = step.position + step.rows;

  for (var n = 0u; n < Q4_PER_THREAD; n++) {
    let i = n * WORKGROUP + thread;
    let tile_row = first_row + i / D4;
    if (i < QUERIES * D4 && tile_row < M) { q_tile[i] = q[(tile_row * HEADS + head) * D4 + i % D4]; }
  }
  workgroupBarrier();

  // The keys that any row of this workgroup sees.
  var begin = 0u;
  var end = keys;
  if (WINDOW > 0u && step.position + first_row + 1u > WINDOW) { begin = step.position + first_row + 1u - WINDOW; }
  if (CAUSAL) { end = min(keys, step.position + first_row + QUERIES); }
  if (!CAUSAL && WINDOW > 0u) { end = min(keys, step.position + first_row + QUERIES - 1u + WINDOW); }

  var highest = LOWEST;
  var weight_sum = 0.0;
  var sums: array<vec4<f32>, COLUMNS>;
  for (var block = 0u; block < BLOCKS; block++) {
    let block_begin = begin + block * LANES;
    if (block_begin >= end) { break; }
    let key = block_begin + lane;
    var visible = key < end;
    if (CAUSAL) { visible = visible && key <= position; }
    if (WINDOW > 0u) { visible = visible && key + WINDOW > position && position + WINDOW > key; }
    var score = LOWEST;
    if (visible) {
      var product = 0.0;
      let k_base = cached_at(key, kv_head);
      for (var i = 0u; i < D4; i++) { product += dot(q_tile[team * D4 + i], unpack_cached(k_cache[k_base + i])); }
      score = product * SCALE;
    }
    let block_highest = max(highest, team_max(score, thread, LANES));
    var weight = 0.0;
    if (visible) { weight = exp(max(score - block_highest, -80.0)); }
    let keep = exp(max(highest - block_highest, -80.0));
    highest = block_highest;
    weight_sum = weight_sum * keep + team_sum(weight, thread, LANES);
    weights[thread] = weight;
    workgroupBarrier();
    let count = min(LANES, end - block_begin);
    for (var n = 0u; n < COLUMNS; n++) {
      let column = n * STRIDE + lane % STRIDE;
      var sum = sums[n] * keep;
      if (column < D4 && lane / STRIDE < PARTS) {
        for (var j = lane / STRIDE; j < LANES; j += PARTS) {
          if (j >= count) { break; }
          sum += weights[team * LANES + j] * unpack_cached(v_cache[cached_at(block_begin + j, kv_head) + column]);
        }
      }
      sums[n] = sum;
    }
    workgroupBarrier();
  }

  for (var n = 0u; n < COLUMNS; n++) {
    part_sums[thread] = sums[n];
    workgroupBarrier();
    let column = n * STRIDE + lane;
    if (row < M && lane < STRIDE && column < D4) {
      var sum = vec4<f32>(0.0);
      for (var part = 0u; part < PARTS; part++) { sum += part_sums[thread + part * STRIDE]; }
      out[(row * HEADS + head) * D4 + column] = sum / max(weight_sum, 1e-30);
    }
    workgroupBarrier();
  }
}
