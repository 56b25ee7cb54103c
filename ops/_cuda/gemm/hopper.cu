// d = a b (+ addend) in 16-bit types by wgmma, which reads its factors from shared memory (sm_90a).

#include "slab.cuh"
#include "view.cuh"
#include "wgmma.cuh"

DEFINE_Tiles;  // of launch.py

constexpr int WIDE = 128;  // columns of a tile
constexpr int VECTOR = 8;    // elements of 16 bytes

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// persistent_wgmma: persistent blocks compute tiles of 64 R x 128 results and load the next tile during the epilogue.
// Layout   a (rows, depth) if A_K_MAJOR, else (depth, rows); b (depth, columns); d (rows, columns), by Views
// Grid     resident blocks × groups       Block  128 R          Needs  16-byte vectors of a, b, d and the addend
// Writes   d, with evict_first
// Why      convolutions are shallow, so that loads and stores bound them; lanes exchange results to store 16 bytes each
template <typename T, bool A_K_MAJOR, int R>
__global__ void __launch_bounds__(128 * R, 4 / R) persistent_wgmma(
    const T* __restrict__ a, const T* __restrict__ b, const T* __restrict__ addend, T* __restrict__ d,
    const __grid_constant__ View of_a, const __grid_constant__ View of_b, const __grid_constant__ View of_d,
    const __grid_constant__ Tiles tiles) {
  constexpr int ROWS = 64 * R, THREADS = 128 * R, RING = R == 1 ? 2 : R == 2 ? 3 : 4, STAGE = (R + 2) * SLAB;
  constexpr int A_VECTORS = A_K_MAJOR ? DEEP / VECTOR : ROWS / VECTOR, A_STEP = THREADS / A_VECTORS;
  constexpr int B_VECTORS = WIDE / VECTOR, B_STEP = THREADS / B_VECTORS;
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned int ring = (shared_address(memory) + 1023) / 1024 * 1024;
  unsigned char* const bytes = memory + (ring - shared_address(memory));
  a += blockIdx.y * of_a.group;
  b += blockIdx.y * of_b.group;
  d += blockIdx.y * of_d.group;
  if (addend != nullptr) addend += blockIdx.y * of_d.group;

  // this thread's next loads: tile `coming`, depth from `k` on, into stage `to`
  const int a_row = threadIdx.x / A_VECTORS, a_vector = threadIdx.x % A_VECTORS;
  const int b_row = threadIdx.x / B_VECTORS, b_vector = threadIdx.x % B_VECTORS;
  const int a_slot = (A_K_MAJOR ? 0 : a_vector / 8 * SLAB) + a_row * 128 + (a_vector % 8 ^ a_row % 8) * 16;
  const int b_slot = R * SLAB + b_vector / 8 * SLAB + b_row * 128 + (b_vector % 8 ^ b_row % 8) * 16;
  int coming = blockIdx.x, k = 0, to = 0, a_first = 0;
  const T *a_from = a, *b_from = b;
  bool b_exists = false;
  const auto select_tile = [&] {
    const int column_tile = quotient(coming, tiles.row_tiles);
    a_first = remainder(coming, column_tile, tiles.row_tiles) * ROWS + (A_K_MAJOR ? a_row : a_vector * VECTOR);
    a_from = a + (A_K_MAJOR ? a_first * of_a.row + a_vector * VECTOR : a_row * of_a.row + a_first);
    const int column = column_tile * WIDE + b_vector * VECTOR;
    b_exists = column < tiles.columns;
    b_from = b + (b_exists ? view_offset(of_b, b_row, column) : 0);
  };
  const auto load_stage = [&] {
    unsigned char* const slot = bytes + to * STAGE;
#pragma unroll
    for (int i = 0; i < (A_K_MAJOR ? ROWS : DEEP); i += A_STEP) {
      const bool exists = A_K_MAJOR ? a_first + i < tiles.rows && k + a_vector * VECTOR < tiles.depth
                                  : a_first < tiles.rows && k + a_row + i < tiles.depth;
      const T* const from = A_K_MAJOR ? a_from + i * of_a.row + k : a_from + (k + i) * of_a.row;
      load_async<T, VECTOR>(reinterpret_cast<T*>(slot + a_slot + i * 128), exists ? from : a, exists);
    }
#pragma unroll
    for (int i = 0; i < DEEP; i += B_STEP) {
      const bool exists = b_exists && k + b_row + i < tiles.depth;
      load_async<T, VECTOR>(reinterpret_cast<T*>(slot + b_slot + i * 128), exists ? b_from + (k + i) * of_b.row : b, exists);
    }
    to = to + 1 == RING ? 0 : to + 1;
    k += DEEP;
    if (k < tiles.depth) return;
    k = 0;
    coming += gridDim.x;
    if (coming < tiles.count) select_tile();
  };
  if (coming < tiles.count) select_tile();
#pragma unroll
  for (int stage = 0; stage < RING - 1; ++stage) {
    if (coming < tiles.count) load_stage();
    cp_async_commit_group();
  }

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int top = warp * 16 + lane / 4, left = lane % 4 * VECTOR;  // first result of this lane after the exchange
  int slot = 0;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const int column_tile = quotient(tile, tiles.row_tiles);
    const int row = remainder(tile, column_tile, tiles.row_tiles) * ROWS + top, column = column_tile * WIDE + left;
    float sum[64];
    uint4 more[2][4] = {};
#pragma unroll 1
    for (int done = 0; done < tiles.depth; done += DEEP) {
      cp_async_wait_group<RING - 2>();
      fence_proxy_async();
      __syncthreads();
      if (coming < tiles.count) load_stage();
      cp_async_commit_group();
      if (addend != nullptr && done + DEEP >= tiles.depth) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          if (column + part * 32 >= tiles.columns) continue;
          const T* const from = addend + view_offset(of_d, row, column + part * 32);
          if (row < tiles.rows) more[0][part] = __ldcs(reinterpret_cast<const uint4*>(from));
          if (row + 8 < tiles.rows) more[1][part] = __ldcs(reinterpret_cast<const uint4*>(from + 8 * of_d.row));
        }
      }
      const unsigned int stage = ring + slot * STAGE;
      const unsigned long long of_slab = matrix_descriptor(stage + warp / 4 * SLAB, SLAB);
      const unsigned long long of_wide = matrix_descriptor(stage + R * SLAB, SLAB);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < DEEP / 16; ++i) {  // the address of a descriptor is in units of 16 bytes
        wgmma_mma_async<!A_K_MAJOR>(sum, of_slab + i * (A_K_MAJOR ? 2 : 128), of_wide + i * 128, done + i > 0,
                           static_cast<const T*>(nullptr));
      }
      wgmma_commit_and_wait();
      slot = slot + 1 == RING ? 0 : slot + 1;
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const bool exists = column + part * 32 < tiles.columns;
      T* const into = d + (exists ? view_offset(of_d, row, column + part * 32) : 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned int v[4] = {more[half][part].x, more[half][part].y, more[half][part].z, more[half][part].w};
        if (addend != nullptr) trade(v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float first = sum[(part * 4 + i) * 4 + half * 2], second = sum[(part * 4 + i) * 4 + half * 2 + 1];
          if (addend != nullptr) {
            const Pair<T> pair = *reinterpret_cast<const Pair<T>*>(&v[i]);
            first += widen(pair.at[0]);
            second += widen(pair.at[1]);
          }
          v[i] = bits<T>(first, second);
        }
        trade(v);
        if (exists && row + 8 * half < tiles.rows) {
          __stcs(reinterpret_cast<uint4*>(into + 8 * half * of_d.row), make_uint4(v[0], v[1], v[2], v[3]));
        }
      }
    }
  }
}

#else

template <typename T, bool A_K_MAJOR, int R>
__global__ void persistent_wgmma(const T*, const T*, const T*, T*, View, View, View, Tiles) {
  __trap();  // other devices use gemm.cu
}

#endif
