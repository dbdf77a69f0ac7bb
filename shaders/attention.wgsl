// out[m, h] = softmax( SCALE · q[m, h] · K[:, h'] ) · V[:, h'] with h' = h / (HEADS / KV_HEADS), over the
// keys that row m sees: those up to its position (CAUSAL) or all of the step's, nearer than WINDOW (0: all).
// q, out: [M, HEADS · HEAD_DIM]; K, V: [CONTEXT, KV_HEADS · HEAD_DIM].
// Online softmax over blocks of LANES keys: no M × CONTEXT buffer. Dispatch: (HEADS, M / QUERIES)
// workgroups of QUERIES · LANES invocations: a team of LANES per query. Caller: nn::Attention.
#import "lib/step.wgsl"
#import "lib/reduce.wgsl"
@group(0) @binding(_) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(_) var<storage, read> k_cache: array<vec4<f32>>;
@group(0) @binding(_) var<storage, read> v_cache: array<f32>;
@group(0) @binding(_) var<storage, read_write> out: array<f32>;

const D4: u32 = HEAD_DIM / 4u;
// A team larger than a head sums the keys in SPLITS interleaved parts, one output element an invocation.
const SPLITS: u32 = max(1u, LANES / HEAD_DIM);
const DIMS: u32 = (HEAD_DIM + LANES - 1u) / LANES;   // output elements per invocation
const DIM_STRIDE: u32 = min(LANES, HEAD_DIM);
const BLOCKS: u32 = (CONTEXT + LANES - 1u) / LANES;
const Q4_PER_THREAD: u32 = (QUERIES * D4 + WORKGROUP - 1u) / WORKGROUP;
const LOWEST: f32 = -1e30;
var<workgroup> q_tile: array<vec4<f32>, QUERIES * D4>;
var<workgroup> weights: array<f32, WORKGROUP>;

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
  var sums: array<f32, DIMS>;
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
      let k_base = (key * KV_HEADS + kv_head) * D4;
      for (var i = 0u; i < D4; i++) { product += dot(q_tile[team * D4 + i], k_cache[k_base + i]); }
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
    for (var n = 0u; n < DIMS; n++) {
      let dim = n * DIM_STRIDE + lane % DIM_STRIDE;
      var sum = sums[n] * keep;
      if (dim < HEAD_DIM && lane / DIM_STRIDE < SPLITS) {
        for (var j = lane / DIM_STRIDE; j < LANES; j += SPLITS) {
          if (j >= count) { break; }
          sum += weights[team * LANES + j] * v_cache[((block_begin + j) * KV_HEADS + kv_head) * HEAD_DIM + dim];
        }
      }
      sums[n] = sum;
    }
    workgroupBarrier();
  }

  for (var n = 0u; n < DIMS; n++) {
    weights[thread] = sums[n];
    workgroupBarrier();
    let dim = n * DIM_STRIDE + lane;
    if (row < M && lane < DIM_STRIDE && dim < HEAD_DIM) {
      var sum = 0.0;
      for (var split = 0u; split < SPLITS; split++) { sum += weights[thread + split * DIM_STRIDE]; }
      out[(row * HEADS + head) * HEAD_DIM + dim] = sum / max(weight_sum, 1e-30);
    }
    workgroupBarrier();
  }
}
