// verify_moe_qmm: verify_qmm for routed experts; rows that chose the same expert share one read of it.
//
//   y[a] = x[a or a / TOPK] . dequantised(w[ids[a]])^T for every assignment a = row * TOPK + slot.
//   * An expert's weights are read once per launch, however many rows chose it (stock MLX reads them once per row).
//   * Row-count-invariant: the bits of an assignment do not depend on the others; same arithmetic as verify_qmm.
//   * Assignments of rows from rows[0] on are not computed, their outputs are 0.
//
//   x [R, K], or [R * TOPK, K] with PER_SLOT (the down projection), float32, float16 or bfloat16   ids uint32 [R * TOPK]
//   w uint32 [E, N, K * BITS / 32]   scales, biases [E, N, K / GROUP]   rows int32 [1]   y T [R * TOPK, N]
//   ROWS <= 16 bounds how many assignments share an expert: R rows whose experts are distinct need ROWS >= R; affine 2, 3, 4, 5, 6, 8 bits, groups 32, 64, 128
//   launch: 64 threads per 8 columns and assignment: grid (ceil(N / 8) * 64, R * TOPK, 1). The first assignment of an expert
//   computes all of them; the threadgroups of the others end at once.
//   Loops over registers carry an unroll pragma: an array indexed at run time would leave the registers.
//@ inputs x ids w scales biases rows
//@ outputs y
//@ template T BITS GROUP ROWS TOPK PER_SLOT
//@ header
template <int BITS> inline uint unpack(uint low, uint high, uint shift) {
  uint q = low >> shift;
  if (shift + BITS > 32) q |= high << (32 - shift);
  return q & ((1u << BITS) - 1u);
}
#define VALUE(code) float(code)
//@ body
  constexpr int OUTPUTS = 4;
  constexpr int STEP = BITS == 8 ? 8 : (BITS == 3 || BITS == 5) ? 32 : 16;
  constexpr int WORDS = STEP * BITS / 32;
  threadgroup uint shared_member[ROWS];
  threadgroup uint shared_count, shared_leads;
  uint K = x_shape[1], N = w_shape[1], lane = thread_index_in_simdgroup, a = threadgroup_position_in_grid.y;
  uint total = metal::min(uint(metal::max(rows[0], 0)) * TOPK, uint(ids_shape[0]));
  uint first = (threadgroup_position_in_grid.x * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup) * OUTPUTS;
  uint expert = ids[a];

  // Who else wants this expert, in ascending order? The earliest does the work.
  if (simdgroup_index_in_threadgroup == 0) {
    uint found = 0, earliest = 0xffffffffu;
    for (uint base = 0; base < total; base += 32) {
      uint i = base + lane;
      bool same = i < total && ids[i] == expert;
      uint place = found + simd_prefix_exclusive_sum(same ? 1u : 0u);
      if (same && place < ROWS) shared_member[place] = i;
      found += simd_sum(same ? 1u : 0u);
      earliest = metal::min(earliest, simd_min(same ? i : 0xffffffffu));
    }
    if (lane == 0) { shared_count = metal::min(found, uint(ROWS)); shared_leads = a < total && earliest == a ? 1u : 0u; }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint count = shared_count;
  if (a >= total) {  // a row beyond the depth
    if (lane < OUTPUTS && first + lane < N) y[a * N + first + lane] = T(0.0f);
    return;
  }
  if (shared_leads == 0u) return;  // the whole threadgroup, after its only barrier

  uint member[ROWS], source[ROWS];
  #pragma clang loop unroll(full)
  for (int m = 0; m < ROWS; m++) {
    member[m] = uint(m) < count ? shared_member[m] : 0u;
    source[m] = (PER_SLOT ? member[m] : member[m] / TOPK) * K;
  }
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
      bool real = first + o < N;
      uint column = expert * N + first + o;
      #pragma clang loop unroll(full)
      for (int i = 0; i < WORDS; i++) packed[o][i] = real ? w[column * row_words + step * WORDS + i] : 0u;
      packed[o][WORDS] = 0u;
      uint g = column * row_groups + step * STEP / GROUP;
#ifdef FLOATS
      scale[o] = real ? float_scale<FORMAT>(scales[g]) : 0.0f;
      bias[o] = 0.0f;
#else
      scale[o] = real ? float(scales[g]) : 0.0f;
      bias[o] = real ? float(biases[g]) : 0.0f;
#endif
    }
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
          uint at = source[m] + step * STEP + part;
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
      float result = sum[o][m];
      if (uint(m) < count) {
        for (ushort d = 16; d > 0; d >>= 1) result += simd_shuffle_xor(result, d);
        if (lane == 0 && first + o < N) y[member[m] * N + first + o] = T(result);
      }
    }
  }
