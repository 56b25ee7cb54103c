// Matrix products on the tensor cores by warps of one block: float32 to float32 accuracy, 16-bit types exactly.
//
// float32 is split into two TF32 numbers of 11 bits each, and three of the four products are
// summed (3xTF32): the result is as accurate as float32's, while TF32 alone loses 13 bits. An infinite
// value gives NaN, as its second part is inf - inf. Tensor cores truncate their sums, so that a stage
// is summed separately and then added with rounding.
#pragma once
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "vector.cuh"

constexpr int TILE = 128;          // maximum rows and columns of a block's result
constexpr int MMA_THREADS = 256;   // 2 x 4 warps
constexpr int WARP_ROWS = 64, WARP_COLUMNS = 32;
constexpr int ROW_TILES = WARP_ROWS / 16, COLUMN_TILES = WARP_COLUMNS / 8;
constexpr int MN_MAJOR_PITCH = TILE + 8;   // padded row of a tile stored (depth, TILE), in elements

template <typename T>
constexpr int DEPTH = 128 / sizeof(T);  // depth of one stage: 32 or 64
template <typename T>
constexpr int K_MAJOR_PITCH = DEPTH<T> + 16 / sizeof(T);  // padded row of a tile stored (TILE, depth)
template <typename T>
constexpr int TILE_ELEMENTS = TILE * K_MAJOR_PITCH<T>;  // the larger of both layouts

template <int I, int J>
struct Sums {  // accumulators of a warp: 16 I rows, 8 J columns
  float at[I][J][4] = {};
};
using Accumulators = Sums<ROW_TILES, COLUMN_TILES>;

#if __CUDA_ARCH__ >= 800

// Copies N elements from global to shared memory, zeros if not `valid`; by cp.async if the size allows it.
template <typename T, int N>
__device__ __forceinline__ void load_async(T* to, const T* from, bool valid) {
  if constexpr (N * sizeof(T) == 2) {
    *to = valid ? *from : T(0.0f);
  } else {
    cp_async_zfill<N * sizeof(T)>(to, from, valid);
  }
}

struct Split {  // a float as the sum of two TF32 numbers; the hardware ignores the low 13 bits
  unsigned int high, low;
  __device__ __forceinline__ explicit Split(float value) {
    high = (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(value - __uint_as_float(high)) + 0x1000u;
  }
};

__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_m16n8k16(
    float (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2], const __half*) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_m16n8k16(
    float (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2], const __nv_bfloat16*) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Multiplies one stage of this warp's 16 I x 8 J part. A is (tile, depth) if A_K_MAJOR, else (depth, tile) with PITCH
// elements from row to row; B likewise. PARTS: 3 for float32 accuracy, 1 for TF32.
template <bool A_K_MAJOR, bool B_K_MAJOR, int PARTS, int PITCH = MN_MAJOR_PITCH, int I, int J>
__device__ __forceinline__ void multiply(Sums<I, J>& sum, const float* a, const float* b, int row, int column) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const auto at = [](const float* tile, bool along, int index, int depth) {
    return along ? tile[index * K_MAJOR_PITCH<float> + depth] : tile[depth * PITCH + index];
  };
#pragma unroll 1
  for (int k = t; k < DEPTH<float>; k += 8) {
    unsigned int high_b[J][2], low_b[J][2];
#pragma unroll
    for (int j = 0; j < J; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Split split(at(b, B_K_MAJOR, column + 8 * j + g, k + 4 * half));
        high_b[j][half] = split.high;
        low_b[j][half] = split.low;
      }
#pragma unroll
    for (int i = 0; i < I; ++i) {
      unsigned int high[4], low[4];
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const Split split(at(a, A_K_MAJOR, row + 16 * i + g + 8 * (part % 2), k + 4 * (part / 2)));
        high[part] = split.high;
        low[part] = split.low;
      }
      float step[J][4] = {};  // consecutive products have different columns, and so are independent
      if constexpr (PARTS == 3) {
#pragma unroll
        for (int j = 0; j < J; ++j) mma_m16n8k8_tf32(step[j], low, high_b[j]);
#pragma unroll
        for (int j = 0; j < J; ++j) mma_m16n8k8_tf32(step[j], high, low_b[j]);
      }
#pragma unroll
      for (int j = 0; j < J; ++j) mma_m16n8k8_tf32(step[j], high, high_b[j]);
#pragma unroll
      for (int j = 0; j < J; ++j)
#pragma unroll
        for (int part = 0; part < 4; ++part) sum.at[i][j][part] += step[j][part];
    }
  }
}

template <bool A_K_MAJOR, bool B_K_MAJOR, int PARTS, int PITCH = MN_MAJOR_PITCH, typename T, int I, int J>
__device__ __forceinline__ void multiply(Sums<I, J>& sum, const T* a, const T* b, int row, int column) {
  const int lane = threadIdx.x % 32, inner = lane % 8, which = lane / 8;
#pragma unroll 1
  for (int k = 0; k < DEPTH<T>; k += 16) {
    unsigned int parts_b[J][2];
#pragma unroll
    for (int j = 0; j < J; j += 2) {  // tiles: (k, j), (k + 8, j), (k, j + 1), (k + 8, j + 1)
      unsigned int four[4];
      const int index = column + 8 * (j + which / 2), depth = k + 8 * (which % 2);
      if constexpr (B_K_MAJOR) {
        ldmatrix<false>(four, b + (index + inner) * K_MAJOR_PITCH<T> + depth);
      } else {
        ldmatrix<true>(four, b + (depth + inner) * PITCH + index);
      }
      parts_b[j][0] = four[0], parts_b[j][1] = four[1], parts_b[j + 1][0] = four[2], parts_b[j + 1][1] = four[3];
    }
#pragma unroll
    for (int i = 0; i < I; ++i) {  // tiles: (i, k), (i + 8, k), (i, k + 8), (i + 8, k + 8)
      unsigned int parts_a[4];
      const int index = row + 16 * i + 8 * (which % 2), depth = k + 8 * (which / 2);
      if constexpr (A_K_MAJOR) {
        ldmatrix<false>(parts_a, a + (index + inner) * K_MAJOR_PITCH<T> + depth);
      } else {
        ldmatrix<true>(parts_a, a + (depth + inner) * PITCH + index);
      }
#pragma unroll
      for (int j = 0; j < J; ++j) mma_m16n8k16(sum.at[i][j], parts_a, parts_b[j], static_cast<const T*>(nullptr));
    }
  }
}

// Stores this warp's part of the result to a tile of floats in shared memory, PITCH from row to row.
template <int PITCH = MN_MAJOR_PITCH, int I, int J>
__device__ __forceinline__ void store_tile(float* tile, const Sums<I, J>& sum, int row, int column) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < I; ++i)
#pragma unroll
    for (int j = 0; j < J; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* const to = tile + (row + 16 * i + g + 8 * half) * PITCH + column + 8 * j + 2 * t;
        *reinterpret_cast<float2*>(to) = make_float2(sum.at[i][j][2 * half], sum.at[i][j][2 * half + 1]);
      }
}

#endif
