// y[n] = output( Σ_k W[n, k] · input[k] ) for one row of input, N rows of W, K columns.
// W: lib/weight. input: lib/norm, row 0 or (LAST_ROW) the step's last real row.
// output: as it is; + residual[n] (ADD_RESIDUAL); activate(gate) · up, where gate is row n and up is row
// N + n of W (GATED); cap · tanh(· / cap) (SOFTCAP).
// Dispatch: N / (WORKGROUP / LANES · ROWS) workgroups, folded over x and y. A team of LANES invocations
// computes ROWS rows and shares the loads of the input. Caller: nn::Linear.
#import "lib/weight.wgsl"
#import "lib/norm.wgsl"
#import "lib/reduce.wgsl"
#import "lib/activation.wgsl"
#ifdef LAST_ROW
#import "lib/step.wgsl"
#endif
#ifdef ADD_RESIDUAL
@group(0) @binding(_) var<storage, read> residual: array<f32>;
#endif
@group(0) @binding(_) var<storage, read_write> y: array<f32>;
#ifdef KEEP_RESIDUAL
@group(0) @binding(_) var<storage, read_write> updated: array<vec4<f32>>;
#endif

const TEAMS: u32 = WORKGROUP / LANES;
const CHUNKS: u32 = K4 / CHUNK4;
const CHUNKS_PER_LANE: u32 = (CHUNKS + LANES - 1u) / LANES;

// Row of W of accumulator `slot`: ROWS plain rows, or ROWS gate rows and their up rows.
fn weight_row(first: u32, slot: u32) -> u32 {
  return min(first + slot % ROWS, N - 1u) + select(0u, N, slot >= ROWS);
}

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
  let first = (group_index * TEAMS + thread / LANES) * ROWS;

  var sums = vec4<f32>(0.0);
  for (var i = 0u; i < CHUNKS_PER_LANE; i++) {
    let chunk = i * LANES + lane;
    if (chunk < CHUNKS) {
      var inputs: array<vec4<f32>, CHUNK4>;
      var total = vec4<f32>(0.0);
      for (var j = 0u; j < CHUNK4; j++) {
        inputs[j] = input4(chunk * CHUNK4 + j);
        total += inputs[j];
      }
      let input_sum = dot(total, vec4<f32>(1.0));
      for (var slot = 0u; slot < SLOTS; slot++) {
        sums[slot] += dot_chunk(weight_row(first, slot), chunk, &inputs, input_sum);
      }
    }
  }
  sums = team_sum(sums, thread, LANES);

  if (lane < ROWS && first + lane < N) {
    let row = first + lane;
    var value = sums[lane];
    if (GATED) { value = activate(value) * sums[min(lane + ROWS, 3u)]; }
    if (SOFTCAP > 0.0) { value = SOFTCAP * tanh(clamp(value / SOFTCAP, -10.0, 10.0)); }
#ifdef ADD_RESIDUAL
    value += residual[row];
#endif
    y[row] = value;
  }
}
