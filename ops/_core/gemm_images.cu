// d = a b in 16-bit types for a short depth and channels first: blocks keep channels of the filter, and pixels pass by.
//
// As in gemm_last.cu, two groups of four warps each multiply and write, and tensor maps bring everything, for each
// group by a thread of its own. A tile is 64 pixels, which may be of two images: of such a tile both images' boxes
// come, and each warp takes its 16 pixels from its own image's, to registers, where a product may have its first
// factor. Zeros in the place of another image's pixels would be wrong where the filter is infinite.

#include "divide.cuh"
#include "panel.cuh"
#include "pipeline.cuh"
#include "tensor_map.cuh"
#include "wgmma.cuh"

struct Images {
  int stages, in_turn;                                 // of the depth, by the 64; does one group multiply at a time
  int tiles, step;                                     // of 64 pixels; from one of a block to its next
  int filter_rows, filter_columns, dy_rows, channels;  // to the next group of the convolution, of d last
  int pixels, total;                                   // of an image, a multiple of 16, and of all
  long long image;                                     // from one of d to the next, in elements
  Divisor by_pixels, kept;                             // kept: shares of channels, of 64 P each, all of them full
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int MOST_STAGES = 4;  // of a depth
constexpr int P = 4;            // 64s of channels that a block keeps
constexpr int RING = 4;         // panels on their way to a group
constexpr int S = 2;            // panels of results that a group has room for
constexpr int GROUP = 128, THREADS = 3 * GROUP;
constexpr int MULTIPLIERS = 232, BRINGERS = 40;  // registers of a thread: what one group gives up others take

struct Barriers {
  unsigned long long full[2][RING], empty[2][RING], kept[MOST_STAGES], turns[2];
};

struct Tile {  // of 64 pixels: where it begins, and how many of them are of that image
  int image, pixel, there;

  __device__ __forceinline__ Tile(int tile, const Images& size)
      : image(quotient(tile * 64, size.by_pixels)),
        pixel(remainder(tile * 64, image, size.by_pixels)),
        there(min(size.pixels - pixel, 64)) {}
  __device__ __forceinline__ int boxes() const { return there < 64 ? 2 : 1; }
};

// Panels on their way from one thread to a group.
struct Ring {
  unsigned char* panels;
  unsigned long long *full, *empty;
  int n = 0;  // panels before

  __device__ __forceinline__ void bring(const TensorMap& map, const Tile& tile, int row, const Images& size) {
    for (int next = 0; next < tile.boxes(); ++next, ++n) {
      const int slot = n % RING;
      if (n >= RING) barrier_wait(empty + slot, n / RING - 1 & 1);
      barrier_arrive_and_expect(full + slot, PANEL);
      const unsigned int to = shared_address(panels) + slot * PANEL;
      bring_box(to, map, tile.pixel - next * size.pixels, row, tile.image + next, full + slot);
    }
  }

  // Four 16x16 matrices, 64 lines by a warp's pixels, a lane's part of which begins at `from` in a panel.
  __device__ __forceinline__ void take(unsigned int (&to)[DEEP / 16][4], const Tile& tile, int from, int warp) const {
    for (int i = 0; i < tile.boxes(); ++i) barrier_wait(full + (n + i) % RING, (n + i) / RING & 1);
    const unsigned char* const panel = panels + (n + (warp * 16 >= tile.there)) % RING * PANEL;
#pragma unroll
    for (int i = 0; i < DEEP / 16; ++i) load_matrices<true>(to[i], panel + from + i * 16 * LINE);
  }

  __device__ __forceinline__ void free(const Tile& tile) {
    for (int i = 0; i < tile.boxes(); ++i, ++n) {
      if (threadIdx.x % 32 == 0) barrier_arrive(empty + n % RING);
    }
  }
};

// The filter is stored (depth, channels), dy (images, depth, pixels), d (images, channels, pixels).
template <typename T>
__global__ void __launch_bounds__(THREADS, 1) pass_images(
    const __grid_constant__ TensorMap filter, const __grid_constant__ TensorMap dy, T* d,
    const __grid_constant__ Images size) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned int kept = (shared_address(memory) + 1023) / 1024 * 1024;  // panels as deep as the factors
  unsigned char* const bytes = memory + (kept - shared_address(memory));
  const int deep = size.stages * PANEL, rings = P * deep, room = rings + 2 * RING * PANEL;
  Barriers& barriers = *reinterpret_cast<Barriers*>(bytes + room + 2 * S * PANEL);
  const int first = quotient(blockIdx.x, size.kept), share = remainder(blockIdx.x, first, size.kept) * 64 * P;
  const int role = threadIdx.x / GROUP, member = threadIdx.x % GROUP, lane = member % 32, warp = member / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * RING; ++i) {
      barrier_init(barriers.full[0] + i, 1);
      barrier_init(barriers.empty[0] + i, GROUP / 32);
    }
    for (int i = 0; i < 2; ++i) barrier_init(barriers.turns + i, GROUP / 32);
    for (int i = 0; i < MOST_STAGES; ++i) barrier_init(barriers.kept + i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  const int group = role < 2 ? role : warp % 2;  // of two warps that bring, each serves one
  const int channel = blockIdx.y * size.channels + share;
  Ring pixels{bytes + rings + group * RING * PANEL, barriers.full[group], barriers.empty[group]};
  if (role == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(BRINGERS));
    if (lane != 0 || warp > 1) return;
    for (int tile = first + group * size.step; tile < size.tiles; tile += 2 * size.step) {
      const Tile at(tile, size);
      for (int stage = 0; stage < size.stages; ++stage) {
        if (tile == first) {
          barrier_arrive_and_expect(barriers.kept + stage, P * PANEL);
          const int row = blockIdx.y * size.filter_rows + stage * DEEP;
          const int column = blockIdx.y * size.filter_columns + share;
          for (int panel = 0; panel < P; ++panel) {
            const unsigned int to = kept + panel * deep + stage * PANEL;
            bring_box(to, filter, column + panel * 64, row, barriers.kept + stage);
          }
        }
        pixels.bring(dy, at, blockIdx.y * size.dy_rows + stage * DEEP, size);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLIERS));
    unsigned char* const own = bytes + room + group * S * PANEL;
    const int top = warp * 16 + lane / 8, left = lane % 8 * 8;  // a lane's line and pixel, of one access of a warp
    const int from = flipped(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);  // in a panel: its part of 16 lines
    d += static_cast<long long>(channel + top) * size.pixels;
    float sum[32 * P];
    int turn = group;
#pragma unroll 1
    for (int tile = first + group * size.step; tile < size.tiles; tile += 2 * size.step) {
      const Tile at(tile, size);
      unsigned int a[2][DEEP / 16][4];
      pixels.take(a[0], at, from, warp);
      if (size.in_turn && turn > 0) barrier_wait(barriers.turns + group, turn - 1 & 1);
#pragma unroll 1
      for (int stage = 0; stage < size.stages; stage += 2) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          if (stage + odd == size.stages) break;
          barrier_wait(barriers.kept + stage + odd, 0);
          const unsigned long long of_channels = describe(kept + (stage + odd) * PANEL, deep);
          begin_products();
#pragma unroll
          for (int i = 0; i < DEEP / 16; ++i) {  // the address of a descriptor is in units of 16 bytes
            multiply(sum, a[odd][i], of_channels + i * 128, stage + odd + i > 0, static_cast<const T*>(nullptr));
          }
          commit_products();
          pixels.free(at);
          wait_for_products<1>();
          if (stage + odd + 1 < size.stages) pixels.take(a[odd ^ 1], at, from, warp);
        }
      }
      if (lane == 0) barrier_arrive(barriers.turns + (group ^ 1));
      ++turn;
      wait_for_products<0>();
      const int pixel = tile * 64 + left, image = quotient(pixel, size.by_pixels);
      T* to = d + image * size.image + remainder(pixel, image, size.by_pixels);
#pragma unroll
      for (int panel = 0; panel < P; ++panel) {
        unsigned char* const slot = own + panel % S * PANEL;
        const float* const s = sum + panel * 32;
#pragma unroll
        for (int i = 0; i < 32; i += 8) {  // 16 channels
          store_matrices<true>(shared_address(slot + from + i * 2 * LINE),
                               {bits<T>(s[i], s[i + 1]), bits<T>(s[i + 2], s[i + 3]), bits<T>(s[i + 4], s[i + 5]),
                                bits<T>(s[i + 6], s[i + 7])});
        }
        meet<GROUP>(1 + group);  // lines are of all warps
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
          const Pack<T, 8> pack = load<T, 8>(reinterpret_cast<const T*>(slot + flipped(top + i, left / 8)));
          if (pixel < size.total) store_streaming<T, 8>(to + i * size.pixels, pack);
        }
        to += static_cast<long long>(64) * size.pixels;
      }
    }
  }
}

#else

template <typename T>
__global__ void pass_images(TensorMap, TensorMap, T*, Images) {
  __trap();  // other devices take the product of gemm.cu
}

#endif
