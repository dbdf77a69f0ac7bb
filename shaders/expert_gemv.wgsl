// y[m, c, n] = Σ_k W[e · N + n, k] · x[k], where e = pairs[m, c].x is the row's cth expert and x is row m of the
// input, or (BY_EXPERT) row (m, c). N rows an expert, K columns. W: lib/weight, rows FIRST_ROW …
// FIRST_ROW+SHARD_ROWS-1 of all experts' rows; the others are another shard's.
// Dispatch: N / TEAMS workgroups, folded over x and y, times (m, c) in z; a team of lib/team_dot computes a row.
// Caller: nn::Experts.
#import "lib/weight.wgsl"
#import "lib/norm.wgsl"
#import "lib/team_dot.wgsl"
@group(0) @binding(_) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(_) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let lane = thread % LANES;
  let first_n = (group.x + group.y * groups.x) * TEAMS;
  let first_row = pairs[group.z].x * N + first_n - FIRST_ROW; // wraps below the shard, and so fails the tests
  // All of the workgroup's rows are another shard's.
  if (TEAMS <= SHARD_ROWS && first_row >= SHARD_ROWS && first_row + TEAMS - 1u >= SHARD_ROWS) { return; }
  let n = first_n + thread / LANES;
  let row = first_row + thread / LANES;
  let is_here = n < N && row < SHARD_ROWS;
  let input_row = select(group.z / CHOSEN, group.z, BY_EXPERT);
  let sum = team_dots(vec4<u32>(min(row, SHARD_ROWS - 1u)), input_row, thread).x;
  if (is_here && lane == 0u) { y[group.z * N + n] = sum; }
}
