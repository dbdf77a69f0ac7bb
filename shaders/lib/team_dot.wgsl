// Dot products of rows of W (lib/weight) with a kernel's input (lib/norm or lib/combine), by teams of LANES
// neighbouring invocations, each of which computes ROWS rows, at most 4.
//
// The workgroup prepares the input once for all of its rows, a tile at a time, in workgroup memory. Part j of
// the tile's chunk c lies at j · STRIDE + c, so that neighbouring lanes read neighbouring vec4s. The words of a
// chunk are loaded while the one before is computed, the first ones while the input is prepared.
// Needs: ROWS, LANES, WORKGROUP; lib/reduce with Acc = vec4<f32>.
#import "lib/reduce.wgsl"

const TEAMS: u32 = WORKGROUP / LANES;
const CHUNKS: u32 = K4 / CHUNK4;
const CHUNKS_PER_LANE: u32 = (CHUNKS + LANES - 1u) / LANES;
const TILE_K4: u32 = 512u;
const PER_TILE: u32 = min(CHUNKS_PER_LANE, max(1u, TILE_K4 / (CHUNK4 * LANES)));
const TILES: u32 = (CHUNKS_PER_LANE + PER_TILE - 1u) / PER_TILE;
const TILE_CHUNKS: u32 = min(CHUNKS, PER_TILE * LANES);
const STRIDE: u32 = TILE_CHUNKS | 1u;
var<workgroup> tile_input: array<vec4<f32>, CHUNK4 * STRIDE>;

struct RowWords { a: Words, b: Words, c: Words, d: Words }

fn load_rows(rows: vec4<u32>, chunk: u32) -> RowWords {
  let at = min(chunk, CHUNKS - 1u);
  var words: RowWords;
  words.a = load_words(rows.x, at);
  if (ROWS > 1u) { words.b = load_words(rows.y, at); }
  if (ROWS > 2u) {
    words.c = load_words(rows.z, at);
    words.d = load_words(rows.w, at);
  }
  return words;
}

// Prepares part `part`, of PART4 vec4s, of the tile that begins with chunk `first`, in the order that dot_words
// wants. What comes back is the sum of its squares before the norm.
#ifdef BITS_4
const PART4: u32 = 2u;
fn place(part: u32, first: u32) -> f32 {
  let k4 = first * CHUNK4 + part * 2u;
  let unnormed_0 = unnormed4(k4);
  let unnormed_1 = unnormed4(k4 + 1u);
  let x_0 = weighted4(unnormed_0, k4);
  let x_1 = weighted4(unnormed_1, k4 + 1u);
  let slot = part * 2u % CHUNK4 * STRIDE + part * 2u / CHUNK4;
  tile_input[slot] = vec4<f32>(x_0.xz, x_1.xz);
  tile_input[slot + STRIDE] = vec4<f32>(x_0.yw, x_1.yw);
  return dot(unnormed_0, unnormed_0) + dot(unnormed_1, unnormed_1);
}
#else
const PART4: u32 = 1u;
fn place(part: u32, first: u32) -> f32 {
  let k4 = first * CHUNK4 + part;
  let unnormed = unnormed4(k4);
  tile_input[part % CHUNK4 * STRIDE + part / CHUNK4] = weighted4(unnormed, k4);
  return dot(unnormed, unnormed);
}
#endif

// The tile's chunk `chunk` and the sum of its elements, written out: software drivers do not unroll loops over
// private arrays.
fn load_input(chunk: u32, x: ptr<function, array<vec4<f32>, 8>>) -> f32 {
  (*x)[0] = tile_input[chunk];
  var total = (*x)[0];
  if (CHUNK4 > 1u) {
    (*x)[1] = tile_input[STRIDE + chunk];
    total += (*x)[1];
  }
  if (CHUNK4 > 2u) {
    (*x)[2] = tile_input[2u * STRIDE + chunk];
    (*x)[3] = tile_input[3u * STRIDE + chunk];
    total += (*x)[2] + (*x)[3];
  }
  if (CHUNK4 > 4u) {
    (*x)[4] = tile_input[4u * STRIDE + chunk];
    (*x)[5] = tile_input[5u * STRIDE + chunk];
    (*x)[6] = tile_input[6u * STRIDE + chunk];
    (*x)[7] = tile_input[7u * STRIDE + chunk];
    total += (*x)[4] + (*x)[5] + (*x)[6] + (*x)[7];
  }
  return dot(total, vec4<f32>(1.0));
}

// The products of the team's `rows`, which must be rows of W, with row `input_row` of the input; every one of the
// team gets them. To be called by the whole workgroup.
fn team_dots(rows: vec4<u32>, input_row: u32, thread: u32) -> vec4<f32> {
  let lane = thread % LANES;
  var next = load_rows(rows, lane);
  prepare_input(input_row, thread);

  var sums = vec4<f32>(0.0);
  var squares = 0.0;
  var x: array<vec4<f32>, 8>;
  for (var tile = 0u; tile < TILES; tile++) {
    let first = tile * TILE_CHUNKS;
    if (tile > 0u) { workgroupBarrier(); }
    let parts = min(TILE_CHUNKS, CHUNKS - first) * CHUNK4 / PART4;
    for (var part = thread; part < parts; part += WORKGROUP) { squares += place(part, first); }
    workgroupBarrier();
    for (var chunk = lane; chunk < TILE_CHUNKS; chunk += LANES) {
      let words = next;
      next = load_rows(rows, first + chunk + LANES);
      if (first + chunk < CHUNKS) {
        let x_sum = load_input(chunk, &x);
        sums.x += dot_words(words.a, &x, x_sum);
        if (ROWS > 1u) { sums.y += dot_words(words.b, &x, x_sum); }
        if (ROWS > 2u) {
          sums.z += dot_words(words.c, &x, x_sum);
          sums.w += dot_words(words.d, &x, x_sum);
        }
      }
    }
  }
  sums = team_sum(sums, thread, LANES);
#ifdef NORM
  sums *= rms_scale(squares, thread);
#endif
  return sums;
}
