// accept_prefix: how much of a verified draft the target agrees with, without asking the host.
//
//   accepted  = length of the longest prefix of draft[:depth] that equals choice, cut at the first end-of-sequence token
//   tokens    = the committed tokens choice[:committed], padded with -1; committed = accepted + 1 (the bonus token), or up to
//               and including the first end-of-sequence token
//   summary   = (accepted, committed, last committed token = the next anchor, 1 if an end-of-sequence token was reached)
//
//   draft int32 [D >= 1], only draft[:depth] is looked at   choice int32 [R], R > depth, R <= 32   depth int32 [1], 0..31
//   eos int32 [E >= 1], unused entries negative   tokens int32 [R]   summary int32 [4]
//   launch: one simdgroup (32 threads)
//@ inputs draft choice depth eos
//@ outputs tokens summary
//@ template
//@ header
//@ body
  int lane = int(thread_index_in_simdgroup), drafted = depth[0], rows = choice_shape[0], endings = eos_shape[0];
  int mismatch = lane < drafted && draft[lane] != choice[lane] ? lane : drafted;
  int accepted = simd_min(mismatch);
  bool mine = lane <= accepted;
  int token = mine ? choice[lane] : -1;
  bool ends = false;
  for (int i = 0; i < endings; i++) ends = ends || (mine && token >= 0 && token == eos[i]);
  int ending = simd_min(ends ? lane : 32);
  int committed = metal::min(accepted, ending) + 1;
  if (lane < rows) tokens[lane] = lane < committed ? token : -1;
  if (lane == committed - 1) {
    summary[0] = metal::min(accepted, committed);
    summary[1] = committed;
    summary[2] = token;
    summary[3] = ending < 32 ? 1 : 0;
  }
