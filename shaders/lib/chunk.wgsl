// Loads of the input for lib/weight's dot_chunk. Needs: CHUNK4 of lib/weight, input4 of lib/norm.

// The input at chunk `chunk` and the sum of its elements, written out: software drivers do not unroll loops over private arrays.
fn load_chunk(chunk: u32, inputs: ptr<function, array<vec4<f32>, 8>>) -> f32 {
  let k4 = chunk * CHUNK4;
  (*inputs)[0] = input4(k4);
  var total = (*inputs)[0];
  if (CHUNK4 > 1u) {
    (*inputs)[1] = input4(k4 + 1u);
    total += (*inputs)[1];
  }
  if (CHUNK4 > 2u) {
    (*inputs)[2] = input4(k4 + 2u);
    (*inputs)[3] = input4(k4 + 3u);
    total += (*inputs)[2] + (*inputs)[3];
  }
  if (CHUNK4 > 4u) {
    (*inputs)[4] = input4(k4 + 4u);
    (*inputs)[5] = input4(k4 + 5u);
    (*inputs)[6] = input4(k4 + 6u);
    (*inputs)[7] = input4(k4 + 7u);
    total += (*inputs)[4] + (*inputs)[5] + (*inputs)[6] + (*inputs)[7];
  }
  return dot(total, vec4<f32>(1.0));
}
