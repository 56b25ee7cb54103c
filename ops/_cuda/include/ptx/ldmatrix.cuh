// ldmatrix: loads of matrix fragments from shared memory by a warp.
#pragma once
#include "shared.cuh"

#if __CUDA_ARCH__ >= 750

// Loads four 8x8 tiles of 16 bits, TRANSPOSED or not; lane i has the address of row i % 8 of tile i / 8.
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix(unsigned int (&to)[4], unsigned int row) {
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
  }
}

template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix(unsigned int (&to)[4], const void* row) {
  ldmatrix<TRANSPOSED>(to, shared_address(row));
}

#endif
