// y[m, c, n] = Σ_k W[e · N + n, k] · x[k], where e = pairs[m, c].x is the row's cth expert and x is row m of the
// input, or (BY_EXPERT) row (m, c). N rows an expert, K columns. W: lib/weight, rows FIRST_ROW …
// FIRST_ROW+SHARD_ROWS-1 of all experts' rows; the others are another shard's.
// Dispatch: N / (WORKGROUP / LANES) workgroups, folded over x and y, times (m, c) in z. A team of LANES
// invocations computes a row. Caller: nn::Experts.
#import "lib/weight.wgsl"
#import "lib/norm.wgsl"
#import "lib/chunk.wgsl"
#import "lib/reduce.wgsl"
@group(0) @binding(_) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(_) var<storage, read_write> y: array<f32>;

const TEAMS: u32 = WORKGROUP / LANES;
const CHUNKS: u32 = K4 / CHUNK4;
const CHUNKS_PER_LANE: u32 = (CHUNKS + LANES - 1u) / LANES;

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let lane = thread % LANES;
  let n = (group.x + group.y * groups.x) * TEAMS + thread / LANES;
  let row = pairs[group.z].x * N + n - FIRST_ROW; // wraps below the shard, and so fails the test
  let is_here = n < N && row < SHARD_ROWS;
  prepare_input(select(group.z / CHOSEN, group.z, BY_EXPERT), thread);

  var sum = 0.0;
  var inputs: array<vec4<f32>, 8>;
  if (is_here) {
    for (var i = 0u; i < CHUNKS_PER_LANE; i++) {
      let chunk = i * LANES + lane;
      if (chunk < CHUNKS) {
        let input_sum = load_chunk(chunk, &inputs);
        sum += dot_chunk(row, chunk, &inputs, input_sum);
      }
    }
  }
  sum = team_sum(sum, thread, LANES);
  if (is_here && lane == 0u) { y[group.z * N + n] = sum; }
}
