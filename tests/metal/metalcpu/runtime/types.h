// types.h - half, bfloat and short vectors. Rounding is to nearest even, done with integers so that it costs no counted flop.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

namespace msl {

inline uint32_t bits_of(float f) { uint32_t x; std::memcpy(&x, &f, 4); return x; }
inline float float_of(uint32_t x) { float f; std::memcpy(&f, &x, 4); return f; }

inline float half_to_float(uint16_t h) {
  uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return float_of(sign | 0x7f800000u | (mantissa << 13));
  if (exponent) return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (!mantissa) return float_of(sign);
  int shift = __builtin_clz(mantissa) - 21;  // bring the leading one to bit 10
  return float_of(sign | ((uint32_t)(113 - shift) << 23) | (((mantissa << shift) & 1023) << 13));
}

inline uint16_t float_to_half(float f) {
  uint32_t x = bits_of(f), sign = (x >> 16) & 0x8000u;
  x &= 0x7fffffffu;
  if (x > 0x7f800000u) return sign | 0x7e00;
  if (x >= 0x477ff000u) return sign | 0x7c00;  // rounds to infinity
  if (x < 0x33000001u) return sign;            // at most half the smallest subnormal
  if (x < 0x38800000u) {                       // subnormal result
    uint32_t shift = 126 - (x >> 23), mantissa = (x & 0x7fffffu) | 0x800000u;
    uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
    return sign | (uint16_t)(kept + (rest > half || (rest == half && (kept & 1))));
  }
  x += 0xfffu + ((x >> 13) & 1);
  return sign | (uint16_t)((x >> 13) - (112u << 10));
}

inline float bfloat_to_float(uint16_t b) { return float_of((uint32_t)b << 16); }
inline uint16_t float_to_bfloat(float f) {
  uint32_t x = bits_of(f);
  if ((x & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((x >> 16) | 0x40);
  return (uint16_t)((x + 0x7fffu + ((x >> 16) & 1)) >> 16);
}

// Kind 0 is half, kind 1 is bfloat. Mixed with float the result is float, mixed with an integer it stays small, as in Metal.
template <int Kind>
struct small_float {
  uint16_t v;
  constexpr small_float() : v(0xFFFF) {}  // poison (NaN); constexpr, so that threadgroup arrays need no start-up code
  template <class U, class = std::enable_if_t<std::is_arithmetic<U>::value>>
  small_float(U f) : v(Kind ? float_to_bfloat((float)f) : float_to_half((float)f)) {}
  template <int Other, class = std::enable_if_t<Other != Kind>>
  explicit small_float(small_float<Other> o) : small_float((float)o) {}
  operator float() const { return Kind ? bfloat_to_float(v) : half_to_float(v); }
#define MSL_COMPOUND(op) \
  template <class U> small_float& operator op##=(U o) { return *this = small_float((float)*this op (float)o); }
  MSL_COMPOUND(+) MSL_COMPOUND(-) MSL_COMPOUND(*) MSL_COMPOUND(/)
#undef MSL_COMPOUND
  small_float operator-() const { small_float r; r.v = v ^ 0x8000u; return r; }
};
#define MSL_BINARY(op) \
  template <int K> inline small_float<K> operator op(small_float<K> a, small_float<K> b) { return small_float<K>((float)a op (float)b); } \
  template <int K, class U, class = std::enable_if_t<std::is_integral<U>::value>> \
  inline small_float<K> operator op(small_float<K> a, U b) { return small_float<K>((float)a op (float)b); } \
  template <int K, class U, class = std::enable_if_t<std::is_integral<U>::value>> \
  inline small_float<K> operator op(U a, small_float<K> b) { return small_float<K>((float)a op (float)b); }
MSL_BINARY(+) MSL_BINARY(-) MSL_BINARY(*) MSL_BINARY(/)
#undef MSL_BINARY

template <class T> constexpr T poison() {
  if constexpr (std::is_floating_point<T>::value) return __builtin_nanf("");
  else if constexpr (std::is_integral<T>::value) return T(-1);
  else return T();
}
template <class T, int N> struct vector_store;
template <class T> struct alignas(2 * sizeof(T)) vector_store<T, 2> { T x = poison<T>(), y = poison<T>(); };
template <class T> struct alignas(4 * sizeof(T)) vector_store<T, 3> { T x = poison<T>(), y = poison<T>(), z = poison<T>(); };
template <class T> struct alignas(4 * sizeof(T)) vector_store<T, 4> {
  T x = poison<T>(), y = poison<T>(), z = poison<T>(), w = poison<T>();
};

// Components and [] only: g++ has no swizzles.
template <class T, int N>
struct vec : vector_store<T, N> {
  constexpr vec() {}
  vec(T s) { for (int i = 0; i < N; i++) (*this)[i] = s; }
  template <class A, class B, class... R, class = std::enable_if_t<sizeof...(R) + 2 == N>>
  vec(A a, B b, R... r) { T t[] = {(T)a, (T)b, (T)r...}; for (int i = 0; i < N; i++) (*this)[i] = t[i]; }
  template <class U, class = std::enable_if_t<!std::is_same<U, T>::value>>
  explicit vec(vec<U, N> o) { for (int i = 0; i < N; i++) (*this)[i] = (T)o[i]; }
  T& operator[](int i) { return ((T*)this)[i]; }
  const T& operator[](int i) const { return ((const T*)this)[i]; }
#define MSL_VECTOR(op) \
  vec& operator op##=(vec o) { for (int i = 0; i < N; i++) (*this)[i] = (T)((*this)[i] op o[i]); return *this; } \
  friend vec operator op(vec a, vec b) { a op##= b; return a; }
  MSL_VECTOR(+) MSL_VECTOR(-) MSL_VECTOR(*) MSL_VECTOR(/)
#undef MSL_VECTOR
  template <class U = T, class = std::enable_if_t<std::is_integral<U>::value>>
  friend vec operator^(vec a, vec b) { for (int i = 0; i < N; i++) a[i] = (T)(a[i] ^ b[i]); return a; }
};

}  // namespace msl

using half = msl::small_float<0>;
using bfloat = msl::small_float<1>;
using float16_t = half;
using bfloat16_t = bfloat;
template <class T, int N> using vec = msl::vec<T, N>;
#define MSL_VECTORS(t) using t##2 = msl::vec<t, 2>; using t##3 = msl::vec<t, 3>; using t##4 = msl::vec<t, 4>;
MSL_VECTORS(float) MSL_VECTORS(half) MSL_VECTORS(bfloat) MSL_VECTORS(int) MSL_VECTORS(uint) MSL_VECTORS(short)
MSL_VECTORS(ushort) MSL_VECTORS(char) MSL_VECTORS(uchar) MSL_VECTORS(bool) MSL_VECTORS(long) MSL_VECTORS(ulong)
#undef MSL_VECTORS

namespace std {
template <int K> struct numeric_limits<msl::small_float<K>> {
  using F = msl::small_float<K>;
  static F infinity() { return F(INFINITY); }
  static F max() { return F(K ? 3.3895314e38f : 65504.f); }
  static F lowest() { return -max(); }
  static F min() { return F(K ? 1.17549435e-38f : 6.103515625e-05f); }
  static F quiet_NaN() { return F(NAN); }
};
template <int K> struct common_type<msl::small_float<K>, float> { using type = float; };
template <int K> struct common_type<float, msl::small_float<K>> { using type = float; };
}  // namespace std
