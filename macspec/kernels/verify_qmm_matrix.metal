// verify_qmm_matrix: what verify_qmm computes, with 8x8 matrix products: cheaper from about five rows on, dearer below.
//
//   y = x . dequantised(w)^T for 1..16 rows; affine 2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or 128.
//   * Every packed weight is read once, whatever the row count; 8 rows cost the arithmetic of 8, 16 that of 16.
//   * Row-count-invariant, one row included: an element of a matrix product depends on its own row and column only, K is
//     split over 4 simdgroups independently of the rows and their sums are added in order. Its bits differ from verify_qmm's:
//     where equal bits matter, one of the two runs for every row count.
//   * rows[0] is read on the device: rows from there on are not read and come out as 0; a second matrix of rows is skipped
//     when none of its rows is wanted.
//
//   x [M, K], M <= 8 * TILES, float32, float16 or bfloat16   w uint32 [N, K * BITS / 32]   scales, biases [N, K / GROUP]
//   rows int32 [1]   y T [M, N]   K a multiple of GROUP; any N
//   template: T type of y; BITS; GROUP; TILES 1 or 2
//   launch: 128 threads (4 simdgroups, each a quarter of K) per 16 columns: grid (ceil(N / 16) * 128, 1, 1)
//   error against float64 on the dequantised weights: at most 2^-20 * sum |x w| before rounding to T
//   The order of k inside a product is permuted (the same for x and w), so that a lane unpacks neighbouring values of one word.
//   The lane layout of 8x8 matrices is the one MLX itself relies on; the probe on the device checks it.
//   Loops over registers carry an unroll pragma: an array indexed at run time would leave the registers.
//@ inputs x w scales biases rows
//@ outputs y
//@ template T BITS GROUP TILES
//@ header
#include <metal_simdgroup_matrix>
template <int BITS> inline uint unpack(uint low, uint high, uint shift) {
  uint q = low >> shift;
  if (shift + BITS > 32) q |= high << (32 - shift);
  return q & ((1u << BITS) - 1u);
}
#define VALUE(code) float(code)
//@ body
  constexpr int BLOCKS = 2, PARTS = 4;            // 8-column blocks per simdgroup, simdgroups sharing K
  // Values of one column that a lane takes per step: whole words, and never more than a group.
  constexpr int CHUNK = BITS == 2 || BITS == 6 ? 16 : (BITS == 3 || BITS == 5) ? 32 : 8;
  constexpr int WORDS = CHUNK * BITS / 32;
  threadgroup float shared_sum[PARTS * BLOCKS * TILES * 64];
  uint M = x_shape[0], K = x_shape[1], N = w_shape[0], lane = thread_index_in_simdgroup, part = simdgroup_index_in_threadgroup;
  uint count = metal::min(uint(metal::max(rows[0], 0)), M), chunks = K / CHUNK;
  uint first = threadgroup_position_in_grid.x * (BLOCKS * 8);
  uint row_words = K * BITS / 32, row_groups = K / GROUP;

  // This lane's place in an 8x8 matrix: one row, two neighbouring columns.
  uint quarter = lane / 4, row = (quarter & 4) + ((lane / 2) % 4), column = (quarter & 2) * 2 + (lane % 2) * 2;
  simdgroup_matrix<float, 8, 8> sums[BLOCKS][TILES];
  #pragma clang loop unroll(full)
  for (int b = 0; b < BLOCKS; b++) {
    #pragma clang loop unroll(full)
    for (int t = 0; t < TILES; t++) {
      sums[b][t].thread_elements()[0] = 0.0f;
      sums[b][t].thread_elements()[1] = 0.0f;
    }
  }
  // A step covers four chunks of every column. As the left operand a lane holds chunk column / 2 of column-block row `row`,
  // as the right operand it holds x at chunk row / 2, for x rows column and column + 1.
  for (uint step = part; step * 4 < chunks; step += PARTS) {
    uint chunk = step * 4 + column / 2, x_chunk = step * 4 + row / 2;
    uint packed[BLOCKS][WORDS + 1];
    float scale[BLOCKS], bias[BLOCKS];
    #pragma clang loop unroll(full)
    for (int b = 0; b < BLOCKS; b++) {
      uint n = first + b * 8 + row;
      bool real = n < N && chunk < chunks;
      #pragma clang loop unroll(full)
      for (int i = 0; i < WORDS; i++) packed[b][i] = real ? w[n * row_words + chunk * WORDS + i] : 0u;
      packed[b][WORDS] = 0u;
      uint g = n * row_groups + chunk * CHUNK / GROUP;
#ifdef FLOATS
      scale[b] = real ? float_scale<FORMAT>(scales[g]) : 0.0f;
      bias[b] = 0.0f;
#else
      scale[b] = real ? float(scales[g]) : 0.0f;
      bias[b] = real ? float(biases[g]) : 0.0f;
#endif
    }
    #pragma clang loop unroll(full)
    for (int j = 0; j < CHUNK; j += 2) {
      simdgroup_matrix<float, 8, 8> inputs[TILES];
      uint k = x_chunk * CHUNK + j + row % 2;
      #pragma clang loop unroll(full)
      for (int t = 0; t < TILES; t++) {
        #pragma clang loop unroll(full)
        for (int e = 0; e < 2; e++) {
          uint m = t * 8 + column + e;
          inputs[t].thread_elements()[e] = m < count && x_chunk < chunks ? float(x[m * K + k]) : 0.0f;
        }
      }
      #pragma clang loop unroll(full)
      for (int b = 0; b < BLOCKS; b++) {
        simdgroup_matrix<float, 8, 8> weights;
        #pragma clang loop unroll(full)
        for (int e = 0; e < 2; e++) {
          int bit = (j + e) * BITS;
          uint code = unpack<BITS>(packed[b][bit / 32], packed[b][bit / 32 + 1], bit % 32);
          weights.thread_elements()[e] = metal::fma(scale[b], VALUE(code), bias[b]);
        }
        #pragma clang loop unroll(full)
        for (int t = 0; t < TILES; t++) {
          if (uint(t) * 8 < count) simdgroup_multiply_accumulate(sums[b][t], weights, inputs[t], sums[b][t]);
        }
      }
    }
  }
  #pragma clang loop unroll(full)
  for (int b = 0; b < BLOCKS; b++) {
    #pragma clang loop unroll(full)
    for (int t = 0; t < TILES; t++) {
      uint at = ((part * BLOCKS + b) * TILES + t) * 64 + row * 8 + column;
      shared_sum[at] = sums[b][t].thread_elements()[0];
      shared_sum[at + 1] = sums[b][t].thread_elements()[1];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index_in_threadgroup; i < BLOCKS * TILES * 64; i += PARTS * 32) {
    // i counts (block, tile, column of y, row of y); the parts of K are added in order.
    float total = 0.0f;
    for (int p = 0; p < PARTS; p++) total += shared_sum[p * BLOCKS * TILES * 64 + i];
    uint block = i / (TILES * 64), tile = i / 64 % TILES, n = first + block * 8 + i % 64 / 8, m = tile * 8 + i % 8;
    if (n < N && m < M) y[m * N + n] = T(m < count ? total : 0.0f);
  }
