// d = a b in 16-bit types for a short depth, channels last, by TMA and wgmma (sm_90a), with the filter in shared memory.
//
// Two consumer warpgroups alternate (ping-pong): one multiplies while the other stores. One thread loads everything by
// TMA. It must never wait for stores, nor must the arrivals that release its slots: with cluster scope they wait for
// stores, and the kernel takes half as long again. Results pass through shared memory, to be stored as whole lines of
// 128 bytes with evict_first, which TMA stores do not honour.

#include "divide.cuh"
#include "slab.cuh"
#include "ptx/bar.cuh"
#include "ptx/mbarrier.cuh"
#include "tensor_map.cuh"
#include "wgmma.cuh"

DEFINE_StationarySize;  // of launch.py

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int RING = 8;         // stages of pixels
constexpr int MOST_STAGES = 8;  // of a depth
constexpr int P = 4;            // 64-channel slabs of the resident filter
constexpr int S = 2;            // slabs of staging per warpgroup
constexpr int GROUP = 128, THREADS = 2 * GROUP + 32;

struct Barriers {  // full, empty: of a group's stages; order: permission to multiply
  unsigned long long full[2][RING], empty[2][RING], resident[MOST_STAGES], order[2];

  __device__ __forceinline__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2 * RING; ++i) {
        mbarrier_init(full[0] + i, 1);
        mbarrier_init(empty[0] + i, GROUP / 32);
      }
      for (int i = 0; i < MOST_STAGES; ++i) mbarrier_init(resident + i, 1);
      for (int i = 0; i < 2; ++i) mbarrier_init(order + i, GROUP / 32);
      mbarrier_init_fence();
    }
    __syncthreads();
  }
};

// Producer: load_filter(stage) loads the resident filter, load_stage(tile, stage, slot, barrier) a slab of pixels.
template <typename LoadFilter, typename LoadStage>
__device__ __forceinline__ void load_all(
    Barriers& barriers, const StationarySize& size, int first, const LoadFilter& load_filter, const LoadStage& load_stage) {
  int n = 0, released_round = 0, released_stage = 0;  // released: the stage whose slot the next one reuses
  for (int tile = first, round = 0; tile < size.tiles; tile += size.step, ++round) {
    for (int stage = 0; stage < size.stages; ++stage, ++n) {
      if (round == 0) load_filter(stage);
      if (n >= RING) {
        const int before = released_round / 2 * size.stages + released_stage;
        mbarrier_wait(barriers.empty[released_round % 2] + before % RING, before / RING & 1);
        if (++released_stage == size.stages) released_stage = 0, ++released_round;
      }
      unsigned long long* const full = barriers.full[round % 2] + (round / 2 * size.stages + stage) % RING;
      mbarrier_arrive_expect_tx(full, SLAB);
      load_stage(tile, stage, n % RING, full);
    }
  }
}

// Multiplies the block's `round`-th tile; release(barrier) releases a stage, or lets the other group multiply.
template <typename T, int N, typename Release>
__device__ __forceinline__ void multiply_tile(
    float (&sum)[N], Barriers& barriers, const StationarySize& size, int round, unsigned int resident, unsigned int ring,
    const Release& release) {
  int n = round / 2 * size.stages;
  if (round > 0) mbarrier_wait(barriers.order + round % 2, (round - 1) / 2 & 1);
#pragma unroll 1
  for (int stage = 0; stage < size.stages; ++stage, ++n) {
    mbarrier_wait(barriers.full[round % 2] + n % RING, n / RING & 1);
    if (round < 2) mbarrier_wait(barriers.resident + stage, 0);
    const unsigned long long of_pixels = matrix_descriptor(ring + (round * size.stages + stage) % RING * SLAB, SLAB);
    const unsigned long long of_channels = matrix_descriptor(resident + stage * SLAB, size.depth * LINE);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DEEP / 16; ++i) {  // the address of a descriptor is in units of 16 bytes
      wgmma_mma_async<false>(sum, of_pixels + i * 2, of_channels + i * 128, stage + i > 0, static_cast<const T*>(nullptr));
    }
    wgmma_commit_and_wait<1>();
    if (stage > 0) release(barriers.empty[round % 2] + (n - 1) % RING);
  }
  release(barriers.order + (round + 1) % 2);
  wgmma_wait_group<0>();
  release(barriers.empty[round % 2] + (n - 1) % RING);
}

// b_stationary_shared: persistent blocks multiply pixels with channels of the filter resident in shared memory.
// Layout   filter (depth, channels), dy (pixels, depth), d (pixels, channels)
// Grid     shares of 64 P channels · blocks each × groups      Block  THREADS
// Needs    depth a multiple of 64, at most 512; rows of 16-byte multiples      Writes  d, with evict_first
// Why      stores of one warpgroup overlap with products of the other, and one thread issues all loads
template <typename T>
__global__ void __launch_bounds__(THREADS) b_stationary_shared(
    const __grid_constant__ TensorMap filter, const __grid_constant__ TensorMap dy, T* d,
    const __grid_constant__ StationarySize size) {
  const int depth = size.depth, step = size.step;
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned int resident = (shared_address(memory) + 1023) / 1024 * 1024;  // slabs of the whole depth
  unsigned char* const bytes = memory + (resident - shared_address(memory));
  const int ring = depth * P * LINE, staging = ring + RING * SLAB;
  Barriers& barriers = *reinterpret_cast<Barriers*>(bytes + staging + 2 * S * SLAB);
  const int first = quotient(blockIdx.x, size.resident);
  const int share = remainder(blockIdx.x, first, size.resident) * 64 * P;
  const int group = threadIdx.x / GROUP, member = threadIdx.x % GROUP;
  barriers.init();

  if (group == 2) {
    if (member == 0) {
      prefetch_tensormap(filter);
      prefetch_tensormap(dy);
    }
    const auto load_filter = [&](int stage) {
      mbarrier_arrive_expect_tx(barriers.resident + stage, P * SLAB);
      const int row = blockIdx.y * size.filter_rows, column = blockIdx.y * size.filter_columns + share;
      for (int slab = 0; slab < P; ++slab) {
        cp_async_bulk_tensor_load(resident + slab * depth * LINE + stage * SLAB, filter, column + slab * 64, row + stage * DEEP,
                  barriers.resident + stage);
      }
    };
    const auto load_stage = [&](int tile, int stage, int slot, unsigned long long* barrier) {
      const int across = blockIdx.y * size.dy_columns + stage * DEEP;
      cp_async_bulk_tensor_load(resident + ring + slot * SLAB, dy, across, tile * 64, barrier);
    };
    if (member == 0) load_all(barriers, size, first, load_filter, load_stage);
    __syncwarp();
  } else {
    const int lane = member % 32, warp = member / 32;
    const int own = staging + group * S * SLAB;
    const int column = blockIdx.y * size.channels + share;
    const auto release = [&](unsigned long long* barrier) {
      if (lane == 0) mbarrier_arrive(barrier);
    };
    const int top = warp * 16 + lane / 8, left = lane % 8;  // a lane's line and piece in one access of a warp
    float sum[32 * P];
#pragma unroll 1
    for (int tile = first + group * step, round = group; tile < size.tiles; tile += 2 * step, round += 2) {
      multiply_tile<T>(sum, barriers, size, round, resident, resident + ring, release);
      const int there = size.pixels - tile * 64;
      T* const into = d + (top < there ? (tile * 64 + top) * size.pitch + column + left * 8 : 0);
#pragma unroll
      for (int slab = 0; slab < P; ++slab) {
        unsigned char* const slot = bytes + own + slab % S * SLAB;
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // 16 channels
          const float* const s = sum + slab * 32 + i * 8;
          unsigned char* const at = slot + swizzled(warp * 16 + lane % 16, 2 * i + lane / 16);
          stmatrix<false>(shared_address(at), {bits<T>(s[0], s[1]), bits<T>(s[2], s[3]), bits<T>(s[4], s[5]),
                                                     bits<T>(s[6], s[7])});
        }
        __syncwarp();  // suffices: no other warp uses these lines
        if (top < there) {
          T* to = into + slab * 64;
#pragma unroll
          for (int i = 0; i < 16; i += 4, to += 4 * size.pitch) {
            const Vector<T, 8> vector = load<T, 8>(reinterpret_cast<const T*>(slot + swizzled(top + i, left)));
            if (top + i < there) store_streaming<T, 8>(to, vector);
          }
        }
        __syncwarp();
      }
    }
  }
}

#else

template <typename T>
__global__ void b_stationary_shared(TensorMap, TensorMap, T*, StationarySize) {
  __trap();  // other devices use gemm.cu
}

#endif
