// d = a b in 16-bit types for a short depth, by wgmma (sm_90a): what is written outweighs what is read and multiplied.
//
// A block keeps 64 R rows of a in shared memory and sweeps over columns, 64 P at a time. Some warps do nothing but bring
// b, others multiply and write: what is brought by cp.async must be shown to the matrix units by a fence, which waits
// for all writes of its thread as well, and a warp that fences must therefore not write results. These go through a
// warp's own corner of shared memory, so that they leave as whole lines of 128 bytes.

#include "pipeline.cuh"
#include "view.cuh"
#include "wgmma.cuh"

struct Sweep {
  int columns, depth;      // of one group; the depth is a multiple of 64
  int column_tiles, step;  // step: column tiles from one of a block to its next
  Divisor row_tiles;       // of 64 R rows, all of them full
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int DEEP = 64;               // products of a stage
constexpr int LINE = 128;              // bytes: 64 rows or columns at one depth
constexpr int PANEL = DEEP * LINE;     // bytes of 64 columns of a stage
constexpr int CORNER = 16 * LINE;      // bytes of a warp's 16 rows by 64 columns of results
constexpr int PACK = 8;                // elements of 16 bytes
constexpr int RING = 3;                // stages

// Where a line's piece of 16 bytes lies.
__device__ __forceinline__ int flipped(int line, int piece) { return line * LINE + (piece ^ line % 8) * 16; }

// Four 8x8 matrices, a pair of neighbours in each lane; lanes 8 i to 8 i + 7 say where the rows of the i-th go.
__device__ __forceinline__ void store_matrices(unsigned int to, const unsigned int (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}

// As `copy_async`; what is read leaves the L2 cache before anything else.
template <typename T, int N>
__device__ __forceinline__ void copy_async_streaming(T* to, const T* from, bool valid, unsigned long long policy) {
  constexpr int BYTES = N * sizeof(T);
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address(to)),
                 "l"(from), "r"(valid ? 16 : 0), "l"(policy));
  } else {
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3, %4;" ::"r"(shared_address(to)),
                 "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0), "l"(policy));
  }
}

// a is stored (depth, rows), b (depth, columns); a moves in packs of 16 bytes, b and d in packs of V elements.
// LEAVES: 1 where b is the first to leave the cache, 2 where d is, 3 where both are.
template <typename T, int R, int P, int V, int LEAVES>
__global__ void __launch_bounds__(R == 1 ? 160 : 128 * R + 64, P == 2 ? 4 / R : R == 1 ? 6 : R == 2 ? 3 : 1) sweep(
    const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ d, const __grid_constant__ View of_a,
    const __grid_constant__ View of_b, const __grid_constant__ View of_d, const __grid_constant__ Sweep size) {
  constexpr int WRITERS = 128 * R, BRINGERS = R == 1 ? 32 : 64, STAGE = P * PANEL;
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned int kept = (shared_address(memory) + 1023) / 1024 * 1024;  // of a: R panels, as deep as the factors
  unsigned char* const bytes = memory + (kept - shared_address(memory));
  const int ring = size.depth * R * LINE, corners = ring + RING * STAGE;
  unsigned long long* const full = reinterpret_cast<unsigned long long*>(bytes + corners + 4 * R * CORNER);
  unsigned long long* const empty = full + RING;
  const int first = quotient(blockIdx.x, size.row_tiles);
  const int row = remainder(blockIdx.x, first, size.row_tiles) * 64 * R;
  const int stages = size.depth / DEEP;
  b += blockIdx.y * of_b.group;
  if (threadIdx.x == 0) {
    for (int i = 0; i < RING; ++i) {
      barrier_init(full + i, BRINGERS);
      barrier_init(empty + i, 4 * R);
    }
  }

  if (threadIdx.x >= WRITERS) {
    constexpr int PACKS = 64 * P / V, STEP = BRINGERS / PACKS;  // lines at a time
    const int line = (threadIdx.x - WRITERS) / PACKS, across = (threadIdx.x - WRITERS) % PACKS * V;
    const int piece = across % 64 / PACK, within = across % PACK * static_cast<int>(sizeof(T));
    int coming = first, k = 0, to = 0;
    bool exists = false;
    const T* from = b;
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    const auto aim = [&] {
      const int column = coming * 64 * P + across;
      exists = column < size.columns;
      from = exists ? b + place(of_b, line, column) : b;
    };
    const auto bring = [&] {
      unsigned char* const stage = bytes + ring + to * STAGE + across / 64 * PANEL + within;
#pragma unroll 8
      for (int i = 0; i < DEEP; i += STEP) {
        T* const into = reinterpret_cast<T*>(stage + flipped(line + i, piece));
        if constexpr (LEAVES & 1) {
          copy_async_streaming<T, V>(into, from, exists, policy);
        } else {
          copy_async<T, V>(into, from, exists);
        }
        if (exists) from += STEP * of_b.row;
      }
      to = to + 1 == RING ? 0 : to + 1;
      k += DEEP;
      if (k < size.depth) return;
      k = 0;
      coming += size.step;
      if (coming < size.column_tiles) aim();
    };
    aim();
#pragma unroll
    for (int i = 0; i < RING - 1; ++i) {
      if (coming < size.column_tiles) bring();
      commit();
    }
    __syncthreads();
    const int total = (size.column_tiles - first + size.step - 1) / size.step * stages;
    for (int n = 0; n < total; ++n) {
      wait_for_all_but<RING - 2>();
      show_to_matrix_units();
      barrier_arrive(full + n % RING);
      if (coming < size.column_tiles) {
        if (n > 0) barrier_wait(empty + (n - 1) % RING, (n - 1) / RING & 1);
        bring();
      }
      commit();
    }
  } else {
    constexpr int PACKS = 64 * R / PACK, STEP = WRITERS / PACKS;
    const int line = threadIdx.x / PACKS, across = threadIdx.x % PACKS;
    const T* from = a + blockIdx.y * of_a.group + row + line * of_a.row + across * PACK;
    for (int k = line; k < size.depth; k += DEEP) {
#pragma unroll
      for (int i = 0; i < DEEP; i += STEP) {
        unsigned char* const to = bytes + across / 8 * size.depth * LINE + flipped(k + i, across % 8);
        copy_async<T, PACK>(reinterpret_cast<T*>(to), from, true);
        from += STEP * of_a.row;
      }
    }
    commit();
    wait_for_all_but<0>();
    show_to_matrix_units();
    __syncthreads();

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned int corner = kept + corners + warp * CORNER;
    const unsigned long long of_panel = describe(kept + warp / 4 * size.depth * LINE, PANEL);
    constexpr int LANES = 64 / V, ROWS = 32 / LANES;  // of one access of a warp: lanes a row, rows
    const int top = lane / LANES, left = lane % LANES * V;
    T* const into = d + blockIdx.y * of_d.group + (row + warp * 16) * of_d.row;
    float sum[32 * P];
    int n = 0;
#pragma unroll 1
    for (int tile = first; tile < size.column_tiles; tile += size.step) {
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage, ++n) {
        const unsigned long long of_wide = describe(kept + ring + n % RING * STAGE, PANEL);
        barrier_wait(full + n % RING, n / RING & 1);
        begin_products();
#pragma unroll
        for (int i = 0; i < DEEP / 16; ++i) {  // the address of a descriptor is in units of 16 bytes
          multiply<1>(sum, of_panel + stage * (PANEL / 16) + i * 128, of_wide + i * 128, stage + i > 0,
                      static_cast<const T*>(nullptr));
        }
        end_products();
        if (lane == 0) barrier_arrive(empty + n % RING);
      }
#pragma unroll
      for (int panel = 0; panel < P; ++panel) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // 16 columns
          const float* const s = sum + panel * 32 + i * 8;
          store_matrices(corner + flipped(lane % 16, 2 * i + lane / 16),
                         {bits<T>(s[0], s[1]), bits<T>(s[2], s[3]), bits<T>(s[4], s[5]), bits<T>(s[6], s[7])});
        }
        __syncwarp();
        const int column = (tile * P + panel) * 64 + left;
        if (column < size.columns) {
          T* const to = into + place(of_d, top, column);
#pragma unroll
          for (int i = 0; i < 16; i += ROWS) {
            const unsigned char* const at = bytes + corners + warp * CORNER + flipped(top + i, left / PACK);
            const Pack<T, V> pack = load<T, V>(reinterpret_cast<const T*>(at) + left % PACK);
            if constexpr (LEAVES & 2) {
              store_streaming<T, V>(to + i * of_d.row, pack);
            } else {
              store<T, V>(to + i * of_d.row, pack);
            }
          }
        }
        __syncwarp();
      }
    }
  }
}

#else

template <typename T, int R, int P, int V, int LEAVES>
__global__ void sweep(const T*, const T*, T*, View, View, View, Sweep) {
  __trap();  // other devices take the product of gemm.cu
}

#endif
