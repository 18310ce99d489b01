// verify_attention_merge: second pass of verify_attention, adds the parts of the context up.
//
//   out[r, h] = sum over parts of partial * exp(maximum - highest) / sum over parts of weights * exp(maximum - highest)
//   in ascending order of the parts; a part without a key the row sees has weight 0 and changes no bit.
//
//   partial float32 [H, M, S, D]   stats float32 [H, M, S, 2]   rows int32 [1]   out T [M, H, D] (rows first: ready for the
//   output projection); rows from rows[0] on are 0 and their partial results are not read
//   launch: one thread per output: grid (D, H, M), threadgroup (D, 1, 1)
//@ inputs partial stats rows
//@ outputs out
//@ template T
//@ header
//@ body
  uint H = partial_shape[0], M = partial_shape[1], S = partial_shape[2], D = partial_shape[3];
  uint d = thread_position_in_grid.x, head = thread_position_in_grid.y, row = thread_position_in_grid.z;
  uint at = (head * M + row) * S;
  float total = 0.0f, weights = 0.0f;
  if (int(row) < rows[0]) {
    float highest = -1e30f;
    for (uint s = 0; s < S; s++) highest = metal::max(highest, stats[(at + s) * 2]);
    for (uint s = 0; s < S; s++) {
      float share = metal::exp(stats[(at + s) * 2] - highest);
      weights = metal::fma(stats[(at + s) * 2 + 1], share, weights);
      total = metal::fma(partial[(at + s) * D + d], share, total);
    }
  }
  out[(row * H + head) * D + d] = T(weights > 0.0f ? total / weights : 0.0f);
