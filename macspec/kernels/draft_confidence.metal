// draft_confidence: what the drafter thinks of its own choice, in one pass over the vocabulary.
//
//   token[r]  = arg max of logits[r], the lowest index among equals; minus infinity is an ordinary, hopeless logit
//   stats[r]  = (log-sum-exp, probability of the arg max, gap between the best and second-best logit, entropy in nats)
//
//   logits [R, V] float32, float16 or bfloat16, V >= 2   token uint32 [R]   stats float32 [R, 4]
//   rows   int32 [1]: rows from rows[0] on are not read; their outputs are 0
//   launch: one threadgroup of 32..1024 threads (a multiple of 32) per row
//   reads R*V logits once; accumulates in float32, relative error below 2e-6 at V = 250,000
//   The result does not depend on the schedule; it may depend on the number of threads in the last bits of stats.
//@ inputs logits rows
//@ outputs token stats
//@ template T
//@ header
// One lane's share of a row: best value, its index, second best, sum of e^(x-best), sum of (x-best) e^(x-best).
inline void merge(thread float& best, thread uint& index, thread float& second, thread float& sum, thread float& weighted,
                  float other_best, uint other_index, float other_second, float other_sum, float other_weighted) {
  bool mine = best > other_best || (best == other_best && index < other_index);
  float top = mine ? best : other_best;
  float low = mine ? other_best : best;
  float runner = mine ? second : other_second;
  float a = metal::exp(best - top), b = metal::exp(other_best - top);
  // Each side is rescaled on its own and then added: addition commutes, so both lanes of a pair get the same bits.
  float left = a * metal::fma(best - top, sum, weighted);
  float right = b * metal::fma(other_best - top, other_sum, other_weighted);
  float scaled = a * sum, other_scaled = b * other_sum;
  sum = scaled + other_scaled;
  weighted = left + right;
  second = metal::max(runner, low);
  index = mine ? index : other_index;
  best = top;
}
//@ body
  constexpr float hopeless = -1e30f;  // stands for minus infinity: finite, so that no difference becomes NaN
  constexpr float nothing = -3e38f;   // below every logit
  threadgroup float shared_best[32], shared_second[32], shared_sum[32], shared_weighted[32];
  threadgroup uint shared_index[32];
  uint row = threadgroup_position_in_grid.x, lane = thread_index_in_simdgroup;
  uint group = simdgroup_index_in_threadgroup, threads = threads_per_threadgroup.x;
  uint vocabulary = logits_shape[1], base = row * vocabulary;
  bool wanted = int(row) < rows[0];

  float best = nothing, second = nothing, sum = 0.0f, weighted = 0.0f;
  uint index = 0xffffffffu;
  for (uint i = thread_position_in_threadgroup.x; wanted && i < vocabulary; i += threads) {
    float x = metal::max(float(logits[base + i]), hopeless);
    if (x > best) {
      float shrink = metal::exp(best - x);
      weighted = shrink * metal::fma(best - x, sum, weighted);
      sum = metal::fma(shrink, sum, 1.0f);
      second = best;
      best = x;
      index = i;
    } else {
      float d = x - best, e = metal::exp(d);
      sum += e;
      weighted = metal::fma(d, e, weighted);
      second = metal::max(second, x);
    }
  }
  for (ushort d = 16; d > 0; d >>= 1) {
    merge(best, index, second, sum, weighted, simd_shuffle_xor(best, d), simd_shuffle_xor(index, d), simd_shuffle_xor(second, d),
          simd_shuffle_xor(sum, d), simd_shuffle_xor(weighted, d));
  }
  if (lane == 0) {
    shared_best[group] = best; shared_index[group] = index; shared_second[group] = second;
    shared_sum[group] = sum; shared_weighted[group] = weighted;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (group == 0) {
    bool filled = lane < simdgroups_per_threadgroup;
    best = filled ? shared_best[lane] : nothing;
    index = filled ? shared_index[lane] : 0xffffffffu;
    second = filled ? shared_second[lane] : nothing;
    sum = filled ? shared_sum[lane] : 0.0f;
    weighted = filled ? shared_weighted[lane] : 0.0f;
    for (ushort d = 16; d > 0; d >>= 1) {
      merge(best, index, second, sum, weighted, simd_shuffle_xor(best, d), simd_shuffle_xor(index, d), simd_shuffle_xor(second, d),
            simd_shuffle_xor(sum, d), simd_shuffle_xor(weighted, d));
    }
    if (lane == 0) {
      float log_sum = metal::log(sum);
      token[row] = wanted ? index : 0u;
      stats[row * 4 + 0] = wanted ? best + log_sum : 0.0f;
      stats[row * 4 + 1] = wanted ? 1.0f / sum : 0.0f;
      stats[row * 4 + 2] = wanted ? best - second : 0.0f;
      stats[row * 4 + 3] = wanted ? log_sum - weighted / sum : 0.0f;
    }
  }
