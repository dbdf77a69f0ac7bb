// y[l][m] = ( rms_norm(context[m, FIRST_LAYER + l] · CONTEXT_SCALE) + tokens[m, FIRST_LAYER + l] · TOKEN_SCALE ) · 2^-½
// over N elements. context, tokens: rows of ROW_STRIDE elements, layer by layer; y: layers of LAYER_STRIDE
// elements, row by row. With LAST_ROW row 0 of y is made of the step's last real row.
// Dispatch: (layers, rows) workgroups. Caller: nn::PerLayerInputs.
#import "lib/reduce.wgsl"
@group(0) @binding(_) var<storage, read> context: array<f32>;
@group(0) @binding(_) var<storage, read> norm_weight: array<f32>;
@group(0) @binding(_) var<storage, read> tokens: array<f32>;
#ifdef LAST_ROW
#import "lib/step.wgsl"
#endif
@group(0) @binding(_) var<storage, read_write> y: array<f32>;

const PER_THREAD: u32 = (N + WORKGROUP - 1u) / WORKGROUP;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  var row = group.y;
#ifdef LAST_ROW
  row = step.rows - 1u;
#endif
  let source = row * ROW_STRIDE + (FIRST_LAYER + group.x) * N;
  let target_index = group.x * LAYER_STRIDE + group.y * N;

  var squares = 0.0;
  for (var i = 0u; i < PER_THREAD; i++) {
    let n = i * WORKGROUP + thread;
    if (n < N) {
      let value = context[source + n] * CONTEXT_SCALE;
      squares += value * value;
    }
  }
  let scale = CONTEXT_SCALE * inverseSqrt(team_sum(squares, thread, WORKGROUP) / f32(N) + EPS);
  for (var i = 0u; i < PER_THREAD; i++) {
    let n = i * WORKGROUP + thread;
    if (n < N) {
      let normed = context[source + n] * scale * (norm_weight[n] + WEIGHT_OFFSET);
      y[target_index + n] = (normed + tokens[source + n] * TOKEN_SCALE) * 0.70710678118654752;
    }
  }
}
