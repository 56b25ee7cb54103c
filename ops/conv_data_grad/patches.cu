// conv_data_grad in 16-bit types by wgmma (sm_90a): dy and the filter are read as they lie, channels last.

#include "cluster.cuh"
#include "ptx/bar.cuh"
#include "ptx/mbarrier.cuh"
#include "slab.cuh"
#include "tensor_map.cuh"
#include "wgmma.cuh"

DEFINE_PixelClass;  // of patches.py
DEFINE_PatchPlan;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int GROUP = 128, CONSUMERS = 2;  // threads of a warpgroup, and warpgroups that multiply

struct Barriers {
  unsigned long long patch_full[2], patch_empty[2], full[RING], empty[RING];
};

// Stores results with channels first: each warp those of some channels, V adjacent pixels of a row of the tile at once.
template <typename T, int N, int V>
__device__ __forceinline__ void store_first(
    const float* results, const T* __restrict__ addend, T* __restrict__ dx, const PatchPlan& plan,
    const PixelClass& pixels, int column, int x0, int y0, int image0) {
  constexpr int WARPS = CONSUMERS * GROUP / 32, LOADS = 4;
  const long long plane = static_cast<long long>(plan.height) * plan.width;
  const int rows = plan.box_images * plan.box_height, channels = min(N, plan.channels - column);
  for (int i = threadIdx.x % 32 * V; i < rows * plan.box_width; i += 32 * V) {
    const int row = i / plan.box_width, x = i - row * plan.box_width;
    const int image = row / plan.box_height, y = row - image * plan.box_height;
    const int to_y = (y0 + y) * plan.stride_y + pixels.residue_y, to_x = (x0 + x) * plan.stride_x + pixels.residue_x;
    if (to_y >= plan.height || to_x >= plan.width || image0 + image >= plan.images) continue;
    const long long first = (static_cast<long long>(image0 + image) * gridDim.y + blockIdx.y) * plan.channels + column;
    const long long at = first * plane + static_cast<long long>(to_y) * plan.width + to_x;
    const float* const from = results + image * 64 + y * plan.pitch + x;
#pragma unroll 1
    for (int channel0 = threadIdx.x / 32; channel0 < channels; channel0 += LOADS * WARPS) {
      VectorWord<T, V> more[LOADS] = {};
#pragma unroll
      for (int n = 0; n < LOADS; ++n) {
        const int channel = channel0 + n * WARPS;
        if (addend != nullptr && channel < channels) more[n] = fetch<T, V>(addend + at + channel * plane);
      }
#pragma unroll
      for (int n = 0; n < LOADS; ++n) {
        const int channel = channel0 + n * WARPS;
        if (channel >= channels) break;
        Vector<T, V> sum = as_vector<T, V>(more[n]);
#pragma unroll
        for (int k = 0; k < V; ++k) sum.at[k] = narrow<T>(from[channel * RESULT_PITCH + k] + widen(sum.at[k]));
        store<T, V>(dx + at + channel * plane, sum);
      }
    }
  }
}

// convolve_patches: a block computes two groups of 64 lines of dx, of one residue class, by N channels.
// Layout   dy (N, H, W, Co), filter (Co, taps, C / groups), dx and the addend (N, H, W, C), or (N, C, H, W)
// Grid     tiles of channels · tiles of pixels of all classes × groups      Block  CONSUMERS warpgroups and a warp
// Needs    16-byte vectors of channels of dy, the filter, and dx and addend if theirs are last; whole slabs of Co in a
//          group, or one group
// Writes   dx
// Why      TMA loads the patch of dy that a tile reads, with zeros around the image, once for all taps: a tap is a
//          distance in lines of 128 bytes, by which the first factor's descriptor begins later
// A line holds 64 channels of a pixel of the patch, `pitch` of which are a row; results of lines at the end of a row, that
// belong to no pixel, are dropped. A producer loads patches of 64 channels, and the filter of each tap.
// FIRST: adjacent pixels that are stored at once where channels are first; 0 where they are last.
template <typename T, int N, int FIRST>
__global__ void __launch_bounds__(CONSUMERS * GROUP + 32, N == 64 ? 3 : 2) convolve_patches(
    const __grid_constant__ TensorMap of_dy, const __grid_constant__ TensorMap of_filter, const T* __restrict__ addend,
    T* __restrict__ dx, const __grid_constant__ PatchPlan plan) {
  constexpr int STAGE = N / 64 * SLAB;
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned int patches = (shared_address(memory) + 1023) / 1024 * 1024, ring = patches + plan.patches * plan.patch_room;
  Barriers& barriers = *reinterpret_cast<Barriers*>(memory + (ring - shared_address(memory)) + RING * STAGE);
  const int column = blockIdx.x % plan.column_tiles * N;
  int tile = blockIdx.x / plan.column_tiles, number = 0;
  while (number + 1 < plan.classes && tile >= plan.pixels[number + 1].first_tile) ++number;
  const PixelClass& pixels = plan.pixels[number];
  tile -= pixels.first_tile;
  const int x0 = tile % pixels.across * plan.box_width, rest = tile / pixels.across;
  const int y0 = rest % pixels.down * plan.box_height, image0 = rest / pixels.down * plan.box_images;
  const int taps = pixels.taps_y * pixels.taps_x;
  const int group = threadIdx.x / GROUP;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(barriers.patch_full + i, 1);
      mbarrier_init(barriers.patch_empty + i, CONSUMERS * GROUP / 32);
    }
    for (int i = 0; i < RING; ++i) {
      mbarrier_init(barriers.full + i, 1);
      mbarrier_init(barriers.empty + i, CONSUMERS * GROUP / 32);
    }
    mbarrier_init_fence();
  }
  __syncthreads();

  if (group == CONSUMERS) {
    if (threadIdx.x != CONSUMERS * GROUP || taps == 0) return;
    int slot = 0, round = 0;
    for (int chunk = 0; chunk < plan.chunks; ++chunk) {
      const int which = chunk % 2, depth = blockIdx.y * plan.outs + chunk * DEEP;
      if (chunk >= 2) mbarrier_wait(barriers.patch_empty + which, chunk / 2 - 1 & 1);
      mbarrier_arrive_expect_tx(barriers.patch_full + which, plan.patch_bytes);
      cp_async_bulk_tensor_load(
          patches + which * plan.patch_room, of_dy, depth, x0 + pixels.low_x, y0 + pixels.low_y, image0,
          barriers.patch_full + which);
      for (int y = 0; y < pixels.taps_y; ++y) {
        int tap = (pixels.tap_y + y * plan.between_y) * plan.kernel_width + pixels.tap_x;
        for (int x = 0; x < pixels.taps_x; ++x, tap += plan.between_x) {
          if (round > 0) mbarrier_wait(barriers.empty + slot, round - 1 & 1);
          mbarrier_arrive_expect_tx(barriers.full + slot, STAGE);
#pragma unroll
          for (int part = 0; part < N / 64; ++part) {
            cp_async_bulk_tensor_load(
                ring + slot * STAGE + part * SLAB, of_filter, column + part * 64, tap, depth, barriers.full + slot);
          }
          slot = slot + 1 == RING ? 0 : slot + 1;
          round += slot == 0;
        }
      }
    }
    return;
  }

  const bool apart = plan.box_images > 1;  // the second group has an image of its own
  const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32, left = lane % 4 * 8;
  const auto place = [&](int half) {  // of a result's pixel in dx, in channels of a group; -1 if it has none
    const int line = (apart ? 0 : group * 64) + warp * 16 + lane / 4 + half * 8;
    const int y = line / plan.pitch, x = line - y * plan.pitch, image = image0 + (apart ? group : 0);
    const int to_y = (y0 + y) * plan.stride_y + pixels.residue_y, to_x = (x0 + x) * plan.stride_x + pixels.residue_x;
    const bool exists = x < plan.box_width && y < plan.box_height && to_y < plan.height && to_x < plan.width &&
                        image < plan.images;
    const long long pixel = (static_cast<long long>(image) * plan.height + to_y) * plan.width + to_x;
    return exists ? pixel * gridDim.y + blockIdx.y : -1;
  };
  if (FIRST == 0 && addend != nullptr && lane % 4 < N / 64 && column + lane % 4 * 64 < plan.channels) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long pixel = place(half);
      if (pixel >= 0) prefetch_to_l2(addend + pixel * plan.channels + column + lane % 4 * 64);
    }
  }
  float sum[N / 2];
  const int row = plan.step_y * plan.pitch * LINE, next = plan.step_x * LINE, taps_x = pixels.taps_x;
  unsigned int own = patches + group * (apart ? plan.image_lines : 64) * LINE;
  own += (pixels.taps_y - 1) * row + (taps_x - 1) * next;  // where a patch's first tap begins
  int slot = 0, round = 0, before = RING - 1;
  for (int chunk = 0; chunk < (taps > 0 ? plan.chunks : 0); ++chunk) {
    const int which = chunk % 2;
    unsigned int line = own + which * plan.patch_room;
    mbarrier_wait(barriers.patch_full + which, chunk / 2 & 1);
    for (int tap = 0, x = taps_x; tap < taps; ++tap) {
      mbarrier_wait(barriers.full + slot, round & 1);
      const unsigned long long a = matrix_descriptor(line, SLAB), b = matrix_descriptor(ring + slot * STAGE, SLAB);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < DEEP / 16; ++i) {  // the address of a descriptor is in units of 16 bytes
        wgmma_mma_async<0>(sum, a + i * 2, b + i * 128, chunk + tap + i > 0, static_cast<const T*>(nullptr));
      }
      wgmma_commit_and_wait<1>();
      if (lane == 0 && chunk + tap > 0) {  // the products before these are done
        mbarrier_arrive(barriers.empty + before);
        if (tap == 0) mbarrier_arrive(barriers.patch_empty + 1 - which);
      }
      line -= --x > 0 ? next : row - (taps_x - 1) * next;
      x = x > 0 ? x : taps_x;
      before = slot;
      slot = slot + 1 == RING ? 0 : slot + 1;
      round += slot == 0;
    }
  }
  wgmma_commit_and_wait(sum);
  if (taps == 0) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum[i] = 0;
  }
  if constexpr (FIRST > 0) {
    bar_sync<1, CONSUMERS * GROUP>();  // patches and filter are no longer read
    float* const results = reinterpret_cast<float*>(memory + (patches - shared_address(memory)));
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const int channel = i / 4 * 8 + lane % 4 * 2 + i % 2;
      results[channel * RESULT_PITCH + group * 64 + warp * 16 + lane / 4 + i % 4 / 2 * 8] = sum[i];
    }
    bar_sync<1, CONSUMERS * GROUP>();
    store_first<T, N, FIRST>(results, addend, dx, plan, pixels, column, x0, y0, image0);
    return;
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const long long pixel = place(half), at = pixel * plan.channels + column + left;
    uint4 more[N / 32] = {};
    if (addend != nullptr && pixel >= 0) {
#pragma unroll
      for (int part = 0; part < N / 32; ++part) {
        if (column + left + part * 32 >= plan.channels) continue;
        more[part] = __ldcs(reinterpret_cast<const uint4*>(addend + at + part * 32));
      }
    }
#pragma unroll
    for (int part = 0; part < N / 32; ++part) {
      unsigned int v[4] = {more[part].x, more[part].y, more[part].z, more[part].w};
      if (addend != nullptr) trade(v);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Pair<T> pair = *reinterpret_cast<const Pair<T>*>(&v[i]);
        const int from = (part * 4 + i) * 4 + half * 2;
        v[i] = bits<T>(sum[from] + widen(pair.at[0]), sum[from + 1] + widen(pair.at[1]));
      }
      trade(v);
      if (pixel < 0 || column + left + part * 32 >= plan.channels) continue;
      *reinterpret_cast<uint4*>(dx + at + part * 32) = make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
}

#else

template <typename T, int N, int FIRST>
__global__ void convolve_patches(TensorMap, TensorMap, const T*, T*, PatchPlan) {
  __trap();  // other devices use gather.cu
}

#endif
