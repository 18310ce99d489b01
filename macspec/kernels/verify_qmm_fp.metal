// verify_qmm_fp: verify_qmm for the floating-point formats of mx.quantize: value = scale * code, no bias.
//
//   FORMAT 0: mxfp4 (e2m1 values, e8m0 scales, groups of 32)   1: mxfp8 (e4m3, e8m0, 32)   2: nvfp4 (e2m1, e4m3, 16)
//   The body, the guarantees and the launch are those of verify_qmm.metal: every weight is read once, a row's bits do not
//   depend on the rows beside it, rows from rows[0] on are not computed. scale * code is exact in float32.
//
//   x [M, K], M <= ROWS, float32, float16 or bfloat16   w uint32 [N, K * BITS / 32]   scales uint8 [N, K / GROUP]
//   rows int32 [1]   y T [M, N]   K a multiple of GROUP; any N
//   template: T type of y; BITS 4 or 8; GROUP; ROWS in {1, 2, 4, 8, 16}; FORMAT
//   error against float64 on the dequantised weights: at most 2^-20 * sum |x w| before rounding to T; no threadgroup memory
//@ inputs x w scales rows
//@ outputs y
//@ template T BITS GROUP ROWS FORMAT
//@ header
#define FLOATS
template <int BITS> inline uint unpack(uint low, uint high, uint shift) {
  return (low >> shift) & ((1u << BITS) - 1u);
}
// No subnormal float32 is ever made: whether a GPU keeps those is not certain.
inline float e4m3(uint code) {
  uint exponent = (code >> 3) & 15u, mantissa = code & 7u;
  float size = exponent > 0u ? as_type<float>(((exponent + 120u) << 23) | (mantissa << 20)) : float(mantissa) * 0.001953125f;
  return code & 128u ? -size : size;
}
inline float e2m1(uint code) {
  uint exponent = (code >> 1) & 3u, mantissa = code & 1u;
  float size = exponent > 0u ? as_type<float>(((exponent + 126u) << 23) | (mantissa << 22)) : float(mantissa) * 0.5f;
  return code & 8u ? -size : size;
}
// e8m0: a power of two; its smallest, 2^-127, counts as 2^-126.
template <int FORMAT> inline float float_scale(uint code) {
  return FORMAT == 2 ? e4m3(code) : as_type<float>(metal::max(code, 1u) << 23);
}
template <int FORMAT> inline float float_value(uint code) { return FORMAT == 1 ? e4m3(code) : e2m1(code); }
#define VALUE(code) float_value<FORMAT>(code)
//@ body verify_qmm
