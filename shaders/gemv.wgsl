// y[n] = output( Σ_k W[n, k] · input[k] ) for one row of input, N rows of W, K columns.
// W: lib/weight. input: lib/norm, row 0 or (LAST_ROW) the step's last real row; or lib/combine (COMBINE).
// output: as it is; + residual[n] (ADD_RESIDUAL); activate(gate) · up, where gate is row n and up is row
// N + n of W (GATED); activate(·) · up[n] (GATED_BY), where up may be made of the
// halves of a per-layer input (GATED_BY_LAYER); beside up[n] (BESIDE); cap · tanh(· / cap) (SOFTCAP).
// With CHOICE pairs[FIRST_PAIR + w] is the highest of workgroup w's results and its index, row 0 being FIRST_ROW
// of all; the lowest index among equals.
// Dispatch: N / (TEAMS · TEAM_ROWS) workgroups, folded over x and y; lib/team_dot has the teams. Caller: nn::Linear.
#import "lib/weight.wgsl"
#ifdef COMBINE
#import "lib/combine.wgsl"
#else
#import "lib/norm.wgsl"
#endif
#import "lib/team_dot.wgsl"
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
// Results of a team: of two rows of W, with GATED of two pairs of rows.
const TEAM_ROWS: u32 = 2u;
#ifdef CHOICE
@group(0) @binding(_) var<storage, read_write> pairs: array<vec2<u32>>;
var<workgroup> best_values: array<f32, TEAMS * TEAM_ROWS>;
var<workgroup> best_indices: array<u32, TEAMS * TEAM_ROWS>;
#endif

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let group_index = group.x + group.y * groups.x;
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
  // The last team's second row may lie past the end, and is then computed in vain.
  let row = (group_index * TEAMS + thread / LANES) * TEAM_ROWS;
  let rows = min(vec2<u32>(row, row + 1u), vec2<u32>(N - 1u)).xyxy + vec4<u32>(0u, 0u, N, N);
#ifdef LAST_ROW
  let sums = team_dots(rows, step.rows - 1u, thread);
#else
  let sums = team_dots(rows, 0u, thread);
#endif
#ifdef KEEP_RESIDUAL
  if (group_index == 0u) {
    for (var i = 0u; i < K4_PER_THREAD; i++) {
      let k4 = i * WORKGROUP + thread;
      if (k4 < K4) { updated[k4] = unnormed4(k4); }
    }
  }
#endif
#ifdef CHOICE
  var best = -3.4e38;
  var best_index = 0xffffffffu;
#endif
  if (lane < TEAM_ROWS && row + lane < N) {
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
  let slot = thread / LANES * TEAM_ROWS + lane;
  if (lane < TEAM_ROWS) { best_values[slot] = best; best_indices[slot] = best_index; }
  for (var stride = TEAMS * TEAM_ROWS / 2u; stride > 0u; stride >>= 1u) {
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
