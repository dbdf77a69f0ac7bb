// Keys or values of past positions, [SLOTS, KV_HEADS · HEAD_DIM], as f32 or as halves, two to a word
// (CACHE_F16); core builtins pack them, so shader-f16 is not needed. Position p lies in slot p % SLOTS: a
// cache that holds fewer positions than the context is a ring.
#ifdef CACHE_F16
alias Cached4 = vec2<u32>;

fn unpack_cached(words: Cached4) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

// Clamped, since what a value beyond the halves' range becomes is left open.
fn pack_cached(value: vec4<f32>) -> Cached4 {
  let finite = clamp(value, vec4<f32>(-65504.0), vec4<f32>(65504.0));
  return vec2<u32>(pack2x16float(finite.xy), pack2x16float(finite.zw));
}
#else
alias Cached4 = vec4<f32>;

fn unpack_cached(value: Cached4) -> vec4<f32> { return value; }

fn pack_cached(value: vec4<f32>) -> Cached4 { return value; }
#endif

// Where a head's vector of position `position` begins, in vec4s.
fn cached_at(position: u32, kv_head: u32) -> u32 {
  return (position % SLOTS * KV_HEADS + kv_head) * (HEAD_DIM / 4u);
}
