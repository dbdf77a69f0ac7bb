// y[m, n] = Σ_c weight[m, c] · x[m, c, n] over the CHOSEN experts of each of M rows, N columns; the weights are
// the second halves of pairs [M, CHOSEN]. Dispatch: one invocation an element, folded over x and y.
// Caller: nn::Experts.
@group(0) @binding(_) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(_) var<storage, read> x: array<f32>;
@group(0) @binding(_) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let i = (group.x + group.y * groups.x) * 256u + thread;
  if (i >= M * N) { return; }
  let first = i / N * CHOSEN;
  var sum = 0.0;
  for (var c = 0u; c < CHOSEN; c++) {
    sum += bitcast<f32>(pairs[first + c].y) * x[(first + c) * N + i % N];
  }
  y[i] = sum;
}
