// From qkv [M, (HEADS + 2·KV_HEADS) · HEAD_DIM], per row and head:
//   q = rope(norm(q)) → q [M, HEADS · HEAD_DIM]
//   k = rope(norm(k)), v → the cache [CONTEXT, KV_HEADS · HEAD_DIM] at the row's position
// norm (QK_NORM) is RMSNorm over HEAD_DIM. rope is half-split: the pair (i, i + HEAD_DIM/2) turns by
// rope[m, i] = (cos, sin). Rows past step.rows are padding: their k and v are dropped.
// Dispatch: (HEADS + 2·KV_HEADS, M) workgroups. Caller: nn::Attention.
#import "lib/step.wgsl"
@group(0) @binding(_) var<storage, read> qkv: array<f32>;
@group(0) @binding(_) var<storage, read> rope: array<vec2<f32>>;
#ifdef QK_NORM
@group(0) @binding(_) var<storage, read> q_norm: array<f32>;
@group(0) @binding(_) var<storage, read> k_norm: array<f32>;
#import "lib/reduce.wgsl"
#endif
@group(0) @binding(_) var<storage, read_write> q: array<f32>;
@group(0) @binding(_) var<storage, read_write> k_cache: array<f32>;
@group(0) @binding(_) var<storage, read_write> v_cache: array<f32>;

const HALF: u32 = HEAD_DIM / 2u;
const PAIRS_PER_THREAD: u32 = (HALF + WORKGROUP - 1u) / WORKGROUP;
const ALL_HEADS: u32 = HEADS + 2u * KV_HEADS;

// The factor on element i of a query (kind 0) or key (kind 1) before it turns.
fn norm_factor(kind: u32, i: u32, scale: f32) -> f32 {
#ifdef QK_NORM
  return scale * (select(k_norm[i], q_norm[i], kind == 0u) + WEIGHT_OFFSET);
#else
  return 1.0;
#endif
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let head = group.x;
  let row = group.y;
  let source = (row * ALL_HEADS + head) * HEAD_DIM;
  let kind = select(select(2u, 1u, head < HEADS + KV_HEADS), 0u, head < HEADS);

  var scale = 1.0;
#ifdef QK_NORM
  var squares = 0.0;
  for (var n = 0u; n < PAIRS_PER_THREAD; n++) {
    let i = n * WORKGROUP + thread;
    if (i < HALF) {
      let a = qkv[source + i];
      let b = qkv[source + i + HALF];
      squares += a * a + b * b;
    }
  }
  scale = inverseSqrt(team_sum(squares, thread, WORKGROUP) / f32(HEAD_DIM) + EPS);
#endif

  let position = step.position + row;
  let real = row < step.rows && position < CONTEXT;
  for (var n = 0u; n < PAIRS_PER_THREAD; n++) {
    let i = n * WORKGROUP + thread;
    if (i < HALF) {
      var a = qkv[source + i];
      var b = qkv[source + i + HALF];
      if (kind == 2u) {
        if (real) {
          let target_index = (position * KV_HEADS + head - HEADS - KV_HEADS) * HEAD_DIM + i;
          v_cache[target_index] = a;
          v_cache[target_index + HALF] = b;
        }
      } else {
        a *= norm_factor(kind, i, scale);
        b *= norm_factor(kind, i + HALF, scale);
        let turn = rope[row * HALF + i];
        let turned_a = a * turn.x - b * turn.y;
        let turned_b = b * turn.x + a * turn.y;
        if (kind == 0u) {
          let target_index = (row * HEADS + head) * HEAD_DIM + i;
          q[target_index] = turned_a;
          q[target_index + HALF] = turned_b;
        } else if (real) {
          let target_index = (position * KV_HEADS + head - HEADS) * HEAD_DIM + i;
          k_cache[target_index] = turned_a;
          k_cache[target_index + HALF] = turned_b;
        }
      }
    }
  }
}
