// W as f32, row-major.
const CHUNK4: u32 = 1u;
alias Words = vec4<f32>;
@group(0) @binding(_) var<storage, read> weights: array<vec4<f32>>;

fn weight4(row: u32, k4: u32) -> vec4<f32> {
  return weights[row * (K / 4u) + k4];
}

fn load_words(row: u32, chunk: u32) -> Words {
  return weights[row * (K / 4u) + chunk];
}

fn dot_words(words: Words, x: ptr<function, array<vec4<f32>, 8>>, x_sum: f32) -> f32 {
  return dot(words, (*x)[0]);
}
