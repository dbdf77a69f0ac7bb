// y[n] = output( Σ_k W[n, k] · input[k] ) for one row of input, N rows of W, K columns.
// W: lib/weight. input: lib/norm, row 0 or (LAST_ROW) the step's last real row.
// output: as it is; + residual[n] (ADD_RESIDUAL); activate(gate) · up, where gate is row n and up is row
// N + n of W (GATED); activate(·) · up[n] (GATED_BY); cap · tanh(· / cap) (SOFTCAP).
// Dispatch: N / (WORKGROUP / LANES · 2) workgroups, folded over x and y. A team of LANES invocations
// computes two rows (with GATED two pairs) and shares the loads of the input. Caller: nn::Linear.
#import "lib/weight.wgsl"
#import "lib/norm.wgsl"
#import "lib/chunk.wgsl"
#import "lib/reduce.wgsl"
#import "lib/activation.wgsl"
#ifdef LAST_ROW
#import "lib/step.wgsl"
#endif
#ifdef ADD_RESIDUAL
@group(0) @binding(_) var<storage, read> residual: array<f32>;
#endif
#ifdef GATED_BY
@group(0) @binding(_) var<storage, read> up: array<f32>;
#endif
@group(0) @binding(_) var<storage, read_write> y: array<f32>;
#ifdef KEEP_RESIDUAL
@group(0) @binding(_) var<storage, read_write> updated: array<vec4<f32>>;
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
    y[row + lane] = value;
  }
}
