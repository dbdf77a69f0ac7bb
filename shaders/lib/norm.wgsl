// The input of a kernel, behind an optional residual update and RMSNorm over its K columns:
//   r = x [+ delta | + rms_norm(delta) · post_weight]      (DELTA, POST_NORM)
//   r = r · post_weight[K]                                  (SCALES_RESIDUAL)
//   input = r [· (mean(r²) + EPS)^-½ · norm_weight]         (NORM)
// Every workgroup recomputes the statistics, which costs less than a dispatch of its own.
// Needs: K, EPS, WEIGHT_OFFSET (1 where the checkpoint stores w of 1+w), WORKGROUP; lib/reduce with Acc.
@group(0) @binding(_) var<storage, read> x: array<vec4<f32>>;
#ifdef NORM
@group(0) @binding(_) var<storage, read> norm_weight: array<vec4<f32>>;
#endif
#ifdef DELTA
@group(0) @binding(_) var<storage, read> delta: array<vec4<f32>>;
#endif
#ifdef POST_NORM
@group(0) @binding(_) var<storage, read> post_weight: array<vec4<f32>>;
#endif

const K4: u32 = K / 4u;
const K4_PER_THREAD: u32 = (K4 + WORKGROUP - 1u) / WORKGROUP;
var<private> row4: u32;         // where the row starts, in vec4s
var<private> post_scale: f32;

#ifdef RMS
#import "lib/reduce.wgsl"
fn rms_scale(square_sum: f32, thread: u32) -> f32 {
  let total = team_sum(Acc(square_sum), thread, WORKGROUP);
  return inverseSqrt(total[0] / f32(K) + EPS);
}
#endif

// To be called by the whole workgroup before unnormed4.
fn prepare_input(row: u32, thread: u32) {
  row4 = row * K4;
#ifdef POST_NORM
  var delta_squares = 0.0;
  for (var i = 0u; i < K4_PER_THREAD; i++) {
    let k4 = i * WORKGROUP + thread;
    if (k4 < K4) { let value = delta[row4 + k4]; delta_squares += dot(value, value); }
  }
  post_scale = rms_scale(delta_squares, thread);
#endif
}

// The residual stream at column 4·k4, after the update.
fn unnormed4(k4: u32) -> vec4<f32> {
  var value = x[row4 + k4];
#ifdef POST_NORM
  value += delta[row4 + k4] * post_scale * (post_weight[k4] + vec4<f32>(WEIGHT_OFFSET));
#else
#ifdef DELTA
  value += delta[row4 + k4];
#endif
#endif
#ifdef SCALES_RESIDUAL
  value *= post_weight[K4].x;
#endif
  return value;
}

// What the norm makes of it, but for the factor that the whole row has in common.
fn weighted4(unnormed: vec4<f32>, k4: u32) -> vec4<f32> {
#ifdef NORM
  return unnormed * (norm_weight[k4] + vec4<f32>(WEIGHT_OFFSET));
#else
  return unnormed;
#endif
}
