// y[n] = output( Σ_k W[n, k] · input[k] ) for one row of input, N rows of W, K columns.
// W: lib/weight. input: lib/norm, row 0 or (LAST_ROW) the step's last real row; or lib/combine (COMBINE).
// output: as it is; + residual[n] (ADD_RESIDUAL); activate(gate) · up, where gate is row n and up is row
// N + n of W (GATED); activate(·) · up[n] (GATED_BY), where up may be made of the
// halves of a per-layer input (GATED_BY_LAYER); beside up[n] (BESIDE); cap · tanh(· / cap) (SOFTCAP).
// With CHOICE pairs[FIRST_PAIR + w] is the highest of workgroup w's results and its index, row 0 being FIRST_ROW
// of all; the lowest index among equals.
// Dispatch: N / (WORKGROUP / LANES · 2) workgroups, folded over x and y. A team of LANES invocations
// computes two rows (with GATED two pairs) and shares the loads of the input. Caller: nn::Linear.
#import "lib/weight.wgsl"
#ifdef COMBINE
#import "lib/combine.wgsl"
#else
#import "lib/norm.wgsl"
#endif
#import "lib/chunk.wgsl"
#import "lib/reduce.wgsl"
#import "lib/activation.wgsl"
#ifdef LAST_ROW
#import "lib/step.wgsl"
#endif
#ifdef ADD_RESIDUAL
@group(0) @binding(_) var<storage, read> residual: array<f32>;
#endif
#ifdef UP
@group(0) @binding(_) var<storage, read> up: array<f32>;
#endif
#ifdef GATED_BY_LAYER
// Of each element the projected context and the token's; what the context's norm multiplies it by.
@group(0) @binding(_) var<storage, read> halves: array<vec2<f32>>;
@group(0) @binding(_) var<uniform> context_norm: array<vec4<f32>, N / 4u>;
#endif
#ifdef BESIDE
@group(0) @binding(_) var<storage, read_write> y: array<vec2<f32>>;
#else
@group(0) @binding(_) var<storage, read_write> y: array<f32>;
#endif
#ifdef KEEP_RESIDUAL
@group(0) @binding(_) var<storage, read_write> updated: array<vec4<f32>>;
#endif
#ifdef CHOICE
@group(0) @binding(_) var<storage, read_write> pairs: array<vec2<u32>>;
var<workgroup> best_values: array<f32, TEAMS * 2u>;
var<workgroup> best_indices: array<u32, TEAMS * 2u>;
#endif

const TEAMS: u32 = WORKGROUP / LANES;
const CHUNKS: u32 = K4 / CHUNK4;
const CHUNKS_PER_LANE: u32 = (CHUNKS + LANES - 1u) / LANES;

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
#ifdef LAST_ROW
  prepare_input(step.rows - 1u, thread);
#else
  prepare_input(0u, thread);
#endif
  let group_index = group.x + group.y * groups.x;
#ifdef KEEP_RESIDUAL
  if (group_index == 0u) {
    for (var i = 0u; i < K4_PER_THREAD; i++) {
      let k4 = i * WORKGROUP + thread;
      if (k4 < K4) { updated[k4] = residual4(k4); }
    }
  }
#endif
#ifdef GATED_BY_LAYER
  var squares = 0.0;
  for (var i = 0u; i < (N + WORKGROUP - 1u) / WORKGROUP; i++) {
    let n = i * WORKGROUP + thread;
    if (n < N) { let context = halves[n].x * CONTEXT_SCALE; squares += context * context; }
  }
  let mean_square = team_sum(Acc(squares), thread, WORKGROUP).x / f32(N);
  let context_scale = CONTEXT_SCALE * inverseSqrt(mean_square + CONTEXT_EPS);
#endif
  let lane = thread % LANES;
  // A team's two rows; the last team's second may lie past the end, and is then computed in vain.
  let row = (group_index * TEAMS + thread / LANES) * 2u;
  let row_0 = min(row, N - 1u);
  let row_1 = min(row + 1u, N - 1u);

  var sums = vec4<f32>(0.0);
  var inputs: array<vec4<f32>, 8>;
  for (var i = 0u; i < CHUNKS_PER_LANE; i++) {
    let chunk = i * LANES + lane;
    if (chunk < CHUNKS) {
      let input_sum = load_chunk(chunk, &inputs);
      sums.x += dot_chunk(row_0, chunk, &inputs, input_sum);
      sums.y += dot_chunk(row_1, chunk, &inputs, input_sum);
      if (GATED) {
        sums.z += dot_chunk(N + row_0, chunk, &inputs, input_sum);
        sums.w += dot_chunk(N + row_1, chunk, &inputs, input_sum);
      }
    }
  }
  sums = team_sum(sums, thread, LANES);

#ifdef CHOICE
  var best = -3.4e38;
  var best_index = 0xffffffffu;
#endif
  if (lane < 2u && row + lane < N) {
    var value = select(sums.x, sums.y, lane == 1u);
    if (GATED) { value = activate(value) * select(sums.z, sums.w, lane == 1u); }
    if (SOFTCAP > 0.0) { value = SOFTCAP * tanh(clamp(value / SOFTCAP, -10.0, 10.0)); }
#ifdef ADD_RESIDUAL
    value += residual[row + lane];
#endif
#ifdef GATED_BY
    value = activate(value) * up[row + lane];
#endif
#ifdef GATED_BY_LAYER
    let n = row + lane;
    let context = halves[n].x * context_scale * (context_norm[n / 4u][n % 4u] + CONTEXT_OFFSET);
    value = activate(value) * (context + halves[n].y * TOKEN_SCALE) * 0.70710678118654752;
#endif
#ifdef BESIDE
    y[row + lane] = vec2<f32>(value, up[row + lane]);
#else
    y[row + lane] = value;
#endif
#ifdef CHOICE
    if (value > best) { best = value; best_index = FIRST_ROW + row + lane; }
#endif
  }
#ifdef CHOICE
  let slot = thread / LANES * 2u + lane;
  if (lane < 2u) { best_values[slot] = best; best_indices[slot] = best_index; }
  for (var stride = TEAMS; stride > 0u; stride >>= 1u) {
    workgroupBarrier();
    if (thread < stride) {
      let other = best_values[thread + stride];
      let other_index = best_indices[thread + stride];
      if (other > best_values[thread] || (other == best_values[thread] && other_index < best_indices[thread])) {
        best_values[thread] = other;
        best_indices[thread] = other_index;
      }
    }
  }
  if (thread == 0u && group_index < PAIRS) {
    pairs[FIRST_PAIR + group_index] = vec2<u32>(bitcast<u32>(best_values[0]), best_indices[0]);
  }
#endif
}
