// msl.h - the part of the Metal Shading Language that mx.fast.metal_kernel sources use, for a C++17 compiler.
#pragma once
#include "interface.h"
#include "types.h"

#define METAL_CPU_EXECUTOR 1
// Address spaces say nothing on a CPU. Threadgroup *declarations* are rewritten to MSL_THREADGROUP by the translator, so
// that they land in one section the runtime can poison and watch.
#define device
#define constant
#define thread
#define threadgroup
#define kernel
#define MSL_THREADGROUP __attribute__((section("msl_tg"), aligned(16))) static
#define MSL_FENCE() __asm__ volatile("" ::: "memory")
// Functions with this attribute are neither watched nor counted (their symbol carries "msl_nocount").
#define MSL_OPAQUE __attribute__((noinline, no_sanitize_thread))

namespace metal {

// ---- maths
using std::acos; using std::asin; using std::atan; using std::atan2; using std::ceil; using std::copysign; using std::cos;
using std::cosh; using std::exp; using std::exp2; using std::fabs; using std::floor; using std::fma; using std::fmod;
using std::isfinite; using std::isinf; using std::isnan; using std::log; using std::log10; using std::log2; using std::pow;
using std::rint; using std::round; using std::sin; using std::sinh; using std::sqrt; using std::tan; using std::tanh;
using std::trunc; using std::fmax; using std::fmin; using std::erf;
template <class T> using numeric_limits = std::numeric_limits<T>;
template <class A, class B, class C = std::common_type_t<A, B>> inline C max(A a, B b) { return (C)a > (C)b ? (C)a : (C)b; }
template <class A, class B, class C = std::common_type_t<A, B>> inline C min(A a, B b) { return (C)a < (C)b ? (C)a : (C)b; }
template <class T> inline T max3(T a, T b, T c) { return max(a, max(b, c)); }
template <class T> inline T min3(T a, T b, T c) { return min(a, min(b, c)); }
template <class T, class L, class H> inline T clamp(T v, L lo, H hi) { return v < (T)lo ? (T)lo : v > (T)hi ? (T)hi : v; }
template <class T> inline T abs(T v) { return v < T(0) ? T(-v) : v; }
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
template <class T> inline T select(T a, T b, bool c) { return c ? b : a; }
template <class T> inline T mix(T a, T b, T t) { return a + (b - a) * t; }
inline float sign(float x) { return x > 0 ? 1.f : x < 0 ? -1.f : 0.f; }
template <class T> inline int popcount(T x) { return __builtin_popcountll((uint64_t)(std::make_unsigned_t<T>)x); }
inline int clz(uint x) { return x ? __builtin_clz(x) : 32; }
inline int ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
inline uint extract_bits(uint v, uint o, uint b) { return b == 32 ? v : (v >> o) & ((1u << b) - 1); }
inline uint mulhi(uint a, uint b) { return (uint)(((uint64_t)a * b) >> 32); }
template <class T, int N> inline T dot(msl::vec<T, N> a, msl::vec<T, N> b) { T r = T(0); for (int i = 0; i < N; i++) r = r + a[i] * b[i]; return r; }
namespace precise { using namespace std; inline float rsqrt(float x) { return 1.0f / std::sqrt(x); } using std::exp; using std::log; using std::sqrt; }
namespace fast { using namespace std; inline float rsqrt(float x) { return 1.0f / std::sqrt(x); } using std::exp; using std::log; using std::sqrt; }
template <class T, class U> inline T as_type_(U u) { static_assert(sizeof(T) == sizeof(U), "as_type needs equal sizes"); T t; std::memcpy(&t, &u, sizeof t); return t; }
#define as_type metal::as_type_

// ---- simdgroup operations. A rendezvous is identified by its place in the source.
#define MSL_SITE ([]() -> const void* { static const char place[2] = {0, 0}; return place; }())
#define MSL_UNWATCHED __attribute__((no_sanitize_thread))
MSL_UNWATCHED inline uint msl_lane() { return msl_context.index & 31; }
template <class T> MSL_UNWATCHED inline T msl_read(uint lane) { T v; std::memcpy(&v, msl_published(lane), sizeof(T)); return v; }

template <class T, class F>
MSL_OPAQUE inline T msl_nocount_reduce(T v, const void* site, F f) {
  uint mask = msl_publish(&v, sizeof(T), site, std::is_integral<T>::value ? 0 : 5), order = msl_reduction_order();
  if (mask == 0xffffffffu && order == 0) {
    T t[32];
    for (int i = 0; i < 32; i++) t[i] = msl_read<T>(i);
    for (int d = 1; d < 32; d <<= 1) for (int i = 0; i < 32; i += 2 * d) t[i] = f(t[i], t[i + d]);
    return t[0];
  }
  bool first = true;
  T r = v;
  for (int k = 0; k < 32; k++) {
    int i = order == 2 ? 31 - k : k;
    if (mask >> i & 1) { T w = msl_read<T>(i); r = first ? w : f(r, w); first = false; }
  }
  return r;
}
// Reading an inactive lane is undefined in Metal: the caller gets poison.
template <class T> MSL_OPAQUE inline T msl_nocount_shuffle(T v, uint source, const void* site) {
  uint mask = msl_publish(&v, sizeof(T), site, 0);
  if (mask >> (source & 31) & 1) return msl_read<T>(source & 31);
  T poison; std::memset((void*)&poison, 0xFF, sizeof poison); return poison;
}
template <class T> MSL_OPAQUE inline T msl_nocount_prefix(T v, bool inclusive, const void* site) {
  uint mask = msl_publish(&v, sizeof(T), site, std::is_integral<T>::value ? 0 : 5);
  T r = T(0);
  for (uint i = 0; i < msl_lane() + (inclusive ? 1 : 0); i++) if (mask >> i & 1) r = r + msl_read<T>(i);
  return r;
}
struct simd_vote {
  typedef uint64_t vote_t;
  vote_t v;
  explicit operator vote_t() const { return v; }
};
MSL_OPAQUE inline simd_vote msl_nocount_ballot(bool p, const void* site) {
  uint value = p, mask = msl_publish(&value, 4, site, 0);
  uint64_t r = 0;
  for (int i = 0; i < 32; i++) if ((mask >> i & 1) && msl_read<uint>(i)) r |= 1ull << i;
  return simd_vote{r};
}
template <class T> MSL_OPAQUE inline T msl_nocount_first(T v, const void* site) {
  uint mask = msl_publish(&v, sizeof(T), site, 0);
  return msl_read<T>(__builtin_ctz(mask));
}
#define MSL_REDUCE(name, expr) \
  template <class T> inline T msl_##name(T v, const void* s) { return msl_nocount_reduce<T>(v, s, [](T a, T b) -> T { return expr; }); }
MSL_REDUCE(sum, a + b) MSL_REDUCE(product, a * b) MSL_REDUCE(max, a > b ? a : b) MSL_REDUCE(min, a < b ? a : b)
MSL_REDUCE(or, a | b) MSL_REDUCE(and, a & b) MSL_REDUCE(xor, a ^ b)
#undef MSL_REDUCE
#define simd_sum(v) msl_sum((v), MSL_SITE)
#define simd_product(v) msl_product((v), MSL_SITE)
#define simd_max(v) msl_max((v), MSL_SITE)
#define simd_min(v) msl_min((v), MSL_SITE)
#define simd_or(v) msl_or((v), MSL_SITE)
#define simd_and(v) msl_and((v), MSL_SITE)
#define simd_xor(v) msl_xor((v), MSL_SITE)
#define simd_any(v) (msl_or((uint)((v) ? 1 : 0), MSL_SITE) != 0)
#define simd_all(v) (msl_and((uint)((v) ? 1 : 0), MSL_SITE) != 0)
#define simd_ballot(p) msl_nocount_ballot((p), MSL_SITE)
#define simd_is_first() (msl_nocount_first<uint>(msl_context.index & 31, MSL_SITE) == (msl_context.index & 31))
#define simd_shuffle(v, l) msl_nocount_shuffle((v), (uint)(l), MSL_SITE)
#define simd_broadcast(v, l) msl_nocount_shuffle((v), (uint)(l), MSL_SITE)
#define simd_broadcast_first(v) msl_nocount_first((v), MSL_SITE)
#define simd_shuffle_xor(v, m) msl_nocount_shuffle((v), metal::msl_lane() ^ (uint)(m), MSL_SITE)
#define simd_shuffle_down(v, d) msl_nocount_shuffle((v), metal::msl_lane() + (uint)(d) < 32 ? metal::msl_lane() + (uint)(d) : metal::msl_lane(), MSL_SITE)
#define simd_shuffle_up(v, d) msl_nocount_shuffle((v), metal::msl_lane() >= (uint)(d) ? metal::msl_lane() - (uint)(d) : metal::msl_lane(), MSL_SITE)
#define simd_prefix_inclusive_sum(v) msl_nocount_prefix((v), true, MSL_SITE)
#define simd_prefix_exclusive_sum(v) msl_nocount_prefix((v), false, MSL_SITE)

// ---- barriers
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((uint)a | (uint)b); }
inline void msl_wait_threadgroup(const void* s, mem_flags f) { MSL_FENCE(); msl_threadgroup_barrier(s, (uint)f); MSL_FENCE(); }
inline void msl_wait_simdgroup(const void* s, mem_flags f) { MSL_FENCE(); msl_simdgroup_barrier(s, (uint)f); MSL_FENCE(); }
#define threadgroup_barrier(flags) msl_wait_threadgroup(MSL_SITE, flags)
#define simdgroup_barrier(flags) msl_wait_simdgroup(MSL_SITE, flags)

// ---- simdgroup 8x8 matrices, in the lane layout MLX relies on: each lane holds two neighbouring columns
inline void msl_matrix_position(uint lane, int& row, int& column) {
  uint q = lane / 4;
  row = (int)((q & 4) + ((lane / 2) % 4));
  column = (int)((q & 2) * 2 + (lane % 2) * 2);
}
template <class T, int R, int C> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "simdgroup_matrix is 8x8");
  T e[2];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T v) { msl_nocount_diagonal(v); }
  MSL_OPAQUE void msl_nocount_diagonal(T v) { int r, c; msl_matrix_position(msl_lane(), r, c); e[0] = r == c ? v : T(0); e[1] = r == c + 1 ? v : T(0); }
  T* thread_elements() { return e; }
};
template <class T, int R, int C> inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) { simdgroup_matrix<T, R, C> m; m.e[0] = m.e[1] = v; return m; }
template <class T, class P> inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, P p, ulong stride = 8, ulong2 origin = ulong2(0), bool transpose = false) {
  int r, c; msl_matrix_position(msl_lane(), r, c);
  for (int j = 0; j < 2; j++) { ulong a = transpose ? c + j : r, b = transpose ? r : c + j; m.e[j] = T(p[(a + origin.y) * stride + b + origin.x]); }
}
template <class T, class P> inline void simdgroup_store(simdgroup_matrix<T, 8, 8> m, P p, ulong stride = 8, ulong2 origin = ulong2(0), bool transpose = false) {
  int r, c; msl_matrix_position(msl_lane(), r, c);
  for (int j = 0; j < 2; j++) { ulong a = transpose ? c + j : r, b = transpose ? r : c + j; p[(a + origin.y) * stride + b + origin.x] = m.e[j]; }
}
template <class D, class A, class B, class C> MSL_OPAQUE inline void msl_nocount_mad(D& d, A a, B b, C c, const void* site) {
  struct pair { float a0, a1, b0, b1; } mine{(float)a.e[0], (float)a.e[1], (float)b.e[0], (float)b.e[1]};
  msl_publish(&mine, sizeof mine, site, 32);
  float x[8][8], y[8][8];
  for (uint l = 0; l < 32; l++) {
    int r, k; msl_matrix_position(l, r, k);
    pair q = msl_read<pair>(l);
    x[r][k] = q.a0; x[r][k + 1] = q.a1; y[r][k] = q.b0; y[r][k + 1] = q.b1;
  }
  int r, k; msl_matrix_position(msl_lane(), r, k);
  for (int j = 0; j < 2; j++) {
    float sum = (float)c.e[j];
    for (int t = 0; t < 8; t++) sum += x[r][t] * y[t][k + j];
    d.e[j] = std::decay_t<decltype(d.e[j])>(sum);
  }
}
#define simdgroup_multiply_accumulate(d, a, b, c) msl_nocount_mad(d, a, b, c, MSL_SITE)
template <class D, class A, class B> inline void msl_multiply(D& d, A a, B b, const void* s) { D zero; zero.e[0] = zero.e[1] = 0; msl_nocount_mad(d, a, b, zero, s); }
#define simdgroup_multiply(d, a, b) msl_multiply(d, a, b, MSL_SITE)
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

// ---- atomics
template <class T> struct atomic { T v; };
enum memory_order { memory_order_relaxed };
#define MSL_ATOMIC(name, expr) \
  template <class T, class U> MSL_OPAQUE inline T name(atomic<T>* a, U operand, memory_order) { \
    msl_atomic(a, sizeof(T), 1, 1); T old = a->v; T b = (T)operand; (void)b; a->v = (T)(expr); return old; }
MSL_ATOMIC(atomic_fetch_add_explicit, old + b) MSL_ATOMIC(atomic_fetch_sub_explicit, old - b)
MSL_ATOMIC(atomic_fetch_max_explicit, old > b ? old : b) MSL_ATOMIC(atomic_fetch_min_explicit, old < b ? old : b)
MSL_ATOMIC(atomic_fetch_or_explicit, old | b) MSL_ATOMIC(atomic_fetch_and_explicit, old & b)
MSL_ATOMIC(atomic_fetch_xor_explicit, old ^ b) MSL_ATOMIC(atomic_exchange_explicit, b)
#undef MSL_ATOMIC
template <class T, class U> MSL_OPAQUE inline void atomic_store_explicit(atomic<T>* a, U u, memory_order) { msl_atomic(a, sizeof(T), 0, 1); a->v = (T)u; }
template <class T> MSL_OPAQUE inline T atomic_load_explicit(const atomic<T>* a, memory_order) { msl_atomic(a, sizeof(T), 1, 0); return a->v; }
template <class T> MSL_OPAQUE inline bool atomic_compare_exchange_weak_explicit(atomic<T>* a, T* expected, T desired, memory_order, memory_order) {
  msl_atomic(a, sizeof(T), 1, 1);
  if (std::memcmp(&a->v, expected, sizeof(T)) == 0) { a->v = desired; return true; }
  *expected = a->v;
  return false;
}

}  // namespace metal
using namespace metal;
using atomic_uint = metal::atomic<uint>;
using atomic_int = metal::atomic<int>;
using atomic_float = metal::atomic<float>;

// ---- what MLX prepends to every custom kernel
template <class I> inline I elem_to_loc(I elem, const int* shape, const int64_t* strides, int ndim) {
  I loc = 0;
  for (int i = ndim - 1; i >= 0 && elem > 0; --i) { loc += (elem % shape[i]) * I(strides[i]); elem /= shape[i]; }
  return loc;
}
template <class T> inline T ceildiv(T a, T b) { return (a + b - 1) / b; }
template <class T> struct Limits {
  static T max() { return std::numeric_limits<T>::max(); }
  static T min() { return std::numeric_limits<T>::lowest(); }
};
