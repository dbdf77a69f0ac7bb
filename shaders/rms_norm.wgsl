// y[m] = rms_norm(r[m]) for M rows of K columns, where r = x, or x after a residual update (lib/norm);
// the updated residual is written too where DELTA. Dispatch: one workgroup a row. Caller: nn::Residual.
#import "lib/norm.wgsl"
@group(0) @binding(_) var<storage, read_write> y: array<vec4<f32>>;
#ifdef KEEP_RESIDUAL
@group(0) @binding(_) var<storage, read_write> updated: array<vec4<f32>>;
#endif

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  prepare_input(group.x, thread);
  for (var i = 0u; i < K4_PER_THREAD; i++) {
    let k4 = i * WORKGROUP + thread;
    if (k4 < K4) {
      y[row4 + k4] = input4(k4);
#ifdef KEEP_RESIDUAL
      updated[row4 + k4] = residual4(k4);
#endif
    }
  }
}
