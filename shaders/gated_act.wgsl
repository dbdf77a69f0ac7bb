// y[m, i] = activate(gate[m, i]) · up[m, i] for M rows. gate and up lie beside each other in gate [M, 2·N], or
// (APART) each in [M, N] of its own.
// Dispatch: one invocation an element, folded over x and y. Caller: nn::GatedMlp,
// nn::PerLayerBlock.
#import "lib/activation.wgsl"
@group(0) @binding(_) var<storage, read> gate: array<f32>;
#ifdef APART
@group(0) @binding(_) var<storage, read> up: array<f32>;
#endif
@group(0) @binding(_) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let i = (group.x + group.y * groups.x) * 256u + thread;
  if (i >= M * N) { return; }
#ifdef APART
  y[i] = activate(gate[i]) * up[i];
#else
  let beside = i / N * 2u * N + i % N;
  y[i] = activate(gate[beside]) * gate[beside + N];
#endif
}
