// d = a b (+ addend) in 16-bit types for a short depth, by wgmma (sm_90a), where stores outweigh products.
//
// One factor, the filter, is resident in shared memory, and a persistent block iterates over the other one. Producer
// warps only load: data of cp.async needs a proxy fence before wgmma reads it, and that fence waits for all stores of
// its thread, so that a warp that fences must not store results. Results pass through a warp's own staging buffer, to
// be stored as whole lines of 128 bytes; an addend is loaded into the same buffer, as early as it is free. Results are
// stored with evict_first: plain stores take half as long again (conv2_x of ResNet-50 on an H200: 29 us against 21).

#include "slab.cuh"
#include "ptx/bar.cuh"
#include "ptx/mbarrier.cuh"
#include "view.cuh"
#include "wgmma.cuh"

DEFINE_PersistentSize;  // of launch.py

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int STAGING = 16 * LINE;  // bytes of a warp's 16 rows by 64 columns of results
constexpr int VECTOR = 8;            // elements of 16 bytes
constexpr int RING = 3;            // stages

// persistent: persistent blocks compute tiles of 64 R rows by 64 P columns with one factor resident in shared memory.
// Layout   resident factor (depth, its rows or columns); LAST: d (streamed, resident), other (streamed, depth); else
//          d (resident, streamed), other (depth, streamed); by Views
// Grid     shares of the resident factor · blocks each × groups     Block  128 R consumers and 32 or 64 producers
// Needs    16-byte vectors of the resident factor, vectors of V elements of the others; depth a multiple of 64
// Writes   d, with evict_first
// Why      the resident factor is read once per block, and loads, products and stores overlap
template <typename T, int R, int P, int V, bool LAST>
__global__ void __launch_bounds__(R == 1 ? 160 : 128 * R + 64, P == 2 ? 4 / R : 3) persistent(
    const T* __restrict__ resident_factor, const T* __restrict__ other, const T* addend, T* d,
    const __grid_constant__ View of_resident, const __grid_constant__ View of_other, const __grid_constant__ View of_d,
    const __grid_constant__ PersistentSize size) {
  constexpr int WRITERS = 128 * R, PRODUCERS = R == 1 ? 32 : 64;
  constexpr int RESIDENT = LAST ? P : R, STREAMED = LAST ? R : P, STAGE = STREAMED * SLAB;
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned int resident = (shared_address(memory) + 1023) / 1024 * 1024;  // slabs as deep as the factors
  unsigned char* const bytes = memory + (resident - shared_address(memory));
  const int ring = size.depth * RESIDENT * LINE, staging_start = ring + RING * STAGE;
  static_assert(2 * RING * sizeof(unsigned long long) <= 64);  // barriers use the rest of the alignment
  unsigned long long* const full =
      reinterpret_cast<unsigned long long*>(bytes + staging_start + 4 * R * size.slots * STAGING);
  unsigned long long* const empty = full + RING;
  const int first = quotient(blockIdx.x, size.resident);
  const int share = remainder(blockIdx.x, first, size.resident) * 64 * RESIDENT;
  const int stages = size.depth / DEEP;
  if (threadIdx.x == 0) {
    for (int i = 0; i < RING; ++i) {
      mbarrier_init(full + i, PRODUCERS);
      mbarrier_init(empty + i, 4 * R);
    }
  }

  if (threadIdx.x >= WRITERS) {
    constexpr int VECTORS = LAST ? DEEP / V : 64 * P / V, STEP = PRODUCERS / VECTORS;  // lines at a time
    const int line = (threadIdx.x - WRITERS) / VECTORS, across = (threadIdx.x - WRITERS) % VECTORS * V;
    const int piece = across % 64 / VECTOR, within = across % VECTOR * static_cast<int>(sizeof(T));
    other += blockIdx.y * of_other.group;
    int coming = first, k = 0, to = 0, there = 0;  // there: lines of `coming`; results of further lines are not stored
    const T* from = other;
    const auto select_tile = [&] {
      if constexpr (LAST) {
        there = size.streamed - coming * 64 * R;
        from = other + (coming * 64 * R + line) * of_other.row + across;
      } else {
        const int column = coming * 64 * P + across;
        there = column < size.streamed ? DEEP : 0;
        from = other + (there > 0 ? view_offset(of_other, line, column) : 0);
      }
    };
    const auto load_stage = [&] {
      unsigned char* const stage = bytes + ring + to * STAGE + (LAST ? 0 : across / 64 * SLAB) + within;
#pragma unroll 8
      for (int i = 0; i < (LAST ? 64 * R : DEEP); i += STEP) {
        T* const into = reinterpret_cast<T*>(stage + swizzled(line + i, piece));
        if (line + i < there) load_async<T, V>(into, from + i * of_other.row, true);
      }
      from += LAST ? DEEP : DEEP * of_other.row;
      to = to + 1 == RING ? 0 : to + 1;
      k += DEEP;
      if (k < size.depth) return;
      k = 0;
      coming += size.step;
      if (coming < size.tiles) select_tile();
    };
    select_tile();
#pragma unroll
    for (int i = 0; i < RING - 1; ++i) {
      if (coming < size.tiles) load_stage();
      cp_async_commit_group();
    }
    __syncthreads();
    const int total = (size.tiles - first + size.step - 1) / size.step * stages;
    for (int n = 0; n < total; ++n) {
      cp_async_wait_group<RING - 2>();
      fence_proxy_async();
      mbarrier_arrive(full + n % RING);
      if (coming < size.tiles) {
        if (n > 0) mbarrier_wait(empty + (n - 1) % RING, (n - 1) / RING & 1);
        load_stage();
      }
      cp_async_commit_group();
    }
  } else {
    constexpr int VECTORS = 64 * RESIDENT / VECTOR, STEP = WRITERS / VECTORS;
    const int line = threadIdx.x / VECTORS, across = threadIdx.x % VECTORS;
    const T* from = resident_factor + blockIdx.y * of_resident.group + share + line * of_resident.row + across * VECTOR;
    for (int k = line; k < size.depth; k += DEEP) {
#pragma unroll
      for (int i = 0; i < DEEP; i += STEP) {
        unsigned char* const to = bytes + across / 8 * size.depth * LINE + swizzled(k + i, across % 8);
        load_async<T, VECTOR>(reinterpret_cast<T*>(to), from, true);
        from += STEP * of_resident.row;
      }
    }
    cp_async_commit_group();
    cp_async_wait_group<0>();
    fence_proxy_async();
    __syncthreads();

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int staging = staging_start + warp * size.slots * STAGING;
    constexpr int LANES = 64 / V, ROWS = 32 / LANES;  // of one access of a warp: lanes a row, rows
    const int top = lane / LANES, left = lane % LANES * V;
    d += blockIdx.y * of_d.group;
    // a lane's part of a slab: its offset in d, the number of the warp's 16 rows that exist, its offset in a slot
    const auto begin = [&](int tile, int slab) -> long long {
      if constexpr (LAST) {
        const int pixel = tile * 64 * R + warp * 16 + top, channels = static_cast<int>(of_d.row);
        return static_cast<long long>(pixel) * channels + (share + slab * 64 + left);
      }
      return view_offset(of_d, share + warp * 16 + top, (tile * P + slab) * 64 + left);
    };
    const auto rows_there = [&](int tile, int slab) {
      if constexpr (LAST) return size.streamed - (tile * 64 * R + warp * 16);
      return (tile * P + slab) * 64 + left < size.streamed ? 16 : 0;
    };
    const auto slot = [&](int slab) { return staging + (size.slots == 1 ? 0 : slab) * STAGING; };
    const auto offset_of = [&](int i) { return swizzled(top + i, left / VECTOR) + left % VECTOR * static_cast<int>(sizeof(T)); };
    const auto fetch = [&](int tile, int ahead) {  // loads the slab of the addend `ahead` slabs after the tile's first
      const int slab = ahead % P;
      tile += ahead / P * size.step;
      const int there = tile < size.tiles ? rows_there(tile, slab) : 0;
      if (top < there) {
        const T* const more = addend + begin(tile, slab);
#pragma unroll
        for (int i = 0; i < 16; i += ROWS) {
          if (LAST && top + i >= there) continue;
          T* const to = reinterpret_cast<T*>(bytes + slot(slab) + offset_of(i));
          load_async<T, V>(to, more + i * of_d.row, true);
        }
      }
      cp_async_commit_group();
    };
    if (addend != nullptr) {
      addend += blockIdx.y * of_d.group;
      for (int slab = 0; slab < size.slots; ++slab) fetch(first, slab);
    }
    float sum[32 * P];
    int n = 0;
#pragma unroll 1
    for (int tile = first; tile < size.tiles; tile += size.step) {
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage, ++n) {
        const unsigned int loaded = resident + ring + n % RING * STAGE;
        mbarrier_wait(full + n % RING, n / RING & 1);
        wgmma_fence();
        const unsigned int high = LAST ? loaded + warp / 4 * SLAB : resident + warp / 4 * size.depth * LINE + stage * SLAB;
        const unsigned long long of_high = matrix_descriptor(high, SLAB);
        const unsigned long long of_wide =
            LAST ? matrix_descriptor(resident + stage * SLAB, size.depth * LINE) : matrix_descriptor(loaded, SLAB);
#pragma unroll
        for (int i = 0; i < DEEP / 16; ++i) {  // the address of a descriptor is in units of 16 bytes
          wgmma_mma_async<!LAST>(sum, of_high + i * (LAST ? 2 : 128), of_wide + i * 128, stage + i > 0,
                          static_cast<const T*>(nullptr));
        }
        wgmma_commit_and_wait();
        if (lane == 0) mbarrier_arrive(empty + n % RING);
      }
#pragma unroll
      for (int slab = 0; slab < P; ++slab) {
        if (addend != nullptr) {
          P > 1 && size.slots > 1 ? cp_async_wait_group<P - 1>() : cp_async_wait_group<0>();
          __syncwarp();
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // 16 columns
          float* const s = sum + slab * 32 + i * 8;
          const unsigned int at = resident + slot(slab) + swizzled(lane % 16, 2 * i + lane / 16);
          if (addend != nullptr) {
            unsigned int v[4];
            ldmatrix<false>(v, at);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const Pair<T> pair = *reinterpret_cast<const Pair<T>*>(&v[j]);
              s[2 * j] += widen(pair.at[0]);
              s[2 * j + 1] += widen(pair.at[1]);
            }
          }
          stmatrix<false>(at, {bits<T>(s[0], s[1]), bits<T>(s[2], s[3]), bits<T>(s[4], s[5]), bits<T>(s[6], s[7])});
        }
        __syncwarp();
        const int there = rows_there(tile, slab);
        if (top < there) {
          T* const to = d + begin(tile, slab);
#pragma unroll
          for (int i = 0; i < 16; i += ROWS) {
            const Vector<T, V> vector = load<T, V>(reinterpret_cast<const T*>(bytes + slot(slab) + offset_of(i)));
            if (!LAST || top + i < there) store_streaming<T, V>(to + i * of_d.row, vector);
          }
        }
        __syncwarp();
        if (addend != nullptr) fetch(tile, slab + size.slots);
      }
    }
  }
}

#else

template <typename T, int R, int P, int V, bool LAST>
__global__ void persistent(const T*, const T*, const T*, T*, View, View, View, PersistentSize) {
  __trap();  // other devices use gemm.cu
}

#endif
