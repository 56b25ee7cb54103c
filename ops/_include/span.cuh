// The elements of one block in a flat pointwise kernel: P packs a thread, all of them loaded before the first is used.
#pragma once
#include "pack.cuh"

constexpr int SPAN_THREADS = 256;

// Read once by the whole device: past L1.
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> load_once(const T* from) {
  if constexpr (N * sizeof(T) == 16) {
    uint4 word;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(from));
    return *reinterpret_cast<const Pack<T, N>*>(&word);
  } else {
    return load<T, N>(from);
  }
}

template <int P>
__device__ __forceinline__ long long first_pack() {
  return static_cast<long long>(blockIdx.x) * (SPAN_THREADS * P) + threadIdx.x;
}

template <typename T, int V, int P>
struct Span {
  Pack<T, V> at[P];

  __device__ __forceinline__ void load(const T* from, long long first, long long packs) {
#pragma unroll
    for (int i = 0; i < P; ++i) {
      const long long pack = first + i * SPAN_THREADS;
      if (pack < packs) at[i] = load_once<T, V>(from + pack * V);
    }
  }

  __device__ __forceinline__ void store(T* to, long long first, long long packs) const {
#pragma unroll
    for (int i = 0; i < P; ++i) {
      const long long pack = first + i * SPAN_THREADS;
      if (pack < packs) ::store<T, V>(to + pack * V, at[i]);
    }
  }
};
