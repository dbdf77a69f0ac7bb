// W as bf16, two to a word: the upper half of an f32.
const CHUNK4: u32 = 2u;
alias Words = vec4<u32>;
@group(0) @binding(_) var<storage, read> weights: array<vec4<u32>>;

fn unpack4(low: u32, high: u32) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(low << 16u, low & 0xffff0000u, high << 16u, high & 0xffff0000u));
}

fn weight4(row: u32, k4: u32) -> vec4<f32> {
  let words = weights[row * (K / 8u) + k4 / 2u];
  let upper = k4 % 2u == 1u;
  return unpack4(select(words.x, words.z, upper), select(words.y, words.w, upper));
}

fn load_words(row: u32, chunk: u32) -> Words {
  return weights[row * (K / 8u) + chunk];
}

fn dot_words(words: Words, x: ptr<function, array<vec4<f32>, 8>>, x_sum: f32) -> f32 {
  return dot(unpack4(words.x, words.y), (*x)[0]) + dot(unpack4(words.z, words.w), (*x)[1]);
}
