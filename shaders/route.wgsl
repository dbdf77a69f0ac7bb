// For each row the CHOSEN highest of EXPERTS logits, the lowest number among equals:
//   y[m, c] = (expert, softmax over the chosen of SCALE · logit · expert_scale[expert])
// Dispatch: one workgroup of 64 a row; each round every invocation looks through its share of the logits.
// Caller: nn::Experts.
@group(0) @binding(_) var<storage, read> logits: array<f32>;
@group(0) @binding(_) var<storage, read> expert_scale: array<f32>;
@group(0) @binding(_) var<storage, read_write> y: array<vec2<u32>>;

const PER_THREAD: u32 = (EXPERTS + 63u) / 64u;
const LOWEST: f32 = -3.4e38;
var<workgroup> row_logits: array<f32, EXPERTS>;
var<workgroup> best: array<f32, 64>;
var<workgroup> best_expert: array<u32, 64>;
var<workgroup> chosen: array<u32, CHOSEN>;
var<workgroup> chosen_logit: array<f32, CHOSEN>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  for (var i = 0u; i < PER_THREAD; i++) {
    let expert = i * 64u + thread;
    if (expert < EXPERTS) { row_logits[expert] = logits[group.x * EXPERTS + expert] * SCALE; }
  }
  workgroupBarrier();
  for (var round = 0u; round < CHOSEN; round++) {
    var value = LOWEST;
    var number = EXPERTS - 1u;
    for (var i = 0u; i < PER_THREAD; i++) {
      let expert = i * 64u + thread;
      if (expert < EXPERTS && row_logits[expert] > value) {
        value = row_logits[expert];
        number = expert;
      }
    }
    best[thread] = value;
    best_expert[thread] = number;
    for (var stride = 32u; stride > 0u; stride >>= 1u) {
      workgroupBarrier();
      if (thread < stride) {
        let other = best[thread + stride];
        let other_expert = best_expert[thread + stride];
        if (other > best[thread] || (other == best[thread] && other_expert < best_expert[thread])) {
          best[thread] = other;
          best_expert[thread] = other_expert;
        }
      }
    }
    if (thread == 0u) {
      chosen[round] = best_expert[0];
      chosen_logit[round] = best[0];
      row_logits[best_expert[0]] = LOWEST;
    }
    workgroupBarrier();
  }
  if (thread < CHOSEN) {
    var total = 0.0;
    for (var c = 0u; c < CHOSEN; c++) { total += exp(max(chosen_logit[c] - chosen_logit[0], -80.0)); }
    let likelihood = exp(max(chosen_logit[thread] - chosen_logit[0], -80.0)) / total;
    let expert = chosen[thread];
    y[group.x * CHOSEN + thread] = vec2<u32>(expert, bitcast<u32>(likelihood * expert_scale[expert]));
  }
}
