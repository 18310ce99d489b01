// verify_moe_qmm_fp: verify_moe_qmm for the floating-point formats of mx.quantize: value = scale * code, no bias.
//
//   FORMAT 0: mxfp4 (e2m1 values, e8m0 scales, groups of 32)   1: mxfp8 (e4m3, e8m0, 32)   2: nvfp4 (e2m1, e4m3, 16)
//   The body, the guarantees and the launch are those of verify_moe_qmm.metal; the formats are read as in
//   verify_qmm_fp.metal.
//
//   x [R, K], or [R * TOPK, K] with PER_SLOT, float32, float16 or bfloat16   ids uint32 [R * TOPK]
//   w uint32 [E, N, K * BITS / 32]   scales uint8 [E, N, K / GROUP]   rows int32 [1]   y T [R * TOPK, N]
//   template: those of verify_moe_qmm.metal, and FORMAT
//@ inputs x ids w scales rows
//@ outputs y
//@ template T BITS GROUP ROWS TOPK PER_SLOT FORMAT
//@ header verify_qmm_fp
//@ body verify_moe_qmm
