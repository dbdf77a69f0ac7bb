// The heads of a projection's rows [q | k | v], [q | k] (values are the raw keys) or [q] (another layer's
// cache is read): their RMSNorms over HEAD_DIM, and the rotary embedding of queries and keys. It is
// half-split: the pair (i, i + HEAD_DIM/2) turns by rope[m, i] = (cos, sin).
// Needs: HEADS, KV_HEADS, HEAD_DIM, PROJECTED (heads of a row), Q_EPS and Q_OFFSET (with Q_NORM), K_EPS and
// K_OFFSET (with K_NORM), VALUE_NORM, V_EPS, WORKGROUP; with NORMS lib/reduce.
@group(0) @binding(_) var<storage, read> projected: array<f32>;
@group(0) @binding(_) var<storage, read> rope: array<vec2<f32>>;
#ifdef Q_NORM
@group(0) @binding(_) var<storage, read> q_norm: array<f32>;
#endif
#ifdef K_NORM
@group(0) @binding(_) var<storage, read> k_norm: array<f32>;
#endif
#ifdef NORMS
#import "lib/reduce.wgsl"
#endif

const HALF: u32 = HEAD_DIM / 2u;
const D4: u32 = HEAD_DIM / 4u;

fn raw4(source: u32, column: u32) -> vec4<f32> {
  let i = source + column * 4u;
  return vec4<f32>(projected[i], projected[i + 1u], projected[i + 2u], projected[i + 3u]);
}

// What the norm of a query or key multiplies its element i by.
fn norm_factor(is_query: bool, i: u32, mean_square: f32) -> f32 {
  var factor = 1.0;
#ifdef Q_NORM
  if (is_query) { factor = inverseSqrt(mean_square + Q_EPS) * (q_norm[i] + Q_OFFSET); }
#endif
#ifdef K_NORM
  if (!is_query) { factor = inverseSqrt(mean_square + K_EPS) * (k_norm[i] + K_OFFSET); }
#endif
  return factor;
}

// Element i of the query or key at `source`, behind its norm and its turn as row `row`.
fn turned(is_query: bool, source: u32, row: u32, i: u32, mean_square: f32) -> f32 {
  let lower = i < HALF;
  let pair = select(i - HALF, i + HALF, lower);
  let turn = rope[row * HALF + min(i, pair)];
  let value = projected[source + i] * norm_factor(is_query, i, mean_square);
  let other = projected[source + pair] * norm_factor(is_query, pair, mean_square);
  return value * turn.x + select(other, -other, lower) * turn.y;
}

// Its elements 4·column … 4·column+3.
fn turned4(is_query: bool, source: u32, row: u32, column: u32, mean_square: f32) -> vec4<f32> {
  var result: vec4<f32>;
  for (var n = 0u; n < 4u; n++) { result[n] = turned(is_query, source, row, column * 4u + n, mean_square); }
  return result;
}

fn value4(source: u32, column: u32, mean_square: f32) -> vec4<f32> {
  let value = raw4(source, column);
  if (VALUE_NORM) { return value * inverseSqrt(mean_square + V_EPS); }
  return value;
}
