// verify_attention: 1..16 query rows over a long key-value cache, first of two passes: attention over parts of the context.
//
//   Row r of M sits at position L - M + r and sees the keys up to its own (causal tail) and, with a window W > 0, only
//   the last W of those. Part s covers the keys [s * SPLIT, (s + 1) * SPLIT): boundaries are absolute, so that a row's bits
//   depend neither on M nor on how much context follows it. verify_attention_merge adds the parts up.
//   * Keys and values are read once per key-value head for all rows and all heads that share it (grouped-query attention is
//     folded into the matrix rows: query number = row * GQA + head in group), and there is no cliff in rows * GQA.
//   * Query numbers from rows[0] * GQA on are not computed; simdgroups made only of those skip the arithmetic.
//   * Masks are finite and masked weights are exactly 0: a part or tile a row cannot see changes no bit.
//
//   q [1, H, M, D]   k, v [1, Hkv, L, D], all T = float32, float16 or bfloat16, last axis dense, rows aligned to 8 bytes;
//   read where they lie   D in {64, 96, 128, 256}   L >= M, context included
//   rows int32 [1]   bounds int32 [2]: first part, window or 0   scale float32 [1]
//   partial float32 [H, M, S, D] unnormalised sums, stats float32 [H, M, S, 2] (maximum, sum of weights), S parts
//   launch: ceil(M * GQA / 8) simdgroups per (key-value head, part): grid (32 * simdgroups, Hkv, S); at most 1024 threads,
//   at most 512 while M * GQA <= 128; threadgroup memory at most 32 KB
//   Rows of a matrix product are taken to be independent of each other, and the lane layout of 8x8 matrices to be the one
//   MLX itself uses; the probe on the device checks both.
//   Loops over registers carry an unroll pragma: an array indexed at run time would leave the registers.
//@ inputs q k v rows bounds scale
//@ outputs partial stats
//@ template T D SPLIT
//@ strided
//@ header
#include <metal_simdgroup_matrix>
#define TILED T
//@ body
  constexpr int TILE = 32;                        // keys per step: one tile in threadgroup memory, keys first, then values
  constexpr int PAD = sizeof(TILED) == 2 ? 8 : 0;  // spreads the columns over memory banks where there is room
  constexpr int LINE = D + PAD;
  constexpr int FRAGMENTS = D / 8, KEYS = TILE / 8;
  constexpr float hidden = -1e30f;
  threadgroup uint2 storage[TILE * LINE * int(sizeof(TILED)) / 8];  // declared by its widest access, for the alignment
  threadgroup TILED* tile = (threadgroup TILED*)storage;

  uint lane = thread_index_in_simdgroup, group = simdgroup_index_in_threadgroup, thread_index = thread_index_in_threadgroup;
  uint threads = threads_per_threadgroup.x;
  int H = q_shape[1], M = q_shape[2], heads = k_shape[1], L = k_shape[2], S = threadgroups_per_grid.z;
  int gqa = H / heads, kv_head = threadgroup_position_in_grid.y, count = metal::clamp(rows[0], 0, M);
  int part = threadgroup_position_in_grid.z, window = bounds[1];

  // This lane's place in an 8x8 matrix: one row, two neighbouring columns.
  int quarter = lane / 4, row = (quarter & 4) + ((lane / 2) % 4), column = (quarter & 2) * 2 + (lane % 2) * 2;
  int query = group * 8 + row;
  bool wanted = query < count * gqa;
  bool busy = int(group) * 8 < count * gqa;       // the same for the whole simdgroup
  int head = kv_head * gqa + query % gqa, step = query / gqa;
  int last = L - M + step;                        // the last key this row sees
  int earliest = window > 0 ? metal::max(last - window + 1, 0) : 0;

  simdgroup_matrix<float, 8, 8> queries[FRAGMENTS], sums[FRAGMENTS];
  uint q_at = wanted ? uint(head) * uint(q_strides[1]) + uint(step) * uint(q_strides[2]) : 0u;
  #pragma clang loop unroll(full)
  for (int f = 0; f < FRAGMENTS; f++) {
    #pragma clang loop unroll(full)
    for (int e = 0; e < 2; e++) {
      queries[f].thread_elements()[e] = wanted ? float(q[q_at + f * 8 + column + e]) * scale[0] : 0.0f;
      sums[f].thread_elements()[e] = 0.0f;
    }
  }
  float highest = hidden, weights = 0.0f;

  int begin = (bounds[0] + part) * SPLIT, end = metal::min(begin + SPLIT, L - M + count);
  if (window > 0) begin = metal::max(begin, (L - M - window + 1) / TILE * TILE);  // tiles no row can see
  for (int first = begin; first < end; first += TILE) {
    // Keys past the end become zeros, so that 0 * value stays 0.
    threadgroup_barrier(mem_flags::mem_threadgroup);
#ifdef QUANTISED
    // One packed word at a time; neighbouring threads share a scale.
    constexpr int WORDS = D * BITS / 32, PER_WORD = 32 / BITS;
    for (int c = thread_index; c < TILE * WORDS; c += threads) {
      int key = c / WORDS, word = c % WORDS, g = word * PER_WORD / GROUP;
      bool real = first + key < end;
      uint row_at = uint(first + key), head_at = uint(kv_head);
      uint packed = real ? k[head_at * uint(k_strides[1]) + row_at * uint(k_strides[2]) + word] : 0u;
      float s = real ? float(k_scales[head_at * uint(k_scales_strides[1]) + row_at * uint(k_scales_strides[2]) + g]) : 0.0f;
      float b = real ? float(k_biases[head_at * uint(k_biases_strides[1]) + row_at * uint(k_biases_strides[2]) + g]) : 0.0f;
      #pragma clang loop unroll(full)
      for (int j = 0; j < PER_WORD; j++)
        tile[key * LINE + word * PER_WORD + j] = metal::fma(s, float((packed >> (j * BITS)) & ((1u << BITS) - 1u)), b);
    }
#else
    // Bytes are copied eight at a time.
    constexpr int CHUNKS = D * int(sizeof(T)) / 8;
    constexpr int TO_LINE = LINE * int(sizeof(T)) / 8;
    for (int c = thread_index; c < TILE * CHUNKS; c += threads) {
      int key = c / CHUNKS, chunk = c % CHUNKS;
      uint at = uint(kv_head) * uint(k_strides[1]) + uint(first + key) * uint(k_strides[2]);
      storage[key * TO_LINE + chunk] = first + key < end ? ((const device uint2*)(k + at))[chunk] : uint2(0u);
    }
#endif
    threadgroup_barrier(mem_flags::mem_threadgroup);

    simdgroup_matrix<float, 8, 8> scores[KEYS];
    if (busy) {
      #pragma clang loop unroll(full)
      for (int n = 0; n < KEYS; n++) {
        scores[n].thread_elements()[0] = 0.0f;
        scores[n].thread_elements()[1] = 0.0f;
        #pragma clang loop unroll(full)
        for (int f = 0; f < FRAGMENTS; f++) {
          simdgroup_matrix<float, 8, 8> keys;     // transposed: row = dimension, column = key
          keys.thread_elements()[0] = float(tile[(n * 8 + column) * LINE + f * 8 + row]);
          keys.thread_elements()[1] = float(tile[(n * 8 + column + 1) * LINE + f * 8 + row]);
          simdgroup_multiply_accumulate(scores[n], queries[f], keys, scores[n]);
        }
      }
      // Online softmax: a row's scores lie in the four lanes that differ in bits 0 and 3.
      float top = highest;
      #pragma clang loop unroll(full)
      for (int n = 0; n < KEYS; n++) {
        #pragma clang loop unroll(full)
        for (int e = 0; e < 2; e++) {
          int key = first + n * 8 + column + e;
          bool seen = wanted && key <= last && key >= earliest;
          float score = seen ? float(scores[n].thread_elements()[e]) : hidden;
          scores[n].thread_elements()[e] = score;
          top = metal::max(top, score);
        }
      }
      top = metal::max(top, simd_shuffle_xor(top, ushort(1)));
      top = metal::max(top, simd_shuffle_xor(top, ushort(8)));
      float shrink = metal::exp(highest - top), added = 0.0f;
      #pragma clang loop unroll(full)
      for (int n = 0; n < KEYS; n++) {
        #pragma clang loop unroll(full)
        for (int e = 0; e < 2; e++) {
          float score = scores[n].thread_elements()[e];
          float weight = score > hidden ? metal::exp(score - top) : 0.0f;
          scores[n].thread_elements()[e] = weight;
          added += weight;
        }
      }
      added += simd_shuffle_xor(added, ushort(1));
      added += simd_shuffle_xor(added, ushort(8));
      weights = metal::fma(weights, shrink, added);
      highest = top;
      #pragma clang loop unroll(full)
      for (int f = 0; f < FRAGMENTS; f++) {
        sums[f].thread_elements()[0] = sums[f].thread_elements()[0] * shrink;
        sums[f].thread_elements()[1] = sums[f].thread_elements()[1] * shrink;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#ifdef QUANTISED
    for (int c = thread_index; c < TILE * WORDS; c += threads) {
      int key = c / WORDS, word = c % WORDS, g = word * PER_WORD / GROUP;
      bool real = first + key < end;
      uint row_at = uint(first + key), head_at = uint(kv_head);
      uint packed = real ? v[head_at * uint(v_strides[1]) + row_at * uint(v_strides[2]) + word] : 0u;
      float s = real ? float(v_scales[head_at * uint(v_scales_strides[1]) + row_at * uint(v_scales_strides[2]) + g]) : 0.0f;
      float b = real ? float(v_biases[head_at * uint(v_biases_strides[1]) + row_at * uint(v_biases_strides[2]) + g]) : 0.0f;
      #pragma clang loop unroll(full)
      for (int j = 0; j < PER_WORD; j++)
        tile[key * LINE + word * PER_WORD + j] = metal::fma(s, float((packed >> (j * BITS)) & ((1u << BITS) - 1u)), b);
    }
#else
    for (int c = thread_index; c < TILE * CHUNKS; c += threads) {
      int key = c / CHUNKS, chunk = c % CHUNKS;
      uint at = uint(kv_head) * uint(v_strides[1]) + uint(first + key) * uint(v_strides[2]);
      storage[key * TO_LINE + chunk] = first + key < end ? ((const device uint2*)(v + at))[chunk] : uint2(0u);
    }
#endif
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (busy) {
      #pragma clang loop unroll(full)
      for (int f = 0; f < FRAGMENTS; f++) {
        #pragma clang loop unroll(full)
        for (int n = 0; n < KEYS; n++) {
          simdgroup_matrix<float, 8, 8> values;   // row = key, column = dimension
          values.thread_elements()[0] = float(tile[(n * 8 + row) * LINE + f * 8 + column]);
          values.thread_elements()[1] = float(tile[(n * 8 + row) * LINE + f * 8 + column + 1]);
          simdgroup_multiply_accumulate(sums[f], scores[n], values, sums[f]);
        }
      }
    }
  }
  if (wanted) {
    uint at = (uint(head) * M + step) * S + part;
    #pragma clang loop unroll(full)
    for (int f = 0; f < FRAGMENTS; f++) {
      partial[at * D + f * 8 + column] = sums[f].thread_elements()[0];
      partial[at * D + f * 8 + column + 1] = sums[f].thread_elements()[1];
    }
    if (column == 0) { stats[at * 2] = highest; stats[at * 2 + 1] = weights; }
  }
