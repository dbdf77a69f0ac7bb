// W as f16, two to a word; unpacked by a core builtin, so shader-f16 is not needed.
const CHUNK4: u32 = 2u;
alias Words = vec4<u32>;
@group(0) @binding(_) var<storage, read> weights: array<vec4<u32>>;

fn unpack4(low: u32, high: u32) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(low), unpack2x16float(high));
}

fn weight4(row: u32, k4: u32) -> vec4<f32> {
  let words = weights[row * (K / 8u) + k4 / 2u];
  return select(unpack4(words.x, words.y), unpack4(words.z, words.w), k4 % 2u == 1u);
}

fn load_words(row: u32, chunk: u32) -> Words {
  return weights[row * (K / 8u) + chunk];
}

fn dot_words(words: Words, x: ptr<function, array<vec4<f32>, 8>>, x_sum: f32) -> f32 {
  return dot(unpack4(words.x, words.y), (*x)[0]) + dot(unpack4(words.z, words.w), (*x)[1]);
}
