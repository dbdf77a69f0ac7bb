// The lowest logit that sampling may still choose, by top-k, then top-p, then min-p, in one workgroup.
// Both searches ask for the largest threshold t at which a statistic over { logit ≥ t } reaches a target:
// the count for top-k, the probability mass at the step's temperature for top-p. They refine 4 bits of t
// at a time, in an order-preserving map of f32 to u32. Logits equal to the threshold are all kept.
// Result: (threshold, highest logit). Dispatch: one workgroup of 256. Caller: nn::Sampler.
#import "lib/step.wgsl"
#import "lib/reduce.wgsl"
@group(0) @binding(_) var<storage, read> logits: array<f32>;
@group(0) @binding(_) var<storage, read_write> result: array<f32>;

const PER_THREAD: u32 = (N + WORKGROUP - 1u) / WORKGROUP;

fn ordered(value: f32) -> u32 {
  let bits = bitcast<u32>(value);
  return bits ^ select(0x80000000u, 0xffffffffu, (bits >> 31u) == 1u);
}

fn unordered(key: u32) -> f32 {
  return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, (key >> 31u) == 1u));
}

fn mass(logit: f32, highest: f32) -> f32 {
  return exp(clamp((logit - highest) / step.temperature, -80.0, 0.0));
}

// How many of the four sums, over the whole workgroup, reach `goal`.
fn reaching(sums: vec4<f32>, goal: f32, thread: u32) -> u32 {
  let totals = team_sum(sums, thread, WORKGROUP);
  return dot(select(vec4<u32>(0u), vec4<u32>(1u), totals >= vec4<f32>(goal)), vec4<u32>(1u));
}

// The largest key at which the statistic over logits of at least `floor` reaches `goal`.
fn search(goal: f32, by_mass: bool, floor: u32, highest: f32, thread: u32) -> u32 {
  var low = 0u;
  for (var pass_index = 0u; pass_index < 8u; pass_index++) {
    let width = 1u << (28u - 4u * pass_index);
    var sums_0 = vec4<f32>(0.0);
    var sums_1 = vec4<f32>(0.0);
    var sums_2 = vec4<f32>(0.0);
    var sums_3 = vec4<f32>(0.0);
    for (var i = 0u; i < PER_THREAD; i++) {
      let index = i * WORKGROUP + thread;
      if (index < N) {
        let key = ordered(logits[index]);
        if (key >= floor && key >= low) {
          let weight = select(1.0, mass(logits[index], highest), by_mass);
          // In bin b the logit counts for the thresholds of bins 0 to b.
          let bin = vec4<u32>(min((key - low) / width, 15u));
          sums_0 += select(vec4<f32>(0.0), vec4<f32>(weight), bin >= vec4<u32>(0u, 1u, 2u, 3u));
          sums_1 += select(vec4<f32>(0.0), vec4<f32>(weight), bin >= vec4<u32>(4u, 5u, 6u, 7u));
          sums_2 += select(vec4<f32>(0.0), vec4<f32>(weight), bin >= vec4<u32>(8u, 9u, 10u, 11u));
          sums_3 += select(vec4<f32>(0.0), vec4<f32>(weight), bin >= vec4<u32>(12u, 13u, 14u, 15u));
        }
      }
    }
    // Sums fall from bin to bin, so the number of those that reach the goal is the last one's index + 1.
    let reached = reaching(sums_0, goal, thread) + reaching(sums_1, goal, thread)
      + reaching(sums_2, goal, thread) + reaching(sums_3, goal, thread);
    let chosen = max(reached, 1u) - 1u;
    low += chosen * width;
  }
  return low;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) thread: u32) {
  var highest = -3.0e38;
  for (var i = 0u; i < PER_THREAD; i++) {
    let index = i * WORKGROUP + thread;
    if (index < N) { highest = max(highest, logits[index]); }
  }
  highest = team_max(Acc(highest), thread, WORKGROUP).x;

  var floor = 0u;
  if (step.top_k > 0u && step.top_k < N) {
    floor = search(f32(step.top_k), false, 0u, highest, thread);
  }
  if (step.top_p < 1.0) {
    var total = 0.0;
    for (var i = 0u; i < PER_THREAD; i++) {
      let index = i * WORKGROUP + thread;
      if (index < N && ordered(logits[index]) >= floor) { total += mass(logits[index], highest); }
    }
    let kept = team_sum(Acc(total), thread, WORKGROUP).x;
    floor = max(floor, search(step.top_p * kept, true, floor, highest, thread));
  }
  // p ≥ min_p · p_max, in the logits' domain.
  var threshold = unordered(max(floor, ordered(-3.0e38)));
  if (step.min_p > 0.0) { threshold = max(threshold, highest + step.temperature * log(step.min_p)); }
  if (thread == 0u) {
    result[0] = min(threshold, highest);
    result[1] = highest;
  }
}
