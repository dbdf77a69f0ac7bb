// The input of a kernel as what decode_attention left: per split the sums of weighted values, relative to the
// split's highest score. With m = max_s m[s, h], and h the head of element k:
//   input[k] = Σ_s exp(m[s, h] − m) · sums[s, k] / Σ_s exp(m[s, h] − m) · total[s, h]
// Needs: K, HEADS, WORKGROUP, what lib/splits needs.
#import "lib/step.wgsl"
#import "lib/splits.wgsl"
@group(0) @binding(_) var<storage, read> sums: array<vec4<f32>>;       // [SPLITS, K]
@group(0) @binding(_) var<storage, read> softmax: array<vec2<f32>>;    // [SPLITS, HEADS] of (m, total)

const K4: u32 = K / 4u;
const HEAD4: u32 = K4 / HEADS;
const HEADS_PER_THREAD: u32 = (HEADS + WORKGROUP - 1u) / WORKGROUP;
var<workgroup> shares: array<f32, SPLITS * HEADS>;   // what a split's sums are multiplied by
var<private> used: u32;

// To be called by the whole workgroup before input4.
fn prepare_input(row: u32, thread: u32) {
  used = used_splits();
  for (var n = 0u; n < HEADS_PER_THREAD; n++) {
    let head = n * WORKGROUP + thread;
    if (head < HEADS) {
      var highest = softmax[head].x;
      for (var split = 1u; split < SPLITS; split++) {
        if (split < used) { highest = max(highest, softmax[split * HEADS + head].x); }
      }
      var total = 0.0;
      for (var split = 0u; split < SPLITS; split++) {
        if (split < used) {
          let part = softmax[split * HEADS + head];
          let share = exp(max(part.x - highest, -80.0));
          shares[split * HEADS + head] = share;
          total += share * part.y;
        }
      }
      for (var split = 0u; split < SPLITS; split++) {
        if (split < used) { shares[split * HEADS + head] /= max(total, 1e-30); }
      }
    }
  }
  workgroupBarrier();
}

fn input4(k4: u32) -> vec4<f32> {
  let head = k4 / HEAD4;
  var value = vec4<f32>(0.0);
  for (var split = 0u; split < SPLITS; split++) {
    if (split >= used) { break; }
    value += shares[split * HEADS + head] * sums[split * K4 + k4];
  }
  return value;
}
