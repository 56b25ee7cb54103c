// The elements of one block in a flat pointwise kernel: P packs a thread, all of them loaded before the first is used.
#pragma once
#include "pack.cuh"

constexpr int SPAN_THREADS = 256;

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
      if (pack < packs) at[i] = ::load<T, V>(from + pack * V);
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
