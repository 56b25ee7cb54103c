// deformable_conv without a column buffer: samples pass through shared memory to the tensor cores, on sm_90a.
//
// `prepare` transposes x to channels last, packs the filter by stages and computes sample positions; `convolve` computes
// 64 Q pixels x N R output channels per block. Eight producer warps sample, Q x R consumer warpgroups multiply, with a
// ring of stages in shared memory between them. A stage is one tap and 128 bytes of channels.
//
// float32 is split into two halves of 11 bits each, and three of the four products are summed. To fit the range of
// halves it is scaled by powers of two: the filter so that the largest of each row, samples so that the largest of each
// pixel's stage lies in [2^14, 2^15). Factors within 2^-17 of the largest lose nothing, smaller ones are exact to 2^-40
// of it; an infinite one gives NaN. A stage is summed separately and then added with rounding, as tensor cores truncate.
// For the accuracy of TF32 the first half suffices: HALVES is 1, and a stage has twice the channels.

#include "fused_plan.cuh"
#include "fused_prepare.cuh"
#include "fused_produce.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Multiplies one stage of 64 pixels and N output channels. Floats: two halves per number, small products first, or one.
template <int HALVES, int SIZE>
__device__ __forceinline__ void multiply_stage(
    float (&sum)[SIZE], const unsigned char* filter, const unsigned char* samples, const float* scales, const float*) {
  const unsigned long long a = matrix_descriptor(samples), b = matrix_descriptor(filter);
  const __half* const halves = nullptr;
  float part[SIZE];
#pragma unroll
  for (int i = 0; i < SIZE; ++i) part[i] = 0;
  wgmma_fence();
  if constexpr (HALVES == 2) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) wgmma_mma_async<0, 0>(part, a + k + 4, b + k, k > 0, halves);
#pragma unroll
    for (int k = 0; k < 4; k += 2) wgmma_mma_async<0, 0>(part, a + k, b + k + 4, 1, halves);
  }
#pragma unroll
  for (int k = 0; k < 8 / HALVES; k += 2) wgmma_mma_async<0, 0>(part, a + k, b + k, HALVES == 2 || k > 0, halves);
  const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const float upper = scales[row], lower = scales[row + 8];
  wgmma_commit_and_wait(part);
#pragma unroll
  for (int i = 0; i < SIZE; ++i) sum[i] = fmaf(part[i], i / 2 % 2 == 0 ? upper : lower, sum[i]);
}

template <int HALVES, int SIZE, typename T>
__device__ __forceinline__ void multiply_stage(
    float (&sum)[SIZE], const unsigned char* filter, const unsigned char* samples, const float*, const T* type) {
  const unsigned long long a = matrix_descriptor(samples), b = matrix_descriptor(filter);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; k += 2) wgmma_mma_async<0, 0>(sum, a + k, b + k, 1, type);
  wgmma_commit_and_wait(sum);
}

// Adds the partial results of all splits of a tile, in order, in the last block to arrive; returns false in the others.
template <int SIZE>
__device__ __forceinline__ bool add_splits(
    float (&sum)[SIZE], float* partial, unsigned int* counter, int splits, unsigned int* shared) {
  float4* const parts = reinterpret_cast<float4*>(partial) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < SIZE / 4; ++i) {
    parts[(blockIdx.z * (SIZE / 4) + i) * CONSUMERS] =
        make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  }
  __threadfence();
  bar_sync<ALL_CONSUMERS, CONSUMERS>();
  if (threadIdx.x == 0) {
    *shared = atomicAdd(counter, 1u);
    __threadfence();
  }
  bar_sync<ALL_CONSUMERS, CONSUMERS>();
  if (*shared != splits - 1) return false;
  __threadfence();
  if (threadIdx.x == 0) *counter = 0;  // for the next launch
#pragma unroll
  for (int i = 0; i < SIZE; ++i) sum[i] = 0;
  for (int split = 0; split < splits; ++split) {
#pragma unroll
    for (int i = 0; i < SIZE / 4; ++i) {
      const float4 part = __ldcg(parts + (split * (SIZE / 4) + i) * CONSUMERS);
      sum[4 * i] += part.x, sum[4 * i + 1] += part.y, sum[4 * i + 2] += part.z, sum[4 * i + 3] += part.w;
    }
  }
  return true;
}

// Stores a tile's results, reordered from the tensor cores' layout to rows of pixels.
template <typename T, int N, int R, int Q>
__device__ __forceinline__ void write(
    const Ring<N, R, Q>& ring, const float (&sum)[N / 2], float row_scale, T* __restrict__ out, const Plan& plan,
    int first_column, int first_row, int row, int column) {
  constexpr int ROWS = Ring<N, R, Q>::ROWS, COLUMNS = Ring<N, R, Q>::COLUMNS, PITCH = COLUMNS + 4;
  float* const result = reinterpret_cast<float*>(ring.memory + plan.results);
  bar_sync<ALL_CONSUMERS, CONSUMERS>();  // the previous tile's results are stored, or the ring is no longer used
  if (sizeof(T) == 4 && threadIdx.x < ROWS) ring.row_scales[threadIdx.x] = row_scale;
  const int at = column + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    result[(row + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2) * PITCH + at + i / 2 % 2 * 8] = sum[i];
  }
  bar_sync<ALL_CONSUMERS, CONSUMERS>();
  const int across = COLUMNS / plan.strip;  // lanes follow a row of pixels
  const int own = threadIdx.x % COLUMNS, taken = own % across * plan.strip + own / across, mine = first_column + taken;
  if (mine >= plan.images * static_cast<int>(plan.conv.pixels.value)) return;
  const int image = quotient(mine, plan.conv.pixels), rows = min(ROWS, plan.rows - first_row);
  const int pixel = pixel_at(plan, remainder(mine, image, plan.conv.pixels));
  const long long pixels = plan.conv.pixels.value;
  T* const to =
      out + ((static_cast<long long>(image) * gridDim.y + blockIdx.y) * plan.rows + first_row) * pixels + pixel;
#pragma unroll 8
  for (int i = threadIdx.x / COLUMNS; i < rows; i += CONSUMERS / COLUMNS) {
    float value = result[i * PITCH + taken];
    if constexpr (sizeof(T) == 4) value *= ring.row_scales[i];
    to[i * pixels] = narrow<T>(value);
  }
}

// convolve: producer warps sample into a ring of stages, consumer warpgroups multiply.
// Layout   lines, packed filter, positions as `prepare` writes them
// Grid     blocks that share the tiles × groups × splits       Block  CONSUMERS + PRODUCERS
// Writes   out (N, Co, Ho, Wo); with splits, partial results and arrival counters, which it leaves zero
// Why      no column buffer is written; the next tile is sampled while results are stored
// T: type of all tensors; HALVES: of a float32 (1 for 16 bits); N: output channels of a warpgroup; R, Q: warpgroups by
// output channels and by pixels.
template <typename T, int HALVES, int N, int R, int Q>
__global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1) convolve(
    const T* __restrict__ lines, const T* __restrict__ zeros, const unsigned char* __restrict__ packed,
    const float* __restrict__ row_scales, const SamplePosition* __restrict__ positions, T* __restrict__ out, float* __restrict__ partial,
    unsigned int* __restrict__ counters, const __grid_constant__ Plan plan) {
  using Memory = Ring<N, R, Q>;
  constexpr int ROWS = Memory::ROWS, COLUMNS = Memory::COLUMNS, SIZE = N / 2;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Memory ring(memory, plan);
  const int stages = plan.chunks * plan.conv.taps;
  const int begin = blockIdx.z * plan.share, end = min(begin + plan.share, stages);
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int slot = 0; slot < plan.stages; ++slot) {
      mbarrier_init(ring.full + slot, PRODUCERS / 32 + 1);
      mbarrier_init(ring.empty + slot, CONSUMERS / 32);
    }
    fence_proxy_async();
  }
  __syncthreads();
  RingCursor cursor;
  if (threadIdx.x >= CONSUMERS) {
    setmaxnreg<REGISTERS, SAMPLING<T, HALVES, N>>();
#pragma unroll 1
    for (int tile = blockIdx.x; tile < plan.tiles; tile += gridDim.x) {
      const int column_tile = tile / plan.row_tiles, row_tile = tile - column_tile * plan.row_tiles;
      const long long first = static_cast<long long>(blockIdx.y * plan.row_tiles + row_tile) * stages;
      produce<T, HALVES, N, R, Q>(
          ring, lines + blockIdx.y * plan.depth, zeros, packed + first * Memory::FILTER_BYTES, positions, plan, cursor,
          column_tile * COLUMNS, begin, end);
    }
    return;
  }
  setmaxnreg<REGISTERS, 2 * REGISTERS - SAMPLING<T, HALVES, N>>();
  const int team = threadIdx.x / 128, row = team % R * N, column = team / R * 64;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < plan.tiles; tile += gridDim.x) {
    const int column_tile = tile / plan.row_tiles, first_row = (tile - column_tile * plan.row_tiles) * ROWS;
    const int own_row = first_row + threadIdx.x;
    const bool scaled = sizeof(T) == 4 && threadIdx.x < ROWS && own_row < plan.rows;
    const float row_scale = scaled ? row_scales[blockIdx.y * plan.rows + own_row] : 0.0f;
    float sum[SIZE];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) sum[i] = 0;
#pragma unroll 1
    for (int left = end - begin; left > 0; --left, cursor.next(plan.stages)) {
      mbarrier_wait(ring.full + cursor.slot, cursor.parity);
      multiply_stage<HALVES>(
          sum, ring.filter(cursor.slot) + row * LINE, ring.samples(cursor.slot) + column * LINE,
          ring.scales + cursor.slot * COLUMNS + column, static_cast<const T*>(nullptr));
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty + cursor.slot);
    }
    if (plan.splits > 1) {
      const long long index = static_cast<long long>(blockIdx.y) * plan.tiles + tile;
      float* const mine = partial + index * plan.splits * ROWS * COLUMNS;
      if (!add_splits(sum, mine, counters + index, plan.splits, ring.counter)) continue;
    }
    write<T, N, R, Q>(ring, sum, row_scale, out, plan, column_tile * COLUMNS, first_row, row, column);
  }
}

#else

template <typename T, int HALVES, int N, int R, int Q>
__global__ void convolve(const T*, const T*, const unsigned char*, const float*, const SamplePosition*, T*, float*, unsigned int*, Plan) {
  __trap();  // other devices use a column buffer
}

#endif
