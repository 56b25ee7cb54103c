// d = a b (+ addend) in 16-bit types for a short depth, by wgmma (sm_90a), where products take as long as stores.
//
// Some channels of the filter are resident in shared memory, and a persistent block iterates over pixels, 64 at a time.
// Two consumer warpgroups alternate (ping-pong): one stores its results while the other multiplies. The second loads
// the filter, stage by stage, while the first begins. Producer warps only load pixels: data of cp.async needs a proxy
// fence before wgmma reads it, and that fence waits for all stores of its thread. Results pass through the warpgroup's
// shared memory and are stored as whole lines of 128 bytes with evict_first; an addend is loaded into the same buffer.

#include "slab.cuh"
#include "ptx/bar.cuh"
#include "ptx/mbarrier.cuh"
#include "tensor_map.cuh"
#include "view.cuh"
#include "wgmma.cuh"

DEFINE_PingPongSize;  // of launch.py

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int VECTOR = 8;       // elements of 16 bytes
constexpr int P = 4;            // 64-channel slabs of the resident filter
constexpr int RING = 4;         // stages
constexpr int MOST_STAGES = 8;  // of a depth
constexpr int GROUP = 128, PRODUCERS = 128;

struct Barriers {
  unsigned long long full[2][RING], empty[2][RING], resident[MOST_STAGES];
};

// ping_pong: two warpgroups alternate between products and stores of tiles of 64 P channels by 64 pixels.
// Layout   filter (depth, channels); LAST: d (pixels, channels), dy (pixels, depth); else transposed; by Views
// Grid     shares of channels · blocks each × groups       Block  2 · GROUP consumers and PRODUCERS
// Needs    16-byte vectors of the filter, vectors of V elements of the others; depth a multiple of 64, at most 512
// Writes   d, with evict_first
// Why      stores of one warpgroup overlap with products of the other
template <typename T, int V, bool LAST>
__global__ void __launch_bounds__(2 * GROUP + PRODUCERS, 1) ping_pong(
    const T* __restrict__ filter, const T* __restrict__ dy, const T* addend, T* d,
    const __grid_constant__ View of_filter, const __grid_constant__ View of_dy, const __grid_constant__ View of_d,
    const __grid_constant__ PingPongSize size) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned int resident = (shared_address(memory) + 1023) / 1024 * 1024;  // slabs of the whole depth
  unsigned char* const bytes = memory + (resident - shared_address(memory));
  const int ring = size.depth * P * LINE, staging = ring + RING * SLAB;
  Barriers& barriers = *reinterpret_cast<Barriers*>(bytes + staging + 2 * P * SLAB);
  const int first = quotient(blockIdx.x, size.resident);
  const int share = remainder(blockIdx.x, first, size.resident) * 64 * P;
  const int stages = size.depth / DEEP;
  const int group = threadIdx.x / GROUP, member = threadIdx.x % GROUP;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * RING; ++i) {
      mbarrier_init(barriers.full[0] + i, PRODUCERS);
      mbarrier_init(barriers.empty[0] + i, GROUP / 32);
    }
    for (int i = 0; i < MOST_STAGES; ++i) mbarrier_init(barriers.resident + i, GROUP);
  }
  __syncthreads();

  if (group == 2) {
    constexpr int VECTORS = 64 / V, STEP = PRODUCERS / VECTORS;  // lines at a time
    const int line = member / VECTORS, across = member % VECTORS * V;
    const int piece = across / VECTOR, within = across % VECTOR * static_cast<int>(sizeof(T));
    dy += blockIdx.y * of_dy.group;
    int coming = first, k = 0, to = 0, there = 0;  // there: lines of `coming`; results of further lines are not stored
    const T* from = dy;
    const auto select_tile = [&] {
      if constexpr (LAST) {
        there = size.pixels - coming * 64;
        from = dy + (coming * 64 + line) * of_dy.row + across;
      } else {
        const int pixel = coming * 64 + across;
        there = pixel < size.pixels ? DEEP : 0;
        from = dy + (there > 0 ? view_offset(of_dy, line, pixel) : 0);
      }
    };
    const auto load_stage = [&] {
      unsigned char* const stage = bytes + ring + to * SLAB + within;
#pragma unroll 8
      for (int i = 0; i < 64; i += STEP) {
        T* const into = reinterpret_cast<T*>(stage + swizzled(line + i, piece));
        if (line + i < there) load_async<T, V>(into, from + i * of_dy.row, true);
      }
      from += LAST ? DEEP : DEEP * of_dy.row;
      to = to + 1 == RING ? 0 : to + 1;
      k += DEEP;
      if (k < size.depth) return;
      k = 0;
      coming += size.step;
      if (coming < size.tiles) select_tile();
    };
    struct StageCursor {  // of a stage: its warpgroup, its number in that group, and its number in the tile
      int group = 0, count[2] = {0, 0}, stage = 0;
      __device__ __forceinline__ void advance(int stages) {
        count[0] += group == 0;
        count[1] += group == 1;
        stage = stage + 1 == stages ? 0 : stage + 1;
        group ^= stage == 0;
      }
      __device__ __forceinline__ int number() const { return group == 0 ? count[0] : count[1]; }
    };
    select_tile();
#pragma unroll
    for (int i = 0; i < RING - 1; ++i) {
      if (coming < size.tiles) load_stage();
      cp_async_commit_group();
    }
    if (member == 0 && size.ahead > 0) prefetch_part(addend, size.ahead);
    const int total = (size.tiles - first + size.step - 1) / size.step * stages;
    StageCursor now, before;  // before: the stage whose slot the next one reuses
    for (int n = 0; n < total; ++n) {
      cp_async_wait_group<RING - 2>();
      fence_proxy_async();
      mbarrier_arrive(barriers.full[now.group] + now.number() % RING);
      now.advance(stages);
      if (n > 0) {
        if (coming < size.tiles) {
          mbarrier_wait(barriers.empty[before.group] + before.number() % RING, before.number() / RING & 1);
        }
        before.advance(stages);
      }
      if (coming < size.tiles) load_stage();
      cp_async_commit_group();
    }
    return;
  }

  if (group == 1) {
    constexpr int VECTORS = 64 * P / VECTOR, STEP = GROUP / VECTORS;
    const int line = member / VECTORS, across = member % VECTORS;
    const T* from = filter + blockIdx.y * of_filter.group + share + line * of_filter.row + across * VECTOR;
    for (int k = line; k < size.depth; k += DEEP) {
#pragma unroll
      for (int i = 0; i < DEEP; i += STEP) {
        unsigned char* const to = bytes + across / 8 * size.depth * LINE + swizzled(k + i, across % 8);
        load_async<T, VECTOR>(reinterpret_cast<T*>(to), from, true);
        from += STEP * of_filter.row;
      }
      cp_async_commit_group();
    }
    for (int i = stages; i < MOST_STAGES; ++i) cp_async_commit_group();
    for (int i = 0; i < stages; ++i) {  // waits for the oldest group of copies
      cp_async_wait_group<MOST_STAGES - 1>();
      fence_proxy_async();
      mbarrier_arrive(barriers.resident + i);
      cp_async_commit_group();
    }
  }

  const int lane = member % 32, warp = member / 32;
  const int own = staging + group * P * SLAB;  // a tile of the addend, then of results
  constexpr int LANES = 64 / V, LINES = 32 / LANES;  // of one access of a warp: lanes per line, lines
  const int top = warp * 16 + lane / LANES, left = lane % LANES * V;
  d += blockIdx.y * of_d.group;
  const long long next_slab = LAST ? 64 : 64 * of_d.row;
  const auto begin = [&](int tile) -> long long {  // offset of a lane's part of a tile in d
    if constexpr (LAST) return (tile * 64 + top) * of_d.row + share + left;
    return view_offset(of_d, share + top, tile * 64 + left);
  };
  const auto lines_there = [&](int tile) {
    if constexpr (LAST) return size.pixels - tile * 64;
    return tile * 64 + left < size.pixels ? 64 : 0;
  };
  const auto offset_of = [&](int i) { return swizzled(top + i, left / VECTOR) + left % VECTOR * static_cast<int>(sizeof(T)); };
  const auto gather = [&] {  // synchronizes the warps that share lines: all of the group, or for LAST one
    if constexpr (LAST) {
      __syncwarp();
    } else {
      bar_sync<GROUP>(1 + group);
    }
  };
  const auto fetch = [&](int tile, int ahead) {  // loads the slab of the addend `ahead` slabs after the tile's first
    const int slab = ahead % P;
    tile += ahead / P * 2 * size.step;
    const int there = tile < size.tiles ? lines_there(tile) : 0;
    if (top < there) {
      const T* from = addend + begin(tile) + slab * next_slab;
#pragma unroll
      for (int i = 0; i < 16; i += LINES, from += LINES * of_d.row) {
        T* const to = reinterpret_cast<T*>(bytes + own + slab * SLAB + offset_of(i));
        if (!LAST || top + i < there) load_async<T, V>(to, from, true);
      }
    }
    cp_async_commit_group();
  };
  const int start = first + group * size.step;
  if (addend != nullptr) {
    addend += blockIdx.y * of_d.group;
    for (int slab = 0; slab < P; ++slab) fetch(start, slab);
  }
  float sum[32 * P];
  int n = 0, round = group;
#pragma unroll 1
  for (int tile = start; tile < size.tiles; tile += 2 * size.step, round += 2) {
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage, ++n) {
      mbarrier_wait(barriers.full[group] + n % RING, n / RING & 1);
      if (n < stages) mbarrier_wait(barriers.resident + stage, 0);
      const unsigned int loaded = resident + ring + (round * stages + stage) % RING * SLAB;
      const unsigned long long of_pixels = matrix_descriptor(loaded, SLAB);
      const unsigned long long of_channels = matrix_descriptor(resident + stage * SLAB, size.depth * LINE);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < DEEP / 16; ++i) {  // the address of a descriptor is in units of 16 bytes
        wgmma_mma_async<!LAST>(sum, of_pixels + i * (LAST ? 2 : 128), of_channels + i * 128, stage + i > 0,
                        static_cast<const T*>(nullptr));
      }
      wgmma_commit_and_wait<1>();
      if (stage > 0 && lane == 0) mbarrier_arrive(barriers.empty[group] + (n - 1) % RING);
    }
    wgmma_wait_group<0>();
    if (lane == 0) mbarrier_arrive(barriers.empty[group] + (n - 1) % RING);
    const int there = lines_there(tile);
    T* const into = d + (top < there ? begin(tile) : 0);
#pragma unroll
    for (int slab = 0; slab < P; ++slab) {
      if (addend != nullptr) cp_async_wait_group<P - 1>();
      if (addend != nullptr) gather();
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // 16 channels
        float* const s = sum + slab * 32 + i * 8;
        unsigned char* const at = bytes + own + slab * SLAB +
                                (LAST ? swizzled(warp * 16 + lane % 16, 2 * i + lane / 16)
                                      : swizzled(16 * i + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2));
        if (addend != nullptr) {
          unsigned int v[4];
          ldmatrix<!LAST>(v, at);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const Pair<T> pair = *reinterpret_cast<const Pair<T>*>(&v[j]);
            s[2 * j] += widen(pair.at[0]);
            s[2 * j + 1] += widen(pair.at[1]);
          }
        }
        stmatrix<!LAST>(shared_address(at), {bits<T>(s[0], s[1]), bits<T>(s[2], s[3]), bits<T>(s[4], s[5]),
                                                   bits<T>(s[6], s[7])});
      }
      gather();
      if (top < there) {
        T* to = into + slab * next_slab;
#pragma unroll
        for (int i = 0; i < 16; i += LINES, to += LINES * of_d.row) {
          const Vector<T, V> vector = load<T, V>(reinterpret_cast<const T*>(bytes + own + slab * SLAB + offset_of(i)));
          if (!LAST || top + i < there) store_streaming<T, V>(to, vector);
        }
      }
      __syncwarp();
      if (addend != nullptr) fetch(tile, slab + P);
    }
  }
}

#else

template <typename T, int V, bool LAST>
__global__ void ping_pong(const T*, const T*, const T*, T*, View, View, View, PingPongSize) {
  __trap();  // other devices use gemm.cu
}

#endif
