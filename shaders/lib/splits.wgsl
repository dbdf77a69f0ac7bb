// How the keys that one query sees, its own included, are cut into spans of whole tiles: as many spans as
// there are tiles, at most SPLITS. Needs: SPLITS, TILE, WINDOW (0: all keys), lib/step.
fn first_key() -> u32 {
  if (WINDOW > 0u && step.position >= WINDOW) { return step.position + 1u - WINDOW; }
  return 0u;
}

fn span_keys() -> u32 {
  let tiles = (step.position - first_key()) / TILE + 1u;
  return (tiles + SPLITS - 1u) / SPLITS * TILE;
}

fn used_splits() -> u32 {
  return (step.position - first_key()) / span_keys() + 1u;
}
