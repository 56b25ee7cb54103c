// d = a b in 16-bit types for a short depth, channels first, by TMA and wgmma (sm_90a) with the filter in registers.
//
// A strip is 64 pixels of one image; its last strip may have fewer. Each of two warpgroups holds 64 channels of the
// filter as the first factor of its products, and both read the same strips, which TMA loads into a ring. The last slots
// of the ring first receive the filter. Results of a strip are stored while the next one is multiplied.

#include "divide.cuh"
#include "slab.cuh"
#include "ptx/bar.cuh"
#include "ptx/mbarrier.cuh"
#include "tensor_map.cuh"
#include "wgmma.cuh"

DEFINE_Strips;  // of launch.py

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int RING = 24;  // slabs of a strip or of the filter
constexpr int GROUPS = 2, GROUP = 128, CONSUMERS = GROUPS * GROUP, THREADS = CONSUMERS + 32;
constexpr int WARPS = CONSUMERS / 32, STAGING = 16 * LINE;  // bytes of a warp's results

// a_stationary_registers: persistent blocks multiply register-resident channels of the filter with strips of pixels.
// Layout   filter (depth, channels), dy (images, depth, pixels), d (images, channels, pixels)
// Grid     shares of 128 channels · blocks each × groups       Block  THREADS
// Needs    depth 64 · STAGES, rows of 16-byte multiples        Writes  d, by TMA if BY_TMA, else with evict_first
// Why      the filter is read from shared memory once, and stores overlap with products
template <typename T, int STAGES, bool BY_TMA>
__global__ void __launch_bounds__(THREADS, 1) a_stationary_registers(
    const __grid_constant__ TensorMap filter, const __grid_constant__ TensorMap dy,
    const __grid_constant__ TensorMap of_d, T* d, const __grid_constant__ Strips size) {
  constexpr int FIRST_RESIDENT = RING - GROUPS * STAGES;  // first slot of the filter
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned int ring = (shared_address(memory) + 1023) / 1024 * 1024;
  unsigned char* const bytes = memory + (ring - shared_address(memory));
  unsigned long long* const full = reinterpret_cast<unsigned long long*>(bytes + RING * SLAB + WARPS * STAGING);
  unsigned long long *const empty = full + RING, *const resident = empty + RING;
  const int first = quotient(blockIdx.x, size.resident), share = remainder(blockIdx.x, first, size.resident) * GROUPS * 64;
  const int group = threadIdx.x / GROUP, warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (group == GROUPS) {
    if (lane == 0) {
      prefetch_tensormap(filter);
      prefetch_tensormap(dy);
      for (int i = 0; i < RING; ++i) {
        mbarrier_init(full + i, 1);
        mbarrier_init(empty + i, WARPS);
      }
      for (int i = 0; i < STAGES; ++i) mbarrier_init(resident + i, 1);
      mbarrier_init_fence();
    }
    __syncwarp();
    bar_arrive<1, THREADS>();  // does not wait for the consumers
    if (lane != 0) return;
    int slot = 0, phase = 0;
    for (int strip = first; strip < size.strips; strip += size.step) {
      const int image = quotient(strip, size.each), pixel = remainder(strip, image, size.each) * 64;
      for (int stage = 0; stage < STAGES; ++stage) {
        if (strip == first) {
          mbarrier_arrive_expect_tx(resident + stage, GROUPS * SLAB);
          const int column = blockIdx.y * size.filter_columns + share;
          for (int i = 0; i < GROUPS; ++i) {
            cp_async_bulk_tensor_load(ring + (FIRST_RESIDENT + GROUPS * stage + i) * SLAB, filter, column + i * 64,
                      blockIdx.y * size.filter_rows + stage * DEEP, resident + stage);
          }
        }
        const int before = phase + (slot >= FIRST_RESIDENT);  // number of previous uses of this slot
        if (before > 0) mbarrier_wait(empty + slot, before - 1 & 1);
        mbarrier_arrive_expect_tx(full + slot, SLAB);
        cp_async_bulk_tensor_load(ring + slot * SLAB, dy, pixel, blockIdx.y * size.dy_rows + stage * DEEP, image, full + slot);
        if (++slot == RING) slot = 0, ++phase;
      }
    }
  } else {
    if (BY_TMA && threadIdx.x == 0) prefetch_tensormap(of_d);
    bar_sync<THREADS>(1);
    int slot = 0, phase = 0, released = 0;
    unsigned int a[STAGES * DEEP / 16][4];
    float sums[2][32];
    const auto release = [&](int slot) {
      if (lane == 0) mbarrier_arrive(empty + slot);
    };
    const auto multiply_stage = [&](float (&sum)[32], int stage) {
      mbarrier_wait(full + slot, phase & 1);
      const unsigned long long of_pixels = matrix_descriptor(ring + slot * SLAB, SLAB);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < DEEP / 16; ++i) {  // the address of a descriptor is in units of 16 bytes
        wgmma_mma_async(sum, a[stage * DEEP / 16 + i], of_pixels + i * 128, stage + i > 0, static_cast<const T*>(nullptr));
      }
      wgmma_commit_group();
      if (++slot == RING) slot = 0, ++phase;
    };
    const auto multiply_strip = [&](float (&sum)[32]) {
#pragma unroll
      for (int stage = 0; stage < STAGES; ++stage) multiply_stage(sum, stage);
    };
    const auto finish_strip = [&](float (&sum)[32]) {
      wgmma_wait_group<0>();
#pragma unroll
      for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(sum[i])::"memory");  // no sum may be read before
#pragma unroll
      for (int stage = 0; stage < STAGES; ++stage) {
        release(released);
        if (++released == RING) released = 0;
      }
    };
    unsigned char* const staging = bytes + RING * SLAB + warp * STAGING;
    const int channel = blockIdx.y * size.channels + share + warp * 16, row = lane / 8, piece = lane % 8;
    d += static_cast<long long>(channel + row) * size.pixels + piece * 8;
    const auto write_strip = [&](const float (&sum)[32], int strip) {
      if constexpr (BY_TMA) {
        if (lane == 0) cp_async_bulk_wait_group_read();
        __syncwarp();
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // 16 pixels
        const float* const s = sum + i * 8;
        stmatrix<false>(shared_address(staging + swizzled(lane % 16, 2 * i + lane / 16)),
                              {bits<T>(s[0], s[1]), bits<T>(s[2], s[3]), bits<T>(s[4], s[5]), bits<T>(s[6], s[7])});
      }
      const int image = quotient(strip, size.each), pixel = remainder(strip, image, size.each) * 64;
      if constexpr (BY_TMA) {
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) cp_async_bulk_tensor_store(of_d, pixel, channel, image, shared_address(staging));
      } else {
        __syncwarp();
        T* const to = d + image * size.image + pixel;
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
          const Vector<T, 8> vector = load<T, 8>(reinterpret_cast<const T*>(staging + swizzled(row + i, piece)));
          if (pixel + piece * 8 < size.pixels) store_streaming<T, 8>(to + i * size.pixels, vector);
        }
        __syncwarp();
      }
    };

    const int from = swizzled(lane / 16 * 8 + lane % 8, 2 * (warp % 4) + lane / 8 % 2);
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
      const int at = FIRST_RESIDENT + GROUPS * stage;
      mbarrier_wait(resident + stage, 0);
#pragma unroll
      for (int i = 0; i < DEEP / 16; ++i) {
        ldmatrix<true>(a[stage * DEEP / 16 + i], bytes + (at + group) * SLAB + from + i * 16 * LINE);
      }
      multiply_stage(sums[0], stage);
#pragma unroll
      for (int i = 0; i < GROUPS; ++i) release(at + i);  // a product uses the registers: the loads have completed
    }
    finish_strip(sums[0]);
    const int step = size.step;
    int strip = first;
#pragma unroll 1
    for (; strip + 2 * step < size.strips; strip += 2 * step) {
      multiply_strip(sums[1]);
      write_strip(sums[0], strip);
      finish_strip(sums[1]);
      multiply_strip(sums[0]);
      write_strip(sums[1], strip + step);
      finish_strip(sums[0]);
    }
    if (strip + step < size.strips) {
      multiply_strip(sums[1]);
      write_strip(sums[0], strip);
      finish_strip(sums[1]);
      write_strip(sums[1], strip + step);
    } else {
      write_strip(sums[0], strip);
    }
    if (BY_TMA && lane == 0) cp_async_bulk_wait_group_read();
  }
}

#else

template <typename T, int STAGES, bool BY_TMA>
__global__ void a_stationary_registers(TensorMap, TensorMap, TensorMap, T*, Strips) {
  __trap();  // other devices use gemm.cu
}

#endif
