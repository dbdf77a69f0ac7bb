// The index of the highest of N values, the lowest index among equals, in two dispatches:
//   the first: each workgroup of 256 writes the best (value, index) of its SLICE values
//   the second (FINAL): one workgroup picks the best of N such pairs and writes token[0]
// With SAMPLED the first ranks by logit/temperature plus Gumbel noise among logits at or above the
// threshold, which draws from the softmax of what is kept. The noise is a hash of seed, position, index.
// Caller: nn::Sampler.
#ifdef SAMPLED
#import "lib/step.wgsl"
@group(0) @binding(_) var<storage, read> threshold: array<f32>;
#endif
#ifdef FINAL
@group(0) @binding(_) var<storage, read> pairs: array<vec2<u32>>;
@group(0) @binding(_) var<storage, read_write> token: array<u32>;
#else
@group(0) @binding(_) var<storage, read> logits: array<f32>;
@group(0) @binding(_) var<storage, read_write> pairs: array<vec2<u32>>;
#endif

const PER_THREAD: u32 = SLICE / 256u;
var<workgroup> values: array<f32, 256>;
var<workgroup> indices: array<u32, 256>;

#ifdef SAMPLED
fn hash(value: u32) -> u32 {
  let state = value * 747796405u + 2891336453u;
  let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
  return (word >> 22u) ^ word;
}

fn gumbel(index: u32) -> f32 {
  let bits = hash(index ^ hash((step.position + step.rows) ^ hash(step.seed)));
  let uniform_value = (f32(bits >> 8u) + 0.5) / 16777216.0;
  return -log(-log(uniform_value));
}
#endif

fn rank(index: u32) -> f32 {
#ifdef FINAL
  return bitcast<f32>(pairs[index].x);
#else
#ifdef SAMPLED
  let logit = logits[index];
  if (logit < threshold[0]) { return -3.0e38; }
  return (logit - threshold[1]) / step.temperature + gumbel(index);
#else
  return logits[index];
#endif
#endif
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  var best = -3.4e38;
  var best_index = 0xffffffffu;
  for (var i = 0u; i < PER_THREAD; i++) {
    let index = group.x * SLICE + i * 256u + thread;
    if (index < N) {
      let value = rank(index);
      if (value > best) { best = value; best_index = index; }
    }
  }
  values[thread] = best;
  indices[thread] = best_index;
  for (var stride = 128u; stride > 0u; stride >>= 1u) {
    workgroupBarrier();
    if (thread < stride) {
      let other = values[thread + stride];
      let other_index = indices[thread + stride];
      if (other > values[thread] || (other == values[thread] && other_index < indices[thread])) {
        values[thread] = other;
        indices[thread] = other_index;
      }
    }
  }
  if (thread == 0u) {
#ifdef FINAL
    // Where every logit is NaN the token is 0xffffffff, which no vocabulary has.
    token[0] = pairs[min(indices[0], N - 1u)].y;
#else
    pairs[group.x] = vec2<u32>(bitcast<u32>(values[0]), indices[0]);
#endif
  }
}
