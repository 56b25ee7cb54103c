// Slabs: 128-byte-swizzled shared-memory tiles of 64 lines, as the matrix descriptors of wgmma.cuh expect them.
#pragma once
#include "shared.cuh"

constexpr int DEEP = 64;            // depth of a stage
constexpr int LINE = 128;           // bytes: 64 elements
constexpr int SLAB = DEEP * LINE;  // bytes of 64 lines, of a stage or of results

// Offset of a 16-byte piece of a line: its index is XORed with the line's number modulo 8.
__device__ __forceinline__ int swizzled(int line, int piece) { return line * LINE + (piece ^ line % 8) * 16; }

#if __CUDA_ARCH__ >= 900

// Stores four 8x8 matrices, a pair of neighbours per lane; lanes 8 i to 8 i + 7 hold the addresses of the rows of the
// i-th matrix, or of its columns.
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
