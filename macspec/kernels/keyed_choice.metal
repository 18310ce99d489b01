// keyed_choice: the target's token in every row, from logits and noise keyed by (seed, absolute position, token id).
//
//   temperature > 0: arg max over i of logits[r, i] / temperature + gumbel(i, position + r, seed), the noise never stored
//   temperature = 0: arg max of logits[r]; the lowest index among equals in both cases; minus infinity is never chosen
//                    unless nothing else is there (then 0)
//   gumbel = -log(-log1p(-u)), u = min((bits + 0.5) / 2^32, 1 - 2^-24), bits = last word of pcg4d(token, position, seed low,
//   seed high) (Jarzynski & Olano, JCGT 9(3), 2020). The bits equal macspec.engine.noise exactly; logarithms may round
//   differently, so a token can differ from the reference op only where its score is within 4e-6 * max(1, |score|) of the best.
//
//   logits [R, V] float32, float16 or bfloat16   key uint32 [3]: position, seed low, seed high   temperature float32 [1]
//   rows int32 [1]: rows from rows[0] on are not read, their token is 0   token uint32 [R]
//   launch: one threadgroup of 32..1024 threads (a multiple of 32) per row; reads R*V logits once, writes R tokens
//   The result depends neither on the schedule nor on the number of threads.
//@ inputs logits key temperature rows
//@ outputs token
//@ template T
//@ header
inline uint keyed_bits(uint x, uint y, uint z, uint w) {
  x = x * 1664525u + 1013904223u; y = y * 1664525u + 1013904223u;
  z = z * 1664525u + 1013904223u; w = w * 1664525u + 1013904223u;
  x += y * w; y += z * x; z += x * y; w += y * z;
  x ^= x >> 16; y ^= y >> 16; z ^= z >> 16; w ^= w >> 16;
  x += y * w; y += z * x; z += x * y; w += y * z;
  return w;
}
inline float keyed_gumbel(uint bits) {
  float u = metal::min((float(bits) + 0.5f) * 2.3283064365386963e-10f, 0.99999994f);
  // Metal has no log1p: log(1 - u) corrected for the rounding of 1 - u, which keeps the small values (the winners) exact.
  float one_minus = 1.0f - u;
  float log1p = one_minus == 1.0f ? -u : -u * (metal::precise::log(one_minus) / (one_minus - 1.0f));
  return -metal::precise::log(-log1p);
}
//@ body
  constexpr float nothing = -3.4e38f;
  constexpr float largest_gumbel = 23.0f;  // -log(2^-33) = 22.87
  threadgroup float shared_best[32];
  threadgroup uint shared_index[32];
  uint row = threadgroup_position_in_grid.x, lane = thread_index_in_simdgroup;
  uint group = simdgroup_index_in_threadgroup, threads = threads_per_threadgroup.x;
  uint vocabulary = logits_shape[1], base = row * vocabulary, position = key[0] + row;
  bool wanted = int(row) < rows[0];
  float heat = temperature[0];

  float best = nothing;
  uint index = 0xffffffffu;
  for (uint i = thread_position_in_threadgroup.x; wanted && i < vocabulary; i += threads) {
    float score = float(logits[base + i]);
    if (heat > 0.0f) {
      score = score / heat;
      if (score + largest_gumbel <= best) continue;  // no noise can make this one win
      score += keyed_gumbel(keyed_bits(i, position, key[1], key[2]));
    }
    if (score > best) { best = score; index = i; }
  }
  for (ushort d = 16; d > 0; d >>= 1) {
    float other = simd_shuffle_xor(best, d);
    uint other_index = simd_shuffle_xor(index, d);
    if (other > best || (other == best && other_index < index)) { best = other; index = other_index; }
  }
  if (lane == 0) { shared_best[group] = best; shared_index[group] = index; }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (group == 0) {
    bool filled = lane < simdgroups_per_threadgroup;
    best = filled ? shared_best[lane] : nothing;
    index = filled ? shared_index[lane] : 0xffffffffu;
    for (ushort d = 16; d > 0; d >>= 1) {
      float other = simd_shuffle_xor(best, d);
      uint other_index = simd_shuffle_xor(index, d);
      if (other > best || (other == best && other_index < index)) { best = other; index = other_index; }
    }
    if (lane == 0) token[row] = index == 0xffffffffu ? 0u : index;
  }
