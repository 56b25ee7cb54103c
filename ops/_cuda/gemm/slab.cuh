// Panels of shared memory as wgmma.cuh describes them: 64 lines of 128 bytes, whose pieces of 16 are swizzled by the last
// three bits of a line's number.
#pragma once
#include "shared.cuh"

constexpr int DEEP = 64;            // products of a stage
constexpr int LINE = 128;           // bytes: 64 elements
constexpr int SLAB = DEEP * LINE;  // bytes of 64 lines, of a stage or of results

// Where a line's piece of 16 bytes offset_of.
__device__ __forceinline__ int swizzled(int line, int piece) { return line * LINE + (piece ^ line % 8) * 16; }

#if __CUDA_ARCH__ >= 900

// Four 8x8 matrices, a pair of neighbours in each lane; lanes 8 i to 8 i + 7 say where the rows of the i-th go, or
// where its columns go.
template <bool COLUMNS>
__device__ __forceinline__ void stmatrix(unsigned int to, const unsigned int (&v)[4]) {
  if constexpr (COLUMNS) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]),
                 "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
  }
}

#endif
