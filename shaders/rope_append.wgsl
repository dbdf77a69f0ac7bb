// From a projection [M, PROJECTED · HEAD_DIM], per row and head (lib/projection):
//   q = rope(norm(q)) → q [M, HEADS · HEAD_DIM]
//   k = rope(norm(k)), v = norm(v) → the caches (lib/kv_cache) at the row's position
// Without v heads (KEYS_AS_VALUES) v is the norm of the raw k; without APPEND there are queries alone. Rows
// past step.rows are padding: their k and v are dropped.
// Dispatch: (PROJECTED, M) workgroups. Caller: nn::Attention.
#ifdef APPEND
#import "lib/step.wgsl"
#endif
#import "lib/projection.wgsl"
#import "lib/kv_cache.wgsl"
@group(0) @binding(_) var<storage, read_write> q: array<vec4<f32>>;
#ifdef APPEND
@group(0) @binding(_) var<storage, read_write> k_cache: array<Cached4>;
@group(0) @binding(_) var<storage, read_write> v_cache: array<Cached4>;
#endif

const COLUMNS_PER_THREAD: u32 = (D4 + WORKGROUP - 1u) / WORKGROUP;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let head = group.x;
  let row = group.y;
  let source = (row * PROJECTED + head) * HEAD_DIM;

  var mean_square = 0.0;
#ifdef NORMS
  var squares = 0.0;
  for (var n = 0u; n < COLUMNS_PER_THREAD; n++) {
    let column = n * WORKGROUP + thread;
    if (column < D4) { let value = raw4(source, column); squares += dot(value, value); }
  }
  mean_square = team_sum(squares, thread, WORKGROUP) / f32(HEAD_DIM);
#endif

  for (var n = 0u; n < COLUMNS_PER_THREAD; n++) {
    let column = n * WORKGROUP + thread;
    if (column < D4) {
      if (head < HEADS) { q[(row * HEADS + head) * D4 + column] = turned4(true, source, row, column, mean_square); }
#ifdef APPEND
      if (head >= HEADS && row < step.rows) {
        let slot = cached_at(step.position + row, (head - HEADS) % KV_HEADS) + column;
        let is_key = head < HEADS + KV_HEADS;
        if (is_key) { k_cache[slot] = pack_cached(turned4(false, source, row, column, mean_square)); }
        if (!is_key || KEYS_AS_VALUES) { v_cache[slot] = pack_cached(value4(source, column, mean_square)); }
      }
#endif
    }
  }
}
