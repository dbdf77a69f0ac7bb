// Sums and maxima over teams of `lanes` neighbouring invocations (a power of two, at most WORKGROUP).
// Every invocation of the workgroup must call; every one gets its team's result.
// Needs: WORKGROUP, alias Acc (f32 or vec4<f32>).
var<workgroup> partial: array<Acc, WORKGROUP>;

#ifdef SUBGROUPS
// A butterfly among SUBGROUP_MIN lanes holds whatever the real size is; workgroup memory does the rest.
fn team_sum(value: Acc, thread: u32, lanes: u32) -> Acc {
  var sum = value;
  let width = min(lanes, SUBGROUP_MIN);
  for (var mask = 1u; mask < width; mask <<= 1u) {
    sum += subgroupShuffleXor(sum, mask);
  }
  if (lanes <= SUBGROUP_MIN) { return sum; }
  if (thread % width == 0u) { partial[thread / width] = sum; }
  workgroupBarrier();
  let parts = lanes / width;
  let first = thread / lanes * parts;
  var total = partial[first];
  for (var part = 1u; part < parts; part++) { total += partial[first + part]; }
  workgroupBarrier();
  return total;
}

fn team_max(value: Acc, thread: u32, lanes: u32) -> Acc {
  var highest = value;
  let width = min(lanes, SUBGROUP_MIN);
  for (var mask = 1u; mask < width; mask <<= 1u) {
    highest = max(highest, subgroupShuffleXor(highest, mask));
  }
  if (lanes <= SUBGROUP_MIN) { return highest; }
  if (thread % width == 0u) { partial[thread / width] = highest; }
  workgroupBarrier();
  let parts = lanes / width;
  let first = thread / lanes * parts;
  var total = partial[first];
  for (var part = 1u; part < parts; part++) { total = max(total, partial[first + part]); }
  workgroupBarrier();
  return total;
}
#else
fn team_sum(value: Acc, thread: u32, lanes: u32) -> Acc {
  let lane = thread % lanes;
  partial[thread] = value;
  for (var stride = lanes >> 1u; stride > 0u; stride >>= 1u) {
    workgroupBarrier();
    if (lane < stride) { partial[thread] += partial[thread + stride]; }
  }
  workgroupBarrier();
  let total = partial[thread - lane];
  workgroupBarrier();
  return total;
}

fn team_max(value: Acc, thread: u32, lanes: u32) -> Acc {
  let lane = thread % lanes;
  partial[thread] = value;
  for (var stride = lanes >> 1u; stride > 0u; stride >>= 1u) {
    workgroupBarrier();
    if (lane < stride) { partial[thread] = max(partial[thread], partial[thread + stride]); }
  }
  workgroupBarrier();
  let total = partial[thread - lane];
  workgroupBarrier();
  return total;
}
#endif
