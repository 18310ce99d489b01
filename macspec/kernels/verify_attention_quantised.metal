// verify_attention_quantised: verify_attention over keys and values kept in 4 or 8 bits, as mlx-lm's QuantizedKVCache does.
//
//   The body, the guarantees and the launch are those of verify_attention.metal: packed keys and values are read once per
//   key-value head for all rows. They are unpacked in float32 into the tile, so nothing is rounded to T on the way, and the
//   tile takes 32 KB at D = 256. The second pass is verify_attention_merge.
//
//   q [1, H, M, D], T = float32, float16 or bfloat16   k, v uint32 [1, Hkv, L, D * BITS / 32]
//   k_scales, k_biases, v_scales, v_biases [1, Hkv, L, D / GROUP]; all read where they lie, the last axis dense
//   rows int32 [1]   bounds int32 [2]   scale float32 [1]   partial, stats: as in verify_attention.metal
//   template: T; D in {64, 96, 128, 256}; SPLIT; BITS 4 or 8; GROUP 32, 64 or 128, a divisor of D
//   launch: as verify_attention
//@ inputs q k k_scales k_biases v v_scales v_biases rows bounds scale
//@ outputs partial stats
//@ template T D SPLIT BITS GROUP
//@ strided
//@ header
#include <metal_simdgroup_matrix>
#define QUANTISED
#define TILED float
//@ body verify_attention
