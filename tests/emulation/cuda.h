// What a kernel sees of CUDA, on the host: each thread is a fibre of device.cpp, and one of them runs at a time.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// device.cpp exchanges the library's thread-local memory whenever another block goes on.
#define __shared__ static thread_local

struct Dim {
  unsigned int x, y, z;
};
struct Place {  // of a thread
  Dim thread, block, threads, blocks;
};
extern Place* place_of_thread;
#define threadIdx (place_of_thread->thread)
#define blockIdx (place_of_thread->block)
#define blockDim (place_of_thread->threads)
#define gridDim (place_of_thread->blocks)

void __syncthreads();
int __syncthreads_or(int given);
void let_others_go_first();  // now and then: here another block may come in between
void wait_for_others();      // what another block does is awaited
uint64_t exchange(uint64_t bits, int step);  // of a warp's lanes, all of which have to come

inline void __threadfence() { let_others_go_first(); }

template <class T>
T __shfl_xor_sync(unsigned int, T value, int step) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = exchange(bits, step);
  memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
T atomicAdd(T* at, T value) {
  let_others_go_first();
  const T before = *at;
  *at += value;
  let_others_go_first();
  return before;
}
inline void store_relaxed(unsigned long long* to, unsigned long long value) {
  let_others_go_first();
  *to = value;
}
inline unsigned long long load_relaxed(const unsigned long long* from) {  // flagged.cuh: until it is what is awaited
  wait_for_others();
  return *from;
}
template <class T>
T __ldcs(const T* from) { return *from; }
template <class T>
T __ldcg(const T* from) {  // of another block
  let_others_go_first();
  return *from;
}
template <class T>
void __stcs(T* to, T value) { *to = value; }
template <class T>
void __stwb(T* to, T value) { *to = value; }

struct alignas(8) uint2 { unsigned int x, y; };
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) double2 { double x, y; };

template <class To, class From>
To with_bits_of(From from) {
  To to;
  static_assert(sizeof(To) == sizeof(From));
  memcpy(&to, &from, sizeof(To));
  return to;
}
inline float __int_as_float(int bits) { return with_bits_of<float>(bits); }
inline int __float_as_int(float value) { return with_bits_of<int>(value); }
inline unsigned int __umulhi(unsigned int a, unsigned int b) { return static_cast<uint64_t>(a) * b >> 32; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
unsigned int __match_any_sync(unsigned int, int);  // declared only: kernels that call these are not emulated
int __any_sync(unsigned int, int);
template <class T>
T __shfl_sync(unsigned int, T, int);
void __syncwarp();
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(bits); }
template <class A, class B>
std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B>
std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }

struct __half { _Float16 value; };
struct __nv_bfloat16 { uint16_t bits; };
inline float __half2float(__half half) { return half.value; }
inline __half __float2half_rn(float value) { return {static_cast<_Float16>(value)}; }
inline float __bfloat162float(__nv_bfloat16 half) { return with_bits_of<float>(uint32_t(half.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) {  // to nearest, ties to even
  const uint32_t bits = with_bits_of<uint32_t>(value);
  return {static_cast<uint16_t>(value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline float in_float(__half half) { return __half2float(half); }
inline float in_float(__nv_bfloat16 half) { return __bfloat162float(half); }
template <class T>
struct Two {
  T x, y;
  Two() = default;
  Two(T x, T y) : x(x), y(y) {}
};
using __half2 = Two<__half>;
using __nv_bfloat162 = Two<__nv_bfloat16>;
template <class T>
Two<T> __habs2(Two<T> two) {
  return with_bits_of<Two<T>>(with_bits_of<uint32_t>(two) & 0x7fff7fffu);
}
template <class T>
unsigned int __hequ2_mask(Two<T> a, Two<T> b) {  // equal or unordered
  const auto mask = [](float p, float q) { return p < q || p > q ? 0u : 0xffffu; };
  return mask(in_float(a.x), in_float(b.x)) | mask(in_float(a.y), in_float(b.y)) << 16;
}

// A kernel called with its arguments as a launch has them: the address of each.
template <class... A>
void call(void (*kernel)(A...), void** at) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<A>*>(at[I])...);
  }(std::index_sequence_for<A...>());
}
// Bytes of each argument, negative where it is a pointer.
template <class... A>
int describe(void (*)(A...), int* bytes) {
  ((*bytes++ = std::is_pointer_v<A> ? -8 : static_cast<int>(sizeof(A))), ...);
  return sizeof...(A);
}
