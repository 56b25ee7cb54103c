// What kernels of warpgroup products (wgmma, sm_90a) have in common: descriptors of factors, and pairs of results.
#pragma once
#include "mma.cuh"
#include "ptx/fence_proxy_async.cuh"
#include "ptx/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Descriptor of a factor in slabs (slab.cuh). Groups of eight lines are 1024 bytes apart; `slabs`: bytes between slabs,
// for an MN-major factor of several.
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned int address, int slabs) {
  return (address >> 4 & 0x3fff) | static_cast<unsigned long long>(slabs >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

template <typename T>
struct alignas(2 * sizeof(T)) Pair {  // two neighbouring elements in one access
  T at[2];
};

template <typename T>
__device__ __forceinline__ unsigned int bits(float first, float second) {
  const Pair<T> pair = {{narrow<T>(first), narrow<T>(second)}};
  return *reinterpret_cast<const unsigned int*>(&pair);
}

// Transposes among four lanes: number `i` of lane `t` becomes number `t` of lane `i`.
__device__ __forceinline__ void trade(unsigned int (&v)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const unsigned int got = __shfl_xor_sync(0xffffffffu, odd ? v[i] : v[i + 1], 1);
    v[i] = odd ? got : v[i];
    v[i + 1] = odd ? v[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned int got = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i + 2], 2);
    v[i] = high ? got : v[i];
    v[i + 2] = high ? v[i + 2] : got;
  }
}

#endif
