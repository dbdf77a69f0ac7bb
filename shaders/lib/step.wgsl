// What changes from step to step; mirrors kernels::Step.
struct Step {
  position: u32,    // position of the first row
  rows: u32,        // rows that are real; the rest of the bucket is padding
  seed: u32,
  top_k: u32,       // 0: off
  temperature: f32,
  top_p: f32,       // 1: off
  min_p: f32,       // 0: off
  padding: u32,
}
@group(0) @binding(_) var<uniform> step: Step;
