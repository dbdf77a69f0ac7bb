// From one row of a projection (lib/projection): the norms and turns of its heads, the append of its key and
// value to the caches (lib/kv_cache; with APPEND), and attention of its queries:
//   out[h] = softmax( SCALE · q[h] · K[:, h'] ) · V[:, h'] with h' = h / (HEADS / KV_HEADS)
// over the keys that the row sees, cut over workgroups as lib/splits says. With SPLIT what a workgroup leaves
// is still relative to its highest score: sums [SPLITS, HEADS · HEAD_DIM], and softmax [SPLITS, HEADS] of
// (highest score, sum of weights); lib/combine makes one of them.
//
// A workgroup serves GROUP query heads of one key and value head, four at most, which share every load of a
// key or value: what is computed for several heads is a vec4 over them. Keys come in tiles: a team of LANES
// computes the scores of four keys, then each invocation sums one column of the values. The row's own key
// and value, which the cache does not hold yet, begin the online softmax of the last span.
// Dispatch: (HEADS / GROUP, SPLITS) workgroups. Caller: nn::Attention.
#import "lib/step.wgsl"
#import "lib/projection.wgsl"
#import "lib/reduce.wgsl"
#import "lib/kv_cache.wgsl"
#import "lib/splits.wgsl"
#ifdef APPEND
@group(0) @binding(_) var<storage, read_write> k_cache: array<Cached4>;
@group(0) @binding(_) var<storage, read_write> v_cache: array<Cached4>;
#else
@group(0) @binding(_) var<storage, read> k_cache: array<Cached4>;
@group(0) @binding(_) var<storage, read> v_cache: array<Cached4>;
#endif
@group(0) @binding(_) var<storage, read_write> out: array<vec4<f32>>;
#ifdef SPLIT
@group(0) @binding(_) var<storage, read_write> softmax: array<vec2<f32>>;
#endif

const HEADS_PER_KV: u32 = HEADS / KV_HEADS;
const LANES: u32 = WORKGROUP * 4u / TILE;
const COLUMNS_PER_LANE: u32 = (D4 + LANES - 1u) / LANES;
// Invocations beyond a head's columns sum other keys of the tile.
const PARTS: u32 = WORKGROUP / D4;
const KEYS_PER_PART: u32 = (TILE + PARTS - 1u) / PARTS;
// Where the queries of the second to fourth head lie in the tile; heads beyond GROUP repeat the last.
const Q_1: u32 = min(1u, GROUP - 1u) * D4;
const Q_2: u32 = min(2u, GROUP - 1u) * D4;
const Q_3: u32 = min(3u, GROUP - 1u) * D4;
const LOWEST: f32 = -1e30;
var<workgroup> q_tile: array<vec4<f32>, GROUP * D4>;
var<workgroup> weights: array<vec4<f32>, TILE>;
var<workgroup> part_sums: array<vec4<f32>, WORKGROUP>;

// Four things that are loaded together, so that the loads do not wait for each other.
struct Four { a: Cached4, b: Cached4, c: Cached4, d: Cached4 }

// Of four heads: sums of weights, and of one column of the weighted values.
struct Sums { weight: vec4<f32>, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

// The keys of a tile.
struct Tile { begin: u32, count: u32, kv_head: u32 }

// Where key `key` of a tile lies in the caches; beyond its end the last one.
fn slot(tile: Tile, key: u32) -> u32 {
  return cached_at(tile.begin + min(key, tile.count - 1u), tile.kv_head);
}

// Scores of four keys at column `column`, added to `scores`.
fn add_scores(keys: vec4<u32>, column: u32, scores: ptr<function, array<vec4<f32>, 4>>) {
  let k = Four(k_cache[keys.x + column], k_cache[keys.y + column], k_cache[keys.z + column], k_cache[keys.w + column]);
  (*scores)[0] += products(column, unpack_cached(k.a));
  (*scores)[1] += products(column, unpack_cached(k.b));
  (*scores)[2] += products(column, unpack_cached(k.c));
  (*scores)[3] += products(column, unpack_cached(k.d));
}

// Values at `column` of the part's keys i … i + 3, of which there are KEYS_PER_PART: every PARTS-th of the tile's.
fn load_values(tile: Tile, part: u32, i: u32, column: u32) -> Four {
  return Four(
    v_cache[slot(tile, i * PARTS + part) + column],
    v_cache[slot(tile, (i + 1u) * PARTS + part) + column],
    v_cache[slot(tile, (i + 2u) * PARTS + part) + column],
    v_cache[slot(tile, (i + 3u) * PARTS + part) + column],
  );
}

fn add_value(tile: Tile, key: u32, value: Cached4, sums: ptr<function, Sums>) {
  let weight = select(vec4<f32>(0.0), weights[min(key, TILE - 1u)], key < tile.count);
  let v = unpack_cached(value);
  (*sums).weight += weight;
  (*sums).a += weight.x * v;
  if (GROUP > 1u) { (*sums).b += weight.y * v; }
  if (GROUP > 2u) { (*sums).c += weight.z * v; }
  if (GROUP > 3u) { (*sums).d += weight.w * v; }
}

fn add_values(tile: Tile, part: u32, i: u32, values: Four, sums: ptr<function, Sums>) {
  add_value(tile, i * PARTS + part, values.a, sums);
  add_value(tile, (i + 1u) * PARTS + part, values.b, sums);
  add_value(tile, (i + 2u) * PARTS + part, values.c, sums);
  add_value(tile, (i + 3u) * PARTS + part, values.d, sums);
}

// Mean squares of four heads of the projection.
fn mean_squares(sources: vec4<u32>, thread: u32) -> vec4<f32> {
  var squares = vec4<f32>(0.0);
#ifdef NORMS
  if (thread < D4) {
    let a = raw4(sources.x, thread);
    let b = raw4(sources.y, thread);
    let c = raw4(sources.z, thread);
    let d = raw4(sources.w, thread);
    squares = vec4<f32>(dot(a, a), dot(b, b), dot(c, c), dot(d, d));
  }
  squares = team_sum(squares, thread, WORKGROUP) / f32(HEAD_DIM);
#endif
  return squares;
}

// A key's products with a column of the four heads' queries.
fn products(column: u32, k: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(
    dot(q_tile[column], k),
    dot(q_tile[Q_1 + column], k),
    dot(q_tile[Q_2 + column], k),
    dot(q_tile[Q_3 + column], k),
  );
}

// The sum of the parts' values at an invocation's column, for the invocations that have one.
fn sum_of_parts(value: vec4<f32>, thread: u32) -> vec4<f32> {
  if (PARTS == 1u) { return value; }
  part_sums[thread] = value;
  workgroupBarrier();
  var sum = vec4<f32>(0.0);
  if (thread < D4) {
    for (var part = 0u; part < PARTS; part++) { sum += part_sums[part * D4 + thread]; }
  }
  workgroupBarrier();
  return sum;
}

fn write_head(target_head: u32, sum: vec4<f32>, highest: f32, total: f32, thread: u32) {
  if (thread >= D4) { return; }
#ifdef SPLIT
  out[target_head * D4 + thread] = sum;
  if (thread == 0u) { softmax[target_head] = vec2<f32>(highest, total); }
#else
  out[target_head * D4 + thread] = sum / max(total, 1e-30);
#endif
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first_head = group.x * GROUP;
  let kv_head = first_head / HEADS_PER_KV;
  let split = group.y;
  let used = used_splits();
  if (split >= used) { return; }
  let begin = first_key() + split * span_keys();
  // Keys of the span that the cache holds.
  var end = min(begin + span_keys(), step.position + 1u);
#ifdef APPEND
  end = min(end, step.position);
#endif

  let heads = min(vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(GROUP - 1u)) + vec4<u32>(first_head);
  let q_mean_squares = mean_squares(heads * HEAD_DIM, thread);
  if (thread < D4) {
    for (var n = 0u; n < GROUP; n++) {
      q_tile[n * D4 + thread] = SCALE * turned4(true, heads[n] * HEAD_DIM, 0u, thread, q_mean_squares[n]);
    }
  }
  workgroupBarrier();

  var highest = vec4<f32>(LOWEST);
  var sums = Sums();
#ifdef APPEND
  if (split + 1u == used) {
    let k_source = (HEADS + kv_head) * HEAD_DIM;
    let v_source = select(k_source + KV_HEADS * HEAD_DIM, k_source, KEYS_AS_VALUES);
    let squares = mean_squares(vec4<u32>(k_source, v_source, k_source, v_source), thread);
    var score = vec4<f32>(0.0);
    if (thread < D4) {
      let k = pack_cached(turned4(false, k_source, 0u, thread, squares.x));
      let v = pack_cached(value4(v_source, thread, squares.y));
      if (first_head % HEADS_PER_KV == 0u) {
        let slot = cached_at(step.position, kv_head) + thread;
        k_cache[slot] = k;
        v_cache[slot] = v;
      }
      score = products(thread, unpack_cached(k));
      let own = unpack_cached(v);
      sums = Sums(vec4<f32>(1.0), own, own, own, own);
    }
    highest = team_sum(score, thread, WORKGROUP);
  }
#endif

  let lane = thread % LANES;
  let team = thread / LANES;
  let column = thread % D4;
  let part = thread / D4;
  for (var tile_begin = begin; tile_begin < end; tile_begin += TILE) {
    let tile = Tile(tile_begin, min(TILE, end - tile_begin), kv_head);
    // The first values are on their way while the scores are computed.
    let values_0 = load_values(tile, part, 0u, column);
    var values_4: Four;
    if (KEYS_PER_PART > 4u) { values_4 = load_values(tile, part, 4u, column); }

    // Keys past the end are computed as the last one, and their scores dropped.
    let n = team * 4u;
    let keys = vec4<u32>(slot(tile, n), slot(tile, n + 1u), slot(tile, n + 2u), slot(tile, n + 3u));
    var scores = array<vec4<f32>, 4>();
    for (var i = 0u; i < COLUMNS_PER_LANE; i += 2u) {
      let k_column = i * LANES + lane;
      if (D4 % LANES == 0u || k_column < D4) { add_scores(keys, k_column, &scores); }
      if (i + 1u < COLUMNS_PER_LANE && (D4 % LANES == 0u || k_column + LANES < D4)) {
        add_scores(keys, k_column + LANES, &scores);
      }
    }
    for (var key = 0u; key < 4u; key++) {
      let score = team_sum(scores[key], thread, LANES);
      if (lane == 0u) { weights[n + key] = score; }
    }
    workgroupBarrier();

    var score = vec4<f32>(LOWEST);
    if (thread < tile.count) { score = weights[thread]; }
    let tile_highest = max(highest, team_max(score, thread, WORKGROUP));
    let keep = exp(max(highest - tile_highest, vec4<f32>(-80.0)));
    highest = tile_highest;
    if (thread < tile.count) { weights[thread] = exp(max(score - highest, vec4<f32>(-80.0))); }
    workgroupBarrier();

    sums = Sums(sums.weight * keep, sums.a * keep.x, sums.b * keep.y, sums.c * keep.z, sums.d * keep.w);
    if (part < PARTS) {
      add_values(tile, part, 0u, values_0, &sums);
      if (KEYS_PER_PART > 4u) { add_values(tile, part, 4u, values_4, &sums); }
      for (var i = 8u; i < KEYS_PER_PART; i += 8u) {
        let near = load_values(tile, part, i, column);
        let far = load_values(tile, part, i + 4u, column);
        add_values(tile, part, i, near, &sums);
        add_values(tile, part, i + 4u, far, &sums);
      }
    }
    workgroupBarrier();
  }

  let totals = sum_of_parts(sums.weight, thread);
  let first_target = split * HEADS + first_head;
  write_head(first_target, sum_of_parts(sums.a, thread), highest.x, totals.x, thread);
  if (GROUP > 1u) { write_head(first_target + 1u, sum_of_parts(sums.b, thread), highest.y, totals.y, thread); }
  if (GROUP > 2u) { write_head(first_target + 2u, sum_of_parts(sums.c, thread), highest.z, totals.z, thread); }
  if (GROUP > 3u) { write_head(first_target + 3u, sum_of_parts(sums.d, thread), highest.w, totals.w, thread); }
}
