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
// Of each split and head its highest score and sum of weights; then in x what its sums are multiplied by.
var<workgroup> parts: array<vec2<f32>, SPLITS * HEADS>;
const PARTS_PER_THREAD: u32 = (SPLITS * HEADS + WORKGROUP - 1u) / WORKGROUP;
var<private> used: u32;

// The share of part `i` in its head.
fn share_of(i: u32) -> f32 {
  let head = i % HEADS;
  var highest = parts[head].x;
  for (var split = 1u; split < used; split++) { highest = max(highest, parts[split * HEADS + head].x); }
  var total = 0.0;
  for (var split = 0u; split < used; split++) {
    let part = parts[split * HEADS + head];
    total += exp(max(part.x - highest, -80.0)) * part.y;
  }
  return exp(max(parts[i].x - highest, -80.0)) / max(total, 1e-30);
}

// To be called by the whole workgroup before unnormed4.
fn prepare_input(row: u32, thread: u32) {
  used = used_splits();
  for (var i = thread; i < used * HEADS; i += WORKGROUP) { parts[i] = softmax[i]; }
  workgroupBarrier();
  var share = array<f32, PARTS_PER_THREAD>();
  for (var n = 0u; n < PARTS_PER_THREAD; n++) {
    let i = n * WORKGROUP + thread;
    if (i < used * HEADS) { share[n] = share_of(i); }
  }
  workgroupBarrier();
  for (var n = 0u; n < PARTS_PER_THREAD; n++) {
    let i = n * WORKGROUP + thread;
    if (i < used * HEADS) { parts[i].x = share[n]; }
  }
  workgroupBarrier();
}

// A split's part of the input; nothing from a split that the step does not have.
fn part4(split: u32, k4: u32) -> vec4<f32> {
  let at = min(split, used - 1u);
  let value = parts[at * HEADS + k4 / HEAD4].x * sums[at * K4 + k4];
  return select(vec4<f32>(0.0), value, split < used);
}

// Four splits at a time, whose loads then wait for each other no more.
fn unnormed4(k4: u32) -> vec4<f32> {
  var value = part4(0u, k4);
  if (SPLITS > 1u) { value += part4(1u, k4); }
  if (SPLITS > 2u) { value += part4(2u, k4) + part4(3u, k4); }
  for (var split = 4u; split < used; split += 4u) {
    value += part4(split, k4) + part4(split + 1u, k4) + part4(split + 2u, k4) + part4(split + 3u, k4);
  }
  return value;
}

fn weighted4(unnormed: vec4<f32>, k4: u32) -> vec4<f32> {
  return unnormed;
}
