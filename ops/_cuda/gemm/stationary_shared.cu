// d = a b in 16-bit types for a short depth and channels last: blocks keep channels of the filter, and pixels pass by.
//
// Two groups of four warps take turns: each multiplies alone, so that the other writes meanwhile. One thread brings all,
// by tensor maps. It must never wait for stores, nor may what frees a place for it: an arrival with cluster scope did:
// half as long again. Results go through shared memory, so that they leave as whole lines of 128 bytes, first to leave
// the cache: what the copying unit stores is not, whatever it is told.

#include "divide.cuh"
#include "swizzled_tile.cuh"
#include "ptx/bar_sync.cuh"
#include "ptx/mbarrier.cuh"
#include "tensor_map.cuh"
#include "wgmma.cuh"

struct Turns {
  int depth, stages;  // of one group of the convolution; a multiple of 64, and how many of them
  int tiles, step;    // of 64 pixels; from one of a block to its next
};

struct Last {
  Turns turns;
  int filter_rows, filter_columns, dy_columns, channels;  // to the next group of the convolution, of d last
  int pixels;
  long long pitch;  // of d, in elements
  Divisor kept;     // shares of channels, of 64 P each, all of them full
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int RING = 8;         // stages of pixels
constexpr int MOST_STAGES = 8;  // of a depth
constexpr int P = 4;            // 64s of channels that a block ping_pong_fits
constexpr int S = 2;            // swizzled_tiles of results that a group has room for
constexpr int GROUP = 128, THREADS = 2 * GROUP + 32;

struct Barriers {  // full, empty: of a group's stages, as they arrive; turns: may it multiply
  unsigned long long full[2][RING], empty[2][RING], kept[MOST_STAGES], turns[2];

  __device__ __forceinline__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2 * RING; ++i) {
        mbarrier_init(full[0] + i, 1);
        mbarrier_init(empty[0] + i, GROUP / 32);
      }
      for (int i = 0; i < MOST_STAGES; ++i) mbarrier_init(kept + i, 1);
      for (int i = 0; i < 2; ++i) mbarrier_init(turns + i, GROUP / 32);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
  }
};

// keep(stage) brings what is kept; bring(tile, stage, slot, barrier) what passes by, a swizzled_tile.
template <typename Keep, typename Bring>
__device__ __forceinline__ void bring_all(
    Barriers& barriers, const Turns& size, int first, const Keep& keep, const Bring& bring) {
  int n = 0, freed_turn = 0, freed_stage = 0;  // freed: whose place the next stage takes
  for (int tile = first, turn = 0; tile < size.tiles; tile += size.step, ++turn) {
    for (int stage = 0; stage < size.stages; ++stage, ++n) {
      if (turn == 0) keep(stage);
      if (n >= RING) {
        const int before = freed_turn / 2 * size.stages + freed_stage;
        mbarrier_wait(barriers.empty[freed_turn % 2] + before % RING, before / RING & 1);
        if (++freed_stage == size.stages) freed_stage = 0, ++freed_turn;
      }
      unsigned long long* const full = barriers.full[turn % 2] + (turn / 2 * size.stages + stage) % RING;
      mbarrier_arrive_expect_tx(full, SWIZZLED_TILE);
      bring(tile, stage, n % RING, full);
    }
  }
}

// Of the block's `turn`-th tile; free(barrier) says that a warp has read a stage, or that the other group may multiply.
template <typename T, int N, typename Free>
__device__ __forceinline__ void multiply_tile(
    float (&sum)[N], Barriers& barriers, const Turns& size, int turn, unsigned int kept, unsigned int ring,
    const Free& free) {
  int n = turn / 2 * size.stages;
  if (turn > 0) mbarrier_wait(barriers.turns + turn % 2, (turn - 1) / 2 & 1);
#pragma unroll 1
  for (int stage = 0; stage < size.stages; ++stage, ++n) {
    mbarrier_wait(barriers.full[turn % 2] + n % RING, n / RING & 1);
    if (turn < 2) mbarrier_wait(barriers.kept + stage, 0);
    const unsigned long long passing = describe(ring + (turn * size.stages + stage) % RING * SWIZZLED_TILE, SWIZZLED_TILE);
    const unsigned long long staying = describe(kept + stage * SWIZZLED_TILE, size.depth * LINE);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DEEP / 16; ++i) {  // the address of a descriptor is in units of 16 bytes
      multiply<false>(sum, passing + i * 2, staying + i * 128, stage + i > 0, static_cast<const T*>(nullptr));
    }
    wgmma_commit_and_wait<1>();
    if (stage > 0) free(barriers.empty[turn % 2] + (n - 1) % RING);
  }
  free(barriers.turns + (turn + 1) % 2);
  wgmma_wait_group<0>();
  free(barriers.empty[turn % 2] + (n - 1) % RING);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) b_stationary_shared(
    const __grid_constant__ TensorMap filter, const __grid_constant__ TensorMap dy, T* d,
    const __grid_constant__ Last size) {
  const int depth = size.turns.depth, step = size.turns.step;
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned int kept = (shared_address(memory) + 1023) / 1024 * 1024;  // swizzled_tiles as deep as the factors
  unsigned char* const bytes = memory + (kept - shared_address(memory));
  const int ring = depth * P * LINE, room = ring + RING * SWIZZLED_TILE;
  Barriers& barriers = *reinterpret_cast<Barriers*>(bytes + room + 2 * S * SWIZZLED_TILE);
  const int first = quotient(blockIdx.x, size.kept);
  const int share = remainder(blockIdx.x, first, size.kept) * 64 * P;
  const int group = threadIdx.x / GROUP, member = threadIdx.x % GROUP;
  barriers.init();

  if (group == 2) {
    if (member == 0) {
      prefetch_tensormap(filter);
      prefetch_tensormap(dy);
    }
    const auto keep = [&](int stage) {
      mbarrier_arrive_expect_tx(barriers.kept + stage, P * SWIZZLED_TILE);
      const int row = blockIdx.y * size.filter_rows, column = blockIdx.y * size.filter_columns + share;
      for (int swizzled_tile = 0; swizzled_tile < P; ++swizzled_tile) {
        cp_async_bulk_tensor_load(kept + swizzled_tile * depth * LINE + stage * SWIZZLED_TILE, filter, column + swizzled_tile * 64, row + stage * DEEP,
                  barriers.kept + stage);
      }
    };
    const auto bring = [&](int tile, int stage, int slot, unsigned long long* barrier) {
      const int across = blockIdx.y * size.dy_columns + stage * DEEP;
      cp_async_bulk_tensor_load(kept + ring + slot * SWIZZLED_TILE, dy, across, tile * 64, barrier);
    };
    if (member == 0) bring_all(barriers, size.turns, first, keep, bring);
    __syncwarp();
  } else {
    const int lane = member % 32, warp = member / 32;
    const int own = room + group * S * SWIZZLED_TILE;
    const int column = blockIdx.y * size.channels + share;
    const auto free = [&](unsigned long long* barrier) {
      if (lane == 0) mbarrier_arrive(barrier);
    };
    const int top = warp * 16 + lane / 8, left = lane % 8;  // a lane's line and piece, of one access of a warp
    float sum[32 * P];
#pragma unroll 1
    for (int tile = first + group * step, turn = group; tile < size.turns.tiles; tile += 2 * step, turn += 2) {
      multiply_tile<T>(sum, barriers, size.turns, turn, kept, kept + ring, free);
      const int there = size.pixels - tile * 64;
      T* const into = d + (top < there ? (tile * 64 + top) * size.pitch + column + left * 8 : 0);
#pragma unroll
      for (int swizzled_tile = 0; swizzled_tile < P; ++swizzled_tile) {
        unsigned char* const slot = bytes + own + swizzled_tile % S * SWIZZLED_TILE;
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // 16 channels
          const float* const s = sum + swizzled_tile * 32 + i * 8;
          unsigned char* const at = slot + swizzled(warp * 16 + lane % 16, 2 * i + lane / 16);
          store_matrices<false>(shared_address(at), {bits<T>(s[0], s[1]), bits<T>(s[2], s[3]), bits<T>(s[4], s[5]),
                                                     bits<T>(s[6], s[7])});
        }
        __syncwarp();  // a warp's lines are its own
        if (top < there) {
          T* to = into + swizzled_tile * 64;
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
__global__ void b_stationary_shared(TensorMap, TensorMap, T*, Last) {
  __trap();  // other devices take the product of gemm.cu
}

#endif
