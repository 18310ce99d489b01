// verify_qmm: y = x . dequantised(w)^T for the 1..16 rows of a verification pass.
//
//   Affine weights as mx.quantize packs them, 2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or 128: value = scale * q + bias.
//   * Every packed weight is read once, whatever the row count (stock MLX reads them once per tile of 5 rows); a scale or bias
//     only by the neighbouring lanes of one simdgroup that work on its group in the same step.
//   * Row-count-invariant: the bits of a row depend neither on how many rows run nor on the row's place, one row included.
//     K is split over lanes independently of the rows, the sums are explicit fused multiply-adds in float32 in a written
//     order, and lanes are added by a written butterfly (simd_sum has no specified order).
//   * rows[0] is read on the device: rows from there on are not computed, their outputs are 0.
//
//   x [M, K], M <= ROWS, float32, float16 or bfloat16   w uint32 [N, K * BITS / 32]   scales, biases [N, K / GROUP]
//   rows int32 [1]   y T [M, N]   K a multiple of GROUP; any N
//   template: T type of y; BITS; GROUP; ROWS in {1, 2, 4, 8, 16}, a capacity that does not change the bits
//   launch: 64 threads (2 simdgroups of OUTPUTS = 4 columns each) per 8 columns: grid (ceil(N / 8) * 64, 1, 1)
//   error against float64 on the dequantised weights: at most 2^-20 * sum |x w| before rounding to T; no threadgroup memory
//   Loops over registers carry an unroll pragma: an array indexed at run time would leave the registers.
//@ inputs x w scales biases rows
//@ outputs y
//@ template T BITS GROUP ROWS
//@ header
// Value j of a packed run: bits [j * BITS, (j + 1) * BITS) of a little-endian stream; it may cross a word.
template <int BITS> inline uint unpack(uint low, uint high, uint shift) {
  uint q = low >> shift;
  if (shift + BITS > 32) q |= high << (32 - shift);
  return q & ((1u << BITS) - 1u);
}
#define VALUE(code) float(code)
//@ body
  constexpr int OUTPUTS = 4;
  // Values one lane takes per step: whole words, and never more than a group.
  constexpr int STEP = BITS == 8 ? 8 : (BITS == 3 || BITS == 5) ? 32 : 16;
  constexpr int WORDS = STEP * BITS / 32;
  uint M = x_shape[0], K = x_shape[1], N = w_shape[0], lane = thread_index_in_simdgroup;
  uint count = metal::min(uint(metal::max(rows[0], 0)), M);
  uint first = (threadgroup_position_in_grid.x * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup) * OUTPUTS;
  uint row_words = K * BITS / 32, row_groups = K / GROUP;

  float sum[OUTPUTS][ROWS];
  #pragma clang loop unroll(full)
  for (int o = 0; o < OUTPUTS; o++)
    #pragma clang loop unroll(full)
    for (int m = 0; m < ROWS; m++) sum[o][m] = 0.0f;

  for (uint step = lane; step < K / STEP; step += 32) {
    uint packed[OUTPUTS][WORDS + 1];
    float scale[OUTPUTS], bias[OUTPUTS];
    #pragma clang loop unroll(full)
    for (int o = 0; o < OUTPUTS; o++) {
      bool real = first + o < N;  // columns past the end compute zeros and read nothing
      #pragma clang loop unroll(full)
      for (int i = 0; i < WORDS; i++) packed[o][i] = real ? w[(first + o) * row_words + step * WORDS + i] : 0u;
      packed[o][WORDS] = 0u;
      uint g = (first + o) * row_groups + step * STEP / GROUP;
#ifdef FLOATS
      scale[o] = real ? float_scale<FORMAT>(scales[g]) : 0.0f;
      bias[o] = 0.0f;
#else
      scale[o] = real ? float(scales[g]) : 0.0f;
      bias[o] = real ? float(biases[g]) : 0.0f;
#endif
    }
    // Eight values at a time, so that few weights are in registers at once.
    #pragma clang loop unroll(full)
    for (int part = 0; part < STEP; part += 8) {
      float weight[OUTPUTS][8];
      #pragma clang loop unroll(full)
      for (int o = 0; o < OUTPUTS; o++) {
        #pragma clang loop unroll(full)
        for (int j = 0; j < 8; j++) {
          int bit = (part + j) * BITS;
          uint code = unpack<BITS>(packed[o][bit / 32], packed[o][bit / 32 + 1], bit % 32);
          weight[o][j] = metal::fma(scale[o], VALUE(code), bias[o]);
        }
      }
      #pragma clang loop unroll(full)
      for (int m = 0; m < ROWS; m++) {
        if (uint(m) < count) {
          uint at = m * K + step * STEP + part;
          #pragma clang loop unroll(full)
          for (int j = 0; j < 8; j++) {
            float value = float(x[at + j]);
            #pragma clang loop unroll(full)
            for (int o = 0; o < OUTPUTS; o++) sum[o][m] = metal::fma(weight[o][j], value, sum[o][m]);
          }
        }
      }
    }
  }
  #pragma clang loop unroll(full)
  for (int m = 0; m < ROWS; m++) {
    #pragma clang loop unroll(full)
    for (int o = 0; o < OUTPUTS; o++) {
      float total = sum[o][m];
      if (uint(m) < count) {
        for (ushort d = 16; d > 0; d >>= 1) total += simd_shuffle_xor(total, d);
      }
      if (lane == 0 && uint(m) < M && first + o < N) y[m * N + first + o] = T(total);
    }
  }
