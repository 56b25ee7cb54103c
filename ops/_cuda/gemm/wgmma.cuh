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

#endif
