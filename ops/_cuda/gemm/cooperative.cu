// d = a b (+ addend) in 16-bit types of depths from 256, by few large tiles, TMA and wgmma (sm_90a).
//
// Channels are the rows of the product and pixels its columns. A tile may have any multiple of 16 pixels, so that the
// number of tiles can match that of multiprocessors. One thread loads everything by TMA. After the last stage of a tile
// each warpgroup gets one more slot of the ring, into which its addend is loaded and from which TMA stores its results.

#include "divide.cuh"
#include "slab.cuh"
#include "ptx/bar.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/setmaxnreg.cuh"
#include "tensor_map.cuh"
#include "wgmma.cuh"

DEFINE_Tiles;  // of launch.py

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int GROUPS = 2, GROUP = 128, THREADS = (GROUPS + 1) * GROUP;
constexpr int LAUNCHED = 168, CONSUMERS = 240, PRODUCERS = 24;  // registers per thread before and after setmaxnreg

template <int N>
constexpr int STORED_LINES = N % 64 == 0 ? 64 : 16;  // lines per TMA store

// Stores 64 channels of a group and N pixels, as lines, through a slot that has those of the addend.
template <typename T, int N>
__device__ __forceinline__ void write_pixels(
    float (&sum)[N / 2], const TensorMap& d, bool added, unsigned char* staging, int channel, int pixel) {
  constexpr int EACH = N / 16;
  const int group = threadIdx.x / GROUP, member = threadIdx.x % GROUP, lane = member % 32, warp = member / 32;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {  // 16 pixels
    float* const s = sum + i * 8;
    const int line = i * 16 + lane / 16 * 8 + lane % 8;
    unsigned char* const at = staging + swizzled(line, 2 * warp + lane / 8 % 2);
    if (added) {
      unsigned int v[4];
      ldmatrix<true>(v, at);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Pair<T> pair = *reinterpret_cast<const Pair<T>*>(&v[j]);
        s[2 * j] += widen(pair.at[0]);
        s[2 * j + 1] += widen(pair.at[1]);
      }
    }
    stmatrix<true>(shared_address(at),
                         {bits<T>(s[0], s[1]), bits<T>(s[2], s[3]), bits<T>(s[4], s[5]), bits<T>(s[6], s[7])});
    if (i % 4 != 3 && i != EACH - 1) continue;
    fence_proxy_async();
    bar_sync<GROUP>(2 + group);
    if (member == 0) {  // in parts, so that stores overlap with the conversion
      for (int from = i / 4 * 64; from < i * 16 + 16; from += STORED_LINES<N>) {
        cp_async_bulk_tensor_store(d, channel, pixel + from, shared_address(staging) + from * LINE);
      }
    }
  }
}

// Stores a group's 64 channels and N pixels of whole images, each image contiguous, in shared memory too.
template <typename T, int N>
__device__ __forceinline__ void write_images(
    const float (&sum)[N / 2], const Tiles& size, unsigned char* staging, T* to, int images) {
  const int group = threadIdx.x / GROUP, member = threadIdx.x % GROUP, lane = member % 32, warp = member / 32;
  T* const results = reinterpret_cast<T*>(staging);
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {  // a pixel; each lane has two of its channels
    const int pixel = i / 2 * 8 + lane % 4 * 2 + i % 2, image = quotient(pixel, size.by_pixels);
    if (image >= images) continue;
    T* const at = results + (image * 64 + warp * 16 + lane / 4) * size.pixels + remainder(pixel, image, size.by_pixels);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float result = sum[i / 2 * 4 + half * 2 + i % 2];
      if (size.added) result += widen(at[half * 8 * size.pixels]);
      at[half * 8 * size.pixels] = narrow<T>(result);
    }
  }
  fence_proxy_async();
  bar_sync<GROUP>(2 + group);
  if (member != 0) return;
  for (int i = 0; i < images; ++i) {
    cp_async_bulk_store(to + i * size.pitch, shared_address(staging) + i * size.pixels * LINE, size.pixels * LINE);
  }
}

// cooperative: a block computes tiles of 2 · 64 U channels by N pixels; two consumer warpgroups share each stage.
// Layout   filter (depth, channels), dy (pixels, depth); d and the addend (pixels, channels) if LAST, else
//          (images, channels, pixels), in tiles of whole images
// Grid     resident blocks × groups       Block  two consumer warpgroups and one producer
// Needs    depth a multiple of 64, from 256; rows of 16-byte multiples          Writes  d, by TMA
// Why      large tiles halve the traffic to shared memory; the first warpgroup's stores overlap with products
template <typename T, bool LAST, int U, int N>
__global__ void __launch_bounds__(THREADS, 1) cooperative(
    const __grid_constant__ TensorMap filter, const __grid_constant__ TensorMap dy,
    const __grid_constant__ TensorMap of_addend, const __grid_constant__ TensorMap of_d, const T* addend, T* d,
    const __grid_constant__ Tiles size) {
  constexpr int SLABS = GROUPS * U, LINES = N * LINE, STAGE = SLABS * SLAB + LINES;
  constexpr int RING = (226 * 1024 - 256) / STAGE;
  static_assert(U * LINES <= STAGE && (LAST || U == 1));
  static_assert(U == 1 || RING > GROUPS);  // results reuse the slots of stages before the last
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned int ring = (shared_address(memory) + 1023) / 1024 * 1024;
  unsigned char* const bytes = memory + (ring - shared_address(memory));
  unsigned long long* const full = reinterpret_cast<unsigned long long*>(bytes + RING * STAGE);
  unsigned long long* const empty = full + RING;
  const int group = threadIdx.x / GROUP, member = threadIdx.x % GROUP, stages = size.stages;
  int slot = 0, phase = 0;  // slot of the ring, and number of rounds through it
  const auto advance = [&] {
    slot = slot + 1 == RING ? 0 : slot + 1;
    phase += slot == 0;
  };
  int share = 0, pixel = 0, image = 0, images = 0;  // first channel, pixel and image of a tile, and its images
  const auto select_tile = [&](int tile) {
    const int across = quotient(tile, size.shares);
    share = remainder(tile, across, size.shares) * 64 * SLABS;
    pixel = across * (LAST ? N : size.each * size.pixels);
    image = across * size.each;
    images = min(size.images - image, size.each);
  };
  const auto offset_of = [&](int group, int i) {  // a group's channels of a tile's i-th image, if not LAST
    return (image + i) * size.pitch + (blockIdx.y * size.channels + share + group * 64) * size.pixels;
  };

  if (group == GROUPS) {
    setmaxnreg<LAUNCHED, PRODUCERS>();
    if (member >= 32) return;
    if (member == 0) {
      prefetch_tensormap(filter);
      prefetch_tensormap(dy);
      for (int i = 0; i < RING; ++i) {
        mbarrier_init(full + i, 1);
        mbarrier_init(empty + i, GROUPS * GROUP / 32);
      }
      mbarrier_init_fence();
    }
    __syncwarp();
    bar_arrive<1, GROUPS * GROUP + 32>();  // does not wait for the consumers
    if (member != 0) return;
    for (int tile = blockIdx.x; tile < size.count; tile += gridDim.x) {
      select_tile(tile);
      for (int stage = 0; stage < stages + GROUPS; ++stage, advance()) {
        if (phase > 0) mbarrier_wait(empty + slot, (phase - 1) & 1);
        const unsigned int to = ring + slot * STAGE;
        if (stage < stages) {
          mbarrier_arrive_expect_tx(full + slot, STAGE);
          cp_async_bulk_tensor_load(to + SLABS * SLAB, dy, blockIdx.y * size.dy_columns + stage * DEEP, pixel, full + slot);
          const int column = blockIdx.y * size.filter_columns + share;
          for (int slab = 0; slab < SLABS; ++slab) {
            cp_async_bulk_tensor_load(to + slab * SLAB, filter, column + slab * 64, blockIdx.y * size.filter_rows + stage * DEEP,
                      full + slot);
          }
        } else if (size.added) {
          const int owner = stage - stages;
          if constexpr (LAST) {
            mbarrier_arrive_expect_tx(full + slot, U * LINES);
            const int column = blockIdx.y * size.channels + share + owner * U * 64;
            for (int u = 0; u < U; ++u) cp_async_bulk_tensor_load(to + u * LINES, of_addend, column + u * 64, pixel, full + slot);
          } else {
            const int part = size.pixels * LINE;
            mbarrier_arrive_expect_tx(full + slot, images * part);
            for (int i = 0; i < images; ++i) cp_async_bulk_load(to + i * part, addend + offset_of(owner, i), part, full + slot);
          }
        } else {
          mbarrier_arrive(full + slot);
        }
      }
    }
  } else {
    setmaxnreg<LAUNCHED, CONSUMERS>();
    bar_sync<GROUPS * GROUP + 32>(1);
    if (U > 1 && group > 0) mbarrier_wait(full + 1, 0);  // delays one group, to store while the other multiplies
    const auto release = [&](int slot) {
      if (member % 32 == 0) mbarrier_arrive(empty + slot);
    };
#pragma unroll 1
    for (int tile = blockIdx.x; tile < size.count; tile += gridDim.x) {
      float sum[U][N / 2];
      const auto multiply_part = [&](int i, int u, bool add) {  // a depth of 16, 64 channels
        const unsigned int loaded = ring + slot * STAGE;
        const unsigned long long of_channels = matrix_descriptor(loaded + group * U * SLAB, SLAB);
        const unsigned long long of_pixels = matrix_descriptor(loaded + SLABS * SLAB, SLAB);
        // the address of a descriptor is in units of 16 bytes
        wgmma_mma_async<1, 0>(sum[u], of_channels + u * (SLAB / 16) + i * 128, of_pixels + i * 2, add,
                       static_cast<const T*>(nullptr));
      };
      int before = 0;
#pragma unroll 1
      for (int stage = 0; stage < stages - (U - 1); ++stage, advance()) {
        mbarrier_wait(full + slot, phase & 1);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < DEEP / 16; ++i) {
#pragma unroll
          for (int u = 0; u < U; ++u) multiply_part(i, u, stage + i > 0);
        }
        wgmma_commit_and_wait<1>();
        if (stage > 0) release(before);
        before = slot;
      }
      const int last = slot;
      if constexpr (U > 1) {  // in the last stage, the first channels are completed first and stored meanwhile
        mbarrier_wait(full + slot, phase & 1);
        wgmma_fence();
#pragma unroll
        for (int u = 0; u < U; ++u) {
#pragma unroll
          for (int i = 0; i < DEEP / 16; ++i) multiply_part(i, u, stages + i > 1);
          wgmma_commit_group();
        }
        advance();
      }
      wgmma_wait_group<U - 1>();
      if (U == 1 || stages > 1) release(before);
      select_tile(tile);
      const auto pass = [&](int groups) {  // skips the slots of other groups
        for (int i = 0; i < groups; ++i, advance()) {
          mbarrier_wait(full + slot, phase & 1);
          release(slot);
        }
      };
      pass(group);
      mbarrier_wait(full + slot, phase & 1);
      unsigned char* const staging = bytes + slot * STAGE;
      if constexpr (LAST) {
        const int channel = blockIdx.y * size.channels + share + group * U * 64;
        write_pixels<T, N>(sum[0], of_d, size.added, staging, channel, pixel);
        if constexpr (U > 1) {
          static_assert(U == 2);
          wgmma_wait_group<0>();
          release(last);
          write_pixels<T, N>(sum[1], of_d, size.added, staging + LINES, channel + 64, pixel);
        }
      } else {
        write_images<T, N>(sum[0], size, staging, d + offset_of(group, 0), images);
      }
      if (member == 0) cp_async_bulk_wait_group_read();
      __syncwarp();
      release(slot);
      advance();
      pass(GROUPS - 1 - group);
    }
  }
}

constexpr int TRANSPOSE_THREADS = 256, MOST_PIXELS = 208;

// transpose_images: a block transposes a depth of 64 of one image.
// Layout   dy[images][depth][pixels]      Grid  depth / 64 × images     Block  TRANSPOSE_THREADS
// Needs    pixels ≤ MOST_PIXELS, 16-byte rows                           Writes  transposed[images][pixels][depth]
template <typename T>
__global__ void __launch_bounds__(TRANSPOSE_THREADS) transpose_images(const T* __restrict__ dy, T* transposed, int depth, int pixels) {
  __shared__ __align__(16) T slab[64 * MOST_PIXELS];
  dy += (static_cast<long long>(blockIdx.y) * depth + blockIdx.x * 64) * pixels;
  transposed += static_cast<long long>(blockIdx.y) * depth * pixels + blockIdx.x * 64;
  for (int i = threadIdx.x * 8; i < 64 * pixels; i += TRANSPOSE_THREADS * 8) store<T, 8>(slab + i, load<T, 8>(dy + i));
  __syncthreads();
  for (int i = threadIdx.x; i < 8 * pixels; i += TRANSPOSE_THREADS) {
    Vector<T, 8> vector;
#pragma unroll
    for (int j = 0; j < 8; ++j) vector.at[j] = slab[(i % 8 * 8 + j) * pixels + i / 8];
    store<T, 8>(transposed + static_cast<long long>(i / 8) * depth + i % 8 * 8, vector);
  }
}

#else

template <typename T>
__global__ void transpose_images(const T*, T*, int, int) {
  __trap();  // other devices take the product of gemm.cu
}

template <typename T, bool LAST, int U, int N>
__global__ void cooperative(TensorMap, TensorMap, TensorMap, TensorMap, const T*, T*, Tiles) {
  __trap();  // other devices take the product of gemm.cu
}

#endif
