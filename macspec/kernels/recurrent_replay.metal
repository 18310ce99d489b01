// recurrent_replay: the state of a gated delta-rule layer (GatedDeltaNet) after the accepted rows of a verified block.
//
//   for t < accepted:  S = g_t S;  S = S + k_t ((v_t - S k_t) beta_t)     (Yang et al. 2412.06464, the rule mlx-lm runs)
//   * Bit-equal to running the rows one at a time through this kernel: the state passes through its store type after
//     every row, the reduction over Dk is a written butterfly (1, 2, 4, 8, 16), the one of mlx-lm's own row kernel.
//   * accepted[0] is read on the device; with 0 the state comes back unchanged.
//   * One read and one write of the state, whatever the number of rows; queries and outputs are not needed.
//
//   k [B, T, Hk, Dk]   v [B, T, Hv, Dv]   g float32 [B, T, Hv]   beta [B, T, Hv]   state, new_state StT [B, Hv, Dv, Dk]
//   accepted int32 [1], 0..T   Dk a multiple of 32
//   launch: one simdgroup per state row: grid (32, Dv, B * Hv), threadgroup (32, 4, 1)
//@ inputs k v g beta state accepted
//@ outputs new_state
//@ template StT DK
//@ header
//@ body
  constexpr int PER_LANE = DK / 32;
  uint T = k_shape[1], Hk = k_shape[2], Hv = v_shape[2], Dv = v_shape[3];
  uint n = thread_position_in_grid.z, batch = n / Hv, head = n % Hv, key_head = head / (Hv / Hk);
  uint row = thread_position_in_grid.y, lane = thread_index_in_simdgroup;
  uint at = (n * Dv + row) * DK + lane * PER_LANE;
  float own[PER_LANE];
  #pragma clang loop unroll(full)
  for (int i = 0; i < PER_LANE; i++) own[i] = float(state[at + i]);
  int steps = metal::clamp(accepted[0], 0, int(T));
  for (int t = 0; t < steps; t++) {
    uint token = batch * T + t, key = (token * Hk + key_head) * DK + lane * PER_LANE;
    float decay = float(g[token * Hv + head]), recalled = 0.0f;
    #pragma clang loop unroll(full)
    for (int i = 0; i < PER_LANE; i++) {
      own[i] = own[i] * decay;
      recalled += own[i] * float(k[key + i]);
    }
    for (ushort d = 1; d < 32; d <<= 1) recalled += simd_shuffle_xor(recalled, d);
    float delta = (float(v[(token * Hv + head) * Dv + row]) - recalled) * float(beta[token * Hv + head]);
    #pragma clang loop unroll(full)
    for (int i = 0; i < PER_LANE; i++) own[i] = float(StT(own[i] + float(k[key + i]) * delta));
  }
  #pragma clang loop unroll(full)
  for (int i = 0; i < PER_LANE; i++) new_state[at + i] = StT(own[i]);
