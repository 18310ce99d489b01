// lint.h - declarations only, for clang, which only checks: real address spaces and vector swizzles, and no double.
#pragma once
#define METAL_CPU_LINT 1
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
#define kernel
#define MSL_THREADGROUP static __attribute__((address_space(3)))
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;
typedef unsigned long size_t; typedef long ptrdiff_t;
typedef unsigned char uint8_t; typedef signed char int8_t; typedef unsigned short uint16_t; typedef short int16_t;
typedef unsigned int uint32_t; typedef int int32_t; typedef long int64_t; typedef unsigned long uint64_t;
// Small floats stand for float here: a class could not be read through an address space, and sizes do not matter.
typedef float half; typedef float bfloat; typedef float float16_t; typedef float bfloat16_t;
#define MSL_VECTORS(t) \
  typedef t t##2 __attribute__((ext_vector_type(2))); typedef t t##3 __attribute__((ext_vector_type(3))); \
  typedef t t##4 __attribute__((ext_vector_type(4)));
MSL_VECTORS(float) MSL_VECTORS(int) MSL_VECTORS(uint) MSL_VECTORS(short) MSL_VECTORS(ushort) MSL_VECTORS(char)
MSL_VECTORS(uchar) MSL_VECTORS(long) MSL_VECTORS(ulong)
#undef MSL_VECTORS
typedef float2 half2; typedef float3 half3; typedef float4 half4;
typedef float2 bfloat2; typedef float3 bfloat3; typedef float4 bfloat4;
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX 3.402823466e+38f

namespace metal {
#define MSL_UNARY(n) float n(float);
MSL_UNARY(exp) MSL_UNARY(exp2) MSL_UNARY(log) MSL_UNARY(log2) MSL_UNARY(sqrt) MSL_UNARY(rsqrt) MSL_UNARY(fabs) MSL_UNARY(tanh)
MSL_UNARY(floor) MSL_UNARY(ceil) MSL_UNARY(rint) MSL_UNARY(round) MSL_UNARY(trunc) MSL_UNARY(sin) MSL_UNARY(cos)
#undef MSL_UNARY
float pow(float, float); float fma(float, float, float); bool isnan(float); bool isinf(float); bool isfinite(float);
float dot(float2, float2); float dot(float3, float3); float dot(float4, float4);
template <class T> T max(T, T); template <class T> T min(T, T); template <class T> T clamp(T, T, T);
template <class T> T abs(T); template <class T> T select(T, T, bool);
int popcount(uint); int clz(uint); int ctz(uint); uint mulhi(uint, uint); uint extract_bits(uint, uint, uint);
namespace precise { using metal::exp; using metal::log; using metal::rsqrt; using metal::sqrt; }
namespace fast { using metal::exp; using metal::log; using metal::rsqrt; using metal::sqrt; }
template <class T> T simd_sum(T); template <class T> T simd_max(T); template <class T> T simd_min(T);
template <class T> T simd_or(T); template <class T> T simd_and(T);
template <class T> T simd_shuffle(T, ushort); template <class T> T simd_shuffle_xor(T, ushort);
template <class T> T simd_shuffle_down(T, ushort); template <class T> T simd_shuffle_up(T, ushort);
template <class T> T simd_broadcast(T, ushort); template <class T> T simd_broadcast_first(T);
template <class T> T simd_prefix_inclusive_sum(T); template <class T> T simd_prefix_exclusive_sum(T);
bool simd_any(bool); bool simd_all(bool);
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags); void simdgroup_barrier(mem_flags);
template <class T> struct atomic { T v; };
enum memory_order { memory_order_relaxed };
template <class T> T atomic_fetch_add_explicit(device atomic<T>*, T, memory_order);
template <class T> T atomic_fetch_add_explicit(threadgroup atomic<T>*, T, memory_order);
template <class T, int R, int C> struct simdgroup_matrix { T e[2]; explicit simdgroup_matrix(T); simdgroup_matrix(); T* thread_elements(); };
template <class T, class P> void simdgroup_load(simdgroup_matrix<T, 8, 8>&, P, ulong);
template <class T, class P> void simdgroup_store(simdgroup_matrix<T, 8, 8>, P, ulong);
template <class D, class A, class B, class C> void simdgroup_multiply_accumulate(D&, A, B, C);
}  // namespace metal
using namespace metal;
template <class T, class U> T as_type(U);
template <class I> I elem_to_loc(I, const constant int*, const constant int64_t*, int);
#define double MSL_HAS_NO_DOUBLE
