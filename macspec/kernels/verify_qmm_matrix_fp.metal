// verify_qmm_matrix_fp: verify_qmm_matrix for the floating-point formats of mx.quantize: value = scale * code, no bias.
//
//   FORMAT 0: mxfp4 (e2m1 values, e8m0 scales, groups of 32)   1: mxfp8 (e4m3, e8m0, 32)   2: nvfp4 (e2m1, e4m3, 16)
//   The body, the guarantees and the launch are those of verify_qmm_matrix.metal; the formats are read as in
//   verify_qmm_fp.metal.
//
//   x [M, K], M <= 8 * TILES, float32, float16 or bfloat16   w uint32 [N, K * BITS / 32]   scales uint8 [N, K / GROUP]
//   rows int32 [1]   y T [M, N]   K a multiple of GROUP; any N
//   template: T type of y; BITS 4 or 8; GROUP; TILES 1 or 2; FORMAT
//@ inputs x w scales rows
//@ outputs y
//@ template T BITS GROUP TILES FORMAT
//@ header verify_qmm_fp
#include <metal_simdgroup_matrix>
//@ body verify_qmm_matrix
