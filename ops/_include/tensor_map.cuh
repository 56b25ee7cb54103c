// Boxes of matrices from global to shared memory (sm_90): one thread asks, tensor maps say how the matrices lie.
#pragma once
#include "shared.cuh"

struct alignas(64) TensorMap {  // made by ops._core.tensor_map
  unsigned long long words[16];
};

#if __CUDA_ARCH__ >= 900

// Soon to be used: reading a map takes as long as reading what it maps.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box at this place, of 16s of bytes in its row; what lies outside arrives as zeros. `barrier` counts the bytes.
__device__ __forceinline__ void bring_box(
    unsigned int to, const TensorMap& map, int column, int row, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
                   "r"(to),
               "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
               : "memory");
}

// This block's part of what all blocks are going to read, into the L2 cache. Addresses and bytes are 16s.
__device__ __forceinline__ void prefetch_part(const void* all, unsigned int bytes) {
  const unsigned int blocks = gridDim.x * gridDim.y, part = (bytes / 16 + blocks - 1) / blocks * 16;
  const unsigned int begin = (blockIdx.y * gridDim.x + blockIdx.x) * part;
  if (begin >= bytes) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(static_cast<const char*>(all) + begin),
               "r"(min(part, bytes - begin))
               : "memory");
}

#endif
