// y[m, i] = activate(gate_up[m, i]) · gate_up[m, N + i] for M rows, gate_up [M, 2·N].
// Dispatch: one invocation an element, folded over x and y. Caller: nn::GatedMlp.
#import "lib/activation.wgsl"
@group(0) @binding(_) var<storage, read> gate_up: array<f32>;
@group(0) @binding(_) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let i = (group.x + group.y * groups.x) * 256u + thread;
  if (i >= M * N) { return; }
  let gate = i / N * 2u * N + i % N;
  y[i] = activate(gate_up[gate]) * gate_up[gate + N];
}
