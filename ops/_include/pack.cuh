// Packs of elements that move as one access, and the wide types that they are computed in.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct Widened {
  using type = float;
};
template <>
struct Widened<double> {
  using type = double;
};
template <typename T>
using Wide = typename Widened<T>::type;  // float for 16-bit types and float, double for double

__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }

template <typename T>
__device__ __forceinline__ T narrow(Wide<T> value) {
  return value;
}
template <>
__device__ __forceinline__ __half narrow<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {  // N elements, at most 16 bytes, aligned to its size
  T at[N];
};

template <int BYTES>
struct Word;
template <>
struct Word<1> {
  using type = unsigned char;
};
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned int;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

// What a pack moves as. Packs of which several are under way stay words until they are used: put together from halves,
// one load would be waited for before the next.
template <typename T, int N>
using PackWord = typename Word<N * sizeof(T)>::type;

// STREAM: first to leave the cache. Pays where neighbours share a pack; plain loads are faster in long streams.
template <typename T, int N, bool STREAM = false>
__device__ __forceinline__ PackWord<T, N> fetch(const T* from) {
  const auto* const word = reinterpret_cast<const PackWord<T, N>*>(from);
  return STREAM ? __ldcs(word) : *word;
}

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> unpacked(const PackWord<T, N>& word) {
  return *reinterpret_cast<const Pack<T, N>*>(&word);
}

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> load_streaming(const T* from) {
  return unpacked<T, N>(fetch<T, N, true>(from));
}

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> load(const T* from) {
  return unpacked<T, N>(fetch<T, N>(from));
}

// Written once and not read again by this kernel.
template <typename T, int N>
__device__ __forceinline__ void store_streaming(T* to, const Pack<T, N>& pack) {
  using W = PackWord<T, N>;
  __stcs(reinterpret_cast<W*>(to), *reinterpret_cast<const W*>(&pack));
}

template <typename T, int N>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
  using W = PackWord<T, N>;
  *reinterpret_cast<W*>(to) = *reinterpret_cast<const W*>(&pack);
}

// By an instruction that is named: what comes from several branches would be taken apart into words.
template <typename T, int N>
__device__ __forceinline__ void store_named(T* to, const Pack<T, N>& pack) {
  using W = PackWord<T, N>;
  __stwb(reinterpret_cast<W*>(to), *reinterpret_cast<const W*>(&pack));
}
