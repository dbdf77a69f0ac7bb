// W = scale · code + bias per GROUP_SIZE columns; codes of BITS (4 or 8) bits, least significant first;
// a group's scale and bias are two f16 in one word, the scale in the low half.
const CODES_PER_WORD: u32 = 32u / BITS;
const CHUNK4: u32 = CODES_PER_WORD;
struct Words { codes: vec4<u32>, affine: u32 }
@group(0) @binding(_) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(_) var<storage, read> scales: array<u32>;

// Codes 4·quarter … 4·quarter+3 of a word.
fn codes4(word: u32, quarter: u32) -> vec4<f32> {
  let first = quarter * 4u * BITS;
  let shifts = vec4<u32>(0u, BITS, 2u * BITS, 3u * BITS) + vec4<u32>(first);
  return vec4<f32>((vec4<u32>(word) >> shifts) & vec4<u32>((1u << BITS) - 1u));
}

fn group_affine(row: u32, column: u32) -> vec2<f32> {
  return unpack2x16float(scales[row * (K / GROUP_SIZE) + column / GROUP_SIZE]);
}

fn weight4(row: u32, k4: u32) -> vec4<f32> {
  let word = k4 * 4u / CODES_PER_WORD;
  let words = weights[row * (K / (4u * CODES_PER_WORD)) + word / 4u];
  let affine = group_affine(row, k4 * 4u);
  return affine.x * codes4(words[word % 4u], k4 % (CODES_PER_WORD / 4u)) + vec4<f32>(affine.y);
}

// The four bytes of a word; the conversion that compilers know best.
fn bytes4(word: u32) -> vec4<f32> {
  return vec4<f32>(unpack4xU8(word));
}

// A chunk never straddles groups: it is 32 codes of 4 bits or 16 of 8, and groups are of 32 or more.
fn load_words(row: u32, chunk: u32) -> Words {
  let affine = scales[row * (K / GROUP_SIZE) + chunk * 4u * CODES_PER_WORD / GROUP_SIZE];
  return Words(weights[row * (K / (4u * CODES_PER_WORD)) + chunk], affine);
}

fn dot_words(words: Words, x: ptr<function, array<vec4<f32>, 8>>, x_sum: f32) -> f32 {
#ifdef BITS_4
  let even = words.codes & vec4<u32>(0x0f0f0f0fu);
  let odd = (words.codes >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
  let products = dot(bytes4(even.x), (*x)[0]) + dot(bytes4(odd.x), (*x)[1])
    + dot(bytes4(even.y), (*x)[2]) + dot(bytes4(odd.y), (*x)[3])
    + dot(bytes4(even.z), (*x)[4]) + dot(bytes4(odd.z), (*x)[5])
    + dot(bytes4(even.w), (*x)[6]) + dot(bytes4(odd.w), (*x)[7]);
#else
  let products = dot(bytes4(words.codes.x), (*x)[0]) + dot(bytes4(words.codes.y), (*x)[1])
    + dot(bytes4(words.codes.z), (*x)[2]) + dot(bytes4(words.codes.w), (*x)[3]);
#endif
  let affine = unpack2x16float(words.affine);
  return affine.x * products + affine.y * x_sum;
}
