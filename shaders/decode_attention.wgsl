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
const VISIBLE: u32 = select(SLOTS, min(SLOTS, WINDOW), WINDOW > 0u);
const TILES: u32 = (VISIBLE + TILE - 1u) / TILE;
const TILES_PER_SPAN: u32 = (TILES + SPLITS - 1u) / SPLITS;
// Where the queries of the second to fourth head lie in the tile; heads beyond GROUP repeat the last.
const Q_1: u32 = min(1u, GROUP - 1u) * D4;
const Q_2: u32 = min(2u, GROUP - 1u) * D4;
const Q_3: u32 = min(3u, GROUP - 1u) * D4;
const LOWEST: f32 = -1e30;
var<workgroup> q_tile: array<vec4<f32>, GROUP * D4>;
var<workgroup> weights: array<vec4<f32>, TILE>;
var<workgroup> part_sums: array<vec4<f32>, WORKGROUP>;

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
  var weight_sum = vec4<f32>(0.0);
  // Sums of this invocation's column of the values, one for each head.
  var sums = array<vec4<f32>, 4>();
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
      weight_sum = vec4<f32>(1.0);
      for (var n = 0u; n < 4u; n++) { sums[n] = unpack_cached(v); }
    }
    highest = team_sum(score, thread, WORKGROUP);
  }
#endif

  let lane = thread % LANES;
  let team = thread / LANES;
  let column = thread % D4;
  let part = thread / D4;
  for (var tile = 0u; tile < TILES_PER_SPAN; tile++) {
    let tile_begin = begin + tile * TILE;
    if (tile_begin >= end) { break; }
    let count = min(TILE, end - tile_begin);

    // Keys past the end are computed as the last one, and their scores dropped.
    let n = team * 4u;
    let k_0 = cached_at(tile_begin + min(n, count - 1u), kv_head);
    let k_1 = cached_at(tile_begin + min(n + 1u, count - 1u), kv_head);
    let k_2 = cached_at(tile_begin + min(n + 2u, count - 1u), kv_head);
    let k_3 = cached_at(tile_begin + min(n + 3u, count - 1u), kv_head);
    var scores = array<vec4<f32>, 4>();
    for (var i = 0u; i < COLUMNS_PER_LANE; i++) {
      let k_column = i * LANES + lane;
      if (k_column < D4) {
        scores[0] += products(k_column, unpack_cached(k_cache[k_0 + k_column]));
        scores[1] += products(k_column, unpack_cached(k_cache[k_1 + k_column]));
        scores[2] += products(k_column, unpack_cached(k_cache[k_2 + k_column]));
        scores[3] += products(k_column, unpack_cached(k_cache[k_3 + k_column]));
      }
    }
    for (var key = 0u; key < 4u; key++) {
      let score = team_sum(scores[key], thread, LANES);
      if (lane == 0u) { weights[n + key] = score; }
    }
    workgroupBarrier();

    var score = vec4<f32>(LOWEST);
    if (thread < count) { score = weights[thread]; }
    let tile_highest = max(highest, team_max(score, thread, WORKGROUP));
    let keep = exp(max(highest - tile_highest, vec4<f32>(-80.0)));
    highest = tile_highest;
    if (thread < count) { weights[thread] = exp(max(score - highest, vec4<f32>(-80.0))); }
    workgroupBarrier();

    weight_sum *= keep;
    sums[0] *= keep.x;
    sums[1] *= keep.y;
    sums[2] *= keep.z;
    sums[3] *= keep.w;
    if (part < PARTS) {
      for (var i = 0u; i < KEYS_PER_PART; i++) {
        let key = i * PARTS + part;
        if (key >= count) { break; }
        let weight = weights[key];
        let v = unpack_cached(v_cache[cached_at(tile_begin + key, kv_head) + column]);
        weight_sum += weight;
        sums[0] += weight.x * v;
        sums[1] += weight.y * v;
        sums[2] += weight.z * v;
        sums[3] += weight.w * v;
      }
    }
    workgroupBarrier();
  }

  let totals = sum_of_parts(weight_sum, thread);
  let first_target = split * HEADS + first_head;
  for (var n = 0u; n < GROUP; n++) {
    write_head(first_target + n, sum_of_parts(sums[n], thread), highest[n], totals[n], thread);
  }
}
