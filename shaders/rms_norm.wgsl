// y[m] = rms_norm(r[m]) for M rows of K columns, where r = x, or x after a residual update (lib/norm);
// without NORM y = r. The updated residual is written too where KEEP_RESIDUAL. With LAST_ROW only row 0 of y
// is written, and read is the step's last real row. Dispatch: one workgroup a row. Caller: nn::Residual.
#import "lib/norm.wgsl"
#ifdef LAST_ROW
#import "lib/step.wgsl"
#endif
@group(0) @binding(_) var<storage, read_write> y: array<vec4<f32>>;
#ifdef KEEP_RESIDUAL
@group(0) @binding(_) var<storage, read_write> updated: array<vec4<f32>>;
#endif

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
#ifdef LAST_ROW
  prepare_input(step.rows - 1u, thread);
#else
  prepare_input(group.x, thread);
#endif
  var scale = 1.0;
#ifdef NORM
  var squares = 0.0;
  for (var i = 0u; i < K4_PER_THREAD; i++) {
    let k4 = i * WORKGROUP + thread;
    if (k4 < K4) { let value = unnormed4(k4); squares += dot(value, value); }
  }
  scale = rms_scale(squares, thread);
#endif
  for (var i = 0u; i < K4_PER_THREAD; i++) {
    let k4 = i * WORKGROUP + thread;
    if (k4 < K4) {
      let residual = unnormed4(k4);
      y[group.x * K4 + k4] = weighted4(residual, k4) * scale;
#ifdef KEEP_RESIDUAL
      updated[row4 + k4] = residual;
#endif
    }
  }
}
