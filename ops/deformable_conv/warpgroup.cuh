// What the fused kernel's headers have in common. Shared memory has 128-byte-swizzled rows: piece i of 16 bytes of row r is
// stored at i ^ r % 8.
#pragma once
#include "ptx/bar.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/fence_proxy_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/wgmma.cuh"
#include "tensor_map.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Descriptor of rows in shared memory; `start` is a multiple of 8 rows (aligned to 1024 bytes) and of 32 bytes.
__device__ __forceinline__ unsigned long long matrix_descriptor(const void* start) {
  const unsigned int address = shared_address(start);
  return (1ull << 62) | (64ull << 32) | (1ull << 16) | ((address & 0x3ffff) >> 4);
}

#endif
